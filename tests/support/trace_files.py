"""Small traces for tests, as plain dictionaries in the form of the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def request(t: float = 0.0, **changes: Any) -> Json:
    return {
        "t": t,
        "type": "n",
        "model": "m",
        "in": 192,
        "out": 10,
        "hash_ids": [1, 2, 3],
        "input_types": ["text"],
        "output_types": ["text"],
        "stop": "end_turn",
        "api_time": 2.0,
        "think_time": 0.0,
        **changes,
    }


def subagent(t: float = 3.0, requests: list[Json] | None = None, **changes: Any) -> Json:
    return {
        "t": t,
        "type": "subagent",
        "agent_id": "agent_001",
        "subagent_type": "Explore",
        "duration_ms": 5000,
        "total_tokens": 300,
        "tool_use_count": 2,
        "status": "completed",
        "requests": [request(t, hash_ids=[7, 8, 9]), request(t + 3, hash_ids=[7, 8, 9])]
        if requests is None
        else requests,
        "models": ["m"],
        "tool_tokens": 64,
        "system_tokens": 64,
        **changes,
    }


def trace(name: str = "a", requests: list[Json] | None = None, **changes: Any) -> Json:
    return {
        "id": name,
        "models": ["m"],
        "block_size": 64,
        "hash_id_scope": "local",
        "tool_tokens": 100,
        "system_tokens": 20,
        "requests": [request(0.0), request(10.0)] if requests is None else requests,
        "totals": {"subagent_count": 0},
        **changes,
    }


def without(entry: Json, key: str) -> Json:
    return {k: v for k, v in entry.items() if k != key}


def dump(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def write_lines(path: Path, traces: list[Json]) -> Path:
    path.write_bytes(b"".join(dump(t) + b"\n" for t in traces))
    return path

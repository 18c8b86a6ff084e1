"""Requests that are left out of traces."""

import json
from pathlib import Path

import pytest

from agentx_engine.corpus import open_corpus
from agentx_engine.corpus.filters import requests_of, without_large_requests
from agentx_engine.replay.corpus_trees import CorpusTrees


def call(t: float, tokens: int, out: int = 10) -> dict:
    ids = list(range(1, tokens // 64 + 1))
    return {"type": "n", "t": t, "model": "m", "in": tokens, "out": out, "hash_ids": ids, "api_time": 1}


def child(t: float, *requests: dict, agent: str = "a") -> dict:
    return {
        "type": "subagent",
        "t": t,
        "agent_id": agent,
        "subagent_type": "x",
        "status": "completed",
        "models": ["m"],
        "requests": list(requests),
        "duration_ms": None,
        "total_tokens": None,
        "tool_use_count": None,
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    first = [call(0, 640), call(5, 6400), child(6, call(6, 640), call(8, 6400)), call(20, 1280, 300)]
    first += [child(21, call(21, 6400), agent="b")]
    traces = {"one": first, "two": [call(0, 64)], "three": [call(0, 6400)]}
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number, (name, requests) in enumerate(traces.items()):
        trace = {
            "id": name,
            "models": ["m"],
            "block_size": 64,
            "hash_id_scope": "local",
            "requests": requests,
        }
        (folder / f"{number}.json").write_text(json.dumps(trace))
    return folder


def test_input_and_output_count_together(path: Path) -> None:
    trace = open_corpus(path).trace(0)
    assert [r.in_tokens for r in requests_of(trace)] == [640, 6400, 640, 6400, 1280, 6400]
    for bound, left in ((1580, [640, 640, 1280]), (1579, [640, 640]), (649, [])):
        kept = without_large_requests(trace, bound)
        assert [r.in_tokens for r in requests_of(kept)] == left
    assert without_large_requests(trace, 6410) is trace


def test_a_subagent_without_requests_is_gone(path: Path) -> None:
    kept = without_large_requests(open_corpus(path).trace(0), 1580)
    assert [entry.type for entry in kept.requests] == ["n", "subagent", "n"]


def test_a_corpus_leaves_them_out_everywhere(path: Path) -> None:
    corpus = open_corpus(path, max_request_tokens=1580)
    assert corpus.requests_left_out == 4
    assert corpus.peak_tokens(0) == 1580
    tree = CorpusTrees(corpus).load(0)
    assert [[turn.in_tokens for turn in c.turns] for c in tree.conversations] == [[640, 1280], [640]]
    assert corpus.select(entries=2).requests_left_out == 3
    assert len(corpus.select(max_context=1580)) == 3
    assert open_corpus(path).requests_left_out == 0


def test_output_limits(path: Path) -> None:
    """Recorded subagents are never capped; what the body makes of a limit is what the plan has."""
    corpus = open_corpus(path)

    def limits(**options: object) -> list[list[int]]:
        tree = CorpusTrees(corpus, **options).load(0)  # type: ignore[arg-type]
        return [[turn.max_tokens for turn in c.turns] for c in tree.conversations]

    plain = limits()
    root, *children = plain
    assert max(root) == 300
    assert limits(max_output_tokens=5) == [[min(5, n) for n in root], *children]
    assert limits(max_output_tokens=5, limit=lambda n: n + 1)[0] == [6] * len(root)
    assert limits(limit=lambda n: 7) == [[7] * len(turns) for turns in plain]

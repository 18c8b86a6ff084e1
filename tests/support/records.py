"""Hand-made request records."""

from __future__ import annotations

from typing import Any

import numpy as np

from agentx_engine.metrics.record import RequestIdentity, RequestRecord
from agentx_engine.transport.base import Outcome, Result, Stamps, Usage

MS = 1_000_000
START = 5_000_000_000_000
USAGE = Usage(prompt=1020, completion=5, cached=640)


def identity(sequence: int = 0, **changes: Any) -> RequestIdentity:
    fields: dict[str, Any] = {
        "sequence": sequence,
        "phase": "profiling",
        "lane": 3,
        "play": 0,
        "trace_id": "trace_0001",
        "conversation_id": "trace_0001",
        "turn": 2,
        "depth": 0,
        "request_id": f"request-{sequence}",
        "correlation_id": "correlation-root",
        "root_correlation_id": "correlation-root",
        "parent_correlation_id": None,
        "source": (4, None),
        "source_kind": "weka_main",
        "endpoint": 0,
        "recorded_in": 1000,
        "recorded_out": 5,
        "max_tokens": 5,
        "marker_tokens": 12,
        "roles": (1, 2, 1),
        "hit_blocks": 10,
        "total_blocks": 15,
        "reactive": False,
    }
    return RequestIdentity(**(fields | changes))


def success(
    sequence: int = 0,
    *,
    due: int = START,
    lag: int = 50_000,
    ttft: int = 200 * MS,
    gaps: tuple[int, ...] = (10 * MS, 10 * MS, 20 * MS, 10 * MS),
    usage: Usage | None = USAGE,
    slack: tuple[int, ...] | None = None,
    **changes: Any,
) -> RequestRecord:
    """A streamed answer: head 30 ms, role event 50 ms, then content, usage 2 ms and framing 3 ms later."""
    sent = due + lag
    tokens = sent + ttft + np.concatenate([[0], np.cumsum(np.array(gaps, dtype=np.int64))]).astype(np.int64)
    first, last = int(tokens[0]), int(tokens[-1])
    slacks = np.array(slack or (0,) * len(tokens), dtype=np.uint32)
    result = Result(
        outcome=Outcome.SUCCESS,
        status=200,
        usage=usage,
        finish_reason="length",
        stamps=Stamps(
            due=due,
            armed=due - 40 * MS,
            conn_ready=due - 30 * MS,
            first_sent=sent,
            last_sent=sent + 2 * MS,
            ack=sent + 30 * MS,
            first_event=sent + min(50 * MS, ttft),
            first_content=first,
            first_text=first,
            last_content=last,
            last_event=last + 2 * MS,
            end=last + 3 * MS,
        ),
        reads=len(tokens) + 3,
        events=len(tokens) + 3,
        content_events=len(tokens),
        coalesced_events=int((slacks > 0).sum()),
        bytes_in=2000,
        bytes_out=9000,
        token_ns=tokens,
        token_slack_ns=slacks,
    )
    return RequestRecord(identity(sequence, **changes), result)


def failure(outcome: Outcome, sequence: int = 0, *, sent: bool = True, **result: Any) -> RequestRecord:
    """A request that ended 100 ms after it was due, without any event."""
    identity_changes = result.pop("identity", {})
    stamps = Stamps(due=START, armed=START - 5, end=START + 100 * MS)
    if sent:
        stamps.first_sent, stamps.last_sent = START + 1000, START + 2000
    return RequestRecord(
        identity(sequence, **identity_changes), Result(outcome=outcome, stamps=stamps, **result)
    )

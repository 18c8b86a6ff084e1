"""Small made-up recordings: requests, subagents and traces in the corpus' own types."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentx_engine.corpus.clock import settle
from agentx_engine.corpus.model import Entry, Subagent, Trace, TraceRequest

BLOCK = 64


def request(
    t: float,
    ids: Sequence[int] = (),
    *,
    tokens: int | None = None,
    out: int = 10,
    api: float | None = None,
    model: str = "m",
    input_types: tuple[str, ...] = (),
    stop: str = "",
) -> TraceRequest:
    """`tokens` defaults to whole blocks."""
    return TraceRequest(
        t=t,
        model=model,
        in_tokens=len(ids) * BLOCK if tokens is None else tokens,
        out_tokens=out,
        hash_ids=msgspec.Raw(msgspec.json.encode(list(ids))),
        input_types=input_types,
        stop=stop,
        api_time=api,
    )


def subagent(
    t: float,
    agent: str,
    requests: Sequence[TraceRequest] = (),
    *,
    duration_s: float | None = None,
    status: str = "completed",
    tool_tokens: int = 0,
    system_tokens: int = 0,
) -> Subagent:
    return Subagent(
        t=t,
        agent_id=agent,
        subagent_type="Explore",
        status=status,
        requests=tuple(requests),
        duration_ms=None if duration_s is None else duration_s * 1000,
        tool_tokens=tool_tokens,
        system_tokens=system_tokens,
    )


def trace(
    *entries: Entry,
    trace_id: str = "T",
    tool_tokens: int = 0,
    system_tokens: int = 0,
    settled: bool = False,
) -> Trace:
    """`settled`: bring the subagents' clocks in order, as the corpus does when it reads a file."""
    made = Trace(
        id=trace_id,
        models=(),
        block_size=BLOCK,
        hash_id_scope="local",
        tool_tokens=tool_tokens,
        system_tokens=system_tokens,
        requests=tuple(entries),
        source="made.json",
    )
    return settle(made) if settled else made

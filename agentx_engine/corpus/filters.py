"""What is left out of a trace before it is replayed. Pure functions, Trace -> Trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agentx_engine.corpus.model import Entry, Subagent, Trace, TraceRequest

if TYPE_CHECKING:
    from collections.abc import Iterable


def without_large_requests(trace: Trace, max_tokens: int) -> Trace:
    """The trace without requests whose input and output together exceed `max_tokens`.

    A subagent that loses all its requests goes with them. With 256,000 that is how the `_256k` variants of
    the published corpora are made (their data sets' cards). The others move up: positions in the result are,
    as there, of what is left. A trace that has nothing to leave out is returned as it is.
    """
    if all(_fits(request, max_tokens) for request in requests_of(trace)):
        return trace
    entries: list[Entry] = []
    for entry in trace.requests:
        if isinstance(entry, Subagent):
            kept = tuple(request for request in entry.requests if _fits(request, max_tokens))
            if kept or not entry.requests:
                entries.append(msgspec.structs.replace(entry, requests=kept))
        elif _fits(entry, max_tokens):
            entries.append(entry)
    return msgspec.structs.replace(trace, requests=tuple(entries))


def requests_of(trace: Trace) -> Iterable[TraceRequest]:
    """All requests of a trace, subagents' included."""
    for entry in trace.requests:
        if isinstance(entry, Subagent):
            yield from entry.requests
        else:
            yield entry


def _fits(request: TraceRequest, max_tokens: int) -> bool:
    return request.in_tokens + request.out_tokens <= max_tokens

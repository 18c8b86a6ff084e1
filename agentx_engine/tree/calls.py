"""Requests of a trace in the builder's terms: integer nanoseconds and parsed block ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentx_engine.core.ids import parse_ids
from agentx_engine.errors import CorpusError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from agentx_engine.corpus.model import Trace, TraceRequest

NS_PER_S = 1_000_000_000

# Recorded times that differ by less are equal: they come from decimal fractions of a second.
CLOCK_EPSILON_NS = 1_000


@dataclass(slots=True, eq=False)
class Call:
    """One recorded request. `source` is its place in the file: (entry, index inside a subagent or None).

    `end_ns` treats an unknown or negative duration as 0 (chains, barriers, spawn points); delays use
    `api_ns` as recorded, even where it is negative.
    """

    source: tuple[int, int | None]
    index: int  # place in its own list: the entry for root requests, the inner index in a subagent
    model: str
    in_tokens: int
    out_tokens: int
    start_ns: int
    api_ns: int | None
    end_ns: int
    ids: NDArray[np.int32]
    input_types: tuple[str, ...]
    stop: str


def seconds_to_ns(seconds: float) -> int:
    return round(seconds * 1e9)


def read_call(trace: Trace, request: TraceRequest, source: tuple[int, int | None]) -> Call:
    """Raises CorpusError where the block ids are not a list of ids."""
    start_ns = seconds_to_ns(request.t)
    api_ns = None if request.api_time is None else seconds_to_ns(request.api_time)
    try:
        ids = parse_ids(request.hash_ids)
    except ValueError as exc:
        raise CorpusError(f"{where(trace, source)}: field hash_ids: {exc}") from exc
    outer, inner = source
    return Call(
        source=source,
        index=outer if inner is None else inner,
        model=request.model,
        in_tokens=request.in_tokens,
        out_tokens=request.out_tokens,
        start_ns=start_ns,
        api_ns=api_ns,
        end_ns=start_ns + max(api_ns or 0, 0),
        ids=ids,
        input_types=request.input_types,
        stop=request.stop,
    )


def where(trace: Trace, source: tuple[int, int | None]) -> str:
    """ "FILE: trace ID, requests[3].requests[0]": the place of a request, for error messages."""
    outer, inner = source
    place = f"requests[{outer}]" if inner is None else f"requests[{outer}].requests[{inner}]"
    prefix = f"{trace.source}: " if trace.source else ""
    return f"{prefix}trace {trace.id}, {place}"


def in_time_order(calls: list[Call]) -> list[Call]:
    """By start, then place in the file: the order in which streams are read."""
    return sorted(calls, key=lambda c: (c.start_ns, c.index))

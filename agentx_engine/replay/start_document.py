"""A lane plan as the plain data of the golden lane files: `plan --lanes --json`, comparing engines.

Head: `seed, concurrency, ratios, profiling_zero_ms, primer_count, next_recycled_trace`; `lanes[]`: `lane,
trace, seed, bounds_s, t_star_s, root_next, streams[], primers[], slot_taken_by_lane?, done[]`. Seconds and
milliseconds have six decimals, whole numbers no point.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentx_engine.replay.start import LaneStart, StreamStart
    from agentx_engine.replay.start_plan import LanePlan

DIGITS = 6


def start_document(plan: LanePlan, *, burst: bool = False) -> dict[str, Any]:
    """Plain dicts, lists, strings and numbers. Send times are those of `plan.schedule(burst=burst)`."""
    times = plan.schedule(burst=burst)
    return {
        "seed": plan.seed,
        "concurrency": plan.concurrency,
        "ratios": list(plan.ratios),
        "profiling_zero_ms": _number(times.zero_ms),
        "primer_count": sum(len(lane.primers) for lane in plan.lanes),
        "next_recycled_trace": plan.next_trace,
        "lanes": [
            _lane(lane, primers_ns, streams_ns)
            for lane, primers_ns, streams_ns in zip(
                plan.lanes, times.primers_ns, times.streams_ns, strict=True
            )
        ],
    }


def _lane(lane: LaneStart, primers_ns: tuple[int, ...], streams_ns: tuple[int, ...]) -> dict[str, Any]:
    root = lane.root
    document: dict[str, Any] = {
        "lane": lane.lane,
        "trace": lane.trace_id,
        "seed": lane.seed,
        "bounds_s": [_number(lane.first_ms / 1e3), _number(lane.last_ms / 1e3)],
        "t_star_s": None if lane.t_star_ms is None else _number(lane.t_star_ms / 1e3),
        "root_next": None if root is None else root.turn,
        "streams": [_stream(s, ns) for s, ns in zip(lane.streams, streams_ns, strict=True)],
        "primers": [
            {"id": p.id, "turn": p.turn, "lead_ms": _number(p.lead_ms), "send_at_ms": _number(ns / 1e6)}
            for p, ns in zip(lane.primers, primers_ns, strict=True)
        ],
    }
    if lane.slot_taken_by_lane is not None:
        document["slot_taken_by_lane"] = lane.slot_taken_by_lane
    document["done"] = [[prefix.id, prefix.turns] for prefix in lane.done]
    return document


def _stream(stream: StreamStart, at_ns: int) -> dict[str, Any]:
    document: dict[str, Any] = {
        "id": stream.id,
        "next": stream.turn,
        "offset_ms": _number(stream.offset_ms),
        "gated": stream.gated,
    }
    if stream.branch is not None:
        document |= {"branch": stream.branch_id, "feeds_turn": stream.feeds_turn}
    if stream.gated:
        document |= {"join_turn": stream.turn, "release_not_before_ms": _number(at_ns / 1e6)}
    else:
        document["start_ms"] = _number(at_ns / 1e6)
    return document


def _number(value: float) -> int | float:
    rounded = round(value, DIGITS)
    return int(rounded) if rounded.is_integer() else rounded

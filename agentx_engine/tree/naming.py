"""What a hidden agent is called: helper call (aux), member of a group that ran together (wg), agent (fa).

The class affects the name only. Source: agentx-v1, section 2.6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentx_engine.tree.calls import Call
    from agentx_engine.tree.chains import Split, Worker

AUX_MAX_IN = 16_384
AUX_SHARE_OF_PEAK = 0.10
REDUCTION_MAX_OUT = 4_000
REDUCTION_MIN_IN_PER_OUT = 20
GROUP_MIN_MEMBERS = 3


class NamedWorker(NamedTuple):
    name: str  # "fa:000", "aux:001", "wg:000_002"
    agent_class: Literal["fa", "aux", "wg"]
    calls: list[Call]


def name_workers(split: Split) -> list[NamedWorker]:
    """Names in the order of the workers, which is by first start."""
    if not split.workers:
        return []
    main = split.main[split.head :]
    peak = max(call.in_tokens for call in main)
    groups = _groups(split.workers)
    named: list[NamedWorker] = []
    for number, worker in enumerate(split.workers):
        if _is_aux(worker.calls, main[0].model, peak):
            named.append(NamedWorker(f"aux:{number:03d}", "aux", worker.calls))
        elif number in groups:
            group, rank = groups[number]
            named.append(NamedWorker(f"wg:{group:03d}_{rank:03d}", "wg", worker.calls))
        else:
            named.append(NamedWorker(f"fa:{number:03d}", "fa", worker.calls))
    return named


def _is_aux(calls: Sequence[Call], main_model: str, peak: int) -> bool:
    """A single call that is small, of another model, or reduces a long text to a short one."""
    if len(calls) != 1:
        return False
    call = calls[0]
    if call.model != main_model or call.in_tokens < max(AUX_MAX_IN, int(AUX_SHARE_OF_PEAK * peak)):
        return True
    return (
        0 < call.out_tokens < REDUCTION_MAX_OUT
        and call.in_tokens > REDUCTION_MIN_IN_PER_OUT * call.out_tokens
    )


def _groups(workers: Sequence[Worker]) -> dict[int, tuple[int, int]]:
    """Worker -> (group, rank) for workers that forked at one point and ran at the same time."""
    siblings: dict[int, list[tuple[int, int, int]]] = {}
    for number, worker in enumerate(workers):
        if worker.source is not None:
            span = (worker.calls[0].start_ns, number, max(call.end_ns for call in worker.calls))
            siblings.setdefault(worker.source, []).append(span)
    together = [
        component
        for spans in siblings.values()
        for component in _overlapping(spans)
        if len(component) >= GROUP_MIN_MEMBERS
    ]
    together.sort()
    return {
        number: (group, rank)
        for group, component in enumerate(together)
        for rank, (_, number) in enumerate(component)
    }


def _overlapping(spans: Sequence[tuple[int, int, int]]) -> list[list[tuple[int, int]]]:
    """Connected components of [start, end) intervals that stand in order of start, as (start, number)."""
    components: list[list[tuple[int, int]]] = []
    latest_end = None
    for start, number, end in spans:
        if latest_end is not None and start < latest_end:
            components[-1].append((start, number))
            latest_end = max(latest_end, end)
        else:
            components.append([(start, number)])
            latest_end = end
    return components

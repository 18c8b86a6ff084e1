"""How all lanes of a run begin: which trace each plays from where, and when its first requests are sent.

`LaneBuilder` (and `build_lanes`, which drives it) gives each lane the next usable trace of the sampler and
draws its t*. `schedule` says when primers and first requests are sent. It needs all lanes: the primer that
lies farthest before its lane's t* opens the warmup, the earliest first request opens the measured phase.

Source: agentx-v1, sections 5.1, 5.4, 5.9 and 6.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from agentx_engine.errors import CorpusError
from agentx_engine.replay.protocols import TreeSource
from agentx_engine.replay.sampler import SequentialSampler
from agentx_engine.replay.start import NS_PER_MS, LaneStart, lane_start
from agentx_engine.tree.model import ConversationTree

PRIMER_LEAD_CAP_MS = 10_000.0  # the scenario's cap on idle time of the whole system


class Schedule(msgspec.Struct, frozen=True):
    """When a phase's first requests are sent, ns after the phase's start.

    Attributes:
        zero_ms: the offset that became the start of profiling.
        primers_ns: by lane and primer, in the warmup phase.
        streams_ns: by lane and stream, in profiling. Of a gated root: its join is not released before.
    """

    zero_ms: float
    primers_ns: tuple[tuple[int, ...], ...]
    streams_ns: tuple[tuple[int, ...], ...]


class LanePlan(msgspec.Struct, frozen=True, kw_only=True):
    """How all lanes of a run begin.

    `traces[i]` is the corpus position of the trace that `lanes[i]` plays. Fewer lanes than `concurrency`:
    the sampler was asked often enough, but `skipped` traces are not usable. The lane that drains first
    plays `next_trace`, from its first turn.
    """

    seed: int
    concurrency: int
    ratios: tuple[float, float]
    lanes: tuple[LaneStart, ...]
    traces: tuple[int, ...]
    skipped: tuple[str, ...]
    next_index: int
    next_trace: str

    def schedule(self, *, burst: bool = False, lead_cap_ms: float | None = PRIMER_LEAD_CAP_MS) -> Schedule:
        return schedule(self.lanes, burst=burst, lead_cap_ms=lead_cap_ms)


class LaneBuilder:
    """Gives each lane the next usable trace; whoever has the trees drives it.

    ``while (index := builder.ask()) is not None: builder.offer(load(index))``, then `plan`. It does no I/O,
    so the trees may come from a file, a cache or a coroutine.
    """

    def __init__(
        self,
        source: TreeSource,
        concurrency: int,
        seed: int,
        r0: float,
        r1: float,
        *,
        sampler: SequentialSampler | None = None,
    ) -> None:
        """`sampler` is the run's own, which recycling goes on with. Of `source` only names are asked."""
        self._source = source
        self._concurrency = concurrency
        self._seed = seed
        self._ratios = (r0, r1)
        self._sampler = sampler if sampler is not None else SequentialSampler(len(source))
        self._asks_left = concurrency + 2 * len(source)
        self._asked: int | None = None
        self._lanes: list[LaneStart] = []
        self._traces: list[int] = []
        self._skipped: list[str] = []

    def ask(self) -> int | None:
        """Corpus position of the tree that is needed next; None: all lanes are there, or cannot be."""
        if len(self._lanes) == self._concurrency or not self._asks_left:
            return None
        self._asks_left -= 1
        self._asked = self._sampler.take()
        return self._asked

    def offer(self, tree: ConversationTree) -> LaneStart | None:
        """Takes the tree that was asked for. The lane which now plays it, or None if it is not usable."""
        if self._asked is None:
            raise ValueError("no tree was asked for")
        index, self._asked = self._asked, None
        start = lane_start(tree, len(self._lanes), self._seed, *self._ratios)
        if start is None:
            self._skipped.append(tree.trace_id)
        else:
            self._lanes.append(start)
            self._traces.append(index)
        return start

    def plan(self) -> LanePlan:
        """Raises CorpusError if not one lane could be made."""
        if not self._lanes:
            raise CorpusError(
                "no trace of the corpus can be started: none has a request that is live at its start. "
                "Give other traces."
            )
        following = self._sampler.peek()
        return LanePlan(
            seed=self._seed,
            concurrency=self._concurrency,
            ratios=self._ratios,
            lanes=tuple(self._lanes),
            traces=tuple(self._traces),
            skipped=tuple(dict.fromkeys(self._skipped)),
            next_index=following,
            next_trace=self._source.trace_id(following),
        )


def build_lanes(
    source: TreeSource,
    concurrency: int,
    seed: int,
    r0: float,
    r1: float,
    *,
    sampler: SequentialSampler | None = None,
) -> LanePlan:
    """All lanes of a run, their trees loaded one after another.

    The sampler is asked until there are `concurrency` lanes, at most `concurrency` + 2 x corpus size times.
    Trees are kept meanwhile only if there are more lanes than traces, so that each is loaded once.
    Raises what `source.load` and `LaneBuilder.plan` raise.
    """
    builder = LaneBuilder(source, concurrency, seed, r0, r1, sampler=sampler)
    keep = concurrency > len(source)
    kept: dict[int, ConversationTree] = {}
    while (index := builder.ask()) is not None:
        tree = kept.get(index) or source.load(index)
        builder.offer(tree)
        if keep:
            kept[index] = tree
    return builder.plan()


def schedule(
    lanes: Sequence[LaneStart], *, burst: bool = False, lead_cap_ms: float | None = PRIMER_LEAD_CAP_MS
) -> Schedule:
    """Send times of the lanes' primers and first requests.

    Spread (the default): primers as far apart as their turns before t*, no lead counting for more than
    `lead_cap_ms` (None: no cap); first requests at their offset, less the smallest of all lanes.
    Burst: primers at once; first requests at their offset, less the smallest of their own lane.
    A gated root is never released before its offset less the smallest of all lanes.
    """
    cap = math.inf if lead_cap_ms is None else lead_cap_ms
    leads = [[min(primer.lead_ms, cap) for primer in lane.primers] for lane in lanes]
    longest = max((lead for own in leads for lead in own), default=0.0)
    zero_ms = _profiling_zero_ms(lanes)
    streams: list[tuple[int, ...]] = []
    for lane in lanes:
        base_ms = min((s.offset_ms for s in lane.ready), default=0.0) if burst else zero_ms
        streams.append(
            tuple(_ns(max(0.0, s.offset_ms - (zero_ms if s.gated else base_ms))) for s in lane.streams)
        )
    return Schedule(
        zero_ms=zero_ms,
        primers_ns=tuple(tuple(0 if burst else _ns(longest - lead) for lead in own) for own in leads),
        streams_ns=tuple(streams),
    )


def _profiling_zero_ms(lanes: Sequence[LaneStart]) -> float:
    if any(lane.t_star_ms is None for lane in lanes):
        return 0.0
    return min((stream.offset_ms for lane in lanes for stream in lane.ready), default=0.0)


def _ns(ms: float) -> int:
    return round(ms * NS_PER_MS)

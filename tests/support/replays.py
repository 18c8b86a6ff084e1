"""Runs the scheduler under simulated time and keeps everything it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agentx_engine.metrics.record import RequestIdentity, RequestRecord
from agentx_engine.replay.dispatch import FailurePolicy
from agentx_engine.replay.engine import Replay
from agentx_engine.replay.ids import seeded_ids
from agentx_engine.replay.options import ReplayOptions, ReplayReport
from agentx_engine.replay.protocols import PromptSource, TreeEnd, TreeIdentity, TreeSource
from agentx_engine.replay.simserver import LinearModel, PlannedPrompts, ServerModel, SimulatedTransport
from agentx_engine.replay.simulated import SimulatedClock, inline, run_simulated

MS = 1_000_000
SECOND = 1_000_000_000


@dataclass
class KeepAll:
    """A recorder that keeps everything, with the time at which it learned of it."""

    clock: SimulatedClock
    started_: list[RequestIdentity] = field(default_factory=list)
    records: list[RequestRecord] = field(default_factory=list)
    withdrawn_: list[RequestIdentity] = field(default_factory=list)
    trees: list[tuple[int, str, TreeIdentity, int, str]] = field(default_factory=list)
    events: list[tuple[Any, ...]] = field(default_factory=list)

    def tree_started(self, tree: TreeIdentity, start_ns: int) -> None:
        self.trees.append((self.clock.now_ns(), "start", tree, start_ns, ""))
        self.events.append((self.clock.now_ns(), "tree", tree.lane, tree.trace_id, tree.play, start_ns))

    def tree_finished(self, tree: TreeIdentity, reason: TreeEnd, end_ns: int) -> None:
        self.trees.append((self.clock.now_ns(), "end", tree, end_ns, reason))
        self.events.append((self.clock.now_ns(), "end", tree.lane, tree.trace_id, tree.play, reason, end_ns))

    def started(self, identity: RequestIdentity) -> None:
        self.started_.append(identity)
        self.events.append((self.clock.now_ns(), "armed", identity.sequence, identity.request_id))

    def finished(self, record: RequestRecord) -> None:
        self.records.append(record)
        stamps = record.result.stamps
        times = tuple(getattr(stamps, name) for name in stamps.__struct_fields__)
        self.events.append(
            (self.clock.now_ns(), record.result.outcome.value, record.identity.sequence, times)
        )

    def withdrawn(self, identity: RequestIdentity) -> None:
        self.withdrawn_.append(identity)
        self.events.append((self.clock.now_ns(), "withdrawn", identity.sequence))

    def of(
        self, conversation_id: str, *, lane: int = 0, play: int = 0, phase: str | None = None
    ) -> list[RequestRecord]:
        found = [
            r
            for r in self.records
            if (r.identity.conversation_id, r.identity.lane, r.identity.play) == (conversation_id, lane, play)
            and phase in (None, r.identity.phase)
        ]
        return sorted(found, key=lambda record: record.identity.turn)


@dataclass
class Played:
    report: ReplayReport
    seen: KeepAll
    replay: Replay
    clock: SimulatedClock

    @property
    def start_ns(self) -> int:
        return self.report.started_ns

    def due(self, conversation_id: str, **where: int) -> list[int]:
        """Due times of a conversation's turns, from the start of the measured phase."""
        records = self.seen.of(conversation_id, phase="profiling", **where)
        return [r.result.stamps.due - self.start_ns for r in records]

    def warmed(self, conversation_id: str, **where: int) -> list[tuple[int, int]]:
        """(turn, due time from the start of the warmup) of a conversation's warmup requests."""
        assert self.report.warmup is not None
        records = self.seen.of(conversation_id, phase="warmup", **where)
        start_ns = self.report.warmup.started_ns
        return [(r.identity.turn, r.result.stamps.due - start_ns) for r in records]


def replay(
    trees: TreeSource,
    *,
    model: ServerModel | None = None,
    prompts: PromptSource | None = None,
    delivery_ns: int = 0,
    before: Callable[[Replay, SimulatedClock, KeepAll], None] | None = None,
    make_recorder: Callable[[SimulatedClock], KeepAll] = KeepAll,
    make_transport: Callable[..., SimulatedTransport] = SimulatedTransport,
    failure_policy: FailurePolicy | None = None,
    **options: Any,
) -> Played:
    """One simulated replay. `before` may set timers which stop it or look at it."""
    options.setdefault("concurrency", 1)
    options.setdefault("run_id", "test")

    async def main(clock: SimulatedClock) -> Played:
        seen = make_recorder(clock)
        transport = make_transport(clock, model or LinearModel(), delivery_ns=delivery_ns)
        run = Replay(
            clock=clock,
            transport=transport,
            trees=trees,
            prompts=prompts or PlannedPrompts(),
            recorder=seen,
            options=ReplayOptions(**options),
            ids=seeded_ids(7),
            offload=inline,
            failure_policy=failure_policy,
        )
        if before is not None:
            before(run, clock, seen)
        report = await run.run()
        return Played(report, seen, run, clock)

    return run_simulated(main)

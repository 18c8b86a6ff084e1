"""The warmup: from lanes at their t* to lanes that are ready to be measured.

Stages: primers, sent as far apart as their turns were recorded before t*; when all are back, the extra
requests of each lane at full speed; when every lane has had its quota, what is under way drains. Then
each tree says where it stands (`hand_over`) and the measured phase goes on from there: same conversations,
ids, prompts, marker. The stages wait for tasks of conversations only, so whatever ends the run ends them.

A lane whose tree has ended with its quota takes the next one at the hand-over, in the order of lanes; until
then nobody knows which lane will be the last.

Source: agentx-v1, sections 5.4 to 5.8.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from agentx_engine.replay.clock import Clock, Timer
from agentx_engine.replay.dispatch import Dispatcher
from agentx_engine.replay.lane import Lane, Stage
from agentx_engine.replay.options import SECOND, WarmupReport
from agentx_engine.replay.phase import WARMUP, Phase
from agentx_engine.replay.start import NS_PER_MS, LaneStart
from agentx_engine.replay.start_plan import schedule

LAUNCH_NS_PER_LANE = 100_000  # time to arm one lane's primers, generously


class Warmup:
    """`run`, then `hand_over`. `fail` ends the run with a sentence that says why."""

    def __init__(
        self,
        clock: Clock,
        phase: Phase,
        dispatcher: Dispatcher,
        stage: Stage,
        fail: Callable[[str], None],
    ) -> None:
        self._clock = clock
        self._phase = phase
        self._dispatcher = dispatcher
        self._stage = stage
        self._fail = fail
        self._quiet: asyncio.Future[None] | None = None
        self._timer: Timer | None = None  # end of the accelerated stage, then of its drain
        self.report: WarmupReport | None = None

    async def run(self, lanes: Sequence[Lane], play: Callable[[Lane], None]) -> None:
        """Returns when the last warmup request has returned, or when the run is ended."""
        options, phase, counters = self._stage.options, self._phase, self._stage.counters
        dispatcher, clock = self._dispatcher, self._clock
        phase.begin_primers()
        counters.restart(WARMUP)
        starts = [lane.start for lane in lanes]
        cap_ms = None if options.primer_lead_cap_ns is None else options.primer_lead_cap_ns / NS_PER_MS
        times = schedule(starts, burst=options.burst_starts, lead_cap_ms=cap_ms)
        for lane in lanes:
            lane.build()
            lane.build_primers()
        counters.branches.children_carried_in = self._stage.children_alive()
        now_ns = clock.now_ns()
        start_ns = now_ns + max(options.arm_lead_ns, len(lanes) * LAUNCH_NS_PER_LANE)
        self.report = report = WarmupReport(
            started_ns=start_ns, primers=sum(len(start.primers) for start in starts), counts=counters
        )
        counters.started_ns = start_ns
        counters.state = "sending"
        if dispatcher.idle_cap is not None:
            dispatcher.idle_cap.start(start_ns)
        self._quiet = asyncio.get_running_loop().create_future()
        for lane, primers_ns in zip(lanes, times.primers_ns, strict=True):
            lane.prime(start_ns, primers_ns, now_ns)
            play(lane)
        if report.primers:
            await self._quiet
        report.primed_ns = max(start_ns, dispatcher.last_end_ns)
        if dispatcher.idle_cap is not None:
            dispatcher.idle_cap.stop()
        if dispatcher.sending and options.accelerates:
            await self._accelerate(lanes, report.primed_ns)
        report.ended_ns = max(start_ns, dispatcher.last_end_ns)

    async def _accelerate(self, lanes: Sequence[Lane], due_ns: int) -> None:
        options, phase, report = self._stage.options, self._phase, self.report
        assert report is not None
        phase.begin_accelerated(len(lanes), options.warmup_requests_per_lane or None)
        self._quiet = asyncio.get_running_loop().create_future()
        if options.warmup_duration_ns is not None:
            self._timer = self._clock.call_at(due_ns + options.warmup_duration_ns, phase.close)
        for lane in lanes:
            lane.accelerate(due_ns)
        await self._quiet
        while self._dispatcher.sending and not phase.closed:
            # Every conversation has ended or is parked, but a lane is about to begin another tree.
            self._quiet = asyncio.get_running_loop().create_future()
            await self._quiet
        self._release()
        report.extra_requests = list(phase.admitted)
        report.extra_missing = phase.missed

    def close(self) -> None:
        """Nothing more is admitted: what is held is parked, what is under way may return for a while."""
        report, grace_ns = self.report, self._stage.options.warmup_grace_ns
        assert report is not None
        report.closed_ns = self._clock.now_ns()
        self._stage.counters.state = "draining"
        self._release()
        for tree in list(self._stage.live.values()):
            tree.suspend()
        if grace_ns is not None:
            self._timer = self._clock.call_at(report.closed_ns + grace_ns, self._overdue)

    def quiet(self) -> None:
        """No conversation has a task any more."""
        if self._quiet is not None and not self._quiet.done():
            self._quiet.set_result(None)

    def end(self) -> None:
        """The run is over: nothing is waited for but the tasks that there are. Idempotent."""
        self._release()
        self.quiet()

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def hand_over(self, lanes: Sequence[Lane]) -> list[LaneStart]:
        """Ends the warmup: where each lane stands. Numbers and counters begin anew."""
        stage, report = self._stage, self.report
        assert report is not None
        moved = stage.options.accelerates
        for lane in lanes:
            lane.retire()
            if not lane.taken:
                await lane.prepare()
        if not self._dispatcher.sending:
            return []
        starts = [lane.resume(moved) for lane in lanes]
        counters, alive = stage.counters, stage.children_alive()
        counters.branches.children_carried_out = alive
        elapsed_ns = (report.ended_ns or report.started_ns) - report.started_ns
        report.counts = msgspec.structs.replace(counters, elapsed_ns=elapsed_ns)
        self._phase.begin_profiling()
        self._dispatcher.begin_phase()
        counters.restart(stage.options.phase)
        counters.branches.children_carried_in = alive
        counters.trees_started = len(stage.live)
        stage.taken = len(lanes)
        return starts

    def _overdue(self) -> None:
        self._timer = None
        left, grace_ns = len(self._dispatcher.flights), self._stage.options.warmup_grace_ns
        self._fail(
            f"{left} warmup requests did not return within the grace of {(grace_ns or 0) / SECOND:g} s "
            "after the last one was sent"
        )

"""The replay of a corpus: N lanes from a common start to a common end.

States: preparing (the first trees are loaded and the first prompts built) -> sending -> draining
(nothing is sent, requests in flight may return) -> cancelling -> ended. Each step is taken once, and any
may be skipped. With a warmup, sending and draining happen twice: the measured phase begins when the last
warmup request has returned, and its clock, numbers and counters with it (`replay.warmup`).

What ends the sending:

    duration        nothing due at the end or later is ever armed; grace
    request_count   what is armed is sent; grace
    tree_count      the last lane has drained: nothing is left to wait for
    stop()          what is armed but not yet due is withdrawn; a short drain
    abort()         everything is cancelled at once
    threshold       the failure policy has had enough: like abort()
    warmup_failed   a root's warmup request failed, or the last ones did not return in time: like abort()
    held            every turn that is left waits for a dead stream, and there is no duration
    corpus          a trace cannot be used (UserError): like stop()
    client_error    an exception, which is a defect: like abort()

Whatever happens, `run` returns a report, every request that was sent has been given to the recorder
(or is in `ReplayReport.unrecorded` if the recorder itself failed), and no task is left.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Coroutine, Sequence

from agentx_engine.errors import UserError
from agentx_engine.replay.clock import Clock, Timer
from agentx_engine.replay.dispatch import Dispatcher, FailurePolicy, Flight
from agentx_engine.replay.idle import IdleCap
from agentx_engine.replay.ids import id_headers, random_ids
from agentx_engine.replay.lane import Lane, Stage
from agentx_engine.replay.options import SECOND, Counters, EndReason, ReplayOptions, ReplayReport
from agentx_engine.replay.phase import Phase
from agentx_engine.replay.protocols import (
    HeaderFactory,
    IdFactory,
    Offload,
    PromptSource,
    Recorder,
    TreeSource,
)
from agentx_engine.replay.sampler import TreeCache
from agentx_engine.replay.session import Crew
from agentx_engine.replay.start_plan import LanePlan, schedule
from agentx_engine.replay.timers import TimerSystem
from agentx_engine.replay.tree_run import LiveTree
from agentx_engine.replay.warmup import Warmup
from agentx_engine.transport.base import Result, Transport

LAUNCH_NS_PER_LANE = 100_000  # time to arm one lane's first request, generously
BUILD_AHEAD_NS = SECOND  # first bodies that are due so soon after the start are built before it


class Replay:
    """One replay. Make it, `run` it once; `stop` and `abort` may be called from the loop at any time.

    Args:
        clock: `LoopClock` or `SimulatedClock`.
        transport: not closed by the replay.
        trees: the corpus.
        prompts: builds the bodies.
        recorder: takes what happens.
        options: limits and habits.
        ids: makes request and correlation ids.
        headers: the extra header lines of a request, each ending in CRLF.
        offload: runs `trees.load` aside; `asyncio.to_thread` on a real loop, `inline` under simulation.
        failure_policy: gets every record of the measured phase; True cancels the run.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        transport: Transport,
        trees: TreeSource,
        prompts: PromptSource,
        recorder: Recorder,
        options: ReplayOptions,
        ids: IdFactory = random_ids,
        headers: HeaderFactory = id_headers,
        offload: Offload = asyncio.to_thread,
        failure_policy: FailurePolicy | None = None,
    ) -> None:
        self._clock = clock
        self._options = options
        self._counters = counters = Counters(phase=options.phase)
        self._timers = TimerSystem(clock, options.arm_lead_ns)
        self._phase = phase = Phase(options.phase, self._on_warmup_closed)
        self._dispatcher = Dispatcher(
            clock=clock,
            transport=transport,
            recorder=recorder,
            options=options,
            phase=phase,
            ids=ids,
            headers=headers,
            counters=counters,
            on_limit=self._on_request_count,
            failure_policy=failure_policy,
            on_failures=self._on_failures,
        )
        if options.system_idle_cap_ns is not None:
            self._dispatcher.idle_cap = IdleCap(
                clock, self._timers, options.system_idle_cap_ns, options.arm_lead_ns, self._on_system_shift
            )
        crew = Crew(
            dispatcher=self._dispatcher,
            prompts=prompts,
            counters=counters,
            options=options,
            phase=phase,
            start_task=self._start_session,
            fail=self._defect,
            warmup_failed=self._on_warmup_error,
            tear_down=self._tear_down,
        )
        self._cache = TreeCache(trees, offload)
        self._stage = Stage(
            source=trees,
            cache=self._cache,
            timers=self._timers,
            crew=crew,
            recorder=recorder,
            options=options,
            counters=counters,
            on_held=self._on_held,
        )
        self._warmup = Warmup(clock, phase, self._dispatcher, self._stage, self._fail_warmup)
        self._tasks: dict[asyncio.Task[None], None] = {}  # in the order of their start
        self._all_done: asyncio.Future[None] | None = None
        self._sessions = 0  # tasks of conversations
        self._start_plan: LanePlan | None = None
        self._ran = False
        self._at_end: Timer | None = None  # calls at the end of the duration
        self._deadline: Timer | None = None  # calls when the grace or the cancellation has taken long enough
        self._cancel_at_ns: int | None = None
        self._end_reason: EndReason | None = None
        self._stopped_ns: int | None = None
        self._interrupted = False
        self._error: str | None = None
        self._traceback: str | None = None
        self._lost = 0

    @property
    def counters(self) -> Counters:
        """The live figures, brought up to date."""
        counters, now_ns = self._counters, self._clock.now_ns()
        if counters.state != "ended":
            if counters.started_ns is not None:
                counters.elapsed_ns = max(0, now_ns - counters.started_ns)
            counters.lanes = len(self._stage.live)
            counters.lanes_idle = sum(1 for tree in self._stage.live.values() if not tree.armed)
            counters.armed = len(self._dispatcher.flights)
            counters.in_flight = self._dispatcher.in_flight(now_ns)
        return counters

    def stop(self, reason: EndReason = "stopped") -> None:
        """Sends nothing more, lets requests in flight return for `drain_ns`, then cancels them.

        After the end of the duration it only shortens the grace period. Requests which were armed ahead but
        are not yet due are withdrawn.
        """
        self._interrupted = True
        self._end_sending(reason, self._options.drain_ns, withdraw=True)

    def abort(self) -> None:
        """Cancels everything now. The cancelled requests are recorded as such."""
        self._interrupted = True
        self._end_sending("aborted", 0, withdraw=True)

    async def run(self) -> ReplayReport:
        if self._ran:
            raise RuntimeError("a replay runs once")
        self._ran = True
        try:
            self._start_task(self._conduct())
            await self._settled()
            for flight in list(self._dispatcher.flights):  # of conversations which a defect has ended
                self._start_task(self._reap(flight))
            await self._settled()
        finally:
            self._close()
        return self._report()

    # -- the beginning

    async def _conduct(self) -> None:
        """Loads the first tree of every lane, in the order of lanes, warms them, and starts them all."""
        options = self._options
        if options.start_ratios is None:
            lanes = [Lane(number, self._stage) for number in range(options.concurrency)]
            for lane in lanes:
                await lane.prepare()
            lanes = [lane for lane in lanes if lane.taken]
        else:
            lanes, self._start_plan = await self._stage.plan(options.start_ratios)
        if options.warms and self._may_go_on():
            await self._warmup.run(lanes, self._start_lane)
        if options.warms and self._may_go_on():
            starts = await self._warmup.hand_over(lanes)
            times = schedule(starts, burst=options.burst_starts).streams_ns
            streams = [
                [(stream.conversation, at_ns) for stream, at_ns in zip(start.streams, own, strict=True)]
                for start, own in zip(starts, times, strict=True)
            ]
        else:
            streams = [[(0, 0)] for _ in lanes]
        if self._may_go_on():
            self._profile(lanes, streams)

    def _may_go_on(self) -> bool:
        return self._dispatcher.sending

    def _profile(self, lanes: Sequence[Lane], streams: Sequence[Sequence[tuple[int, int]]]) -> None:
        """Begins the measured phase at one instant, just far enough ahead to arm all first requests.

        `streams`: by lane, the live conversations and when each goes on, from that instant.
        """
        dispatcher, counters = self._dispatcher, self._counters
        for lane, own in zip(lanes, streams, strict=True):
            lane.build()
            lane.build_due(own, BUILD_AHEAD_NS)
        now_ns = self._clock.now_ns()
        start_ns = now_ns + max(self._options.arm_lead_ns, len(lanes) * LAUNCH_NS_PER_LANE)
        counters.started_ns = start_ns
        counters.state = "sending"
        if self._options.duration_ns is not None:
            end_ns = start_ns + self._options.duration_ns
            dispatcher.end_ns = end_ns
            self._at_end = self._clock.call_at(end_ns, self._on_duration)
        if dispatcher.idle_cap is not None:
            dispatcher.idle_cap.start(start_ns)
        for lane, own in zip(lanes, streams, strict=True):
            lane.launch(start_ns, now_ns, own)
            self._start_lane(lane)
        if self._stage.may_take():
            self._cache.load_ahead(self._stage.sampler.peek())

    def _start_lane(self, lane: Lane) -> None:
        if not lane.playing:
            self._start_task(lane.play())

    # -- what conversations report

    def _on_system_shift(self, by_ns: int) -> None:
        self._counters.system_shifts += 1
        self._counters.system_shift_ns += by_ns

    def _on_held(self) -> None:
        if self._dispatcher.idle_cap is not None:
            self._dispatcher.idle_cap.held()
        self._check_progress()

    def _check_progress(self) -> None:
        """Acts if nothing can ever happen again in this phase: no request, no timer, nobody about to run."""
        if self._stage.loading or self._dispatcher.flights or self._timers.waking or len(self._timers):
            return
        live = self._stage.live.values()
        if self._sessions != sum(tree.held for tree in live) or any(tree.drained.done() for tree in live):
            return
        if self._phase.accelerated:
            self._phase.close()
        elif not self._options.release_dead and self._sessions and self._dispatcher.end_ns is None:
            self._end_sending("held", 0)

    def _on_warmup_closed(self) -> None:
        self._warmup.close()

    def _on_warmup_error(self, flight: Flight, result: Result) -> None:
        identity = flight.identity
        reason = f": {result.error}" if result.error else ""
        self._fail_warmup(
            f"warmup request of {identity.conversation_id}, turn {identity.turn}, lane {identity.lane}, "
            f"failed ({result.outcome.value}{reason}): a lane whose root is not warmed measures a cold cache"
        )

    def _fail_warmup(self, error: str) -> None:
        if self._end_reason is None:
            self._error = error
            self._end_sending("warmup_failed", 0, withdraw=True)

    def _on_failures(self) -> None:
        self._end_sending("threshold", 0, withdraw=True)

    def _tear_down(self, tree: LiveTree) -> None:
        """Ends one tree because of a failed child; its lane goes on with the next."""
        self._counters.trees_torn_down += 1
        tree.cut_ns = self._clock.now_ns()
        tree.halt()
        self._dispatcher.cancel_all(tree)

    # -- the end

    def _on_duration(self) -> None:
        self._end_sending("duration", self._options.grace_ns, at_ns=self._dispatcher.end_ns)

    def _on_request_count(self, last_due_ns: int) -> None:
        self._end_sending("request_count", self._options.grace_ns, at_ns=last_due_ns)

    def _defect(self, error: BaseException) -> None:
        """Ends the run because of an exception: the user's trace if it is his mistake, else our own."""
        if isinstance(error, asyncio.CancelledError):
            return
        if isinstance(error, UserError):
            self._error = self._error or str(error)
            self._end_sending("corpus", self._options.drain_ns, withdraw=True)
            return
        if self._end_reason != "client_error":
            self._error = f"{type(error).__name__}: {error}"
            self._traceback = "".join(traceback.format_exception(error))
        self._end_sending("client_error", 0, withdraw=True)
        self._end_reason = "client_error"  # whatever had ended the sending before
        for tree in list(self._stage.live.values()):
            tree.abandon()

    def _end_sending(
        self, reason: EndReason, bound_ns: int, *, at_ns: int | None = None, withdraw: bool = False
    ) -> None:
        """Arms nothing more; requests in flight may return until `bound_ns` after `at_ns` (default now).

        Only the first reason counts, and later calls can only bring the bound nearer.
        """
        now_ns = self._clock.now_ns()
        at_ns = now_ns if at_ns is None else at_ns
        if self._end_reason is None:
            self._end_reason = reason
            self._stopped_ns = at_ns
            self._dispatcher.sending = False
            self._counters.state = "draining"
            for tree in list(self._stage.live.values()):
                tree.idle_until(at_ns)
                tree.halt()
            if self._dispatcher.idle_cap is not None:
                self._dispatcher.idle_cap.stop()
            self._warmup.end()
        if withdraw:
            self._dispatcher.withdraw(now_ns)
        if at_ns + bound_ns <= now_ns:
            self._cancel()
        elif self._cancel_at_ns is None or at_ns + bound_ns < self._cancel_at_ns:
            self._cancel_at_ns = at_ns + bound_ns
            self._set_deadline(self._cancel_at_ns, self._cancel)

    def _cancel(self) -> None:
        """Cancels what is in flight; the transport then returns it, and conversations end as usual."""
        if self._counters.state == "cancelling":
            return
        now_ns = self._clock.now_ns()
        self._cancel_at_ns = now_ns
        self._counters.state = "cancelling"
        self._set_deadline(now_ns + self._options.cancel_ns, self._give_up)
        self._dispatcher.cancel_all()

    def _give_up(self) -> None:
        """The transport has not ended what it was told to: goes without it rather than hang."""
        self._lost += len(self._dispatcher.flights)
        self._dispatcher.flights.clear()
        for task in self._tasks:
            task.cancel()

    def _set_deadline(self, when_ns: int, callback: Callable[[], None]) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._clock.call_at(when_ns, callback)

    async def _reap(self, flight: Flight) -> None:
        flight.handle.cancel()
        self._dispatcher.land(flight, await flight.handle.done)

    def _close(self) -> None:
        for timer in (self._at_end, self._deadline):
            if timer is not None:
                timer.cancel()
        self._timers.close()
        self._cache.close()
        self._warmup.end()
        if self._dispatcher.idle_cap is not None:
            self._dispatcher.idle_cap.stop()
        # Only if `run` itself was cancelled is anything left here.
        self._dispatcher.sending = False
        self._dispatcher.cancel_all()
        for task in self._tasks:
            task.cancel()

    def _report(self) -> ReplayReport:
        counters, ended_ns = self.counters, self._clock.now_ns()
        counters.state = "ended"
        if self._end_reason is None:  # the lanes have run out of trees, or of time
            limit = self._options.tree_count
            self._end_reason = (
                "tree_count" if limit is not None and self._stage.taken >= limit else "duration"
            )
        started_ns = counters.started_ns
        if started_ns is None or self._phase.warming:  # the measured phase was not reached
            started_ns = ended_ns
        stopped_ns = ended_ns if self._stopped_ns is None else self._stopped_ns
        return ReplayReport(
            started_ns=started_ns,
            stopped_ns=max(started_ns, stopped_ns),  # it may be stopped while the first requests are armed
            ended_ns=max(started_ns, ended_ns),
            end_reason=self._end_reason,
            counts=counters,
            interrupted=self._interrupted,
            error=self._error,
            traceback=self._traceback,
            unrecorded=self._dispatcher.unrecorded,
            lost=self._lost,
            warmup=self._warmup.report,
            start=self._start_plan,
        )

    # -- tasks

    def _start_session(self, coroutine: Coroutine[None, None, None]) -> None:
        self._sessions += 1
        self._start_task(coroutine).add_done_callback(self._session_done)

    def _session_done(self, task: asyncio.Task[None]) -> None:
        self._sessions -= 1
        self._check_progress()
        if not self._sessions:
            self._warmup.quiet()

    def _start_task(self, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._defect(error)
        if not self._tasks and self._all_done is not None and not self._all_done.done():
            self._all_done.set_result(None)

    async def _settled(self) -> None:
        """Waits until no task is left."""
        while self._tasks:
            self._all_done = asyncio.get_running_loop().create_future()
            await self._all_done

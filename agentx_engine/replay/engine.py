"""The replay of a corpus: N lanes from a common start to a common end.

States: preparing (the first trees are loaded and the first prompts built) -> sending -> draining
(nothing is sent, requests in flight may return) -> cancelling -> ended. Each step is taken once, and any
may be skipped. What ends the sending:

    duration        nothing due at the end or later is ever armed; grace
    request_count   what is armed is sent; grace
    tree_count      the last lane has drained: nothing is left to wait for
    stop()          what is armed but not yet due is withdrawn; a short drain
    abort()         everything is cancelled at once
    corpus          a trace cannot be used (UserError): like stop()
    client_error    an exception, which is a defect: like abort()

Whatever happens, `run` returns a report, every request that was sent has been given to the recorder
(or is in `ReplayReport.unrecorded` if the recorder itself failed), and no task is left.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Coroutine

from agentx_engine.errors import UserError
from agentx_engine.replay.clock import Clock, Timer
from agentx_engine.replay.dispatch import Dispatcher, Flight
from agentx_engine.replay.ids import id_headers, random_ids
from agentx_engine.replay.lane import Lane, Stage
from agentx_engine.replay.options import Counters, EndReason, ReplayOptions, ReplayReport
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
from agentx_engine.replay.timers import TimerSystem
from agentx_engine.transport.base import Transport

LAUNCH_NS_PER_LANE = 100_000  # time to arm one lane's first request, generously


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
    ) -> None:
        self._clock = clock
        self._options = options
        self._counters = counters = Counters(phase=options.phase)
        self._timers = TimerSystem(clock, options.arm_lead_ns)
        self._dispatcher = Dispatcher(
            clock=clock,
            transport=transport,
            recorder=recorder,
            options=options,
            ids=ids,
            headers=headers,
            counters=counters,
            on_limit=self._on_request_count,
        )
        crew = Crew(self._dispatcher, prompts, counters, options.arm_lead_ns, self._start_task, self._defect)
        self._cache = TreeCache(trees, offload)
        self._stage = Stage(
            source=trees,
            cache=self._cache,
            timers=self._timers,
            crew=crew,
            recorder=recorder,
            options=options,
            counters=counters,
        )
        self._tasks: dict[asyncio.Task[None], None] = {}  # in the order of their start
        self._all_done: asyncio.Future[None] | None = None
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
        """Loads the first tree of every lane, in the order of lanes, and starts them all at one instant.

        The instant lies just far enough ahead to arm all first requests before it.
        """
        lanes = [Lane(number, self._stage) for number in range(self._options.concurrency)]
        for lane in lanes:
            await lane.prepare()
        if not self._dispatcher.sending:
            return
        for lane in lanes:
            lane.build()
        now_ns = self._clock.now_ns()
        start_ns = now_ns + max(self._options.arm_lead_ns, len(lanes) * LAUNCH_NS_PER_LANE)
        self._counters.started_ns = start_ns
        self._counters.state = "sending"
        if self._options.duration_ns is not None:
            end_ns = start_ns + self._options.duration_ns
            self._dispatcher.end_ns = end_ns
            self._at_end = self._clock.call_at(end_ns, self._on_duration)
        for lane in lanes:
            lane.launch(start_ns, now_ns)
            self._start_task(lane.play())
        if self._stage.may_take():
            self._cache.load_ahead(self._stage.sampler.peek())

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
        for tree in self._stage.live.values():
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
            for tree in self._stage.live.values():
                tree.halt()
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
        started_ns = ended_ns if counters.started_ns is None else counters.started_ns
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
        )

    # -- tasks

    def _start_task(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._task_done)

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

"""Simulated time: the real coroutines, on a loop whose idle moments jump to the next event.

The event loop is asyncio's own over a selector which never sleeps. Whenever asyncio has nothing left
to run it asks the selector to wait; the selector instead takes the earliest event from the clock's
heap, sets the clock to its instant and calls it back. Instants are integers, events of one instant
run in the order in which they were set, and nothing outside (sockets, threads, wall time) can
interfere, so two runs give the same events to the nanosecond.

The loop's own timers, counted in floating-point seconds, are refused. If every task waits and no event
is left, the program can never go on: `SimulationDeadlock` is raised out of the run.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


class SimulationDeadlock(RuntimeError):
    """Every task waits for something which no event will bring."""


class _Event:
    __slots__ = ("callback", "seq", "when_ns")

    def __init__(self, when_ns: int, seq: int, callback: Callable[[], None]) -> None:
        self.when_ns = when_ns
        self.seq = seq
        self.callback: Callable[[], None] | None = callback

    def __lt__(self, other: _Event) -> bool:
        return (self.when_ns, self.seq) < (other.when_ns, other.seq)

    def cancel(self) -> None:
        self.callback = None


class SimulatedClock:
    """`Clock` of a simulated run; it starts at `start_ns`, which is not 0 so that 0 is seen as a fault."""

    def __init__(self, start_ns: int = 1_000_000_000) -> None:
        self._now_ns = start_ns
        self._heap: list[_Event] = []
        self._seq = 0
        self.fired = 0

    def now_ns(self) -> int:
        return self._now_ns

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> _Event:
        self._seq += 1
        event = _Event(max(when_ns, self._now_ns), self._seq, callback)
        heapq.heappush(self._heap, event)
        return event

    def step(self) -> bool:
        """Jumps to the next event and calls it back. False if there is none."""
        while self._heap:
            event = heapq.heappop(self._heap)
            callback, event.callback = event.callback, None
            if callback is not None:
                self._now_ns = event.when_ns
                self.fired += 1
                callback()
                return True
        return False


class _SimulatedSelector(selectors.SelectSelector):
    def __init__(self, clock: SimulatedClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # A timeout of 0 means that callbacks are ready: the present instant is not over yet.
        if timeout != 0 and not self._clock.step():
            raise SimulationDeadlock("every task waits and no event is left")
        return []


class _SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: SimulatedClock) -> None:
        self._simulated = clock
        super().__init__(_SimulatedSelector(clock))

    def time(self) -> float:
        return self._simulated.now_ns() / 1e9

    def call_at(self, *args: Any, **kwargs: Any) -> NoReturn:  # type: ignore[override]  # call_later uses it
        raise RuntimeError("under simulation only the Clock keeps time, not the loop's timers")

    def run_in_executor(self, *args: Any, **kwargs: Any) -> NoReturn:  # type: ignore[override]
        raise RuntimeError("threads are not deterministic: pass `inline` as offload under simulation")


def run_simulated(
    make_run: Callable[[SimulatedClock], Coroutine[Any, Any, T]], clock: SimulatedClock | None = None
) -> T:
    """Runs ``make_run(clock)`` to its end under simulated time and returns its result.

    Raises:
        SimulationDeadlock: if the coroutine can never end.
    """
    clock = clock if clock is not None else SimulatedClock()
    loop = _SimulatedLoop(clock)
    try:
        return loop.run_until_complete(make_run(clock))
    finally:
        _drop_tasks(loop)
        loop.close()


async def inline(function: Callable[[int], T], argument: int) -> T:
    """`Offload` for simulated runs: no thread, the function takes no simulated time."""
    return function(argument)


def _drop_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Ends what a failed run left, so that it is not reported as destroyed while pending."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:

        async def settle() -> None:
            await asyncio.gather(*tasks, return_exceptions=True)

        loop.run_until_complete(settle())

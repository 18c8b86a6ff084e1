"""The monotonic clock of the machine, over the running event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

NS_PER_MS = 1_000_000


class _LoopTimer:
    __slots__ = ("_callback", "_handle", "_loop", "_when_ns")

    def __init__(self, loop: asyncio.AbstractEventLoop, when_ns: int, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._when_ns = when_ns
        self._callback: Callable[[], None] | None = callback
        self._handle: asyncio.Handle
        self._start(time.monotonic_ns())

    def _start(self, now_ns: int) -> None:
        left_ns = self._when_ns - now_ns
        if left_ns <= 0:
            self._handle = self._loop.call_soon(self._check)
        else:
            # Whole milliseconds, rounded up: uvloop would round a shorter rest down to a busy loop.
            left_ms = -(-left_ns // NS_PER_MS)
            self._handle = self._loop.call_later(left_ms / 1000, self._check)

    def _check(self) -> None:
        if self._callback is None:
            return
        now_ns = time.monotonic_ns()
        if now_ns < self._when_ns:
            # The loop counts from the time of its last turn, so it can be early by that turn's length.
            self._start(now_ns)
            return
        callback, self._callback = self._callback, None
        callback()

    def cancel(self) -> None:
        self._callback = None
        self._handle.cancel()


class LoopClock:
    """`Clock` over the running loop (uvloop or asyncio's): CLOCK_MONOTONIC in integer nanoseconds.

    The loop's timers have a resolution of a millisecond, so a callback comes up to about that much late,
    but never early.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop if loop is not None else asyncio.get_running_loop()

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> _LoopTimer:
        return _LoopTimer(self._loop, when_ns, callback)

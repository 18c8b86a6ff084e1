"""Calls items at absolute times on CLOCK_MONOTONIC, to about the precision of the kernel's timers.

uvloop's own timers count whole milliseconds and may fire early, which would move every simulated token
by up to its own length in a 1000 tokens/s stream. So the earliest deadline is given to a timerfd that
the loop watches like a socket, and one heap holds the rest: the cost per call is one heap operation,
whatever the number of streams. Setting the timer also clears its readability, so that it is never read.
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import os
from time import monotonic_ns
from typing import Protocol

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
_TFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC  # TFD_NONBLOCK and TFD_CLOEXEC are defined as these
_NS_PER_S = 1_000_000_000

# Turns are at least this far apart, so that a busy server serves several items per turn and pays for
# the loop's turn (half the cost of a token) once. A lone item is not delayed.
QUANTUM_NS = 100_000


class Paced(Protocol):
    def fire(self, deadline_ns: int) -> int:
        """Acts, not before `deadline_ns`, and returns its next deadline, or 0 for none."""


class Pacer:
    """Owns one timerfd on the running loop. `close` it before the loop ends.

    A deadline that has passed is served at once and in order of deadlines, so an item that fell behind
    catches up; items due later than the call's own start wait for the next turn, so that a backlog
    cannot keep the loop from reading.
    """

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._settime = libc.timerfd_settime
        self._spec = (ctypes.c_long * 4)(0, 0, 0, 0)  # struct itimerspec: interval s, ns; value s, ns
        fd = libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_FLAGS)
        if fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._fd: int = fd
        self._loop = asyncio.get_running_loop()
        self._heap: list[tuple[int, int, Paced]] = []
        self._armed_ns = 0
        self._order = 0
        self._loop.add_reader(fd, self._turn)

    def add(self, deadline_ns: int, item: Paced) -> None:
        self._order += 1
        heapq.heappush(self._heap, (deadline_ns, self._order, item))
        if not self._armed_ns or deadline_ns < self._armed_ns:
            self._arm(deadline_ns)

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
        self._heap.clear()

    def _arm(self, deadline_ns: int) -> None:
        self._armed_ns = deadline_ns
        spec = self._spec
        spec[2], spec[3] = divmod(deadline_ns, _NS_PER_S)
        if self._settime(self._fd, _TFD_TIMER_ABSTIME, spec, None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def _turn(self) -> None:
        heap = self._heap
        now = monotonic_ns()
        while heap and heap[0][0] <= now:
            deadline, order, item = heap[0]
            following = item.fire(deadline)
            # An item may add others while it fires, but none earlier than itself, so it is still first.
            if following:
                heapq.heapreplace(heap, (following, order, item))
            else:
                heapq.heappop(heap)
        self._arm(max(heap[0][0], now + QUANTUM_NS) if heap else 0)

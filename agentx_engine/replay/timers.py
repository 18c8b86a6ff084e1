"""Timers of live trees, which can be brought forward together in constant time.

An idle cap says: if nothing has happened for so long, let every pending timer of this tree (or of
the whole system) come nearer by the same amount. With thousands of pending timers that must not cost
a walk over all of them, and it must keep their order and their spacing to the nanosecond. So time is
kept in three frames, and a shift moves a frame instead of the timers in it:

    group frame                what a timer stores; constant for its life
    system frame               group frame  - group.shift
    clock (CLOCK_MONOTONIC)    system frame - system.shift

Each group has a heap in its own frame; the system has a heap of the groups' heads in the system
frame. Setting, cancelling and firing cost O(log n); shifting a group is one addition and one push;
shifting the system is one addition. Cancelled timers and outdated heads stay in their heap and are
skipped when they reach its top.

A timer is *for* an instant, its due time, and fires `lead_ns` before it, since a request is handed to
the transport ahead of the moment at which it is to be sent. Callbacks are given the due time as it is
after all shifts: a waiter which was brought forward learns when it is due now.

Nothing here fires early: the clock never calls before the instant asked for, and each timer is
compared with the clock again before it fires. Timers fire in the order of their due times; equal ones
in the order in which they were set, whatever group they belong to.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Protocol

from agentx_engine.replay.clock import Clock
from agentx_engine.replay.clock import Timer as ClockTimer

DueCallback = Callable[[int], None]


class PendingTimer(Protocol):
    def cancel(self) -> None:
        """Takes the timer back; no effect once it has fired."""

    @property
    def due_ns(self) -> int:
        """The instant that it is for, on the clock, with every shift so far applied."""


class _Timer:
    __slots__ = ("callback", "group", "key", "seq")

    def __init__(self, group: TimerGroup, key: int, seq: int, callback: DueCallback) -> None:
        self.group = group
        self.key = key  # in the group's frame
        self.seq = seq
        self.callback: DueCallback | None = callback

    def __lt__(self, other: _Timer) -> bool:
        return (self.key, self.seq) < (other.key, other.seq)

    @property
    def due_ns(self) -> int:
        return self.key - self.group.shift_ns - self.group.system.shift_ns

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            self.group._cancelled()


class TimerGroup:
    """The pending timers of one live tree. Made by `TimerSystem.group`."""

    __slots__ = ("_closed", "_heap", "_pending", "_waiters", "head_version", "shift_ns", "system", "waking")

    def __init__(self, system: TimerSystem) -> None:
        self.system = system
        self.shift_ns = 0
        self.head_version = 0
        self.waking = 0  # tasks of the tree which have been woken but have not run yet
        self._heap: list[_Timer] = []
        self._pending = 0
        self._waiters: dict[asyncio.Future[int | None], None] = {}  # in the order of their calls
        self._closed = False

    def __len__(self) -> int:
        """Timers which have neither fired nor been cancelled."""
        return self._pending

    def at(self, due_ns: int, callback: DueCallback) -> PendingTimer:
        """Calls `callback(due)` at `due - lead_ns` or as soon after as the clock allows."""
        if self._closed:
            raise RuntimeError("the timer group is closed")
        key = due_ns + self.shift_ns + self.system.shift_ns
        timer = _Timer(self, key, self.system._next_seq(), callback)
        heapq.heappush(self._heap, timer)
        self._pending += 1
        if self._heap[0] is timer:
            self.system._head_changed(self)
        return timer

    async def wait(self, due_ns: int) -> int | None:
        """Returns the due time, possibly brought forward, `lead_ns` before it; None if the group closes.

        Returns at once, without giving way to other tasks, if the lead has begun.
        """
        if self._closed:
            return None
        if due_ns - self.system.lead_ns <= self.system.clock.now_ns():
            return due_ns
        future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        fired = False

        def wake(due: int) -> None:
            nonlocal fired
            if not future.done():
                fired = True
                self.woke(1)
                future.set_result(due)

        timer = self.at(due_ns, wake)
        self._waiters[future] = None
        try:
            return await future
        finally:
            if fired:
                self.woke(-1)
            self._waiters.pop(future, None)
            timer.cancel()

    def woke(self, change: int) -> None:
        """Counts a task that has been woken (1), or that now runs (-1)."""
        self.waking += change
        self.system.waking += change

    @property
    def next_due_ns(self) -> int | None:
        """When the earliest pending timer is due, None if there is none."""
        head = self.head()
        return None if head is None else head.due_ns

    def advance(self, by_ns: int) -> None:
        """Brings all pending timers of the group nearer by `by_ns`; those then past fire at once."""
        if by_ns < 0:
            raise ValueError("timers can only be brought forward")
        self.shift_ns += by_ns
        if self._pending:
            self.system._head_changed(self)

    def close(self) -> None:
        """Drops all timers; every `wait` returns None. Idempotent."""
        self._closed = True
        for timer in self._heap:
            timer.callback = None
        self._heap.clear()
        self._pending = 0
        self.head_version += 1
        for future in self._waiters:
            if not future.done():
                future.set_result(None)
        self._waiters.clear()
        self.system._group_closed(self)

    def head(self) -> _Timer | None:
        """The earliest pending timer; drops cancelled ones on the way."""
        heap = self._heap
        while heap and heap[0].callback is None:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def pop(self) -> _Timer:
        self._pending -= 1
        return heapq.heappop(self._heap)

    def _cancelled(self) -> None:
        self._pending -= 1
        if not self._pending:
            self._heap.clear()
            self.head_version += 1


class TimerSystem:
    """All timer groups of a run, over one timer of the clock."""

    def __init__(self, clock: Clock, lead_ns: int = 0) -> None:
        self.clock = clock
        self.lead_ns = lead_ns
        self.shift_ns = 0
        self.waking = 0  # of all groups together
        self._groups: dict[TimerGroup, None] = {}
        # (due in the system frame, sequence of the timer, version of the head, group)
        self._heads: list[tuple[int, int, int, TimerGroup]] = []
        self._seq = 0
        self._armed: ClockTimer | None = None
        self._armed_due = 0
        self._firing = False

    def group(self) -> TimerGroup:
        group = TimerGroup(self)
        self._groups[group] = None
        return group

    def __len__(self) -> int:
        return sum(len(group) for group in self._groups)

    @property
    def next_due_ns(self) -> int | None:
        """When the earliest pending timer of all groups is due, None if there is none."""
        head = self._top()
        return None if head is None else head.due_ns

    def advance(self, by_ns: int) -> None:
        """Brings all pending timers of all groups nearer by `by_ns`; those then past fire at once."""
        if by_ns < 0:
            raise ValueError("timers can only be brought forward")
        self.shift_ns += by_ns
        self._rearm()

    def close(self) -> None:
        for group in list(self._groups):
            group.close()
        if self._armed is not None:
            self._armed.cancel()
            self._armed = None

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def _group_closed(self, group: TimerGroup) -> None:
        self._groups.pop(group, None)

    def _head_changed(self, group: TimerGroup) -> None:
        self._push_head(group)
        self._rearm()

    def _push_head(self, group: TimerGroup) -> None:
        head = group.head()
        group.head_version += 1
        if head is not None:
            # Unique up to the version, so that groups themselves are never compared.
            entry = (head.key - group.shift_ns, head.seq, group.head_version, group)
            heapq.heappush(self._heads, entry)

    def _top(self) -> _Timer | None:
        heads = self._heads
        while heads:
            _, seq, version, group = heads[0]
            if version == group.head_version:
                head = group.head()
                if head is not None and head.seq == seq:
                    return head
                heapq.heappop(heads)
                self._push_head(group)  # its head was cancelled: the next one takes its place
            else:
                heapq.heappop(heads)
        return None

    def _rearm(self) -> None:
        if self._firing:
            return
        head = self._top()
        if head is None:
            if self._armed is not None:
                self._armed.cancel()
                self._armed = None
            return
        due = head.due_ns
        if self._armed is not None:
            if due == self._armed_due:
                return
            self._armed.cancel()
        self._armed_due = due
        self._armed = self.clock.call_at(due - self.lead_ns, self._fire)

    def _fire(self) -> None:
        self._armed = None
        self._firing = True  # callbacks may set timers: arm the clock once, at the end
        try:
            limit = self.clock.now_ns() + self.lead_ns
            while (head := self._top()) is not None and head.due_ns <= limit:
                heapq.heappop(self._heads)
                head.group.pop()
                self._push_head(head.group)
                callback, head.callback = head.callback, None
                if callback is not None:
                    callback(head.due_ns)
        finally:
            self._firing = False
            self._rearm()

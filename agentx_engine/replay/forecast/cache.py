"""The prefix cache of the forecast's server: blocks of prompts, least recently used first out.

A prompt's blocks are held while its request runs and cannot be forgotten then. They are hit by others from
the end of its prefill on. When the request has returned they may go, the end of the prompt before its
start, after all that was used before them. Answers and what is in no whole block take room like prompts
do, but are never hit: the next prompt has the recorded answer in their place.

Nothing is refused: if what runs needs more than the capacity, the cache is larger than it for that time,
and this is counted (a real server would let requests wait or throw some out).

Plan: forgetting costs nothing until room is needed. A queue has the returned requests in order; a block
is as old as the last of them that had it, so an entry is what remains of its path with its own stamp.
All work is on whole paths (numpy), in proportion to the blocks sent.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from agentx_engine.replay.forecast.residents import Peak, RefSet, grown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from agentx_engine.replay.forecast.paths import Body


class _Returned:
    """A returned request in the queue: its body or, once partly forgotten, the nodes that are left."""

    __slots__ = ("anonymous", "body", "left", "stamp")

    def __init__(self, body: Body, stamp: int, anonymous: int) -> None:
        self.body = body
        self.stamp = stamp
        self.anonymous = anonymous  # tokens of its answer and tail
        self.left: NDArray[np.intp] | None = None


class KvCache:
    """`capacity` in tokens, None = unbounded, 0 = nothing is ever hit."""

    def __init__(self, capacity: int | None) -> None:
        self.capacity = capacity
        self.pins = RefSet()  # of running requests
        self.running_tokens = 0  # that running requests need: distinct blocks, tails, whole answers
        self.peak_running = Peak()
        self.over_capacity = 0  # requests that came when what runs needed more than the capacity
        self.stored = 0  # tokens that are in the cache
        self._cached = np.zeros(1024, dtype=np.int32)
        self._last = np.zeros(1024, dtype=np.int32)  # stamp of the last return
        self._queue: deque[_Returned] = deque()
        self._stamp = 0
        self._anonymous = 0  # tokens of running requests that are in no block

    def grow(self, size: int) -> None:
        self.pins.grow(size)
        self._cached = grown(self._cached, size)
        self._last = grown(self._last, size)

    def admit(self, body: Body, answer: int, now_ns: int) -> int:
        """A request comes. The tokens of its prompt that are cached; the last one is always computed."""
        path, size = body.path(), body.play.block_size
        usable = min(len(path), max(0, body.tokens - 1) // size)
        known = self._cached[path[:usable]]
        hits = int(known.argmin()) if usable else 0
        if usable and known[hits]:
            hits = usable
        self.pins.add(path, size)
        self._anonymous += body.tail + answer
        self.running_tokens = self.pins.tokens + self._anonymous
        self.peak_running.see(self.running_tokens, now_ns)
        if self.capacity is not None and self.running_tokens > self.capacity:
            self.over_capacity += 1
        return hits * size

    def prefilled(self, body: Body, answer: int) -> None:
        """The prompt is computed: it can be hit, and the answer takes its room."""
        path, size = body.path(), body.play.block_size
        if self.capacity != 0:
            new = path[self._cached[path] == 0]
            self._cached[new] = 1
            self.stored += len(new) * size
        self.stored += body.tail + answer
        self._make_room()

    def ended(self, body: Body, answer: int, *, prefilled: bool) -> None:
        """The request has returned or was cancelled."""
        path, size = body.path(), body.play.block_size
        self.pins.remove(path, size)
        self._anonymous -= body.tail + answer
        self.running_tokens = self.pins.tokens + self._anonymous
        if self.capacity is None:
            return
        self._stamp += 1
        self._last[path] = self._stamp
        self._queue.append(_Returned(body, self._stamp, body.tail + answer if prefilled else 0))
        self._make_room()

    def forget(self, start: int, stop: int) -> None:
        """Takes out blocks that can never be hit again. Only an unbounded cache need not wait for that."""
        if self.capacity is None:
            self._cached[start:stop] = 0

    def free(self, start: int, stop: int) -> bool:
        """Whether none of the nodes is cached or in use."""
        return not (self._cached[start:stop].any() or self.pins.counts[start:stop].any())

    def _make_room(self) -> None:
        if self.capacity is None:
            return
        while self.stored > self.capacity and self._queue:
            entry = self._queue[0]
            if entry.anonymous:
                self.stored -= entry.anonymous
                entry.anonymous = 0
                continue
            path = entry.body.path() if entry.left is None else entry.left
            mine = (self._last[path] == entry.stamp) & (self.pins.counts[path] == 0)
            path = path[mine & (self._cached[path] == 1)]
            size = entry.body.play.block_size
            keep = max(0, len(path) - -(-(self.stored - self.capacity) // size))
            self._cached[path[keep:]] = 0
            self.stored -= (len(path) - keep) * size
            if keep:
                entry.left = path[:keep]
            else:
                self._queue.popleft()

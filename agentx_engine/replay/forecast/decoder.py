"""Streams that decode together: each gets its next token one inter-token time after the last, and that
time depends on how many there are.

All streams go at the same speed, so one counter of work serves them all: it has grown by `unit` when every
stream has got one more token. A stream is done when the counter reaches where it was when the stream joined
plus its tokens; whenever the number of streams changes, the counter is brought up to date and goes on at
the new speed. Joining and leaving cost O(log n). Integers only; without a slope exact to the nanosecond.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Decoder(Generic[K]):
    """`itl_ns(n)` is the inter-token time while n streams decode. Times passed in never go back."""

    def __init__(self, itl_ns: Callable[[int], int]) -> None:
        self._itl_ns = itl_ns
        self._unit = itl_ns(0) * 1000 or 1_000_000  # finer than a nanosecond at any speed that occurs
        self._work = 0
        self._at_ns = 0
        self._speed_ns = itl_ns(0)  # per token, at present
        self._heap: list[tuple[int, int, K]] = []  # work at which it is done, order of joining, stream
        self._joined: dict[K, int] = {}  # work when it joined
        self._seq = 0

    def __len__(self) -> int:
        return len(self._joined)

    def join(self, stream: K, tokens: int, now_ns: int) -> None:
        """A stream begins, `tokens` before its last."""
        self._advance(now_ns)
        self._joined[stream] = self._work
        self._seq += 1
        heapq.heappush(self._heap, (self._work + tokens * self._unit, self._seq, stream))
        self._speed_ns = self._itl_ns(len(self._joined))

    def leave(self, stream: K, now_ns: int) -> int:
        """A stream ends, at its time or before. The tokens that it got since it joined."""
        self._advance(now_ns)
        tokens = (self._work - self._joined.pop(stream)) // self._unit
        self._speed_ns = self._itl_ns(len(self._joined))
        return tokens

    def next_end(self) -> tuple[int, K] | None:
        """When the next stream is done if nothing changes before, and which."""
        heap = self._heap
        while heap and heap[0][2] not in self._joined:
            heapq.heappop(heap)
        if not heap:
            return None
        left = max(0, heap[0][0] - self._work)
        return self._at_ns - (-left * self._speed_ns // self._unit), heap[0][2]

    def _advance(self, now_ns: int) -> None:
        passed = now_ns - self._at_ns
        self._at_ns = now_ns
        if self._joined and self._speed_ns:
            self._work += passed * self._unit // self._speed_ns

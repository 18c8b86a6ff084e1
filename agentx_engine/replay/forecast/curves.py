"""Arithmetic on intervals of time: how many are open, for how long, and where none is.

Times are integer nanoseconds; an interval [start, end) is over at its end. All in numpy, O(n log n).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Times = NDArray[np.int64]


class Steps:
    """The number of open intervals as a step function: `level[i]` from `at[i]` to `at[i + 1]`.

    It begins with level 0 at `start` and ends at `stop`; intervals are cut to that window.
    """

    def __init__(self, starts: Times, ends: Times, start: int, stop: int) -> None:
        some = (ends > start) & (starts < stop) & (ends > starts)
        starts, ends = np.maximum(starts[some], start), np.minimum(ends[some], stop)
        times = np.concatenate(([start], starts, ends))
        change = np.concatenate(([0], np.ones(len(starts), np.int64), -np.ones(len(ends), np.int64)))
        at, place = np.unique(times, return_inverse=True)
        total = np.zeros(len(at), dtype=np.int64)
        np.add.at(total, place, change)
        self.at = at
        self.level = np.cumsum(total)
        self.width = np.diff(np.append(at, stop))

    def mean(self) -> float:
        """Weighted by time."""
        return float((self.level * self.width).sum() / max(1, self.width.sum()))

    def percentile(self, share: float) -> int:
        """The smallest level which is not exceeded for that share of the time."""
        order = np.argsort(self.level, kind="stable")
        passed = np.cumsum(self.width[order])
        place = int(np.searchsorted(passed, share * passed[-1]))
        return int(self.level[order[min(place, len(order) - 1)]])

    def peak(self) -> tuple[int, int]:
        """The largest level that lasts at all, and when it was first reached."""
        level = np.where(self.width > 0, self.level, -1)
        place = int(level.argmax())
        return int(self.level[place]), int(self.at[place])

    def peaks(self, edges: Times) -> NDArray[np.int64]:
        """The largest level in each of the windows between `edges`."""
        first = np.searchsorted(self.at, edges[:-1], side="right") - 1
        last = np.searchsorted(self.at, edges[1:], side="left")
        return np.array([self.level[a:b].max() for a, b in zip(first, last, strict=True)], dtype=np.int64)


def spread(starts: Times, ends: Times, amounts: NDArray[np.int64], edges: Times) -> NDArray[np.float64]:
    """How much falls into each window between `edges` if each amount is spread evenly over its interval."""
    width = np.maximum(1, ends - starts).astype(np.float64)
    total = [float((amounts * np.clip((edge - starts) / width, 0.0, 1.0)).sum()) for edge in edges]
    return np.diff(np.array(total, dtype=np.float64))


def busiest(times: Times, amounts: NDArray[np.int64], width_ns: int) -> tuple[int, int]:
    """The largest sum of amounts within any window [t, t + width) that begins at one of the sorted
    `times`, and that t; (0, 0) without any."""
    if not len(times):
        return 0, 0
    total = np.concatenate(([0], np.cumsum(amounts)))
    sums = total[np.searchsorted(times, times + width_ns, side="left")] - total[:-1]
    place = int(sums.argmax())
    return int(sums[place]), int(times[place])


def gaps(starts: Times, ends: Times, start: int, stop: int) -> list[tuple[int, int]]:
    """The parts of the window in which no interval is open, as (from, to)."""
    found, reached = [], start
    for place in np.argsort(starts, kind="stable"):
        begin, end = int(starts[place]), int(ends[place])
        if begin >= stop:
            break
        if begin > reached:
            found.append((reached, begin))
        reached = max(reached, end)
    if reached < stop:
        found.append((reached, stop))
    return found

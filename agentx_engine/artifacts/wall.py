"""Wall times for export.

Inside, every time is CLOCK_MONOTONIC. What is exported as unix time is that plus one offset taken at the
start of the run, so that a step of the wall clock during the run moves no exported difference.
"""

from __future__ import annotations

import time

import msgspec


class WallPairing(msgspec.Struct, frozen=True):
    """unix ns = monotonic ns + `offset_ns`, known to within `error_ns` at monotonic `taken_ns`."""

    offset_ns: int
    error_ns: int
    taken_ns: int

    def unix_ns(self, monotonic_ns: int) -> int:
        return monotonic_ns + self.offset_ns


def pair_now(attempts: int = 5) -> WallPairing:
    """The narrowest of several mono-real-mono triples."""
    best: WallPairing | None = None
    for _ in range(attempts):
        before = time.monotonic_ns()
        real = time.time_ns()
        after = time.monotonic_ns()
        middle = before + (after - before) // 2
        if best is None or after - before < best.error_ns:
            best = WallPairing(real - middle, after - before, middle)
    assert best is not None
    return best

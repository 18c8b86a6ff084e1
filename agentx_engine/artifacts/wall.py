"""Wall times for export.

Inside, every time is CLOCK_MONOTONIC. What is exported as unix time is that plus one offset taken at the
start of the run, so that a step of the wall clock during the run moves no exported difference.
"""

from __future__ import annotations

import msgspec

from agentx_engine.core.clock import wall_pairing


class WallPairing(msgspec.Struct, frozen=True):
    """unix ns = monotonic ns + `offset_ns`, known to within `error_ns` at monotonic `taken_ns`."""

    offset_ns: int
    error_ns: int
    taken_ns: int

    def unix_ns(self, monotonic_ns: int) -> int:
        return monotonic_ns + self.offset_ns


def pair_now() -> WallPairing:
    return WallPairing(*wall_pairing())

def now_ns() -> int:
    """CLOCK_MONOTONIC in ns: the one clock of the engine."""

def wall_pairing() -> tuple[int, int, int]:
    """(offset, error, taken) in ns: CLOCK_REALTIME = CLOCK_MONOTONIC + offset, to within error, at the
    monotonic time taken. The narrowest of several readings of both clocks."""

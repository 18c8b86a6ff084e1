def now_ns() -> int:
    """CLOCK_MONOTONIC in ns: the one clock of the engine."""

def wall_offset_ns() -> tuple[int, int]:
    """(offset, error) with CLOCK_REALTIME = CLOCK_MONOTONIC + offset, to within error, in ns: the best
    of several readings of both clocks, taken now."""

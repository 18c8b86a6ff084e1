"""Time as the scheduler sees it: real or simulated, the same coroutines run under both.

All times are integer nanoseconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> None:
        """Takes the timer back; no effect once it has fired."""


class Clock(Protocol):
    def now_ns(self) -> int: ...

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> Timer:
        """Calls back at or after `when_ns`, never before."""

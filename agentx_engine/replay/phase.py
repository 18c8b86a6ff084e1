"""The rules of the phase that is being played, and who may still send in it.

    primers       warmup, first stage: one request per stream that was alive at t*; nothing follows
    accelerated   warmup, second stage: turns follow each other without any recorded pause, one token of
                  output each, until every lane has sent its quota; then what is under way drains
    profiling     the measured phase: recorded pauses, recorded outputs

A turn that its lane may not send any more in the accelerated stage is *parked*: its conversation stays alive,
without a task, and goes on in profiling.

Source: agentx-v1, sections 5.4 to 5.6.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

WARMUP = "warmup"

Stage = Literal["primers", "accelerated", "profiling"]


class Phase:
    """One per run; changes as the run goes on. `on_closed` is called once, when the warmup admits no more."""

    def __init__(self, profiling: str, on_closed: Callable[[], None]) -> None:
        self._profiling = profiling
        self._on_closed = on_closed
        self._quota: int | None = None
        self._unfilled = 0
        self.stage: Stage = "profiling"
        self.closed = False
        self.admitted: list[int] = []  # accelerated requests by lane

    @property
    def name(self) -> str:
        """As records have it."""
        return self._profiling if self.stage == "profiling" else WARMUP

    @property
    def warming(self) -> bool:
        return self.stage != "profiling"

    @property
    def accelerated(self) -> bool:
        return self.stage == "accelerated"

    @property
    def limit(self) -> int | None:
        """Output limit of every request; None: the recorded one."""
        return 1 if self.warming else None

    def begin_primers(self) -> None:
        self.stage = "primers"

    def begin_accelerated(self, lanes: int, quota: int | None) -> None:
        """`quota` None: until `close`."""
        self.stage = "accelerated"
        self._quota = quota
        self._unfilled = lanes
        self.admitted = [0] * lanes

    def begin_profiling(self) -> None:
        self.stage = "profiling"

    def admits(self, lane: int) -> bool:
        """Whether the lane may send one more request."""
        if self.stage != "accelerated":
            return True
        return not self.closed and (self._quota is None or self.admitted[lane] < self._quota)

    def sent(self, lane: int) -> None:
        """Counts a request of a lane which `admits` it; closes the warmup with the last of the last lane."""
        if self.stage == "accelerated":
            self.admitted[lane] += 1
            if self.admitted[lane] == self._quota:
                self._unfilled -= 1
                if not self._unfilled:
                    self.close()

    def close(self) -> None:
        """Nothing more is admitted in the accelerated stage. Idempotent."""
        if not self.closed:
            self.closed = True
            self._on_closed()

    @property
    def missed(self) -> int:
        """Requests which lanes did not send of their quota."""
        return 0 if self._quota is None else sum(self._quota - sent for sent in self.admitted)

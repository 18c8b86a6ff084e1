"""The bound on failures at which a run gives up.

Source: agentx-v1, section 7.
"""

from __future__ import annotations

from typing import Final

from agentx_engine.transport.base import Outcome

MIN_RECORDS: Final = 10
_NO_RECORD: Final = Outcome.CANCELLED  # what we ended ourselves is neither a success nor a failure
_NO_ERROR: Final = frozenset({Outcome.SUCCESS.value, Outcome.CONTEXT_OVERFLOW.value})


class FailedRequestThreshold:
    """Fed with the outcome of each request of the measured phase; says when to cancel the run.

    A run is cancelled as soon as it has at least max(concurrency, 10) records and more than `ratio` of them
    are errors. Context overflows are records without being errors; cancelled requests are not records.
    """

    def __init__(self, ratio: float | None, concurrency: int) -> None:
        """`ratio` None: never."""
        if ratio is not None and not 0 <= ratio <= 1:
            raise ValueError(f"a ratio of failures is between 0 and 1, not {ratio}")
        self.ratio = ratio
        self.min_records = max(concurrency, MIN_RECORDS)
        self.records = 0
        self.errors = 0
        self.exceeded = False  # once it is, it stays so

    def add(self, outcome: str) -> bool:
        """Takes one outcome, an `Outcome` or "short_answer"; True if the run is to be cancelled."""
        if outcome == _NO_RECORD:
            return self.exceeded
        self.records += 1
        self.errors += outcome not in _NO_ERROR
        if self.ratio is not None and self.records >= self.min_records:
            self.exceeded = self.exceeded or self.errors / self.records > self.ratio
        return self.exceeded

    @property
    def reason(self) -> str:
        """Why the run was cancelled, a sentence."""
        bound = "no bound" if self.ratio is None else f"a bound of {100 * self.ratio:g} %"
        return f"{self.errors:,} of {self.records:,} requests failed, with {bound} on failures."

"""High dynamic range histograms in the V2 bucket layout of HdrHistogram.

Definition of the layout, of percentiles and of the encoding: HdrHistogram (Gil Tene) and its Python
port `hdrhistogram`; both give the same slots and the same answers.
"""

from collections.abc import Iterable
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

@final
class Histogram:
    """Counts of int64 values between 0 and `highest`, to `digits` significant digits.

    The default layout is the engine's only one: nanoseconds, resolution 1 us (values below it share
    slots of 512 ns), up to one hour, three digits, 196 KB. ValueError for bounds that HdrHistogram
    refuses (lowest < 1, highest < 2 x lowest, digits outside 1 to 5).
    """

    def __new__(cls, lowest: int = 1_000, highest: int = 3_600_000_000_000, digits: int = 3) -> Self: ...
    def record(self, value: int) -> None:
        """Counts one value; below 0 counts as 0, above `highest` as `highest` and in `saturated`."""

    def record_many(self, values: NDArray[np.int64]) -> None:
        """Records every value of a one-dimensional int64 array. ValueError for another type or shape."""

    def add(self, other: Histogram) -> None:
        """Adds the counts of a histogram of the same layout, exactly; ValueError if it differs."""

    def copy(self) -> Histogram: ...
    def reset(self) -> None:
        """Forgets every value."""

    def percentile(self, percentile: float) -> int:
        """Highest value that shares the slot in which `percentile` percent of the counts are reached.

        0 for an empty histogram; ValueError outside 0 to 100. As hdrhistogram's
        get_value_at_percentile: the wanted count is rounded half up and at least 1, and the 0th
        percentile is the lowest value of its slot.
        """

    def percentiles(self, percentiles: Iterable[float]) -> list[int]: ...
    def counts(self) -> NDArray[np.int64]:
        """A copy of the counts, one per slot."""

    def index(self, value: int) -> int:
        """Slot of a value. ValueError outside 0 to `highest`."""

    def value_at(self, index: int) -> int:
        """Lowest value of a slot. IndexError outside the slots."""

    def to_hdrh(self) -> Any:
        """A copy as `hdrh.histogram.HdrHistogram`, for log writers and percentile tables."""

    def encode(self) -> bytes:
        """V2 compressed histogram in base64, as every HdrHistogram tool reads it."""

    @property
    def lowest(self) -> int: ...
    @property
    def highest(self) -> int: ...
    @property
    def digits(self) -> int: ...
    @property
    def count(self) -> int:
        """Number of recorded values."""

    @property
    def saturated(self) -> int:
        """How many of them were above `highest`."""

    @property
    def min(self) -> int | None:
        """Smallest recorded value, exact (not its slot's); None if there is none."""

    @property
    def max(self) -> int | None:
        """Largest recorded value, exact up to `highest`; None if there is none."""

    @property
    def mean(self) -> float | None:
        """Mean of the recorded values themselves (not of their slots); None if there is none."""

    def __len__(self) -> int: ...

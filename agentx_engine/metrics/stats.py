"""Samples of one quantity and their statistics."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from agentx_engine.core.hdr import Histogram

PERCENTILES = (50, 75, 90, 95, 99)


class Samples:
    """All values of one quantity, 8 bytes each, so that percentiles are exact."""

    __slots__ = ("_values", "unit")

    def __init__(self, unit: float = 1.0) -> None:
        """`unit` is the size of the reported unit in recorded ones (1e6: recorded ns, reported ms)."""
        self._values = array("d")
        self.unit = unit

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float | None) -> None:
        """Keeps a value; None is no sample."""
        if value is not None:
            self._values.append(value)

    def values(self) -> NDArray[np.float64]:
        """A copy of the samples in the reported unit."""
        return np.array(self._values, dtype=np.float64) / self.unit

    def stats(self) -> dict[str, float] | None:
        return statistics(self.values())


def statistics(values: NDArray[np.float64]) -> dict[str, float] | None:
    """count, mean, std (population), min, p50 p75 p90 p95 p99 (linear), max; None without samples.

    Percentiles interpolate linearly between order statistics, as numpy's default and as `agentx-v1`.
    """
    if not len(values):
        return None
    points = np.percentile(values, PERCENTILES)
    return {
        "count": len(values),
        "mean": float(values.mean()),
        "std": float(values.std()),
        "min": float(values.min()),
        **{f"p{p}": float(v) for p, v in zip(PERCENTILES, points, strict=True)},
        "max": float(values.max()),
    }


def histogram_statistics(histogram: Histogram, unit: float = 1e6) -> dict[str, float] | None:
    """count, mean, min, percentiles and max of a histogram (its percentiles are within 0.1 %)."""
    if not histogram.count:
        return None
    low, high, mean = histogram.min, histogram.max, histogram.mean
    points = histogram.percentiles(PERCENTILES)
    return {
        "count": histogram.count,
        "mean": (mean or 0.0) / unit,
        "min": (low or 0) / unit,
        **{f"p{p}": v / unit for p, v in zip(PERCENTILES, points, strict=True)},
        "max": (high or 0) / unit,
    }

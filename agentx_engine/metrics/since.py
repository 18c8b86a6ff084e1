"""What a transport measured of itself since an instant: the measured phase without the warmup before it.

A transport counts from its start. Counters and histograms only grow, so the difference of two readings is
what came in between: exact for counters, to a histogram's own resolution (0.1 %) for durations.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from agentx_engine.core.hdr import Histogram

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from agentx_engine.metrics.host import Measured


class Since:
    """The readings of `transport` from the making of this object on. Itself a `metrics.host.Measured`."""

    def __init__(self, transport: Measured) -> None:
        self._transport = transport
        self.began_ns = time.monotonic_ns()
        self._counters = dict(transport.counters())
        self._histograms = {
            name: histogram.counts() for name, histogram in transport.histograms().items() if histogram.count
        }

    def counters(self) -> dict[str, int]:
        """As the transport's. The longest turn is of the whole time if it was in this one, else the longest
        that the histogram knows of, dated at the beginning.
        """
        now, before = self._transport.counters(), self._counters
        counters = {
            name: value if name.startswith("longest") else value - before.get(name, 0)
            for name, value in now.items()
        }
        longest = counters.get("longest_turn_ns")
        if longest and longest == before.get("longest_turn_ns"):
            counters["longest_turn_ns"] = self.histograms()["reactor_turn"].max or 0
            counters["longest_turn_at_ns"] = self.began_ns
        return counters

    def histograms(self) -> Mapping[str, Histogram]:
        return {
            name: _without(histogram, self._histograms.get(name))
            for name, histogram in self._transport.histograms().items()
        }


def _without(histogram: Histogram, before: NDArray[np.int64] | None) -> Histogram:
    if before is None:
        return histogram
    rest = Histogram(histogram.lowest, histogram.highest, histogram.digits)
    counts = histogram.counts() - before
    for index in np.flatnonzero(counts):
        value = histogram.value_at(int(index))
        rest.record_many(np.full(int(counts[index]), value, dtype=np.int64))
    return rest

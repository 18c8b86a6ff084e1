"""Histogram: nanoseconds per recorded value, against hdrhistogram; merge and percentile of a full one.

pytest benches/bench_hdr.py --benchmark-enable
"""

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram

from agentx_engine.core.hdr import Histogram

VALUES = np.random.default_rng(1).lognormal(17, 2, 20_000).astype(np.int64)


def record_in_python(histogram, values):
    for value in values:
        histogram.record_value(value)


@pytest.mark.benchmark(group=f"record {VALUES.size} values")
@pytest.mark.parametrize("how", ["record_many", "record", "hdrhistogram (reference)"])
def test_record(benchmark, how):
    values = VALUES.tolist()
    ours, theirs = Histogram(), HdrHistogram(1_000, 3_600_000_000_000, 3)
    if how == "record_many":
        benchmark(ours.record_many, VALUES)
    elif how == "record":
        benchmark(lambda: [ours.record(v) for v in values])
    else:
        benchmark.pedantic(record_in_python, (theirs, values), rounds=3)
    print(f"\n{how}: {benchmark.stats['min'] / VALUES.size * 1e9:.1f} ns per value")


@pytest.mark.benchmark(group="a histogram of 24,576 slots")
@pytest.mark.parametrize("how", ["add", "percentile", "encode"])
def test_whole(benchmark, how):
    h = Histogram()
    h.record_many(VALUES)
    benchmark(
        {"add": lambda: h.copy().add(h), "percentile": lambda: h.percentile(99), "encode": h.encode}[how]
    )

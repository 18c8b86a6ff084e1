"""Histogram against the `hdrhistogram` package: the same slots, percentiles, merges and encoding."""

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given, settings
from hypothesis import strategies as st

from agentx_engine.core.hdr import Histogram

PERCENTILES = (0, 0.001, 1, 25, 50, 75, 90, 99, 99.9, 99.99, 99.999, 100)
LAYOUTS = [
    (1_000, 3_600_000_000_000, 3),
    (1, 2, 1),
    (1, 10**6, 1),
    (7, 10**9, 2),
    (1024, 2**40, 4),
    (1, 2**62, 3),
]


def reference(layout, values):
    out = HdrHistogram(*layout)
    for value in values:
        assert out.record_value(value)
    return out


def edges(layout):
    """Values around every power of two, where slots change width, and around the bounds."""
    _, highest, _ = layout
    near = (base + step for k in range(63) for base in (2**k, 3 * 2**k) for step in (-1, 0, 1))
    return sorted({v for v in (0, 1, highest - 1, highest, *near) if 0 <= v <= highest})


def assert_same(ours, theirs):
    np.testing.assert_array_equal(ours.counts(), np.array(theirs.counts, dtype=np.int64))
    assert ours.count == theirs.get_total_count()
    expected = theirs.get_percentile_to_value_dict(PERCENTILES)
    low, high = ours.min or 0, ours.max or 0  # exact here; theirs are the ends of slots
    assert ours.percentiles(PERCENTILES) == [min(max(expected.get(p, 0), low), high) for p in PERCENTILES]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_slots_and_percentiles(layout):
    values = edges(layout)
    ours = Histogram(*layout)
    ours.record_many(np.array(values, dtype=np.int64))
    theirs = reference(layout, values)
    assert_same(ours, theirs)
    for value in values:
        index = ours.index(value)
        assert index == theirs.get_counts_array_index(value)
        assert ours.value_at(index) == theirs.get_lowest_equivalent_value(value)


@pytest.mark.parametrize("digits", range(1, 6))
@pytest.mark.parametrize("magnitude", range(0, 40))
def test_slot_count_of_every_magnitude(magnitude, digits):
    layout = (2**magnitude, 2 ** (magnitude + 4), digits)
    assert Histogram(*layout).counts().size == HdrHistogram(*layout).counts_len


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(LAYOUTS[:4]), st.data())
def test_any_values(layout, data):
    values = data.draw(st.lists(st.integers(0, layout[1]), max_size=40))
    ours = Histogram(*layout)
    for value in values:
        ours.record(value)
    assert_same(ours, reference(layout, values))
    assert ours.min == (min(values) if values else None)
    assert ours.max == (max(values) if values else None)
    assert ours.mean == (pytest.approx(np.mean(values, dtype=np.float64)) if values else None)


def test_values_outside_the_bounds_are_kept_and_counted():
    h = Histogram()
    for value in (-1, -(2**63), h.highest, h.highest + 1, 2**63 - 1):
        h.record(value)
    assert (h.count, h.saturated, h.min, h.max) == (5, 2, 0, h.highest)
    assert h.counts()[0] == 2
    assert h.counts()[h.index(h.highest)] == 3


def test_sum_does_not_wrap():
    h = Histogram(1, 2**62, 1)
    h.record_many(np.full(5, 2**62, dtype=np.int64))
    assert h.mean > 0


def test_merge_is_exact():
    rng = np.random.default_rng(7)
    parts = [rng.lognormal(17, 3, 500).astype(np.int64) for _ in range(4)]
    whole, merged = Histogram(), Histogram()
    whole.record_many(np.concatenate(parts))
    for part in parts:
        h = Histogram()
        h.record_many(part)
        merged.add(h)
    np.testing.assert_array_equal(merged.counts(), whole.counts())
    for name in ("count", "min", "max", "mean", "saturated"):
        assert getattr(merged, name) == getattr(whole, name)


def test_merge_with_itself_and_with_an_empty_one():
    h = Histogram()
    h.record(5_000_000)
    h.add(Histogram())
    assert (h.count, h.min, h.max) == (1, 5_000_000, 5_000_000)
    h.add(h)
    assert (h.count, h.mean) == (2, 5_000_000)


def test_merge_of_different_layouts_is_refused():
    with pytest.raises(ValueError, match="layouts differ"):
        Histogram().add(Histogram(1_000, 3_600_000_000_000, 2))


def test_encoding_is_read_by_hdrhistogram():
    h = Histogram()
    h.record_many(np.random.default_rng(3).lognormal(18, 2, 10_000).astype(np.int64))
    back = HdrHistogram.decode(h.encode())
    assert_same(h, back)
    assert (back.lowest_trackable_value, back.highest_trackable_value) == (h.lowest, h.highest)


def test_encoding_of_the_highest_slot_and_of_nothing():
    h = Histogram()
    assert HdrHistogram.decode(h.encode()).get_total_count() == 0
    h.record(h.highest)
    assert HdrHistogram.decode(h.encode()).get_max_value() >= h.percentile(100) == h.highest


def test_no_percentile_leaves_the_values():
    h = Histogram()
    h.record_many(np.array([1_000_003, 1_000_007], dtype=np.int64))
    assert (h.percentile(0), h.percentile(50), h.percentile(100)) == (1_000_003, 1_000_007, 1_000_007)


def test_encoding_equals_that_of_hdrhistogram():
    values = edges((1_000, 3_600_000_000_000, 3))
    h = Histogram()
    h.record_many(np.array(values, dtype=np.int64))
    assert h.encode() == reference((h.lowest, h.highest, h.digits), values).encode()


def test_reset_and_copy():
    h = Histogram()
    h.record(123_456_789)
    twin = h.copy()
    h.reset()
    assert (len(h), h.min, h.max, h.mean, h.percentile(50)) == (0, None, None, None, 0)
    assert not h.counts().any()
    assert (twin.count, twin.max) == (1, 123_456_789)
    h.record(1_000_000)
    assert (h.count, h.min, twin.count) == (1, 1_000_000, 1)


@pytest.mark.parametrize(
    "layout", [(0, 100, 3), (1, 1, 3), (1, 100, 0), (1, 100, 6), (2**60, 2**62, 5), (2**62, 2**63 - 1, 1)]
)
def test_bounds_that_hdrhistogram_refuses(layout):
    with pytest.raises(ValueError, match="no histogram"):
        Histogram(*layout)


@pytest.mark.parametrize("percentile", [-0.1, 100.1, float("nan")])
def test_percentiles_outside_0_to_100(percentile):
    with pytest.raises(ValueError, match="between 0 and 100"):
        Histogram().percentile(percentile)


def test_record_many_takes_strided_views_and_refuses_other_types():
    h = Histogram()
    h.record_many(np.arange(10, dtype=np.int64)[::2] * 1_000_000)
    assert (h.count, h.max) == (5, 8_000_000)
    with pytest.raises(ValueError, match="Buffer dtype mismatch"):
        h.record_many(np.zeros(3))

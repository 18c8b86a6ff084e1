# cython: boundscheck=False, wraparound=False
"""Histogram: csrc/hdr for Python. Recording is one C call; encoding is left to `hdrhistogram`."""

import ctypes

import numpy as np
from hdrh.histogram import HdrHistogram

from libc.stdint cimport int32_t, int64_t


cdef class Histogram:
    def __cinit__(self, int64_t lowest=AX_HDR_LOWEST, int64_t highest=AX_HDR_HIGHEST, int digits=AX_HDR_DIGITS):
        init(&self.hdr, lowest, highest, digits)

    def __dealloc__(self):
        ax_hdr_free(&self.hdr)

    cdef int copy_from(self, const ax_hdr *src) except -1:
        cdef ax_hdr fresh
        if src is &self.hdr:
            return 0
        if same_layout(&self.hdr, src):
            ax_hdr_reset(&self.hdr)
        else:
            init(&fresh, src.lowest, src.highest, src.digits)
            ax_hdr_free(&self.hdr)
            self.hdr = fresh
        ax_hdr_add(&self.hdr, src)
        return 0

    cdef int add_from(self, const ax_hdr *src) except -1:
        if ax_hdr_add(&self.hdr, src) != 0:
            raise ValueError(
                f"histogram layouts differ: {self.lowest}..{self.highest} with {self.digits} digits, "
                f"and {src.lowest}..{src.highest} with {src.digits}"
            )
        return 0

    def record(self, int64_t value):
        ax_hdr_record(&self.hdr, value)

    def record_many(self, values):
        cdef const int64_t[:] view = values
        cdef Py_ssize_t i
        for i in range(view.shape[0]):
            ax_hdr_record(&self.hdr, view[i])

    def add(self, Histogram other not None):
        self.add_from(&other.hdr)

    def copy(self):
        cdef Histogram twin = Histogram(self.hdr.lowest, self.hdr.highest, self.hdr.digits)
        twin.copy_from(&self.hdr)
        return twin

    def reset(self):
        ax_hdr_reset(&self.hdr)

    def percentile(self, double percentile):
        if not 0.0 <= percentile <= 100.0:
            raise ValueError(f"a percentile is between 0 and 100, not {percentile}")
        return ax_hdr_percentile(&self.hdr, percentile)

    def percentiles(self, percentiles):
        return [self.percentile(p) for p in percentiles]

    def counts(self):
        out = np.empty(self.hdr.counts_len, dtype=np.int64)
        cdef int64_t[::1] view = out
        cdef int32_t i
        for i in range(self.hdr.counts_len):
            view[i] = self.hdr.counts[i]
        return out

    def index(self, int64_t value):
        if not 0 <= value <= self.hdr.highest:
            raise ValueError(f"{value} is not within 0..{self.hdr.highest}")
        return ax_hdr_index(&self.hdr, value)

    def value_at(self, int32_t index):
        if not 0 <= index < self.hdr.counts_len:
            raise IndexError(f"slot {index} of {self.hdr.counts_len}")
        return ax_hdr_value_at(&self.hdr, index)

    def to_hdrh(self):
        twin = HdrHistogram(self.hdr.lowest, self.hdr.highest, self.hdr.digits)
        counts = self.counts()
        ctypes.memmove(twin.counts, counts.ctypes.data, counts.nbytes)
        twin.total_count = int(counts.sum())
        used = counts.nonzero()[0]
        if used.size:
            # From the counts, not from min and max: those may lag behind under a live writer, and
            # the encoder cuts the counts off behind the maximum.
            twin.min_value = twin.get_value_from_index(int(used.min()))
            twin.max_value = twin.get_highest_equivalent_value(twin.get_value_from_index(int(used.max())))
        return twin

    def encode(self):
        return self.to_hdrh().encode()

    @property
    def lowest(self):
        return self.hdr.lowest

    @property
    def highest(self):
        return self.hdr.highest

    @property
    def digits(self):
        return self.hdr.digits

    @property
    def count(self):
        return self.hdr.total

    @property
    def saturated(self):
        return self.hdr.saturated

    @property
    def min(self):
        return self.hdr.min if self.hdr.total else None

    @property
    def max(self):
        return self.hdr.max if self.hdr.total else None

    @property
    def mean(self):
        return self.hdr.sum / <double>self.hdr.total if self.hdr.total else None

    def __len__(self):
        return self.hdr.total

    def __repr__(self):
        if not self.hdr.total:
            return "<Histogram empty>"
        return f"<Histogram count={self.count} min={self.min} mean={self.mean:.0f} max={self.max}>"


cdef bint same_layout(const ax_hdr *a, const ax_hdr *b) noexcept nogil:
    return a.lowest == b.lowest and a.highest == b.highest and a.digits == b.digits


cdef int init(ax_hdr *h, int64_t lowest, int64_t highest, int digits) except -1:
    if ax_hdr_init(h, lowest, highest, digits) != 0:
        raise ValueError(
            f"no histogram of {lowest}..{highest} with {digits} digits: lowest >= 1, "
            f"highest >= 2 x lowest, digits 1 to 5"
        )
    return 0

from libc.stdint cimport int32_t, int64_t


cdef extern from "hdr.h" nogil:
    const int64_t AX_HDR_LOWEST
    const int64_t AX_HDR_HIGHEST
    const int AX_HDR_DIGITS

    # The counters are _Atomic in C: read them one at a time, never through a pointer taken in Cython.
    ctypedef struct ax_hdr:
        const int64_t lowest
        const int64_t highest
        const int32_t digits
        const int32_t counts_len
        const int64_t total
        const int64_t sum
        const int64_t min
        const int64_t max
        const int64_t saturated
        const int64_t *counts

    int ax_hdr_init(ax_hdr *h, int64_t lowest, int64_t highest, int digits)
    void ax_hdr_free(ax_hdr *h)
    void ax_hdr_reset(ax_hdr *h)
    void ax_hdr_record(ax_hdr *h, int64_t value)
    int ax_hdr_add(ax_hdr *to, const ax_hdr *src)
    int64_t ax_hdr_percentile(const ax_hdr *h, double percentile)
    int32_t ax_hdr_index(const ax_hdr *h, int64_t value)
    int64_t ax_hdr_value_at(const ax_hdr *h, int32_t index)


cdef class Histogram:
    cdef ax_hdr hdr

    # Becomes a copy of `src`, layout included; `src` may have a live writer.
    cdef int copy_from(self, const ax_hdr *src) except -1
    # Adds `src`; ValueError if its layout differs.
    cdef int add_from(self, const ax_hdr *src) except -1

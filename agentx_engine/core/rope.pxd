from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t


cdef extern from "<sys/uio.h>" nogil:
    cdef struct iovec:
        void *iov_base
        size_t iov_len


cdef extern from "span.h" nogil:
    ctypedef struct ax_span:
        const char *ptr
        size_t len


cdef extern from "rope.h" nogil:
    ctypedef struct ax_rope:
        uint64_t bytes
        uint32_t count
        uint32_t cap
        ax_span *segs

    ctypedef struct ax_rope_cursor:
        uint32_t seg
        size_t off
        uint64_t done

    void ax_rope_init(ax_rope *r)
    void ax_rope_free(ax_rope *r)
    int ax_rope_push(ax_rope *r, const char *ptr, size_t len)
    int ax_rope_copy(ax_rope *to, const ax_rope *src)
    int ax_rope_extend(ax_rope *to, const ax_rope *src)
    int ax_rope_reserve(ax_rope *r, uint64_t count)
    void ax_rope_truncate(ax_rope *r, uint32_t count)
    int ax_rope_window(const ax_rope *r, const ax_rope_cursor *c, iovec *iov, int max_iov, size_t max_bytes)
    void ax_rope_advance(const ax_rope *r, ax_rope_cursor *c, size_t n)
    bint ax_rope_at_end(const ax_rope *r, const ax_rope_cursor *c)


# Immutable. Whoever reads `rope` without the GIL holds a reference to the Rope, which holds the
# segments; nothing else is counted or locked.
cdef class Rope:
    cdef ax_rope rope
    cdef tuple kept


cdef class RopeBuilder:
    cdef ax_rope rope
    cdef list kept

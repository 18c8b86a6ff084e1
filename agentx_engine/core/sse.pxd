"""Parser of server-sent events (csrc/sse): pulls events out of fed bytes."""

from libc.stdint cimport uint64_t

from agentx_engine.core.chunk cimport ax_span


cdef extern from "sse.h" nogil:
    ctypedef enum ax_sse_result:
        AX_SSE_NEED
        AX_SSE_EVENT
        AX_SSE_TOO_LARGE
        AX_SSE_NO_MEMORY

    ctypedef struct ax_sse_event:
        ax_span data
        ax_span name

    ctypedef struct ax_sse:
        uint64_t events
        uint64_t comments
        size_t max_event
        size_t cap

    void ax_sse_init(ax_sse *p, size_t max_event)
    void ax_sse_reset(ax_sse *p)
    void ax_sse_free(ax_sse *p)
    ax_sse_result ax_sse_next(ax_sse *p, const char **cur, const char *end, ax_sse_event *ev)
    ax_sse_result ax_sse_eof(ax_sse *p, ax_sse_event *ev)


cdef class SseParser:
    cdef ax_sse p
    cdef ax_sse_result last
    cdef readonly Py_ssize_t borrowed

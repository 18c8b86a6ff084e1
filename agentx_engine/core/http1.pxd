"""Response parser of HTTP/1.1 (csrc/http1): pulls head, body pieces and end out of fed bytes."""

from libc.stdint cimport int64_t, uint8_t

from agentx_engine.core.chunk cimport ax_span


cdef extern from "http1.h" nogil:
    enum:
        AX_HTTP1_MAX_HEAD

    ctypedef enum ax_http1_event:
        AX_HTTP1_NEED
        AX_HTTP1_HEAD
        AX_HTTP1_BODY
        AX_HTTP1_END
        AX_HTTP1_FAIL

    ctypedef struct ax_http1:
        int status
        int minor
        int64_t content_length
        bint chunked
        bint keep_alive
        bint encoded
        char content_type[96]
        char location[256]
        char reason[64]
        const char *error

    void ax_http1_reset(ax_http1 *p)
    ax_http1_event ax_http1_next(ax_http1 *p, const char **cur, const char *end, ax_span *span)
    ax_http1_event ax_http1_eof(ax_http1 *p)
    bint ax_http1_idle(const ax_http1 *p)


cdef class HttpParser:
    cdef ax_http1 p
    cdef tuple step(self, ax_http1_event event, ax_span span, Py_ssize_t rest)

"""HTTP/1.1 response parser: csrc/http1 for Python."""

from collections import namedtuple

cdef extern from "clock.h" nogil:
    int64_t ax_now_ns()


Head = namedtuple(
    "Head", "status minor reason content_length chunked keep_alive encoded content_type location"
)


cdef class HttpParser:
    def __cinit__(self):
        ax_http1_reset(&self.p)

    def reset(self):
        ax_http1_reset(&self.p)

    cdef tuple step(self, ax_http1_event event, ax_span span, Py_ssize_t rest):
        if event == AX_HTTP1_BODY:
            return ("body", span.ptr[:span.len])
        if event == AX_HTTP1_END:
            return ("end", rest)
        if event == AX_HTTP1_FAIL:
            return ("fail", self.p.error.decode())
        return (
            "head",
            Head(
                self.p.status,
                self.p.minor,
                <bytes>self.p.reason,
                None if self.p.content_length < 0 else self.p.content_length,
                bool(self.p.chunked),
                bool(self.p.keep_alive),
                bool(self.p.encoded),
                <bytes>self.p.content_type,
                <bytes>self.p.location,
            ),
        )

    def feed(self, bytes data not None):
        cdef const char *cur = data
        cdef const char *end = cur + len(data)
        cdef ax_span span
        cdef ax_http1_event event = AX_HTTP1_HEAD
        out = []
        while event == AX_HTTP1_HEAD or event == AX_HTTP1_BODY:
            event = ax_http1_next(&self.p, &cur, end, &span)
            if event != AX_HTTP1_NEED:
                out.append(self.step(event, span, end - cur))
        return out

    def eof(self):
        cdef ax_span span
        span.ptr = NULL
        span.len = 0
        return self.step(ax_http1_eof(&self.p), span, 0)

    @property
    def idle(self):
        return bool(ax_http1_idle(&self.p))

    @property
    def keep_alive(self):
        return bool(self.p.keep_alive)


def bench(bytes head not None, bytes body not None, Py_ssize_t n):
    cdef ax_http1 p
    cdef ax_span span
    cdef const char *cur = head
    cdef const char *begin = body
    cdef const char *end = cur + len(head)
    cdef size_t total = 0
    cdef Py_ssize_t i
    cdef int64_t begun
    cdef ax_http1_event event = AX_HTTP1_HEAD
    ax_http1_reset(&p)
    while event != AX_HTTP1_NEED and event != AX_HTTP1_FAIL:
        event = ax_http1_next(&p, &cur, end, &span)
    end = begin + len(body)
    with nogil:
        begun = ax_now_ns()
        for i in range(n):
            cur = begin
            while ax_http1_next(&p, &cur, end, &span) == AX_HTTP1_BODY:
                total += span.len
        begun = ax_now_ns() - begun
    return begun

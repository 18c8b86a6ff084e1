"""Server-sent events: csrc/sse for Python."""

from collections import namedtuple

from libc.stdint cimport int64_t

Event = namedtuple("Event", "name data")


cdef extern from "clock.h" nogil:
    int64_t ax_now_ns()


cdef object event_of(const ax_sse_event *ev):
    return Event(ev.name.ptr[:ev.name.len], ev.data.ptr[:ev.data.len])


cdef class SseParser:
    def __cinit__(self, size_t max_event=16 << 20):
        ax_sse_init(&self.p, max_event)
        self.last = AX_SSE_NEED

    def __dealloc__(self):
        ax_sse_free(&self.p)

    def reset(self):
        ax_sse_reset(&self.p)
        self.last = AX_SSE_NEED

    def feed(self, bytes data not None):
        cdef const char *begin = data
        cdef const char *cur = begin
        cdef const char *end = cur + len(data)
        cdef ax_sse_event ev
        out = []
        while True:
            self.last = ax_sse_next(&self.p, &cur, end, &ev)
            if self.last != AX_SSE_EVENT:
                break
            if begin <= ev.data.ptr < end:
                self.borrowed += 1
            out.append(event_of(&ev))
        if self.last == AX_SSE_NO_MEMORY:
            raise MemoryError
        return out

    def feed_each(self, bytes data not None, Py_ssize_t piece):
        cdef const char *begin = data
        cdef const char *end = begin + len(data)
        cdef const char *cur = begin
        cdef const char *stop
        cdef ax_sse_event ev
        if piece < 1:
            raise ValueError(f"a piece has at least one byte, not {piece}")
        out = []
        while cur < end:
            stop = end if end - cur < piece else cur + piece
            with nogil:
                self.last = ax_sse_next(&self.p, &cur, stop, &ev)
                while self.last == AX_SSE_NEED and stop < end:
                    stop = end if end - cur < piece else cur + piece
                    self.last = ax_sse_next(&self.p, &cur, stop, &ev)
            if self.last != AX_SSE_EVENT:
                break
            out.append(event_of(&ev))
        return out

    def eof(self):
        cdef ax_sse_event ev
        return [event_of(&ev)] if ax_sse_eof(&self.p, &ev) == AX_SSE_EVENT else []

    @property
    def too_large(self):
        return self.last == AX_SSE_TOO_LARGE

    @property
    def events(self):
        return self.p.events

    @property
    def comments(self):
        return self.p.comments

    @property
    def capacity(self):
        return self.p.cap


def bench(bytes data not None, Py_ssize_t n):
    cdef ax_sse p
    cdef ax_sse_event ev
    cdef const char *cur
    cdef const char *begin = data
    cdef const char *end = begin + len(data)
    cdef Py_ssize_t i
    cdef int64_t begun
    ax_sse_init(&p, 1 << 20)
    with nogil:
        begun = ax_now_ns()
        for i in range(n):
            cur = begin
            while ax_sse_next(&p, &cur, end, &ev) == AX_SSE_EVENT:
                pass
        begun = ax_now_ns() - begun
    ax_sse_free(&p)
    return begun

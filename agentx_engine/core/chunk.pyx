"""Scanner of one stream event: csrc/chunk for Python."""

import enum
from collections import namedtuple

from libc.stdint cimport uint64_t
from libc.string cimport memchr, memcpy, memset


cdef extern from *:
    """
    typedef volatile size_t volatile_size;
    """
    ctypedef size_t volatile_size


cdef extern from "clock.h" nogil:
    int64_t ax_now_ns()


cdef extern from "string.h" nogil:
    void *memmem(const void *haystack, size_t n, const void *needle, size_t m)


cdef extern from "scan.h" nogil:
    uint64_t ax_string_mask(const char *begin, const char *at, const char *end)
    uint64_t ax_eol_mask(const char *begin, const char *at, const char *end)
    uint64_t ax_string_words(const char *c)
    uint64_t ax_eol_words(const char *c)
    const char *ax_scan_eol(const char *begin, const char *c, const char *end)


class Flag(enum.IntFlag):
    TEXT = AX_CHUNK_TEXT
    REASONING = AX_CHUNK_REASONING
    TOOL = AX_CHUNK_TOOL
    FINISH = AX_CHUNK_FINISH
    USAGE = AX_CHUNK_USAGE
    ERROR = AX_CHUNK_ERROR
    DONE = AX_CHUNK_DONE
    MALFORMED = AX_CHUNK_MALFORMED


class Finish(enum.IntEnum):
    NONE = AX_FINISH_NONE
    STOP = AX_FINISH_STOP
    LENGTH = AX_FINISH_LENGTH
    TOOL_CALLS = AX_FINISH_TOOL_CALLS
    CONTENT_FILTER = AX_FINISH_CONTENT_FILTER
    OTHER = AX_FINISH_OTHER


MAX_DEPTH = AX_CHUNK_MAX_DEPTH

Chunk = namedtuple(
    "Chunk",
    "flags finish prompt completion cached reasoning error_message error_type error_code sent_ns seq",
)


cdef ax_span span_of(bytes data):
    cdef ax_span span
    span.ptr = data
    span.len = len(data)
    return span


cdef object count_of(int64_t value):
    return None if value < 0 else value


cdef object chunk_of(const ax_chunk *c):
    return Chunk(
        Flag(c.flags),
        Finish(c.finish),
        count_of(c.usage.prompt),
        count_of(c.usage.completion),
        count_of(c.usage.cached),
        count_of(c.usage.reasoning),
        c.error_message.ptr[:c.error_message.len],
        c.error_type.ptr[:c.error_type.len],
        count_of(c.error_code),
        count_of(c.sent_ns),
        count_of(c.seq),
    )


def scan_chunk(bytes data not None, bytes event_name not None=b""):
    cdef ax_chunk out
    ax_chunk_scan(AX_DIALECT_CHAT, span_of(event_name), span_of(data), &out)
    return chunk_of(&out)


cdef class ChunkScanner:
    def __cinit__(self):
        memset(&self.memo, 0, sizeof(self.memo))

    def scan(self, bytes data not None, bytes event_name not None=b""):
        cdef ax_chunk out
        ax_chunk_scan_next(AX_DIALECT_CHAT, &self.memo, span_of(event_name), span_of(data), &out)
        return chunk_of(&out)

    @property
    def recalled(self):
        return self.memo.recalled


def masks(bytes data not None, Py_ssize_t at):
    cdef const char *begin = data
    cdef const char *end = begin + len(data)
    cdef char copy[64]
    cdef uint64_t inside
    if not 0 <= at < len(data):
        raise IndexError(at)
    cdef size_t n = min(len(data) - at, 64)
    memset(copy, 0, 64)
    memcpy(copy, begin + at, n)
    inside = ~(<uint64_t>0) >> (64 - n)
    return (
        ax_string_mask(begin, begin + at, end),
        ax_string_words(copy) & inside,
        ax_eol_mask(begin, begin + at, end),
        ax_eol_words(copy) & inside,
        ax_scan_eol(begin, begin + at, end) - begin,
    )


def bench(bytes data not None, Py_ssize_t n):
    cdef ax_chunk out
    cdef ax_span name = span_of(b"")
    cdef ax_span span = span_of(data)
    cdef Py_ssize_t i
    cdef int64_t begun
    with nogil:
        begun = ax_now_ns()
        for i in range(n):
            ax_chunk_scan(AX_DIALECT_CHAT, name, span, &out)
        begun = ax_now_ns() - begun
    return begun


def bench_next(list events not None, Py_ssize_t n):
    cdef ax_chunk out
    cdef ax_chunk_memo memo
    cdef ax_span name = span_of(b"")
    cdef ax_span[64] spans
    cdef Py_ssize_t count = len(events)
    cdef Py_ssize_t i
    cdef int64_t begun
    if not 0 < count <= 64:
        raise ValueError(f"1 to 64 events, not {count}")
    for i in range(count):
        spans[i] = span_of(events[i])
    memset(&memo, 0, sizeof(memo))
    with nogil:
        begun = ax_now_ns()
        for i in range(n):
            ax_chunk_scan_next(AX_DIALECT_CHAT, &memo, name, spans[i % count], &out)
        begun = ax_now_ns() - begun
    return begun


def bench_memscan(bytes data not None, Py_ssize_t n):
    cdef const char *begin = data
    cdef size_t size = len(data)
    cdef const char *c
    cdef volatile_size found = 0
    cdef Py_ssize_t i
    cdef int64_t begun
    with nogil:
        begun = ax_now_ns()
        for i in range(n):
            c = <const char *>memmem(begin, size, b"data: ", 6)
            if c != NULL:
                found += <const char *>memchr(c, 10, begin + size - c) != NULL
        begun = ax_now_ns() - begun
    return begun

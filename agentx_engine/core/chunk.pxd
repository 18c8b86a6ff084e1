"""Scanner of one stream event (csrc/chunk), and the borrowed span that the parsers share."""

from libc.stdint cimport int64_t, uint32_t, uint64_t


cdef extern from "span.h" nogil:
    ctypedef struct ax_span:
        const char *ptr
        size_t len


cdef extern from "chunk.h" nogil:
    enum:
        AX_CHUNK_MAX_DEPTH
        AX_CHUNK_CONTENT

    ctypedef enum ax_chunk_flag:
        AX_CHUNK_TEXT
        AX_CHUNK_REASONING
        AX_CHUNK_TOOL
        AX_CHUNK_FINISH
        AX_CHUNK_USAGE
        AX_CHUNK_ERROR
        AX_CHUNK_DONE
        AX_CHUNK_MALFORMED

    ctypedef enum ax_finish:
        AX_FINISH_NONE
        AX_FINISH_STOP
        AX_FINISH_LENGTH
        AX_FINISH_TOOL_CALLS
        AX_FINISH_CONTENT_FILTER
        AX_FINISH_OTHER

    ctypedef enum ax_dialect:
        AX_DIALECT_CHAT

    ctypedef struct ax_usage:
        int64_t prompt
        int64_t completion
        int64_t cached
        int64_t reasoning

    ctypedef struct ax_chunk:
        uint32_t flags
        ax_finish finish
        ax_usage usage
        ax_span error_message
        ax_span error_type
        int64_t error_code
        int64_t sent_ns
        int64_t seq

    ctypedef struct ax_chunk_memo:
        uint64_t recalled

    uint32_t ax_chunk_scan(ax_dialect dialect, ax_span event_name, ax_span data, ax_chunk *out)
    uint32_t ax_chunk_scan_next(
        ax_dialect dialect, ax_chunk_memo *memo, ax_span event_name, ax_span data, ax_chunk *out
    )


cdef class ChunkScanner:
    cdef ax_chunk_memo memo

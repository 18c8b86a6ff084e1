from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t, uint64_t, uint8_t

from agentx_engine.core.rope cimport Rope, ax_rope, ax_span


cdef extern from "clock.h" nogil:
    const int64_t AX_NONE
    int64_t ax_now_ns()


cdef extern from "chunk.h" nogil:
    ctypedef struct ax_usage:
        int64_t prompt
        int64_t completion
        int64_t cached
        int64_t reasoning

    ctypedef enum ax_finish:
        AX_FINISH_NONE


cdef extern from "exchange.h" nogil:
    ctypedef enum ax_outcome:
        AX_PENDING
        AX_SUCCESS

    ctypedef enum ax_closing:
        AX_CLOSED_NOT
        AX_CLOSED_FIN
        AX_CLOSED_RST
        AX_CLOSED_BY_US

    ctypedef enum ax_feed:
        AX_FEED_MORE
        AX_FEED_END
        AX_FEED_FAIL

    const uint32_t AX_KEEP_USER_NS
    const uint32_t AX_KEEP_SENT_NS
    const uint32_t AX_REACTIVE

    ctypedef struct ax_stamps:
        int64_t due, armed, conn_ready, first_sent, last_sent, ack
        int64_t first_event, first_content, first_text, last_content, last_event, end

    ctypedef struct ax_read:
        int64_t stamp_ns
        int64_t since_ns
        int64_t user_ns
        bint kernel
        bint cut

    ctypedef struct ax_exchange:
        ax_span head
        const ax_rope *body
        int64_t max_tokens
        uint64_t session
        uint32_t endpoint
        uint32_t flags
        void *owner
        ax_stamps at
        ax_outcome outcome
        ax_closing closing
        int error_errno
        const char *error_static
        char *words
        size_t words_len
        char *error_type
        int64_t error_code
        int status
        char *content_type
        ax_usage usage
        ax_finish finish
        uint32_t seen
        bint kernel_stamps, reused, drained, framed
        uint8_t reconnects
        int64_t connect_ns
        uint64_t reads, events, content_events, coalesced_events, usage_events
        uint64_t bytes_in, bytes_out
        uint32_t kept_tokens
        int64_t *token_ns
        uint32_t *token_slack_ns
        int64_t *token_user_ns
        int64_t *token_sent_ns
        ax_exchange *next

    void ax_exchange_init(ax_exchange *x)
    void ax_exchange_free(ax_exchange *x)
    ax_feed ax_exchange_feed(ax_exchange *x, const char **cur, const char *end, const ax_read *read)
    void ax_exchange_closed(ax_exchange *x, int err)
    void ax_exchange_finish(ax_exchange *x, ax_outcome forced, int64_t now_ns)
    const char *ax_outcome_name(ax_outcome o)
    const char *ax_finish_name(ax_finish f)


# One request and its response. Between Reactor.submit and its return from Reactor.pop the reactor's
# thread writes `x`; Python may then only cancel it. `body` and `head` are held until the end, since `x`
# borrows their bytes.
cdef class Exchange:
    cdef ax_exchange x
    cdef readonly bytes head
    cdef readonly Rope body
    cdef bint busy
    cdef public object tag

    cdef int check_free(self) except -1

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from agentx_engine.core.exchange cimport ax_exchange
from agentx_engine.core.hdr cimport ax_hdr


cdef extern from "<sys/socket.h>" nogil:
    ctypedef unsigned int socklen_t
    cdef struct sockaddr_storage:
        pass


cdef extern from "reactor.h" nogil:
    ctypedef enum ax_pooling:
        AX_POOL_SHARED
        AX_POOL_SESSION
        AX_POOL_NEVER

    ctypedef struct ax_endpoint:
        sockaddr_storage addr
        socklen_t addr_len

    ctypedef struct ax_reactor_options:
        ax_pooling pooling
        int64_t connect_lead
        int64_t max_idle
        int64_t connect_timeout, first_byte_timeout, idle_timeout, total_timeout
        int64_t drain_after_done
        int64_t drain_after_finish
        int64_t resend_window
        bint resend
        bint quickack
        int user_timeout_ms
        int cpu

    void ax_reactor_defaults(ax_reactor_options *o)

    ctypedef enum ax_hist:
        AX_HIST_COUNT

    const char *ax_hist_name(ax_hist h)

    ctypedef struct ax_reactor_counters:
        int64_t submitted, completed, succeeded, in_flight, sockets
        int64_t connects, reused, reconnects, drained
        int64_t reads, events, content_events, coalesced_events, slack_over_1ms
        int64_t bytes_in, bytes_out
        int64_t stamps_missing, stamps_discarded, clock_steps
        int64_t turns, longest_turn_ns, longest_turn_at_ns

    ctypedef struct ax_reactor:
        pass

    ax_reactor *ax_reactor_new(const ax_endpoint *endpoints, uint32_t count, const ax_reactor_options *o)
    void ax_reactor_submit(ax_reactor *r, ax_exchange *x)
    void ax_reactor_cancel(ax_reactor *r, ax_exchange *x)
    int ax_reactor_eventfd(const ax_reactor *r)
    ax_exchange *ax_reactor_pop_all(ax_reactor *r)
    const ax_hdr *ax_reactor_hist(const ax_reactor *r, ax_hist h)
    const ax_reactor_counters *ax_reactor_counts(const ax_reactor *r)
    int64_t ax_reactor_cpu_ns(const ax_reactor *r)
    bint ax_reactor_uses_pwait2(const ax_reactor *r)
    void ax_reactor_close(ax_reactor *r)
    void ax_reactor_free(ax_reactor *r)


# One reactor thread. Every method belongs to the thread that made it; the C thread never touches a
# Python object. Each submitted Exchange is referenced from submit until pop.
cdef class Reactor:
    cdef ax_reactor *r
    cdef bint closed
    cdef int owner_pid
    cdef Py_ssize_t outstanding
    cdef object __weakref__

    cdef int check(self) except -1

"""The thread that sends, reads and stamps; see csrc/reactor.h."""

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport errno
from libc.stdlib cimport free, malloc
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memcpy

import atexit
import os
import socket
import weakref

from agentx_engine.core.exchange cimport Exchange
from agentx_engine.core.hdr cimport Histogram

cdef extern from "<netinet/in.h>" nogil:
    cdef struct in_addr:
        pass
    cdef struct in6_addr:
        pass
    cdef struct sockaddr_in:
        unsigned short sin_family
        unsigned short sin_port
        in_addr sin_addr
    cdef struct sockaddr_in6:
        unsigned short sin6_family
        unsigned short sin6_port
        in6_addr sin6_addr
        uint32_t sin6_scope_id
    unsigned short htons(unsigned short)
    int AF_INET
    int AF_INET6

cdef extern from "<unistd.h>" nogil:
    ssize_t read(int fd, void *buf, size_t n)
    int getpid()


cdef dict POOLING = {"pooled": AX_POOL_SHARED, "session": AX_POOL_SESSION, "request": AX_POOL_NEVER}

_live = weakref.WeakSet()


@atexit.register
def _close_all():
    for reactor in list(_live):
        reactor.close()


def option_defaults():
    cdef ax_reactor_options o
    ax_reactor_defaults(&o)
    return {
        "pooling": "pooled",
        "connect_lead_ns": o.connect_lead,
        "max_idle_ns": o.max_idle,
        "connect_timeout_ns": o.connect_timeout,
        "first_byte_timeout_ns": o.first_byte_timeout,
        "idle_timeout_ns": o.idle_timeout,
        "total_timeout_ns": o.total_timeout,
        "drain_after_done_ns": o.drain_after_done,
        "drain_after_finish_ns": o.drain_after_finish,
        "resend_window_ns": o.resend_window,
        "resend": bool(o.resend),
        "quickack": bool(o.quickack),
        "user_timeout_ms": o.user_timeout_ms,
        "cpu": o.cpu,
    }


cdef int fill_endpoint(ax_endpoint *out, address) except -1:
    host, port = address[0], address[1]
    cdef sockaddr_in *v4 = <sockaddr_in *>&out.addr
    cdef sockaddr_in6 *v6 = <sockaddr_in6 *>&out.addr
    cdef bytes raw
    if not 0 < port < 65536:
        raise ValueError(f"port {port} is not in 1..65535")
    if ":" in host:
        raw = socket.inet_pton(socket.AF_INET6, host)
        v6.sin6_family = AF_INET6
        v6.sin6_port = htons(port)
        v6.sin6_scope_id = address[3] if len(address) > 3 else 0
        memcpy(&v6.sin6_addr, <const char *>raw, 16)
        out.addr_len = sizeof(sockaddr_in6)
    else:
        raw = socket.inet_pton(socket.AF_INET, host)
        v4.sin_family = AF_INET
        v4.sin_port = htons(port)
        memcpy(&v4.sin_addr, <const char *>raw, 4)
        out.addr_len = sizeof(sockaddr_in)
    return 0


cdef class Reactor:
    def __cinit__(self, endpoints, **options):
        cdef ax_reactor_options o
        cdef ax_endpoint *addresses
        cdef Py_ssize_t i
        settings = option_defaults()
        unknown = options.keys() - settings.keys()
        if unknown:
            raise TypeError(f"unknown reactor options: {', '.join(sorted(unknown))}")
        settings |= options
        ax_reactor_defaults(&o)
        o.pooling = POOLING[settings["pooling"]]
        o.connect_lead = settings["connect_lead_ns"]
        o.max_idle = settings["max_idle_ns"]
        o.connect_timeout = settings["connect_timeout_ns"]
        o.first_byte_timeout = settings["first_byte_timeout_ns"]
        o.idle_timeout = settings["idle_timeout_ns"]
        o.total_timeout = settings["total_timeout_ns"]
        o.drain_after_done = settings["drain_after_done_ns"]
        o.drain_after_finish = settings["drain_after_finish_ns"]
        o.resend_window = settings["resend_window_ns"]
        o.resend = settings["resend"]
        o.quickack = settings["quickack"]
        o.user_timeout_ms = settings["user_timeout_ms"]
        o.cpu = settings["cpu"]
        endpoints = list(endpoints)
        if not endpoints:
            raise ValueError("a reactor needs at least one endpoint")
        addresses = <ax_endpoint *>malloc(len(endpoints) * sizeof(ax_endpoint))
        if addresses == NULL:
            raise MemoryError
        try:
            for i in range(len(endpoints)):
                fill_endpoint(&addresses[i], endpoints[i])
            self.r = ax_reactor_new(addresses, <uint32_t>len(endpoints), &o)
        finally:
            free(addresses)
        if self.r == NULL:
            raise OSError(errno, f"cannot start a reactor: {os.strerror(errno)}")
        self.owner_pid = getpid()
        _live.add(self)

    def __dealloc__(self):
        cdef Exchange exchange
        # A forked child has the memory but not the thread: nothing there may be joined or freed.
        cdef ax_exchange *x
        cdef ax_exchange *following
        if self.r == NULL or self.owner_pid != getpid():
            return
        with nogil:
            ax_reactor_close(self.r)
        x = ax_reactor_pop_all(self.r)
        while x != NULL:
            following = x.next
            exchange = <Exchange>x.owner
            exchange.busy = False
            Py_DECREF(exchange)
            x = following
        ax_reactor_free(self.r)

    cdef int check(self) except -1:
        if self.owner_pid != getpid():
            raise RuntimeError("this reactor belongs to the parent process; a forked child makes its own")
        if self.closed:
            raise RuntimeError("the reactor is closed")
        return 0

    def fileno(self):
        return ax_reactor_eventfd(self.r)

    def submit(self, Exchange exchange not None):
        self.check()
        if exchange.busy or exchange.x.outcome != 0 or exchange.x.at.armed > 0:
            raise RuntimeError("an exchange can be submitted once")
        exchange.busy = True
        Py_INCREF(exchange)
        self.outstanding += 1
        ax_reactor_submit(self.r, &exchange.x)

    def cancel(self, Exchange exchange not None):
        if exchange.busy and not self.closed:
            ax_reactor_cancel(self.r, &exchange.x)

    def pop(self):
        cdef unsigned long long ticks
        cdef ax_exchange *x
        cdef ax_exchange *following
        cdef Exchange exchange
        # The counter first, then the stack: what is pushed in between leaves the counter set.
        read(ax_reactor_eventfd(self.r), &ticks, sizeof(ticks))
        x = ax_reactor_pop_all(self.r)
        done = []
        while x != NULL:
            following = x.next
            exchange = <Exchange>x.owner
            exchange.busy = False
            done.append(exchange)
            Py_DECREF(exchange)
            self.outstanding -= 1
            x = following
        return done

    def close(self):
        if self.closed or self.r == NULL or self.owner_pid != getpid():
            return
        self.closed = True
        with nogil:
            ax_reactor_close(self.r)

    @property
    def in_reactor(self):
        return self.outstanding

    @property
    def cpu_ns(self):
        cdef int64_t ns = ax_reactor_cpu_ns(self.r)
        return None if ns < 0 else ns

    @property
    def exact_sleep(self):
        return "epoll_pwait2" if ax_reactor_uses_pwait2(self.r) else "timerfd"

    def counters(self):
        cdef const ax_reactor_counters *n = ax_reactor_counts(self.r)
        return {
            "submitted": n.submitted,
            "completed": n.completed,
            "succeeded": n.succeeded,
            "in_flight": n.in_flight,
            "sockets": n.sockets,
            "connects": n.connects,
            "reused": n.reused,
            "reconnects": n.reconnects,
            "drained": n.drained,
            "reads": n.reads,
            "events": n.events,
            "content_events": n.content_events,
            "coalesced_events": n.coalesced_events,
            "slack_over_1ms": n.slack_over_1ms,
            "bytes_in": n.bytes_in,
            "bytes_out": n.bytes_out,
            "stamps_missing": n.stamps_missing,
            "stamps_discarded": n.stamps_discarded,
            "clock_steps": n.clock_steps,
            "turns": n.turns,
            "longest_turn_ns": n.longest_turn_ns,
            "longest_turn_at_ns": n.longest_turn_at_ns,
        }

    def histograms(self):
        cdef int i
        cdef Histogram h
        out = {}
        for i in range(<int>AX_HIST_COUNT):
            h = Histogram.__new__(Histogram)
            h.copy_from(ax_reactor_hist(self.r, <ax_hist>i))
            out[ax_hist_name(<ax_hist>i).decode()] = h
        return out

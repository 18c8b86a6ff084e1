"""One request and its response; see csrc/exchange.h."""

from libc.string cimport memcpy

import errno as errno_names
import os

import numpy as np

from agentx_engine.core.hdr cimport Histogram, ax_hdr_record


cdef object stamp(int64_t ns):
    return None if ns == AX_NONE else ns


cdef object count(int64_t n):
    return None if n < 0 else n


cdef object copy_array(const void *source, size_t item, uint32_t n, dtype):
    out = np.empty(n, dtype=dtype)
    cdef char[::1] view
    if n:
        view = out.view(np.int8)
        memcpy(&view[0], source, item * n)
    return out


cdef class Exchange:
    def __cinit__(self, bytes head not None, Rope body=None, *, int64_t due_ns=0, int64_t max_tokens=0,
                  uint64_t session=0, uint32_t endpoint=0, bint reactive=False, bint keep_user_ns=False,
                  bint keep_sent_ns=False, tag=None):
        ax_exchange_init(&self.x)
        self.head = head
        self.body = body
        self.tag = tag
        self.x.head = ax_span(<const char *>head, len(head))
        self.x.body = &body.rope if body is not None else NULL
        self.x.at.due = due_ns
        self.x.max_tokens = max_tokens
        self.x.session = session
        self.x.endpoint = endpoint
        self.x.flags = ((AX_REACTIVE if reactive else 0) | (AX_KEEP_USER_NS if keep_user_ns else 0) |
                        (AX_KEEP_SENT_NS if keep_sent_ns else 0))
        self.x.owner = <void *>self

    def __dealloc__(self):
        ax_exchange_free(&self.x)

    cdef int check_free(self) except -1:
        if self.busy:
            raise RuntimeError("the exchange belongs to its reactor until it has completed")
        return 0

    # -- Driving it by hand: other transports, tests, benches --------------------------------------

    def feed(self, const unsigned char[::1] data not None, int64_t stamp_ns, *, since_ns=None, user_ns=None,
             bint kernel=True, bint cut=False):
        self.check_free()
        cdef ax_read read
        read.stamp_ns = stamp_ns
        read.since_ns = stamp_ns if since_ns is None else since_ns
        read.user_ns = stamp_ns if user_ns is None else user_ns
        read.kernel = kernel
        read.cut = cut
        if data.shape[0] == 0:
            return "more", 0
        cdef const char *start = <const char *>&data[0]
        cdef const char *cur = start
        cdef ax_feed fed
        with nogil:
            fed = ax_exchange_feed(&self.x, &cur, start + data.shape[0], &read)
        return ("end" if fed == AX_FEED_END else "fail" if fed == AX_FEED_FAIL else "more"), cur - start

    def closed(self, int error=0):
        self.check_free()
        ax_exchange_closed(&self.x, error)

    def finish(self, int64_t now_ns):
        self.check_free()
        ax_exchange_finish(&self.x, AX_PENDING, now_ns)

    def feed_repeatedly(self, const unsigned char[::1] data not None, int64_t times, Histogram histogram not None):
        self.check_free()
        cdef ax_read read
        cdef const char *start = <const char *>&data[0]
        cdef const char *end = start + data.shape[0]
        cdef const char *cur
        cdef int64_t i, previous = ax_now_ns(), began = previous, now
        read.kernel = True
        read.cut = False
        with nogil:
            for i in range(times):
                now = ax_now_ns()
                read.stamp_ns = read.user_ns = now
                read.since_ns = previous
                cur = start
                if ax_exchange_feed(&self.x, &cur, end, &read) != AX_FEED_MORE:
                    break
                ax_hdr_record(&histogram.hdr, now - previous)
                previous = now
                # The times kept are bounded here, so that the bench measures parsing and not paging.
                if self.x.kept_tokens >= 4096:
                    self.x.kept_tokens = 0
        return ax_now_ns() - began

    # -- What the wire did ------------------------------------------------------------------------

    @property
    def outcome(self):
        self.check_free()
        return ax_outcome_name(self.x.outcome).decode()

    @property
    def stamps(self):
        self.check_free()
        cdef ax_stamps *a = &self.x.at
        return (stamp(a.due), stamp(a.armed), stamp(a.conn_ready), stamp(a.first_sent), stamp(a.last_sent),
                stamp(a.ack), stamp(a.first_event), stamp(a.first_content), stamp(a.first_text),
                stamp(a.last_content), stamp(a.last_event), stamp(a.end))

    @property
    def usage(self):
        self.check_free()
        if self.x.usage_events == 0:
            return None
        cdef ax_usage *u = &self.x.usage
        return count(u.prompt), count(u.completion), count(u.cached), count(u.reasoning)

    @property
    def status(self):
        self.check_free()
        return self.x.status or None

    @property
    def content_type(self):
        self.check_free()
        return (<bytes>self.x.content_type).decode("latin-1")

    @property
    def finish_reason(self):
        self.check_free()
        cdef const char *name = ax_finish_name(self.x.finish)
        return None if name == NULL else name.decode()

    @property
    def error(self):
        self.check_free()
        if self.x.outcome == AX_SUCCESS:
            return None
        parts = []
        if self.x.error_static != NULL:
            parts.append(self.x.error_static.decode())
        if self.x.words_len:
            parts.append(self.x.words[:self.x.words_len].decode("utf-8", "replace"))
        if self.x.error_errno:
            parts.append(os.strerror(self.x.error_errno))
        return ": ".join(parts) or None

    @property
    def error_type(self):
        self.check_free()
        if self.x.outcome == AX_SUCCESS:
            return None
        if self.x.error_type[0]:
            return (<bytes>self.x.error_type).decode("utf-8", "replace")
        if self.x.error_code >= 0:
            return str(self.x.error_code)
        if self.x.error_errno:
            return errno_names.errorcode.get(self.x.error_errno, str(self.x.error_errno))
        return None

    @property
    def closing(self):
        self.check_free()
        return ("framed", "fin", "reset", "ours")[self.x.closing]

    @property
    def connect_ns(self):
        self.check_free()
        return stamp(self.x.connect_ns)

    @property
    def flags(self):
        self.check_free()
        return bool(self.x.reused), bool(self.x.drained), bool(self.x.kernel_stamps), int(self.x.reconnects)

    @property
    def counts(self):
        self.check_free()
        return (self.x.reads, self.x.events, self.x.content_events, self.x.coalesced_events,
                self.x.bytes_in, self.x.bytes_out)

    @property
    def token_ns(self):
        self.check_free()
        return copy_array(self.x.token_ns, sizeof(int64_t), self.x.kept_tokens, np.int64)

    @property
    def token_slack_ns(self):
        self.check_free()
        return copy_array(self.x.token_slack_ns, sizeof(uint32_t), self.x.kept_tokens, np.uint32)

    @property
    def token_user_ns(self):
        self.check_free()
        if not self.x.flags & AX_KEEP_USER_NS:
            return None
        return copy_array(self.x.token_user_ns, sizeof(int64_t), self.x.kept_tokens, np.int64)

    @property
    def token_sent_ns(self):
        self.check_free()
        if not self.x.flags & AX_KEEP_SENT_NS:
            return None
        return copy_array(self.x.token_sent_ns, sizeof(int64_t), self.x.kept_tokens, np.int64)

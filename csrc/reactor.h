/* The thread that sends, reads and stamps: epoll, timers, connection pool, two queues.
 *
 * Life of an exchange
 *
 *   owner thread            reactor thread
 *   ------------            --------------
 *   submit ---stack-------> WAITING   on the timer heap until due - connect_lead
 *                           (a socket is reserved: a fresh enough idle one, or a new connect)
 *                           SENDING   at due: the first 4 KB of every due exchange, then the bodies in
 *                                     due order, at most 256 KB in a turn
 *                           HEAD, STREAM: one read per readiness, fed to the exchange
 *   pop <-----stack-------- DONE      one eventfd write per epoll turn
 *
 * Ownership: from submit to pop the reactor owns the exchange and everything it points to; the owner may
 * only read `phase` and set `command` (ax_reactor_cancel). The owner frees it after the pop.
 *
 * The threads share two intrusive stacks (compare-and-swap push, one atomic exchange takes all), the
 * `sleeping` flag, and histograms with a single writer (relaxed loads and stores).
 *
 * A turn: take submissions and commands, fire timers, send, epoll, read. The reactor sleeps exactly
 * until the next timer (epoll_pwait2; a timerfd where the kernel or a sandbox refuses that call), while
 * answers are awaited at most 0.4 ms, so that it knows which sockets had nothing when.
 */
#ifndef AX_REACTOR_H
#define AX_REACTOR_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "exchange.h"
#include "hdr.h"

typedef enum ax_pooling {
    AX_POOL_SHARED = 0,  /* keep-alive sockets serve any exchange of their endpoint */
    AX_POOL_SESSION = 1, /* one socket for each session */
    AX_POOL_NEVER = 2,   /* a new connection for each request */
} ax_pooling;

typedef struct ax_endpoint {
    struct sockaddr_storage addr;
    socklen_t addr_len;
} ax_endpoint;

/* All times in ns; a timeout of 0 is off. */
typedef struct ax_reactor_options {
    ax_pooling pooling;
    int64_t connect_lead;   /* how long before `due` a socket is reserved or connected */
    int64_t max_idle;       /* an older idle socket is not used again */
    int64_t connect_timeout, first_byte_timeout, idle_timeout, total_timeout;
    int64_t drain_after_done;   /* how long the framing may follow `[DONE]` */
    int64_t drain_after_finish; /* how long anything may follow a finish reason */
    int64_t resend_window;      /* a reused socket's reset counts as stale this long after last_sent */
    bool resend;
    bool quickack;
    int user_timeout_ms; /* TCP_USER_TIMEOUT, 0 = the kernel's default */
    int cpu;             /* pin the thread, -1 = no */
} ax_reactor_options;

void ax_reactor_defaults(ax_reactor_options *o);

typedef enum ax_hist {
    AX_HIST_DISPATCH_ARMED = 0, /* first_sent - due, sends known in advance */
    AX_HIST_DISPATCH_REACTIVE,  /* the same, sends that were not */
    AX_HIST_SEND,               /* last_sent - first_sent */
    AX_HIST_CONNECT,
    AX_HIST_READ_LAG,           /* user time of a read - kernel stamp of its newest data */
    AX_HIST_SLACK,              /* of reads with several events */
    AX_HIST_TTFT,               /* first_content - first_sent, successes */
    AX_HIST_GAP,                /* between content events */
    AX_HIST_TURN,               /* duration of a reactor turn without its sleep */
    AX_HIST_COUNT,
} ax_hist;

const char *ax_hist_name(ax_hist h);

/* Counters; one writer, relaxed. */
typedef struct ax_reactor_counters {
    _Atomic int64_t submitted, completed, succeeded;
    _Atomic int64_t in_flight;     /* first byte sent, not done */
    _Atomic int64_t sockets;       /* open now */
    _Atomic int64_t connects, reused, reconnects, drained;
    _Atomic int64_t reads, events, content_events, coalesced_events, slack_over_1ms;
    _Atomic int64_t bytes_in, bytes_out;
    _Atomic int64_t stamps_missing;   /* reads without a kernel stamp */
    _Atomic int64_t stamps_discarded; /* kernel stamps that cannot be true */
    _Atomic int64_t clock_steps;      /* steps of the wall clock noticed */
    _Atomic int64_t turns;
    _Atomic int64_t longest_turn_ns, longest_turn_at_ns; /* of turns without sleep, and of oversleeping */
} ax_reactor_counters;

typedef struct ax_reactor ax_reactor;

/* Copies the endpoints and options. Returns NULL with errno set. The thread starts at once. */
ax_reactor *ax_reactor_new(const ax_endpoint *endpoints, uint32_t count, const ax_reactor_options *o);

/* Any thread. */
void ax_reactor_submit(ax_reactor *r, ax_exchange *x);
void ax_reactor_cancel(ax_reactor *r, ax_exchange *x);

/* The owner's thread: readable when exchanges have completed. Read the eventfd, then pop all. */
int ax_reactor_eventfd(const ax_reactor *r);
ax_exchange *ax_reactor_pop_all(ax_reactor *r); /* in order of completion, linked by `next` */

const ax_hdr *ax_reactor_hist(const ax_reactor *r, ax_hist h);
const ax_reactor_counters *ax_reactor_counts(const ax_reactor *r);
int64_t ax_reactor_cpu_ns(const ax_reactor *r); /* CPU time of the thread, -1 if it has ended */
bool ax_reactor_uses_pwait2(const ax_reactor *r);

/* Cancels what is live, stops and joins the thread. What completed can still be popped. Idempotent. */
void ax_reactor_close(ax_reactor *r);

/* After close, when nothing is left to pop. In a debug build, asserts that nothing leaked. */
void ax_reactor_free(ax_reactor *r);

#endif

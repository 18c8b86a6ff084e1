/* The reactor's insides, shared by its two files and nobody else: reactor.c is the thread, its queues and
 * its clock; flight.c is the way of one exchange over a socket. */
#ifndef AX_REACTOR_PARTS_H
#define AX_REACTOR_PARTS_H

#include <assert.h>
#include <pthread.h>
#include <time.h>

#include "conn.h"
#include "reactor.h"
#include "timers.h"

#ifdef AX_DEBUG
#define AX_ASSERT(cond) assert(cond)
#else
#define AX_ASSERT(cond) ((void)0)
#endif

#define AX_READ_ROOM (64 * 1024)

/* What an exchange's timer stands for. */
typedef enum { WAIT_PREP, WAIT_DUE, WAIT_CONNECT, WAIT_DEADLINE } timer_kind;

struct ax_reactor {
    ax_reactor_options opt;
    ax_endpoint *endpoints;
    uint32_t endpoint_count;

    /* Shared with other threads. */
    _Atomic(ax_exchange *) inbox;
    _Atomic(ax_exchange *) outbox;
    _Atomic int sleeping, attention, closing;
    int wake_fd, done_fd;

    /* The thread's own. */
    pthread_t thread;
    clockid_t cpu_clock;
    bool started, joined;
    int epoll_fd, step_fd, timer_fd;
    bool no_pwait2;
    ax_clock_pair pair;
    ax_timers timers;
    ax_pool pool;
    ax_exchange *live;
    uint32_t live_count;
    ax_conn *conns, *dead;
    ax_exchange *send_head, *send_tail;
    bool completed;
    int64_t next_sweep;
    uint64_t turn;
    int64_t turn_started;
    int64_t last_wait_ns; /* how long the last wait for events took */
    int64_t listing_ns;    /* the last complete listing was made at or after this */
    uint64_t listing_turn; /* the turn of that listing */
    char *room;

    ax_hdr hist[AX_HIST_COUNT];
    ax_reactor_counters n;
};

static inline void add(_Atomic int64_t *counter, int64_t n)
{
    int64_t now = atomic_load_explicit(counter, memory_order_relaxed);
    atomic_store_explicit(counter, now + n, memory_order_relaxed);
}

static inline void push(_Atomic(ax_exchange *) *stack, ax_exchange *x)
{
    ax_exchange *top = atomic_load_explicit(stack, memory_order_relaxed);
    do
        x->next = top;
    while (!atomic_compare_exchange_weak_explicit(stack, &top, x, memory_order_release, memory_order_relaxed));
}

static inline void set_phase(ax_exchange *x, ax_phase p)
{
    atomic_store_explicit(&x->phase, p, memory_order_relaxed);
}

static inline void set_timer(ax_reactor *r, ax_exchange *x, timer_kind kind, int64_t at)
{
    x->timer_kind = kind;
    ax_timers_set(&r->timers, &x->timer, at);
}

/* -- flight.c; all on the reactor's thread ------------------------------------------------------- */

/* Finds or opens a socket for x: connect_lead ahead of `due`, and again when a reserved socket dies. */
void ax_flight_prepare(ax_reactor *r, ax_exchange *x, int64_t now, bool fresh_only);

/* Acts on every timer that is due by `now`. */
void ax_flight_timers(ax_reactor *r, int64_t now);

/* First a little of every request that has become due, so that a burst starts as one; then the bodies in
 * due order, bounded, so that reading is not kept waiting. */
void ax_flight_send(ax_reactor *r);

/* What epoll says of a socket. */
void ax_flight_event(ax_reactor *r, ax_conn *c, uint32_t events);

/* Ends x and hands it back; the owner may free it from here on. `forced` as in ax_exchange_finish. */
void ax_flight_complete(ax_reactor *r, ax_exchange *x, ax_outcome forced, int64_t now);
void ax_flight_fail(ax_reactor *r, ax_exchange *x, ax_outcome outcome, int err, int64_t now);
void ax_flight_cancel(ax_reactor *r, ax_exchange *x, int64_t now);

/* Closes a socket; its memory stays until ax_flight_bury, since events of the turn may point to it. */
void ax_flight_close(ax_reactor *r, ax_conn *c);
void ax_flight_bury(ax_reactor *r);

#endif

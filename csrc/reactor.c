#define _GNU_SOURCE
#include "reactor.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "conn.h"
#include "timers.h"

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif

#ifdef AX_DEBUG
#define AX_ASSERT(cond) assert(cond)
#else
#define AX_ASSERT(cond) ((void)0)
#endif

#define MAX_EVENTS 512
#define READ_ROOM (64 * 1024)
#define FIRST_SEND 4096
#define TURN_SEND (256 * 1024)
#define MAX_IOV 128
#define EVENTS_PER_LOOK 16
#define SWEEP_EVERY (AX_NS_PER_S / 4)
/* While answers are awaited, at most so long between two listings: see note_listing. */
#define LISTING_EVERY (AX_NS_PER_S / 2500)
#define STAMP_MIN_LAG (-1000)
#define STAMP_MAX_LAG (10 * AX_NS_PER_S)

typedef enum { WAIT_PREP, WAIT_DUE, WAIT_CONNECT, WAIT_DEADLINE } timer_kind;

struct ax_reactor {
    ax_reactor_options opt;
    ax_endpoint *endpoints;
    uint32_t endpoint_count;

    /* Shared with other threads. */
    _Atomic(ax_exchange *) inbox;
    _Atomic(ax_exchange *) outbox;
    _Atomic int sleeping, attention, closing, ended;
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
    int64_t listing_ns;    /* the last complete listing was made at or after this */
    uint64_t listing_turn; /* the turn of that listing */
    char *room;

    ax_hdr hist[AX_HIST_COUNT];
    ax_reactor_counters n;
};

/* -- Small things ------------------------------------------------------------------------------- */

static inline void add(_Atomic int64_t *counter, int64_t n)
{
    int64_t now = atomic_load_explicit(counter, memory_order_relaxed);
    atomic_store_explicit(counter, now + n, memory_order_relaxed);
}

static inline ax_exchange *exchange_of(ax_timer *t)
{
    return (ax_exchange *)((char *)t - offsetof(ax_exchange, timer));
}

static void wake(int fd)
{
    uint64_t one = 1;
    /* The counter cannot overflow, and a full one means that the reader is awake anyway. */
    ssize_t n = write(fd, &one, sizeof one);
    (void)n;
}

static void drain_fd(int fd)
{
    uint64_t count;
    ssize_t n = read(fd, &count, sizeof count);
    (void)n;
}

static void push(_Atomic(ax_exchange *) *stack, ax_exchange *x)
{
    ax_exchange *top = atomic_load_explicit(stack, memory_order_relaxed);
    do
        x->next = top;
    while (!atomic_compare_exchange_weak_explicit(stack, &top, x, memory_order_release, memory_order_relaxed));
}

/* Takes the whole stack, oldest first. */
static ax_exchange *take_all(_Atomic(ax_exchange *) *stack)
{
    ax_exchange *x = atomic_exchange_explicit(stack, NULL, memory_order_acquire), *oldest_first = NULL;
    while (x) {
        ax_exchange *next = x->next;
        x->next = oldest_first;
        oldest_first = x;
        x = next;
    }
    return oldest_first;
}

static void set_phase(ax_exchange *x, ax_phase p)
{
    atomic_store_explicit(&x->phase, p, memory_order_relaxed);
}

static void set_timer(ax_reactor *r, ax_exchange *x, timer_kind kind, int64_t at)
{
    x->timer_kind = kind;
    ax_timers_set(&r->timers, &x->timer, at);
}

/* -- Send list: exchanges with bytes to send and a socket that may take them, in due order ------- */

static void send_list_add(ax_reactor *r, ax_exchange *x)
{
    ax_exchange *before = r->send_tail;
    if (x->in_send_list)
        return;
    while (before && before->at.due > x->at.due)
        before = before->send_prev;
    x->send_prev = before;
    x->send_next = before ? before->send_next : r->send_head;
    if (x->send_next)
        x->send_next->send_prev = x;
    else
        r->send_tail = x;
    if (before)
        before->send_next = x;
    else
        r->send_head = x;
    x->in_send_list = true;
}

static void send_list_remove(ax_reactor *r, ax_exchange *x)
{
    if (!x->in_send_list)
        return;
    if (x->send_prev)
        x->send_prev->send_next = x->send_next;
    else
        r->send_head = x->send_next;
    if (x->send_next)
        x->send_next->send_prev = x->send_prev;
    else
        r->send_tail = x->send_prev;
    x->send_prev = x->send_next = NULL;
    x->in_send_list = false;
}

/* -- Connections ----------------------------------------------------------------------------------- */

static void want_out(ax_reactor *r, ax_conn *c, bool on)
{
    if (c->want_out == on)
        return;
    c->want_out = on;
    struct epoll_event ev = {.events = EPOLLIN | (on ? EPOLLOUT : 0u), .data.ptr = c};
    epoll_ctl(r->epoll_fd, EPOLL_CTL_MOD, c->fd, &ev);
}

static void conn_close(ax_reactor *r, ax_conn *c)
{
    if (c->state == AX_CONN_DEAD)
        return;
    if (c->state == AX_CONN_IDLE)
        ax_pool_remove(&r->pool, c);
    if (c->x)
        c->x->conn = NULL;
    c->x = NULL;
    close(c->fd);
    c->state = AX_CONN_DEAD;
    if (c->all_prev)
        c->all_prev->all_next = c->all_next;
    else
        r->conns = c->all_next;
    if (c->all_next)
        c->all_next->all_prev = c->all_prev;
    c->all_prev = NULL;
    c->all_next = r->dead; /* events of this turn may still point here */
    r->dead = c;
    add(&r->n.sockets, -1);
}

static void bury(ax_reactor *r)
{
    while (r->dead) {
        ax_conn *c = r->dead;
        r->dead = c->all_next;
        free(c);
    }
}

/* Starts a connect for x; 0, or -errno. */
static int conn_start(ax_reactor *r, ax_exchange *x, int64_t now)
{
    ax_conn *c = calloc(1, sizeof *c);
    if (!c)
        return -ENOMEM;
    c->fd = ax_conn_open(&r->endpoints[x->endpoint], r->opt.user_timeout_ms);
    if (c->fd < 0) {
        int err = c->fd;
        free(c);
        return err;
    }
    struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
    if (epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, c->fd, &ev) < 0) {
        int err = -errno;
        close(c->fd);
        free(c);
        return err;
    }
    c->state = AX_CONN_CONNECTING;
    c->want_out = true;
    c->endpoint = x->endpoint;
    c->session = x->session;
    c->connect_started = now;
    c->last_stamp = c->drained_stamp = c->unlisted_at = now;
    c->x = x;
    c->all_next = r->conns;
    if (r->conns)
        r->conns->all_prev = c;
    r->conns = c;
    x->conn = c;
    add(&r->n.sockets, 1);
    add(&r->n.connects, 1);
    return 0;
}

/* -- The end of an exchange -------------------------------------------------------------------- */

static void record_success(ax_reactor *r, const ax_exchange *x)
{
    add(&r->n.succeeded, 1);
    if (x->at.first_content != AX_NONE)
        ax_hdr_record(&r->hist[AX_HIST_TTFT], x->at.first_content - x->at.first_sent);
    for (uint32_t i = 1; i < x->kept_tokens; i++)
        ax_hdr_record(&r->hist[AX_HIST_GAP], x->token_ns[i] - x->token_ns[i - 1]);
}

static void complete(ax_reactor *r, ax_exchange *x, ax_outcome forced, int64_t now)
{
    ax_timers_cancel(&r->timers, &x->timer);
    send_list_remove(r, x);
    if (x->conn) /* whoever keeps a socket for further use has taken it from the exchange before */
        conn_close(r, x->conn);
    ax_exchange_finish(x, forced, now);
    if (x->at.first_sent != AX_NONE)
        add(&r->n.in_flight, -1);
    if (x->outcome == AX_SUCCESS)
        record_success(r, x);
    add(&r->n.drained, x->drained);
    add(&r->n.completed, 1);

    if (x->live_prev)
        x->live_prev->live_next = x->live_next;
    else
        r->live = x->live_next;
    if (x->live_next)
        x->live_next->live_prev = x->live_prev;
    r->live_count--;
    push(&r->outbox, x); /* from here on the owner may free it */
    r->completed = true;
}

static void fail_errno(ax_reactor *r, ax_exchange *x, ax_outcome outcome, int err, int64_t now)
{
    x->error_errno = err;
    complete(r, x, outcome, now);
}

/* -- Waiting for the due time -------------------------------------------------------------------- */

static void begin_send(ax_reactor *r, ax_exchange *x)
{
    set_phase(x, AX_PHASE_SENDING);
    ax_timers_cancel(&r->timers, &x->timer);
    x->fresh_send = true;
    send_list_add(r, x);
}

/* Finds or opens a socket. Called connect_lead ahead of `due`, and again when a reserved socket dies. */
static void prepare(ax_reactor *r, ax_exchange *x, int64_t now, bool fresh_only)
{
    ax_conn *c = NULL;
    int64_t use_at = x->at.due > now ? x->at.due : now;

    if (!fresh_only && r->opt.pooling != AX_POOL_NEVER)
        c = ax_pool_take(&r->pool, x->endpoint, x->session, use_at, r->opt.max_idle);
    if (c) {
        c->state = AX_CONN_ASSIGNED;
        c->x = x;
        x->conn = c;
        x->reused = true;
        x->at.conn_ready = now;
        if (x->at.due <= now)
            begin_send(r, x);
        else
            set_timer(r, x, WAIT_DUE, x->at.due);
        return;
    }
    set_phase(x, AX_PHASE_CONNECTING);
    int err = conn_start(r, x, now);
    if (err < 0) {
        fail_errno(r, x, AX_CONNECT_ERROR, -err, now);
        return;
    }
    if (r->opt.connect_timeout)
        set_timer(r, x, WAIT_CONNECT, now + r->opt.connect_timeout);
    else
        ax_timers_cancel(&r->timers, &x->timer);
}

static void connected(ax_reactor *r, ax_conn *c, int64_t now)
{
    ax_exchange *x = c->x;
    int err = ax_conn_error(c->fd);
    if (err) {
        fail_errno(r, x, AX_CONNECT_ERROR, err, now);
        return;
    }
    want_out(r, c, false);
    c->state = AX_CONN_ASSIGNED;
    x->at.conn_ready = now;
    x->connect_ns = now - c->connect_started;
    ax_hdr_record(&r->hist[AX_HIST_CONNECT], x->connect_ns);
    if (x->at.due <= now) {
        begin_send(r, x);
    } else {
        set_phase(x, AX_PHASE_WAITING);
        set_timer(r, x, WAIT_DUE, x->at.due);
    }
}

/* -- Deadlines after the first byte --------------------------------------------------------------- */

static inline void earlier(int64_t *at, int64_t candidate)
{
    if (candidate < *at)
        *at = candidate;
}

/* The next moment at which the exchange may have to be ended, and as what. */
static int64_t deadline(const ax_reactor *r, const ax_exchange *x, ax_outcome *why)
{
    const ax_reactor_options *o = &r->opt;
    int64_t at = INT64_MAX;
    *why = AX_PENDING;
    if (ax_exchange_stream_over(x))
        earlier(&at, x->last_read.user_ns + o->drain_after_done);
    else if (x->seen & AX_CHUNK_FINISH)
        earlier(&at, x->last_read.user_ns + o->drain_after_finish);
    if (o->total_timeout && x->at.first_sent + o->total_timeout < at) {
        at = x->at.first_sent + o->total_timeout;
        *why = AX_TIMEOUT_TOTAL;
    }
    if (x->reads == 0) {
        if (o->first_byte_timeout && x->at.last_sent != AX_NONE && x->at.last_sent + o->first_byte_timeout < at) {
            at = x->at.last_sent + o->first_byte_timeout;
            *why = AX_TIMEOUT_FIRST_BYTE;
        }
    } else if (o->idle_timeout && x->last_read.user_ns + o->idle_timeout < at) {
        at = x->last_read.user_ns + o->idle_timeout;
        *why = AX_TIMEOUT_IDLE;
    }
    return at;
}

static void arm_deadline(ax_reactor *r, ax_exchange *x)
{
    ax_outcome why;
    int64_t at = deadline(r, x, &why);
    if (at == INT64_MAX)
        ax_timers_cancel(&r->timers, &x->timer);
    else if (!ax_timer_is_set(&x->timer) || x->timer_kind != WAIT_DEADLINE || at < x->timer.at)
        set_timer(r, x, WAIT_DEADLINE, at); /* a later deadline is set when the earlier one fires */
}

static void deadline_passed(ax_reactor *r, ax_exchange *x, int64_t now)
{
    ax_outcome why;
    int64_t at = deadline(r, x, &why);
    if (at > now) {
        if (at != INT64_MAX)
            set_timer(r, x, WAIT_DEADLINE, at);
        return;
    }
    if (why == AX_PENDING)
        x->drained = true;
    x->closing = AX_CLOSED_BY_US;
    complete(r, x, why, now);
}

static void fire_timers(ax_reactor *r, int64_t now)
{
    for (ax_timer *t; (t = ax_timers_pop(&r->timers, now));) {
        ax_exchange *x = exchange_of(t);
        switch ((timer_kind)x->timer_kind) {
        case WAIT_PREP:
            prepare(r, x, now, false);
            break;
        case WAIT_DUE:
            begin_send(r, x);
            break;
        case WAIT_CONNECT:
            fail_errno(r, x, AX_TIMEOUT_CONNECT, ETIMEDOUT, now);
            break;
        case WAIT_DEADLINE:
            deadline_passed(r, x, now);
            break;
        }
    }
}

/* -- When the peer or the socket goes away ---------------------------------------------------------- */

/* A reused keep-alive socket may have been closed by the server while our request was on its way; such
 * a request is sent once more on a new socket. */
static bool stale_socket(const ax_reactor *r, const ax_exchange *x, int64_t now)
{
    return r->opt.resend && x->reused && x->reconnects == 0 && x->reads == 0 && ax_http1_idle(&x->http) &&
           (x->at.last_sent == AX_NONE || now - x->at.last_sent <= r->opt.resend_window);
}

static void lost(ax_reactor *r, ax_conn *c, int err, int64_t now)
{
    ax_exchange *x = c->x;
    if (!x) {
        conn_close(r, c);
        return;
    }
    if (x->at.first_sent == AX_NONE) { /* reserved, nothing sent: just another socket */
        conn_close(r, c);
        send_list_remove(r, x);
        x->reused = false;
        x->at.conn_ready = AX_NONE;
        prepare(r, x, now, false);
        return;
    }
    if (stale_socket(r, x, now)) {
        conn_close(r, c);
        send_list_remove(r, x);
        ax_exchange_rewind(x);
        x->reconnects = 1;
        add(&r->n.reconnects, 1);
        add(&r->n.in_flight, -1);
        prepare(r, x, now, true);
        return;
    }
    ax_exchange_closed(x, err);
    complete(r, x, AX_PENDING, now);
}

/* -- Sending ---------------------------------------------------------------------------------------- */

static void on_readable(ax_reactor *r, ax_conn *c);

/* The socket refuses our bytes. What the server said before it hung up is still worth reading. */
static void send_failed(ax_reactor *r, ax_exchange *x, int err)
{
    ax_conn *c = x->conn;
    int64_t now = ax_now_ns();
    send_list_remove(r, x);
    if (stale_socket(r, x, now)) {
        lost(r, c, err, now);
        return;
    }
    for (int i = 0; i < 64 && c->state == AX_CONN_ASSIGNED && c->x == x; i++) {
        uint64_t reads = x->reads;
        on_readable(r, c);
        if (c->state != AX_CONN_ASSIGNED || c->x != x)
            return; /* ended by what was read */
        if (x->reads == reads)
            break;
    }
    fail_errno(r, x, x->status ? AX_PENDING : AX_SEND_ERROR, err, now);
}

static void sent_all(ax_reactor *r, ax_exchange *x)
{
    send_list_remove(r, x);
    want_out(r, x->conn, false);
    ax_hdr_record(&r->hist[AX_HIST_SEND], x->at.last_sent - x->at.first_sent);
    if (x->reads == 0)
        set_phase(x, AX_PHASE_HEAD);
    arm_deadline(r, x);
}

/* Sends up to max_bytes of x; returns the bytes taken. x may be gone afterwards. */
static size_t send_some(ax_reactor *r, ax_exchange *x, size_t max_bytes)
{
    struct iovec iov[MAX_IOV];
    struct msghdr msg = {.msg_iov = iov};
    msg.msg_iovlen = (size_t)ax_exchange_window(x, iov, MAX_IOV, max_bytes);
    int64_t before = ax_now_ns();
    ssize_t n = sendmsg(x->conn->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            send_list_remove(r, x);
            want_out(r, x->conn, true);
        } else if (errno != EINTR) {
            send_failed(r, x, errno);
        }
        return 0;
    }
    if (x->at.first_sent == AX_NONE) {
        add(&r->n.in_flight, 1);
        ax_hist h = (x->flags & AX_REACTIVE) ? AX_HIST_DISPATCH_REACTIVE : AX_HIST_DISPATCH_ARMED;
        if (x->reconnects == 0)
            ax_hdr_record(&r->hist[h], before - x->at.due);
        if (x->reused)
            add(&r->n.reused, 1);
    }
    ax_exchange_sent(x, (size_t)n, before, ax_now_ns());
    add(&r->n.bytes_out, n);
    if (ax_exchange_all_sent(x))
        sent_all(r, x);
    else if (x->at.last_sent == AX_NONE && r->opt.total_timeout && !ax_timer_is_set(&x->timer))
        arm_deadline(r, x);
    return (size_t)n;
}

/* First a little of every request that has become due, so that a burst starts as one; then the bodies
 * in due order, bounded, so that reading is not kept waiting. */
static void send_pass(ax_reactor *r)
{
    for (ax_exchange *x = r->send_head, *next; x; x = next) {
        next = x->send_next;
        if (x->fresh_send) {
            x->fresh_send = false;
            send_some(r, x, FIRST_SEND);
        }
    }
    size_t budget = TURN_SEND;
    while (r->send_head && budget > 0) {
        ax_exchange *x = r->send_head;
        size_t n = send_some(r, x, budget);
        if (n == 0 && r->send_head == x)
            break; /* interrupted; next turn */
        budget -= n;
    }
}

/* -- Reading ---------------------------------------------------------------------------------------- */

static void release(ax_reactor *r, ax_conn *c, const ax_exchange *x, int64_t now)
{
    bool again = x->http.keep_alive && ax_exchange_all_sent(x) && r->opt.pooling != AX_POOL_NEVER;
    if (!again) {
        conn_close(r, c);
        return;
    }
    c->requests++;
    ax_pool_put(&r->pool, c, now);
}

/* K and P of a read; see exchange.h. */
static ax_read stamp_read(ax_reactor *r, ax_conn *c, int64_t real_ns, int64_t user_ns, bool cut)
{
    ax_read read = {.stamp_ns = user_ns, .user_ns = user_ns, .kernel = false, .cut = cut};
    if (real_ns == AX_NONE) {
        add(&r->n.stamps_missing, 1);
    } else {
        int64_t k = real_ns - r->pair.offset_ns, lag = user_ns - k;
        if (lag < STAMP_MIN_LAG || lag > STAMP_MAX_LAG) {
            add(&r->n.stamps_discarded, 1);
        } else {
            /* Within the pairing's error K may come out a little late or out of order. */
            read.stamp_ns = k > user_ns ? user_ns : k;
            read.kernel = true;
            ax_hdr_record(&r->hist[AX_HIST_READ_LAG], user_ns - read.stamp_ns);
        }
    }
    if (read.stamp_ns < c->last_stamp)
        read.stamp_ns = c->last_stamp;
    read.since_ns = c->unlisted_at > c->drained_stamp ? c->unlisted_at : c->drained_stamp;
    c->last_stamp = read.stamp_ns;
    /* The kernel joins segments and gives the whole the stamp of the newest, so what a cut read has left
     * behind may be older than K. */
    if (!cut)
        c->drained_stamp = read.stamp_ns;
    return read;
}

static void on_readable(ax_reactor *r, ax_conn *c)
{
    int64_t real_ns;
    int64_t n = ax_conn_recv(c->fd, r->room, READ_ROOM, &real_ns);
    if (n == -EAGAIN || n == -EWOULDBLOCK)
        return;
    int64_t now = ax_now_ns();
    if (n <= 0) {
        lost(r, c, (int)-n, now);
        return;
    }
    ax_exchange *x = c->x;
    if (!x || x->at.first_sent == AX_NONE) {
        /* Bytes that nobody asked for: whatever they are, this socket cannot be trusted. */
        lost(r, c, EPROTO, now);
        return;
    }
    ax_read read = stamp_read(r, c, real_ns, now, n == READ_ROOM);
    uint32_t seen = x->seen;
    bool first = x->reads == 0;
    uint64_t content = x->content_events, coalesced = x->coalesced_events;
    const char *cur = r->room, *end = r->room + n;
    ax_feed fed = ax_exchange_feed(x, &cur, end, &read);

    add(&r->n.reads, 1);
    add(&r->n.bytes_in, n);
    add(&r->n.events, x->read_events);
    add(&r->n.content_events, (int64_t)(x->content_events - content));
    if (x->coalesced_events > coalesced) {
        int64_t uncertain = (int64_t)(x->coalesced_events - coalesced);
        add(&r->n.coalesced_events, uncertain);
        ax_hdr_record(&r->hist[AX_HIST_SLACK], read.stamp_ns - read.since_ns);
        if (read.stamp_ns - read.since_ns > AX_NS_PER_S / 1000)
            add(&r->n.slack_over_1ms, uncertain);
    }
    if (r->opt.quickack) {
        int on = 1;
        setsockopt(c->fd, IPPROTO_TCP, 12 /* TCP_QUICKACK */, &on, sizeof on);
    }
    if (fed == AX_FEED_MORE) {
        if (first || x->seen != seen)
            arm_deadline(r, x);
        return;
    }
    if (fed == AX_FEED_END && cur == end) {
        x->conn = NULL;
        c->x = NULL;
        release(r, c, x, now);
    } else if (fed == AX_FEED_FAIL) {
        x->closing = AX_CLOSED_BY_US;
    }
    complete(r, x, AX_PENDING, now);
}

static void on_event(ax_reactor *r, ax_conn *c, uint32_t events)
{
    if (c->state == AX_CONN_DEAD)
        return;
    if (c->listed_turn < r->listing_turn)
        c->unlisted_at = r->listing_ns;
    c->listed_turn = r->turn;
    if (c->state == AX_CONN_CONNECTING) {
        if (events & (EPOLLOUT | EPOLLERR | EPOLLHUP))
            connected(r, c, ax_now_ns());
        return;
    }
    if (events & (EPOLLIN | EPOLLERR | EPOLLHUP))
        on_readable(r, c);
    if ((events & EPOLLOUT) && c->state == AX_CONN_ASSIGNED && c->want_out && c->x) {
        want_out(r, c, false);
        send_list_add(r, c->x);
    }
}

/* -- Submissions and commands ------------------------------------------------------------------------ */

static void accept_exchange(ax_reactor *r, ax_exchange *x, int64_t now)
{
    x->live_prev = NULL;
    x->live_next = r->live;
    if (r->live)
        r->live->live_prev = x;
    r->live = x;
    r->live_count++;
    add(&r->n.submitted, 1);
    if (ax_timers_reserve(&r->timers, r->live_count) < 0) {
        fail_errno(r, x, AX_CONNECT_ERROR, ENOMEM, now);
        return;
    }
    set_phase(x, AX_PHASE_WAITING);
    int64_t prep = x->at.due - r->opt.connect_lead;
    if (prep <= now)
        prepare(r, x, now, false);
    else
        set_timer(r, x, WAIT_PREP, prep);
}

static void cancel_exchange(ax_reactor *r, ax_exchange *x, int64_t now)
{
    ax_conn *c = x->conn;
    if (c && x->at.first_sent == AX_NONE && c->state == AX_CONN_ASSIGNED && r->opt.pooling != AX_POOL_NEVER) {
        x->conn = NULL; /* an unused socket is still good */
        ax_pool_put(&r->pool, c, now);
    }
    if (x->reads > 0 || x->at.first_sent != AX_NONE)
        x->closing = AX_CLOSED_BY_US;
    complete(r, x, AX_CANCELLED, now);
}

static void take_commands(ax_reactor *r, int64_t now)
{
    for (ax_exchange *x = take_all(&r->inbox), *next; x; x = next) {
        next = x->next;
        accept_exchange(r, x, now);
    }
    if (!atomic_load_explicit(&r->attention, memory_order_relaxed))
        return;
    /* Cancels are rare and come in crowds, so looking at every live exchange is cheap enough and needs
     * no second list whose links would have to outlive the exchange. */
    atomic_store_explicit(&r->attention, 0, memory_order_seq_cst);
    for (ax_exchange *x = r->live, *next; x; x = next) {
        next = x->live_next;
        if (atomic_load_explicit(&x->command, memory_order_acquire))
            cancel_exchange(r, x, now);
    }
}

static void sweep_idle(ax_reactor *r, int64_t now)
{
    if (now < r->next_sweep)
        return;
    r->next_sweep = now + SWEEP_EVERY;
    for (ax_conn *c = r->conns, *next; c; c = next) {
        next = c->all_next;
        if (c->state == AX_CONN_IDLE && now - c->idle_since >= r->opt.max_idle)
            conn_close(r, c);
    }
}

/* -- The thread -------------------------------------------------------------------------------------- */

static void watch_clock_steps(ax_reactor *r)
{
    struct itimerspec far = {.it_value = {.tv_sec = INT32_MAX}};
    timerfd_settime(r->step_fd, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, &far, NULL);
}

static void clock_stepped(ax_reactor *r)
{
    drain_fd(r->step_fd); /* fails with ECANCELED, which is the message */
    watch_clock_steps(r);
    r->pair = ax_clock_pair_now();
    add(&r->n.clock_steps, 1);
}

static int wait_events(ax_reactor *r, struct epoll_event *events, int64_t wait_ns)
{
    if (!r->no_pwait2) {
        struct timespec ts = {.tv_sec = wait_ns / AX_NS_PER_S, .tv_nsec = wait_ns % AX_NS_PER_S};
        int n = (int)syscall(SYS_epoll_pwait2, r->epoll_fd, events, MAX_EVENTS, &ts, NULL, 0);
        if (n >= 0 || (errno != ENOSYS && errno != EPERM))
            return n;
        r->no_pwait2 = true;
    }
    if (wait_ns > 0) {
        struct itimerspec in = {.it_value = {.tv_sec = wait_ns / AX_NS_PER_S, .tv_nsec = wait_ns % AX_NS_PER_S}};
        timerfd_settime(r->timer_fd, 0, &in, NULL);
    }
    return epoll_wait(r->epoll_fd, events, MAX_EVENTS, wait_ns > 0 ? -1 : 0);
}

/* A socket that an epoll return does not list had no data when the list was made, so data read later
 * arrived after that. When the list was made is only known to lie between the clock reads around the call,
 * and the later one will not do: a thread that is stopped between the list and the clock, for instance by
 * a signal on its way back to user space, would make its late reads look timely. The earlier one is always
 * true, and so is the end of a wait that ran out. For these to be of use the waits must be short: with
 * LISTING_EVERY, events that share a read of a thread which is not late have a slack below 1 ms, however
 * few sockets there are. */
static void note_listing(ax_reactor *r, int n, int64_t before, int64_t wait_ns)
{
    if (n < 0 || n == MAX_EVENTS)
        return; /* interrupted, or cut: says nothing of those not listed */
    r->listing_ns = n == 0 ? before + wait_ns : before;
    r->listing_turn = r->turn;
}

static void note_stall(ax_reactor *r, int64_t began, int64_t took)
{
    if (took > atomic_load_explicit(&r->n.longest_turn_ns, memory_order_relaxed)) {
        atomic_store_explicit(&r->n.longest_turn_ns, took, memory_order_relaxed);
        atomic_store_explicit(&r->n.longest_turn_at_ns, began, memory_order_relaxed);
    }
}

static void end_turn_stats(ax_reactor *r, int64_t now)
{
    int64_t took = now - r->turn_started;
    ax_hdr_record(&r->hist[AX_HIST_TURN], took);
    note_stall(r, r->turn_started, took);
}

/* A long row of reads must not hold up a send that has become due meanwhile. */
static void look_up(ax_reactor *r)
{
    int64_t now = ax_now_ns();
    if (atomic_load_explicit(&r->inbox, memory_order_relaxed))
        take_commands(r, now);
    if (ax_timers_next(&r->timers) <= now)
        fire_timers(r, now);
    if (r->send_head && r->send_head->fresh_send)
        send_pass(r);
}

static void epoll_turn(ax_reactor *r)
{
    struct epoll_event events[MAX_EVENTS];
    int64_t now = ax_now_ns();

    take_commands(r, now);
    fire_timers(r, now);
    send_pass(r);
    sweep_idle(r, now);
    if (r->completed) {
        r->completed = false;
        wake(r->done_fd);
    }

    atomic_store_explicit(&r->sleeping, 1, memory_order_seq_cst);
    int64_t before = ax_now_ns();
    end_turn_stats(r, before);
    int64_t wait_ns = 0;
    if (!r->send_head && !atomic_load_explicit(&r->inbox, memory_order_seq_cst) &&
        !atomic_load_explicit(&r->attention, memory_order_seq_cst) &&
        !atomic_load_explicit(&r->closing, memory_order_seq_cst)) {
        int64_t next = ax_timers_next(&r->timers);
        if (r->conns && r->next_sweep < next)
            next = r->next_sweep;
        bool awaited = atomic_load_explicit(&r->n.in_flight, memory_order_relaxed) > 0;
        int64_t longest = awaited ? LISTING_EVERY : 60 * AX_NS_PER_S;
        wait_ns = next - before;
        if (wait_ns < 0)
            wait_ns = 0;
        if (wait_ns > longest)
            wait_ns = longest;
    }
    int n = wait_events(r, events, wait_ns);
    int64_t after = ax_now_ns();
    atomic_store_explicit(&r->sleeping, 0, memory_order_relaxed);
    note_stall(r, before + wait_ns, after - before - wait_ns); /* overslept */
    r->turn++;
    r->turn_started = after;
    add(&r->n.turns, 1);
    for (int i = 0; i < n; i++)
        if (events[i].data.ptr == &r->step_fd)
            clock_stepped(r); /* before any stamp of this turn is converted */
    if (after - r->pair.taken_ns > AX_PAIR_MAX_AGE_NS)
        r->pair = ax_clock_pair_now();
    for (int i = 0; i < n; i++) {
        void *what = events[i].data.ptr;
        if (i % EVENTS_PER_LOOK == EVENTS_PER_LOOK - 1)
            look_up(r);
        if (what == &r->wake_fd)
            drain_fd(r->wake_fd);
        else if (what == &r->timer_fd)
            drain_fd(r->timer_fd);
        else if (what != &r->step_fd)
            on_event(r, what, events[i].events);
    }
    note_listing(r, n, before, wait_ns);
    bury(r);
}

static void shut_down(ax_reactor *r)
{
    int64_t now = ax_now_ns();
    take_commands(r, now);
    while (r->live)
        cancel_exchange(r, r->live, now);
    while (r->conns)
        conn_close(r, r->conns);
    bury(r);
    AX_ASSERT(r->timers.count == 0);
    AX_ASSERT(r->live_count == 0);
    AX_ASSERT(atomic_load(&r->n.sockets) == 0);
    AX_ASSERT(atomic_load(&r->n.in_flight) == 0);
    wake(r->done_fd);
}

static void *run(void *arg)
{
    ax_reactor *r = arg;
    prctl(PR_SET_NAME, "agentx-reactor", 0, 0, 0);
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    if (r->opt.cpu >= 0) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET((size_t)r->opt.cpu, &one);
        sched_setaffinity(0, sizeof one, &one);
    }
    r->pair = ax_clock_pair_now();
    r->turn_started = ax_now_ns();
    while (!atomic_load_explicit(&r->closing, memory_order_acquire))
        epoll_turn(r);
    shut_down(r);
    return NULL;
}

/* -- Interface ----------------------------------------------------------------------------------------- */

void ax_reactor_defaults(ax_reactor_options *o)
{
    *o = (ax_reactor_options){
        .pooling = AX_POOL_SHARED,
        .connect_lead = AX_NS_PER_S / 20,
        .max_idle = 4 * AX_NS_PER_S,
        .connect_timeout = 10 * AX_NS_PER_S,
        .drain_after_done = AX_NS_PER_S / 4,
        .drain_after_finish = 5 * AX_NS_PER_S,
        .resend_window = AX_NS_PER_S / 20,
        .resend = true,
        .cpu = -1,
    };
}

static int watch(ax_reactor *r, int *fd)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = fd};
    return *fd < 0 ? -1 : epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, *fd, &ev);
}

static int start_thread(ax_reactor *r)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are the main thread's business */
    int err = pthread_create(&r->thread, NULL, run, r);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (err) {
        errno = err;
        return -1;
    }
    r->started = true;
    pthread_getcpuclockid(r->thread, &r->cpu_clock);
    return 0;
}

ax_reactor *ax_reactor_new(const ax_endpoint *endpoints, uint32_t count, const ax_reactor_options *o)
{
    ax_reactor *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->opt = *o;
    r->pool.by_session = o->pooling == AX_POOL_SESSION;
    r->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    r->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r->step_fd = timerfd_create(CLOCK_REALTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    r->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    r->room = malloc(READ_ROOM);
    r->endpoints = malloc(count * sizeof *endpoints);
    ax_timers_init(&r->timers);
    bool ok = r->epoll_fd >= 0 && r->done_fd >= 0 && r->room && r->endpoints;
    for (int i = 0; ok && i < AX_HIST_COUNT; i++)
        ok = ax_hdr_init(&r->hist[i], AX_HDR_LOWEST, AX_HDR_HIGHEST, AX_HDR_DIGITS) == 0;
    ok = ok && watch(r, &r->wake_fd) == 0 && watch(r, &r->step_fd) == 0 && watch(r, &r->timer_fd) == 0;
    if (ok) {
        memcpy(r->endpoints, endpoints, count * sizeof *endpoints);
        r->endpoint_count = count;
        watch_clock_steps(r);
        ok = start_thread(r) == 0;
    }
    if (!ok) {
        int err = errno;
        ax_reactor_free(r);
        errno = err;
        return NULL;
    }
    return r;
}

static void rouse(ax_reactor *r)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_exchange_explicit(&r->sleeping, 0, memory_order_seq_cst))
        wake(r->wake_fd);
}

void ax_reactor_submit(ax_reactor *r, ax_exchange *x)
{
    AX_ASSERT(x->endpoint < r->endpoint_count);
    x->at.armed = ax_now_ns();
    push(&r->inbox, x);
    rouse(r);
}

void ax_reactor_cancel(ax_reactor *r, ax_exchange *x)
{
    atomic_store_explicit(&x->command, 1, memory_order_release);
    atomic_store_explicit(&r->attention, 1, memory_order_seq_cst);
    rouse(r);
}

int ax_reactor_eventfd(const ax_reactor *r)
{
    return r->done_fd;
}

ax_exchange *ax_reactor_pop_all(ax_reactor *r)
{
    return take_all(&r->outbox);
}

const ax_hdr *ax_reactor_hist(const ax_reactor *r, ax_hist h)
{
    return &r->hist[h];
}

const ax_reactor_counters *ax_reactor_counts(const ax_reactor *r)
{
    return &r->n;
}

int64_t ax_reactor_cpu_ns(const ax_reactor *r)
{
    struct timespec ts;
    if (!r->started || r->joined || clock_gettime(r->cpu_clock, &ts) < 0)
        return -1;
    return ax_timespec_ns(&ts);
}

bool ax_reactor_uses_pwait2(const ax_reactor *r)
{
    return !r->no_pwait2;
}

void ax_reactor_close(ax_reactor *r)
{
    if (!r->started || r->joined)
        return;
    atomic_store_explicit(&r->closing, 1, memory_order_seq_cst);
    wake(r->wake_fd);
    pthread_join(r->thread, NULL);
    r->joined = true;
}

void ax_reactor_free(ax_reactor *r)
{
    if (!r)
        return;
    ax_reactor_close(r);
    AX_ASSERT(!atomic_load(&r->inbox) && !atomic_load(&r->outbox));
    int fds[] = {r->epoll_fd, r->wake_fd, r->done_fd, r->step_fd, r->timer_fd};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    for (int i = 0; i < AX_HIST_COUNT; i++)
        ax_hdr_free(&r->hist[i]);
    ax_timers_free(&r->timers);
    free(r->endpoints);
    free(r->room);
    free(r);
}

const char *ax_hist_name(ax_hist h)
{
    static const char *const names[AX_HIST_COUNT] = {
        [AX_HIST_DISPATCH_ARMED] = "dispatch_lag_armed",
        [AX_HIST_DISPATCH_REACTIVE] = "dispatch_lag_reactive",
        [AX_HIST_SEND] = "send_duration",
        [AX_HIST_CONNECT] = "connect",
        [AX_HIST_READ_LAG] = "read_lag",
        [AX_HIST_SLACK] = "slack",
        [AX_HIST_TTFT] = "ttft",
        [AX_HIST_GAP] = "inter_chunk_gap",
        [AX_HIST_TURN] = "reactor_turn",
    };
    return names[h];
}

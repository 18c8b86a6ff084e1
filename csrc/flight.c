/* The way of one exchange over a socket: wait, connect, send, read, end. See reactor_parts.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "reactor_parts.h"

#define FIRST_SEND 4096
#define TURN_SEND (256 * 1024)
#define MAX_IOV 128
#define RETRY_LEAST (AX_NS_PER_S / 1000)
#define STAMP_MIN_LAG (-1000)
#define STAMP_MAX_LAG (10 * AX_NS_PER_S)

static inline ax_exchange *exchange_of(ax_timer *t)
{
    return (ax_exchange *)((char *)t - offsetof(ax_exchange, timer));
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

void ax_flight_close(ax_reactor *r, ax_conn *c)
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

void ax_flight_bury(ax_reactor *r)
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

void ax_flight_complete(ax_reactor *r, ax_exchange *x, ax_outcome forced, int64_t now)
{
    ax_timers_cancel(&r->timers, &x->timer);
    send_list_remove(r, x);
    if (x->conn) /* whoever keeps a socket for further use has taken it from the exchange before */
        ax_flight_close(r, x->conn);
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

void ax_flight_fail(ax_reactor *r, ax_exchange *x, ax_outcome outcome, int err, int64_t now)
{
    x->error_errno = err;
    ax_flight_complete(r, x, outcome, now);
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
void ax_flight_prepare(ax_reactor *r, ax_exchange *x, int64_t now, bool fresh_only)
{
    ax_conn *c = NULL;
    int64_t use_at = x->at.due > now ? x->at.due : now;

    if (!fresh_only && r->opt.pooling != AX_POOL_NEVER)
        c = ax_pool_take(&r->pool, x->endpoint, x->session, use_at, r->opt.max_idle);
    if (c) {
        c->state = AX_CONN_ASSIGNED;
        c->x = x;
        x->conn = c;
        x->reused = c->requests > 0;
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
        ax_flight_fail(r, x, AX_CONNECT_ERROR, -err, now);
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
        ax_flight_fail(r, x, AX_CONNECT_ERROR, err, now);
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
    ax_flight_complete(r, x, why, now);
}

void ax_flight_timers(ax_reactor *r, int64_t now)
{
    for (ax_timer *t; (t = ax_timers_pop(&r->timers, now));) {
        ax_exchange *x = exchange_of(t);
        switch ((timer_kind)x->timer_kind) {
        case WAIT_PREP:
            ax_flight_prepare(r, x, now, false);
            break;
        case WAIT_DUE:
            begin_send(r, x);
            break;
        case WAIT_CONNECT:
            ax_flight_fail(r, x, AX_TIMEOUT_CONNECT, ETIMEDOUT, now);
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

/* The connection ended before it had taken the request, and without a word of the server. */
static bool unsent(const ax_exchange *x)
{
    return x->status == 0 && !ax_exchange_all_sent(x);
}

static void lost(ax_reactor *r, ax_conn *c, int err, int64_t now)
{
    ax_exchange *x = c->x;
    if (!x) {
        ax_flight_close(r, c);
        return;
    }
    if (x->at.first_sent == AX_NONE) { /* reserved, nothing sent: just another socket */
        ax_flight_close(r, c);
        send_list_remove(r, x);
        x->reused = false;
        x->at.conn_ready = AX_NONE;
        /* Half way to `due`, so that a server that hangs up at once meets a few connects and not hundreds. */
        if (x->at.due - now > RETRY_LEAST)
            set_timer(r, x, WAIT_PREP, now + (x->at.due - now) / 2);
        else
            ax_flight_prepare(r, x, now, false);
        return;
    }
    if (stale_socket(r, x, now)) {
        ax_flight_close(r, c);
        send_list_remove(r, x);
        ax_exchange_rewind(x);
        x->reconnects = 1;
        add(&r->n.reconnects, 1);
        add(&r->n.in_flight, -1);
        ax_flight_prepare(r, x, now, true);
        return;
    }
    ax_exchange_closed(x, err);
    ax_flight_complete(r, x, unsent(x) ? AX_SEND_ERROR : AX_PENDING, now);
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
    ax_flight_fail(r, x, unsent(x) ? AX_SEND_ERROR : AX_PENDING, err, now);
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
void ax_flight_send(ax_reactor *r)
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
        ax_flight_close(r, c);
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
    int64_t n = ax_conn_recv(c->fd, r->room, AX_READ_ROOM, &real_ns);
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
    ax_read read = stamp_read(r, c, real_ns, now, n == AX_READ_ROOM);
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
        setsockopt(c->fd, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on);
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
    ax_flight_complete(r, x, AX_PENDING, now);
}

void ax_flight_event(ax_reactor *r, ax_conn *c, uint32_t events)
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

/* -- Cancelling --------------------------------------------------------------------------------------- */

void ax_flight_cancel(ax_reactor *r, ax_exchange *x, int64_t now)
{
    ax_conn *c = x->conn;
    if (c && x->at.first_sent == AX_NONE && c->state == AX_CONN_ASSIGNED && r->opt.pooling != AX_POOL_NEVER) {
        x->conn = NULL; /* an unused socket is still good */
        ax_pool_put(&r->pool, c, now);
    }
    if (x->reads > 0 || x->at.first_sent != AX_NONE)
        x->closing = AX_CLOSED_BY_US;
    ax_flight_complete(r, x, AX_CANCELLED, now);
}

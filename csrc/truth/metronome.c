#define _GNU_SOURCE
#include "truth/metronome.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "clock.h"
#include "hdr.h"
#include "truth/answer.h"
#include "truth/measure.h"
#include "truth/request.h"
#include "truth/ticks.h"

#define READ_BYTES (256 * 1024)
#define READ_ROOM (AX_REQUEST_MAX_HEAD + READ_BYTES)
#define EVENTS_PER_WAIT 256
#define TICKS_PER_TURN 256 /* between two looks at the sockets, so that an overloaded server still accepts */
#define LINGER_NS AX_NS_PER_S
#define MAX_TOKENS INT64_C(1000000000)
#define MAX_UNREAD (1024 * 1024) /* answers to GET that a client asked for and does not read */

/* The C library's wrapper, and the number in its headers, are younger than the systems that wheels are
 * built for. The number is the same on every architecture. */
#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif

typedef enum conn_state {
    CONN_HEAD,   /* waiting for a request's head */
    CONN_BODY,   /* draining its body */
    CONN_STREAM, /* answering */
    CONN_LINGER, /* answered with "close"; waits for the peer's end, so that no RST destroys the answer */
} conn_state;

typedef struct conn {
    int fd;
    conn_state state;
    uint32_t place; /* in the ticks */
    uint32_t number;
    bool keep_alive;
    bool wants_out; /* EPOLLOUT is registered */
    bool tail_written;

    int64_t body_bytes, body_left;
    ax_request_limit limit;

    /* The answer. due and sent count tokens. */
    uint64_t id;
    uint64_t tokens, due, sent;
    int64_t due_ns; /* of the next group */

    char *out; /* what the socket did not take of the last write */
    size_t out_len, out_off;
    uint32_t out_events;

    char *carry; /* bytes read but not used: an unfinished head, or requests that came too early */
    size_t carry_len;
    uint32_t overlap_len;
    char overlap[AX_REQUEST_OVERLAP];

    struct conn *prev, *next;
} conn;

struct ax_metronome {
    ax_metronome_options options;
    ax_answer answer;
    ax_ticks ticks;
    conn *conns;
    int listen_fd, epoll_fd;
    int timer_fd; /* -1 while epoll_pwait2 works */
    int spare_fd; /* given up to accept and close a connection when descriptors run out */
    uint16_t port;
    uint32_t conn_count;
    int64_t period_ns; /* between two groups of a stream */
    int64_t epoch_ns;

    uint64_t requests, answers, aborted, refused, accepted;
    uint64_t events_offered; /* by the ticks so far, see overdue() */
    uint64_t events_sent, events_deferred, bytes_sent;
    int64_t first_request_ns, last_event_ns;
    ax_hdr lateness;
    ax_cpu cpu_start;

    char *read_buf; /* AX_REQUEST_OVERLAP bytes of room, then READ_ROOM */
};

/* ---- connections ---- */

static void conn_close(ax_metronome *m, conn *c)
{
    if (c->state == CONN_STREAM)
        m->aborted++;
    ax_ticks_remove(&m->ticks, &c->place);
    close(c->fd);
    if (c->prev)
        c->prev->next = c->next;
    else
        m->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    m->conn_count--;
    free(c->carry);
    free(c->out);
    free(c);
}

static void conn_linger(ax_metronome *m, conn *c)
{
    c->state = CONN_LINGER;
    if (!c->out_len)
        shutdown(c->fd, SHUT_WR);
    ax_ticks_set(&m->ticks, &c->place, c, ax_now_ns() + LINGER_NS);
}

static void conn_watch_out(ax_metronome *m, conn *c, bool on)
{
    if (c->wants_out == on)
        return;
    struct epoll_event ev = {.events = EPOLLIN | (on ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(m->epoll_fd, EPOLL_CTL_MOD, c->fd, &ev);
    c->wants_out = on;
}

static void took_events(ax_metronome *m, uint32_t events, int64_t now)
{
    m->events_sent += events;
    if (events)
        m->last_event_ns = now;
}

/* Sends, and keeps what the socket does not take. False if the connection is lost. */
static bool conn_write(ax_metronome *m, conn *c, ax_span bytes, uint32_t events, int64_t now)
{
    size_t done = 0;
    if (!c->out_len) {
        ssize_t n = send(c->fd, bytes.ptr, bytes.len, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EINTR && errno != ENOBUFS)
            return false;
        done = n > 0 ? (size_t)n : 0;
        m->bytes_sent += done;
        if (done == bytes.len) {
            took_events(m, events, now);
            return true;
        }
    }
    if (c->out_len > MAX_UNREAD)
        return false;
    size_t left = bytes.len - done;
    char *out = realloc(c->out, c->out_len + left);
    if (!out)
        return false;
    memcpy(out + c->out_len, bytes.ptr + done, left);
    c->out = out;
    c->out_len += left;
    c->out_events += events;
    conn_watch_out(m, c, true);
    return true;
}

/* Sends what was kept. False if the connection is lost. */
static bool conn_flush(ax_metronome *m, conn *c)
{
    ssize_t n = send(c->fd, c->out + c->out_off, c->out_len - c->out_off, MSG_NOSIGNAL);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR || errno == ENOBUFS;
    m->bytes_sent += (size_t)n;
    c->out_off += (size_t)n;
    if (c->out_off == c->out_len) {
        took_events(m, c->out_events, ax_now_ns());
        c->out_len = c->out_off = 0;
        c->out_events = 0;
        conn_watch_out(m, c, false);
    }
    return true;
}

/* ---- answers ---- */

static uint64_t tokens_asked(const ax_metronome *m, const conn *c)
{
    int64_t asked = c->limit.max_completion_tokens >= 0 ? c->limit.max_completion_tokens : c->limit.max_tokens;
    if (asked < 0)
        return m->options.tokens;
    return asked < 1 ? 1 : asked < MAX_TOKENS ? (uint64_t)asked : MAX_TOKENS;
}

static int64_t first_due(const ax_metronome *m, const conn *c, int64_t now)
{
    int64_t due = now + m->options.ttft_ns, period = m->period_ns;
    if (m->options.phase == AX_PHASE_NATURAL || period == 0)
        return due;
    /* Multiples of the golden ratio, modulo 1, are spread evenly whatever their number. */
    uint32_t fraction = m->options.phase == AX_PHASE_SPREAD ? c->number * UINT32_C(2654435769) : 0;
    int64_t phase = (int64_t)(((unsigned __int128)fraction * (uint64_t)period) >> 32);
    int64_t past = (due - m->epoch_ns - phase) % period;
    if (past < 0)
        past += period;
    return past ? due + period - past : due;
}

static bool stream_start(ax_metronome *m, conn *c)
{
    int64_t now = ax_now_ns();
    if (!m->first_request_ns)
        m->first_request_ns = now;
    c->id = ++m->requests;
    c->tokens = tokens_asked(m, c);
    c->due = c->sent = 0;
    c->tail_written = false;
    c->state = CONN_STREAM;
    c->due_ns = first_due(m, c, now);
    ax_ticks_set(&m->ticks, &c->place, c, c->due_ns);
    return conn_write(m, c, ax_answer_head(c->keep_alive), 0, now);
}

/* Sends everything due that the socket takes. due_ns is the deadline of the present group, or AX_NONE
 * when the events have been waiting for the client. False if the connection is lost. */
static bool stream_pump(ax_metronome *m, conn *c, int64_t due_ns)
{
    while (!c->out_len && c->sent < c->due) {
        uint64_t waiting = c->due - c->sent;
        uint32_t count = waiting < m->answer.events_per_write ? (uint32_t)waiting : m->answer.events_per_write;
        ax_span bytes = ax_answer_events(&m->answer, c->id, c->sent, count);
        int64_t now = ax_now_ns();
        ax_answer_stamp(&m->answer, count, now);
        if (!conn_write(m, c, bytes, count, now))
            return false;
        c->sent += count;
        if (due_ns == AX_NONE)
            m->events_deferred += count;
        else
            ax_hdr_record(&m->lateness, now - due_ns);
    }
    if (!c->out_len && c->sent == c->tokens && !c->tail_written) {
        char tail[AX_ANSWER_TAIL_MAX];
        int64_t prompt = m->options.prompt_tokens >= 0 ? m->options.prompt_tokens : c->body_bytes;
        bool limited = c->limit.max_completion_tokens >= 0 || c->limit.max_tokens >= 0;
        int64_t now = ax_now_ns();
        size_t len = ax_answer_tail(tail, c->id, c->tokens, prompt, limited, now);
        c->tail_written = true;
        if (due_ns == AX_NONE)
            m->events_deferred += AX_ANSWER_TAIL_EVENTS;
        if (!conn_write(m, c, (ax_span){tail, len}, AX_ANSWER_TAIL_EVENTS, now))
            return false;
    }
    return true;
}

/* Makes the group due that the deadline on top of the heap stands for. */
static void stream_tick(ax_metronome *m, conn *c)
{
    uint64_t group = (uint64_t)m->options.events_per_write * m->options.burst, left = c->tokens - c->due;
    if (group >= left) {
        group = left;
        m->events_offered += AX_ANSWER_TAIL_EVENTS;
        ax_ticks_remove(&m->ticks, &c->place);
    } else {
        c->due_ns += m->period_ns;
        ax_ticks_set(&m->ticks, &c->place, c, c->due_ns);
    }
    c->due += group;
    m->events_offered += group;
}

/* ---- requests ---- */

static bool respond(ax_metronome *m, conn *c, int status, const char *reason, const char *body)
{
    char out[AX_METRONOME_JSON_MAX + 256];
    int n = snprintf(out, sizeof out,
                     "HTTP/1.1 %d %s\r\nServer: agentx-metronome\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\n%s\r\n%s",
                     status, reason, strlen(body), c->keep_alive ? "" : "Connection: close\r\n", body);
    return conn_write(m, c, (ax_span){out, (size_t)n}, 0, 0);
}

static bool refuse(ax_metronome *m, conn *c, int status)
{
    static const struct {
        int status;
        const char *reason, *body;
    } known[] = {
        {400, "Bad Request", "{\"error\":{\"message\":\"not an HTTP/1.1 request\",\"code\":400}}"},
        {404, "Not Found", "{\"error\":{\"message\":\"only /health, /v1/models and /stats\",\"code\":404}}"},
        {405, "Method Not Allowed", "{\"error\":{\"message\":\"only GET and POST\",\"code\":405}}"},
        {411, "Length Required", "{\"error\":{\"message\":\"a Content-Length is needed\",\"code\":411}}"},
        {413, "Content Too Large", "{\"error\":{\"message\":\"the body is too large\",\"code\":413}}"},
        {431, "Request Header Fields Too Large", "{\"error\":{\"message\":\"the head is too large\",\"code\":431}}"},
        {505, "HTTP Version Not Supported", "{\"error\":{\"message\":\"only HTTP/1.1\",\"code\":505}}"},
    };
    size_t i = 0;
    while (known[i].status != status)
        i++;
    m->refused++;
    return respond(m, c, status, known[i].reason, known[i].body);
}

/* Answers a request that is not a POST. False if the connection is lost. */
static bool serve_get(ax_metronome *m, conn *c, const ax_request *r)
{
    static const char models[] =
        "{\"object\":\"list\",\"data\":[{\"id\":\"metronome\",\"object\":\"model\",\"created\":1700000000,"
        "\"owned_by\":\"agentx\",\"max_model_len\":4194304}]}";
#define IS(span, text) ((span).len == sizeof(text) - 1 && memcmp((span).ptr, text, sizeof(text) - 1) == 0)
    if (!IS(r->method, "GET"))
        return refuse(m, c, 405);
    if (IS(r->target, "/health"))
        return respond(m, c, 200, "OK", "{\"status\":\"ok\"}");
    if (IS(r->target, "/v1/models"))
        return respond(m, c, 200, "OK", models);
    if (IS(r->target, "/stats")) {
        char json[AX_METRONOME_JSON_MAX];
        ax_metronome_json(m, json);
        return respond(m, c, 200, "OK", json);
    }
    return refuse(m, c, 404);
}

/* One complete head. False if the connection is lost. */
static bool take_head(ax_metronome *m, conn *c, const ax_request *r)
{
    int status = r->refusal ? r->refusal : r->content_length > m->options.max_body ? 413 : 0;
    c->keep_alive = r->keep_alive && !status;
    if (status) {
        bool alive = refuse(m, c, status);
        conn_linger(m, c);
        return alive;
    }
    c->body_bytes = c->body_left = r->content_length;
    c->limit = (ax_request_limit){-1, -1};
    c->overlap_len = 0;
    if (!IS(r->method, "POST")) {
        c->body_left = 0;
        if (r->content_length)
            c->keep_alive = false; /* its body is not read */
        bool alive = serve_get(m, c, r);
        if (!c->keep_alive)
            conn_linger(m, c);
        return alive;
    }
    if (r->expects_continue && !conn_write(m, c, (ax_span){"HTTP/1.1 100 Continue\r\n\r\n", 25}, 0, 0))
        return false;
    if (c->body_left == 0)
        return stream_start(m, c);
    c->state = CONN_BODY;
    return true;
}

/* One piece of a body; the overlap of the last piece stands in front of it. */
static bool take_body(ax_metronome *m, conn *c, const char *buf, size_t len)
{
    c->body_left -= (int64_t)len;
    const char *from = buf - c->overlap_len, *end = buf + len;
    ax_request_scan(&c->limit, from, (size_t)(end - from), c->body_left == 0);
    if (c->body_left == 0)
        return stream_start(m, c);
    size_t keep = (size_t)(end - from);
    if (keep > AX_REQUEST_OVERLAP)
        keep = AX_REQUEST_OVERLAP;
    memcpy(c->overlap, end - keep, keep);
    c->overlap_len = (uint32_t)keep;
    return true;
}

/* Uses the bytes read, which begin at m->read_buf + AX_REQUEST_OVERLAP, and carries the rest. False if
 * the connection is lost. */
static bool take_input(ax_metronome *m, conn *c, const char *buf, size_t len)
{
    while (len > 0 && (c->state == CONN_HEAD || c->state == CONN_BODY)) {
        size_t used;
        if (c->state == CONN_BODY) {
            used = (int64_t)len < c->body_left ? len : (size_t)c->body_left;
            if (!take_body(m, c, buf, used))
                return false;
        } else {
            ax_request r;
            used = ax_request_parse(buf, len, &r);
            if (!used && !r.refusal)
                break;
            if (!take_head(m, c, &r))
                return false;
            if (!used)
                len = 0;
        }
        buf += used;
        len -= used;
    }
    if (c->state == CONN_LINGER || len == 0)
        return true;
    if (len > READ_BYTES)
        return false; /* a flood of requests behind an unfinished answer */
    c->carry = malloc(len);
    if (!c->carry)
        return false;
    memcpy(c->carry, buf, len);
    c->carry_len = len;
    return true;
}

/* Puts what the connection carries, or the overlap of its body, in front of the read buffer; returns
 * where a read goes on. */
static char *recall(ax_metronome *m, conn *c)
{
    char *at = m->read_buf + AX_REQUEST_OVERLAP;
    if (c->state == CONN_BODY)
        memcpy(at - c->overlap_len, c->overlap, c->overlap_len);
    if (c->carry_len) {
        memcpy(at, c->carry, c->carry_len);
        at += c->carry_len;
        free(c->carry);
        c->carry = NULL;
        c->carry_len = 0;
    }
    return at;
}

/* The answer has left: the connection is free for the next request, which may be there already. */
static bool finish_if_done(ax_metronome *m, conn *c)
{
    if (c->state != CONN_STREAM || !c->tail_written || c->out_len)
        return true;
    m->answers++;
    if (!c->keep_alive) {
        conn_linger(m, c);
        return true;
    }
    c->state = CONN_HEAD;
    if (!c->carry_len)
        return true;
    char *start = m->read_buf + AX_REQUEST_OVERLAP, *end = recall(m, c);
    return take_input(m, c, start, (size_t)(end - start));
}

static bool conn_readable(ax_metronome *m, conn *c)
{
    char *start = m->read_buf + AX_REQUEST_OVERLAP, *at = recall(m, c);
    size_t carried = (size_t)(at - start);
    ssize_t n = recv(c->fd, at, READ_ROOM - carried, 0);
    if (n == 0)
        return false;
    if (n < 0) {
        if (errno != EAGAIN && errno != EINTR)
            return false;
        n = 0;
    }
    if (c->state == CONN_LINGER)
        return true;
    return take_input(m, c, start, carried + (size_t)n);
}

static void conn_ready(ax_metronome *m, conn *c, uint32_t events)
{
    bool alive = true;
    if (events & (EPOLLIN | EPOLLERR | EPOLLHUP))
        alive = conn_readable(m, c);
    if (alive && c->out_len && (events & EPOLLOUT)) {
        alive = conn_flush(m, c);
        if (alive && c->state == CONN_LINGER && !c->out_len)
            shutdown(c->fd, SHUT_WR);
        if (alive && c->state == CONN_STREAM)
            alive = stream_pump(m, c, AX_NONE) && finish_if_done(m, c);
    }
    if (!alive)
        conn_close(m, c);
}

/* ---- the loop ---- */

static bool conn_open(ax_metronome *m, int fd)
{
    conn *c = calloc(1, sizeof *c);
    if (!c || ax_ticks_reserve(&m->ticks, m->conn_count + 1) < 0) {
        free(c);
        return false;
    }
    c->fd = fd;
    c->place = AX_TICK_NONE;
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(m->epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0) {
        free(c);
        return false;
    }
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    c->number = (uint32_t)m->accepted++;
    c->next = m->conns;
    if (c->next)
        c->next->prev = c;
    m->conns = c;
    m->conn_count++;
    return true;
}

static void accept_all(ax_metronome *m)
{
    for (;;) {
        int fd = accept4(m->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            if (!conn_open(m, fd)) {
                m->refused++;
                close(fd);
            }
        } else if ((errno == EMFILE || errno == ENFILE) && m->spare_fd >= 0) {
            /* Left in the queue, the connection would keep the loop awake and its client waiting. */
            close(m->spare_fd);
            fd = accept(m->listen_fd, NULL, NULL);
            if (fd >= 0)
                close(fd);
            m->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
            m->refused++;
        } else if (errno != ECONNABORTED && errno != EINTR) {
            return;
        }
    }
}

static void run_ticks(ax_metronome *m)
{
    int64_t now = ax_now_ns();
    for (int i = 0; i < TICKS_PER_TURN && m->ticks.count; i++) {
        ax_tick top = m->ticks.at[0];
        if (top.due_ns > now) {
            now = ax_now_ns();
            if (top.due_ns > now)
                return;
        }
        conn *c = top.owner;
        if (c->state == CONN_LINGER) {
            conn_close(m, c);
            continue;
        }
        stream_tick(m, c);
        if (!stream_pump(m, c, top.due_ns) || !finish_if_done(m, c))
            conn_close(m, c);
    }
}

/* epoll_wait until the next deadline, to the nanosecond; with a timerfd where epoll_pwait2 is missing
 * or forbidden. */
static int wait_events(ax_metronome *m, struct epoll_event *events)
{
    int64_t due = m->ticks.count ? m->ticks.at[0].due_ns : INT64_MAX;
    int64_t left = due - ax_now_ns();
    if (left <= 0)
        return epoll_wait(m->epoll_fd, events, EVENTS_PER_WAIT, 0);
    if (due == INT64_MAX)
        return epoll_wait(m->epoll_fd, events, EVENTS_PER_WAIT, -1);
    if (m->timer_fd < 0) {
        struct timespec ts = {left / AX_NS_PER_S, left % AX_NS_PER_S};
        int n = (int)syscall(SYS_epoll_pwait2, m->epoll_fd, events, EVENTS_PER_WAIT, &ts, NULL, 0);
        if (n >= 0 || (errno != ENOSYS && errno != EPERM))
            return n;
    }
    if (m->timer_fd < 0) {
        m->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
        struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &m->timer_fd};
        if (m->timer_fd < 0 || epoll_ctl(m->epoll_fd, EPOLL_CTL_ADD, m->timer_fd, &ev) < 0)
            return -1;
    }
    struct itimerspec at = {.it_value = {due / AX_NS_PER_S, due % AX_NS_PER_S}};
    if (timerfd_settime(m->timer_fd, TFD_TIMER_ABSTIME, &at, NULL) < 0)
        return -1;
    return epoll_wait(m->epoll_fd, events, EVENTS_PER_WAIT, -1);
}

static int serve(ax_metronome *m, int *stop_fd)
{
    struct epoll_event events[EVENTS_PER_WAIT];
    for (;;) {
        run_ticks(m);
        int n = wait_events(m, events);
        if (n < 0 && errno != EINTR)
            return -1;
        for (int i = 0; i < n; i++) {
            void *who = events[i].data.ptr;
            if (who == stop_fd) {
                return 0;
            } else if (who == &m->listen_fd) {
                accept_all(m);
            } else if (who == &m->timer_fd) {
                uint64_t ticks;
                (void)!read(m->timer_fd, &ticks, sizeof ticks);
            } else {
                conn_ready(m, who, events[i].events);
            }
        }
    }
}

int ax_metronome_run(ax_metronome *m, int stop_fd)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &stop_fd};
    if (epoll_ctl(m->epoll_fd, EPOLL_CTL_ADD, stop_fd, &ev) < 0)
        return -1;
    int slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    m->cpu_start = ax_cpu_now();
    m->epoch_ns = ax_now_ns();
    int result = serve(m, &stop_fd), failure = errno;
    if (slack > 0)
        prctl(PR_SET_TIMERSLACK, slack, 0, 0, 0);
    epoll_ctl(m->epoll_fd, EPOLL_CTL_DEL, stop_fd, NULL);
    errno = failure;
    return result;
}

static const char *listen_on(ax_metronome *m)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(m->options.port)};
    if (inet_pton(AF_INET, m->options.bind, &addr.sin_addr) != 1) {
        errno = EINVAL;
        return "read the address to bind";
    }
    m->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (m->listen_fd < 0)
        return "make a socket";
    int on = 1;
    setsockopt(m->listen_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (m->options.send_buffer > 0)
        setsockopt(m->listen_fd, SOL_SOCKET, SO_SNDBUF, &m->options.send_buffer, sizeof m->options.send_buffer);
    if (bind(m->listen_fd, (struct sockaddr *)&addr, sizeof addr) < 0)
        return "bind the port";
    socklen_t len = sizeof addr;
    if (listen(m->listen_fd, 4096) < 0 || getsockname(m->listen_fd, (struct sockaddr *)&addr, &len) < 0)
        return "listen";
    m->port = ntohs(addr.sin_port);
    m->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &m->listen_fd};
    if (m->epoll_fd < 0 || epoll_ctl(m->epoll_fd, EPOLL_CTL_ADD, m->listen_fd, &ev) < 0)
        return "make an epoll instance";
    return NULL;
}

ax_metronome *ax_metronome_open(const ax_metronome_options *options, const char **what)
{
    ax_metronome *m = calloc(1, sizeof *m);
    *what = "allocate memory";
    if (!m)
        return NULL;
    m->options = *options;
    m->listen_fd = m->epoll_fd = m->timer_fd = m->spare_fd = -1;
    m->period_ns = options->interval_ns * options->events_per_write * options->burst;
    m->read_buf = malloc(AX_REQUEST_OVERLAP + READ_ROOM);
    /* From 1 ns on, three digits: lateness of a good server is near a microsecond. */
    if (m->read_buf && ax_hdr_init(&m->lateness, 1, AX_HDR_HIGHEST, AX_HDR_DIGITS) == 0 &&
        ax_answer_init(&m->answer, options->event_bytes, options->events_per_write) == 0 &&
        !(*what = listen_on(m))) {
        m->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        return m;
    }
    int failure = errno;
    ax_metronome_close(m);
    errno = failure;
    return NULL;
}

uint16_t ax_metronome_port(const ax_metronome *m)
{
    return m->port;
}

/* Events due by the schedule whose ticks this thread has not come to yet. */
static uint64_t overdue(const ax_metronome *m, int64_t now)
{
    uint64_t group = (uint64_t)m->options.events_per_write * m->options.burst, events = 0;
    for (uint32_t i = 0; i < m->ticks.count; i++) {
        const conn *c = m->ticks.at[i].owner;
        if (c->state != CONN_STREAM || c->due_ns > now)
            continue;
        uint64_t left = c->tokens - c->due, groups = left;
        if (m->period_ns)
            groups = (uint64_t)((now - c->due_ns) / m->period_ns) + 1;
        events += groups >= (left + group - 1) / group ? left + AX_ANSWER_TAIL_EVENTS : groups * group;
    }
    return events;
}

size_t ax_metronome_json(const ax_metronome *m, char *out)
{
    ax_cpu cpu = ax_cpu_since(&m->cpu_start);
    double seconds = m->events_sent ? (double)(m->last_event_ns - m->first_request_ns) / 1e9 : 0;
    ax_spread late = ax_spread_of(&m->lateness);
    uint64_t offered = m->events_offered + overdue(m, ax_now_ns());
    return (size_t)snprintf(
        out, AX_METRONOME_JSON_MAX,
        "{\"requests\":%" PRIu64 ",\"answers\":%" PRIu64 ",\"aborted\":%" PRIu64 ",\"refused\":%" PRIu64
        ",\"connections\":%" PRIu64 ",\"connections_open\":%" PRIu32 ",\"events_offered\":%" PRIu64
        ",\"events_sent\":%" PRIu64 ",\"events_deferred\":%" PRIu64 ",\"bytes_sent\":%" PRIu64
        ",\"seconds\":%.6f,\"offered_per_s\":%.1f,\"achieved_per_s\":%.1f"
        ",\"lateness_us\":{\"count\":%" PRIu64 ",\"p50\":%.3f,\"p99\":%.3f,\"max\":%.3f}"
        ",\"cpu_s\":%.6f,\"cpu_user_s\":%.6f,\"cpu_system_s\":%.6f}",
        m->requests, m->answers, m->aborted, m->refused, m->accepted, m->conn_count, offered,
        m->events_sent, m->events_deferred, m->bytes_sent, seconds,
        seconds > 0 ? (double)offered / seconds : 0, seconds > 0 ? (double)m->events_sent / seconds : 0,
        late.count, late.p50_us, late.p99_us, late.max_us, cpu.total_s, cpu.user_s, cpu.system_s);
}

void ax_metronome_close(ax_metronome *m)
{
    while (m->conns)
        conn_close(m, m->conns);
    int fds[] = {m->listen_fd, m->epoll_fd, m->timer_fd, m->spare_fd};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    ax_hdr_free(&m->lateness);
    ax_answer_free(&m->answer);
    free(m->ticks.at);
    free(m->read_buf);
    free(m);
}

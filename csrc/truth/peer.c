#define _GNU_SOURCE
#include "truth/peer.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"

#define LINGER_NS AX_NS_PER_S
#define MAX_TOKENS INT64_C(1000000000)
#define MAX_UNREAD (1024 * 1024) /* answers to GET that a client asked for and does not read */

/* ---- the socket ---- */

void ax_peer_close(ax_metronome *m, ax_peer *c)
{
    if (c->state == AX_PEER_STREAM)
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

static void peer_linger(ax_metronome *m, ax_peer *c)
{
    c->state = AX_PEER_LINGER;
    if (!c->out_len)
        shutdown(c->fd, SHUT_WR);
    ax_ticks_set(&m->ticks, &c->place, c, ax_now_ns() + LINGER_NS);
}

static void peer_watch_out(ax_metronome *m, ax_peer *c, bool on)
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
static bool peer_write(ax_metronome *m, ax_peer *c, ax_span bytes, uint32_t events, int64_t now)
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
    peer_watch_out(m, c, true);
    return true;
}

/* Sends what was kept. False if the connection is lost. */
static bool peer_flush(ax_metronome *m, ax_peer *c)
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
        peer_watch_out(m, c, false);
    }
    return true;
}

/* ---- answers ---- */

static uint64_t tokens_asked(const ax_metronome *m, const ax_peer *c)
{
    int64_t asked = c->limit.max_completion_tokens >= 0 ? c->limit.max_completion_tokens : c->limit.max_tokens;
    if (asked < 0)
        return m->options.tokens;
    return asked < 1 ? 1 : asked < MAX_TOKENS ? (uint64_t)asked : MAX_TOKENS;
}

static int64_t first_due(const ax_metronome *m, const ax_peer *c, int64_t now)
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

static bool stream_start(ax_metronome *m, ax_peer *c)
{
    int64_t now = ax_now_ns();
    if (!m->first_request_ns)
        m->first_request_ns = now;
    c->id = ++m->requests;
    c->tokens = tokens_asked(m, c);
    c->due = c->sent = 0;
    c->tail_written = false;
    c->state = AX_PEER_STREAM;
    c->due_ns = first_due(m, c, now);
    ax_ticks_set(&m->ticks, &c->place, c, c->due_ns);
    return peer_write(m, c, ax_answer_head(c->keep_alive), 0, now);
}

/* Sends everything due that the socket takes. due_ns is the deadline of the present group, or AX_NONE
 * when the events have been waiting for the client. False if the connection is lost. */
static bool stream_pump(ax_metronome *m, ax_peer *c, int64_t due_ns)
{
    while (!c->out_len && c->sent < c->due) {
        uint64_t waiting = c->due - c->sent;
        uint32_t count = waiting < m->answer.events_per_write ? (uint32_t)waiting : m->answer.events_per_write;
        ax_span bytes = ax_answer_events(&m->answer, c->id, c->sent, count);
        int64_t now = ax_now_ns();
        ax_answer_stamp(&m->answer, count, now);
        if (!peer_write(m, c, bytes, count, now))
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
        if (!peer_write(m, c, (ax_span){tail, len}, AX_ANSWER_TAIL_EVENTS, now))
            return false;
    }
    return true;
}

/* Makes the group due that the deadline on top of the heap stands for. */
static void stream_tick(ax_metronome *m, ax_peer *c)
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

static bool respond(ax_metronome *m, ax_peer *c, int status, const char *reason, const char *body)
{
    char out[AX_METRONOME_JSON_MAX + 256];
    int n = snprintf(out, sizeof out,
                     "HTTP/1.1 %d %s\r\nServer: agentx-metronome\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\n%s\r\n%s",
                     status, reason, strlen(body), c->keep_alive ? "" : "Connection: close\r\n", body);
    return peer_write(m, c, (ax_span){out, (size_t)n}, 0, 0);
}

static bool refuse(ax_metronome *m, ax_peer *c, int status)
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
        {431, "Headers Too Large", "{\"error\":{\"message\":\"the head is too large\",\"code\":431}}"},
        {505, "HTTP Version Not Supported", "{\"error\":{\"message\":\"only HTTP/1.1\",\"code\":505}}"},
    };
    size_t i = 0;
    while (known[i].status != status)
        i++;
    m->refused++;
    return respond(m, c, status, known[i].reason, known[i].body);
}

/* Answers a request that is not a POST. False if the connection is lost. */
static bool serve_get(ax_metronome *m, ax_peer *c, const ax_request *r)
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
static bool take_head(ax_metronome *m, ax_peer *c, const ax_request *r)
{
    int status = r->refusal ? r->refusal : r->content_length > m->options.max_body ? 413 : 0;
    c->keep_alive = r->keep_alive && !status;
    if (status) {
        bool alive = refuse(m, c, status);
        peer_linger(m, c);
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
            peer_linger(m, c);
        return alive;
    }
    if (r->expects_continue && !peer_write(m, c, (ax_span){"HTTP/1.1 100 Continue\r\n\r\n", 25}, 0, 0))
        return false;
    if (c->body_left == 0)
        return stream_start(m, c);
    c->state = AX_PEER_BODY;
    return true;
}

/* One piece of a body; the overlap of the last piece stands in front of it. */
static bool take_body(ax_metronome *m, ax_peer *c, const char *buf, size_t len)
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
static bool take_input(ax_metronome *m, ax_peer *c, const char *buf, size_t len)
{
    while (len > 0 && (c->state == AX_PEER_HEAD || c->state == AX_PEER_BODY)) {
        size_t used;
        if (c->state == AX_PEER_BODY) {
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
    if (c->state == AX_PEER_LINGER || len == 0)
        return true;
    if (len > AX_PEER_READ_BYTES)
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
static char *recall(ax_metronome *m, ax_peer *c)
{
    char *at = m->read_buf + AX_REQUEST_OVERLAP;
    if (c->state == AX_PEER_BODY)
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
static bool finish_if_done(ax_metronome *m, ax_peer *c)
{
    if (c->state != AX_PEER_STREAM || !c->tail_written || c->out_len)
        return true;
    m->answers++;
    if (!c->keep_alive) {
        peer_linger(m, c);
        return true;
    }
    c->state = AX_PEER_HEAD;
    if (!c->carry_len)
        return true;
    char *start = m->read_buf + AX_REQUEST_OVERLAP, *end = recall(m, c);
    return take_input(m, c, start, (size_t)(end - start));
}

static bool peer_readable(ax_metronome *m, ax_peer *c)
{
    char *start = m->read_buf + AX_REQUEST_OVERLAP, *at = recall(m, c);
    size_t carried = (size_t)(at - start);
    ssize_t n = recv(c->fd, at, AX_PEER_READ_ROOM - carried, 0);
    if (n == 0)
        return false;
    if (n < 0) {
        if (errno != EAGAIN && errno != EINTR)
            return false;
        n = 0;
    }
    if (c->state == AX_PEER_LINGER)
        return true;
    return take_input(m, c, start, carried + (size_t)n);
}

void ax_peer_ready(ax_metronome *m, ax_peer *c, uint32_t events)
{
    bool alive = true;
    if (events & (EPOLLIN | EPOLLERR | EPOLLHUP))
        alive = peer_readable(m, c);
    if (alive && c->out_len && (events & EPOLLOUT)) {
        alive = peer_flush(m, c);
        if (alive && c->state == AX_PEER_LINGER && !c->out_len)
            shutdown(c->fd, SHUT_WR);
        if (alive && c->state == AX_PEER_STREAM)
            alive = stream_pump(m, c, AX_NONE) && finish_if_done(m, c);
    }
    if (!alive)
        ax_peer_close(m, c);
}

/* ---- the loop's side ---- */

bool ax_peer_open(ax_metronome *m, int fd)
{
    ax_peer *c = calloc(1, sizeof *c);
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

void ax_peer_tick(ax_metronome *m, ax_peer *c)
{
    int64_t due_ns = c->due_ns;
    if (c->state == AX_PEER_LINGER) {
        ax_peer_close(m, c);
        return;
    }
    stream_tick(m, c);
    if (!stream_pump(m, c, due_ns) || !finish_if_done(m, c))
        ax_peer_close(m, c);
}

uint64_t ax_peer_overdue(const ax_metronome *m, int64_t now)
{
    uint64_t group = (uint64_t)m->options.events_per_write * m->options.burst, events = 0;
    for (uint32_t i = 0; i < m->ticks.count; i++) {
        const ax_peer *c = m->ticks.at[i].owner;
        if (c->state != AX_PEER_STREAM || c->due_ns > now)
            continue;
        uint64_t left = c->tokens - c->due, groups = left;
        if (m->period_ns)
            groups = (uint64_t)((now - c->due_ns) / m->period_ns) + 1;
        events += groups >= (left + group - 1) / group ? left + AX_ANSWER_TAIL_EVENTS : groups * group;
    }
    return events;
}

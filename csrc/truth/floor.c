#define _GNU_SOURCE
#include "truth/floor.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "hdr.h"

#define READ_BYTES (64 * 1024)
#define EVENTS_PER_WAIT 256
#define TAIL 8 /* bytes of the last read in front of the next: both needles fit in, whole in none of them */
#define SENT_NS "\"sent_ns\":"

typedef struct stream {
    int fd;
    bool begun; /* the answer's first bytes have been seen */
    size_t sent;
    char tail[TAIL];
} stream;

typedef struct ax_floor {
    const ax_floor_options *options;
    ax_floor_result *result;
    const char **what;
    int epoll_fd;
    stream *streams; /* sockets are blocking for the connect only; later calls pass MSG_DONTWAIT */
    char *request;
    size_t request_len;
    uint64_t requests_begun;
    ax_cpu cpu_start;
    int64_t start_ns, end_ns; /* of what is counted */
    bool counting, done;
    ax_clock_pair pair;
    ax_hdr user, kernel, kernel_single;
    char buf[TAIL + READ_BYTES];
} ax_floor;

static int fail(ax_floor *f, const char *what, int error)
{
    *f->what = what;
    errno = error;
    return -1;
}

static int watch(ax_floor *f, stream *s, int op, uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.ptr = s};
    return epoll_ctl(f->epoll_fd, op, s->fd, &ev);
}

/* Sends the rest of the request, as far as the socket takes it. */
static int send_request(ax_floor *f, stream *s)
{
    bool waited = s->sent > 0;
    ssize_t n = send(s->fd, f->request + s->sent, f->request_len - s->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN)
        return fail(f, "send a request", errno);
    s->sent += n > 0 ? (size_t)n : 0;
    if (s->sent < f->request_len)
        return watch(f, s, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
    f->result->requests++;
    return waited ? watch(f, s, EPOLL_CTL_MOD, EPOLLIN) : 0;
}

static int begin_request(ax_floor *f, stream *s)
{
    if (f->options->answers && f->requests_begun == f->options->answers)
        return 0;
    f->requests_begun++;
    s->sent = 0;
    s->begun = false;
    return send_request(f, s);
}

/* Records the error of both stamps for each event in the read. */
static void record_stamps(ax_floor *f, const char *from, const char *end, int64_t user_ns, int64_t kernel_ns)
{
    int64_t last = -1;
    unsigned stamped = 0, named = 0;
    for (const char *p = from; (p = memmem(p, (size_t)(end - p), SENT_NS, sizeof SENT_NS - 1)); named++) {
        int64_t sent = 0;
        for (p += sizeof SENT_NS - 1; p < end && *p >= '0' && *p <= '9'; p++)
            sent = sent * 10 + (*p - '0');
        if (p == end)
            continue;
        stamped++;
        last = sent;
        ax_hdr_record(&f->user, user_ns - sent);
        if (kernel_ns != AX_NONE)
            ax_hdr_record(&f->kernel, kernel_ns - sent);
    }
    f->result->skipped += named - stamped;
    if (named == 1 && stamped == 1 && kernel_ns != AX_NONE)
        ax_hdr_record(&f->kernel_single, kernel_ns - last);
}

static ssize_t recv_stamped(ax_floor *f, stream *s, char *to, int64_t *kernel_ns)
{
    union {
        char buf[CMSG_SPACE(sizeof(struct timespec))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {to, READ_BYTES};
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t n = recvmsg(s->fd, &msg, MSG_DONTWAIT);
    *kernel_ns = AX_NONE;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); n > 0 && c; c = CMSG_NXTHDR(&msg, c)) {
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPNS) {
            struct timespec ts;
            memcpy(&ts, CMSG_DATA(c), sizeof ts);
            *kernel_ns = ax_timespec_ns(&ts) - f->pair.offset_ns;
        }
    }
    return n;
}

static void start_counting(ax_floor *f, int64_t now)
{
    *f->result = (ax_floor_result){.connect_s = f->result->connect_s, .warmup_events = f->result->events};
    f->counting = true;
    f->start_ns = now;
    f->end_ns = now + f->options->duration_ns;
    f->cpu_start = ax_cpu_now();
    ax_hdr_reset(&f->user);
    ax_hdr_reset(&f->kernel);
    ax_hdr_reset(&f->kernel_single);
}

/* One readiness. */
static int take(ax_floor *f, stream *s)
{
    char *at = f->buf + TAIL;
    int64_t kernel_ns = AX_NONE;
    bool kernel = f->options->stamps == AX_STAMPS_KERNEL;
    ssize_t n = kernel ? recv_stamped(f, s, at, &kernel_ns) : recv(s->fd, at, READ_BYTES, MSG_DONTWAIT);
    if (n == 0)
        return fail(f, "read: the server closed the connection", 0);
    if (n < 0)
        return errno == EAGAIN ? 0 : fail(f, "read", errno);
    int64_t now = ax_now_ns();
    if (!s->begun) {
        if (n < 12 || memcmp(at, "HTTP/1.1 200", 12) != 0)
            return fail(f, "read: the server's answer is not HTTP/1.1 200", 0);
        s->begun = true;
    }

    const char *end = at + n;
    unsigned events = 0;
    memcpy(f->buf, s->tail, TAIL);
    for (const char *p = at - 5; (p = memmem(p, (size_t)(end - p), "data: ", 6)); p += 6)
        events++;
    memcpy(s->tail, end - TAIL, TAIL);

    f->result->reads++;
    f->result->events += events;
    f->result->bytes += (uint64_t)n;
    if (f->options->stamps != AX_STAMPS_NONE) {
        if (kernel && now - f->pair.taken_ns > AX_PAIR_MAX_AGE_NS)
            f->pair = ax_clock_pair_now();
        record_stamps(f, at, end, now, kernel_ns);
    }
    if (memcmp(end - 7, "\r\n0\r\n\r\n", 7) == 0) {
        f->result->answers++;
        f->done = f->options->answers && f->result->answers == f->options->answers;
        return begin_request(f, s);
    }
    f->result->coalesced_reads += events > 1;
    if (now >= f->end_ns) {
        if (f->counting)
            f->done = true;
        else
            start_counting(f, now);
    }
    return 0;
}

static int connect_all(ax_floor *f)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(f->options->port)};
    if (inet_pton(AF_INET, f->options->host, &addr.sin_addr) != 1)
        return fail(f, "read the server's address", EINVAL);
    for (uint32_t i = 0; i < f->options->streams; i++) {
        stream *s = &f->streams[i];
        s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (s->fd < 0)
            return fail(f, "make a socket", errno);
        int on = 1, failure = 0;
        setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (f->options->stamps == AX_STAMPS_KERNEL)
            failure = setsockopt(s->fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
        if (failure || connect(s->fd, (struct sockaddr *)&addr, sizeof addr) < 0)
            return fail(f, failure ? "turn kernel stamps on" : "connect", errno);
    }
    return 0;
}

static int build_request(ax_floor *f)
{
    const ax_floor_options *o = f->options;
    char opening[256];
    static const char closing[] = "\"}]}";
    int n = snprintf(opening, sizeof opening,
                     "{\"model\":\"metronome\",\"stream\":true,\"stream_options\":{\"include_usage\":true},"
                     "\"max_completion_tokens\":%u,\"messages\":[{\"role\":\"user\",\"content\":\"",
                     o->tokens);
    size_t fixed = (size_t)n + sizeof closing - 1;
    if (o->body_bytes < fixed)
        return fail(f, "build the request: the body is too small", EINVAL);
    f->request = malloc(o->body_bytes + 256);
    if (!f->request)
        return fail(f, "allocate memory", ENOMEM);
    int head = snprintf(f->request, 256,
                        "POST /v1/chat/completions HTTP/1.1\r\nHost: %s:%u\r\nContent-Type: application/json\r\n"
                        "Content-Length: %u\r\n\r\n",
                        o->host, o->port, o->body_bytes);
    char *p = f->request + head;
    memcpy(p, opening, (size_t)n);
    memset(p + n, 'x', o->body_bytes - fixed);
    memcpy(p + o->body_bytes - (sizeof closing - 1), closing, sizeof closing - 1);
    f->request_len = (size_t)head + o->body_bytes;
    return 0;
}

static int loop(ax_floor *f, int stop_fd)
{
    struct epoll_event events[EVENTS_PER_WAIT], stop = {.events = EPOLLIN, .data.ptr = NULL};
    if (stop_fd >= 0 && epoll_ctl(f->epoll_fd, EPOLL_CTL_ADD, stop_fd, &stop) < 0)
        return fail(f, "watch for the stop", errno);
    start_counting(f, ax_now_ns());
    if (f->options->warmup_ns > 0 && !f->options->answers) {
        f->counting = false;
        f->end_ns = f->start_ns + f->options->warmup_ns;
    }
    for (uint32_t i = 0; i < f->options->streams; i++) {
        stream *s = &f->streams[i];
        if (watch(f, s, EPOLL_CTL_ADD, EPOLLIN) < 0)
            return fail(f, "watch a socket", errno);
        if (begin_request(f, s) < 0)
            return -1;
    }
    while (!f->done) {
        int n = epoll_wait(f->epoll_fd, events, EVENTS_PER_WAIT, 100);
        if (n < 0 && errno != EINTR)
            return fail(f, "wait for events", errno);
        if (n <= 0 && f->counting && ax_now_ns() >= f->end_ns)
            f->done = true; /* the server has fallen silent */
        for (int i = 0; i < n && !f->done; i++) {
            stream *s = events[i].data.ptr;
            if (!s) {
                f->done = true;
            } else if (events[i].events & EPOLLOUT) {
                if (send_request(f, s) < 0)
                    return -1;
            } else if (take(f, s) < 0) {
                return -1;
            }
        }
    }
    ax_cpu cpu = ax_cpu_since(&f->cpu_start);
    f->result->seconds = (double)(ax_now_ns() - f->start_ns) / 1e9;
    f->result->cpu_s = cpu.total_s;
    f->result->cpu_user_s = cpu.user_s;
    f->result->cpu_system_s = cpu.system_s;
    return 0;
}

static int run(ax_floor *f, int stop_fd)
{
    f->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (f->epoll_fd < 0)
        return fail(f, "make an epoll instance", errno);
    f->streams = calloc(f->options->streams, sizeof *f->streams);
    /* From 1 ns on: kernel stamps lie microseconds behind the send. */
    if (!f->streams || ax_hdr_init(&f->user, 1, AX_HDR_HIGHEST, AX_HDR_DIGITS) < 0 ||
        ax_hdr_init(&f->kernel, 1, AX_HDR_HIGHEST, AX_HDR_DIGITS) < 0 ||
        ax_hdr_init(&f->kernel_single, 1, AX_HDR_HIGHEST, AX_HDR_DIGITS) < 0)
        return fail(f, "allocate memory", ENOMEM);
    for (uint32_t i = 0; i < f->options->streams; i++)
        f->streams[i].fd = -1;
    f->pair = ax_clock_pair_now();
    int64_t start = ax_now_ns();
    if (build_request(f) < 0 || connect_all(f) < 0)
        return -1;
    f->result->connect_s = (double)(ax_now_ns() - start) / 1e9;
    if (loop(f, stop_fd) < 0)
        return -1;
    f->result->user = ax_spread_of(&f->user);
    f->result->kernel = ax_spread_of(&f->kernel);
    f->result->kernel_single = ax_spread_of(&f->kernel_single);
    return 0;
}

int ax_floor_run(const ax_floor_options *options, int stop_fd, ax_floor_result *result, const char **what)
{
    ax_floor *f = calloc(1, sizeof *f);
    *result = (ax_floor_result){0};
    if (!f) {
        *what = "allocate memory";
        return -1;
    }
    f->options = options;
    f->result = result;
    f->what = what;
    int outcome = run(f, stop_fd), failure = errno;
    for (uint32_t i = 0; f->streams && i < options->streams; i++)
        if (f->streams[i].fd >= 0)
            close(f->streams[i].fd);
    if (f->epoll_fd >= 0)
        close(f->epoll_fd);
    ax_hdr_free(&f->user);
    ax_hdr_free(&f->kernel);
    ax_hdr_free(&f->kernel_single);
    free(f->streams);
    free(f->request);
    free(f);
    errno = failure;
    return outcome;
}

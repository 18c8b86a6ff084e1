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
#include "truth/peer.h"

#define EVENTS_PER_WAIT 256
#define TICKS_PER_TURN 256 /* between two looks at the sockets, so that an overloaded server still accepts */

/* The C library's wrapper, and the number in its headers, are younger than the systems that wheels are
 * built for. The number is the same on every architecture. */
#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif

static void accept_all(ax_metronome *m)
{
    for (;;) {
        int fd = accept4(m->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            if (!ax_peer_open(m, fd)) {
                m->refused++;
                close(fd);
            }
        } else if ((errno == EMFILE || errno == ENFILE) && m->spare_fd >= 0) {
            /* Left in the queue, the connection would keep the loop awake and its client waiting. The
             * kernel wants a descriptor before it looks into the queue, so that EMFILE does not say
             * that there is a connection. */
            close(m->spare_fd);
            fd = accept(m->listen_fd, NULL, NULL);
            if (fd >= 0)
                close(fd);
            m->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
            if (fd < 0)
                return;
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
        ax_peer_tick(m, top.owner);
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
                ax_peer_ready(m, who, events[i].events);
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
    /* A congestion control that paces (BBR, the default of some hosts) would hold an event back after its
     * sent_ns. Reno never does, and no kernel is without it. Accepted sockets inherit it. */
    if (setsockopt(m->listen_fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4) < 0)
        return "turn pacing off";
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
    m->read_buf = malloc(AX_REQUEST_OVERLAP + AX_PEER_READ_ROOM);
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

size_t ax_metronome_json(const ax_metronome *m, char *out)
{
    ax_cpu cpu = ax_cpu_since(&m->cpu_start);
    double seconds = m->events_sent ? (double)(m->last_event_ns - m->first_request_ns) / 1e9 : 0;
    ax_spread late = ax_spread_of(&m->lateness);
    uint64_t offered = m->events_offered + ax_peer_overdue(m, ax_now_ns());
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
        ax_peer_close(m, m->conns);
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

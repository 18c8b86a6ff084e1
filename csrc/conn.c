#include "conn.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "reactor.h"

static ax_conn **bucket_of(ax_pool *p, uint32_t endpoint, uint64_t session)
{
    uint64_t key = p->by_session ? session * UINT64_C(0x9E3779B97F4A7C15) + endpoint : endpoint;
    return &p->bucket[(key ^ (key >> 32)) % AX_POOL_BUCKETS];
}

void ax_pool_put(ax_pool *p, ax_conn *c, int64_t now)
{
    ax_conn **head = bucket_of(p, c->endpoint, c->session);
    c->state = AX_CONN_IDLE;
    c->x = NULL;
    c->idle_since = now;
    c->pool_prev = NULL;
    c->pool_next = *head;
    if (*head)
        (*head)->pool_prev = c;
    *head = c;
}

void ax_pool_remove(ax_pool *p, ax_conn *c)
{
    if (c->pool_prev)
        c->pool_prev->pool_next = c->pool_next;
    else
        *bucket_of(p, c->endpoint, c->session) = c->pool_next;
    if (c->pool_next)
        c->pool_next->pool_prev = c->pool_prev;
    c->pool_prev = c->pool_next = NULL;
}

ax_conn *ax_pool_take(ax_pool *p, uint32_t endpoint, uint64_t session, int64_t when, int64_t max_idle)
{
    for (ax_conn *c = *bucket_of(p, endpoint, session); c; c = c->pool_next) {
        if (c->endpoint != endpoint || (p->by_session && c->session != session))
            continue;
        if (when - c->idle_since >= max_idle)
            continue;
        ax_pool_remove(p, c);
        return c;
    }
    return NULL;
}

static int set_int(int fd, int level, int option, int value)
{
    return setsockopt(fd, level, option, &value, sizeof value);
}

int ax_conn_open(const ax_endpoint *to, int user_timeout_ms)
{
    int fd = socket(to->addr.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    /* A kernel without receive stamps still works: reads then carry user time, counted and said. */
    set_int(fd, SOL_SOCKET, SO_TIMESTAMPNS, 1);
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    if (user_timeout_ms > 0)
        set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, user_timeout_ms);
    if (connect(fd, (const struct sockaddr *)&to->addr, to->addr_len) < 0 && errno != EINPROGRESS) {
        int err = errno;
        close(fd);
        return -err;
    }
    return fd;
}

int ax_conn_error(int fd)
{
    int err = 0;
    socklen_t len = sizeof err;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len) < 0)
        return errno;
    return err;
}

int64_t ax_conn_recv(int fd, char *buf, size_t room, int64_t *real_ns)
{
    union {
        char bytes[CMSG_SPACE(sizeof(struct timespec))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {buf, room};
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    ssize_t n;
    do
        n = recvmsg(fd, &msg, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    *real_ns = AX_NONE;
    if (n < 0)
        return -errno;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPNS) {
            struct timespec ts;
            memcpy(&ts, CMSG_DATA(c), sizeof ts);
            *real_ns = ax_timespec_ns(&ts);
        }
    }
    return n;
}

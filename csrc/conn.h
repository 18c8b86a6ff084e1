/* One socket of a reactor: connecting, reading with kernel stamps, and the pool of idle ones. */
#ifndef AX_CONN_H
#define AX_CONN_H

#include <stdbool.h>
#include <stdint.h>

#include "clock.h"
#include "exchange.h"

struct ax_endpoint;

typedef enum ax_conn_state {
    AX_CONN_CONNECTING = 0,
    AX_CONN_IDLE,     /* in the pool */
    AX_CONN_ASSIGNED, /* to an exchange, which may still wait for its due time */
    AX_CONN_DEAD,     /* closed; freed at the end of the turn */
} ax_conn_state;

typedef struct ax_conn {
    int fd;
    ax_conn_state state;
    bool want_out; /* EPOLLOUT is registered */
    uint32_t endpoint;
    uint32_t requests; /* sent on it before the present one */
    uint64_t session;
    ax_exchange *x;
    int64_t connect_started;
    int64_t idle_since;

    /* For P, the time since which unread data must have arrived. */
    int64_t last_stamp;    /* K of the last read */
    int64_t drained_stamp; /* K of the last read that left nothing unread */
    int64_t unlisted_at;   /* a time at or before the last listing without this socket */
    uint64_t listed_turn;

    struct ax_conn *all_prev, *all_next;
    struct ax_conn *pool_prev, *pool_next;
} ax_conn;

#define AX_POOL_BUCKETS 1024

/* Idle sockets, most recently used first within a bucket. */
typedef struct ax_pool {
    ax_conn *bucket[AX_POOL_BUCKETS];
    bool by_session;
} ax_pool;

void ax_pool_put(ax_pool *p, ax_conn *c, int64_t now);
void ax_pool_remove(ax_pool *p, ax_conn *c);

/* Takes the most recently used socket for (endpoint, session) that will have been idle for less than
 * max_idle at `when`; NULL if there is none. */
ax_conn *ax_pool_take(ax_pool *p, uint32_t endpoint, uint64_t session, int64_t when, int64_t max_idle);

/* Opens a non-blocking socket and starts to connect. Returns the fd, or -errno. */
int ax_conn_open(const struct ax_endpoint *to, int user_timeout_ms);

/* Result of a finished connect: 0 or an errno. */
int ax_conn_error(int fd);

/* One recvmsg. Returns the bytes, 0 at end of stream, or -errno; *real_ns is the kernel's
 * CLOCK_REALTIME stamp of the newest data, AX_NONE where the control message is absent. */
int64_t ax_conn_recv(int fd, char *buf, size_t room, int64_t *real_ns);

#endif

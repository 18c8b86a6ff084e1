/* One client's connection to the metronome: reads requests, writes answers, keeps what the socket does
 * not take. Private to metronome.c, which has the loop, and peer.c.
 *
 *     HEAD --POST with body--> BODY --last byte--> STREAM --answer has left--> HEAD
 *       |                                            |
 *       +--refused, or GET with "close"--> LINGER <--+ "close"
 */
#ifndef AX_PEER_H
#define AX_PEER_H

#include <stdbool.h>
#include <stdint.h>

#include "hdr.h"
#include "truth/answer.h"
#include "truth/measure.h"
#include "truth/metronome.h"
#include "truth/request.h"
#include "truth/ticks.h"

#define AX_PEER_READ_BYTES (256 * 1024)
#define AX_PEER_READ_ROOM (AX_REQUEST_MAX_HEAD + AX_PEER_READ_BYTES)

typedef enum ax_peer_state {
    AX_PEER_HEAD,   /* waiting for a request's head */
    AX_PEER_BODY,   /* draining its body */
    AX_PEER_STREAM, /* answering */
    AX_PEER_LINGER, /* answered with "close"; waits for the peer's end, so that no RST destroys the answer */
} ax_peer_state;

typedef struct ax_peer {
    int fd;
    ax_peer_state state;
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

    struct ax_peer *prev, *next;
} ax_peer;

struct ax_metronome {
    ax_metronome_options options;
    ax_answer answer;
    ax_ticks ticks;
    ax_peer *conns;
    int listen_fd, epoll_fd;
    int timer_fd; /* -1 while epoll_pwait2 works */
    int spare_fd; /* given up to accept and close a connection when descriptors run out */
    uint16_t port;
    uint32_t conn_count;
    int64_t period_ns; /* between two groups of a stream */
    int64_t epoch_ns;

    uint64_t requests, answers, aborted, refused, accepted;
    uint64_t events_offered; /* by the ticks so far, see ax_peer_overdue */
    uint64_t events_sent, events_deferred, bytes_sent;
    int64_t first_request_ns, last_event_ns;
    ax_hdr lateness;
    ax_cpu cpu_start;

    char *read_buf; /* AX_REQUEST_OVERLAP bytes of room, then AX_PEER_READ_ROOM */
};

/* Takes over the socket. False for lack of memory; the socket is then still the caller's. */
bool ax_peer_open(ax_metronome *m, int fd);
void ax_peer_close(ax_metronome *m, ax_peer *c);

/* Both may close the connection. */
void ax_peer_ready(ax_metronome *m, ax_peer *c, uint32_t epoll_events);
void ax_peer_tick(ax_metronome *m, ax_peer *c); /* its entry is on top of the ticks, and due */

/* Events due by the schedule whose ticks have not been come to yet, of all connections. */
uint64_t ax_peer_overdue(const ax_metronome *m, int64_t now);

#endif

/* The metronome: a server that is the truth which a client's measurements are compared with.
 *
 * It answers every POST with a stream of chat completion events (answer.h) whose tokens are due at
 * fixed times and which carry the time at which they were really sent. One thread, one epoll, no
 * mutable globals; it measures its own lateness, so that a late server is not taken for a slow client.
 *
 * Schedule of an answer. With t = the moment at which the last byte of the request was read and
 * G = events_per_write x burst, token i is due at
 *
 *     first + (i / G) * G * interval        first = t + ttft
 *
 * so that the token rate is the same for every G. A due group goes out as `burst` writes of
 * `events_per_write` events each. The phase moves `first` to the next point of a grid of G intervals:
 * one grid for everybody (SYNC), or one per connection, evenly spread (SPREAD). Deadlines are
 * absolute, lateness does not add up. Finish, usage and [DONE] follow the last token in a write of
 * their own.
 *
 * A client that does not read stops nothing: its events stay due, count as offered and as deferred,
 * and are sent when the socket takes bytes again. None is lost or merged.
 *
 * Also answers GET /health, /v1/models and /stats (the statistics as JSON). Requests with chunked
 * bodies get 411, larger ones than max_body 413.
 */
#ifndef AX_METRONOME_H
#define AX_METRONOME_H

#include <stddef.h>
#include <stdint.h>

typedef enum ax_phase {
    AX_PHASE_NATURAL = 0, /* ticks stay where the requests came in */
    AX_PHASE_SPREAD,
    AX_PHASE_SYNC,
} ax_phase;

typedef struct ax_metronome_options {
    const char *bind; /* IPv4 address */
    uint16_t port;    /* 0 = any free one */
    ax_phase phase;
    int64_t ttft_ns;
    int64_t interval_ns;
    uint32_t tokens; /* of an answer whose request states no limit */
    uint32_t event_bytes;
    uint32_t events_per_write;
    uint32_t burst;
    int64_t prompt_tokens; /* in `usage`; -1 = bytes of the request's body */
    int64_t max_body;      /* bytes */
    int send_buffer;       /* SO_SNDBUF, 0 = the kernel's choice */
} ax_metronome_options;

#define AX_METRONOME_JSON_MAX 2048

typedef struct ax_metronome ax_metronome;

/* Binds and listens. On failure returns NULL, sets errno and points *what at the step that failed
 * (static text). The options are copied. */
ax_metronome *ax_metronome_open(const ax_metronome_options *options, const char **what);
uint16_t ax_metronome_port(const ax_metronome *m);

/* Serves until stop_fd is readable (an eventfd, a pipe; its content is left there). 0, or -1 with
 * errno. Sets the calling thread's timer slack to 1 ns for the time of the call. */
int ax_metronome_run(ax_metronome *m, int stop_fd);

/* Writes the statistics as one line of JSON without a line end, at most AX_METRONOME_JSON_MAX bytes
 * with the terminator; returns its length. Call it on the thread that ran the server: CPU is its own.
 *
 *   requests, answers, aborted, refused, connections, connections_open     counts
 *   events_offered   due by the schedule: tokens, finish, usage and [DONE]
 *   events_sent      taken whole by the kernel
 *   events_deferred  of those, the ones which waited for the client to read
 *   bytes_sent
 *   seconds          from the first request to the last event sent
 *   offered_per_s, achieved_per_s
 *   lateness_us      {count, p50, p99, max} of token writes, time of the send - due, deferred ones apart
 *   cpu_s, cpu_user_s, cpu_system_s   of the thread since the run began */
size_t ax_metronome_json(const ax_metronome *m, char *out);

void ax_metronome_close(ax_metronome *m);

#endif

/* Incremental parser of server-sent events (WHATWG HTML, section 9.2.6), no I/O, linear time.
 *
 * Line ends are CRLF, LF or CR, also cut between two feeds; a leading byte-order mark is skipped;
 * `data` lines are joined with LF; one space after the colon is removed; comments and unknown fields
 * are ignored. An event is dispatched at its blank line if it had a `data` field (also an empty one).
 *
 * Events that lie whole in the fed bytes with one data line are returned as spans into them;
 * everything else is assembled in a buffer that the parser owns, which stays valid until the next
 * call. An event longer than `max_event` bytes ends the stream with AX_SSE_TOO_LARGE.
 *
 * One deviation from WHATWG: an event that the end of the stream cuts off before its blank line is
 * delivered by ax_sse_eof if it had a complete or incomplete `data` line, since servers omit the
 * last blank line.
 */
#ifndef AX_SSE_H
#define AX_SSE_H

#include <stdbool.h>
#include <stdint.h>

#include "span.h"

typedef enum ax_sse_result {
    AX_SSE_NEED = 0,
    AX_SSE_EVENT = 1,
    AX_SSE_TOO_LARGE = -1,
    AX_SSE_NO_MEMORY = -2,
} ax_sse_result;

typedef struct ax_sse_event {
    ax_span data;
    ax_span name; /* the `event` field, empty if there was none; truncated to 63 bytes */
} ax_sse_event;

typedef struct ax_sse {
    uint64_t events;   /* dispatched so far */
    uint64_t comments; /* comment lines seen so far: they reset idle timers, nothing else */
    size_t max_event;

    /* Private. */
    char *buf; /* data of an event that arrives in pieces or has several data lines */
    size_t len, cap;
    uint8_t state;
    uint8_t flags;
    uint8_t name_len;
    uint8_t field_len;
    char field[8];
    char name[64];
} ax_sse;

void ax_sse_init(ax_sse *p, size_t max_event);
void ax_sse_reset(ax_sse *p); /* ready for another stream; keeps the buffer */
void ax_sse_free(ax_sse *p);

/* Looks for one event. Advances *cur; AX_SSE_NEED means that all bytes were consumed. */
ax_sse_result ax_sse_next(ax_sse *p, const char **cur, const char *end, ax_sse_event *ev);

/* The stream ended; returns AX_SSE_EVENT at most once. */
ax_sse_result ax_sse_eof(ax_sse *p, ax_sse_event *ev);

#endif

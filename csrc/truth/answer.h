/* The bytes of the metronome's answers: made once, patched per event.
 *
 * An answer is a head, N token events, then in one write the finish event, the usage event, `[DONE]`
 * and the terminating chunk. Every event is an HTTP chunk of its own. Events with JSON carry
 *   "seq"      0-based number of the event in its answer (finish is N, usage N + 1)
 *   "sent_ns"  CLOCK_MONOTONIC just before the send() that took the event
 * at top level. Token events have one fixed length: numbers are followed by blanks, which JSON allows.
 */
#ifndef AX_TRUTH_ANSWER_H
#define AX_TRUTH_ANSWER_H

#include <stdbool.h>
#include <stdint.h>

#include "span.h"

#define AX_ANSWER_TAIL_MAX 1024
#define AX_ANSWER_TAIL_EVENTS 3 /* finish, usage, [DONE] */
#define AX_ANSWER_MAX_EVENT 60000

typedef struct ax_answer {
    char *batch;       /* events_per_write copies of a token event, each in its chunk framing */
    size_t chunk_len;  /* bytes of one */
    size_t id_at, seq_at, sent_at;
    uint32_t events_per_write;
} ax_answer;

/* Length of the shortest token event, `data: ` and blank line included. */
size_t ax_answer_min_event(void);

/* event_bytes between ax_answer_min_event() and AX_ANSWER_MAX_EVENT. 0, or -1 for lack of memory. */
int ax_answer_init(ax_answer *a, size_t event_bytes, uint32_t events_per_write);
void ax_answer_free(ax_answer *a);

/* Head of a streamed answer. */
ax_span ax_answer_head(bool keep_alive);

/* Writes id and sequence numbers of the next `count` token events into the batch. The time is written
 * apart, so that as little as possible stands between the clock and the send. */
ax_span ax_answer_events(ax_answer *a, uint64_t id, uint64_t seq, uint32_t count);
void ax_answer_stamp(ax_answer *a, uint32_t count, int64_t sent_ns);

/* Writes everything behind the last token event to out[AX_ANSWER_TAIL_MAX]; returns its length. */
size_t ax_answer_tail(char *out, uint64_t id, uint64_t tokens, int64_t prompt_tokens, bool limited,
                      int64_t sent_ns);

#endif

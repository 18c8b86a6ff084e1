/* Scanner of one stream event of an inference API: says what is in it, builds nothing.
 *
 * One pass over the JSON text, no recursion, no allocation; keys in any order, any white space, any
 * escapes in keys and values, nesting up to AX_CHUNK_MAX_DEPTH. A dialect is a table (which keys on which
 * path mean what), so that another API is another table.
 *
 * AX_DIALECT_CHAT, OpenAI chat completions:
 *   choices[0].delta.content            non-empty string: TEXT
 *   choices[0].delta.reasoning_content | reasoning | reasoning_details[].text    non-empty: REASONING
 *   choices[0].delta.tool_calls         an element with a non-empty function name or arguments: TOOL
 *   choices[0].delta.refusal            non-empty string: TEXT
 *   choices[0].finish_reason            non-empty string: FINISH (some proxies send "" with every event)
 *   usage                               an object with any count: USAGE (null and absent are the same)
 *     prompt_tokens, completion_tokens, prompt_tokens_details.cached_tokens,
 *     completion_tokens_details.reasoning_tokens; null = absent
 *   error                               a non-empty object or string, at top level: ERROR
 *   sent_ns, seq                        integers at top level, written by the metronome
 * Only choices[0] counts. `message` in place of `delta` (a whole completion) is read the same way.
 * The text `[DONE]` (white space around it allowed) is DONE.
 * An event named `error` is ERROR whatever its data is.
 * Of duplicate keys the last one counts, with everything below it.
 */
#ifndef AX_CHUNK_H
#define AX_CHUNK_H

#include <stdint.h>

#include "span.h"

#define AX_CHUNK_MAX_DEPTH 64

typedef enum ax_chunk_flag {
    AX_CHUNK_TEXT = 1 << 0,
    AX_CHUNK_REASONING = 1 << 1,
    AX_CHUNK_TOOL = 1 << 2,
    AX_CHUNK_FINISH = 1 << 3,
    AX_CHUNK_USAGE = 1 << 4,
    AX_CHUNK_ERROR = 1 << 5,
    AX_CHUNK_DONE = 1 << 6,
    AX_CHUNK_MALFORMED = 1 << 7, /* not JSON, or not an object: nothing else is set, save ERROR by the event's name */
} ax_chunk_flag;

#define AX_CHUNK_CONTENT (AX_CHUNK_TEXT | AX_CHUNK_REASONING | AX_CHUNK_TOOL)

typedef enum ax_finish {
    AX_FINISH_NONE = 0,
    AX_FINISH_STOP,
    AX_FINISH_LENGTH,
    AX_FINISH_TOOL_CALLS,
    AX_FINISH_CONTENT_FILTER,
    AX_FINISH_OTHER,
} ax_finish;

typedef enum ax_dialect {
    AX_DIALECT_CHAT = 0,
} ax_dialect;

/* Token counts as the server states them; -1 = absent. */
typedef struct ax_usage {
    int64_t prompt;
    int64_t completion;
    int64_t cached;
    int64_t reasoning;
} ax_usage;

typedef struct ax_chunk {
    uint32_t flags;
    ax_finish finish;
    ax_usage usage;
    /* Of an error: spans into the data, JSON escapes not undone. message = error.message, or the error
     * itself where it is a string, or the whole data where nothing better is there. */
    ax_span error_message;
    ax_span error_type;  /* error.type, or error.code where that is a string */
    int64_t error_code;  /* error.code where that is an integer, else -1 */
    int64_t sent_ns;     /* -1 = absent */
    int64_t seq;         /* -1 = absent */
} ax_chunk;

/* Scans one event and returns out->flags. Every field of *out is written. */
uint32_t ax_chunk_scan(ax_dialect dialect, ax_span event_name, ax_span data, ax_chunk *out);

#define AX_CHUNK_HOLES 8

/* The last event of one stream of one dialect, without its values; all zeros = none yet. */
typedef struct ax_chunk_memo {
    uint64_t recalled; /* events that needed no scan so far */

    /* Private. */
    uint64_t seen;
    uint16_t len;
    uint8_t holes;
    uint8_t misses;
    struct {
        uint16_t from, to;
        uint8_t slot;
    } hole[AX_CHUNK_HOLES];
    char text[512];
} ax_chunk_memo;

/* The same result in less time where the event differs from an earlier one of its stream only in its
 * texts and counts. */
uint32_t ax_chunk_scan_next(ax_dialect dialect, ax_chunk_memo *memo, ax_span event_name, ax_span data,
                            ax_chunk *out);

#endif

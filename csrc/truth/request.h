/* What the metronome needs to know of an HTTP/1.1 request: where its head ends, how long its body is,
 * and how many tokens it asks for. No I/O, no allocation.
 *
 * Only bodies with a Content-Length are taken. The token limit is found by text search and not by
 * parsing, since bodies are megabytes and the server must stay on time: the last
 * `"max_completion_tokens": N`, else the last `"max_tokens": N`. Inside a JSON string the quotes would
 * be escaped, so prompt text cannot match.
 */
#ifndef AX_TRUTH_REQUEST_H
#define AX_TRUTH_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "span.h"

#define AX_REQUEST_MAX_HEAD (64 * 1024)

/* How much of the end of a scanned body piece must be put in front of the next one, so that a limit
 * cut by the pieces is found: the longest key, white space and ten digits. */
#define AX_REQUEST_OVERLAP 47

typedef struct ax_request {
    ax_span method, target; /* borrowed from the parsed bytes */
    int64_t content_length; /* 0 where the request has no body */
    bool keep_alive;
    bool expects_continue;
    int refusal; /* HTTP status to refuse the request with; 0 = none */
} ax_request;

/* Bytes of the head up to and including its blank line, or 0 if it is not complete yet. A head that
 * cannot be used sets `refusal` (400, 411, 431 or 505). */
size_t ax_request_parse(const char *buf, size_t len, ax_request *out);

/* Limits found so far, -1 = none. */
typedef struct ax_request_limit {
    int64_t max_completion_tokens, max_tokens;
} ax_request_limit;

/* Looks for limits in one piece of a body. A number that touches the end of the piece is taken only if
 * `last`, since its digits may go on in the next piece. */
void ax_request_scan(ax_request_limit *limit, const char *buf, size_t len, bool last);

#endif

/* Incremental HTTP/1.1 response parser (RFC 9112), no I/O and no allocation.
 *
 * Pull style: the caller owns the bytes and asks for one thing at a time.
 *
 *     const char *cur = buf, *end = buf + n;
 *     for (;;) switch (ax_http1_next(&p, &cur, end, &span)) {
 *         case AX_HTTP1_NEED: return;             // everything consumed; read more
 *         case AX_HTTP1_HEAD: ...                 // p.status, p.content_length, ... are valid now
 *         case AX_HTTP1_BODY: use(span);          // body bytes, framing removed, borrowed from buf
 *         case AX_HTTP1_END:  ...                 // message complete; cur points behind it
 *         case AX_HTTP1_FAIL: ...                 // p.error says what; the parser stays failed
 *     }
 *
 * 1xx responses are skipped (101 is a failure: no upgrade was asked for). 204 and 304 have no body.
 * Linear in the bytes fed for any split. Anything that could be framed in two ways is refused:
 * both Transfer-Encoding and Content-Length, several different Content-Length, a Transfer-Encoding
 * other than chunked, obs-fold, bare CR, NUL in a header. A bare LF as line end is accepted.
 */
#ifndef AX_HTTP1_H
#define AX_HTTP1_H

#include <stdbool.h>
#include <stdint.h>

#include "span.h"

#define AX_HTTP1_MAX_HEAD (64 * 1024) /* bytes of one head, trailers included */

typedef enum ax_http1_event {
    AX_HTTP1_NEED = 0,
    AX_HTTP1_HEAD,
    AX_HTTP1_BODY,
    AX_HTTP1_END,
    AX_HTTP1_FAIL,
} ax_http1_event;

typedef struct ax_http1 {
    /* Valid from AX_HTTP1_HEAD until ax_http1_reset. */
    int status;             /* 200 .. 599 */
    int minor;              /* HTTP/1.minor */
    int64_t content_length; /* -1 = not stated */
    bool chunked;
    bool keep_alive;        /* the connection may carry another request */
    bool encoded;           /* a Content-Encoding other than identity */
    char content_type[96];  /* lower case, parameters cut off, truncated to fit, NUL-terminated */
    char location[256];     /* of a redirect, truncated to fit */
    char reason[64];        /* reason phrase, truncated to fit */
    const char *error;      /* static text, NULL unless failed */

    /* Private. */
    uint8_t state;
    uint8_t flags;
    uint8_t name_len;
    uint8_t header;
    uint16_t value_len;
    uint32_t head_bytes; /* of this head, then of the trailers too */
    uint32_t line_bytes; /* of this chunk size line */
    int64_t left;        /* bytes of this body or chunk that are still to come */
    char name[32];
    char value[256];
} ax_http1;

void ax_http1_reset(ax_http1 *p);

/* One step. Advances *cur; `span` is written for AX_HTTP1_BODY only. */
ax_http1_event ax_http1_next(ax_http1 *p, const char **cur, const char *end, ax_span *span);

/* The peer closed. AX_HTTP1_END where the close delimits the body, else AX_HTTP1_FAIL
 * ("closed before the response head", "closed inside the body", ...). */
ax_http1_event ax_http1_eof(ax_http1 *p);

/* True while no byte of a response has been consumed. */
bool ax_http1_idle(const ax_http1 *p);

#endif

/* One request and its response: a state machine over http1, sse and chunk, no I/O.
 *
 * The owner fills the request part, a reactor (or a test, or another transport) drives it: it reports
 * what was sent, feeds what was read together with the stamp of the read, and reports how the
 * connection ended. The exchange keeps every stamp, counts, token times, the server's words in case of
 * failure, and says in the end which one of the outcomes it was.
 *
 * Stamps. Every event that a read completes is stamped with the read's stamp K, the arrival of its
 * newest data. Every event of the read arrived in [P, K]. K is exact for the last event of the read if the
 * newest data are its own; all other events are *coalesced* and carry the slack K - P: the earlier events of
 * a read with several, and the last one too if bytes of a further event follow it in the read, or if the
 * read was cut.
 */
#ifndef AX_EXCHANGE_H
#define AX_EXCHANGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "chunk.h"
#include "clock.h"
#include "http1.h"
#include "rope.h"
#include "span.h"
#include "sse.h"
#include "timers.h"

#define AX_MAX_EVENT (16u << 20)  /* bytes of one stream event */
#define AX_MAX_TOKENS (1u << 24)  /* content events whose times are kept */
#define AX_MAX_WORDS 4096         /* bytes kept of what a failing server said */

/* In order of precedence; the first that applies is the outcome. */
typedef enum ax_outcome {
    AX_PENDING = 0,
    AX_CANCELLED,
    AX_TIMEOUT_CONNECT,
    AX_TIMEOUT_FIRST_BYTE,
    AX_TIMEOUT_IDLE,
    AX_TIMEOUT_TOTAL,
    AX_CONNECT_ERROR,
    AX_SEND_ERROR,
    AX_HTTP_STATUS,
    AX_NOT_A_STREAM,
    AX_SERVER_ERROR_EVENT,
    AX_MALFORMED,
    AX_EMPTY,
    AX_TRUNCATED,
    AX_RESET,
    AX_SUCCESS,
} ax_outcome;

/* Where the exchange is; written by its driver, may be read by any thread. */
typedef enum ax_phase {
    AX_PHASE_NEW = 0,
    AX_PHASE_WAITING, /* for its due time */
    AX_PHASE_CONNECTING,
    AX_PHASE_SENDING,
    AX_PHASE_HEAD, /* sent, no response head yet */
    AX_PHASE_STREAM,
    AX_PHASE_DONE,
} ax_phase;

/* How the connection ended under the exchange. */
typedef enum ax_closing {
    AX_CLOSED_NOT = 0, /* the response was complete by its framing */
    AX_CLOSED_FIN,
    AX_CLOSED_RST, /* reset, or any other socket error: see `error_errno` */
    AX_CLOSED_BY_US,
} ax_closing;

enum {
    AX_KEEP_USER_NS = 1 << 0, /* keep the user-space time of each content event too */
    AX_KEEP_SENT_NS = 1 << 1, /* keep the metronome's send stamp of each content event */
    AX_REACTIVE = 1 << 2,     /* the due time could not be known in advance */
};

typedef struct ax_stamps {
    int64_t due, armed, conn_ready, first_sent, last_sent, ack;
    int64_t first_event, first_content, first_text, last_content, last_event, end;
} ax_stamps;

/* The read whose bytes are fed. */
typedef struct ax_read {
    int64_t stamp_ns; /* K */
    int64_t since_ns; /* P */
    int64_t user_ns;  /* clock after the read returned */
    bool kernel;      /* K is the kernel's */
    bool cut;         /* the read filled its buffer: K may be the stamp of bytes that are yet to be read */
} ax_read;

typedef enum ax_feed {
    AX_FEED_MORE = 0, /* all bytes taken */
    AX_FEED_END,      /* the response is complete by its framing */
    AX_FEED_FAIL,     /* the bytes are no response; drop the connection */
} ax_feed;

typedef struct ax_exchange {
    /* The request. Set by the owner before submission, constant afterwards. */
    ax_span head;        /* request line and header fields, with the empty line */
    const ax_rope *body; /* borrowed; may be NULL */
    int64_t max_tokens;  /* output limit asked for */
    uint64_t session;    /* connection affinity */
    uint32_t endpoint;
    uint32_t flags;
    ax_dialect dialect;
    void *owner;

    /* The result. Owned by the driver until the phase is AX_PHASE_DONE. */
    ax_stamps at;
    ax_outcome outcome;
    ax_closing closing;
    int error_errno;
    const char *error_static; /* fixed words of ours */
    char *words;              /* the server's words: error message or body, bounded; NUL-terminated, may be NULL */
    size_t words_len;
    char error_type[64];
    int64_t error_code; /* -1 = none */
    int status;         /* 0 = no response head */
    char content_type[96];
    ax_usage usage;
    ax_finish finish;
    uint32_t seen; /* union of the chunk flags */
    bool kernel_stamps;
    bool reused, drained, framed; /* framed: complete by HTTP framing */
    uint8_t reconnects;
    int64_t connect_ns; /* duration of the connect made for this exchange, AX_NONE if reused */
    uint64_t reads, events, content_events, coalesced_events, usage_events;
    uint64_t bytes_in, bytes_out;

    /* One entry for each content event; *_ns arrays hold kept_tokens entries. */
    uint32_t kept_tokens, cap_tokens;
    int64_t *token_ns;
    uint32_t *token_slack_ns; /* 0 = exact */
    int64_t *token_user_ns;   /* with AX_KEEP_USER_NS */
    int64_t *token_sent_ns;   /* with AX_KEEP_SENT_NS; -1 where the event had none */

    _Atomic uint8_t phase;   /* ax_phase */
    _Atomic uint8_t command; /* set by the owner: cancel */

    /* Driver's private part. */
    struct ax_exchange *next; /* submission or completion stack */
    struct ax_exchange *live_prev, *live_next;
    struct ax_exchange *send_prev, *send_next;
    struct ax_conn *conn;
    ax_rope_cursor cursor;
    size_t head_sent;
    ax_timer timer;
    uint8_t timer_kind;
    bool in_send_list, fresh_send, send_blocked;

    /* Parsers. */
    ax_http1 http;
    ax_sse sse;
    ax_chunk_memo memo;
    bool head_done, body_is_stream, stream_over;
    ax_read last_read;
    uint32_t read_first_token; /* index of the first content event of the current read */
    uint32_t read_events;
    bool read_ended_with_content;
    const char *read_event_end; /* behind the last event of the current read; valid in ax_exchange_feed */
} ax_exchange;

void ax_exchange_init(ax_exchange *x);
void ax_exchange_free(ax_exchange *x);

/* Forgets a first attempt that got no byte, before the request is sent again. */
void ax_exchange_rewind(ax_exchange *x);

/* Bytes of the request that are still to be sent, as vectors; returns their number. */
int ax_exchange_window(const ax_exchange *x, struct iovec *iov, int max_iov, size_t max_bytes);
void ax_exchange_sent(ax_exchange *x, size_t n, int64_t before_ns, int64_t after_ns);
bool ax_exchange_all_sent(const ax_exchange *x);

/* Feeds what one read returned. *cur is advanced past the bytes that belong to this response. */
ax_feed ax_exchange_feed(ax_exchange *x, const char **cur, const char *end, const ax_read *read);

/* The peer closed its side (err = 0) or the socket failed (err = errno). */
void ax_exchange_closed(ax_exchange *x, int err);

/* True from the event after which nothing but framing may come: `[DONE]`. */
static inline bool ax_exchange_stream_over(const ax_exchange *x)
{
    return x->stream_over;
}

/* Ends the exchange now. `forced` is an outcome of the driver's own (cancel, timeout, connect or
 * send error) or AX_PENDING to judge by what arrived. Stamps `end` unless it is there. */
void ax_exchange_finish(ax_exchange *x, ax_outcome forced, int64_t now_ns);

const char *ax_outcome_name(ax_outcome o);
const char *ax_finish_name(ax_finish f); /* NULL for AX_FINISH_NONE */

#endif

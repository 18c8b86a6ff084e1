#include "exchange.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void ax_exchange_init(ax_exchange *x)
{
    memset(x, 0, sizeof *x);
    int64_t *stamps = (int64_t *)&x->at;
    for (size_t i = 0; i < sizeof x->at / sizeof *stamps; i++)
        stamps[i] = AX_NONE;
    x->usage = (ax_usage){-1, -1, -1, -1};
    x->connect_ns = AX_NONE;
    x->error_code = -1;
    x->kernel_stamps = true;
    ax_timer_init(&x->timer);
    ax_http1_reset(&x->http);
    ax_sse_init(&x->sse, AX_MAX_EVENT);
}

void ax_exchange_free(ax_exchange *x)
{
    ax_sse_free(&x->sse);
    free(x->words);
    free(x->token_ns);
    free(x->token_slack_ns);
    free(x->token_user_ns);
    free(x->token_sent_ns);
    x->words = NULL;
    x->token_ns = NULL;
    x->token_slack_ns = NULL;
    x->token_user_ns = NULL;
    x->token_sent_ns = NULL;
}

void ax_exchange_rewind(ax_exchange *x)
{
    x->cursor = (ax_rope_cursor){0, 0, 0};
    x->head_sent = 0;
    x->bytes_out = 0;
    x->at.conn_ready = x->at.first_sent = x->at.last_sent = AX_NONE;
    x->connect_ns = AX_NONE;
    x->reused = false;
    x->closing = AX_CLOSED_NOT;
    x->error_errno = 0;
}

/* -- Sending ---------------------------------------------------------------------------------- */

int ax_exchange_window(const ax_exchange *x, struct iovec *iov, int max_iov, size_t max_bytes)
{
    int n = 0;
    if (x->head_sent < x->head.len && max_iov > 0 && max_bytes > 0) {
        size_t left = x->head.len - x->head_sent;
        if (left > max_bytes)
            left = max_bytes;
        iov[n].iov_base = (void *)(x->head.ptr + x->head_sent);
        iov[n++].iov_len = left;
        max_bytes -= left;
    }
    if (x->body && n < max_iov && max_bytes > 0)
        n += ax_rope_window(x->body, &x->cursor, iov + n, max_iov - n, max_bytes);
    return n;
}

void ax_exchange_sent(ax_exchange *x, size_t n, int64_t before_ns, int64_t after_ns)
{
    if (x->at.first_sent == AX_NONE)
        x->at.first_sent = before_ns;
    x->bytes_out += n;
    size_t left = x->head.len - x->head_sent;
    size_t of_head = n < left ? n : left;
    x->head_sent += of_head;
    if (n > of_head)
        ax_rope_advance(x->body, &x->cursor, n - of_head);
    if (ax_exchange_all_sent(x))
        x->at.last_sent = after_ns;
}

bool ax_exchange_all_sent(const ax_exchange *x)
{
    return x->head_sent == x->head.len && (!x->body || ax_rope_at_end(x->body, &x->cursor));
}

/* -- What a failing server said ----------------------------------------------------------------- */

static void keep_words(ax_exchange *x, ax_span text)
{
    if (x->words_len >= AX_MAX_WORDS || text.len == 0)
        return;
    if (!x->words) {
        x->words = malloc(AX_MAX_WORDS + 1);
        if (!x->words)
            return;
    }
    size_t room = AX_MAX_WORDS - x->words_len;
    size_t n = text.len < room ? text.len : room;
    memcpy(x->words + x->words_len, text.ptr, n);
    x->words_len += n;
    x->words[x->words_len] = 0;
}

static void keep_type(ax_exchange *x, ax_span type)
{
    size_t n = type.len < sizeof x->error_type - 1 ? type.len : sizeof x->error_type - 1;
    memcpy(x->error_type, type.ptr, n);
    x->error_type[n] = 0;
}

/* -- Receiving ---------------------------------------------------------------------------------- */

static bool grow_one(void **array, size_t item, uint32_t cap)
{
    void *p = realloc(*array, item * cap);
    if (!p)
        return false;
    *array = p;
    return true;
}

static bool grow_tokens(ax_exchange *x)
{
    uint32_t cap = x->cap_tokens ? x->cap_tokens * 2 : 64;
    if (cap > AX_MAX_TOKENS)
        return false;
    if (!grow_one((void **)&x->token_ns, sizeof(int64_t), cap) ||
        !grow_one((void **)&x->token_slack_ns, sizeof(uint32_t), cap))
        return false;
    if ((x->flags & AX_KEEP_USER_NS) && !grow_one((void **)&x->token_user_ns, sizeof(int64_t), cap))
        return false;
    if ((x->flags & AX_KEEP_SENT_NS) && !grow_one((void **)&x->token_sent_ns, sizeof(int64_t), cap))
        return false;
    x->cap_tokens = cap;
    return true;
}

static void keep_token(ax_exchange *x, const ax_read *read, int64_t sent_ns)
{
    if (x->kept_tokens == x->cap_tokens && !grow_tokens(x))
        return; /* content_events goes on counting, so the loss shows */
    uint32_t i = x->kept_tokens++;
    x->token_ns[i] = read->stamp_ns;
    x->token_slack_ns[i] = 0;
    if (x->flags & AX_KEEP_USER_NS)
        x->token_user_ns[i] = read->user_ns;
    if (x->flags & AX_KEEP_SENT_NS)
        x->token_sent_ns[i] = sent_ns;
}

static void take_event(ax_exchange *x, const ax_sse_event *ev, const ax_read *read)
{
    ax_chunk c;
    uint32_t flags = ax_chunk_scan_next(x->dialect, &x->memo, ev->name, ev->data, &c);
    int64_t k = read->stamp_ns;

    x->events++;
    x->read_events++;
    x->seen |= flags;
    x->at.last_event = k;
    if (x->at.first_event == AX_NONE)
        x->at.first_event = k;
    x->read_ended_with_content = (flags & AX_CHUNK_CONTENT) != 0;
    if (flags & AX_CHUNK_CONTENT) {
        x->content_events++;
        x->at.last_content = k;
        if (x->at.first_content == AX_NONE)
            x->at.first_content = k;
        if ((flags & AX_CHUNK_TEXT) && x->at.first_text == AX_NONE)
            x->at.first_text = k;
        keep_token(x, read, c.sent_ns);
    }
    if (flags & AX_CHUNK_USAGE) {
        x->usage = c.usage; /* the last non-empty usage is the server's final word */
        x->usage_events++;
    }
    if (flags & AX_CHUNK_FINISH)
        x->finish = c.finish;
    if (flags & AX_CHUNK_DONE)
        x->stream_over = true;
    if ((flags & AX_CHUNK_ERROR) && x->words_len == 0) {
        keep_words(x, c.error_message);
        keep_type(x, c.error_type);
        x->error_code = c.error_code;
    } else if ((flags & AX_CHUNK_MALFORMED) && x->words_len == 0) {
        x->error_static = "an event's data is not a JSON object";
        keep_words(x, ev->data);
    }
}

/* Bytes that belong to an event and may follow its dispatch: the LF of a blank line that ends in CRLF, and
 * the CRLF that ends its HTTP chunk. */
#define EVENT_TRAILER 3

/* Which events of the read arrived somewhere in [P, K], and which one at K. */
static void close_read(ax_exchange *x, const ax_read *read, const char *end)
{
    if (x->read_events == 0)
        return;
    bool followed = end - x->read_event_end > EVENT_TRAILER;
    if (x->framed && !x->read_ended_with_content)
        followed = false; /* by the end of the message, which is no further event */
    bool exact = !read->cut && !followed;
    if (exact && x->read_events == 1)
        return;
    int64_t width = read->stamp_ns - read->since_ns;
    uint32_t slack = width < 1 ? 1 : width > UINT32_MAX ? UINT32_MAX : (uint32_t)width;
    uint32_t flagged_end = x->kept_tokens - (exact && x->read_ended_with_content ? 1 : 0);
    for (uint32_t i = x->read_first_token; i < flagged_end; i++)
        x->token_slack_ns[i] = slack;
    x->coalesced_events += x->read_events - (exact ? 1 : 0);
}

static bool take_body(ax_exchange *x, ax_span body, const ax_read *read)
{
    if (!x->body_is_stream) {
        keep_words(x, body);
        return true;
    }
    const char *cur = body.ptr, *end = body.ptr + body.len;
    ax_sse_event ev;
    for (;;) {
        ax_sse_result r = ax_sse_next(&x->sse, &cur, end, &ev);
        if (r == AX_SSE_EVENT) {
            take_event(x, &ev, read);
            x->read_event_end = cur;
            continue;
        }
        if (r == AX_SSE_NEED)
            return true;
        x->error_static = r == AX_SSE_TOO_LARGE ? "a stream event is larger than 16 MiB"
                                                : "out of memory for a stream event";
        return false;
    }
}

static void take_head(ax_exchange *x, const ax_read *read)
{
    x->head_done = true;
    x->at.ack = read->stamp_ns;
    x->status = x->http.status;
    memcpy(x->content_type, x->http.content_type, sizeof x->content_type);
    x->body_is_stream = x->status >= 200 && x->status <= 299 && !x->http.encoded &&
                        strcmp(x->http.content_type, "text/event-stream") == 0;
    atomic_store_explicit(&x->phase, AX_PHASE_STREAM, memory_order_relaxed);
}

/* The stream is over; an event whose last blank line never came is still an event that arrived,
 * unless it was cut in the middle. */
static void take_unterminated(ax_exchange *x, const ax_read *read)
{
    ax_sse_event ev;
    ax_chunk c;
    if (!x->body_is_stream || ax_sse_eof(&x->sse, &ev) != AX_SSE_EVENT)
        return;
    if (x->framed || !(ax_chunk_scan(x->dialect, ev.name, ev.data, &c) & AX_CHUNK_MALFORMED))
        take_event(x, &ev, read);
}

ax_feed ax_exchange_feed(ax_exchange *x, const char **cur, const char *end, const ax_read *read)
{
    ax_feed out = AX_FEED_MORE;
    ax_span body;
    const char *start = *cur;

    x->reads++;
    x->last_read = *read;
    if (!read->kernel)
        x->kernel_stamps = false;
    x->read_first_token = x->kept_tokens;
    x->read_events = 0;
    x->read_ended_with_content = false;
    x->read_event_end = end;
    for (bool more = true; more;) {
        switch (ax_http1_next(&x->http, cur, end, &body)) {
        case AX_HTTP1_NEED:
            more = false;
            break;
        case AX_HTTP1_HEAD:
            take_head(x, read);
            break;
        case AX_HTTP1_BODY:
            if (!take_body(x, body, read)) {
                out = AX_FEED_FAIL;
                more = false;
            }
            break;
        case AX_HTTP1_END:
            x->framed = true;
            take_unterminated(x, read);
            x->at.end = read->stamp_ns;
            out = AX_FEED_END;
            more = false;
            break;
        case AX_HTTP1_FAIL:
            x->error_static = x->http.error;
            out = AX_FEED_FAIL;
            more = false;
            break;
        }
    }
    x->bytes_in += (uint64_t)(*cur - start);
    close_read(x, read, *cur);
    return out;
}

void ax_exchange_closed(ax_exchange *x, int err)
{
    x->closing = err ? AX_CLOSED_RST : AX_CLOSED_FIN;
    x->error_errno = err;
    if (ax_http1_idle(&x->http))
        return;
    if (!err && ax_http1_eof(&x->http) == AX_HTTP1_END)
        x->framed = true;
    take_unterminated(x, &x->last_read);
}

/* -- The verdict on one exchange ------------------------------------------------------------------ */

static ax_outcome judge(const ax_exchange *x)
{
    bool finished = (x->seen & (AX_CHUNK_FINISH | AX_CHUNK_DONE)) != 0;
    bool content = x->content_events > 0;

    if (x->status == 0)
        return x->error_static ? AX_MALFORMED : AX_RESET;
    if (x->status < 200 || x->status > 299)
        return AX_HTTP_STATUS;
    if (!x->body_is_stream)
        return AX_NOT_A_STREAM;
    if (x->seen & AX_CHUNK_ERROR)
        return AX_SERVER_ERROR_EVENT;
    if (x->error_static)
        return AX_MALFORMED;
    /* One asked-for token may be an end-of-sequence token, which shows no text. */
    if (x->max_tokens <= 1 && !content && ((x->seen & AX_CHUNK_FINISH) || x->usage.completion > 0))
        content = finished = true;
    if (!content && (x->framed || finished))
        return AX_EMPTY;
    if (finished)
        return AX_SUCCESS;
    return x->events > 0 ? AX_TRUNCATED : AX_RESET;
}

void ax_exchange_finish(ax_exchange *x, ax_outcome forced, int64_t now_ns)
{
    x->outcome = forced != AX_PENDING ? forced : judge(x);
    if (x->at.end == AX_NONE)
        x->at.end = now_ns;
    if ((x->outcome == AX_HTTP_STATUS || x->outcome == AX_NOT_A_STREAM) && x->words_len > 0 &&
        x->words_len < AX_MAX_WORDS) {
        /* Prefer the message inside a JSON error body; the spans point into x->words. */
        ax_chunk c;
        ax_span all = {x->words, x->words_len};
        uint32_t flags = ax_chunk_scan(x->dialect, (ax_span){"", 0}, all, &c);
        if ((flags & AX_CHUNK_ERROR) && !(flags & AX_CHUNK_MALFORMED)) {
            keep_type(x, c.error_type);
            x->error_code = c.error_code;
            memmove(x->words, c.error_message.ptr, c.error_message.len);
            x->words_len = c.error_message.len;
            x->words[x->words_len] = 0;
        }
    }
    atomic_store_explicit(&x->phase, AX_PHASE_DONE, memory_order_relaxed);
}

const char *ax_outcome_name(ax_outcome o)
{
    static const char *const names[] = {
        [AX_PENDING] = "pending",
        [AX_CANCELLED] = "cancelled",
        [AX_TIMEOUT_CONNECT] = "timeout_connect",
        [AX_TIMEOUT_FIRST_BYTE] = "timeout_first_byte",
        [AX_TIMEOUT_IDLE] = "timeout_idle",
        [AX_TIMEOUT_TOTAL] = "timeout_total",
        [AX_CONNECT_ERROR] = "connect_error",
        [AX_SEND_ERROR] = "send_error",
        [AX_HTTP_STATUS] = "http_status",
        [AX_NOT_A_STREAM] = "not_a_stream",
        [AX_SERVER_ERROR_EVENT] = "server_error_event",
        [AX_MALFORMED] = "malformed",
        [AX_EMPTY] = "empty",
        [AX_TRUNCATED] = "truncated",
        [AX_RESET] = "reset",
        [AX_SUCCESS] = "success",
    };
    return names[o];
}

const char *ax_finish_name(ax_finish f)
{
    static const char *const names[] = {
        [AX_FINISH_NONE] = NULL,
        [AX_FINISH_STOP] = "stop",
        [AX_FINISH_LENGTH] = "length",
        [AX_FINISH_TOOL_CALLS] = "tool_calls",
        [AX_FINISH_CONTENT_FILTER] = "content_filter",
        [AX_FINISH_OTHER] = "other",
    };
    return names[f];
}

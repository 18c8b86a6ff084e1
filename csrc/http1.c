/* Incremental HTTP/1.1 response parser: two state machines that hand over to each other.
 *
 *   head, byte by byte:  VERSION -> STATUS -> REASON -> (LINE -> NAME -> GAP -> VALUE)* -> head complete
 *   body, by framing:    FIXED | UNTIL_CLOSE | SIZE -> (EXTENSION) -> DATA -> DATA_END -> SIZE ... -> trailers
 *
 * Trailers are header lines, so they run through the first machine again. A head is a few hundred
 * bytes once per request, so it is parsed plainly; the chunk framing runs once per token, so its
 * usual form (size line, data and line end all in the fed bytes) takes no detour.
 *
 * Every state owns what it needs between two feeds in the struct, and each byte is looked at once:
 * the cost is linear in the bytes for any split. A header's value is kept only for the six headers
 * that decide something, and only so much of it as can matter.
 */
#include "http1.h"

#include <string.h>

enum state {
    VERSION,     /* "HTTP/1." and one digit; name_len counts the matched bytes */
    STATUS,      /* " 200"; name_len counts */
    REASON_GAP,  /* behind the status code: a space, or the end of the line */
    REASON,
    LINE,        /* at the start of a header line */
    NAME,
    GAP,         /* white space between the colon and the value */
    VALUE,
    LINE_LF,     /* behind the CR of a header or status line */
    HEAD_LF,     /* behind the CR of the empty line */
    FIXED,
    UNTIL_CLOSE,
    SIZE_FIRST,  /* at the first digit of a chunk size */
    SIZE,
    SIZE_GAP,    /* white space behind the size */
    EXTENSION,
    SIZE_LF,
    DATA,
    DATA_END,    /* behind the last byte of a chunk */
    DATA_LF,
    NO_BODY,     /* the head is out, the message ends with it */
    DONE,
    FAILED,
};

enum flag {
    STARTED = 1 << 0,   /* a byte was consumed */
    TRAILERS = 1 << 1,  /* the header lines are trailers: checked, then ignored */
    TOO_LONG = 1 << 2,  /* the value did not fit */
    SAW_CLOSE = 1 << 3, /* Connection: close */
    SAW_KEEP = 1 << 4,  /* Connection: keep-alive */
};

enum header {
    OTHER,
    CONNECTION,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    LOCATION,
    TRANSFER_ENCODING,
};

static const struct {
    const char *name;
    uint8_t len, header;
} KNOWN[] = {
    {"connection", 10, CONNECTION},         {"content-encoding", 16, CONTENT_ENCODING},
    {"content-length", 14, CONTENT_LENGTH}, {"content-type", 12, CONTENT_TYPE},
    {"location", 8, LOCATION},              {"transfer-encoding", 17, TRANSFER_ENCODING},
};

/* A chunk size line with its extensions; nobody sends more than a few dozen bytes. */
#define MAX_SIZE_LINE (16 * 1024)

static inline char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;
}

static inline bool blank(char c)
{
    return c == ' ' || c == '\t';
}

/* tchar of RFC 9110, 5.6.2. */
static inline bool token_char(char c)
{
    static const uint32_t table[4] = {0, 0x03ff6cfa, 0xc7fffffe, 0x57ffffff};
    unsigned char u = (unsigned char)c;
    return u < 128 && (table[u >> 5] >> (u & 31) & 1);
}

static inline int hex(char c)
{
    unsigned value = (unsigned)(unsigned char)c - '0';
    if (value <= 9)
        return (int)value;
    value = ((unsigned)(unsigned char)c | 0x20) - 'a';
    return value <= 5 ? (int)value + 10 : -1;
}

static ax_http1_event fail(ax_http1 *p, const char *error)
{
    p->state = FAILED;
    p->error = error;
    p->keep_alive = false;
    return AX_HTTP1_FAIL;
}

static void start_head(ax_http1 *p)
{
    p->status = 0;
    p->minor = 0;
    p->content_length = -1;
    p->chunked = false;
    p->keep_alive = false;
    p->encoded = false;
    p->content_type[0] = p->location[0] = p->reason[0] = '\0';
    p->error = NULL;
    p->state = VERSION;
    p->flags = 0;
    p->name_len = 0;
    p->value_len = 0;
    p->header = OTHER;
    p->head_bytes = 0;
    p->left = 0;
}

void ax_http1_reset(ax_http1 *p)
{
    start_head(p);
}

bool ax_http1_idle(const ax_http1 *p)
{
    return !(p->flags & STARTED);
}

/* ---- header values ---- */

/* The next element of a comma-separated list, without the white space around it; false at its end. */
static bool next_element(const char **cur, const char *end, ax_span *out)
{
    const char *c = *cur;
    if (c > end)
        return false;
    const char *stop = memchr(c, ',', (size_t)(end - c));
    if (!stop)
        stop = end;
    *cur = stop + 1;
    while (c < stop && blank(*c))
        c++;
    while (stop > c && blank(stop[-1]))
        stop--;
    out->ptr = c;
    out->len = (size_t)(stop - c);
    return true;
}

static bool is_word(ax_span s, const char *word)
{
    if (s.len != strlen(word))
        return false;
    for (size_t i = 0; i < s.len; i++)
        if (lower(s.ptr[i]) != word[i])
            return false;
    return true;
}

/* RFC 9110, 8.6: the same number several times, in one field or in many, is that number. */
static const char *set_content_length(ax_http1 *p, const char *value, const char *end)
{
    ax_span element;
    if (p->flags & TOO_LONG)
        return "Content-Length is not a number";
    while (next_element(&value, end, &element)) {
        int64_t number = 0;
        if (element.len == 0)
            return "Content-Length is not a number";
        for (size_t i = 0; i < element.len; i++) {
            int digit = element.ptr[i] - '0';
            if (digit < 0 || digit > 9)
                return "Content-Length is not a number";
            if (__builtin_mul_overflow(number, (int64_t)10, &number) ||
                __builtin_add_overflow(number, (int64_t)digit, &number))
                return "Content-Length is too large";
        }
        if (p->content_length >= 0 && p->content_length != number)
            return "several different Content-Length";
        p->content_length = number;
    }
    return NULL;
}

static const char *end_value(ax_http1 *p)
{
    size_t len = p->value_len;
    while (len && blank(p->value[len - 1]))
        len--;
    const char *value = p->value, *end = value + len;
    ax_span element;

    switch (p->header) {
    case CONTENT_LENGTH:
        return set_content_length(p, value, end);
    case TRANSFER_ENCODING:
        if (p->chunked)
            return "several Transfer-Encoding";
        if ((p->flags & TOO_LONG) || !is_word((ax_span){value, len}, "chunked"))
            return "Transfer-Encoding other than chunked";
        p->chunked = true;
        break;
    case CONNECTION:
        /* What did not fit may have said close. */
        if (p->flags & TOO_LONG)
            p->flags |= SAW_CLOSE;
        while (next_element(&value, end, &element)) {
            if (is_word(element, "close"))
                p->flags |= SAW_CLOSE;
            else if (is_word(element, "keep-alive"))
                p->flags |= SAW_KEEP;
        }
        break;
    case CONTENT_ENCODING:
        while (next_element(&value, end, &element))
            if (element.len && !is_word(element, "identity"))
                p->encoded = true;
        break;
    case CONTENT_TYPE: {
        const char *parameters = memchr(value, ';', len);
        if (parameters)
            len = (size_t)(parameters - value);
        while (len && blank(value[len - 1]))
            len--;
        if (len > sizeof p->content_type - 1)
            len = sizeof p->content_type - 1;
        for (size_t i = 0; i < len; i++)
            p->content_type[i] = lower(value[i]);
        p->content_type[len] = '\0';
        break;
    }
    case LOCATION:
        memcpy(p->location, value, len);
        p->location[len] = '\0';
        break;
    default:
        break;
    }
    return NULL;
}

static uint8_t known_header(const ax_http1 *p)
{
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++)
        if (KNOWN[i].len == p->name_len && memcmp(KNOWN[i].name, p->name, p->name_len) == 0)
            return KNOWN[i].header;
    return OTHER;
}

/* ---- head ---- */

/* The empty line was read. AX_HTTP1_NEED = skipped a 1xx head, go on. */
static ax_http1_event end_head(ax_http1 *p)
{
    if (p->flags & TRAILERS) {
        p->state = DONE;
        return AX_HTTP1_END;
    }
    if (p->chunked && p->content_length >= 0)
        return fail(p, "both Transfer-Encoding and Content-Length");
    if (p->status == 101)
        return fail(p, "101 Switching Protocols, but no upgrade was asked for");
    if (p->status < 200) {
        start_head(p);
        p->flags = STARTED;
        return AX_HTTP1_NEED;
    }

    p->keep_alive = p->minor ? !(p->flags & SAW_CLOSE) : (p->flags & (SAW_CLOSE | SAW_KEEP)) == SAW_KEEP;
    /* RFC 9112, 6.1: HTTP/1.0 has no Transfer-Encoding; whoever sends it there cannot be trusted with
     * a second message. */
    if (p->chunked && p->minor == 0)
        p->keep_alive = false;

    if (p->status == 204 || p->status == 304) {
        /* No body whatever the head says, but a server that announced one may well send it. */
        if (p->chunked || (p->status == 204 && p->content_length > 0))
            p->keep_alive = false;
        p->state = NO_BODY;
    } else if (p->chunked) {
        p->state = SIZE_FIRST;
        p->left = 0;
        p->line_bytes = 0;
    } else if (p->content_length >= 0) {
        p->left = p->content_length;
        p->state = p->left ? FIXED : NO_BODY;
    } else {
        p->keep_alive = false;
        p->state = UNTIL_CLOSE;
    }
    return AX_HTTP1_HEAD;
}

static ax_http1_event end_line(ax_http1 *p)
{
    const char *error = NULL;
    if (p->state == REASON || p->state == REASON_GAP) {
        while (p->value_len && blank(p->reason[p->value_len - 1]))
            p->value_len--;
        p->reason[p->value_len] = '\0';
    } else if (!(p->flags & TRAILERS)) {
        error = end_value(p);
    }
    return error ? fail(p, error) : AX_HTTP1_NEED;
}

/* Reads head bytes until the head is complete (its event), the bytes are used up (NEED) or a fault. */
static ax_http1_event read_head(ax_http1 *p, const char **cur, const char *end)
{
    const char *c = *cur;
    ax_http1_event event = AX_HTTP1_NEED;
    while (c < end && p->state < FIXED) {
        char b = *c++;
        *cur = c;
        if (p->head_bytes++ >= AX_HTTP1_MAX_HEAD)
            return fail(p, "response head longer than 64 KiB");

        switch (p->state) {
        case VERSION:
            if (p->name_len < 7 ? b != "HTTP/1."[p->name_len] : b < '0' || b > '9')
                return fail(p, p->name_len < 5 ? "not an HTTP response" : "HTTP version is not 1.x");
            if (p->name_len++ == 7) {
                p->minor = b - '0';
                p->name_len = 0;
                p->state = STATUS;
            }
            break;
        case STATUS:
            if (p->name_len == 0 ? b != ' ' : b < '0' || b > '9')
                return fail(p, "malformed status line");
            if (p->name_len)
                p->status = p->status * 10 + (b - '0');
            if (p->name_len++ == 3) {
                if (p->status < 100 || p->status > 599)
                    return fail(p, "status code outside 100..599");
                p->value_len = 0;
                p->state = REASON_GAP;
            }
            break;
        case REASON_GAP:
            if (b == ' ') {
                p->state = REASON;
                break;
            }
            if (b != '\r' && b != '\n')
                return fail(p, "malformed status line");
            /* fall through */
        case REASON:
        case VALUE:
        value:
            if (b == '\n' || b == '\r') {
                if ((event = end_line(p)) != AX_HTTP1_NEED)
                    return event;
                p->state = b == '\r' ? LINE_LF : LINE;
            } else if (b == '\0') {
                return fail(p, "NUL in the response head");
            } else if (p->state == REASON) {
                if (p->value_len < sizeof p->reason - 1)
                    p->reason[p->value_len++] = b;
            } else if (p->header != OTHER) {
                if (p->value_len < sizeof p->value - 1)
                    p->value[p->value_len++] = b;
                else if (!blank(b))
                    p->flags |= TOO_LONG;
            }
            break;
        case LINE:
            if (b == '\r') {
                p->state = HEAD_LF;
                break;
            }
            if (b == '\n') {
                if ((event = end_head(p)) != AX_HTTP1_NEED)
                    return event;
                break;
            }
            if (blank(b))
                return fail(p, "folded header line");
            p->name_len = 0;
            p->state = NAME;
            /* fall through */
        case NAME:
            if (b == ':') {
                if (p->name_len == 0)
                    return fail(p, "header without a name");
                p->header = known_header(p);
                p->value_len = 0;
                p->flags &= (uint8_t)~TOO_LONG;
                p->state = GAP;
            } else if (blank(b)) {
                return fail(p, "white space in a header name");
            } else if (b == '\r' || b == '\n') {
                return fail(p, "header line without a colon");
            } else if (b == '\0') {
                return fail(p, "NUL in the response head");
            } else if (!token_char(b)) {
                return fail(p, "invalid character in a header name");
            } else {
                /* A name that does not fit is none of the known ones: its length says so. */
                if (p->name_len < sizeof p->name)
                    p->name[p->name_len++] = lower(b);
            }
            break;
        case GAP:
            if (blank(b))
                break;
            p->state = VALUE;
            goto value;
        case LINE_LF:
            if (b != '\n')
                return fail(p, "bare CR in the response head");
            p->state = LINE;
            break;
        case HEAD_LF:
            if (b != '\n')
                return fail(p, "bare CR in the response head");
            p->state = LINE;
            if ((event = end_head(p)) != AX_HTTP1_NEED)
                return event;
            break;
        default:
            break;
        }
    }
    return event;
}

/* ---- chunk framing ---- */

/* Reads a chunk's size line, and the line end of the chunk before it. */
static ax_http1_event read_size(ax_http1 *p, const char **cur, const char *end)
{
    const char *c = *cur;
    uint8_t state = p->state;
    while (c < end) {
        char b = *c++;
        int digit;
        switch (state) {
        case DATA_END:
            if (b == '\r') {
                state = DATA_LF;
                continue;
            }
            /* fall through */
        case DATA_LF:
            if (b != '\n')
                return fail(p, "chunk data longer than its size");
            state = SIZE_FIRST;
            p->left = 0;
            p->line_bytes = 0;
            continue;
        case SIZE_FIRST:
        case SIZE:
            digit = hex(b);
            if (digit >= 0) {
                if (p->left > (INT64_MAX >> 4))
                    return fail(p, "chunk size is too large");
                p->left = p->left << 4 | digit;
                state = SIZE;
                break;
            }
            if (state == SIZE_FIRST)
                return fail(p, "chunk size is not a number");
            /* fall through */
        case SIZE_GAP:
            if (b == ';')
                state = EXTENSION;
            else if (blank(b))
                state = SIZE_GAP;
            else if (b == '\r')
                state = SIZE_LF;
            else if (b == '\n')
                goto line_complete;
            else
                return fail(p, "chunk size is not a number");
            break;
        case EXTENSION:
            if (b == '\r')
                state = SIZE_LF;
            else if (b == '\n')
                goto line_complete;
            else if (b == '\0')
                return fail(p, "NUL in a chunk extension");
            break;
        case SIZE_LF:
            if (b != '\n')
                return fail(p, "bare CR in a chunk size line");
            goto line_complete;
        default:
            break;
        }
        if (++p->line_bytes > MAX_SIZE_LINE)
            return fail(p, "chunk size line longer than 16 KiB");
    }
    p->state = state;
    *cur = c;
    return AX_HTTP1_NEED;

line_complete:
    *cur = c;
    if (p->left) {
        p->state = DATA;
    } else {
        p->flags |= TRAILERS;
        p->state = LINE;
    }
    return AX_HTTP1_NEED;
}

static ax_http1_event finished(ax_http1 *p)
{
    if (p->state == FAILED)
        return AX_HTTP1_FAIL;
    p->state = DONE;
    return AX_HTTP1_END;
}

/* A size line in its usual form, whole in the fed bytes: a few digits, CRLF. Nothing is consumed if it
 * is anything else, the last chunk included. */
static inline bool read_plain_size(ax_http1 *p, const char **cur, const char *end)
{
    const char *c = *cur;
    int64_t size = 0;
    int digit;
    if (end - c < 10)
        return false;
    for (const char *limit = c + 8; c < limit && (digit = hex(*c)) >= 0; c++)
        size = size << 4 | digit;
    if (size == 0 || c[0] != '\r' || c[1] != '\n')
        return false;
    p->left = size;
    *cur = c + 2;
    return true;
}

ax_http1_event ax_http1_next(ax_http1 *p, const char **cur, const char *end, ax_span *span)
{
    for (;;) {
        const char *c = *cur;
        if (c == end)
            return p->state < NO_BODY ? AX_HTTP1_NEED : finished(p);
        switch (p->state) {
        case NO_BODY:
        case DONE:
        case FAILED:
            return finished(p);
        case SIZE_FIRST:
            if (!read_plain_size(p, cur, end)) {
                if (read_size(p, cur, end) == AX_HTTP1_FAIL)
                    return AX_HTTP1_FAIL;
                break;
            }
            p->state = DATA;
            c = *cur;
            if (c == end)
                return AX_HTTP1_NEED;
            /* fall through */
        case DATA:
            span->ptr = c;
            if (p->left > end - c) {
                span->len = (size_t)(end - c);
                p->left -= end - c;
                *cur = end;
                return AX_HTTP1_BODY;
            }
            span->len = (size_t)p->left;
            c += p->left;
            if (end - c >= 2 && c[0] == '\r' && c[1] == '\n') {
                c += 2;
                p->state = SIZE_FIRST;
                p->left = 0;
                p->line_bytes = 0;
            } else {
                p->state = DATA_END;
            }
            *cur = c;
            return AX_HTTP1_BODY;
        case SIZE:
        case SIZE_GAP:
        case EXTENSION:
        case SIZE_LF:
        case DATA_END:
        case DATA_LF:
            if (read_size(p, cur, end) == AX_HTTP1_FAIL)
                return AX_HTTP1_FAIL;
            break;
        case FIXED:
            span->ptr = c;
            span->len = (size_t)(p->left < end - c ? p->left : end - c);
            p->left -= (int64_t)span->len;
            *cur = c + span->len;
            if (p->left == 0)
                p->state = NO_BODY;
            return AX_HTTP1_BODY;
        case UNTIL_CLOSE:
            span->ptr = c;
            span->len = (size_t)(end - c);
            *cur = end;
            return AX_HTTP1_BODY;
        default: {
            p->flags |= STARTED;
            ax_http1_event event = read_head(p, cur, end);
            if (event != AX_HTTP1_NEED)
                return event;
            break;
        }
        }
    }
}

ax_http1_event ax_http1_eof(ax_http1 *p)
{
    switch (p->state) {
    case NO_BODY:
    case DONE:
    case UNTIL_CLOSE:
        p->state = DONE;
        return AX_HTTP1_END;
    case FAILED:
        return AX_HTTP1_FAIL;
    case FIXED:
        return fail(p, "closed inside the body");
    case VERSION:
        if (p->name_len == 0)
            return fail(p, "closed before the response head");
        return fail(p, "closed inside the response head");
    default:
        if (p->state < FIXED)
            return fail(p, p->flags & TRAILERS ? "closed inside the trailers"
                                               : "closed inside the response head");
        return fail(p, "closed inside the chunked body");
    }
}

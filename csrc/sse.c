/* Incremental parser of server-sent events.
 *
 * Wanted: an event out of every read without a copy, since nearly every read of a token stream holds one
 * whole event; the same result for every way of cutting the stream; time linear in its bytes.
 *
 * Two ways through the same grammar:
 *   - at the start of a line, with nothing of an event's data collected yet, a `data` line that lies
 *     whole in the fed bytes, with its blank line behind it, is returned as a span (try_whole);
 *   - anything else goes through the state machine, which collects data into `buf`.
 * The state machine alone is a complete parser. It searches for line ends with ax_scan_eol, so a byte is
 * seen once by a search and once by memcpy; the buffer doubles, so growing it is linear too.
 *
 * A CR ends a line at once and an LF that follows it is swallowed later (SKIP_LF): waiting to see it
 * would hold back the event of a CR-only stream until the next one.
 */
#include "sse.h"

#include <stdlib.h>
#include <string.h>

#include "scan.h"

enum state {
    BOM,     /* start of the stream; field_len bytes of a byte-order mark seen */
    LINE,    /* at the start of a line */
    FIELD,   /* inside a field name */
    SPACE,   /* behind the colon: one space does not belong to the value */
    DATA,    /* value of `data` */
    NAME,    /* value of `event` */
    IGNORE,  /* comment, or value of another field */
    DEAD,    /* an error was returned; the parser stays there until the reset */
};

enum flag {
    SKIP_LF = 1 << 0,   /* the last byte was a CR that ended a line */
    HAS_DATA = 1 << 1,  /* the event has a data line, maybe an empty one */
    IS_DATA = 1 << 2,   /* SPACE leads to DATA */
    IS_NAME = 1 << 3,   /* SPACE leads to NAME */
    NO_MEMORY = 1 << 4, /* why DEAD */
};

#define FIRST_CAP 4096

static const char BYTE_ORDER_MARK[3] = {'\xef', '\xbb', '\xbf'};

void ax_sse_init(ax_sse *p, size_t max_event)
{
    memset(p, 0, sizeof *p);
    p->max_event = max_event;
    p->state = BOM;
}

void ax_sse_reset(ax_sse *p)
{
    p->events = p->comments = 0;
    p->len = 0;
    p->state = BOM;
    p->flags = 0;
    p->name_len = p->field_len = 0;
}

void ax_sse_free(ax_sse *p)
{
    free(p->buf);
    p->buf = NULL;
    p->len = p->cap = 0;
}

static ax_sse_result die(ax_sse *p, ax_sse_result why)
{
    p->state = DEAD;
    if (why == AX_SSE_NO_MEMORY)
        p->flags |= NO_MEMORY;
    return why;
}

static ax_sse_result append(ax_sse *p, const char *bytes, size_t n)
{
    if (n > p->max_event - p->len)
        return die(p, AX_SSE_TOO_LARGE);
    if (n > p->cap - p->len) {
        size_t cap = p->cap ? p->cap : FIRST_CAP;
        while (cap - p->len < n)
            cap = cap > SIZE_MAX / 2 ? SIZE_MAX : cap * 2;
        char *buf = realloc(p->buf, cap);
        if (!buf)
            return die(p, AX_SSE_NO_MEMORY);
        p->buf = buf;
        p->cap = cap;
    }
    if (n)
        memcpy(p->buf + p->len, bytes, n);
    p->len += n;
    return AX_SSE_NEED;
}

/* The event is out: its name and data stay readable until the next call, which starts afresh. */
static ax_sse_result deliver(ax_sse *p, ax_span data, ax_sse_event *ev)
{
    ev->data = data;
    ev->name = (ax_span){p->name, p->name_len};
    p->len = 0;
    p->name_len = 0;
    p->flags &= (uint8_t)~HAS_DATA;
    p->state = LINE;
    p->events++;
    return AX_SSE_EVENT;
}

static ax_sse_result deliver_collected(ax_sse *p, ax_sse_event *ev)
{
    return deliver(p, (ax_span){p->len ? p->buf : "", p->len}, ev);
}

/* At the start of a line, no data collected: an event whose data line and blank line are both here. */
static bool try_whole(ax_sse *p, const char **cur, const char *end, ax_sse_event *ev)
{
    const char *begin = *cur;
    if (end - begin < 7 || memcmp(begin, "data:", 5) != 0)
        return false;
    const char *value = begin + 5 + (begin[5] == ' ');
    const char *eol = ax_scan_eol(begin, value, end);
    if (end - eol < 2)
        return false;
    const char *c = eol + 1;
    if (*eol == '\r' && *c == '\n')
        if (++c == end)
            return false;
    if (*c != '\n' && *c != '\r')
        return false; /* another line of the same event */
    if ((size_t)(eol - value) > p->max_event)
        return false;
    if (*c++ == '\r') {
        if (c < end && *c == '\n')
            c++;
        else
            p->flags |= SKIP_LF;
    }
    *cur = c;
    deliver(p, (ax_span){value, (size_t)(eol - value)}, ev);
    return true;
}

/* A `data` field begins: all but the first are joined to the ones before with LF. */
static ax_sse_result begin_data(ax_sse *p)
{
    if (p->flags & HAS_DATA)
        return append(p, "\n", 1);
    p->flags |= HAS_DATA;
    p->len = 0;
    return AX_SSE_NEED;
}

static bool field_is(const ax_sse *p, const char *name, uint8_t len)
{
    return p->field_len == len && memcmp(p->field, name, len) == 0;
}

ax_sse_result ax_sse_next(ax_sse *p, const char **cur, const char *end, ax_sse_event *ev)
{
    const char *begin = *cur, *c = begin;
    ax_sse_result result;

    if (p->state == DEAD)
        return p->flags & NO_MEMORY ? AX_SSE_NO_MEMORY : AX_SSE_TOO_LARGE;

    while (c < end) {
        const char *eol;
        bool line_end = false;
        char b = *c;

        if (p->flags & SKIP_LF) {
            p->flags &= (uint8_t)~SKIP_LF;
            if (b == '\n') {
                c++;
                continue;
            }
        }

        switch (p->state) {
        case BOM:
            if (b == BYTE_ORDER_MARK[p->field_len]) {
                c++;
                if (++p->field_len == sizeof BYTE_ORDER_MARK)
                    p->state = LINE;
            } else {
                /* A part of a mark is the start of an unknown field's name. */
                p->state = p->field_len ? IGNORE : LINE;
            }
            continue;

        case LINE:
            if (!(p->flags & HAS_DATA)) {
                *cur = c;
                if (try_whole(p, cur, end, ev))
                    return AX_SSE_EVENT;
            }
            if (b == '\n' || b == '\r') {
                c++;
                if (b == '\r')
                    p->flags |= SKIP_LF;
                if (p->flags & HAS_DATA) {
                    *cur = c;
                    return deliver_collected(p, ev);
                }
                p->name_len = 0;
                continue;
            }
            if (b == ':') {
                p->comments++;
                p->state = IGNORE;
                continue;
            }
            p->field_len = 0;
            p->state = FIELD;
            /* fall through */

        case FIELD:
            while (c < end && *c != ':' && *c != '\n' && *c != '\r') {
                if (p->field_len == sizeof p->field) {
                    p->state = IGNORE; /* longer than any known name */
                    break;
                }
                p->field[p->field_len++] = *c++;
            }
            if (p->state == IGNORE || c == end)
                continue;
            line_end = *c != ':';
            if (field_is(p, "data", 4)) {
                if ((result = begin_data(p)) != AX_SSE_NEED) {
                    *cur = c;
                    return result;
                }
                p->flags |= IS_DATA;
            } else if (field_is(p, "event", 5)) {
                p->name_len = 0;
                p->flags |= IS_NAME;
            }
            if (!line_end)
                c++;
            p->state = SPACE;
            if (line_end)
                break;
            continue;

        case SPACE:
            c += b == ' ';
            p->state = p->flags & IS_DATA ? DATA : p->flags & IS_NAME ? NAME : IGNORE;
            p->flags &= (uint8_t) ~(IS_DATA | IS_NAME);
            continue;

        case DATA:
            eol = ax_scan_eol(begin, c, end);
            if ((result = append(p, c, (size_t)(eol - c))) != AX_SSE_NEED) {
                *cur = c;
                return result;
            }
            c = eol;
            line_end = c < end;
            break;

        case NAME:
            for (; c < end && *c != '\n' && *c != '\r'; c++)
                if (p->name_len < sizeof p->name - 1)
                    p->name[p->name_len++] = *c;
            line_end = c < end;
            break;

        default: /* IGNORE */
            c = ax_scan_eol(begin, c, end);
            line_end = c < end;
            break;
        }

        if (line_end) {
            if (*c++ == '\r')
                p->flags |= SKIP_LF;
            p->flags &= (uint8_t) ~(IS_DATA | IS_NAME);
            p->state = LINE;
        }
    }
    *cur = end;
    return AX_SSE_NEED;
}

ax_sse_result ax_sse_eof(ax_sse *p, ax_sse_event *ev)
{
    if (p->state == DEAD)
        return p->flags & NO_MEMORY ? AX_SSE_NO_MEMORY : AX_SSE_TOO_LARGE;
    /* A field name that the end cut off was never a field: `data` without its colon is not counted. */
    if (!(p->flags & HAS_DATA))
        return AX_SSE_NEED;
    return deliver_collected(p, ev);
}

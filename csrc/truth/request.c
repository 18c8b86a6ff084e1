#define _GNU_SOURCE
#include "truth/request.h"

#include <string.h>
#include <strings.h>

static bool equals(ax_span s, const char *text)
{
    return s.len == strlen(text) && strncasecmp(s.ptr, text, s.len) == 0;
}

static ax_span trimmed(const char *from, const char *to)
{
    while (from < to && (*from == ' ' || *from == '\t'))
        from++;
    while (to > from && (to[-1] == ' ' || to[-1] == '\t'))
        to--;
    return (ax_span){from, (size_t)(to - from)};
}

/* Digits only; -1 for anything else or more than 18 of them. */
static int64_t number(ax_span s)
{
    if (s.len == 0 || s.len > 18)
        return -1;
    int64_t value = 0;
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] < '0' || s.ptr[i] > '9')
            return -1;
        value = value * 10 + (s.ptr[i] - '0');
    }
    return value;
}

static void request_line(const char *from, const char *to, ax_request *out)
{
    const char *a = memchr(from, ' ', (size_t)(to - from));
    const char *b = a ? memchr(a + 1, ' ', (size_t)(to - a - 1)) : NULL;
    if (!b || a == from || b == a + 1 || to - b - 1 != 8 || memcmp(b + 1, "HTTP/", 5) != 0) {
        out->refusal = 400;
        return;
    }
    out->method = (ax_span){from, (size_t)(a - from)};
    out->target = (ax_span){a + 1, (size_t)(b - a - 1)};
    /* An HTTP/1.0 client could not read a chunked answer. */
    if (memcmp(b + 1, "HTTP/1.1", 8) != 0)
        out->refusal = 505;
}

size_t ax_request_parse(const char *buf, size_t len, ax_request *out)
{
    *out = (ax_request){.keep_alive = true};
    const char *end = memmem(buf, len, "\r\n\r\n", 4);
    if (!end) {
        if (len > AX_REQUEST_MAX_HEAD)
            out->refusal = 431;
        return 0;
    }
    const char *line = buf, *stop = memmem(buf, (size_t)(end + 2 - buf), "\r\n", 2);
    int64_t length = -1;
    bool encoded = false;
    request_line(line, stop, out);
    while (stop < end) {
        line = stop + 2;
        stop = memmem(line, (size_t)(end + 2 - line), "\r\n", 2);
        const char *colon = memchr(line, ':', (size_t)(stop - line));
        if (!colon) {
            out->refusal = 400;
            break;
        }
        ax_span name = {line, (size_t)(colon - line)}, value = trimmed(colon + 1, stop);
        if (equals(name, "content-length")) {
            int64_t stated = number(value);
            if (stated < 0 || (length >= 0 && stated != length))
                out->refusal = 400;
            length = stated;
        } else if (equals(name, "transfer-encoding")) {
            encoded = true;
        } else if (equals(name, "connection")) {
            out->keep_alive = !equals(value, "close");
        } else if (equals(name, "expect")) {
            out->expects_continue = equals(value, "100-continue");
        }
    }
    if (!out->refusal && (encoded || (length < 0 && equals(out->method, "POST"))))
        out->refusal = 411;
    out->content_length = length < 0 ? 0 : length;
    return (size_t)(end - buf) + 4;
}

/* The number behind `"key"`, or -1. */
static int64_t value_behind(const char *p, const char *end, bool last)
{
    bool colon = false;
    for (; p < end && (*p == ' ' || *p == '\t' || *p == '\r' || *p == '\n' || (*p == ':' && !colon)); p++)
        colon |= *p == ':';
    const char *digits = p;
    while (p < end && *p >= '0' && *p <= '9')
        p++;
    if (!colon || (p == end && !last))
        return -1;
    return number((ax_span){digits, (size_t)(p - digits)});
}

void ax_request_scan(ax_request_limit *limit, const char *buf, size_t len, bool last)
{
    static const char completion[] = "\"max_completion_tokens\"", plain[] = "\"max_tokens\"";
    const char *end = buf + len;
    for (const char *p = buf; (p = memmem(p, (size_t)(end - p), "\"max_", 5)); p += 5) {
        size_t left = (size_t)(end - p);
        int64_t *slot = NULL;
        size_t key = 0;
        if (left >= sizeof completion - 1 && memcmp(p, completion, sizeof completion - 1) == 0) {
            slot = &limit->max_completion_tokens;
            key = sizeof completion - 1;
        } else if (left >= sizeof plain - 1 && memcmp(p, plain, sizeof plain - 1) == 0) {
            slot = &limit->max_tokens;
            key = sizeof plain - 1;
        } else {
            continue;
        }
        int64_t value = value_behind(p + key, end, last);
        if (value >= 0)
            *slot = value;
    }
}

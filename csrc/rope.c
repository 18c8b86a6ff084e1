#include "rope.h"

#include <stdlib.h>
#include <string.h>

void ax_rope_init(ax_rope *r)
{
    memset(r, 0, sizeof *r);
}

void ax_rope_free(ax_rope *r)
{
    free(r->segs);
    ax_rope_init(r);
}

int ax_rope_reserve(ax_rope *r, uint64_t count)
{
    if (count <= r->cap)
        return 0;
    if (count > UINT32_MAX)
        return -1;
    ax_span *segs = realloc(r->segs, (size_t)count * sizeof *segs);
    if (segs == NULL)
        return -1;
    r->segs = segs;
    r->cap = (uint32_t)count;
    return 0;
}

int ax_rope_push(ax_rope *r, const char *ptr, size_t len)
{
    if (len == 0)
        return 0;
    if (r->count == r->cap) {
        uint64_t want = r->cap < 8 ? 8 : 2 * (uint64_t)r->cap;
        if (ax_rope_reserve(r, want > UINT32_MAX && r->cap < UINT32_MAX ? UINT32_MAX : want) != 0)
            return -1;
    }
    r->segs[r->count++] = (ax_span){ptr, len};
    r->bytes += len;
    return 0;
}

int ax_rope_extend(ax_rope *to, const ax_rope *from)
{
    if (ax_rope_reserve(to, (uint64_t)to->count + from->count) != 0)
        return -1;
    if (from->count != 0)
        memcpy(to->segs + to->count, from->segs, from->count * sizeof *to->segs);
    to->count += from->count;
    to->bytes += from->bytes;
    return 0;
}

int ax_rope_copy(ax_rope *to, const ax_rope *from)
{
    return ax_rope_extend(to, from);
}

void ax_rope_truncate(ax_rope *r, uint32_t count)
{
    while (r->count > count)
        r->bytes -= r->segs[--r->count].len;
}

int ax_rope_window(const ax_rope *r, const ax_rope_cursor *c, struct iovec *iov, int max_iov, size_t max_bytes)
{
    int n = 0;
    size_t off = c->off;
    for (uint32_t i = c->seg; i < r->count && n < max_iov && max_bytes > 0; i++) {
        size_t len = r->segs[i].len - off;
        if (len > max_bytes)
            len = max_bytes;
        /* iovec is shared with readv and so is not const; sendmsg only reads. */
        iov[n].iov_base = (char *)(uintptr_t)r->segs[i].ptr + off;
        iov[n].iov_len = len;
        n++;
        max_bytes -= len;
        off = 0;
    }
    return n;
}

void ax_rope_advance(const ax_rope *r, ax_rope_cursor *c, size_t n)
{
    if (n > r->bytes - c->done)
        n = r->bytes - c->done;
    c->done += n;
    while (n > 0) {
        size_t left = r->segs[c->seg].len - c->off;
        if (n < left) {
            c->off += n;
            return;
        }
        n -= left;
        c->seg++;
        c->off = 0;
    }
}

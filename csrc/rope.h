/* An immutable list of byte segments, sent without being joined.
 *
 * The rope borrows its segments; whoever made it keeps them alive until the exchange that sends it
 * has been completed. Empty segments are not stored. A cursor is a position between two bytes.
 */
#ifndef AX_ROPE_H
#define AX_ROPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "span.h"

typedef struct ax_rope {
    uint64_t bytes; /* sum of the lengths */
    uint32_t count, cap;
    ax_span *segs;
} ax_rope;

typedef struct ax_rope_cursor {
    uint32_t seg;
    size_t off;
    uint64_t done; /* bytes before the cursor */
} ax_rope_cursor;

void ax_rope_init(ax_rope *r);
void ax_rope_free(ax_rope *r);                              /* the list, not the segments */
int ax_rope_push(ax_rope *r, const char *ptr, size_t len);  /* 0, or -1 for lack of memory */
int ax_rope_copy(ax_rope *to, const ax_rope *from);         /* 0, or -1; `to` must be initialised and empty */
void ax_rope_truncate(ax_rope *r, uint32_t count);
int ax_rope_reserve(ax_rope *r, uint64_t count);            /* room for so many in all; 0, or -1 */
int ax_rope_extend(ax_rope *to, const ax_rope *from);       /* appends the segments of `from`; 0, or -1 */

/* Fills at most max_iov vectors with the bytes behind the cursor, at most max_bytes of them, and
 * returns how many vectors; 0 at the end. */
int ax_rope_window(const ax_rope *r, const ax_rope_cursor *c, struct iovec *iov, int max_iov, size_t max_bytes);

/* Moves the cursor over n bytes that were sent (to the end if there are fewer). */
void ax_rope_advance(const ax_rope *r, ax_rope_cursor *c, size_t n);

static inline bool ax_rope_at_end(const ax_rope *r, const ax_rope_cursor *c)
{
    return c->done == r->bytes;
}

#endif

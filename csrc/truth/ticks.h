/* A min-heap of deadlines with removal from the middle: one entry per object, which knows its place.
 *
 * Four children per node: one cache line of keys per level, half the levels of a binary heap.
 */
#ifndef AX_TRUTH_TICKS_H
#define AX_TRUTH_TICKS_H

#include <stdint.h>
#include <stdlib.h>

#define AX_TICK_NONE UINT32_MAX

typedef struct ax_tick {
    int64_t due_ns;
    uint32_t *place; /* owner's note of this entry's index; AX_TICK_NONE = not in the heap */
    void *owner;
} ax_tick;

typedef struct ax_ticks {
    ax_tick *at;
    uint32_t count, cap;
} ax_ticks;

/* Room for n entries, so that placing never fails. 0, or -1 for lack of memory. */
static inline int ax_ticks_reserve(ax_ticks *h, uint32_t n)
{
    if (n <= h->cap)
        return 0;
    uint32_t cap = h->cap ? h->cap : 64;
    while (cap < n)
        cap *= 2;
    ax_tick *at = realloc(h->at, cap * sizeof *at);
    if (!at)
        return -1;
    h->at = at;
    h->cap = cap;
    return 0;
}

static inline void ax_ticks_put(ax_ticks *h, uint32_t i, ax_tick t)
{
    h->at[i] = t;
    *t.place = i;
}

static inline void ax_ticks_settle(ax_ticks *h, uint32_t i, ax_tick t)
{
    while (i > 0) {
        uint32_t up = (i - 1) / 4;
        if (h->at[up].due_ns <= t.due_ns)
            break;
        ax_ticks_put(h, i, h->at[up]);
        i = up;
    }
    for (;;) {
        uint32_t first = 4 * i + 1, least = i;
        int64_t due = t.due_ns;
        for (uint32_t k = first; k < first + 4 && k < h->count; k++) {
            if (h->at[k].due_ns < due) {
                least = k;
                due = h->at[k].due_ns;
            }
        }
        if (least == i)
            break;
        ax_ticks_put(h, i, h->at[least]);
        i = least;
    }
    ax_ticks_put(h, i, t);
}

/* Adds the owner's entry, or moves it. */
static inline void ax_ticks_set(ax_ticks *h, uint32_t *place, void *owner, int64_t due_ns)
{
    uint32_t i = *place == AX_TICK_NONE ? h->count++ : *place;
    ax_ticks_settle(h, i, (ax_tick){due_ns, place, owner});
}

static inline void ax_ticks_remove(ax_ticks *h, uint32_t *place)
{
    uint32_t i = *place;
    if (i == AX_TICK_NONE)
        return;
    *place = AX_TICK_NONE;
    h->count--;
    if (i < h->count)
        ax_ticks_settle(h, i, h->at[h->count]);
}

#endif

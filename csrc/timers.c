#include "timers.h"

#include <stdlib.h>
#include <string.h>

void ax_timers_init(ax_timers *h)
{
    memset(h, 0, sizeof *h);
}

void ax_timers_free(ax_timers *h)
{
    free(h->heap);
    memset(h, 0, sizeof *h);
}

int ax_timers_reserve(ax_timers *h, uint32_t n)
{
    if (n <= h->cap)
        return 0;
    uint32_t cap = h->cap ? h->cap : 64;
    while (cap < n)
        cap *= 2;
    ax_timer **heap = realloc(h->heap, cap * sizeof *heap);
    if (!heap)
        return -1;
    h->heap = heap;
    h->cap = cap;
    return 0;
}

static void place(ax_timers *h, uint32_t pos, ax_timer *t)
{
    h->heap[pos] = t;
    t->pos = pos;
}

static void up(ax_timers *h, uint32_t pos, ax_timer *t)
{
    while (pos > 0) {
        uint32_t parent = (pos - 1) / 2;
        if (h->heap[parent]->at <= t->at)
            break;
        place(h, pos, h->heap[parent]);
        pos = parent;
    }
    place(h, pos, t);
}

static void down(ax_timers *h, uint32_t pos, ax_timer *t)
{
    for (;;) {
        uint32_t child = 2 * pos + 1;
        if (child >= h->count)
            break;
        if (child + 1 < h->count && h->heap[child + 1]->at < h->heap[child]->at)
            child++;
        if (h->heap[child]->at >= t->at)
            break;
        place(h, pos, h->heap[child]);
        pos = child;
    }
    place(h, pos, t);
}

void ax_timers_set(ax_timers *h, ax_timer *t, int64_t at)
{
    if (!ax_timer_is_set(t)) {
        t->at = at;
        up(h, h->count++, t);
    } else if (at < t->at) {
        t->at = at;
        up(h, t->pos, t);
    } else {
        t->at = at;
        down(h, t->pos, t);
    }
}

void ax_timers_cancel(ax_timers *h, ax_timer *t)
{
    if (!ax_timer_is_set(t))
        return;
    uint32_t pos = t->pos;
    ax_timer *last = h->heap[--h->count];
    t->pos = AX_TIMER_OFF;
    if (last == t)
        return;
    if (pos > 0 && h->heap[(pos - 1) / 2]->at > last->at)
        up(h, pos, last);
    else
        down(h, pos, last);
}

ax_timer *ax_timers_pop(ax_timers *h, int64_t now)
{
    if (h->count == 0 || h->heap[0]->at > now)
        return NULL;
    ax_timer *t = h->heap[0];
    ax_timers_cancel(h, t);
    return t;
}

/* A heap of timers that live inside other objects. Constant-time minimum, logarithmic set and cancel,
 * no allocation except for the heap's own array. Times are monotonic nanoseconds. */
#ifndef AX_TIMERS_H
#define AX_TIMERS_H

#include <stdbool.h>
#include <stdint.h>

#define AX_TIMER_OFF UINT32_MAX

typedef struct ax_timer {
    int64_t at;
    uint32_t pos; /* in the heap, AX_TIMER_OFF if not set */
} ax_timer;

typedef struct ax_timers {
    ax_timer **heap;
    uint32_t count, cap;
} ax_timers;

static inline void ax_timer_init(ax_timer *t)
{
    t->at = INT64_MAX;
    t->pos = AX_TIMER_OFF;
}

static inline bool ax_timer_is_set(const ax_timer *t)
{
    return t->pos != AX_TIMER_OFF;
}

void ax_timers_init(ax_timers *h);
void ax_timers_free(ax_timers *h);

/* Makes room for n timers in all, so that ax_timers_set cannot fail; 0, or -1 for lack of memory. */
int ax_timers_reserve(ax_timers *h, uint32_t n);

/* Sets or moves a timer. */
void ax_timers_set(ax_timers *h, ax_timer *t, int64_t at);
void ax_timers_cancel(ax_timers *h, ax_timer *t);

/* Time of the earliest timer, INT64_MAX if there is none. */
static inline int64_t ax_timers_next(const ax_timers *h)
{
    return h->count ? h->heap[0]->at : INT64_MAX;
}

/* Takes the earliest timer that is due by `now`; NULL if there is none. */
ax_timer *ax_timers_pop(ax_timers *h, int64_t now);

#endif

/* Time. One clock inside the engine: CLOCK_MONOTONIC as int64 nanoseconds.
 *
 * Kernel receive stamps are CLOCK_REALTIME. They are converted with a live offset, taken as the best
 * (narrowest) of several mono-real-mono triples, and taken again when the wall clock steps
 * (timerfd with TFD_TIMER_CANCEL_ON_SET) or when the pairing is older than AX_PAIR_MAX_AGE_NS, since
 * slewing moves the two clocks apart by up to 500 ppm.
 */
#ifndef AX_CLOCK_H
#define AX_CLOCK_H

#include <stdint.h>
#include <time.h>

#define AX_NS_PER_S INT64_C(1000000000)
#define AX_NONE INT64_MIN /* an absent stamp; Python sees None */
#define AX_PAIR_MAX_AGE_NS (AX_NS_PER_S / 10)

static inline int64_t ax_timespec_ns(const struct timespec *ts)
{
    return (int64_t)ts->tv_sec * AX_NS_PER_S + ts->tv_nsec;
}

/* Monotonic time in nanoseconds. */
static inline int64_t ax_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return ax_timespec_ns(&ts);
}

/* realtime = monotonic + offset_ns, known to within error_ns at monotonic time taken_ns. */
typedef struct ax_clock_pair {
    int64_t offset_ns;
    int64_t error_ns;
    int64_t taken_ns;
} ax_clock_pair;

static inline ax_clock_pair ax_clock_pair_now(void)
{
    ax_clock_pair best = {0, INT64_MAX, 0};
    for (int i = 0; i < 5; i++) {
        struct timespec real;
        int64_t before = ax_now_ns();
        clock_gettime(CLOCK_REALTIME, &real);
        int64_t after = ax_now_ns();
        if (after - before < best.error_ns) {
            best.error_ns = after - before;
            best.taken_ns = before + (after - before) / 2;
            best.offset_ns = ax_timespec_ns(&real) - best.taken_ns;
        }
    }
    return best;
}

#endif

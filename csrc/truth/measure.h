/* What both programs say of themselves: CPU time of the calling thread, a histogram in microseconds. */
#ifndef AX_TRUTH_MEASURE_H
#define AX_TRUTH_MEASURE_H

#include <sys/resource.h>
#include <time.h>

#include "hdr.h"

/* The total comes from CLOCK_THREAD_CPUTIME_ID, which counts every nanosecond; user and system are the
 * kernel's split of it. */
typedef struct ax_cpu {
    double total_s, user_s, system_s;
} ax_cpu;

static inline ax_cpu ax_cpu_now(void)
{
    struct timespec ts;
    struct rusage ru;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    getrusage(RUSAGE_THREAD, &ru);
    return (ax_cpu){
        (double)ts.tv_sec + (double)ts.tv_nsec / 1e9,
        (double)ru.ru_utime.tv_sec + (double)ru.ru_utime.tv_usec / 1e6,
        (double)ru.ru_stime.tv_sec + (double)ru.ru_stime.tv_usec / 1e6,
    };
}

static inline ax_cpu ax_cpu_since(const ax_cpu *start)
{
    ax_cpu now = ax_cpu_now();
    return (ax_cpu){now.total_s - start->total_s, now.user_s - start->user_s, now.system_s - start->system_s};
}

typedef struct ax_spread {
    uint64_t count;
    double p50_us, p99_us, max_us;
} ax_spread;

/* Of a histogram in nanoseconds; zeros if it is empty. Percentiles are the upper ends of their slots,
 * and a slot may reach beyond the maximum. */
static inline ax_spread ax_spread_of(const ax_hdr *h)
{
    if (h->total == 0)
        return (ax_spread){0};
    int64_t max = h->max, p50 = ax_hdr_percentile(h, 50), p99 = ax_hdr_percentile(h, 99);
    return (ax_spread){
        (uint64_t)h->total,
        (double)(p50 < max ? p50 : max) / 1e3,
        (double)(p99 < max ? p99 : max) / 1e3,
        (double)max / 1e3,
    };
}

#endif

#include "hdr.h"

#include <stdlib.h>
#include <string.h>

static inline int64_t get(const _Atomic int64_t *p)
{
    return atomic_load_explicit(p, memory_order_relaxed);
}

static inline void put(_Atomic int64_t *p, int64_t value)
{
    atomic_store_explicit(p, value, memory_order_relaxed);
}

static inline int64_t add_saturating(int64_t a, int64_t b)
{
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

static int log2_floor(int64_t value)
{
    return 63 - __builtin_clzll((unsigned long long)value);
}

int ax_hdr_init(ax_hdr *h, int64_t lowest, int64_t highest, int digits)
{
    memset(h, 0, sizeof *h);
    if (lowest < 1 || lowest > INT64_MAX / 2 || highest < 2 * lowest || digits < 1 || digits > 5)
        return -1;

    int64_t single_unit = 2; /* largest value with a resolution of one unit: 2 x 10^digits */
    for (int i = 0; i < digits; i++)
        single_unit *= 10;
    int sub_bucket_magnitude = log2_floor(single_unit - 1) + 1; /* ceiling */

    h->lowest = lowest;
    h->highest = highest;
    h->digits = digits;
    h->unit_magnitude = log2_floor(lowest);
    h->sub_bucket_half_count_magnitude = sub_bucket_magnitude - 1;
    if (h->unit_magnitude + h->sub_bucket_half_count_magnitude > 61)
        return -1;
    h->sub_bucket_count = 1 << sub_bucket_magnitude;
    h->sub_bucket_half_count = h->sub_bucket_count / 2;
    h->sub_bucket_mask = ((int64_t)h->sub_bucket_count - 1) << h->unit_magnitude;

    h->bucket_count = 1;
    int64_t untrackable = (int64_t)h->sub_bucket_count << h->unit_magnitude;
    while (untrackable <= highest) {
        h->bucket_count++;
        if (untrackable > INT64_MAX / 2)
            break;
        untrackable *= 2;
    }
    h->counts_len = (h->bucket_count + 1) * h->sub_bucket_half_count;
    h->counts = calloc((size_t)h->counts_len, sizeof *h->counts);
    if (h->counts == NULL)
        return -1;
    put(&h->min, INT64_MAX);
    return 0;
}

void ax_hdr_free(ax_hdr *h)
{
    free(h->counts);
    h->counts = NULL;
    h->counts_len = 0;
}

void ax_hdr_reset(ax_hdr *h)
{
    for (int32_t i = 0; i < h->counts_len; i++)
        put(&h->counts[i], 0);
    put(&h->total, 0);
    put(&h->sum, 0);
    put(&h->min, INT64_MAX);
    put(&h->max, 0);
    put(&h->saturated, 0);
}

int32_t ax_hdr_index(const ax_hdr *h, int64_t value)
{
    int pow2_ceiling = log2_floor(value | h->sub_bucket_mask) + 1;
    int bucket = pow2_ceiling - h->unit_magnitude - (h->sub_bucket_half_count_magnitude + 1);
    int32_t sub_bucket = (int32_t)(value >> (bucket + h->unit_magnitude));
    return ((bucket + 1) << h->sub_bucket_half_count_magnitude) + sub_bucket - h->sub_bucket_half_count;
}

/* Lowest value of a slot; *width gets the number of values that share the slot. */
static int64_t slot_value(const ax_hdr *h, int32_t index, int64_t *width)
{
    int bucket = (index >> h->sub_bucket_half_count_magnitude) - 1;
    int64_t sub_bucket = (index & (h->sub_bucket_half_count - 1)) + h->sub_bucket_half_count;
    if (bucket < 0) {
        sub_bucket -= h->sub_bucket_half_count;
        bucket = 0;
    }
    *width = INT64_C(1) << (bucket + h->unit_magnitude);
    return sub_bucket << (bucket + h->unit_magnitude);
}

int64_t ax_hdr_value_at(const ax_hdr *h, int32_t index)
{
    int64_t width;
    return slot_value(h, index, &width);
}

void ax_hdr_record(ax_hdr *h, int64_t value)
{
    if (value < 0)
        value = 0;
    if (value > h->highest) {
        value = h->highest;
        put(&h->saturated, get(&h->saturated) + 1);
    }
    _Atomic int64_t *slot = &h->counts[ax_hdr_index(h, value)];
    put(slot, get(slot) + 1);
    put(&h->total, get(&h->total) + 1);
    put(&h->sum, add_saturating(get(&h->sum), value));
    if (value < get(&h->min))
        put(&h->min, value);
    if (value > get(&h->max))
        put(&h->max, value);
}

int ax_hdr_add(ax_hdr *to, const ax_hdr *from)
{
    if (to->lowest != from->lowest || to->highest != from->highest || to->digits != from->digits)
        return -1;
    /* `from` may have a live writer, whose counts run ahead of its total: the total is taken from
     * the counts that were seen, so that percentiles of the sum are consistent with it. */
    int64_t seen = 0;
    for (int32_t i = 0; i < to->counts_len; i++) {
        int64_t n = get(&from->counts[i]);
        if (n != 0) {
            put(&to->counts[i], get(&to->counts[i]) + n);
            seen += n;
        }
    }
    put(&to->total, get(&to->total) + seen);
    put(&to->sum, add_saturating(get(&to->sum), get(&from->sum)));
    put(&to->saturated, get(&to->saturated) + get(&from->saturated));
    int64_t min = get(&from->min), max = get(&from->max);
    if (min < get(&to->min))
        put(&to->min, min);
    if (max > get(&to->max))
        put(&to->max, max);
    return 0;
}

int64_t ax_hdr_percentile(const ax_hdr *h, double percentile)
{
    if (!(percentile < 100.0))
        percentile = 100.0;
    if (percentile < 0.0)
        percentile = 0.0;
    /* Rounding half up, at least one count: hdrhistogram's rule, in the same order of operations. */
    int64_t wanted = (int64_t)(percentile * (double)get(&h->total) / 100.0 + 0.5);
    if (wanted < 1)
        wanted = 1;
    int64_t seen = 0;
    for (int32_t i = 0; i < h->counts_len; i++) {
        seen += get(&h->counts[i]);
        if (seen >= wanted) {
            int64_t width, value = slot_value(h, i, &width), min = get(&h->min), max = get(&h->max);
            if (percentile > 0.0)
                value += width - 1;
            return value < min ? min : value > max ? max : value;
        }
    }
    return 0;
}

/* High dynamic range histogram (Gil Tene), V2 bucket layout: counts land in the same slots as in
 * HdrHistogram and the `hdrhistogram` package, so that they can be encoded by it and merged exactly.
 *
 * One writer at a time. Updates are relaxed atomic loads and stores without read-modify-write, so a
 * reader in another thread may copy the counts at any time and sees each count whole.
 */
#ifndef AX_HDR_H
#define AX_HDR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The engine's one layout, in nanoseconds: 1 us resolution unit, one hour, three digits. */
#define AX_HDR_LOWEST INT64_C(1000)
#define AX_HDR_HIGHEST INT64_C(3600000000000)
#define AX_HDR_DIGITS 3

typedef struct ax_hdr {
    int64_t lowest, highest;
    int32_t digits;
    int32_t unit_magnitude;
    int32_t sub_bucket_half_count_magnitude;
    int32_t sub_bucket_count;
    int32_t sub_bucket_half_count;
    int32_t bucket_count;
    int32_t counts_len;
    int64_t sub_bucket_mask;
    _Atomic int64_t total, sum, min, max; /* min is INT64_MAX while empty */
    _Atomic int64_t saturated;            /* values above highest, recorded as highest */
    _Atomic int64_t *counts;
} ax_hdr;

/* Returns 0, or -1 for bounds that HdrHistogram refuses (lowest < 1, highest < 2 x lowest, digits
 * outside 1..5) or for lack of memory. */
int ax_hdr_init(ax_hdr *h, int64_t lowest, int64_t highest, int digits);
void ax_hdr_free(ax_hdr *h);
void ax_hdr_reset(ax_hdr *h);

/* Records one value; below 0 counts as 0, above highest as highest (and in `saturated`). */
void ax_hdr_record(ax_hdr *h, int64_t value);

/* Adds `from` to `to`; both must have the same layout (-1 if not). `to` has no other writer. */
int ax_hdr_add(ax_hdr *to, const ax_hdr *from);

/* Smallest recorded-equivalent value with at least `percentile` percent of the counts at or below
 * it; 0 for an empty histogram. The answer of hdrhistogram's get_value_at_percentile, kept between the
 * smallest and the largest value, which are known exactly: a slot's ends may lie beyond them. */
int64_t ax_hdr_percentile(const ax_hdr *h, double percentile);

int32_t ax_hdr_index(const ax_hdr *h, int64_t value);
int64_t ax_hdr_value_at(const ax_hdr *h, int32_t index); /* lowest value of the slot */

#endif

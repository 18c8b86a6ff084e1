#include "ids.h"

#include <stdbool.h>
#include <string.h>

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static const char *skip_space(const char *p, const char *end)
{
    while (p < end && is_space(*p))
        p++;
    return p;
}

size_t ax_ids_count(ax_span json)
{
    const uint64_t ones = UINT64_C(0x0101010101010101);
    const char *p = json.ptr, *end = p + json.len;
    size_t commas = 0;
    for (; end - p >= 8; p += 8) {
        uint64_t x;
        memcpy(&x, p, sizeof x);
        x ^= ones * ',';
        /* The high bit of each byte that is a comma (now 0); exact, no carry crosses a byte. */
        uint64_t comma = ~(((x & ones * 0x7f) + ones * 0x7f) | x) & ones * 0x80;
        commas += ((comma >> 7) * ones) >> 56;
    }
    for (; p < end; p++)
        commas += *p == ',';
    if (commas > 0)
        return commas + 1;
    p = skip_space(json.ptr, end);
    if (p < end && *p == '[')
        p = skip_space(p + 1, end);
    return p < end && *p != ']';
}

/* Reads the digits at p as one number, at most 11 of them; returns the byte behind them. */
static inline const char *digits(const char *p, const char *end, uint64_t *id)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    if (end - p >= 8) {
        /* Eight bytes at once: 0..9 is a digit, and the first byte of another value has the lowest
         * high bit in `other` (a carry only reaches the bytes behind it). */
        uint64_t x;
        memcpy(&x, p, sizeof x);
        x ^= UINT64_C(0x3030303030303030);
        uint64_t other = ((x + UINT64_C(0x7676767676767676)) | x) & UINT64_C(0x8080808080808080);
        if (other != 0) {
            unsigned bits = (unsigned)__builtin_ctzll(other) & ~7u;
            if (bits == 0)
                return p;
            /* Right-aligned, the digits are eight with leading zeros: add up pairs, fours, eight. */
            x <<= 64 - bits;
            x = x * 10 + (x >> 8);
            *id = ((x & UINT64_C(0x000000ff000000ff)) * UINT64_C(0x000f424000000064) +
                   ((x >> 16) & UINT64_C(0x000000ff000000ff)) * UINT64_C(0x0000271000000001)) >> 32;
            return p + bits / 8;
        }
    }
#endif
    for (int n = 0; n < 11 && p < end && (unsigned char)(*p - '0') <= 9; n++)
        *id = *id * 10 + (uint64_t)(*p++ - '0');
    return p;
}

ax_ids_error ax_ids_parse(ax_span json, int32_t *out, size_t room, size_t *count, size_t *offset)
{
    const char *end = json.ptr + json.len, *p = skip_space(json.ptr, end);
    size_t n = 0;
    ax_ids_error error = AX_IDS_OK;
    *offset = 0;

    if (p == end || *p != '[') {
        error = AX_IDS_NOT_A_LIST;
        goto done;
    }
    p = skip_space(p + 1, end);
    if (p < end && *p == ']') {
        p++;
    } else {
        for (;;) {
            const char *start = p;
            uint64_t id = 0; /* ten digits fit in the range; eleven are out of it and cannot overflow */
            p = digits(p, end, &id);
            if (p == start) {
                if (p == end)
                    error = AX_IDS_TRUNCATED;
                else if (*p == '-' && end - p > 1 && (unsigned char)(p[1] - '0') <= 9)
                    error = AX_IDS_OUT_OF_RANGE;
                else
                    error = AX_IDS_NOT_AN_INTEGER;
                break;
            }
            if (*start == '0' && p - start > 1) {
                error = AX_IDS_NOT_AN_INTEGER;
                p = start;
                break;
            }
            if (id > INT32_MAX) {
                error = AX_IDS_OUT_OF_RANGE;
                p = start;
                break;
            }
            if (n == room) {
                error = AX_IDS_NO_ROOM;
                p = start;
                break;
            }
            out[n++] = (int32_t)id;
            if (p < end && *p != ',')
                p = skip_space(p, end);
            if (p == end) {
                error = AX_IDS_TRUNCATED;
                break;
            }
            if (*p == ']') {
                p++;
                break;
            }
            if (*p != ',') {
                error = AX_IDS_NOT_AN_INTEGER; /* a fraction, an exponent, a missing comma, a string */
                break;
            }
            if (++p < end && is_space(*p))
                p = skip_space(p, end);
        }
    }
    if (error == AX_IDS_OK) {
        p = skip_space(p, end);
        if (p < end)
            error = AX_IDS_TRAILING;
    }
done:
    *count = n;
    if (error != AX_IDS_OK)
        *offset = (size_t)(p - json.ptr);
    return error;
}

size_t ax_ids_common(const int32_t *a, size_t na, const int32_t *b, size_t nb)
{
    enum { STEP = 32 }; /* ids per memcmp, which the C library vectorises */
    size_t n = na < nb ? na : nb, i = 0;
    while (n - i >= STEP && memcmp(a + i, b + i, STEP * sizeof *a) == 0)
        i += STEP;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

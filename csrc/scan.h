/* Byte searches that the stream parsers share, 16 bytes at a time.
 *
 * SSE2 is part of x86-64 and NEON of arm64, so there is nothing to detect at run time; other machines,
 * and builds with AX_NO_SIMD, use 8-byte words. No search reads outside [begin, end): where fewer than
 * 16 bytes are left, the last 16 of the range are loaded and the ones already passed are masked out.
 * The word versions are always compiled, so that the tests can hold both against each other.
 */
#ifndef AX_SCAN_H
#define AX_SCAN_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if !defined(AX_NO_SIMD) && defined(__SSE2__)
#include <emmintrin.h>
#define AX_SIMD 1
#elif !defined(AX_NO_SIMD) && defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#define AX_SIMD 1
#else
#define AX_SIMD 0
#endif

static inline uint64_t ax_load8(const char *c)
{
    uint64_t word;
    memcpy(&word, c, sizeof word);
    return word;
}

#define AX_ONES UINT64_C(0x0101010101010101)
#define AX_TOPS UINT64_C(0x8080808080808080)

/* The top bit of every byte below `limit` (at most 0x80), exact up to and including the first one. */
#define AX_BELOW(word, limit) (((word) - AX_ONES * (limit)) & ~(word) & AX_TOPS)
#define AX_EQUAL(word, byte) AX_BELOW((word) ^ (AX_ONES * (byte)), 1)

static inline bool ax_string_special(char c)
{
    return c == '"' || c == '\\' || (unsigned char)c < 0x20;
}

/* First quote, backslash or control character (below 0x20), else `end`. */
static inline const char *ax_scan_string_words(const char *c, const char *end)
{
    while (end - c >= 8) {
        uint64_t word = ax_load8(c);
        if (AX_EQUAL(word, '"') | AX_EQUAL(word, '\\') | AX_BELOW(word, 0x20))
            break;
        c += 8;
    }
    while (c < end && !ax_string_special(*c))
        c++;
    return c;
}

/* First CR or LF, else `end`. */
static inline const char *ax_scan_eol_words(const char *c, const char *end)
{
    while (end - c >= 8) {
        uint64_t word = ax_load8(c);
        if (AX_EQUAL(word, '\n') | AX_EQUAL(word, '\r'))
            break;
        c += 8;
    }
    while (c < end && *c != '\n' && *c != '\r')
        c++;
    return c;
}

#if AX_SIMD

/* A mask with AX_LANE bits for each of 16 bytes, lowest byte first. */
#if defined(__SSE2__)
#define AX_LANE 1
typedef uint32_t ax_mask;

static inline ax_mask ax_string_mask(const char *c)
{
    __m128i v = _mm_loadu_si128((const __m128i *)c);
    __m128i quote = _mm_cmpeq_epi8(v, _mm_set1_epi8('"'));
    __m128i slash = _mm_cmpeq_epi8(v, _mm_set1_epi8('\\'));
    __m128i low = _mm_cmpeq_epi8(_mm_min_epu8(v, _mm_set1_epi8(0x1f)), v);
    return (ax_mask)_mm_movemask_epi8(_mm_or_si128(_mm_or_si128(quote, slash), low));
}

static inline ax_mask ax_eol_mask(const char *c)
{
    __m128i v = _mm_loadu_si128((const __m128i *)c);
    return (ax_mask)_mm_movemask_epi8(
        _mm_or_si128(_mm_cmpeq_epi8(v, _mm_set1_epi8('\n')), _mm_cmpeq_epi8(v, _mm_set1_epi8('\r'))));
}
#else
#define AX_LANE 4
typedef uint64_t ax_mask;

static inline ax_mask ax_narrow(uint8x16_t hit)
{
    return vget_lane_u64(vreinterpret_u64_u8(vshrn_n_u16(vreinterpretq_u16_u8(hit), 4)), 0);
}

static inline ax_mask ax_string_mask(const char *c)
{
    uint8x16_t v = vld1q_u8((const uint8_t *)c);
    return ax_narrow(vorrq_u8(vorrq_u8(vceqq_u8(v, vdupq_n_u8('"')), vceqq_u8(v, vdupq_n_u8('\\'))),
                              vcltq_u8(v, vdupq_n_u8(0x20))));
}

static inline ax_mask ax_eol_mask(const char *c)
{
    uint8x16_t v = vld1q_u8((const uint8_t *)c);
    return ax_narrow(vorrq_u8(vceqq_u8(v, vdupq_n_u8('\n')), vceqq_u8(v, vdupq_n_u8('\r'))));
}
#endif

#define AX_SCAN(name, mask, words)                                                          \
    static inline const char *name(const char *begin, const char *c, const char *end)       \
    {                                                                                       \
        while (end - c >= 16) {                                                             \
            ax_mask hit = mask(c);                                                          \
            if (hit)                                                                        \
                return c + __builtin_ctzll(hit) / AX_LANE;                                  \
            c += 16;                                                                        \
        }                                                                                   \
        if (end - begin < 16)                                                               \
            return words(c, end);                                                           \
        if (c == end)                                                                       \
            return end;                                                                     \
        int passed = (int)(16 - (end - c)) * AX_LANE;                                       \
        ax_mask hit = mask(end - 16) >> passed;                                             \
        return hit ? c + __builtin_ctzll(hit) / AX_LANE : end;                              \
    }

AX_SCAN(ax_scan_string, ax_string_mask, ax_scan_string_words)
AX_SCAN(ax_scan_eol, ax_eol_mask, ax_scan_eol_words)

#else

static inline const char *ax_scan_string(const char *begin, const char *c, const char *end)
{
    (void)begin;
    return ax_scan_string_words(c, end);
}

static inline const char *ax_scan_eol(const char *begin, const char *c, const char *end)
{
    (void)begin;
    return ax_scan_eol_words(c, end);
}

#endif
#endif

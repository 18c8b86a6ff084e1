/* Byte searches that the stream parsers share: 64 bytes at a time into a mask of hits.
 *
 * SSE2 is part of x86-64 and NEON of arm64, so there is nothing to detect at run time; other machines,
 * and builds with AX_NO_SIMD, use 8-byte words. The word version is always compiled, so that the tests
 * can hold the two against each other.
 *
 * A mask costs the same wherever its hits are, and finding the next hit in it is a shift and a count of
 * zeros, a few cycles; searching anew from every position would put a load, a compare and a transfer
 * between registers into the chain from each string of an event to the next.
 *
 * No load leaves [begin, end): where fewer than 64 bytes are left, the last 64 of the range are loaded
 * and the ones already passed are shifted out; a shorter range is copied to the stack.
 */
#ifndef AX_SCAN_H
#define AX_SCAN_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if !defined(AX_NO_SIMD) && defined(__SSE2__)
#include <emmintrin.h>
#define AX_SIMD 1
#elif !defined(AX_NO_SIMD) && defined(__aarch64__)
#include <arm_neon.h>
#define AX_SIMD 1
#else
#define AX_SIMD 0
#endif

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are read as little-endian");

static inline uint64_t ax_load8(const char *c)
{
    uint64_t word;
    memcpy(&word, c, sizeof word);
    return word;
}

/* ---- 8-byte words ---- */

#define AX_EACH(byte) (UINT64_C(0x0101010101010101) * (uint8_t)(byte))

/* The top bit of every byte of `word` that is zero, exactly. */
static inline uint64_t ax_zero_bytes(uint64_t word)
{
    return ~(((word & AX_EACH(0x7f)) + AX_EACH(0x7f)) | word | AX_EACH(0x7f));
}

/* Top bits to a mask of 8 bits, lowest byte first. */
static inline uint64_t ax_gather(uint64_t tops)
{
    return ((tops >> 7) * UINT64_C(0x0102040810204080)) >> 56;
}

/* Quotes, backslashes and control characters (below 0x20): where a JSON string may end or go on. */
static inline uint64_t ax_string_words(const char *c)
{
    uint64_t mask = 0;
    for (int i = 0; i < 8; i++) {
        uint64_t word = ax_load8(c + 8 * i);
        uint64_t hit = ax_zero_bytes(word ^ AX_EACH('"')) | ax_zero_bytes(word ^ AX_EACH('\\')) |
                       ax_zero_bytes(word & AX_EACH(0xe0));
        mask |= ax_gather(hit) << (8 * i);
    }
    return mask;
}

/* CR and LF. */
static inline uint64_t ax_eol_words(const char *c)
{
    uint64_t mask = 0;
    for (int i = 0; i < 8; i++) {
        uint64_t word = ax_load8(c + 8 * i);
        uint64_t hit = ax_zero_bytes(word ^ AX_EACH('\n')) | ax_zero_bytes(word ^ AX_EACH('\r'));
        mask |= ax_gather(hit) << (8 * i);
    }
    return mask;
}

/* ---- 16-byte vectors ---- */

/* With bit 1 flipped, the quote (0x22) comes to lie just above the control characters, and the two
 * characters between them move out of the way: one comparison finds both. */
#define AX_QUOTE_FLIP 0x02
#define AX_QUOTE_MAX 0x20

#if AX_SIMD && defined(__SSE2__)

static inline uint64_t ax_string_16(const char *c)
{
    __m128i v = _mm_loadu_si128((const __m128i *)c);
    __m128i x = _mm_xor_si128(v, _mm_set1_epi8(AX_QUOTE_FLIP));
    __m128i low = _mm_cmpeq_epi8(_mm_min_epu8(x, _mm_set1_epi8(AX_QUOTE_MAX)), x);
    __m128i slash = _mm_cmpeq_epi8(v, _mm_set1_epi8('\\'));
    return (uint64_t)(uint32_t)_mm_movemask_epi8(_mm_or_si128(low, slash));
}

static inline uint64_t ax_eol_16(const char *c)
{
    __m128i v = _mm_loadu_si128((const __m128i *)c);
    return (uint64_t)(uint32_t)_mm_movemask_epi8(
        _mm_or_si128(_mm_cmpeq_epi8(v, _mm_set1_epi8('\n')), _mm_cmpeq_epi8(v, _mm_set1_epi8('\r'))));
}

static inline uint64_t ax_string_block(const char *c)
{
    return ax_string_16(c) | ax_string_16(c + 16) << 16 | ax_string_16(c + 32) << 32 |
           ax_string_16(c + 48) << 48;
}

static inline uint64_t ax_eol_block(const char *c)
{
    return ax_eol_16(c) | ax_eol_16(c + 16) << 16 | ax_eol_16(c + 32) << 32 | ax_eol_16(c + 48) << 48;
}

/* Whether any of 64 bytes is below 0x20. */
static inline bool ax_any_control(const char *c)
{
    const __m128i *v = (const __m128i *)c;
    __m128i least = _mm_min_epu8(_mm_min_epu8(_mm_loadu_si128(v), _mm_loadu_si128(v + 1)),
                                 _mm_min_epu8(_mm_loadu_si128(v + 2), _mm_loadu_si128(v + 3)));
    return _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_min_epu8(least, _mm_set1_epi8(0x1f)), least)) != 0;
}

#elif AX_SIMD

/* Four vectors of 0x00 and 0xff to one mask: a bit per byte, then three rounds of pairwise sums. */
static inline uint64_t ax_gather_neon(uint8x16_t a, uint8x16_t b, uint8x16_t c, uint8x16_t d)
{
    const uint8x16_t bits = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint8x16_t ab = vpaddq_u8(vandq_u8(a, bits), vandq_u8(b, bits));
    uint8x16_t cd = vpaddq_u8(vandq_u8(c, bits), vandq_u8(d, bits));
    uint8x16_t sum = vpaddq_u8(ab, cd);
    sum = vpaddq_u8(sum, sum);
    return vgetq_lane_u64(vreinterpretq_u64_u8(sum), 0);
}

static inline uint8x16_t ax_string_16(const char *c)
{
    uint8x16_t v = vld1q_u8((const uint8_t *)c);
    uint8x16_t low = vcleq_u8(veorq_u8(v, vdupq_n_u8(AX_QUOTE_FLIP)), vdupq_n_u8(AX_QUOTE_MAX));
    return vorrq_u8(low, vceqq_u8(v, vdupq_n_u8('\\')));
}

static inline uint8x16_t ax_eol_16(const char *c)
{
    uint8x16_t v = vld1q_u8((const uint8_t *)c);
    return vorrq_u8(vceqq_u8(v, vdupq_n_u8('\n')), vceqq_u8(v, vdupq_n_u8('\r')));
}

static inline uint64_t ax_string_block(const char *c)
{
    return ax_gather_neon(ax_string_16(c), ax_string_16(c + 16), ax_string_16(c + 32), ax_string_16(c + 48));
}

static inline uint64_t ax_eol_block(const char *c)
{
    return ax_gather_neon(ax_eol_16(c), ax_eol_16(c + 16), ax_eol_16(c + 32), ax_eol_16(c + 48));
}

static inline bool ax_any_control(const char *c)
{
    const uint8_t *v = (const uint8_t *)c;
    return vminvq_u8(vminq_u8(vminq_u8(vld1q_u8(v), vld1q_u8(v + 16)),
                              vminq_u8(vld1q_u8(v + 32), vld1q_u8(v + 48)))) < 0x20;
}

#else

static inline uint64_t ax_string_block(const char *c)
{
    return ax_string_words(c);
}

static inline uint64_t ax_eol_block(const char *c)
{
    return ax_eol_words(c);
}

static inline bool ax_any_control(const char *c)
{
    uint64_t any = 0;
    for (int i = 0; i < 64; i += 8)
        any |= ax_zero_bytes(ax_load8(c + i) & AX_EACH(0xe0));
    return any != 0;
}

#endif

/* ---- any length ---- */

/* Bit i is set where at[i] is a hit, for at most 64 bytes of [at, end); begin <= at < end. */
#define AX_MASK_OF(name, block)                                                       \
    static inline uint64_t name(const char *begin, const char *at, const char *end)   \
    {                                                                                 \
        size_t left = (size_t)(end - at);                                             \
        if (left >= 64)                                                               \
            return block(at);                                                         \
        if (end - begin >= 64)                                                        \
            return block(end - 64) >> (64 - left);                                    \
        char copy[64] = {0};                                                          \
        memcpy(copy, at, left);                                                       \
        return block(copy) & ((UINT64_C(1) << left) - 1);                             \
    }

AX_MASK_OF(ax_string_mask, ax_string_block)
AX_MASK_OF(ax_eol_mask, ax_eol_block)

/* First CR or LF of [c, end), else `end`. Bytes from `begin` on may be read. */
static inline const char *ax_scan_eol(const char *begin, const char *c, const char *end)
{
    for (; end - c >= 64; c += 64) {
        /* Text has few control characters other than these two, so most blocks are done with here. */
        if (!ax_any_control(c))
            continue;
        uint64_t mask = ax_eol_block(c);
        if (mask)
            return c + __builtin_ctzll(mask);
    }
    if (end - c < 8) {
        while (c < end && *c != '\n' && *c != '\r')
            c++;
        return c;
    }
    uint64_t mask = ax_eol_mask(begin, c, end);
    return mask ? c + __builtin_ctzll(mask) : end;
}

#endif

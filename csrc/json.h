/* Pieces of JSON text (RFC 8259) for a scanner that builds nothing: white space, numbers, strings.
 *
 * Every function here works inside a text whose last byte is '}' (see chunk.c), so that only those which can
 * pass such a byte, the ones for strings, take the end of the text.
 */
#ifndef AX_JSON_H
#define AX_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "scan.h"

static inline bool space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* `c` is inside the text, whose last byte is no white space. */
static inline const char *skip_space(const char *c)
{
    if (__builtin_expect((unsigned char)*c > ' ', 1))
        return c;
    while (space(*c))
        c++;
    return c;
}

static inline bool digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Digits end inside the text, since its last byte is none. */
static inline const char *skip_digits(const char *c)
{
    while (digit(*c))
        c++;
    return c;
}

static inline const char *read_digits(const char *c, int64_t *number)
{
    for (; digit(*c); c++)
        if (__builtin_mul_overflow(*number, (int64_t)10, number) ||
            __builtin_add_overflow(*number, (int64_t)(*c - '0'), number))
            *number = INT64_MAX;
    return c;
}

static inline int hex(char c)
{
    if (digit(c))
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* `c` is at a backslash: behind the escape, or NULL. */
static __attribute__((noinline, cold)) const char *skip_escape(const char *c, const char *end)
{
    if (end - c < 2)
        return NULL;
    if (c[1] == 'u') {
        if (end - c < 6)
            return NULL;
        for (int i = 2; i < 6; i++)
            if (hex(c[i]) < 0)
                return NULL;
        return c + 6;
    }
    return c[1] && strchr("\"\\/bfnrt", c[1]) ? c + 2 : NULL;
}

/* Undoes the escapes of a checked string, as far as needed to compare it with an ASCII word: characters
 * outside ASCII become 0xff. Returns the length, at most `room`. */
static inline size_t unescape(const char *s, size_t len, char *out, size_t room)
{
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    const char *end = s + len;
    size_t n = 0;
    while (s < end && n < room) {
        char c = *s++;
        if (c == '\\') {
            c = *s++;
            const char *at = strchr(from, c);
            if (at) {
                c = to[at - from];
            } else if (c == 'u') {
                int code = hex(s[0]) << 12 | hex(s[1]) << 8 | hex(s[2]) << 4 | hex(s[3]);
                c = code < 0x80 ? (char)code : '\xff';
                s += 4;
            }
        }
        out[n++] = c;
    }
    return n;
}

/* 64 bytes of the text, and where ax_string_mask hits in them. */
typedef struct window {
    const char *at;
    uint64_t hits;
} window;

/* The first window at or behind `c` that has a hit; its `at` is NULL if there is none. */
static __attribute__((noinline)) window next_window(const char *begin, const char *c, const char *end)
{
    for (; c < end; c += 64) {
        uint64_t hits = ax_string_mask(begin, c, end);
        if (hits)
            return (window){c, hits};
        if (end - c <= 64)
            break;
    }
    return (window){NULL, 0};
}

/* Moves `c` to the first hit at or behind it; returns false from the caller if there is none. A macro,
 * so that the window stays in registers. */
#define NEXT_HIT(c)                                                                  \
    do {                                                                             \
        size_t at_ = (size_t)((c) - w.at);                                           \
        uint64_t left_ = w.hits >> (at_ & 63);                                       \
        if (__builtin_expect(at_ < 64 && left_ != 0, 1)) {                           \
            (c) += __builtin_ctzll(left_);                                           \
        } else {                                                                     \
            w = next_window(begin, at_ < 64 ? w.at + 64 : (c), end);                 \
            if (!w.at)                                                               \
                return false;                                                        \
            (c) = w.at + __builtin_ctzll(w.hits);                                    \
        }                                                                            \
    } while (0)

/* `c` is at a hit inside a string: the closing quote, or NULL if the string is not JSON. */
static __attribute__((noinline)) const char *end_string(const char *begin, const char *c, const char *end)
{
    window w = {c, ax_string_mask(begin, c, end)};
    while (*c != '"') {
        if (*c != '\\' || !(c = skip_escape(c, end)) || c == end)
            return NULL;
        NEXT_HIT(c);
    }
    return c;
}

#endif

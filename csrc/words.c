#include "words.h"

#include <stdlib.h>
#include <string.h>

#define GAMMA UINT64_C(0x9e3779b97f4a7c15) /* 2^64 / golden ratio: the step of SplitMix64 */

/* Finaliser of SplitMix64 (Steele, Lea, Flood 2014; variant 13 of Stafford): a bijection in which
 * every input bit flips about half of the output bits. */
static inline uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

uint64_t ax_words_key(uint64_t seed, uint64_t scope, uint64_t id)
{
    uint64_t x = mix(seed + GAMMA);
    x = mix((x ^ scope) + GAMMA);
    return mix((x ^ id) + GAMMA);
}

/* Evenly spread 32 bits onto 0..count-1 (multiply-shift); no word is off by more than count/2^32. */
static inline uint32_t pick(uint32_t random, uint32_t count)
{
    return (uint32_t)(((uint64_t)random * count) >> 32);
}

static int load(const char *const *words, const uint8_t *lens, uint32_t count, uint64_t *slots, uint8_t *slot_lens)
{
    for (uint32_t i = 0; i < count; i++) {
        if (lens[i] == 0 || lens[i] > AX_WORD_MAX)
            return (int)i + 1;
        char slot[AX_WORD_MAX + 1] = " ";
        memcpy(slot + 1, words[i], lens[i]);
        memcpy(&slots[i], slot, sizeof slot);
        slot_lens[i] = (uint8_t)(lens[i] + 1);
    }
    return 0;
}

int ax_words_init(ax_words *w, const char *const *words, const uint8_t *lens, uint32_t count,
                  const char *const *first, const uint8_t *first_lens, uint32_t first_count)
{
    memset(w, 0, sizeof *w);
    if (count == 0 || first_count == 0 || count > INT32_MAX / 2 || first_count > INT32_MAX / 2)
        return 1;
    w->count = count;
    w->first_count = first_count;
    w->slots = malloc(count * sizeof *w->slots);
    w->lens = malloc(count);
    w->first_slots = malloc(first_count * sizeof *w->first_slots);
    w->first_lens = malloc(first_count);

    int bad = -1;
    if (w->slots != NULL && w->lens != NULL && w->first_slots != NULL && w->first_lens != NULL) {
        bad = load(words, lens, count, w->slots, w->lens);
        if (bad == 0) {
            bad = load(first, first_lens, first_count, w->first_slots, w->first_lens);
            if (bad > 0)
                bad += (int)count;
        }
    }
    if (bad != 0)
        ax_words_free(w);
    return bad;
}

void ax_words_free(ax_words *w)
{
    free(w->slots);
    free(w->lens);
    free(w->first_slots);
    free(w->first_lens);
    memset(w, 0, sizeof *w);
}

/* Each step writes a whole slot and moves on by the word's length: no branch depends on a length. */
static inline char *emit(char *out, const uint64_t *slots, const uint8_t *lens, uint32_t i)
{
    memcpy(out, &slots[i], sizeof *slots);
    return out + lens[i];
}

size_t ax_words_fill(const ax_words *w, uint64_t key, size_t n, char *out)
{
    if (n == 0)
        return 0;
    /* One draw of 64 bits makes words 2j (low half) and 2j+1 (high half). */
    char *p = out;
    const uint64_t *slots = w->slots;
    const uint8_t *lens = w->lens;
    uint32_t count = w->count;
    uint64_t counter = key + GAMMA, r = mix(counter);
    p = emit(p, w->first_slots, w->first_lens, pick((uint32_t)r, w->first_count));
    for (size_t i = 1;;) {
        if (i == n)
            break;
        p = emit(p, slots, lens, pick((uint32_t)(r >> 32), count));
        if (++i == n)
            break;
        counter += GAMMA;
        r = mix(counter);
        p = emit(p, slots, lens, pick((uint32_t)r, count));
        i++;
    }
    return (size_t)(p - out);
}

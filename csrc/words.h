/* Prompt text: a run of pool words chosen by a counter-based generator.
 *
 * Word i of a run keyed by (seed, scope, id) is pool[mix(key, i)]: no state, so every process and
 * host makes the same bytes, and any part of a run can be made alone. Each word is written with a
 * leading space. The first word of a run comes from the `first` list, whose words stay one token
 * when a template trims the space in front of them.
 */
#ifndef AX_WORDS_H
#define AX_WORDS_H

#include <stddef.h>
#include <stdint.h>

#define AX_WORD_MAX 7 /* bytes of a word without its space, so that a slot is 8 bytes */

typedef struct ax_words {
    uint32_t count, first_count;
    uint64_t *slots;      /* " word" in memory order, zero padded */
    uint8_t *lens;        /* with the space */
    uint64_t *first_slots;
    uint8_t *first_lens;
} ax_words;

/* Words are given as pointers and lengths. Returns 0, -1 for lack of memory, or the 1-based position
 * of a word that is empty or longer than AX_WORD_MAX (positions of `first` follow those of `words`). */
int ax_words_init(ax_words *w, const char *const *words, const uint8_t *lens, uint32_t count,
                  const char *const *first, const uint8_t *first_lens, uint32_t first_count);
void ax_words_free(ax_words *w);

/* Key of a run. scope is a 64-bit hash of the trace or conversation, id the block id or turn. */
uint64_t ax_words_key(uint64_t seed, uint64_t scope, uint64_t id);

/* Room that n words may take, including 8 bytes of slack that the writer overruns. */
static inline size_t ax_words_room(size_t n)
{
    return n * (AX_WORD_MAX + 1) + 8;
}

/* Writes n words of the run `key` to out, which has ax_words_room(n) bytes; returns the bytes used. */
size_t ax_words_fill(const ax_words *w, uint64_t key, size_t n, char *out);

#endif

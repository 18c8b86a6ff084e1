from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef extern from "words.h" nogil:
    const int AX_WORD_MAX

    ctypedef struct ax_words:
        uint32_t count
        uint32_t first_count

    int ax_words_init(ax_words *w, const char *const *words, const uint8_t *lens, uint32_t count,
                      const char *const *first, const uint8_t *first_lens, uint32_t first_count)
    void ax_words_free(ax_words *w)
    uint64_t ax_words_key(uint64_t seed, uint64_t scope, uint64_t id)
    size_t ax_words_room(size_t n)
    size_t ax_words_fill(const ax_words *w, uint64_t key, size_t n, char *out)


# Immutable, so that any thread may fill from it without the GIL.
cdef class WordPool:
    cdef ax_words pool

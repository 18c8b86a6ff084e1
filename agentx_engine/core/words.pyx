# cython: boundscheck=False, wraparound=False
"""WordPool: csrc/words for Python. The text is written straight into the bytes object that is returned."""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free


# Declared on pointers: a bytes object may be written and resized only while nobody else refers to it.
cdef extern from "Python.h":
    const Py_ssize_t PY_SSIZE_T_MAX
    PyObject *PyBytes_FromStringAndSize(const char *data, Py_ssize_t size) except NULL
    char *AS_STRING "PyBytes_AS_STRING"(PyObject *string)
    int _PyBytes_Resize(PyObject **string, Py_ssize_t size) except -1

cdef enum:
    # Words from which on the GIL is given up: making them takes longer than taking it back.
    RELEASE_WORDS = 4096


cdef class WordPool:
    def __cinit__(self, words, first):
        cdef list encoded = [w.encode() for w in (*words, *first)]
        cdef uint32_t count = len(words), first_count = len(first), i
        cdef const char **ptrs = <const char **>calloc(len(encoded) + 1, sizeof(char *))
        cdef uint8_t *lens = <uint8_t *>calloc(len(encoded) + 1, 1)
        cdef int bad = -1
        if ptrs != NULL and lens != NULL:
            for i in range(count + first_count):
                ptrs[i] = PyBytes_AS_STRING(encoded[i])
                lens[i] = min(<size_t>len(encoded[i]), <size_t>255)
            bad = ax_words_init(&self.pool, ptrs, lens, count, ptrs + count, lens + count, first_count)
        free(ptrs)
        free(lens)
        if bad < 0:
            raise MemoryError("no memory for the word pool")
        if count == 0 or first_count == 0:
            raise ValueError("a word pool needs words and first words")
        if bad > 0:
            word = (*words, *first)[bad - 1]
            raise ValueError(f"the word {word!r} at position {bad} does not have 1 to {AX_WORD_MAX} bytes")

    def __dealloc__(self):
        ax_words_free(&self.pool)

    def fill(self, uint64_t key, Py_ssize_t n):
        cdef size_t used, words = checked(n, 1)
        if words == 0:
            return b""
        cdef PyObject *text = PyBytes_FromStringAndSize(NULL, ax_words_room(words))
        cdef char *out = AS_STRING(text)
        if words < RELEASE_WORDS:
            used = ax_words_fill(&self.pool, key, words, out)
        else:
            with nogil:
                used = ax_words_fill(&self.pool, key, words, out)
        return shrunk(text, used)

    def blocks(self, uint64_t seed, uint64_t scope, const int32_t[:] ids not None, Py_ssize_t block_size):
        cdef size_t used, words = checked(ids.shape[0], block_size)
        if words == 0:
            return b""
        cdef PyObject *text = PyBytes_FromStringAndSize(NULL, ax_words_room(words))
        cdef char *out = AS_STRING(text)
        if words < RELEASE_WORDS:
            used = fill_blocks(&self.pool, seed, scope, ids, block_size, out)
        else:
            with nogil:
                used = fill_blocks(&self.pool, seed, scope, ids, block_size, out)
        return shrunk(text, used)


def words_key(uint64_t seed, uint64_t scope, uint64_t id):
    return ax_words_key(seed, scope, id)


cdef size_t fill_blocks(const ax_words *pool, uint64_t seed, uint64_t scope, const int32_t[:] ids,
                        size_t block_size, char *out) noexcept nogil:
    cdef size_t used = 0
    cdef Py_ssize_t i
    for i in range(ids.shape[0]):
        used += ax_words_fill(pool, ax_words_key(seed, scope, <uint32_t>ids[i]), block_size, out + used)
    return used


cdef size_t checked(Py_ssize_t n, Py_ssize_t size) except? 0:
    if n < 0 or size < 0 or (size > 0 and n > PY_SSIZE_T_MAX // (AX_WORD_MAX + 1) // size - 8):
        raise ValueError(f"{n} x {size} words cannot be made")
    return n * size


# Cuts a new bytes object to its used size and hands it over.
cdef bytes shrunk(PyObject *text, Py_ssize_t used):
    _PyBytes_Resize(&text, used)  # frees the object on failure
    cdef bytes out = <bytes>text
    Py_DECREF(out)
    return out

# cython: boundscheck=False, wraparound=False
"""csrc/ids for Python: JSON bytes in, int32 arrays out, no Python integer in between."""

import numpy as np

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stddef cimport size_t
from libc.stdint cimport int32_t

cdef tuple REASONS = (
    "",
    "not a list",
    "not an integer",
    "not within 0..2147483647",
    "the list does not end",
    "something follows the list",
    "more ids than commas",
)


class IdsError(ValueError):
    def __init__(self, reason, offset):
        super().__init__(f"{reason}, at byte {offset}")
        self.reason = reason
        self.offset = offset

    def __reduce__(self):
        return type(self), (self.reason, self.offset)


def parse_ids(raw):
    cdef Py_buffer buffer
    cdef ax_span json
    cdef size_t room, count = 0, offset = 0
    cdef ax_ids_error error
    cdef int32_t[::1] view
    PyObject_GetBuffer(raw, &buffer, PyBUF_SIMPLE)
    try:
        json.ptr = <const char *>buffer.buf
        json.len = buffer.len
        room = ax_ids_count(json)
        ids = np.empty(room, dtype=np.int32)
        view = ids
        error = ax_ids_parse(json, &view[0] if room else NULL, room, &count, &offset)
    finally:
        PyBuffer_Release(&buffer)
    if error != AX_IDS_OK:
        raise IdsError(REASONS[<int>error], offset)
    return ids


def common_prefix(const int32_t[::1] a not None, const int32_t[::1] b not None):
    if a.shape[0] == 0 or b.shape[0] == 0:
        return 0
    return ax_ids_common(&a[0], a.shape[0], &b[0], b.shape[0])

"""The engine's clock; see csrc/clock.h."""

from libc.stdint cimport int64_t

cdef extern from "clock.h" nogil:
    ctypedef struct ax_clock_pair:
        int64_t offset_ns
        int64_t error_ns
        int64_t taken_ns

    int64_t ax_now_ns()
    ax_clock_pair ax_clock_pair_now()


def now_ns():
    return ax_now_ns()


def wall_pairing():
    cdef ax_clock_pair pair = ax_clock_pair_now()
    return pair.offset_ns, pair.error_ns, pair.taken_ns

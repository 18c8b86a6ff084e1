"""csrc/truth: the server that is the truth (metronome) and the least that a client costs (floor)."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t


cdef extern from "truth/measure.h" nogil:
    ctypedef struct ax_spread:
        uint64_t count
        double p50_us, p99_us, max_us


cdef extern from "truth/answer.h" nogil:
    enum:
        AX_ANSWER_MAX_EVENT
    size_t ax_answer_min_event()


cdef extern from "truth/metronome.h" nogil:
    enum:
        AX_METRONOME_JSON_MAX

    ctypedef enum ax_phase:
        AX_PHASE_NATURAL
        AX_PHASE_SPREAD
        AX_PHASE_SYNC

    ctypedef struct ax_metronome_options:
        const char *bind
        uint16_t port
        ax_phase phase
        int64_t ttft_ns
        int64_t interval_ns
        uint32_t tokens
        uint32_t event_bytes
        uint32_t events_per_write
        uint32_t burst
        int64_t prompt_tokens
        int64_t max_body
        int send_buffer

    ctypedef struct ax_metronome:
        pass

    ax_metronome *ax_metronome_open(const ax_metronome_options *options, const char **what)
    uint16_t ax_metronome_port(const ax_metronome *m)
    int ax_metronome_run(ax_metronome *m, int stop_fd)
    size_t ax_metronome_json(const ax_metronome *m, char *out)
    void ax_metronome_close(ax_metronome *m)


cdef extern from "truth/floor.h" nogil:
    ctypedef enum ax_stamps:
        AX_STAMPS_NONE
        AX_STAMPS_USER
        AX_STAMPS_KERNEL

    ctypedef struct ax_floor_options:
        const char *host
        uint16_t port
        uint32_t streams
        uint32_t tokens
        uint32_t body_bytes
        int64_t warmup_ns
        int64_t duration_ns
        uint64_t answers
        ax_stamps stamps

    ctypedef struct ax_floor_result:
        uint64_t events, warmup_events, reads, bytes, answers, requests
        double seconds, cpu_s, cpu_user_s, cpu_system_s, connect_s
        ax_spread user, kernel, kernel_single
        uint64_t coalesced_reads, skipped

    int ax_floor_run(const ax_floor_options *options, int stop_fd, ax_floor_result *result, const char **what)

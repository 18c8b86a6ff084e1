"""Blocking calls of the truth server and of the bare client. Run them in a process of their own
(agentx_engine.sim.truth_main): beside the engine they would share its core and its interpreter."""

import json
import os

from libc.errno cimport errno

PHASES = {"natural": AX_PHASE_NATURAL, "spread": AX_PHASE_SPREAD, "sync": AX_PHASE_SYNC}
STAMPS = {"none": AX_STAMPS_NONE, "user": AX_STAMPS_USER, "kernel": AX_STAMPS_KERNEL}

MIN_EVENT_BYTES = ax_answer_min_event()
MAX_EVENT_BYTES = AX_ANSWER_MAX_EVENT
MIN_BODY_BYTES = 180


cdef object failure(const char *what):
    """The OSError of the C call that has just failed."""
    cdef int code = errno
    text = what.decode()
    if code == 0:
        return ConnectionError(text)
    return OSError(code, f"cannot {text}: {os.strerror(code)}")


cdef object within(str name, value, low, high):
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}, must be {low} to {high}")
    return value


cdef object one_of(str name, value, table):
    if value not in table:
        raise ValueError(f"{name} is {value!r}, must be one of {', '.join(table)}")
    return table[value]


def run_metronome(
    *,
    int stop_fd,
    ready=None,
    str bind="127.0.0.1",
    port=0,
    phase="natural",
    ttft_us=20_000,
    interval_us=10_000,
    tokens=200,
    event_bytes=230,
    events_per_write=1,
    burst=1,
    prompt_tokens=None,
    max_body_bytes=4 << 20,
    send_buffer_bytes=0,
):
    cdef ax_metronome_options options
    cdef const char *what = NULL
    cdef ax_metronome *server
    cdef int outcome
    cdef char text[AX_METRONOME_JSON_MAX]
    address = bind.encode()
    options.bind = address
    options.port = within("port", port, 0, 65535)
    options.phase = one_of("phase", phase, PHASES)
    options.ttft_ns = round(within("ttft_us", ttft_us, 0, 3_600_000_000) * 1000)
    options.interval_ns = round(within("interval_us", interval_us, 0, 3_600_000_000) * 1000)
    options.tokens = within("tokens", tokens, 1, 1_000_000_000)
    options.event_bytes = within("event_bytes", event_bytes, MIN_EVENT_BYTES, MAX_EVENT_BYTES)
    options.events_per_write = within("events_per_write", events_per_write, 1, 1024)
    options.burst = within("burst", burst, 1, 1024)
    options.prompt_tokens = -1 if prompt_tokens is None else within("prompt_tokens", prompt_tokens, 0, 1 << 40)
    options.max_body = within("max_body_bytes", max_body_bytes, 0, 1 << 40)
    options.send_buffer = within("send_buffer_bytes", send_buffer_bytes, 0, 1 << 30)

    server = ax_metronome_open(&options, &what)
    if server is NULL:
        raise failure(what)
    try:
        if ready is not None:
            ready(ax_metronome_port(server))
        with nogil:
            outcome = ax_metronome_run(server, stop_fd)
        if outcome < 0:
            raise failure(b"serve")
        return json.loads(text[: ax_metronome_json(server, text)])
    finally:
        ax_metronome_close(server)


cdef dict spread(const ax_spread *e):
    return {"count": e.count, "p50": e.p50_us, "p99": e.p99_us, "max": e.max_us}


def run_floor(
    *,
    str host="127.0.0.1",
    port,
    streams=1,
    tokens=444,
    body_bytes=2000,
    warmup_s=0.0,
    duration_s=10.0,
    answers=0,
    stamps="none",
    int stop_fd=-1,
):
    cdef ax_floor_options options
    cdef ax_floor_result r
    cdef const char *what = NULL
    cdef int outcome
    address = host.encode()
    options.host = address
    options.port = within("port", port, 1, 65535)
    options.streams = within("streams", streams, 1, 1_000_000)
    options.tokens = within("tokens", tokens, 1, 1_000_000_000)
    options.body_bytes = within("body_bytes", body_bytes, MIN_BODY_BYTES, 1 << 30)
    options.warmup_ns = round(within("warmup_s", warmup_s, 0, 86_400) * 1e9)
    options.duration_ns = round(within("duration_s", duration_s, 0, 86_400) * 1e9)
    options.answers = within("answers", answers, 0, 1 << 40)
    options.stamps = one_of("stamps", stamps, STAMPS)
    with nogil:
        outcome = ax_floor_run(&options, stop_fd, &r, &what)
    if outcome < 0:
        raise failure(what)
    result = {
        "events": r.events,
        "warmup_events": r.warmup_events,
        "reads": r.reads,
        "bytes": r.bytes,
        "answers": r.answers,
        "requests": r.requests,
        "seconds": r.seconds,
        "events_per_s": r.events / r.seconds if r.seconds else 0.0,
        "reads_per_event": r.reads / r.events if r.events else None,
        "coalesced_reads": r.coalesced_reads,
        "cpu_s": r.cpu_s,
        "cpu_user_s": r.cpu_user_s,
        "cpu_system_s": r.cpu_system_s,
        "cpu_ns_per_event": r.cpu_s * 1e9 / r.events if r.events else None,
        "connect_s": r.connect_s,
    }
    if options.stamps != AX_STAMPS_NONE:
        result["user_error_us"] = spread(&r.user)
        result["events_unstamped"] = r.skipped
    if options.stamps == AX_STAMPS_KERNEL:
        result["kernel_error_us"] = spread(&r.kernel)
        result["kernel_error_single_us"] = spread(&r.kernel_single)
    return result

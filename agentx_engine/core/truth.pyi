"""The truth server (metronome) and the bare client (floor), as blocking calls without the GIL.

Run them in a process of their own, `agentx_engine.sim.truth_main`: inside the engine's process they
would share its core and falsify what they are there to check. Definitions: csrc/truth/metronome.h and
csrc/truth/floor.h.
"""

from collections.abc import Callable
from typing import NotRequired, TypedDict

PHASES: dict[str, int]
"""Names for `phase`: natural, spread, sync."""
STAMPS: dict[str, int]
"""Names for `stamps`: none, user, kernel."""
MIN_EVENT_BYTES: int
MAX_EVENT_BYTES: int
MIN_BODY_BYTES: int

class Spread(TypedDict):
    """A summary of a histogram in microseconds; zeros where count is 0. Negative values count as 0."""

    count: int
    p50: float
    p99: float
    max: float

class MetronomeStats(TypedDict):
    """What the metronome did. Events are SSE events: tokens, finish, usage and `[DONE]`."""

    requests: int
    answers: int
    """Sent whole."""
    aborted: int
    """Cut off by the client's close."""
    refused: int
    """Requests answered with 4xx or 505, and connections for which there was no descriptor or memory."""
    connections: int
    connections_open: int
    events_offered: int
    """Due by the schedule so far."""
    events_sent: int
    """Taken whole by the kernel."""
    events_deferred: int
    """Of those sent, the ones that waited until the client had read."""
    bytes_sent: int
    seconds: float
    """From the first request to the last event sent."""
    offered_per_s: float
    achieved_per_s: float
    lateness_us: Spread
    """Time of the send - due, of each write of token events that did not wait for the client."""
    cpu_s: float
    cpu_user_s: float
    cpu_system_s: float

class FloorResult(TypedDict):
    """What the bare client saw, over `seconds`. The `*_error_us` are a stamp - the event's `sent_ns`."""

    events: int
    """Number of `data: ` seen, finish, usage and `[DONE]` included."""
    warmup_events: int
    """Taken before counting began; in no other figure."""
    reads: int
    bytes: int
    answers: int
    """Read whole."""
    requests: int
    seconds: float
    events_per_s: float
    reads_per_event: float | None
    coalesced_reads: int
    """Reads with more than one event, each answer's last read apart."""
    cpu_s: float
    """CPU of the thread, also split into user and system."""
    cpu_user_s: float
    cpu_system_s: float
    cpu_ns_per_event: float | None
    connect_s: float
    user_error_us: NotRequired[Spread]
    events_unstamped: NotRequired[int]
    """Events whose `sent_ns` was cut by the end of a read."""
    kernel_error_us: NotRequired[Spread]
    kernel_error_single_us: NotRequired[Spread]
    """Of reads that held one event only, whose stamp is the event's own."""

def run_metronome(
    *,
    stop_fd: int,
    ready: Callable[[int], object] | None = None,
    bind: str = "127.0.0.1",
    port: int = 0,
    phase: str = "natural",
    ttft_us: float = 20_000,
    interval_us: float = 10_000,
    tokens: int = 200,
    event_bytes: int = 230,
    events_per_write: int = 1,
    burst: int = 1,
    prompt_tokens: int | None = None,
    max_body_bytes: int = 4_194_304,
    send_buffer_bytes: int = 0,
) -> MetronomeStats:
    """Serves until `stop_fd` is readable (a pipe or an eventfd; nothing is read from it).

    `ready` is called with the port once the socket listens. `tokens` is for requests without a limit;
    `prompt_tokens` None reports the bytes of the request's body. A buffer of 0 bytes is the kernel's choice.

    Raises ValueError for an option out of bounds, OSError if the port cannot be had.
    """

def run_floor(
    *,
    port: int,
    host: str = "127.0.0.1",
    streams: int = 1,
    tokens: int = 444,
    body_bytes: int = 2000,
    warmup_s: float = 0.0,
    duration_s: float = 10.0,
    answers: int = 0,
    stamps: str = "none",
    stop_fd: int = -1,
) -> FloorResult:
    """Keeps `streams` requests in flight and counts events; see csrc/truth/floor.h.

    Ends after `warmup_s` + `duration_s`, or, with `answers` > 0, when so many have been read whole (no
    warm-up then, nothing cut off), or when `stop_fd` is readable.

    Raises ValueError for an option out of bounds, OSError if the server cannot be reached, closes, or
    answers with anything but 200.
    """

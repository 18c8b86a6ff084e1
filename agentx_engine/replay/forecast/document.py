"""The result of a forecast: one Struct, which is the JSON document of `agentx-engine plan --json`.

Times are seconds since the start of the measured phase, negative in the warmup. Durations are what their
names say, rates are per second of the measured duration, shares from 0 to 1. What could not be told is
null. All but `warmup` and the peaks of `kv_cache` and `memory` speak of the measured phase: requests sent
within the duration; those still under way at its end have the grace period to finish.
"""

from __future__ import annotations

import msgspec

from agentx_engine.replay.forecast.server import ServerSpec

SCHEMA = "agentx-engine/forecast/1"


class Run(msgspec.Struct, kw_only=True):
    """What was asked for."""

    traces: int
    concurrency: int
    duration_s: float
    grace_s: float
    cache_bust: bool  # each session has a marker that keeps its prompts apart from all others
    seed: int  # of the draws of t*
    start_ratios: tuple[float, float] | None  # t* lies between; None: lanes begin at the first turn
    burst_starts: bool
    warmup_requests_per_lane: int
    warmup_duration_s: float | None
    system_idle_cap_s: float | None
    tree_idle_cap_s: float | None


class Warmup(msgspec.Struct, kw_only=True):
    """Before the measured phase: primers of the streams that are live at t*, then one-token requests."""

    seconds: float
    primers: int
    extra_requests: int
    extra_missing: int  # lanes had nothing left to send
    input_tokens: int
    uncached_tokens: int


class Requests(msgspec.Struct, kw_only=True):
    """`per_s`: sent, by the duration. `most_within_1s`: sent in the busiest second, which begins
    at `most_within_1s_at_s`."""

    sent: int
    finished: int
    cut_off: int  # cancelled at the end of the grace period
    per_s: float
    most_within_1s: int
    most_within_1s_at_s: float | None


class InFlight(msgspec.Struct, kw_only=True):
    """Requests between their sending and their last token, weighted by time, within the duration."""

    mean: float
    p50: int
    p90: int
    p99: int
    max: int
    max_at_s: float
    none_share: float  # of the time with nothing in flight at all


class Lanes(msgspec.Struct, kw_only=True):
    """Shares of the lanes' time within the duration. A live lane has a session; a busy one a request in
    flight; an idle one is live and waits (recorded pauses, since nothing else makes a lane wait)."""

    live_share: float
    busy_share: float
    idle_share: float


class Trees(msgspec.Struct, kw_only=True):
    """Sessions with all their subagents that were live at some time of the measured phase."""

    started: int
    finished: int  # played to their end
    recycled: int  # of those started: plays of a trace which had been started before, warmup included
    distinct_traces: int
    most_plays_of_a_trace: int


class CorpusUse(msgspec.Struct, kw_only=True):
    """How long the corpus lasts: until a lane begins a trace that had been begun before.

    `lasts_s` is when that happens in the run, 0 if there are more lanes than traces. None: not within the
    duration; `lasts_estimate_s` then assumes that lanes go on to take traces at the rate at which they did
    after the start, and is None if they took none.
    """

    lasts_s: float | None
    lasts_estimate_s: float | None


class Tokens(msgspec.Struct, kw_only=True):
    """As recorded: prompts without marker and template. `output` of answers that were cut off up to the cut.

    `*_per_s`: what falls within the duration, by the duration; answers spread evenly over their decoding,
    prompts counted when they are sent. `uncached` had to be computed by the model of the server.
    """

    input: int
    output: int
    uncached: int
    input_per_s: float
    output_per_s: float
    uncached_per_s: float
    uncached_most_per_s_over_10s: float  # mean over the busiest 10 s
    uncached_most_at_s: float | None


class PrefixCache(msgspec.Struct, kw_only=True):
    """`theoretical_hit`: of blocks, in the order of the recording, as summary.json has it. `model_hit`: of
    tokens, in this replay on this model of a cache. `over_capacity`: requests that came while those in
    flight needed more than the capacity, which the model lets happen."""

    theoretical_hit: float | None
    model_hit: float | None
    over_capacity: int


class KvCache(msgspec.Struct, kw_only=True):
    """Tokens that a server holds, shared blocks once.

    `in_flight`: at the peak, for the requests in flight, with their whole answers: the least that lets them
    all run. `live`: at the peak, distinct blocks of the last prompts of all live conversations (roots and
    subagents between their first and last request): with less, prompts are computed again after a pause.
    """

    in_flight_tokens: int
    in_flight_at_s: float | None
    live_tokens: int
    live_blocks: int
    live_at_s: float | None
    live_conversations: int  # at their own peak


class Pauses(msgspec.Struct, kw_only=True):
    """`gap_*`: between one request and the next, over all lanes. `longest_quiet_s`: longest time with nothing
    in flight. `longest_wait_s`: longest time that one lane's session had nothing in flight; `_open`: it had
    not ended when the run did."""

    gap_mean_ms: float | None
    gap_p50_ms: float | None
    gap_p99_ms: float | None
    gap_max_s: float | None
    longest_quiet_s: float
    longest_quiet_at_s: float | None
    longest_wait_s: float
    longest_wait_at_s: float | None
    longest_wait_trace: str | None
    longest_wait_lane: int | None
    longest_wait_open: bool


class IdleCaps(msgspec.Struct, kw_only=True):
    """How often idle caps brought timers nearer, and by how much: of the system, and of single sessions."""

    system_shifts: int
    system_skipped_s: float
    tree_shifts: int
    tree_skipped_s: float


class Quantiles(msgspec.Struct, kw_only=True):
    mean: float
    p50: float
    p99: float
    max: float


class Latency(msgspec.Struct, kw_only=True):
    """What the model of the server gives, finished requests: a consequence of its parameters, not a
    prediction for any real server."""

    ttft_ms: Quantiles | None
    request_ms: Quantiles | None


class Memory(msgspec.Struct, kw_only=True):
    """An estimate of the client's memory at its peak: a process of `base_bytes`, `bytes_per_token` for the
    text of every prompt that is alive (what sessions of one trace share exists once), and
    `bytes_per_request` for the results of each request. Reading a large trace takes more for a moment."""

    client_bytes: int
    base_bytes: int
    prompt_tokens: int
    bytes_per_token: float
    bytes_per_request: int


class Curve(msgspec.Struct, kw_only=True):
    """The run in windows of `window_s` each (the last may be shorter). Totals of a window, except
    `in_flight_mean` and `in_flight_max`."""

    window_s: float
    requests: list[int]
    in_flight_mean: list[float]
    in_flight_max: list[int]
    input_tokens: list[int]
    output_tokens: list[int]
    uncached_tokens: list[int]


class Forecast(msgspec.Struct, kw_only=True):
    """What a run would look like if the server behaved as `server` says."""

    schema: str = SCHEMA
    run: Run
    server: ServerSpec
    assumptions: list[str]
    warmup: Warmup | None
    requests: Requests
    in_flight: InFlight
    lanes: Lanes
    trees: Trees
    corpus: CorpusUse
    tokens: Tokens
    prefix_cache: PrefixCache
    kv_cache: KvCache
    pauses: Pauses
    idle_caps: IdleCaps
    latency_of_the_model: Latency
    memory: Memory
    curve: Curve

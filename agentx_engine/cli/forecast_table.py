"""The forecast of a run for people: a plain table of at most 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentx_engine.replay.forecast import Forecast

WIDTH = 100
LABEL = 14
RAMP = " .:-=+*#%@"


def render(f: Forecast) -> Iterator[str]:
    """The lines of the table of a forecast."""
    run, r, i = f.run, f.requests, f.in_flight
    yield from _wrap(
        "",
        f"forecast: {run.concurrency:,} lanes on {run.traces:,} traces for {_s(run.duration_s)}, "
        f"then {_s(run.grace_s)} of grace. Nothing was sent; the server is a model, see below.",
    )
    yield ""
    if f.warmup is not None:
        w = f.warmup
        missing = f", {w.extra_missing:,} not sent as nothing was left" if w.extra_missing else ""
        yield from _wrap(
            "warmup",
            f"{_s(w.seconds)}: {w.primers:,} primers, {w.extra_requests:,} more requests{missing}; "
            f"{w.input_tokens:,} tokens in, {w.uncached_tokens:,} uncached",
        )
    yield from _wrap(
        "in flight",
        f"mean {i.mean:,.1f}, p50 {i.p50:,}, p90 {i.p90:,}, p99 {i.p99:,}, max {i.max:,} "
        f"at {_s(i.max_at_s)}; nothing in flight {_share(i.none_share)} of the time",
    )
    yield from _curve("in flight", f.curve.in_flight_max, f.curve.window_s)
    yield from _wrap(
        "requests",
        f"{r.sent:,} sent, {r.finished:,} finished, {r.cut_off:,} cut off at the end; {_n(r.per_s)}/s"
        + ("" if r.most_within_1s_at_s is None else f", {r.most_within_1s:,} within 1 s")
        + _at(r.most_within_1s_at_s),
    )
    yield from _curve("requests", f.curve.requests, f.curve.window_s)
    yield from _sessions(f)
    yield from _tokens(f)
    yield from _waits(f)
    memory = f.memory
    yield from _wrap(
        "memory",
        f"about {memory.client_bytes / 1e6:,.0f} MB for this client "
        f"({memory.prompt_tokens:,} tokens of prompts alive at the peak)",
    )
    yield ""
    yield "what this rests on"
    for text in f.assumptions:
        yield from textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ")


def _sessions(f: Forecast) -> Iterator[str]:
    lanes, trees, corpus = f.lanes, f.trees, f.corpus
    yield from _wrap(
        "lanes",
        f"{_share(lanes.live_share)} live; {_share(lanes.busy_share)} busy, {_share(lanes.idle_share)} idle",
    )
    live = trees.started - trees.finished
    yield from _wrap(
        "sessions",
        f"{trees.started:,} started, {trees.finished:,} finished, {live:,} live at the end; of "
        f"{trees.distinct_traces:,} traces, {trees.recycled:,} recycled, one trace at most "
        f"{trees.most_plays_of_a_trace:,} times",
    )
    if corpus.lasts_s is not None:
        lasts = (
            "fewer traces than lanes: some are played more than once from the start on"
            if corpus.lasts_s == 0
            else f"lasts {_s(corpus.lasts_s)}, then traces are played again"
        )
    elif corpus.lasts_estimate_s is not None:
        lasts = f"lasts the whole run; at this pace about {_s(corpus.lasts_estimate_s)}"
    else:
        lasts = "lasts the whole run; no lane has asked for a second trace"
    yield from _wrap("corpus", lasts)


def _tokens(f: Forecast) -> Iterator[str]:
    t, cache, kv = f.tokens, f.prefix_cache, f.kv_cache
    yield from _wrap(
        "tokens",
        f"{t.input:,} in ({_n(t.input_per_s)}/s), {t.output:,} out ({_n(t.output_per_s)}/s)",
    )
    window_s = min(10.0, f.run.duration_s)
    yield from _wrap(
        "prefill",
        f"{t.uncached:,} uncached ({_n(t.uncached_per_s)}/s), asked for in the busiest {_s(window_s)} "
        f"{_n(t.uncached_most_per_s_over_10s)}/s{_at(t.uncached_most_at_s)}",
    )
    yield from _wrap(
        "prefix cache",
        f"{_share(cache.theoretical_hit)} of blocks at best, {_share(cache.model_hit)} of tokens "
        "in this replay on the model",
    )
    yield from _wrap(
        "KV",
        f"in flight {kv.in_flight_tokens:,} tokens at the peak{_at(kv.in_flight_at_s)}; "
        f"live {kv.live_tokens:,} tokens, {kv.live_blocks:,} blocks{_at(kv.live_at_s)}; "
        f"{kv.live_conversations:,} live conversations",
    )
    if cache.over_capacity:
        yield from _wrap(
            "",
            f"! {cache.over_capacity:,} requests came while those in flight needed more than the cache "
            "holds; a real server would let requests wait, the model does not",
        )


def _waits(f: Forecast) -> Iterator[str]:
    p, latency = f.pauses, f.latency_of_the_model
    gaps = (
        "fewer than two requests"
        if p.gap_mean_ms is None
        else f"to the next request: mean {_n(p.gap_mean_ms)} ms, p50 {_n(p.gap_p50_ms)}, "
        f"p99 {_n(p.gap_p99_ms)}, longest {_s(p.gap_max_s)}"
    )
    yield from _wrap(
        "gaps", f"{gaps}; nothing in flight for {_s(p.longest_quiet_s)}{_at(p.longest_quiet_at_s)}"
    )
    if p.longest_wait_trace is not None:
        yield from _wrap(
            "longest wait",
            f"{'more than ' if p.longest_wait_open else ''}{_s(p.longest_wait_s)} on lane "
            f"{p.longest_wait_lane}{_at(p.longest_wait_at_s)}, in {p.longest_wait_trace}",
        )
    caps = f.idle_caps
    if f.run.system_idle_cap_s is not None:
        yield from _wrap(
            "system cap", f"cut in {caps.system_shifts:,} times, {_s(caps.system_skipped_s)} skipped in all"
        )
    if f.run.tree_idle_cap_s is not None:
        yield from _wrap(
            "session cap", f"cut in {caps.tree_shifts:,} times, {_s(caps.tree_skipped_s)} of sessions skipped"
        )
    if latency.ttft_ms is not None and latency.request_ms is not None:
        yield from _wrap(
            "the model's",
            f"TTFT p50 {_n(latency.ttft_ms.p50)} ms, p99 {_n(latency.ttft_ms.p99)}; "
            f"whole requests p50 {_n(latency.request_ms.p50)} ms, p99 {_n(latency.request_ms.p99)}",
        )


def sparkline(values: Sequence[int]) -> str:
    """One ASCII character per value: a blank for 0, the last of the ramp for the largest."""
    top = max(values, default=0)
    steps = len(RAMP) - 1
    return "".join(RAMP[-(-value * steps // top)] if value else RAMP[0] for value in values)


def _curve(what: str, values: Sequence[int], window_s: float) -> Iterator[str]:
    yield f"{'':<{LABEL}}[{sparkline(values)}] {max(values):,} {what}"
    yield f"{'':<{LABEL}} {'0 s':<{len(values) - 10}}{_s(window_s * len(values)):>10}  per {_s(window_s)}"


def _wrap(label: str, text: str) -> list[str]:
    if not label and not text.startswith("!"):
        return textwrap.wrap(text, WIDTH)
    return textwrap.wrap(
        text, WIDTH, initial_indent=f"{label:<{LABEL}}", subsequent_indent=" " * LABEL, break_long_words=False
    )


def _n(value: float | None) -> str:
    if value is None:
        return "-"
    digits = 0 if value >= 1000 or value == int(value) else 1 if value >= 10 else 3
    return f"{value:,.{digits}f}"


def _s(value: float | None) -> str:
    """Seconds, in a larger unit where that is plainer."""
    if value is None:
        return "-"
    if value >= 7200 and value < 172_800:
        return f"{value / 3600:,.1f} h"
    if value >= 172_800:
        return f"{value / 86_400:,.1f} days"
    return f"{_n(value)} s"


def _at(at_s: float | None) -> str:
    if at_s is None:
        return ""
    return " in the warmup" if at_s < 0 else f" at {_s(at_s)}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"

"""From what a simulated replay left behind to the figures of the document. Definitions: `document`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from agentx_engine.replay.forecast import document as doc
from agentx_engine.replay.forecast.curves import Steps, busiest, gaps, spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from agentx_engine.replay.forecast.cache import KvCache
    from agentx_engine.replay.forecast.residents import Residents
    from agentx_engine.replay.forecast.watch import Rows, TreePlay
    from agentx_engine.replay.options import Counters, WarmupReport

WINDOWS = 60
SECOND = 1_000_000_000
MS = 1_000_000

# The client beside its prompts: interpreter, modules, reactor, buffers. Measured on whole replays.
BASE_BYTES = 80_000_000
# A word of the pool that prompts are made of, with its space: the mean of data/words.txt.
BYTES_PER_TOKEN = 5.01
BYTES_PER_REQUEST = 150  # see metrics.summary


class Seen(msgspec.Struct, kw_only=True):
    """The raw material: the window [start, stop) of the measured phase, requests and sessions."""

    start_ns: int
    stop_ns: int
    lanes: int
    traces: int
    requests: Rows  # of the measured phase
    warmup: Rows
    plays: list[TreePlay]  # of both
    cache: KvCache
    residents: Residents

    @property
    def seconds(self) -> float:
        return (self.stop_ns - self.start_ns) / SECOND

    def at_s(self, at_ns: int | None) -> float | None:
        return None if at_ns is None else (at_ns - self.start_ns) / SECOND


def warmup(seen: Seen, report: WarmupReport | None) -> doc.Warmup | None:
    if report is None:
        return None
    rows = seen.warmup
    return doc.Warmup(
        seconds=((report.ended_ns or report.started_ns) - report.started_ns) / SECOND,
        primers=report.primers,
        extra_requests=sum(report.extra_requests),
        extra_missing=report.extra_missing,
        input_tokens=int(rows["input"].sum()),
        uncached_tokens=int((rows["input"] - rows["cached"]).sum()),
    )


def idle_caps(counts: Counters) -> doc.IdleCaps:
    return doc.IdleCaps(
        system_shifts=counts.system_shifts,
        system_skipped_s=counts.system_shift_ns / SECOND,
        tree_shifts=counts.tree_shifts,
        tree_skipped_s=counts.tree_shift_ns / SECOND,
    )


def requests(seen: Seen) -> doc.Requests:
    sent, complete = seen.requests["sent"], seen.requests["complete"]
    most, at_ns = busiest(sent, np.ones_like(sent), SECOND)
    return doc.Requests(
        sent=len(sent),
        finished=int(complete.sum()),
        cut_off=int(len(sent) - complete.sum()),
        per_s=len(sent) / seen.seconds,
        most_within_1s=most,
        most_within_1s_at_s=seen.at_s(at_ns) if most else None,
    )


def in_flight(seen: Seen) -> tuple[Steps, doc.InFlight]:
    steps = Steps(seen.requests["sent"], seen.requests["end"], seen.start_ns, seen.stop_ns)
    peak, peak_ns = steps.peak()
    return steps, doc.InFlight(
        mean=steps.mean(),
        p50=steps.percentile(0.50),
        p90=steps.percentile(0.90),
        p99=steps.percentile(0.99),
        max=peak,
        max_at_s=(peak_ns - seen.start_ns) / SECOND,
        none_share=float(steps.width[steps.level == 0].sum() / steps.width.sum()),
    )


def lanes_and_pauses(seen: Seen) -> tuple[doc.Lanes, doc.Pauses]:
    sent, end, lane = (seen.requests[name] for name in ("sent", "end", "lane"))
    start_ns, stop_ns = seen.start_ns, seen.stop_ns
    waits: list[tuple[int, int, int]] = []  # from, to, lane
    for number in range(seen.lanes):
        mine = lane == number
        waits += [(a, b, number) for a, b in gaps(sent[mine], end[mine], start_ns, stop_ns)]
    whole = seen.lanes * (stop_ns - start_ns)
    live = sum(_overlap(p.start_ns, p.end_ns, start_ns, stop_ns) for p in seen.plays)
    busy = whole - sum(b - a for a, b, _ in waits)
    lanes = doc.Lanes(live_share=live / whole, busy_share=busy / whole, idle_share=(live - busy) / whole)

    quiet = max(gaps(sent, end, start_ns, stop_ns), key=_length, default=None)
    wait = max(waits, key=lambda w: w[1] - w[0], default=None)
    between = np.diff(sent) / MS
    return lanes, doc.Pauses(
        gap_mean_ms=float(between.mean()) if len(between) else None,
        gap_p50_ms=float(np.percentile(between, 50)) if len(between) else None,
        gap_p99_ms=float(np.percentile(between, 99)) if len(between) else None,
        gap_max_s=float(between.max()) / 1e3 if len(between) else None,
        longest_quiet_s=(quiet[1] - quiet[0]) / SECOND if quiet else 0.0,
        longest_quiet_at_s=seen.at_s(quiet[0]) if quiet else None,
        longest_wait_s=(wait[1] - wait[0]) / SECOND if wait else 0.0,
        longest_wait_at_s=seen.at_s(wait[0]) if wait else None,
        longest_wait_trace=_trace_of(seen, wait) if wait else None,
        longest_wait_lane=wait[2] if wait else None,
        longest_wait_open=wait is not None and wait[1] == stop_ns,
    )


def _overlap(start_ns: int, end_ns: int | None, low_ns: int, high_ns: int) -> int:
    return max(0, min(high_ns if end_ns is None else end_ns, high_ns) - max(start_ns, low_ns))


def _length(part: tuple[int, int]) -> int:
    return part[1] - part[0]


def _trace_of(seen: Seen, wait: tuple[int, int, int]) -> str | None:
    names = [p.tree.trace_id for p in seen.plays if p.tree.lane == wait[2] and p.start_ns <= wait[0]]
    return names[-1] if names else None


def trees(seen: Seen) -> doc.Trees:
    played = [p for p in seen.plays if p.end_ns is None or p.end_ns > seen.start_ns]
    traces = Counter(p.tree.trace_id for p in played)
    return doc.Trees(
        started=len(played),
        finished=sum(p.end_ns is not None for p in played),
        recycled=sum(p.tree.play > 0 for p in played),
        distinct_traces=len(traces),
        most_plays_of_a_trace=max(traces.values(), default=0),
    )


def corpus_use(seen: Seen) -> doc.CorpusUse:
    again = [p.start_ns for p in seen.plays if p.tree.play]
    if again:
        lasts_s = max(0.0, (min(again) - seen.start_ns) / SECOND)
        return doc.CorpusUse(lasts_s=lasts_s, lasts_estimate_s=None)
    taken = sum(p.start_ns > seen.start_ns for p in seen.plays)
    # The corpus is at its end when a lane asks for one trace more than there are.
    more = seen.traces + 1 - (len(seen.plays) - taken)
    return doc.CorpusUse(lasts_s=None, lasts_estimate_s=more * seen.seconds / taken if taken else None)


def tokens(seen: Seen) -> doc.Tokens:
    rows = seen.requests
    uncached = rows["input"] - rows["cached"]
    window = np.array([seen.start_ns, seen.stop_ns], dtype=np.int64)
    output = float(spread(rows["first"], rows["end"], rows["output"], window)[0])
    width_s = min(10.0, seen.seconds)
    most, at_ns = busiest(rows["sent"], uncached, int(width_s * SECOND))
    return doc.Tokens(
        input=int(rows["input"].sum()),
        output=int(rows["output"].sum()),
        uncached=int(uncached.sum()),
        input_per_s=float(rows["input"].sum()) / seen.seconds,
        output_per_s=output / seen.seconds,
        uncached_per_s=float(uncached.sum()) / seen.seconds,
        uncached_most_per_s_over_10s=most / width_s,
        uncached_most_at_s=seen.at_s(at_ns) if most else None,
    )


def prefix_cache(seen: Seen) -> doc.PrefixCache:
    rows = seen.requests
    done = rows["complete"] == 1
    blocks, prompt = int(rows["blocks"][done].sum()), int(rows["input"].sum())
    return doc.PrefixCache(
        theoretical_hit=int(rows["hits"][done].sum()) / blocks if blocks else None,
        model_hit=int(rows["cached"].sum()) / prompt if prompt else None,
        over_capacity=seen.cache.over_capacity,
    )


def kv_cache(seen: Seen) -> doc.KvCache:
    running, residents = seen.cache.peak_running, seen.residents
    return doc.KvCache(
        in_flight_tokens=running.value,
        in_flight_at_s=seen.at_s(running.at_ns),
        live_tokens=residents.peak_live.value,
        live_blocks=residents.peak_live_blocks,
        live_at_s=seen.at_s(residents.peak_live.at_ns),
        live_conversations=residents.peak_conversations.value,
    )


def latency(seen: Seen) -> doc.Latency:
    rows = seen.requests
    done = rows["complete"] == 1
    return doc.Latency(
        ttft_ms=_quantiles((rows["first"] - rows["sent"])[done]),
        request_ms=_quantiles((rows["end"] - rows["sent"])[done]),
    )


def _quantiles(durations: NDArray[np.int64]) -> doc.Quantiles | None:
    if not len(durations):
        return None
    values = durations / MS
    p50, p99 = (float(v) for v in np.percentile(values, (50, 99)))
    return doc.Quantiles(mean=float(values.mean()), p50=p50, p99=p99, max=float(values.max()))


def memory(seen: Seen) -> doc.Memory:
    prompt_tokens = seen.residents.peak_texts.value
    requests_bytes = BYTES_PER_REQUEST * (len(seen.requests["sent"]) + len(seen.warmup["sent"]))
    return doc.Memory(
        client_bytes=BASE_BYTES + int(prompt_tokens * BYTES_PER_TOKEN) + requests_bytes,
        base_bytes=BASE_BYTES,
        prompt_tokens=prompt_tokens,
        bytes_per_token=BYTES_PER_TOKEN,
        bytes_per_request=BYTES_PER_REQUEST,
    )


def curve(seen: Seen, steps: Steps) -> doc.Curve:
    rows = seen.requests
    sent, end = rows["sent"], rows["end"]
    span = seen.stop_ns - seen.start_ns
    # In Python's integers: years in nanoseconds times the number of windows leave int64.
    edges = np.array([seen.start_ns + span * i // WINDOWS for i in range(WINDOWS + 1)], dtype=np.int64)
    window_s = seen.seconds / WINDOWS
    place = np.searchsorted(edges, sent, side="right") - 1
    open_ns = spread(sent, end, end - sent, edges)

    def sums(amounts: NDArray[np.int64]) -> list[int]:
        total = np.zeros(WINDOWS, dtype=np.int64)
        np.add.at(total, place, amounts)
        return [int(n) for n in total]

    output = spread(rows["first"], end, rows["output"], edges)
    return doc.Curve(
        window_s=window_s,
        requests=sums(np.ones_like(sent)),
        in_flight_mean=[round(float(ns) / (window_s * SECOND), 3) for ns in open_ns],
        in_flight_max=[int(n) for n in steps.peaks(edges)],
        input_tokens=sums(rows["input"]),
        output_tokens=[round(float(n)) for n in output],
        uncached_tokens=sums(rows["input"] - rows["cached"]),
    )

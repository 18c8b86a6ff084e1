"""The run's numbers, against numpy over the same records."""

import json

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given, settings
from hypothesis import strategies as st
from support.records import MS, START, failure, success

from agentx_engine.metrics.record import RequestRecord
from agentx_engine.metrics.request import compute
from agentx_engine.metrics.summary import MAX_ERROR_KINDS, Summary
from agentx_engine.transport.base import Outcome, Usage


def summarised(records: list[RequestRecord]) -> dict:
    summary = Summary()
    for record in records:
        summary.add(record, compute(record))
    result = summary.result()
    json.dumps(result, allow_nan=False)
    return result


def random_records(n: int, seed: int) -> list[RequestRecord]:
    rng = np.random.default_rng(seed)
    records = []
    for i in range(n):
        gaps = tuple(int(g) for g in rng.exponential(12 * MS, size=int(rng.integers(0, 40))))
        records.append(
            success(
                i,
                due=START + int(rng.integers(0, 10**10)),
                lag=int(rng.integers(0, 2 * MS)),
                ttft=int(rng.integers(51 * MS, 10**9)),
                gaps=gaps,
                usage=Usage(prompt=int(rng.integers(900, 1200)), completion=len(gaps) + 1, cached=100),
                max_tokens=len(gaps) + 1,
                reactive=bool(i % 2),
            )
        )
    return records


def test_percentiles_equal_numpy() -> None:
    records = random_records(300, seed=7)
    result = summarised(records)
    ttft = np.array([(r.result.stamps.first_content - r.result.stamps.first_sent) / 1e6 for r in records])
    stats = result["latency_ms"]["time_to_first_token"]
    for p in (50, 75, 90, 95, 99):
        assert stats[f"p{p}"] == pytest.approx(np.percentile(ttft, p), rel=1e-12)
    assert (stats["count"], stats["max"]) == (300, pytest.approx(ttft.max()))
    assert stats["mean"] == pytest.approx(ttft.mean())
    assert stats["std"] == pytest.approx(ttft.std())

    itl = [
        np.diff(r.result.token_ns).sum() / 1e6 / (len(r.result.token_ns) - 1)
        for r in records
        if len(r.result.token_ns) > 1
    ]
    assert result["latency_ms"]["inter_token_latency"]["p95"] == pytest.approx(np.percentile(itl, 95))
    interactivity = result["interactivity_tokens_per_s"]["per_user"]["p95"]
    assert interactivity == pytest.approx(1000 / np.percentile(itl, 95))

    gaps = np.concatenate([np.diff(r.result.token_ns) for r in records]) / 1e6
    pooled = result["latency_ms"]["inter_chunk_gap"]
    assert pooled["count"] == len(gaps)
    assert pooled["max"] == pytest.approx(gaps.max())
    assert pooled["p99"] == pytest.approx(np.sort(gaps)[int(0.99 * len(gaps) + 0.5) - 1], rel=2e-3)
    restored = HdrHistogram.decode(result["histograms_hdr_v2_ns"]["inter_chunk_gap"])
    assert restored.get_total_count() == len(gaps)

    lag = np.array([(r.result.stamps.first_sent - r.result.stamps.due) / 1e6 for r in records])
    assert result["client"]["dispatch_lag_armed_ms"]["p99"] == pytest.approx(np.percentile(lag[0::2], 99))
    assert result["client"]["dispatch_lag_reactive_ms"]["p99"] == pytest.approx(np.percentile(lag[1::2], 99))

    first = min(r.result.stamps.first_sent for r in records)
    seconds = (max(r.result.stamps.last_content for r in records) - first) / 1e9
    output = sum(r.result.usage.completion for r in records)
    prompt = sum(r.result.usage.prompt for r in records)
    throughput = result["throughput"]
    assert throughput["duration_s"] == pytest.approx(seconds)
    assert throughput["full_duration_s"] == pytest.approx(
        (max(r.result.stamps.end for r in records) - first) / 1e9
    )
    assert throughput["requests_per_s"] == pytest.approx(300 / seconds)
    assert throughput["output_tokens_per_s"] == pytest.approx(output / seconds)
    assert throughput["total_tokens_per_s"] == pytest.approx((output + prompt) / seconds)
    assert result["prefix_cache"]["theoretical"]["hit_rate"] == pytest.approx(10 / 15)
    assert result["prefix_cache"]["reported"]["hit_rate"] == pytest.approx(300 * 100 / prompt)
    assert result["client"]["defects"] == {}


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 60), st.integers(0, 10**6))
def test_invariants_of_any_run(n: int, seed: int) -> None:
    result = summarised(random_records(n, seed))
    latency = result["latency_ms"]
    if n == 0:
        assert set(latency.values()) == {None}
        assert result["throughput"]["requests_per_s"] is None
        return
    for stats in latency.values():
        if stats is not None:
            values = [stats[k] for k in ("min", "p50", "p75", "p90", "p95", "p99")]
            assert values == sorted(values)
            assert stats["min"] >= 0
    assert latency["time_to_first_token"]["p50"] <= latency["request_latency"]["p50"]
    assert result["client"]["defects"] == {}


def test_pooled_gaps_keep_the_spike() -> None:
    """ray-project/llmperf: gaps [1, 2, 10] and [2, 3, 5] ms gave a maximum of 4.33, the mean of a request."""
    result = summarised(
        [
            success(0, gaps=(1 * MS, 2 * MS, 10 * MS), usage=Usage(prompt=1000, completion=4)),
            success(1, gaps=(2 * MS, 3 * MS, 5 * MS), usage=Usage(prompt=1000, completion=4)),
        ]
    )
    assert result["latency_ms"]["inter_chunk_gap"]["max"] == 10
    assert result["latency_ms"]["inter_token_latency"]["max"] == pytest.approx(13 / 3)


def test_failures_never_enter_latency() -> None:
    """guidellm#444: one request in ten fails after ten seconds."""
    records = [success(i) for i in range(9)]
    slow = success(9, ttft=10_000 * MS)
    slow.result.outcome = Outcome.TRUNCATED
    result = summarised([*records, slow])
    assert result["latency_ms"]["time_to_first_token"]["max"] == 200
    assert result["counts"]["by_outcome"] == {"success": 9, "truncated": 1}
    assert result["counts"]["error_rate"] == 0.1
    assert result["throughput"]["output_tokens_per_s"] == pytest.approx(45 / 0.25)


def test_counts_by_outcome_and_kind() -> None:
    records = [
        success(0),
        failure(Outcome.HTTP_STATUS, 1, status=503, error="busy"),
        failure(Outcome.HTTP_STATUS, 2, status=503, error="busy again"),
        failure(Outcome.HTTP_STATUS, 3, status=400, error="bad", error_type="invalid_request"),
        failure(Outcome.CONTEXT_OVERFLOW, 4, status=400, error="prompt is too long"),
        failure(Outcome.CANCELLED, 5),
        failure(Outcome.SUCCESS, 6, identity={"phase": "warmup"}),
    ]
    result = summarised(records)
    counts = result["counts"]
    assert (counts["finished"], counts["succeeded"], counts["failed"], counts["cancelled"]) == (6, 1, 4, 1)
    assert counts["context_overflows"] == 1
    assert counts["warmup_requests"] == 1
    assert counts["error_rate"] == pytest.approx(4 / 5)
    errors = result["errors"]
    assert [e["count"] for e in errors] == [2, 1, 1]
    assert errors[0]["message"] == "busy"
    assert sum(e["count"] for e in errors) == counts["failed"]


def test_error_kinds_are_bounded() -> None:
    records = [
        failure(Outcome.SERVER_ERROR_EVENT, i, error_type=f"kind{i}", error="x" * 9999) for i in range(500)
    ]
    errors = summarised(records)["errors"]
    assert len(errors) <= MAX_ERROR_KINDS + 1
    assert sum(e["count"] for e in errors) == 500
    assert max(len(e["message"]) for e in errors) <= 300


def test_without_usage_nothing_is_invented() -> None:
    result = summarised([success(i, usage=None) for i in range(3)])
    assert result["tokens"]["requests_without_usage"] == 3
    assert result["tokens"]["input_sequence_length"] is None
    assert result["throughput"]["output_tokens_per_s"] is None
    assert result["throughput"]["requests_per_s"] is not None
    assert result["prefix_cache"]["reported"] is None
    assert result["latency_ms"]["inter_token_latency"] is None
    assert result["tokens"]["client_content_events_total"] == 15
    assert result["tokens"]["tokens_per_content_event"] is None


def test_cache_hits_not_reported_are_not_zero() -> None:
    assert summarised([success(usage=Usage(prompt=1000, completion=5))])["prefix_cache"]["reported"] is None
    zero = summarised([success(usage=Usage(prompt=1000, completion=5, cached=0))])["prefix_cache"]["reported"]
    assert zero == {"requests": 1, "cached_tokens": 0, "prompt_tokens": 1000, "hit_rate": 0.0}


def test_coalesced_events_are_counted_and_kept_apart() -> None:
    record = success(gaps=(0, 10 * MS, 20 * MS, 10 * MS), slack=(3 * MS, 0, 0, 500_000, 0))
    result = summarised([record])
    client = result["client"]
    assert (client["content_events"], client["coalesced_events"]) == (5, 2)
    assert client["coalesced_share"] == pytest.approx(0.4)
    assert client["slack_above_1ms_share"] == pytest.approx(0.2)
    assert client["first_tokens_with_slack_above_1ms"] == 1
    assert result["latency_ms"]["inter_chunk_gap"]["count"] == 4
    assert result["latency_ms"]["inter_chunk_gap_exact"]["count"] == 1


def test_a_resent_request_is_not_a_dispatch_lag() -> None:
    record = success(lag=40 * MS)
    record.result.reconnects = 1
    result = summarised([record, success(1)])
    assert result["client"]["dispatch_lag_armed_ms"]["max"] == 0.05
    assert result["connections"]["reconnects"] == 1


def test_short_answers() -> None:
    """inference-perf#655: asked for 512 tokens, got 7."""
    short = success(0, usage=Usage(prompt=1000, completion=7), max_tokens=512)
    long = success(1, usage=Usage(prompt=1000, completion=600), max_tokens=512)
    tokens = summarised([short, long])["tokens"]
    assert (tokens["osl_mismatches"], tokens["short_answers"]) == (2, 1)


def test_live_view() -> None:
    summary = Summary()
    records = [success(0), failure(Outcome.RESET, 1), failure(Outcome.CANCELLED, 2)]
    assert summary.live().ttft_p50_ms is None
    for record in records:
        summary.add(record, compute(record))
    live = summary.live()
    assert (live.finished, live.succeeded, live.output_tokens, live.failed) == (3, 1, 5, {"reset": 1})
    assert live.ttft_p50_ms == pytest.approx(200, rel=2e-3)


def test_stamps_that_start_at_zero() -> None:
    """The simulated clock starts at 0, which is a time like any other."""
    result = summarised([success(0, due=0, lag=0), success(1, due=10**9)])
    assert result["throughput"]["duration_s"] == pytest.approx(1.25005)

"""Lines of profile_export.jsonl against the form that InferenceX reads."""

import json
from typing import Any

import pytest
from support.records import MS, START, failure, success

from agentx_engine.artifacts.lines import encode_line
from agentx_engine.artifacts.wall import WallPairing, pair_now
from agentx_engine.metrics.record import RequestRecord
from agentx_engine.metrics.request import compute
from agentx_engine.transport.base import Outcome, Usage

OFFSET = 1_700_000_000_000_000_000
WALL = WallPairing(OFFSET, 40, START)

# The fields of a line that readers use, by type; the contract's sections on metadata and on metrics.
METADATA: dict[str, type] = {
    "benchmark_phase": str,
    "request_start_ns": int,
    "request_end_ns": int,
    "credit_issued_ns": int,
    "conversation_id": str,
    "turn_index": int,
    "x_request_id": str,
    "x_correlation_id": str,
    "root_correlation_id": str,
    "agent_depth": int,
    "source_trace_id": str,
    "source_outer_idx": int,
    "source_kind": str,
    "session_num": int,
    "worker_id": str,
    "record_processor_id": str,
    "phase_name": str,
    "phase_kind": str,
    "was_cancelled": bool,
}
METRICS = {
    "input_sequence_length": ("tokens", 1020),
    "output_sequence_length": ("tokens", 5),
    "time_to_first_token": ("ms", 200.0),
    "request_latency": ("ms", 250.0),
    "inter_token_latency": ("ms", 12.5),
    "full_response_inter_token_latency": ("ms", 13.25),
    "full_decode_duration": ("ms", 53.0),
    "decode_duration": ("ms", 50.0),
    "time_to_second_token": ("ms", 10.0),
    "time_to_first_output_token": ("ms", 200.0),
    "usage_prompt_cache_read_tokens": ("tokens", 640),
    "output_token_throughput_per_user": ("tokens/sec/user", 80.0),
    "osl_mismatch_diff_pct": ("%", 0.0),
}


def line(record: RequestRecord) -> dict[str, Any]:
    data = encode_line(record, compute(record), WALL)
    assert data.endswith(b"\n")
    assert data.count(b"\n") == 1
    parsed: dict[str, Any] = json.loads(data, parse_constant=lambda c: pytest.fail(f"{c} in the line"))
    assert_no_null(parsed)
    return parsed


def assert_no_null(value: Any) -> None:
    assert value is not None
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        assert_no_null(inner)


def test_success() -> None:
    parsed = line(success())
    assert set(parsed) == {"metadata", "metrics", "trace_data"}
    metadata = parsed["metadata"]
    for field, kind in METADATA.items():
        assert type(metadata[field]) is kind, field
    assert metadata["credit_issued_ns"] == OFFSET + START
    assert metadata["request_start_ns"] == OFFSET + START + 50_000
    assert metadata["request_ack_ns"] == metadata["request_start_ns"] + 30 * MS
    assert metadata["request_end_ns"] == metadata["request_start_ns"] + 252 * MS
    assert (metadata["phase_index"], metadata["profiling_index"]) == (0, 0)
    assert metadata["was_cancelled"] is False
    for absent in (
        "parent_correlation_id",
        "source_inner_idx",
        "cancellation_time_ns",
        "context_overflow_skip",
    ):
        assert absent not in metadata
    for tag, (unit, value) in METRICS.items():
        assert parsed["metrics"][tag] == {"value": pytest.approx(value), "unit": unit}, tag
    assert parsed["trace_data"]["inter_chunk_ns"] == [10 * MS, 10 * MS, 20 * MS, 10 * MS]
    for shape in parsed["metrics"].values():
        assert set(shape) == {"value", "unit"}


def test_every_stamp_is_exported() -> None:
    record = success()
    stamps = line(record)["trace_data"]["stamps_unix_ns"]
    assert stamps == {
        f: OFFSET + getattr(record.result.stamps, f) for f in record.result.stamps.__struct_fields__
    }


def test_child_and_warmup() -> None:
    metadata = line(
        success(
            conversation_id="trace_0001::sa:a1",
            depth=1,
            parent_correlation_id="correlation-root",
            correlation_id="c2",
            source=(4, 7),
            source_kind="weka_subagent",
            phase="warmup",
        )
    )["metadata"]
    assert metadata["parent_correlation_id"] == "correlation-root"
    assert metadata["source_inner_idx"] == 7
    assert (metadata["benchmark_phase"], metadata["phase_name"]) == ("warmup", "agentic.warmup")
    assert "profiling_index" not in metadata


def test_missing_usage_leaves_tags_out() -> None:
    metrics = line(success(usage=None))["metrics"]
    assert "input_sequence_length" not in metrics
    assert "inter_token_latency" not in metrics
    assert metrics["time_to_first_token"]["value"] == 200.0


def test_one_token_has_no_itl() -> None:
    metrics = line(success(gaps=(), usage=Usage(prompt=10, completion=1), max_tokens=1))["metrics"]
    for absent in (
        "inter_token_latency",
        "time_to_second_token",
        "output_token_throughput_per_user",
    ):
        assert absent not in metrics
    assert metrics["decode_duration"]["value"] == 0


def test_http_error() -> None:
    parsed = line(failure(Outcome.HTTP_STATUS, status=503, error="try later"))
    assert parsed["error"]["code"] == 503
    assert parsed["error"]["type"] == "Service Unavailable"
    assert parsed["error"]["message"] == "try later"
    assert parsed["metrics"] == {}
    assert parsed["metadata"]["request_start_ns"] == OFFSET + START + 1000
    assert parsed["metadata"]["request_end_ns"] == OFFSET + START + 100 * MS


@pytest.mark.parametrize("outcome", [o for o in Outcome if not o.ok])
def test_every_failure_has_an_error_with_type_and_message(outcome: Outcome) -> None:
    parsed = line(failure(outcome, status=None))
    assert parsed["error"]["type"]
    assert parsed["error"]["message"]
    assert parsed["error"]["details"]["outcome"] == outcome.value
    assert parsed["metadata"]["was_cancelled"] is (outcome is Outcome.CANCELLED)


def test_cancelled() -> None:
    parsed = line(failure(Outcome.CANCELLED))
    assert parsed["error"]["code"] == 499
    assert parsed["error"]["type"] == "RequestCancellationError"
    assert parsed["metadata"]["cancellation_time_ns"] == OFFSET + START + 100 * MS


def test_overflow() -> None:
    parsed = line(failure(Outcome.CONTEXT_OVERFLOW, status=400, error="prompt is too long"))
    assert parsed["metadata"]["context_overflow_skip"] is True
    assert parsed["error"]["type"] == "context_overflow"


def test_a_request_that_was_never_sent_has_start_and_end() -> None:
    """A line without a start makes the plot script fail on arrays of unequal length."""
    metadata = line(failure(Outcome.CONNECT_ERROR, sent=False, error="Connection refused"))["metadata"]
    assert metadata["request_start_ns"] == OFFSET + START
    assert metadata["request_end_ns"] == OFFSET + START + 100 * MS
    early = failure(Outcome.CANCELLED, sent=False)
    early.result.stamps.end = START - 5 * MS  # cancelled while it was armed ahead
    metadata = line(early)["metadata"]
    assert metadata["request_start_ns"] == metadata["request_end_ns"] == OFFSET + START - 5 * MS


def test_truncated_keeps_what_came() -> None:
    """inference-perf#530: bytes received before a break were thrown away."""
    record = success(usage=Usage(prompt=1000))
    record.result.outcome = Outcome.TRUNCATED
    parsed = line(record)
    assert parsed["metrics"] == {}
    trace = parsed["trace_data"]
    assert trace["inter_chunk_ns"] == [10 * MS, 10 * MS, 20 * MS, 10 * MS]
    assert trace["usage"] == {"prompt": 1000}
    assert trace["content_events"] == 5


def test_words_of_the_server_cannot_break_a_line() -> None:
    error = 'two\nlines\r\u2028"quoted" \ud800 你好'
    assert line(failure(Outcome.SERVER_ERROR_EVENT, error=error))["error"]["message"].startswith(
        "two\nlines\r"
    )


def test_coalesced_events_are_flagged() -> None:
    trace = line(success(gaps=(0, 10 * MS, 20 * MS, 10 * MS), slack=(3 * MS, 0, 0, 500_000, 0)))["trace_data"]
    assert trace["coalesced"] == {"event": [0, 3], "slack_ns": [3 * MS, 500_000]}


def test_pairing_is_taken_once() -> None:
    pairing = pair_now()
    assert pairing.error_ns >= 0
    assert pairing.unix_ns(5) - pairing.unix_ns(2) == 3

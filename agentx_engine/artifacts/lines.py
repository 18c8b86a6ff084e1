"""One request as a line of profile_export.jsonl, in the form that InferenceX reads.

Every line is ``{"metadata": …, "metrics": {tag: {"value", "unit"}}, "error"?: …, "trace_data": …}``. Units
are part of the contract (ms, tokens): readers do not look at the unit string. A failed request has an
error and no metrics, so that no reader counts it; what had arrived stays in `trace_data`, with every stamp
of the exchange. Null fields are left out.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
import numpy as np

from agentx_engine.artifacts.wall import WallPairing
from agentx_engine.metrics.record import RequestRecord
from agentx_engine.metrics.request import RequestMetrics
from agentx_engine.transport.base import Outcome, Result, Stamps

_STAMPS = Stamps.__struct_fields__
_encoder = msgspec.json.Encoder()


def encode_line(
    record: RequestRecord, metrics: RequestMetrics, wall: WallPairing, failure: str | None = None
) -> bytes:
    """The line, with its line feed. The server's words are written as they are: scrub them before.

    `failure` names a failure in what the transport saw as a success (a short answer).
    """
    result = record.result
    line: dict[str, Any] = {"metadata": _metadata(record, wall)}
    if failure is not None:
        line["metrics"] = {}
        asked = f"{record.identity.max_tokens} tokens asked for, {metrics.osl} returned"
        line["error"] = {"type": failure, "message": asked, "details": {"outcome": failure}}
    elif result.outcome.ok:
        line["metrics"] = _metrics(record, metrics)
    else:
        line["metrics"] = {}
        line["error"] = _error(result)
    line["trace_data"] = _trace(record, metrics, wall)
    return _encoder.encode(line) + b"\n"


def _metadata(record: RequestRecord, wall: WallPairing) -> dict[str, Any]:
    identity, result, offset = record.identity, record.result, wall.offset_ns
    stamps = result.stamps
    end = stamps.last_event if stamps.last_event is not None else stamps.end
    if stamps.first_sent is not None:
        start = stamps.first_sent
    else:  # never sent: readers need a start on every line, and an error's start enters no statistic
        start = stamps.due if end is None else min(stamps.due, end)
    end = start if end is None else max(start, end)
    profiling = identity.phase == "profiling"
    metadata: dict[str, Any] = {
        "session_num": identity.sequence,
        "x_request_id": identity.request_id,
        "x_correlation_id": identity.correlation_id,
        "conversation_id": identity.conversation_id,
        "turn_index": identity.turn,
        "source_trace_id": identity.trace_id,
        "source_outer_idx": identity.source[0],
        "source_kind": identity.source_kind,
        "credit_issued_ns": stamps.due + offset,
        "request_start_ns": start + offset,
        "request_end_ns": end + offset,
        "worker_id": f"lane_{identity.lane}",
        "record_processor_id": "agentx-engine",
        "benchmark_phase": identity.phase,
        "phase_name": "profiling" if profiling else "agentic.warmup",
        "phase_kind": identity.phase,
        "agent_depth": identity.depth,
        "root_correlation_id": identity.root_correlation_id,
        "was_cancelled": result.outcome is Outcome.CANCELLED,
    }
    if profiling:
        metadata["phase_index"] = metadata["profiling_index"] = 0
    if identity.source[1] is not None:
        metadata["source_inner_idx"] = identity.source[1]
    if identity.parent_correlation_id is not None:
        metadata["parent_correlation_id"] = identity.parent_correlation_id
    if stamps.ack is not None:
        metadata["request_ack_ns"] = stamps.ack + offset
    if result.outcome is Outcome.CANCELLED:
        metadata["cancellation_time_ns"] = end + offset
    if result.outcome is Outcome.CONTEXT_OVERFLOW:
        metadata["context_overflow_skip"] = True
    return metadata


def _ms(value_ns: float) -> dict[str, Any]:
    return {"value": value_ns / 1e6, "unit": "ms"}


def _tokens(value: int) -> dict[str, Any]:
    return {"value": value, "unit": "tokens"}


def _metrics(record: RequestRecord, m: RequestMetrics) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if m.ttft_ns is not None:
        out["time_to_first_token"] = _ms(m.ttft_ns)
    if m.first_text_ns is not None:
        out["time_to_first_output_token"] = _ms(m.first_text_ns)
    if m.second_token_ns is not None:
        out["time_to_second_token"] = _ms(m.second_token_ns)
    if m.latency_ns is not None:
        out["request_latency"] = _ms(m.latency_ns)
    if m.decode_ns is not None:
        out["decode_duration"] = _ms(m.decode_ns)
    if m.full_decode_ns is not None:
        out["full_decode_duration"] = _ms(m.full_decode_ns)
    if m.itl_ns is not None:
        out["inter_token_latency"] = _ms(m.itl_ns)
        if m.itl_ns > 0:
            out["output_token_throughput_per_user"] = {"value": 1e9 / m.itl_ns, "unit": "tokens/sec/user"}
    if m.full_itl_ns is not None:
        out["full_response_inter_token_latency"] = _ms(m.full_itl_ns)
        if m.full_itl_ns > 0:
            rate = 1e9 / m.full_itl_ns
            out["full_response_output_token_throughput_per_user"] = {"value": rate, "unit": "tokens/sec/user"}
    if m.isl is not None:
        out["input_sequence_length"] = _tokens(m.isl)
    if m.osl is not None:
        out["output_sequence_length"] = _tokens(m.osl)
        wanted = record.identity.max_tokens
        out["osl_mismatch_diff_pct"] = {"value": 100 * (m.osl - wanted) / wanted, "unit": "%"}
    if m.reasoning_tokens is not None:
        out["reasoning_token_count"] = _tokens(m.reasoning_tokens)
    if m.cached_tokens is not None:
        out["usage_prompt_cache_read_tokens"] = _tokens(m.cached_tokens)
    return out


def _error(result: Result) -> dict[str, Any]:
    """The error object: `type` is the class by which readers count, `message` the server's own words."""
    outcome = result.outcome
    code: int | None = None
    kind = outcome.value
    if outcome is Outcome.CANCELLED:
        code, kind = 499, "RequestCancellationError"
    elif outcome is Outcome.SERVER_ERROR_EVENT:
        code = 502
    elif outcome in (Outcome.HTTP_STATUS, Outcome.CONTEXT_OVERFLOW):
        code = result.status
        if outcome is Outcome.HTTP_STATUS and code is not None:
            kind = _reason(code)
    message = result.error or result.error_type or outcome.value.replace("_", " ")
    message = message.encode("utf-8", "replace").decode("utf-8")  # lone surrogates cannot be written
    error: dict[str, Any] = {
        "type": kind,
        "message": message,
        "details": {"outcome": outcome.value},
    }
    if code is not None:
        error["code"] = code
    if result.error_type is not None:
        error["details"]["error_type"] = result.error_type
    return error


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return f"HTTP {status}"


def _trace(record: RequestRecord, m: RequestMetrics, wall: WallPairing) -> dict[str, Any]:
    """What this engine knows beyond the contract; readers of the contract ignore it."""
    identity, result, offset = record.identity, record.result, wall.offset_ns
    stamps = zip(_STAMPS, msgspec.structs.astuple(result.stamps), strict=True)
    trace: dict[str, Any] = {
        "outcome": result.outcome.value,
        "lane": identity.lane,
        "play": identity.play,
        "reactive": identity.reactive,
        "endpoint": identity.endpoint,
        "max_tokens": identity.max_tokens,
        "recorded_input_tokens": identity.recorded_in,
        "recorded_output_tokens": identity.recorded_out,
        "marker_tokens": identity.marker_tokens,
        "prefix_hit_blocks": identity.hit_blocks,
        "prefix_total_blocks": identity.total_blocks,
        "stamps_unix_ns": {name: stamp + offset for name, stamp in stamps if stamp is not None},
        "reused_connection": result.reused,
        "kernel_stamps": result.kernel_stamps,
        "reads": result.reads,
        "events": result.events,
        "content_events": result.content_events,
        "coalesced_events": result.coalesced_events,
        "bytes_in": result.bytes_in,
        "bytes_out": result.bytes_out,
    }
    if result.status is not None:
        trace["status"] = result.status
    if result.finish_reason is not None:
        trace["finish_reason"] = result.finish_reason
    if result.connect_ns is not None:
        trace["connect_ns"] = result.connect_ns
    if result.reconnects:
        trace["reconnects"] = result.reconnects
    if result.drained:
        trace["framing_missing"] = True
    if m.osl_mismatch:
        trace["osl_mismatch"] = True
    if m.gaps_ns is not None:
        # Whole nanoseconds: exact, and a fifth of the cost of as many floats.
        trace["inter_chunk_ns"] = m.gaps_ns.tolist()
    slack = result.token_slack_ns
    if slack is not None and m.coalesced:
        flagged = np.flatnonzero(slack)
        trace["coalesced"] = {"event": flagged.tolist(), "slack_ns": slack[flagged].tolist()}
    if not result.outcome.ok and result.usage is not None:
        trace["usage"] = {k: v for k, v in msgspec.to_builtins(result.usage).items() if v is not None}
    return trace

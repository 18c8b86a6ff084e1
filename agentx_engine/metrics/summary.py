"""The result of a run, built from its records one by one.

Only the profiling phase counts. Latencies, token counts and throughput are those of successful
requests; failures are counted by outcome and by the server's own words, and never enter a percentile.
What the client itself did late (dispatch lag, coalesced reads) is measured over every request that was
sent, and stands beside the result. Memory is about 150 bytes per request plus two histograms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from agentx_engine.core.hdr import Histogram
from agentx_engine.metrics.record import RequestRecord
from agentx_engine.metrics.request import RequestMetrics, defects, exact_gaps, response_end_ns
from agentx_engine.metrics.stats import Samples, histogram_statistics, statistics
from agentx_engine.transport.base import Outcome

SLACK_BOUND_NS = 1_000_000
SHORT_ANSWER = "short_answer"  # a success that the user wants counted as a failure
MAX_ERROR_KINDS = 100
MAX_ERROR_TEXT = 300
_NO_CONNECTION = frozenset({Outcome.CONNECT_ERROR, Outcome.TIMEOUT_CONNECT})

# Reported name -> field of RequestMetrics, ns, reported in ms.
DURATIONS = {
    "time_to_first_token": "ttft_ns",
    "time_to_first_token_from_last_byte": "ttft_last_sent_ns",
    "time_to_first_token_from_due": "ttft_due_ns",
    "time_to_first_event": "first_event_ns",
    "time_to_first_output_token": "first_text_ns",
    "time_to_second_token": "second_token_ns",
    "request_latency": "latency_ns",
    "request_latency_from_due": "latency_due_ns",
    "inter_token_latency": "itl_ns",
    "full_response_latency": "full_latency_ns",
    "full_response_inter_token_latency": "full_itl_ns",
}
TOKENS = {
    "input_sequence_length": "isl",
    "output_sequence_length": "osl",
    "reasoning_token_count": "reasoning_tokens",
}


class Live(msgspec.Struct):
    """Counts while the run goes on, cheap enough to be read several times a second."""

    finished: int = 0
    succeeded: int = 0
    output_tokens: int = 0
    ttft_p50_ms: float | None = None
    failed: dict[str, int] = msgspec.field(default_factory=dict)


class ErrorKind(msgspec.Struct):
    """Failures that look alike: outcome, status and type are the same."""

    outcome: str
    status: int | None
    error_type: str | None
    message: str | None  # of the first one
    count: int = 0


def _pick(which: Callable[[int, int], int], a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return b if a is None else a
    return which(a, b)


class Summary:
    """Takes records with their metrics; `result()` is the body of summary.json."""

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}
        self.warmup_outcomes: dict[str, int] = {}
        self.defects: dict[str, int] = {}
        self.requests_started = 0
        self.trees_started = 0
        self.trees_finished = 0
        self._errors: dict[tuple[str, int | None, str | None], ErrorKind] = {}
        self._durations = {name: Samples(1e6) for name in DURATIONS}
        self._tokens = {name: Samples() for name in TOKENS}
        self._lag = {True: Samples(1e6), False: Samples(1e6)}  # by identity.reactive
        self._send = Samples(1e6)
        self._connect = Samples(1e6)
        self._exact_gaps = Histogram()
        self._other_gaps = Histogram()
        self._ttft = Histogram()  # for the live view; the reported percentiles are exact
        self._slack = Histogram()
        self._first_sent: int | None = None
        self._last_content: int | None = None
        self._last_end: int | None = None
        self.last_first_token_ns: int | None = None  # of any success, and the last event of one with an ITL
        self.last_itl_end_ns: int | None = None
        self._input_tokens = self._output_tokens = 0
        self._without_usage = 0
        self._hit_blocks = self._total_blocks = 0
        self._cached = self._cached_of = self._cached_requests = 0
        self._client_isl = self._client_osl = self._counted_osl = 0
        self._disagree = {"input": 0, "output": 0}
        self._short = self._mismatch = 0
        self._content_events = self._coalesced = self._slack_over = self._ttft_slack_over = 0
        self._user_stamped = self._reconnects = self._reused = self._drained = self._late_connects = 0
        self._reads = self._bytes_in = self._bytes_out = 0
        self._tried = 0

    def add(self, record: RequestRecord, metrics: RequestMetrics, failure: str | None = None) -> None:
        """Takes one record. `failure` names a failure in what the transport saw as a success."""
        identity, result = record.identity, record.result
        for name in defects(record, metrics):
            self.defects[name] = self.defects.get(name, 0) + 1
        if identity.phase != "profiling":
            kind = result.outcome.value
            self.warmup_outcomes[kind] = self.warmup_outcomes.get(kind, 0) + 1
            return
        outcome = failure or result.outcome.value
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        self._add_own(record, metrics)
        self._short += metrics.short_answer
        if outcome == Outcome.SUCCESS:
            self._add_success(record, metrics)
        elif outcome != Outcome.CANCELLED:
            self._add_error(record, outcome)

    def _add_own(self, record: RequestRecord, metrics: RequestMetrics) -> None:
        """What says something about the client, whatever became of the request."""
        result = record.result
        stamps = result.stamps
        if result.reconnects == 0:  # the start of a resent request is the second send's: not a lag of ours
            self._lag[record.identity.reactive].add(metrics.dispatch_lag_ns)
        if stamps.conn_ready is not None and stamps.conn_ready > stamps.due and result.connect_ns is not None:
            self._late_connects += 1
        self._tried += stamps.first_sent is not None or result.outcome in _NO_CONNECTION
        self._send.add(metrics.send_ns)
        self._connect.add(result.connect_ns)
        self._reconnects += result.reconnects
        self._reused += result.reused
        self._drained += result.drained
        self._user_stamped += result.events > 0 and not result.kernel_stamps
        self._reads += result.reads
        self._bytes_in += result.bytes_in
        self._bytes_out += result.bytes_out
        self._content_events += result.content_events
        slack = result.token_slack_ns
        if slack is not None and metrics.coalesced:
            wide = slack[slack > 0]
            self._coalesced += len(wide)
            self._slack_over += int((wide > SLACK_BOUND_NS).sum())
            self._ttft_slack_over += int(slack[0]) > SLACK_BOUND_NS
            self._slack.record_many(wide.astype(np.int64))

    def _add_success(self, record: RequestRecord, metrics: RequestMetrics) -> None:
        identity, result = record.identity, record.result
        stamps = result.stamps
        for name, field in DURATIONS.items():
            self._durations[name].add(getattr(metrics, field))
        for name, field in TOKENS.items():
            self._tokens[name].add(getattr(metrics, field))
        if metrics.ttft_ns is not None:
            self._ttft.record(metrics.ttft_ns)
        gaps = metrics.gaps_ns
        if gaps is not None:
            if result.token_slack_ns is not None and not metrics.coalesced:
                self._exact_gaps.record_many(gaps)
            else:
                exact = exact_gaps(result)
                self._exact_gaps.record_many(gaps[exact])
                self._other_gaps.record_many(gaps[~exact])
        self.last_first_token_ns = _pick(max, self.last_first_token_ns, stamps.first_content)
        if metrics.itl_ns is not None:
            self.last_itl_end_ns = _pick(max, self.last_itl_end_ns, stamps.last_event)
        self._first_sent = _pick(min, self._first_sent, stamps.first_sent)
        self._last_content = _pick(max, self._last_content, stamps.last_content)
        self._last_end = _pick(max, self._last_end, response_end_ns(result))
        self._hit_blocks += identity.hit_blocks
        self._total_blocks += identity.total_blocks
        self._client_isl += metrics.client_isl
        self._client_osl += metrics.client_osl
        self._counted_osl += metrics.client_osl if metrics.osl is not None else 0
        self._input_tokens += metrics.isl or 0
        self._output_tokens += metrics.osl or 0
        self._without_usage += metrics.isl is None or metrics.osl is None
        if metrics.cached_tokens is not None and metrics.isl is not None:
            self._cached_requests += 1
            self._cached += metrics.cached_tokens
            self._cached_of += metrics.isl
        self._disagree["input"] += metrics.isl_disagrees
        self._disagree["output"] += metrics.osl_disagrees
        self._mismatch += metrics.osl_mismatch

    def _add_error(self, record: RequestRecord, outcome: str) -> None:
        result = record.result
        key = (outcome, result.status, result.error_type)
        if key not in self._errors and len(self._errors) >= MAX_ERROR_KINDS:
            key = (outcome, None, None)
        kind = self._errors.get(key)
        if kind is None:
            message = None if result.error is None else result.error[:MAX_ERROR_TEXT]
            kind = self._errors[key] = ErrorKind(*key, message)
        kind.count += 1

    @property
    def finished(self) -> int:
        return sum(self.outcomes.values())

    @property
    def succeeded(self) -> int:
        return self.outcomes.get(Outcome.SUCCESS.value, 0)

    @property
    def tried(self) -> int:
        """Finished requests that the client did put on the wire, or would have if the server had let it
        connect. The others were due and cancelled before the client had got to them.
        """
        return self._tried

    @property
    def duration_ns(self) -> int | None:
        """From the first byte of the first to the last content event of the last successful request."""
        if self._first_sent is None or self._last_content is None:
            return None
        return self._last_content - self._first_sent

    def live(self) -> Live:
        failed = {k: n for k, n in self.outcomes.items() if k not in (Outcome.SUCCESS, Outcome.CANCELLED)}
        ttft = self._ttft.percentile(50) / 1e6 if self._ttft.count else None
        return Live(self.finished, self.succeeded, self._output_tokens, ttft, failed)

    def result(self) -> dict[str, Any]:
        """Everything that the records say, ready for JSON; null stands for what was not measured."""
        succeeded, cancelled = self.succeeded, self.outcomes.get(Outcome.CANCELLED.value, 0)
        overflows = self.outcomes.get(Outcome.CONTEXT_OVERFLOW.value, 0)
        completed = self.finished - cancelled
        latency = {name: s.stats() for name, s in self._durations.items()}
        gaps = self._exact_gaps.copy()
        gaps.add(self._other_gaps)
        latency["inter_chunk_gap"] = histogram_statistics(gaps)
        latency["inter_chunk_gap_exact"] = histogram_statistics(self._exact_gaps)
        return {
            "counts": {
                "requests_started": self.requests_started,
                "finished": self.finished,
                "succeeded": succeeded,
                "failed": completed - succeeded,
                "cancelled": cancelled,
                "context_overflows": overflows,
                "error_rate": (completed - succeeded) / completed if completed else None,
                "by_outcome": dict(sorted(self.outcomes.items())),
                "warmup_requests": sum(self.warmup_outcomes.values()),
                "trees_started": self.trees_started,
                "trees_finished": self.trees_finished,
            },
            "throughput": self._throughput(),
            "latency_ms": latency,
            "tokens": self._token_counts(),
            "interactivity_tokens_per_s": {
                "per_user": self._interactivity("inter_token_latency"),
                "per_user_full_response": self._interactivity("full_response_inter_token_latency"),
            },
            "prefix_cache": self._prefix_cache(),
            "client": self._client(),
            "connections": {
                "reconnects": self._reconnects,
                "requests_on_reused_connection": self._reused,
                "connects_after_due": self._late_connects,
                "framing_missing_after_last_event": self._drained,
                "connect_ms": self._connect.stats(),
                "bytes_sent": self._bytes_out,
                "bytes_received": self._bytes_in,
            },
            "errors": [
                msgspec.to_builtins(kind)
                for kind in sorted(self._errors.values(), key=lambda k: (-k.count, k.outcome))
            ],
            "histograms_hdr_v2_ns": {
                "inter_chunk_gap": gaps.encode().decode("ascii") if gaps.count else None
            },
        }

    def _throughput(self) -> dict[str, float | None]:
        duration = self.duration_ns
        full = None
        if self._first_sent is not None and self._last_end is not None:
            full = (self._last_end - self._first_sent) / 1e9
        seconds = duration / 1e9 if duration else None

        def rate(amount: int) -> float | None:
            return None if seconds is None else amount / seconds

        counted = self.succeeded > self._without_usage
        return {
            "duration_s": seconds,
            "full_duration_s": full,
            "requests_per_s": rate(self.succeeded),
            "input_tokens_per_s": rate(self._input_tokens) if counted else None,
            "output_tokens_per_s": rate(self._output_tokens) if counted else None,
            "total_tokens_per_s": rate(self._input_tokens + self._output_tokens) if counted else None,
        }

    def _token_counts(self) -> dict[str, Any]:
        return {
            **{name: s.stats() for name, s in self._tokens.items()},
            "input_total": self._input_tokens,
            "output_total": self._output_tokens,
            "requests_without_usage": self._without_usage,
            "client_input_total": self._client_isl,
            "client_content_events_total": self._client_osl,
            "tokens_per_content_event": self._output_tokens / self._counted_osl
            if self._counted_osl
            else None,
            "input_disagreements": self._disagree["input"],
            "output_disagreements": self._disagree["output"],
            "osl_mismatches": self._mismatch,
            "short_answers": self._short,
        }

    def _interactivity(self, of: str) -> dict[str, float] | None:
        """Tokens per second that a user sees: the inverse of each percentile of the latency."""
        stats = self._durations[of].stats()
        if stats is None:
            return None
        return {k: 1e3 / v for k, v in stats.items() if k not in ("count", "std", "min", "max") and v > 0}

    def _prefix_cache(self) -> dict[str, Any]:
        return {
            "theoretical": {
                "hit_blocks": self._hit_blocks,
                "total_blocks": self._total_blocks,
                "hit_rate": self._hit_blocks / self._total_blocks if self._total_blocks else None,
            },
            "reported": {
                "requests": self._cached_requests,
                "cached_tokens": self._cached,
                "prompt_tokens": self._cached_of,
                "hit_rate": self._cached / self._cached_of if self._cached_of else None,
            }
            if self._cached_requests
            else None,
        }

    def _client(self) -> dict[str, Any]:
        events = self._content_events
        both = np.concatenate([self._lag[False].values(), self._lag[True].values()])
        return {
            "dispatch_lag_armed_ms": self._lag[False].stats(),
            "dispatch_lag_reactive_ms": self._lag[True].stats(),
            "dispatch_lag_ms": statistics(both),
            "request_send_ms": self._send.stats(),
            "content_events": events,
            "reads": self._reads,
            "coalesced_events": self._coalesced,
            "coalesced_share": self._coalesced / events if events else None,
            "slack_above_1ms_share": self._slack_over / events if events else None,
            "first_tokens_with_slack_above_1ms": self._ttft_slack_over,
            "slack_of_coalesced_ms": histogram_statistics(self._slack),
            "requests_stamped_in_user_space": self._user_stamped,
            "defects": dict(sorted(self.defects.items())),
        }

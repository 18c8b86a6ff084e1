"""What one record says: durations and counts of a single request.

Every duration is a difference of two stamps of `transport.base.Stamps`, in nanoseconds on the monotonic
clock. A value whose stamps or counts are missing is None: never 0, never negative, never estimated.
Definitions are those of docs/metrics.md, which follow the `agentx-v1` profile (its section on
per-request values): s = `first_sent`, c_1 = `first_content`, c_m = `last_content`, e = `end`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from agentx_engine.metrics.record import RequestRecord
from agentx_engine.transport.base import Result, Stamps

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A server's count differs from ours by more than rounding when it exceeds these (the bounds that the
# field uses for the output length: 5 % of what was asked, and 50 tokens at most).
MISMATCH_SHARE = 0.05
MISMATCH_TOKENS = 50
KNOWN_TEMPLATE_SHARE = 0.01
UNKNOWN_TEMPLATE_TOKENS = 8  # per message

TemplateTokens = Callable[[int, int, int], int]  # of numbers of system, user and assistant messages


class RequestMetrics(msgspec.Struct, gc=False):
    """Values of one request, ns and tokens; None = the wire did not show it.

    `*_ns` durations run from `first_sent` unless the name says otherwise.
    """

    ttft_ns: int | None = None
    ttft_last_sent_ns: int | None = None  # from the last byte of the request
    ttft_due_ns: int | None = None  # from the intended instant
    first_event_ns: int | None = None
    first_text_ns: int | None = None
    second_token_ns: int | None = None  # first to second content event; None if both came in one read
    latency_ns: int | None = None  # to the last content event
    latency_due_ns: int | None = None  # the same from the intended instant
    decode_ns: int | None = None  # first to last content event
    itl_ns: float | None = None
    full_latency_ns: int | None = None  # to the end of the response
    full_decode_ns: int | None = None  # first content event to the end of the response
    full_itl_ns: float | None = None
    dispatch_lag_ns: int | None = None  # first_sent - due
    send_ns: int | None = None  # last_sent - first_sent
    isl: int | None = None  # the server's prompt tokens
    osl: int | None = None  # the server's completion tokens, reasoning included
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    client_isl: int = 0  # tokens of the text that was sent, without the server's template
    client_osl: int = 0  # content events that were received
    osl_mismatch: bool = False  # osl is far from the output limit that was asked for
    short_answer: bool = False  # the mismatch is on the short side
    isl_disagrees: bool = False
    osl_disagrees: bool = False  # fewer tokens stated than content events received
    gaps_ns: NDArray[np.int64] | None = None  # between content events, shape (content_events - 1,)
    coalesced: bool = False  # some content event shared a read with a later one


def _between(start: int | None, end: int | None) -> int | None:
    return None if start is None or end is None or end < start else end - start


def response_end_ns(result: Result) -> int | None:
    """The end of the response as the server made it.

    Where the framing did not follow the terminal event (`drained`), `end` is the instant at which
    the client gave up waiting, so the last event stands for it.
    """
    stamps = result.stamps
    return stamps.last_event if result.drained and stamps.last_event is not None else stamps.end


def exact_gaps(result: Result) -> NDArray[np.bool_]:
    """For each gap, whether the stamps of both its events are exact.

    A stamp is not exact if its event shared a read with a later one, or if no slack was measured.
    """
    slack, tokens = result.token_slack_ns, result.token_ns
    count = 0 if tokens is None else len(tokens)
    if slack is None or len(slack) != count:
        return np.zeros(max(count - 1, 0), dtype=np.bool_)
    exact = slack == 0
    both: NDArray[np.bool_] = exact[1:] & exact[:-1]
    return both


def far_from(value: int, wanted: int) -> bool:
    """True if a token count is off by more than min(5 %, 50 tokens)."""
    return abs(value - wanted) > min(MISMATCH_SHARE * wanted, MISMATCH_TOKENS)


def compute(
    record: RequestRecord, template_tokens: TemplateTokens | None = None, *, template_taken_out: bool = False
) -> RequestMetrics:
    """The values of one record, whatever its outcome: a broken answer keeps what had arrived.

    `template_tokens` gives what the server's chat template adds to a prompt, if that is known, and
    `template_taken_out` says that the text is shorter by as much, so that both add up to the recording.
    `isl_disagrees`: the server's prompt tokens are not within 1 % of words and template together; where
    the template is not known, not within 5 % of the words plus at most 8 tokens per message. It points to
    another tokenizer or a cut prompt.
    """
    identity, result = record.identity, record.result
    stamps = result.stamps
    sent, first, last = stamps.first_sent, stamps.first_content, stamps.last_content
    end = response_end_ns(result)
    metrics = RequestMetrics(
        ttft_ns=_between(sent, first),
        ttft_last_sent_ns=_between(stamps.last_sent, first),
        ttft_due_ns=_between(stamps.due, first),
        first_event_ns=_between(sent, stamps.first_event),
        first_text_ns=_between(sent, stamps.first_text),
        latency_ns=_between(sent, last),
        latency_due_ns=_between(stamps.due, last),
        decode_ns=_between(first, last),
        full_latency_ns=_between(sent, end) if first is not None else None,
        full_decode_ns=_between(first, end),
        dispatch_lag_ns=_between(stamps.due, sent),
        send_ns=_between(sent, stamps.last_sent),
        client_isl=identity.recorded_in + identity.marker_tokens,
        client_osl=result.content_events,
    )
    if template_taken_out and template_tokens is not None:
        metrics.client_isl -= template_tokens(*identity.roles)
    tokens, slack = result.token_ns, result.token_slack_ns
    metrics.coalesced = slack is not None and bool(slack.any())
    if tokens is not None and len(tokens) >= 2:
        # Two events of one read carry one stamp: their distance is unknown, not zero.
        gaps = metrics.gaps_ns = tokens[1:] - tokens[:-1]
        second = int(gaps[0])
        metrics.second_token_ns = second if second > 0 else None
    usage = result.usage
    if usage is None:
        return metrics
    metrics.isl, metrics.osl = usage.prompt, usage.completion
    metrics.reasoning_tokens, metrics.cached_tokens = usage.reasoning, usage.cached
    if usage.prompt is not None:
        low = high = metrics.client_isl
        if template_tokens is not None:
            low = high = low + template_tokens(*identity.roles)
            share = KNOWN_TEMPLATE_SHARE
        else:
            high += UNKNOWN_TEMPLATE_TOKENS * sum(identity.roles)
            share = MISMATCH_SHARE
        margin = share * metrics.client_isl
        metrics.isl_disagrees = not low - margin <= usage.prompt <= high + margin
    osl = usage.completion
    if osl is not None:
        metrics.osl_mismatch = far_from(osl, identity.max_tokens)
        metrics.short_answer = metrics.osl_mismatch and osl < identity.max_tokens
        metrics.osl_disagrees = osl < result.content_events
        if osl >= 2:
            if metrics.decode_ns is not None:
                metrics.itl_ns = metrics.decode_ns / (osl - 1)
            if metrics.full_decode_ns is not None:
                metrics.full_itl_ns = metrics.full_decode_ns / (osl - 1)
    return metrics


def _ordered(stamps: Stamps) -> bool:
    last = None
    for stamp in (
        stamps.first_sent,
        stamps.first_event,
        stamps.first_content,
        stamps.last_content,
        stamps.last_event,
    ):
        if stamp is None:
            continue
        if last is not None and stamp < last:
            return False
        last = stamp
    return True


def defects(record: RequestRecord, metrics: RequestMetrics) -> list[str]:
    """Names of the invariants that this record breaks: faults of the engine, not of the server.

    They are counted and shown, and never end a run.
    """
    result = record.result
    stamps = result.stamps
    broken = []
    if stamps.first_sent is not None and stamps.first_sent < stamps.due:
        broken.append("sent_before_due")
    if (
        stamps.first_sent is not None
        and stamps.last_sent is not None
        and stamps.last_sent < stamps.first_sent
    ):
        broken.append("last_byte_before_first")
    if not _ordered(stamps):
        broken.append("stamps_out_of_order")
    if (
        metrics.ttft_ns is not None
        and metrics.latency_ns is not None
        and metrics.ttft_ns > metrics.latency_ns
    ):
        broken.append("ttft_above_latency")
    tokens = result.token_ns
    if tokens is not None and len(tokens):
        if len(tokens) != result.content_events:
            broken.append("token_stamps_missing")
        if metrics.gaps_ns is not None and metrics.gaps_ns.min() < 0:
            broken.append("negative_gap")
        # The gaps add up to last - first if and only if the first and last stamps are these two.
        if tokens[0] != stamps.first_content or tokens[-1] != stamps.last_content:
            broken.append("gaps_do_not_add_up")
    if result.outcome.ok and stamps.first_content is None:
        broken.append("success_without_content")
    return broken

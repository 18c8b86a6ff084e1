"""Values of one request, against records made by hand."""

import numpy as np
import pytest
from support.records import MS, START, failure, success

from agentx_engine.metrics.request import compute, defects, exact_gaps, far_from
from agentx_engine.transport.base import Outcome, Result, Stamps, Usage


def test_a_streamed_answer() -> None:
    record = success()
    m = compute(record)
    assert m.ttft_ns == 200 * MS
    assert m.ttft_last_sent_ns == 198 * MS
    assert m.ttft_due_ns == 200 * MS + 50_000
    assert m.first_event_ns == 50 * MS
    assert m.first_text_ns == 200 * MS
    assert m.second_token_ns == 10 * MS
    assert m.latency_ns == 250 * MS
    assert m.latency_due_ns == 250 * MS + 50_000
    assert m.decode_ns == 50 * MS
    assert m.itl_ns == 50 * MS / 4
    assert m.full_latency_ns == 253 * MS
    assert m.full_decode_ns == 53 * MS
    assert m.full_itl_ns == 53 * MS / 4
    assert m.dispatch_lag_ns == 50_000
    assert m.send_ns == 2 * MS
    assert (m.isl, m.osl, m.cached_tokens, m.reasoning_tokens) == (1020, 5, 640, None)
    assert (m.client_isl, m.client_osl) == (1012, 5)
    assert not (m.osl_mismatch or m.isl_disagrees or m.osl_disagrees)
    assert defects(record, m) == []


def test_reasoning_first() -> None:
    record = success()
    record.result.stamps.first_text = record.result.stamps.last_content
    m = compute(record)
    assert (m.ttft_ns, m.first_text_ns) == (200 * MS, 250 * MS)


def test_no_token_gives_no_number() -> None:
    """guidellm#216: a request without a token had a time to first token of -1.7e12 ms."""
    m = compute(failure(Outcome.HTTP_STATUS, status=500, error="boom"))
    values = [getattr(m, f) for f in m.__struct_fields__ if f.endswith("_ns")]
    assert [v for v in values if v is not None] == [1000, 1000]  # dispatch lag and send duration
    assert m.isl is None
    assert m.osl is None


def test_never_sent() -> None:
    m = compute(failure(Outcome.CONNECT_ERROR, sent=False))
    assert all(getattr(m, f) is None for f in m.__struct_fields__ if f.endswith("_ns"))


def test_a_broken_answer_keeps_what_came() -> None:
    record = success(usage=None)
    record.result.outcome = Outcome.TRUNCATED
    m = compute(record)
    assert (m.ttft_ns, m.latency_ns) == (200 * MS, 250 * MS)
    assert (m.itl_ns, m.osl) == (None, None)


@pytest.mark.parametrize("completion", [None, 0, 1])
def test_itl_needs_two_tokens(completion: int | None) -> None:
    m = compute(success(usage=Usage(prompt=1000, completion=completion)))
    assert (m.itl_ns, m.full_itl_ns) == (None, None)
    assert m.osl == completion


def test_several_tokens_per_event() -> None:
    """vllm#27485: 10 events of 4 tokens, 40 ms apart, are 40 ms between chunks and about 10 ms per token."""
    record = success(gaps=(40 * MS,) * 9, usage=Usage(prompt=1000, completion=40), max_tokens=40)
    m = compute(record)
    assert m.itl_ns == pytest.approx(360 * MS / 39)
    assert m.gaps_ns is not None
    assert set(m.gaps_ns.tolist()) == {40 * MS}
    assert not m.osl_disagrees


def test_events_of_one_read_have_no_second_token_time() -> None:
    """aiperf#340: time to second token of 7.9 us, made by two events in one read."""
    record = success(gaps=(0, 10 * MS, 20 * MS, 10 * MS), slack=(3 * MS, 0, 0, 0, 0))
    m = compute(record)
    assert m.second_token_ns is None
    exact = exact_gaps(record.result)
    assert exact.tolist() == [False, True, True, True]
    assert exact_gaps(success().result).all()
    assert (m.coalesced, compute(success()).coalesced) == (True, False)
    assert defects(record, m) == []


def test_framing_that_never_came_is_not_the_server_s_time() -> None:
    record = success()
    record.result.drained = True
    record.result.stamps.end = record.result.stamps.last_event + 250 * MS
    m = compute(record)
    assert m.full_decode_ns == 52 * MS


@pytest.mark.parametrize(
    ("osl", "asked", "far"),
    [
        (100, 100, False),
        (95, 100, False),
        (94, 100, True),
        (106, 100, True),
        (1950, 2000, False),
        (1949, 2000, True),
    ],
)
def test_far_from(osl: int, asked: int, far: bool) -> None:
    assert far_from(osl, asked) is far


@pytest.mark.parametrize(
    ("prompt", "disagrees"),
    [(1012, False), (1094, False), (1095, True), (962, False), (961, True), (5000, True)],
)
def test_prompt_tokens_against_ours(prompt: int, disagrees: bool) -> None:
    """1,012 words; a template may add 8 tokens to each of 4 messages; 5 % either way."""
    assert compute(success(usage=Usage(prompt=prompt, completion=5))).isl_disagrees is disagrees


def test_fewer_tokens_stated_than_seen() -> None:
    assert compute(success(usage=Usage(prompt=1000, completion=4))).osl_disagrees


def _broken(**stamps: int) -> list[str]:
    record = success()
    for name, value in stamps.items():
        setattr(record.result.stamps, name, value)
    return defects(record, compute(record))


def test_defects_are_named() -> None:
    assert "sent_before_due" in _broken(first_sent=START - 1)
    assert "last_byte_before_first" in _broken(last_sent=START)
    assert "stamps_out_of_order" in _broken(last_event=START + 60_000)
    assert "gaps_do_not_add_up" in _broken(last_content=START + 400 * MS)
    assert "gaps_do_not_add_up" in _broken(first_content=START + 100 * MS)


def test_defects_of_token_stamps() -> None:
    record = success()
    assert record.result.token_ns is not None
    record.result.content_events = 7
    assert defects(record, compute(record)) == ["token_stamps_missing"]
    record = success(gaps=(20 * MS, -10 * MS, 40 * MS))
    assert defects(record, compute(record)) == ["negative_gap"]


def test_success_without_content_is_a_defect() -> None:
    record = success()
    record.result = Result(outcome=Outcome.SUCCESS, stamps=Stamps(due=1, armed=1, first_sent=2, end=3))
    assert defects(record, compute(record)) == ["success_without_content"]


def test_single_event() -> None:
    record = success(gaps=())
    m = compute(record)
    assert m.gaps_ns is None
    assert (m.ttft_ns, m.latency_ns, m.decode_ns, m.second_token_ns) == (200 * MS, 200 * MS, 0, None)
    assert defects(record, m) == []
    assert isinstance(record.result.token_ns, np.ndarray)


@pytest.mark.parametrize(("prompt", "disagrees"), [(1052, False), (1062, False), (1063, True), (1041, True)])
def test_prompt_tokens_against_a_known_template(prompt: int, disagrees: bool) -> None:
    """1,012 words and a template of 10 tokens per message: 1,052, within 1 % of the words."""
    record = success(usage=Usage(prompt=prompt, completion=5))
    metrics = compute(record, lambda system, user, assistant: 10 * (system + user + assistant))
    assert metrics.isl_disagrees is disagrees

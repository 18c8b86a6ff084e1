"""The exchange fed by hand: stamps and outcomes do not depend on how the bytes were cut."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from support.scripted import DONE, END, STREAM, answer, chunk, finish, text, usage

from agentx_engine.core.exchange import Exchange
from agentx_engine.core.hdr import Histogram

EVENTS = [text("a"), text("b"), text("c"), finish(), usage(9, 3, 4), DONE]
GOOD = STREAM + b"".join(chunk(e) for e in EVENTS) + END


def fed(parts: list[bytes], **options: object) -> Exchange:
    x = Exchange(b"", **options)  # type: ignore[arg-type]
    state, now = "more", 1000
    for part in parts:
        assert state == "more"
        state, taken = x.feed(part, now, since_ns=now - 10)
        assert taken == len(part) or state != "more"
        now += 1000
    if state == "more":
        x.closed()
    x.finish(now)
    return x


def facts(x: Exchange) -> tuple[object, ...]:
    _, events, content, _, bytes_in, _ = x.counts
    return x.outcome, x.status, x.usage, x.finish_reason, x.error, events, content, bytes_in


WHOLE = facts(fed([GOOD], max_tokens=3))


def test_the_whole_stream_is_a_success() -> None:
    assert ("success", 200, (9, 3, 4, None), "length", None, 6, 3, len(GOOD)) == WHOLE


def test_any_cut_gives_the_same_exchange() -> None:
    for at in range(1, len(GOOD)):
        assert facts(fed([GOOD[:at], GOOD[at:]], max_tokens=3)) == WHOLE, f"cut at byte {at}"


def test_byte_by_byte() -> None:
    assert facts(fed([GOOD[i : i + 1] for i in range(len(GOOD))], max_tokens=3)) == WHOLE


@pytest.mark.parametrize("seed", range(50))
def test_random_cuts_stamp_every_event_with_the_read_that_completed_it(seed: int) -> None:
    rng = random.Random(seed)
    cuts = sorted(rng.sample(range(1, len(GOOD)), rng.randint(1, 12)))
    bounds = [0, *cuts, len(GOOD)]
    x = fed([GOOD[a:b] for a, b in pairwise(bounds)], max_tokens=3)
    assert facts(x) == WHOLE
    # The event is complete with its blank line, which may still lack the chunk's CRLF.
    expected, position, reads_of, behind = [], len(STREAM), [], []
    for event in EVENTS:
        framed = chunk(event)
        complete = position + len(framed) - 2
        read = next(i for i, b in enumerate(bounds[1:]) if b >= complete)
        reads_of.append(read)
        behind.append(bounds[read + 1] - complete)
        expected.append(1000 + 1000 * read)
        position += len(framed)
    assert list(x.token_ns) == expected[:3]
    for i in range(3):
        # Exact is the last event of its read, if nothing but its own chunk's CRLF follows in the read.
        exact = reads_of[i + 1] != reads_of[i] and behind[i] <= 2
        assert x.token_slack_ns[i] == (0 if exact else 10)


def test_a_stamp_of_later_bytes_is_no_exact_stamp() -> None:
    """The read's stamp is that of its newest bytes, which here belong to an event that is yet to come."""
    whole, piece = chunk(text("a")), chunk(text("b"))
    x = fed([STREAM, whole + piece[:-12], piece[-12:] + chunk(finish()), chunk(DONE) + END])
    assert list(x.token_ns) == [2000, 3000]
    assert list(x.token_slack_ns) == [10, 10]
    assert x.counts[3] == 2  # coalesced: "a", and "b" before the finish reason


def test_a_read_that_left_bytes_behind_has_no_exact_event() -> None:
    x = Exchange(b"")
    x.feed(STREAM + chunk(text("a")), 100, since_ns=40, cut=True)
    x.feed(chunk(text("b")), 200, since_ns=150)
    assert list(x.token_slack_ns) == [60, 0]


def test_bytes_behind_the_end_are_not_taken() -> None:
    x = Exchange(b"")
    assert x.feed(GOOD + b"HTTP/1.1 200 OK", 5) == ("end", len(GOOD))


def test_a_first_text_after_reasoning_is_a_stamp_of_its_own() -> None:
    reasoning = b'data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}\n\n'
    tool = b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]}\n\n'
    x = fed([STREAM, chunk(reasoning), chunk(tool), chunk(text("so")), chunk(finish()) + END])
    names = dict(zip(range(12), x.stamps, strict=True))
    assert names[7] == 2000  # first_content: reasoning counts
    assert names[8] == 4000  # first_text: only visible text does
    assert x.counts[2] == 3


def test_role_only_and_usage_only_events_are_no_tokens() -> None:
    """Field faults 24 and 25."""
    role = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
    x = fed([STREAM, chunk(role), chunk(text("a")), chunk(finish()), chunk(usage(1, 1)), chunk(DONE) + END])
    assert x.stamps[6] == 2000 and x.stamps[7] == 3000
    assert x.counts[2] == 1 and len(x.token_ns) == 1


def test_the_last_usage_wins() -> None:
    """Field fault 27."""
    x = fed([STREAM, *(chunk(text("a") + usage(5, n)) for n in (1, 2, 3)), chunk(finish() + DONE) + END])
    assert x.usage == (5, 3, None, None)


def test_words_of_a_failing_server_are_bounded() -> None:
    body = b"x" * 1_000_000
    x = fed([b"HTTP/1.1 500 E\r\nContent-Length: %d\r\n\r\n" % len(body) + body])
    assert x.outcome == "http_status" and len(x.error or "") == 4096


def test_an_encoded_body_is_not_a_stream() -> None:
    head = STREAM.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
    assert fed([head + chunk(b"\x1f\x8b") + END]).outcome == "not_a_stream"


def test_token_times_are_copies() -> None:
    x = fed([answer("a", "b")])
    copy = x.token_ns
    copy[0] = 7
    assert x.token_ns[0] == 1000


def test_feed_repeatedly_counts_what_it_fed() -> None:
    histogram = Histogram()
    x = Exchange(b"")
    x.feed(STREAM, 1)
    assert x.feed_repeatedly(chunk(text("a")), 10_000, histogram) > 0
    assert x.counts[1] == 10_000 and histogram.count == 10_000

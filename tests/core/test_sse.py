"""The server-sent events parser, against vectors, a reference and every way to cut a stream."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import sse_reference
from support.splits import check_splits, pieces_of
from wire.sse_vectors import VECTORS, Sse

from agentx_engine.core.sse import SseParser

Result = tuple[list[tuple[bytes, bytes]], int, bool]

MIB = 1 << 20


def run(pieces: Sequence[bytes], max_event: int = 1 << 20) -> Result:
    """Events (those of the end included), comments, and whether an event was too large."""
    parser = SseParser(max_event)
    events = [tuple(event) for piece in pieces for event in parser.feed(piece)]
    events += [tuple(event) for event in parser.eof()]
    assert parser.events == len(events) or parser.too_large
    return events, parser.comments, parser.too_large


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v.id)
def test_vector(vector: Sse) -> None:
    check_splits(run, vector.stream, (vector.events, vector.comments, False))


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v.id)
def test_reference_agrees_with_vector(vector: Sse) -> None:
    assert sse_reference.parse(vector.stream) == (vector.events, vector.comments)


def test_all_vectors_in_one_stream() -> None:
    # A byte-order mark counts only at the start, and two line ends close whatever a vector left open.
    vectors = [v for v in VECTORS if b"bom" not in v.id.encode()]
    stream = b"".join(v.stream + b"\n\n" for v in vectors)
    events, comments = sse_reference.parse(stream)
    assert len(events) >= sum(len(v.events) for v in vectors)
    check_splits(run, stream, (events, comments, False))


def test_event_is_delivered_at_its_blank_line() -> None:
    """Fault A3: each event in its own read comes out of that read, whatever the line ends are."""
    for end in (b"\n", b"\r\n", b"\r"):
        parser = SseParser()
        for i in range(3):
            assert [e.data for e in parser.feed(b"data: %d" % i + end + end)] == [b"%d" % i], end


def test_cr_at_the_end_of_a_read_does_not_wait() -> None:
    parser = SseParser()
    assert parser.feed(b"data: 1\r\n\r") == [(b"", b"1")]
    assert parser.feed(b"\ndata: 2\r\n\r\n") == [(b"", b"2")]
    assert parser.feed(b"\n") == []


def test_whole_event_is_not_copied() -> None:
    parser = SseParser()
    parser.feed(b"data: {}\n\nevent: x\r\ndata: {}\r\n\r\n: ping\n\ndata:1\r\r")
    assert (parser.events, parser.borrowed, parser.capacity) == (3, 3, 0)
    parser.feed(b"data: 1\n")
    parser.feed(b"\n")
    assert (parser.events, parser.borrowed) == (4, 3)


def test_comments_are_counted_while_nothing_arrives() -> None:
    """Fault A8: they reset idle timers, and are no events."""
    parser = SseParser()
    for n in range(1, 4):
        assert parser.feed(b": keep-alive\n\n") == []
        assert (parser.comments, parser.events) == (n, 0)


def test_end_of_stream_delivers_once() -> None:
    parser = SseParser()
    parser.feed(b"data: a")
    assert parser.eof() == [(b"", b"a")]
    assert parser.eof() == []


@pytest.mark.parametrize("size", [200 << 10, MIB, 8 * MIB])
@pytest.mark.parametrize("piece", [1, 1024, 1 << 30])
def test_long_event(size: int, piece: int) -> None:
    """Faults A16 and A21: bounded only by the stated limit; the buffer grows by doubling."""
    parser = SseParser(8 * MIB)
    assert parser.feed_each(b"data: " + b"x" * size + b"\n\n", piece) == [(b"", b"x" * size)]
    assert parser.capacity <= 2 * size
    assert parser.capacity == 0 or parser.capacity & (parser.capacity - 1) == 0


def test_limit_is_exact() -> None:
    for stream, size in (
        (b"data: 12345678\n\n", 8),
        (b"data:1234\ndata:567\n\n", 8),
        (b"data\ndata\ndata\n\n", 2),
        (b"data:12345678", 8),
    ):
        expected = sse_reference.parse(stream)[0]
        check_splits(lambda p, n=size: run(p, n), stream, (expected, 0, False))
        check_splits(lambda p, n=size: run(p, n - 1), stream, ([], 0, True))


def test_too_large_ends_the_stream() -> None:
    stream = b"data: ok\n\ndata: 123456789\n\ndata: after\n\n"
    check_splits(lambda p: run(p, 8), stream, ([(b"", b"ok")], 0, True))


def test_too_large_is_seen_before_the_line_ends() -> None:
    parser = SseParser(8)
    parser.feed(b"data: 123456789")
    assert parser.too_large


def test_only_data_counts_towards_the_limit() -> None:
    stream = b": " + b"c" * 100 + b"\nid: " + b"i" * 100 + b"\nevent: " + b"e" * 100 + b"\ndata: 12345678\n\n"
    check_splits(lambda p: run(p, 8), stream, ([(b"e" * 63, b"12345678")], 1, False))


def test_reset_forgets_everything_but_the_buffer() -> None:
    parser = SseParser(100)
    parser.feed(b"event: x\ndata: half")
    assert parser.capacity > 0
    kept = parser.capacity
    parser.reset()
    assert (parser.events, parser.comments, parser.capacity) == (0, 0, kept)
    assert parser.eof() == []
    assert parser.feed(b"\xef\xbb\xbfdata: 1\n\n") == [(b"", b"1")]
    parser.feed(b"data: " + b"x" * 101)
    assert parser.too_large
    parser.reset()
    assert not parser.too_large
    assert parser.feed(b"data: 2\n\n") == [(b"", b"2")]


LINE_PARTS = st.sampled_from(
    [
        b"data",
        b"data:",
        b"data: ",
        b"event:",
        b"event: ",
        b"id: ",
        b":",
        b"retry:1",
        b" ",
        b"x",
        b"dat",
        b"{}",
        b"\0",
        b"\xef\xbb\xbf",
        b"\xef",
        b"\xff",
        b"\t",
        b"y" * 70,
    ]
)
STREAMS = st.lists(st.one_of(LINE_PARTS, st.sampled_from([b"\n", b"\r", b"\r\n", b"\n\n", b"\r\n\r\n"]))).map(
    b"".join
)


@st.composite
def cut_streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    stream = draw(STREAMS)
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    edges = [0, *cuts, len(stream)]
    return stream, [stream[a:b] for a, b in pairwise(edges)]


@settings(max_examples=200, deadline=None)
@given(cut_streams())
def test_reference(case: tuple[bytes, list[bytes]]) -> None:
    stream, pieces = case
    events, comments = sse_reference.parse(stream)
    assert run(pieces) == (events, comments, False)
    assert run(pieces_of(stream, 1)) == (events, comments, False)


@settings(max_examples=200, deadline=None)
@given(cut_streams(), st.integers(0, 12))
def test_limit_does_not_depend_on_the_cut(case: tuple[bytes, list[bytes]], limit: int) -> None:
    stream, pieces = case
    assert run(pieces, limit) == run([stream], limit) == run(pieces_of(stream, 1), limit)

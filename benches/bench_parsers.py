"""The stream parsers alone, each in one loop in C, best of several rounds.

    pytest benches/bench_parsers.py --benchmark-enable

One HTTP-chunked chat event of about 230 bytes for each parse call. The reference in the same run is a pass
over the same bytes that only looks for `data: ` (memmem) and for the line end behind it (memchr). The whole
read path, with clock and histogram, is in bench_exchange.py.

The second part shows that time is linear in the bytes for any split: an event of 4 and of 8 MiB, in pieces of
one byte and of 1 KiB, and the ratio of the two times, 2 for a linear parser, 4 for a quadratic one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import pytest

from agentx_engine.core import chunk, http1, sse

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
FORM = (
    b'{"id":"chatcmpl-9f86d081884c7d659a2feaa0c55ad015","object":"chat.completion.chunk","created":1753900000,'
    b'"model":"deepseek-v3","choices":[{"index":0,"delta":{"content":" %s"},"logprobs":null,'
    b'"finish_reason":null}]}'
)
WORDS = b"token the of function return value import self class index error result data".split()
DATAS = [FORM % word for word in WORDS]
DATA = DATAS[0]
EVENT = b"data: " + DATA + b"\n\n"
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
TIMES = 2_000
ROUNDS = 300
MIB = 1 << 20


def best(loop: Callable[[int], int]) -> float:
    """Nanoseconds for each event, in the round that was disturbed least."""
    return min(loop(TIMES) for _ in range(ROUNDS)) / TIMES


PARSERS: dict[str, tuple[int, Callable[[int], int]]] = {
    "http1: one chunk": (len(CHUNK), lambda n: http1.bench(HEAD, CHUNK, n)),
    "sse: one event": (len(EVENT), lambda n: sse.bench(EVENT, n)),
    "chunk: scan": (len(DATA), lambda n: chunk.bench(DATA, n)),
    "chunk: next of a stream": (len(DATA), lambda n: chunk.bench_next(DATAS, n)),
}


@pytest.mark.parametrize("name", PARSERS)
def test_parser(benchmark: pytest.FixtureRequest, name: str) -> None:
    size, loop = PARSERS[name]
    reference = best(lambda n: chunk.bench_memscan(CHUNK, n))
    ns = best(loop)
    benchmark.pedantic(loop, args=(TIMES,), rounds=20)  # type: ignore[attr-defined]
    print(
        f"\n{name}: {1e3 / ns:.1f} M events/s, {size / ns * 1e3:.0f} MB/s, {ns:.0f} ns/event, "
        f"{ns / reference:.2f} x a memchr+memmem pass of {reference:.0f} ns",
        file=sys.stderr,
    )


@pytest.mark.parametrize("piece", [1, 1024])
def test_linear(benchmark: pytest.FixtureRequest, piece: int) -> None:
    def feed(size: int) -> float:
        parser = sse.SseParser(16 * MIB)
        data = b"data: " + b"x" * size + b"\n\n"
        begun = time.perf_counter()
        (event,) = parser.feed_each(data, piece)
        taken = time.perf_counter() - begun
        assert len(event.data) == size
        return taken

    half = min(feed(4 * MIB) for _ in range(5))
    whole = min(feed(8 * MIB) for _ in range(5))
    benchmark.pedantic(feed, args=(8 * MIB,), rounds=3)  # type: ignore[attr-defined]
    print(
        f"\n8 MiB event in pieces of {piece}: {whole * 1e3:.1f} ms, {8 * MIB / whole / 1e6:.0f} MB/s, "
        f"{whole / half:.2f} x the time of 4 MiB",
        file=sys.stderr,
    )

"""In memory: streamed events through the whole read path (HTTP framing, SSE, chunk scan, stamp, histogram).

    pytest benches/bench_exchange.py --benchmark-enable

One HTTP-chunked chat event of about 230 bytes for each parse call, with a clock read and a histogram
record, as in the reactor. The reference in the same run is a pass that only looks for the line end and
for `data: ` (memchr and memmem) over the same bytes.
"""

from __future__ import annotations

import statistics
import sys

import pytest

from agentx_engine.core.chunk import bench_memscan
from agentx_engine.core.clock import now_ns
from agentx_engine.core.exchange import Exchange
from agentx_engine.core.hdr import Histogram

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = (
    b'data: {"id":"chatcmpl-7f3c2a9b5d8e4f1a6c0b3d5e7f9a1b2c","object":"chat.completion.chunk",'
    b'"created":1767225600,"model":"deepseek-v4","choices":[{"index":0,"delta":{"content":" token"},'
    b'"logprobs":null,"finish_reason":null}]}\n\n'
)
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
TIMES = 200_000


def test_whole_read_path(benchmark: pytest.FixtureRequest) -> None:
    histogram = Histogram()

    def once() -> int:
        exchange = Exchange(b"")
        exchange.feed(HEAD, 1)
        return exchange.feed_repeatedly(CHUNK, TIMES, histogram)

    def scan() -> int:
        began = now_ns()
        bench_memscan(CHUNK, TIMES)
        return now_ns() - began

    taken = [once() for _ in range(5)]
    reference = statistics.median(scan() for _ in range(5))
    benchmark.pedantic(once, rounds=5)  # type: ignore[attr-defined]
    ns = statistics.median(taken) / TIMES
    print(
        f"\n{len(CHUNK)} bytes/event: {1e3 / ns:.2f} M events/s, {len(CHUNK) / ns * 1e3:.0f} MB/s, "
        f"{ns:.0f} ns/event, {ns * TIMES / reference:.1f} x a memchr+memmem pass",
        file=sys.stderr,
    )

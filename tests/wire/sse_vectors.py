"""Streams of server-sent events, each with the place or the fault that it comes from.

WHATWG: HTML standard, section 9.2.5 and 9.2.6. WPT: web-platform-tests, eventsource/format-*.
Where the engine deviates from WHATWG (the end of the stream delivers), the vector says so.
"""

from __future__ import annotations

from typing import NamedTuple

BOM = b"\xef\xbb\xbf"
LONG = b"x" * 2_000


class Sse(NamedTuple):
    id: str
    source: str
    stream: bytes
    events: list[tuple[bytes, bytes]]
    comments: int = 0


def data(*texts: bytes) -> list[tuple[bytes, bytes]]:
    """Events without a name."""
    return [(b"", text) for text in texts]


CHUNK = b'{"choices":[{"index":0,"delta":{"content":" a b"}}]}'

VECTORS = [
    # ---- WHATWG's own examples
    Sse(
        "three-messages",
        "WHATWG 9.2.2",
        b"data: This is the first message.\n\ndata: This is the second message, it\ndata: has two lines.\n\n"
        b"data: This is the third message.\n\n",
        data(
            b"This is the first message.",
            b"This is the second message, it\nhas two lines.",
            b"This is the third message.",
        ),
    ),
    Sse(
        "named-events",
        "WHATWG 9.2.2",
        b"event: add\ndata: 73857293\n\nevent: remove\ndata: 2153\n\nevent: add\ndata: 113411\n\n",
        [(b"add", b"73857293"), (b"remove", b"2153"), (b"add", b"113411")],
    ),
    Sse("stock", "WHATWG 9.2.6", b"data: YHOO\ndata: +2\ndata: 10\n\n", data(b"YHOO\n+2\n10")),
    Sse(
        "comment-and-ids",
        "WHATWG 9.2.6; the third event is delivered by the end of the stream, a deviation",
        b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n",
        data(b"first event", b"second event", b" third event"),
        1,
    ),
    Sse(
        "empty-data",
        "WHATWG 9.2.6; the last one is delivered by the end of the stream, a deviation",
        b"data\n\ndata\ndata\n\ndata:",
        data(b"", b"\n", b""),
    ),
    Sse("space-after-colon", "WHATWG 9.2.6", b"data:test\n\ndata: test\n\n", data(b"test", b"test")),
    # ---- web-platform-tests
    Sse("bom", "WPT format-bom", BOM + b"data:1\n\n" + BOM + b"data:2\n\ndata:3\n\n", data(b"1", b"3")),
    Sse("two-boms", "WPT format-bom-2", BOM + BOM + b"data:1\n\ndata:2\n\ndata:3\n\n", data(b"2", b"3")),
    Sse("half-a-bom", "WHATWG 9.2.6, field name", BOM[:2] + b"data:1\n\ndata:2\n\n", data(b"2")),
    Sse("bom-then-nothing", "WHATWG 9.2.6", BOM, []),
    Sse("half-a-bom-then-line-end", "WHATWG 9.2.6", BOM[:2] + b"\n\ndata:2\n\n", data(b"2")),
    Sse(
        "comments",
        "WPT format-comments",
        b"data:1\r:\0\n:\r\ndata:2\n:" + LONG + b"\rdata:3\n:data:fail\r:" + LONG + b"\ndata:4\n\n",
        data(b"1\n2\n3\n4"),
        5,
    ),
    Sse(
        "no-final-empty-line",
        "WPT format-data-before-final-empty-line; delivered by the end of the stream, a deviation",
        b"retry:1000\ndata:test1\n\nid:test\ndata:test2",
        data(b"test1", b"test2"),
    ),
    Sse(
        "field-data",
        "WPT format-field-data",
        b"data:\n\ndata\ndata\n\ndata:test\n\n",
        data(b"", b"\n", b"test"),
    ),
    Sse(
        "field-event",
        "WPT format-field-event",
        b"event:test\ndata:x\n\ndata:x\n\n",
        [(b"test", b"x"), (b"", b"x")],
    ),
    Sse("field-event-empty", "WPT format-field-event-empty", b"event: \ndata:data\n\n", data(b"data")),
    Sse(
        "event-last-wins",
        "WHATWG 9.2.6, set the event type buffer",
        b"event:a\nevent:b\ndata\n\n",
        [(b"b", b"")],
    ),
    Sse("event-without-colon", "WHATWG 9.2.6", b"event:a\nevent\ndata:1\n\n", data(b"1")),
    Sse(
        "event-without-data",
        "WHATWG 9.2.6, dispatch step 2: the type is forgotten too",
        b"event:a\n\ndata:1\n\n",
        data(b"1"),
    ),
    Sse(
        "field-parsing",
        "WPT format-field-parsing",
        b"data:\0\ndata:  2\rData:1\ndata\0:2\ndata:1\r\0data:4\nda-ta:3\rdata_5\ndata:3\rdata:\r\n data:32\n"
        b"data:4\n\n",
        data(b"\0\n 2\n1\n3\n\n4"),
    ),
    Sse(
        "field-unknown",
        "WPT format-field-unknown",
        b"data:test\n data\ndata\nfoobar:xxx\njustsometext\n:thisisacommentyay\ndata:test\n\n",
        data(b"test\n\ntest"),
        1,
    ),
    Sse(
        "leading-space",
        "WPT format-leading-space",
        b"data:\ttest\rdata: \ndata:test\n\n",
        data(b"\ttest\n\ntest"),
    ),
    Sse("newlines", "WPT format-newlines", b"data:test\r\ndata\ndata:test\r\n\r", data(b"test\n\ntest")),
    Sse("nul", "WPT format-null-character", b"data:\0\n\n\n\n", data(b"\0")),
    Sse(
        "utf-8",
        "WPT format-utf-8, and invalid bytes, which are passed on",
        "data:ok…\n\n".encode() + b"data:\xff\xc3\n\n",
        data("ok…".encode(), b"\xff\xc3"),
    ),
    # ---- faults of load clients, section A
    Sse(
        "A1-several-events-in-one-read",
        "fault A1",
        b"data: {A}\n\ndata: {B}\n\ndata: [DONE]\n\n",
        data(b"{A}", b"{B}", b"[DONE]"),
    ),
    Sse("A2-spaces-at-cuts", "fault A2", b"data: " + CHUNK + b"\n\n", data(CHUNK)),
    Sse("A3-crlf", "fault A3", b"data: 1\r\n\r\ndata: 2\r\n\r\ndata: 3\r\n\r\n", data(b"1", b"2", b"3")),
    Sse("A3-cr", "fault A3 with CR alone", b"data: 1\r\rdata: 2\r\rdata: 3\r\r", data(b"1", b"2", b"3")),
    Sse(
        "A3-mixed",
        "fault A3 with all line ends",
        b"data: 1\r\n\rdata: 2\n\r\ndata: 3\r\n\n",
        data(b"1", b"2", b"3"),
    ),
    Sse("A6-no-space", "fault A6", b"data:" + CHUNK + b"\n\ndata:[DONE]\n\n", data(CHUNK, b"[DONE]")),
    Sse("A7-two-data-lines", "fault A7", b'data: {"choices":\ndata: []}\n\n', data(b'{"choices":\n[]}')),
    Sse(
        "A8-keep-alive-comments",
        "fault A8",
        b": keep-alive\n\n:\n\n: OPENROUTER PROCESSING\n\n: ping - 2024-01-01 00:00:00\r\n\r\ndata: 1\n\n",
        data(b"1"),
        4,
    ),
    Sse("A9-comment-then-event", "fault A9", b": ping\n\ndata: {A}\n\n", data(b"{A}"), 1),
    Sse("A9-comment-inside-an-event", "fault A9", b"data: 1\n: ping\ndata: 2\n\n", data(b"1\n2"), 1),
    Sse("A12-characters-of-many-bytes", "fault A12", "data: 你好🦀\n\n".encode(), data("你好🦀".encode())),
    Sse(
        "A15-event-before-data",
        "fault A15",
        b'event: content_block_delta\ndata: {"a":1}\n\nid: 7\nretry: 10\ndata: {"b":1}\nevent: late\n\n',
        [(b"content_block_delta", b'{"a":1}'), (b"late", b'{"b":1}')],
    ),
    Sse("A17-no-final-blank-line", "fault A17", b"data: {A}\n\ndata: {B}", data(b"{A}", b"{B}")),
    Sse("A17-only-one-line-end", "fault A17", b"data: {A}\n\ndata: {B}\r", data(b"{A}", b"{B}")),
    Sse("A17-cut-in-a-later-line", "fault A17", b"data: {B}\nda", data(b"{B}")),
    Sse(
        "A17-cut-in-the-field-name",
        "fault A17: no field yet, so no event",
        b"data: {A}\n\ndata",
        data(b"{A}"),
    ),
    Sse("A17-cut-in-a-comment", "fault A17", b"data: {A}\n\n: pi", data(b"{A}"), 1),
    # ---- places where two paths of the parser meet
    Sse(
        "long-name",
        "csrc/sse.h: names keep 63 bytes",
        b"event: " + b"n" * 70 + b"\ndata:1\n\n",
        [(b"n" * 63, b"1")],
    ),
    Sse("long-field", "field names longer than any known", b"data" * 40 + b":x\ndata:1\n\n", data(b"1")),
    Sse("spaces-only", "WHATWG: one space is removed", b"data:  \n\ndata: \n\n", data(b" ", b"")),
    Sse(
        "colon-in-value", "WHATWG: the first colon divides", b"data::a:\n\ndata: :b\n\n", data(b":a:", b":b")
    ),
    Sse("nothing", "an empty stream", b"", []),
    Sse("blank-lines", "blank lines alone", b"\n\r\n\r\r\n\n", []),
    Sse(
        "long-lines",
        "more than one block of the line search",
        b"data:" + LONG + b"\r\n\r\n" + b"id:" + LONG + b"\n\n",
        data(LONG),
    ),
    Sse(
        "tabs-before-the-end",
        "control characters are no line ends",
        b"data:" + b"\t\v\f" * 50 + b"\n\n",
        data(b"\t\v\f" * 50),
    ),
]

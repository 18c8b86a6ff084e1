"""The scanner of stream events, against vectors and against a full JSON parser."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import chunk_reference
from wire.chunk_vectors import VECTORS, Json, delta

from agentx_engine.core.chunk import Chunk, ChunkScanner, Finish, Flag, masks, scan_chunk

AT_REST = Chunk(Flag(0), Finish.NONE, None, None, None, None, b"", b"", None, None, None)


def check_reference(data: bytes, name: bytes = b"") -> Chunk:
    """Assert that the scanner finds what the reference finds."""
    got = scan_chunk(data, name)
    want, message, kind = chunk_reference.scan(data, name)
    assert got._replace(error_message=b"", error_type=b"") == want, data
    if message is None:
        assert got.error_message == data
    elif Flag.ERROR in got.flags:
        assert json.loads('"' + got.error_message.decode("latin-1") + '"') == message
    assert json.loads('"' + got.error_type.decode("latin-1") + '"') == kind
    return got


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v.id)
def test_vector(vector: Json) -> None:
    expected = AT_REST._replace(flags=vector.flags, **vector.want)
    assert scan_chunk(vector.data, vector.name) == expected


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v.id)
def test_reference_agrees_with_vector(vector: Json) -> None:
    check_reference(vector.data, vector.name)


@pytest.mark.parametrize("vector", [v for v in VECTORS if len(v.data) < 1_000], ids=lambda v: v.id)
def test_every_truncation(vector: Json) -> None:
    """A prefix is malformed unless it is itself a whole value; the scanner reads nothing behind it."""
    for n in range(len(vector.data)):
        check_reference(vector.data[:n], vector.name)


@pytest.mark.parametrize("vector", [v for v in VECTORS if len(v.data) < 1_000], ids=lambda v: v.id)
def test_one_byte_changed(vector: Json) -> None:
    rng = random.Random(vector.id)
    data = vector.data
    for _ in range(150 if data else 0):
        at = rng.randrange(len(data))
        byte = rng.choice(
            [
                b"",
                b'"',
                b"\\",
                b",",
                b":",
                b"{",
                b"}",
                b"[",
                b"]",
                b"0",
                b"-",
                b"e",
                b" ",
                b"\n",
                b"\0",
                b"n",
                b"u",
            ]
        )
        check_reference(data[:at] + byte + data[at + rng.randrange(2) :], vector.name)


def test_content_at_every_offset() -> None:
    """Key and text meet every position of the 64-byte blocks, on both sides of a block's edge."""
    for pad in range(200):
        data = b'{"x":"' + b"p" * pad + b'","choices":[{"delta":{"content":"a"}}]}'
        assert scan_chunk(data).flags == Flag.TEXT
        data = b'{"choices":[{"delta":{"content":"' + b"p" * pad + b'\\"'
        assert scan_chunk(data + b'"}}]}').flags == Flag.TEXT
        assert scan_chunk(data + b"}}]}").flags == Flag.MALFORMED


def test_spaces_between_tokens_at_every_width() -> None:
    for width in range(70):
        gap = b" " * width
        tokens = [
            b"{",
            b'"choices"',
            b":",
            b"[",
            b"{",
            b'"delta"',
            b":",
            b"{",
            b'"content"',
            b":",
            b'"a"',
            b"}",
            b"}",
            b"]",
            b"}",
        ]
        assert scan_chunk(gap.join(tokens)).flags == Flag.TEXT


def test_many_choices_and_calls() -> None:
    calls = b",".join([b'{"function":{"name":"","arguments":""}}'] * 500)
    assert scan_chunk(delta(b'{"tool_calls":[' + calls + b"]}")).flags == Flag(0)
    assert (
        scan_chunk(delta(b'{"tool_calls":[' + calls + b',{"function":{"arguments":"x"}}]}')).flags
        == Flag.TOOL
    )


# ---- one stream's events in turn


def check_stream(events: Sequence[bytes]) -> int:
    """Assert that events scanned as one stream say what each says alone; how many were recalled."""
    scanner = ChunkScanner()
    for n, data in enumerate(events):
        assert scanner.scan(data) == scan_chunk(data), f"event {n} of {list(events[: n + 1])}"
    return scanner.recalled


def test_stream_of_texts_is_recalled() -> None:
    texts = [b"a", b" b", b"\\n", b"\\u00e9\\\\", b"x" * 1_000, b'\\"', "你好🦀".encode()] * 3
    events = [delta(b'{"role":"assistant","content":""}')] + [
        delta(b'{"content":"' + t + b'"}') for t in texts
    ]
    assert check_stream([*events, delta(b"{}", b'"finish_reason":"stop"'), b"[DONE]"]) == len(texts) - 1


@pytest.mark.parametrize(
    "form",
    [
        b'{"seq":%d,"sent_ns":%d,"choices":[{"delta":{"content":"%d"}}]}',
        b'{"choices":[{"delta":{"content":"%d"}}],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}',
        b'{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"%d"}}]}}],"seq": %d ,"sent_ns":%d}',
        b'{"choices":[{"delta":{"reasoning":"%d","reasoning_details":[{"text":"%d"}]}}],"obfuscation":"%d"}',
    ],
)
def test_stream_with_counts_is_recalled(form: bytes) -> None:
    """Fault B27 among them: usage with every event; the metronome's stamps; tool arguments."""
    assert check_stream([form % (n, n * 7, 10**n) for n in range(1, 18)]) == 16


VARIANTS = [b"a", b"", b"\\n", b'\\"', b'"', b"\\", b"\\x", b"\n", b'","content":"', b'","x":"', b'"},{"']
COUNTS = [
    b"0",
    b"7",
    b"12",
    b"00",
    b"07",
    b"-1",
    b"-0",
    b"1.5",
    b"1e3",
    b"null",
    b'"1"',
    b"",
    b"9" * 30,
    b"1 ",
    b" 1",
    b"true",
]


@pytest.mark.parametrize("first", VARIANTS)
@pytest.mark.parametrize("second", VARIANTS)
def test_text_then_text(first: bytes, second: bytes) -> None:
    """An event is recalled only where a scan would find the same."""
    forms = [
        b'{"choices":[{"delta":{"content":"%s"}}]}',
        b'{"choices":[{"delta":{"content":"%s","content":"b"}}]}',
        b'{"choices":[{"delta":{"content":"b","content":"%s"}}]}',
        b'{"choices":[{"delta":{"content":"%s","content":null}}]}',
        b'{"choices":[{"delta":{"tool_calls":[{"function":{"name":"%s","arguments":""}},{"function":{}}]}}]}',
        b'{"choices":[{"delta":{},"finish_reason":"%s"}]}',
        b'{"error":"%s"}',
        b'{"error":{"message":"%s"},"error":null}',
        b'{"id":"%s"}',
    ]
    for form in forms:
        check_stream([form % first, form % second, form % first, form % second])


@pytest.mark.parametrize("first", COUNTS)
@pytest.mark.parametrize("second", COUNTS)
def test_count_then_count(first: bytes, second: bytes) -> None:
    forms = [
        b'{"seq":%s}',
        b'{"seq":%s,"seq":3}',
        b'{"seq":3,"seq":%s}',
        b'{"usage":{"prompt_tokens":%s},"sent_ns":5}',
        b'{"usage":{"prompt_tokens":%s},"usage":{}}',
        b'{"error":{"code":%s}}',
    ]
    for form in forms:
        check_stream([form % first, form % second, form % first, form % second])


def test_more_holes_than_are_kept() -> None:
    form = b'{"usage":{' + b",".join([b'"prompt_tokens":%d'] * 9) + b"}}"
    assert check_stream([form % ((n,) * 9) for n in range(5)]) == 0


def test_long_event_is_not_kept() -> None:
    assert check_stream([delta(b'{"content":"a"}', b'"x":"' + b"y" * 600 + b'"')] * 5) == 0
    short = delta(b'{"content":"a"}')
    assert check_stream([short, delta(b'{"content":"' + b"a" * 100_000 + b'"}'), short]) == 2


def test_stream_whose_events_never_look_alike() -> None:
    """It is scanned, and a later quiet stretch is still recalled."""
    events = [b'{"x":%d,"choices":[{"delta":{"content":"a"}}]}' % n for n in range(300)]
    assert check_stream(events) == 0
    assert check_stream(events + [events[-1]] * 100) > 60


def test_error_event_by_name_in_a_stream() -> None:
    scanner = ChunkScanner()
    data = delta(b'{"content":"a"}')
    for name in (b"", b"", b"error", b"", b"error"):
        assert scanner.scan(data, name) == scan_chunk(data, name)


def test_vectors_as_one_stream() -> None:
    datas = [v.data for v in VECTORS if len(v.data) < 1_000]
    rng = random.Random(1)
    for _ in range(20):
        check_stream([d for d in rng.sample(datas, 60) for _ in range(rng.randint(1, 3))])


# ---- the search under it


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 200))
def test_masks(data: bytes, at: int) -> None:
    """Vectors, words and the definition find the same bytes, for any length and position."""
    if not data:
        return
    at %= len(data)
    block = data[at : at + 64]
    string = sum(1 << i for i, b in enumerate(block) if b < 0x20 or b in b'"\\')
    eol = sum(1 << i for i, b in enumerate(block) if b in b"\r\n")
    first = next((i for i in range(at, len(data)) if data[i] in b"\r\n"), len(data))
    assert masks(data, at) == (string, string, eol, eol, first)


def test_masks_of_every_byte() -> None:
    data = bytes(range(256))
    for at in range(256):
        string, string_words, eol, eol_words, _ = masks(data, at)
        assert (
            string
            == string_words
            == sum(1 << i for i, b in enumerate(data[at : at + 64]) if b < 0x20 or b in b'"\\')
        )
        assert eol == eol_words == sum(1 << i for i, b in enumerate(data[at : at + 64]) if b in b"\r\n")


# ---- generated events

TEXTS = [
    "",
    "",
    "a",
    "word",
    "stop",
    "length",
    "tool_calls",
    "error",
    '"',
    "\\",
    "\n",
    "é",
    "\0",
    "你好",
    "🦀",
]
NUMBERS = [
    "0",
    "-0",
    "7",
    "-7",
    "123456789012",
    "1.0",
    "0.5",
    "1e3",
    "-2E-2",
    str(2**63 - 1),
    str(2**63),
    "9" * 30,
]

CONTENT = ["content", "refusal", "reasoning_content", "reasoning", "reasoning_details", "tool_calls"]

#: Where members matter, and which.
PLACES: list[tuple[list[str | int], list[str]]] = [
    (["choices", 0], ["delta", "message", "finish_reason"]),
    (["choices", 0, "delta"], CONTENT),
    (["choices", 0, "message"], CONTENT),
    (["choices", 0, "delta", "tool_calls", 0, "function"], ["name", "arguments"]),
    (["choices", 0, "message", "tool_calls", 0, "function"], ["name", "arguments"]),
    (["choices", 0, "delta", "reasoning_details", 0], ["text"]),
    (["usage"], ["prompt_tokens", "completion_tokens", "prompt_tokens_details", "completion_tokens_details"]),
    (["usage", "prompt_tokens_details"], ["cached_tokens"]),
    (["usage", "completion_tokens_details"], ["reasoning_tokens"]),
    (["error"], ["message", "type", "code"]),
    ([], ["choices", "usage", "error", "sent_ns", "seq"]),
]
KEYS = ["", "index", "x", "function", *{key for _, keys in PLACES for key in keys}]
KEYS.sort()


class Writer:
    """Random events as JSON text: known keys in places where they matter and where they do not, duplicates,
    escapes, white space, every type of value. Drawn from one seed, since a strategy for it is too slow to
    run thousands of times."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def string(self, text: str) -> str:
        out = []
        for c in text:
            escape = ord(c) < 0x10000 and self.rng.random() < 0.1
            out.append(
                f"\\u{ord(c):04x}" if escape else json.dumps(c, ensure_ascii=self.rng.random() < 0.5)[1:-1]
            )
        return '"' + "".join(out) + '"'

    def gap(self) -> str:
        return self.rng.choice(["", "", "", "", " ", "\n\t", "\r\n  "])

    def value(self, depth: int) -> str:
        kind = self.rng.randrange(9 if depth < 4 else 6)
        if kind < 2:
            return self.string(self.rng.choice(TEXTS))
        if kind < 4:
            return self.rng.choice(NUMBERS)
        if kind < 6:
            return self.rng.choice(["null", "null", "true", "false", "{}", "[]", '""'])
        if kind == 6:
            return self.array([self.value(depth + 1) for _ in range(self.rng.randrange(4))])
        return self.object(self.members(depth + 1, KEYS))

    def members(self, depth: int, keys: list[str]) -> list[tuple[str, str]]:
        chosen = [
            self.rng.choice(keys if self.rng.random() < 0.8 else KEYS) for _ in range(self.rng.randrange(5))
        ]
        return [(key, self.value(depth)) for key in chosen]

    def array(self, items: list[str]) -> str:
        return "[" + ",".join(self.gap() + i + self.gap() for i in items) + "]"

    def object(self, members: list[tuple[str, str]]) -> str:
        parts = [
            self.gap() + self.string(k) + self.gap() + ":" + self.gap() + v + self.gap() for k, v in members
        ]
        return "{" + ",".join(parts) + self.gap() + "}"

    def at(self, path: list[str | int], keys: list[str]) -> list[tuple[str, str]]:
        """Members of an object that has random ones of `keys` at `path`."""
        if not path:
            return self.members(1, keys)
        below = self.object(self.at(path[2:] if path[1:2] == [0] else path[1:], keys))
        if path[1:2] == [0]:
            below = self.array([below] + [self.value(2) for _ in range(self.rng.randrange(3))])
        members = [*self.members(2, KEYS)[:1], (str(path[0]), below), *self.members(2, KEYS)[:1]]
        self.rng.shuffle(members)
        return members

    def event(self) -> bytes:
        members = [m for _ in range(self.rng.randint(1, 3)) for m in self.at(*self.rng.choice(PLACES))]
        return self.object(members).encode()


SEEDS = st.integers(0, 2**63)


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_generated(seed: int) -> None:
    writer = Writer(seed)
    name = writer.rng.choice([b"", b"", b"error", b"message"])
    assert Flag.MALFORMED not in check_reference(writer.event(), name).flags


def test_generated_events_are_worth_it() -> None:
    """Each flag and each count is met often enough for the comparison to mean something."""
    seen = [scan_chunk(Writer(seed).event()) for seed in range(1_500)]
    for flag in (Flag.TEXT, Flag.REASONING, Flag.TOOL, Flag.FINISH, Flag.USAGE, Flag.ERROR):
        assert sum(flag in c.flags for c in seen) >= 5, flag
    for field in ("prompt", "completion", "cached", "reasoning", "error_code", "sent_ns", "seq"):
        assert sum(getattr(c, field) is not None for c in seen) >= 5, field


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_generated_and_broken(seed: int) -> None:
    writer = Writer(seed)
    data = writer.event()
    rng = writer.rng
    at = rng.randrange(len(data) + 1)
    byte = rng.choice([b"", b'"', b"\\", b"}", b"]", b",", b"{", b"[", b":", b"0", b"\0", b" ", b"\xff"])
    check_reference(data[:at] + byte + data[at + rng.randrange(2) :])


@settings(max_examples=200, deadline=None)
@given(SEEDS)
def test_generated_streams(seed: int) -> None:
    """Events that are alike but for a value, or a byte anywhere."""
    writer = Writer(seed)
    rng = writer.rng
    event = writer.event()
    spots = [m.span() for m in re.finditer(rb'(?<=")[^"\\]+(?=")|(?<=:)[0-9]+', event)]
    events = [event, event]
    for _ in range(6):
        a, b = rng.choice(spots) if spots and rng.random() < 0.7 else (rng.randrange(len(event)),) * 2
        value = rng.choice([b"a", b"1", b"23", b"0", b"", b"\\n", b'"', b"\\", b",", b"}", b"-", b"."])
        events += [event[:a] + value + event[b:]] * rng.randint(1, 2)
    rng.shuffle(events)
    check_stream(events)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=120))
def test_any_bytes(data: bytes) -> None:
    check_reference(data)
    check_reference(b"{" + data + b"}")

"""Writes one answer's server-sent events, framed as HTTP chunks, straight to the transport.

The bytes that do not change within an answer are encoded once; a token costs one look-up, one
concatenation and one write. A response object's own `write` would cost several times that, and a
coroutine per token more again. The response's head and its final empty chunk stay the web framework's.
"""

from __future__ import annotations

import asyncio
import json
from functools import cache
from importlib import resources
from typing import Any

# Beyond this many unsent bytes generation waits for the reader: far above what the kernel's buffers
# leave pending for a client that reads at all, and a bound on memory for one that does not.
HIGH_WATER_BYTES = 1 << 20


@cache
def answer_words() -> tuple[bytes, ...]:
    """The words that answers are made of, each with its leading space; one word is one token."""
    text = resources.files("agentx_engine").joinpath("data", "words.txt").read_bytes()
    return tuple(b" " + word for word in text.split())


@cache
def _longest_word() -> int:
    return max(map(len, answer_words()))


def answer_text(number: int, first: int, count: int) -> bytes:
    """Tokens `first` to `first + count` of the answer to request `number`. Plain ASCII letters."""
    words = answer_words()
    start = number * 31 + first
    if count == 1:
        return words[start % len(words)]
    return b"".join(words[(start + i) % len(words)] for i in range(count))


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def event(obj: dict[str, Any]) -> bytes:
    return chunk(b"data: " + json.dumps(obj, separators=(",", ":")).encode() + b"\n\n")


DONE = chunk(b"data: [DONE]\n\n")
_MARK = "\x00"  # stands where the text goes; JSON escapes it, so it cannot occur otherwise


class EventStream:
    """The events of one answer in the order: role, tokens, then `finish` or `error`.

    `plain[n]` are the bytes before and after one word of n bytes of content that does not end the answer.
    """

    __slots__ = ("_base", "is_closing", "plain", "unsent", "write")

    def __init__(self, transport: asyncio.WriteTransport, answer_id: str, created: int, model: str) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.unsent = transport.get_write_buffer_size
        self._base: dict[str, Any] = {
            "id": answer_id,
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
        }
        before, after = self._envelope("content", None)
        size = len(before) + len(after)
        self.plain = [(b"%x\r\n%b" % (size + n, before), after + b"\r\n") for n in range(1 + _longest_word())]

    def role(self) -> None:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        self.write(event(self._base | {"choices": [choice]}))

    def tokens(self, field: str, text: bytes, finish_reason: str | None) -> None:
        before, after = self._envelope(field, finish_reason)
        self.write(chunk(before + text + after))

    def finish(self, usage: dict[str, Any] | None) -> None:
        tail = b"" if usage is None else event(self._base | {"choices": [], "usage": usage})
        self.write(tail + DONE)

    def error(self, message: str, code: int) -> None:
        body = {"message": message, "type": "InternalServerError", "param": None, "code": code}
        self.write(event({"error": body}) + DONE)

    def _envelope(self, field: str, finish_reason: str | None) -> tuple[bytes, bytes]:
        """The bytes of an event before and after its text."""
        choice = {"index": 0, "delta": {field: _MARK}, "logprobs": None, "finish_reason": finish_reason}
        payload = json.dumps(self._base | {"choices": [choice]}, separators=(",", ":")).encode()
        before, after = payload.rsplit(json.dumps(_MARK)[1:-1].encode(), 1)
        return b"data: " + before, after + b"\n\n"

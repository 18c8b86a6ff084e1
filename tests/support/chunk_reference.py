"""What a chat completion event says, found with a full JSON parser, to hold the C scanner against.

Bytes are read as Latin-1, since the scanner does not inspect UTF-8. The meaning is csrc/chunk.h's.
"""

from __future__ import annotations

import json
from typing import Any

from agentx_engine.core.chunk import MAX_DEPTH, Chunk, Finish, Flag

INT64_MAX = 2**63 - 1
SPACE = b" \t\n\r"
FINISHES = {
    "stop": Finish.STOP,
    "length": Finish.LENGTH,
    "tool_calls": Finish.TOOL_CALLS,
    "content_filter": Finish.CONTENT_FILTER,
}


class Count(int):
    """An integer without sign, fraction and exponent: the only form of a count."""


def depth_of(text: str) -> int:
    """Deepest nesting of a valid JSON text."""
    depth = deepest = 0
    inside = escaped = False
    for c in text:
        if inside:
            if escaped:
                escaped = False
            elif c == "\\":
                escaped = True
            elif c == '"':
                inside = False
        elif c == '"':
            inside = True
        elif c in "{[":
            depth += 1
            deepest = max(deepest, depth)
        elif c in "}]":
            depth -= 1
    return deepest


def loads(data: bytes) -> Any:
    """The value of a JSON text; ValueError if it is none or nested too deeply."""

    def integer(text: str) -> Any:
        return -1.0 if text.startswith("-") else Count(min(int(text[:40]), INT64_MAX))

    def constant(text: str) -> Any:
        raise ValueError(text)

    text = data.decode("latin-1")
    try:
        value = json.loads(text, parse_int=integer, parse_float=lambda _: 0.5, parse_constant=constant)
    except RecursionError as e:
        raise ValueError from e
    if depth_of(text) > MAX_DEPTH:
        raise ValueError("too deep")
    return value


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(value: Any) -> int | None:
    return int(value) if isinstance(value, Count) else None


def scan(data: bytes, event_name: bytes = b"") -> tuple[Chunk, str | None, str | None]:
    """The expected Chunk, with its two texts empty, and these texts: (chunk, error message, error type).

    None as the message stands for the whole data.
    """
    flags = Flag(0)
    finish = Finish.NONE
    root: dict[str, Any] = {}
    named = event_name == b"error"
    if named:
        flags |= Flag.ERROR
    stripped = data.strip(SPACE)
    if stripped == b"[DONE]":
        flags |= Flag.DONE
    elif stripped:
        try:
            value = loads(stripped)
            if not isinstance(value, dict):
                raise ValueError
            root = value
        except ValueError:
            flags |= Flag.MALFORMED

    choices = _list(root.get("choices"))
    choice = _dict(choices[0] if choices else None)
    for key in ("delta", "message"):
        delta = _dict(choice.get(key))
        if _text(delta.get("content")) or _text(delta.get("refusal")):
            flags |= Flag.TEXT
        details = [_text(_dict(d).get("text")) for d in _list(delta.get("reasoning_details"))]
        if _text(delta.get("reasoning_content")) or _text(delta.get("reasoning")) or any(details):
            flags |= Flag.REASONING
        for call in _list(delta.get("tool_calls")):
            function = _dict(_dict(call).get("function"))
            if _text(function.get("name")) or _text(function.get("arguments")):
                flags |= Flag.TOOL
    if reason := _text(choice.get("finish_reason")):
        flags |= Flag.FINISH
        finish = FINISHES.get(reason, Finish.OTHER)

    usage = _dict(root.get("usage"))
    counts = (
        _count(usage.get("prompt_tokens")),
        _count(usage.get("completion_tokens")),
        _count(_dict(usage.get("prompt_tokens_details")).get("cached_tokens")),
        _count(_dict(usage.get("completion_tokens_details")).get("reasoning_tokens")),
    )
    if any(c is not None for c in counts):
        flags |= Flag.USAGE

    error = root.get("error")
    if (isinstance(error, dict) and error) or _text(error):
        flags |= Flag.ERROR
    inner = _dict(error)
    message: str | None = _text(inner.get("message")) or _text(error)
    if Flag.ERROR in flags and not message:
        message = None
    kind = _text(inner.get("type")) or _text(inner.get("code"))
    chunk = Chunk(
        flags,
        finish,
        *counts,
        b"",
        b"",
        _count(inner.get("code")),
        _count(root.get("sent_ns")),
        _count(root.get("seq")),
    )
    return chunk, message, kind

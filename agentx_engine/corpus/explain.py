"""Words for what is wrong with a trace: place, field, what was found, what would be right."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw

from agentx_engine.errors import CorpusError

if TYPE_CHECKING:
    from agentx_engine.core.ids import IdsError
    from agentx_engine.corpus.model import Trace

_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_OFFSET = re.compile(r"\(byte (\d+)\)")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_EXPECTED = re.compile(r"Expected (.*?)(?:, got `(.*)`)?")
_SHOWN_BYTES = 60

_MEANING = {
    "t": "the start in seconds, a number within +-4e9",
    "type": '"n", "s" or, in the root\'s list only, "subagent"',
    "model": "the name of the recorded model",
    "in": "the number of prompt tokens, a whole number from 0 to 2147483647",
    "out": "the number of answer tokens, a whole number from 0 to 2147483647",
    "hash_ids": "a flat list of whole numbers from 0 to 2147483647",
    "input_types": "a list of strings",
    "output_types": "a list of strings",
    "stop": "the stop reason, a string",
    "api_time": "the duration of the call in seconds, a number within +-4e9, or null",
    "think_time": "a number of seconds within +-4e9, or null",
    "ttft": "a number of seconds within +-4e9, or null",
    "requests": "a list of requests",
    "agent_id": "a name that is unique in the trace",
    "subagent_type": "the kind of agent, a string",
    "status": '"completed" or "async_launched"',
    "duration_ms": "the duration in milliseconds, a number, or null",
    "total_tokens": "a whole number from 0, or null",
    "tool_use_count": "a whole number from 0, or null",
    "id": "the trace's name, a non-empty string that is unique in the corpus",
    "models": "a list of strings",
    "block_size": "the tokens per hash id, a whole number from 1 to 1048576",
    "hash_id_scope": '"local"',
    "tool_tokens": "a number of tokens, a whole number from 0 to 2147483647",
    "system_tokens": "a number of tokens, a whole number from 0 to 2147483647",
}


def shown(text: bytes) -> str:
    """A piece of a user's file, short and safe to print."""
    piece = text[: _SHOWN_BYTES + 1].decode("utf-8", "replace")
    if len(piece) > _SHOWN_BYTES:
        piece = piece[:_SHOWN_BYTES] + "..."
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in piece)


def wrong_field(where: str, trace_id: str | None, path: str, what: str, data: bytes) -> CorpusError:
    """The error for a value that is JSON but not what the format says.

    `path` is msgspec's (`$.requests[3].in`), `what` its message, `data` the trace's text.
    """
    steps: list[str | int] = [m[1] if m[1] is not None else int(m[2]) for m in _STEP.finditer(path)]
    field = next((s for s in reversed(steps) if isinstance(s, str)), "")
    if missing := _MISSING.fullmatch(what):
        field = missing[1]
        fault = f"field `{field}` is missing"
    else:
        found = _value_at(data, steps)
        got = "" if found is None else f", got {shown(found)}"
        if expected := _EXPECTED.fullmatch(what):
            what = f"expected {expected[1]}" + (got or f", got {expected[2]}")
        elif found is not None:
            what = f"{what[:1].lower()}{what[1:]}{got}" if shown(found) not in what else what
        fault = _field_words(steps) + what
    place = [where]
    numbers = [s for s in steps if isinstance(s, int)] if steps[:1] == ["requests"] else []
    subject = [] if trace_id is None else [f"trace {trace_id!r}"]
    for name, number in zip(("request", "inner request"), numbers, strict=False):
        subject.append(f"{name} {number}")
    if subject:
        place.append(", ".join(subject))
    if not steps and not missing:
        remedy = "A trace is a JSON object with id, models, block_size, hash_id_scope and requests."
    elif field in _MEANING:
        remedy = f"`{field}` is {_MEANING[field]}: correct the file, or leave this trace out."
    else:
        remedy = "Correct the file, or leave this trace out."
    return CorpusError(f"{': '.join(place)}: {fault}. {remedy}")


def bad_ids(trace: Trace, entry: int, inner: int | None, text: Raw, error: IdsError) -> CorpusError:
    """The error for a `hash_ids` list that `core.ids.parse_ids` refuses; numbers as in request_ids."""
    place = f"request {entry}" if inner is None else f"request {entry}, inner request {inner}"
    piece = bytes(text)[error.offset :]
    return CorpusError(
        f"{trace.source}: trace {trace.id!r}, {place}: field `hash_ids`: {error.reason} at byte "
        f"{error.offset} of the list, near {shown(piece)}. `hash_ids` is {_MEANING['hash_ids']}: correct the "
        "file, or leave this trace out."
    )


def _field_words(steps: list[str | int]) -> str:
    tail: list[str] = []
    for i, step in enumerate(steps):
        if step == "requests" and i + 1 < len(steps) and isinstance(steps[i + 1], int):
            tail = []
        elif isinstance(step, int):
            if tail:
                tail[-1] += f"[{step}]"
        else:
            tail.append(step)
    return f"field `{'.'.join(tail)}`: " if tail else ""


def _value_at(data: bytes, steps: list[str | int]) -> bytes | None:
    try:
        value = Raw(data)
        for step in steps:
            if isinstance(step, str):
                value = msgspec.json.decode(value, type=dict[str, Raw])[step]
            else:
                value = msgspec.json.decode(value, type=list[Raw])[step]
        return bytes(value).strip()
    except (msgspec.MsgspecError, LookupError, RecursionError, UnicodeError):
        return None


def not_json(where: str, data: bytes, error: Exception) -> CorpusError:
    """The error for bytes that no JSON decoder takes, with the likely cause."""
    words = str(error)
    if isinstance(error, RecursionError):
        return CorpusError(f"{where}: the JSON is nested too deeply for a trace. Is this the right file?")
    if (hint := foreign(data)) is not None:
        return CorpusError(f"{where}: {hint}")
    offset = int(m[1]) if (m := _OFFSET.search(words)) else None
    if "truncated" in words or not data.strip():
        return CorpusError(
            f"{where}: the JSON ends in the middle of a value (after {len(data)} bytes). Either the file was "
            "cut off (fetch it again), or a .jsonl holds traces over several lines (write one per line)."
        )
    if "trailing" in words and offset is not None:
        return CorpusError(
            f"{where}: more text after the end of the trace, from byte {offset}: {shown(data[offset:])}. "
            "A .json file holds one trace; for one trace per line name the file .jsonl."
        )
    at = "" if offset is None else f" at byte {offset}, near {shown(data[max(0, offset - 20) : offset + 20])}"
    return CorpusError(f"{where}: not valid JSON: {words}{at}. Correct the file, or leave this trace out.")


def foreign(data: bytes) -> str | None:
    """What a file that is not JSON text seems to be, and what to do with it; None if it may be JSON."""
    for magic, words in (
        (b"\x1f\x8b", "the content is compressed with gzip. Name the file with .gz at the end."),
        (b"\x28\xb5\x2f\xfd", "the content is compressed with zstd. Name the file with .zst at the end."),
        (b"PAR1", "this is a Parquet file, which is not read. Export it as JSON lines, one trace per line."),
        (b"PK\x03\x04", "this is a ZIP archive, which is not read. Unpack it and give the folder."),
        (
            b"version https://git-lfs",
            "this is a Git LFS pointer, not the data. Run `git lfs pull`, or fetch the file.",
        ),
        (b"\xff\xfe", "the text is UTF-16; JSON is UTF-8. Convert the file."),
        (b"\xfe\xff", "the text is UTF-16; JSON is UTF-8. Convert the file."),
        (b"<", "this is HTML or XML, perhaps an error page saved instead of the data. Fetch it again."),
    ):
        if data.startswith(magic):
            return words
    if data.lstrip()[:1] == b"[":
        return "this is a JSON list. Write one trace per line (.jsonl), or one file per trace in a folder."
    return None

"""The bytes of one trace -> Trace, quickly where the file is clean and with a precise complaint where not.

More than 95 % of a trace are digits of `hash_ids`, and a JSON decoder walks all of them to find the end of
each list. Here the lists are cut out first: `]` is found at memchr speed, each list is replaced by its
number, and only the remaining few per cent go through msgspec. Afterwards every number is exchanged for a
view of its list. A list is therefore not looked into here; `hash_ids.request_ids` does that.

Why the cut is safe: inside a JSON string a quote is always escaped, so the bytes `"hash_ids"` (without a
backslash before) are a whole string token, and with a colon after it a key. A list that holds a `]` of its
own cannot be a list of ids; such a text fails, or leaves a list that fails there. A number that comes
back twice or was never given out sends the trace to the plain decoder.

Three steps, each only if the one before fails: strict decode; repair of what does not change the meaning
(unknown keys, nulls in fields that have a default, NaN and Infinity), each with a warning, and strict decode
again; a CorpusError that names the place, the value and the remedy.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, NoReturn

import msgspec
from msgspec import Raw
from msgspec.structs import force_setattr

from agentx_engine.corpus.explain import foreign, not_json, shown, wrong_field
from agentx_engine.corpus.model import (
    NO_IDS,
    AnyRequest,
    BlockSize,
    Name,
    StreamedRequest,
    Subagent,
    Tokens,
    Trace,
    TraceRequest,
    UnknownRequest,
)
from agentx_engine.errors import CorpusError

Warn = Callable[[str, str], None]
"""Called as warn(kind, text); the receiver shows each kind once and counts the rest."""


class _TraceJson(msgspec.Struct, forbid_unknown_fields=True):
    id: Name
    models: tuple[str, ...]
    block_size: BlockSize
    hash_id_scope: str
    requests: tuple[TraceRequest | StreamedRequest | UnknownRequest | Subagent, ...]
    tool_tokens: Tokens = 0
    system_tokens: Tokens = 0
    totals: Raw = NO_IDS


class _Id(msgspec.Struct):
    id: Name


_DECODER = msgspec.json.Decoder(_TraceJson)
_ID_DECODER = msgspec.json.Decoder(_Id)
_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_OBJECTS = msgspec.json.Decoder(list[dict[str, Raw]])

_HASH_IDS = re.compile(rb'"hash_ids"\s*+:\s*+\[')
_NULL_IDS = re.compile(rb'"hash_ids"\s*+:\s*+null')
_LIST = re.compile(rb"\[[-+0-9.eE,\s]*+\]")
_BACKSLASH = 0x5C
_STRING_OR_LITERAL = re.compile(rb'"(?:[^"\\]|\\.)*+"|-?Infinity|NaN', re.DOTALL)


class _Object(NamedTuple):
    """An object of the format, for repairs: its keys, and what stands for null in those that allow it."""

    kind: str
    keys: frozenset[str]
    for_null: Mapping[str, bytes]


_TRACE = _Object(
    "trace",
    frozenset(_TraceJson.__struct_encode_fields__),
    {"models": b"[]", "tool_tokens": b"0", "system_tokens": b"0"},
)
_REQUEST = _Object(
    "request",
    frozenset((*TraceRequest.__struct_encode_fields__, "type")),
    {"hash_ids": b"[]", "input_types": b"[]", "output_types": b"[]", "stop": b'""'},
)
_SUBAGENT = _Object(
    "subagent",
    frozenset((*Subagent.__struct_encode_fields__, "type")),
    {"subagent_type": b'""', "models": b"[]", "tool_tokens": b"0", "system_tokens": b"0"},
)

# A top-level `id` that stands before `requests`, found without decoding: flat values only.
_STRING = rb'"[^"\\\x00-\x1f]*+"'
_FLAT = rb"(?:" + _STRING + rb"|[-+0-9.eE]++|true|false|null|\[(?:\s*+" + _STRING + rb"\s*+,?+)*+\s*+\])"
_LEADING_ID = re.compile(
    rb"\s*+\{(?:\s*+(?!\"id\")" + _STRING + rb"\s*+:\s*+" + _FLAT + rb"\s*+,)*+"
    rb'\s*+"id"\s*+:\s*+"([^"\\\x00-\x1f]++)"\s*+[,}]'
)
ID_PREFIX_BYTES = 4096


def leading_id(head: bytes) -> str | None:
    """The trace's id if it can be read off the first bytes of the trace, else None: then decode it all."""
    match = _LEADING_ID.match(head)
    if match is None:
        return None
    try:
        return match[1].decode()
    except UnicodeDecodeError:
        return None


def decode_id(data: bytes, where: str) -> str:
    """The trace's id, wherever it stands. Raises CorpusError if the bytes are not a trace."""
    try:
        return _ID_DECODER.decode(data).id
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return decode_trace(data, where, _ignore).id


def _ignore(kind: str, text: str) -> None:
    del kind, text


def decode_trace(data: bytes, where: str, warn: Warn) -> Trace:
    """Decodes one trace. Inner times are as in the file: see `corpus.clock`.

    `where` names the place for messages ("FILE" or "FILE line N"). Raises CorpusError.
    """
    if (words := foreign(data)) is not None:
        raise CorpusError(f"{where}: {words}")
    kept: list[tuple[str, str]] = []
    try:
        wire = _decode_cut(data, where, lambda kind, text: kept.append((kind, text)))
        if wire is None:
            kept.clear()
            wire = _decode(data, where, lambda kind, text: kept.append((kind, text)))
            _check_lists(wire, where, data)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        _raise(data, error, where)
    for kind, text in kept:
        warn(kind, text)
    if wire.hash_id_scope != "local":
        raise CorpusError(
            f'{where}: trace {wire.id!r}, field `hash_id_scope`: expected "local", got '
            f"{wire.hash_id_scope!r}. With ids shared between traces the prompts of one session would depend "
            "on the others, which the replay rules exclude; renumber the ids per trace and set the scope to "
            '"local".'
        )
    return Trace(
        id=wire.id,
        models=wire.models,
        block_size=wire.block_size,
        hash_id_scope=wire.hash_id_scope,
        tool_tokens=wire.tool_tokens,
        system_tokens=wire.system_tokens,
        requests=wire.requests,
        source=where,
    )


_Spans = dict[bytes, tuple[int, int]]
"""Where the lists of ids stood, by what stands there instead."""


def _cut(data: bytes) -> tuple[bytes, _Spans]:
    """The text with each list of ids replaced by its number, and where the lists stood."""
    parts: list[bytes] = []
    spans: _Spans = {}
    done = look = 0
    while match := _HASH_IDS.search(data, look):
        look = match.end()
        if match.start() and data[match.start() - 1] == _BACKSLASH:
            continue
        end = data.find(b"]", look) + 1
        if not end:
            break
        number = b"%d" % len(spans)
        parts += (data[done : look - 1], number)
        spans[number] = (look - 1, end)
        done = look = end
    parts.append(data[done:])
    return b"".join(parts), spans


def _decode_cut(data: bytes, where: str, warn: Warn) -> _TraceJson | None:
    """Decodes without walking the lists of ids; None if the text has to be decoded whole."""
    rest, spans = _cut(data)
    try:
        wire = _decode(rest, where, warn)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None
    return wire if _restore(wire, data, spans) else None


def _leaves(wire: _TraceJson) -> list[tuple[int, int | None, AnyRequest]]:
    leaves: list[tuple[int, int | None, AnyRequest]] = []
    for i, entry in enumerate(wire.requests):
        if isinstance(entry, Subagent):
            leaves.extend((i, j, request) for j, request in enumerate(entry.requests))
        else:
            leaves.append((i, None, entry))
    return leaves


def _restore(wire: _TraceJson, data: bytes, spans: _Spans) -> bool:
    """Exchanges the numbers for views of the lists. False if they are not the ones handed out."""
    view = memoryview(data)
    for _, _, request in _leaves(wire):
        text = bytes(request.hash_ids)
        if text == b"[]":
            continue
        span = spans.pop(text, None)
        if span is None:
            return False
        force_setattr(request, "hash_ids", Raw(view[span[0] : span[1]]))
    return True


def _check_lists(wire: _TraceJson, where: str, data: bytes) -> None:
    for i, j, request in _leaves(wire):
        text = bytes(request.hash_ids)
        if not _LIST.fullmatch(text):
            path = f"$.requests[{i}].hash_ids" if j is None else f"$.requests[{i}].requests[{j}].hash_ids"
            raise wrong_field(where, wire.id, path, "Expected a list of whole numbers", data)


def _decode(text: bytes, where: str, warn: Warn) -> _TraceJson:
    try:
        if _NULL_IDS.search(text):
            text = _repair(text, where, warn)
        wire = _DECODER.decode(text)
    except msgspec.ValidationError:
        wire = _DECODER.decode(_repair(text, where, warn))
    except msgspec.DecodeError:
        literals = _null_for_literals(text)
        if literals == text:
            raise
        _OBJECT.decode(literals)  # warn only if this was all that was wrong
        warn(
            "not_json_number",
            f"{where}: NaN and Infinity are not JSON; they are read as null (not recorded)",
        )
        wire = _decode(literals, where, warn)
    for i, _, request in _leaves(wire) if b'"?"' in text else ():
        if isinstance(request, UnknownRequest):
            warn(
                "unknown_request_type",
                f'{where}: trace {wire.id!r}, request {i}: type "?" is replayed like every other request',
            )
    return wire


def _null_for_literals(text: bytes) -> bytes:
    return _STRING_OR_LITERAL.sub(lambda m: m[0] if m[0].startswith(b'"') else b"null", text)


def _repair(text: bytes, where: str, warn: Warn) -> bytes:
    """The text without unknown keys and with defaults for nulls. Unchanged in structure: indices stay."""
    try:
        trace = _OBJECT.decode(text)
    except msgspec.MsgspecError:
        return text
    name = _id_of(trace)
    cleaned = _clean(trace, _TRACE, f"{where}: trace {name}", warn)
    if "models" not in cleaned:
        cleaned["models"] = Raw(b"[]")
        warn("missing:trace.models", f"{where}: trace {name}: no field `models`; it is informational")
    if "requests" in trace:
        with contextlib.suppress(msgspec.MsgspecError):
            cleaned["requests"] = _clean_list(trace["requests"], f"{where}: trace {name}, request ", warn)
    return msgspec.json.encode(cleaned)


def _id_of(trace: Mapping[str, Raw]) -> str:
    with contextlib.suppress(msgspec.MsgspecError, KeyError):
        return repr(msgspec.json.decode(trace["id"], type=str))
    return "without id"


def _clean_list(text: Raw, where: str, warn: Warn) -> Raw:
    cleaned: list[dict[str, Raw]] = []
    for i, entry in enumerate(_OBJECTS.decode(text)):
        here = f"{where}{i}"
        if bytes(entry.get("type", b"")) != b'"subagent"':
            cleaned.append(_clean(entry, _REQUEST, here, warn))
            continue
        subagent = _clean(entry, _SUBAGENT, here, warn)
        if "requests" in entry:
            with contextlib.suppress(msgspec.MsgspecError):
                subagent["requests"] = _clean_list(entry["requests"], f"{here}, inner request ", warn)
        cleaned.append(subagent)
    return Raw(msgspec.json.encode(cleaned))


def _clean(entry: Mapping[str, Raw], known: _Object, here: str, warn: Warn) -> dict[str, Raw]:
    cleaned: dict[str, Raw] = {}
    kind = known.kind
    for key, value in entry.items():
        if key not in known.keys:
            name = shown(key.encode("utf-8", "replace"))
            warn(f"unknown_key:{kind}.{name}", f"{here}: unknown key `{name}` in a {kind} is ignored")
        elif key in known.for_null and bytes(value) == b"null":
            cleaned[key] = Raw(known.for_null[key])
            warn(
                f"null:{kind}.{key}",
                f"{here}: field `{key}` is null; read as {known.for_null[key].decode()}",
            )
        else:
            cleaned[key] = value
    return cleaned


def _raise(data: bytes, error: Exception, where: str) -> NoReturn:
    """Turns the decoder's words into an error about the user's file."""
    if not isinstance(error, msgspec.ValidationError):
        raise not_json(where, data, error) from None
    data = _null_for_literals(data)
    words, _, path = str(error).partition(" - at `")
    name: str | None = None
    with contextlib.suppress(msgspec.MsgspecError, UnicodeError):
        name = _ID_DECODER.decode(data).id
    raise wrong_field(where, name, path.rstrip("`") or "$", words, data) from None

"""One trace: from bytes to Structs, with warnings and complaints (spec sections 1.2 to 1.5 and 1.8)."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.trace_files import dump, request, subagent, trace, without

from agentx_engine.core.ids import parse_ids
from agentx_engine.corpus import request_ids
from agentx_engine.corpus.decode import decode_id, decode_trace, leading_id
from agentx_engine.corpus.model import Subagent, TraceRequest
from agentx_engine.errors import CorpusError


def decode(data: bytes | dict[str, Any], warnings: list[tuple[str, str]] | None = None):
    kept = [] if warnings is None else warnings
    data = data if isinstance(data, bytes) else dump(data)
    return decode_trace(data, "f.jsonl line 3", lambda kind, text: kept.append((kind, text)))


def ids(entry) -> list[int]:
    return parse_ids(entry.hash_ids).tolist()


def test_every_field_arrives():
    warnings: list[tuple[str, str]] = []
    t = decode(trace(requests=[request(1.5, ttft=0.4), subagent(3.0)]), warnings)
    assert warnings == []
    assert (t.id, t.models, t.block_size, t.hash_id_scope) == ("a", ("m",), 64, "local")
    assert (t.tool_tokens, t.system_tokens, t.source, t.corrections) == (100, 20, "f.jsonl line 3", ())
    first, agent = t.requests
    assert isinstance(first, TraceRequest)
    assert (first.t, first.type, first.model, first.in_tokens, first.out_tokens) == (1.5, "n", "m", 192, 10)
    assert (first.input_types, first.output_types, first.stop) == (("text",), ("text",), "end_turn")
    assert (first.api_time, first.think_time, first.ttft) == (2.0, 0.0, 0.4)
    assert ids(first) == [1, 2, 3]
    assert isinstance(agent, Subagent)
    assert (agent.agent_id, agent.subagent_type, agent.status) == ("agent_001", "Explore", "completed")
    assert (agent.duration_ms, agent.total_tokens, agent.tool_use_count) == (5000, 300, 2)
    assert (agent.tool_tokens, agent.system_tokens, agent.models) == (64, 64, ("m",))
    assert [ids(r) for r in agent.requests] == [[7, 8, 9], [7, 8, 9]]


def test_only_required_fields():
    t = decode(
        {
            "id": "x",
            "models": [],
            "block_size": 16,
            "hash_id_scope": "local",
            "requests": [{"t": 0, "type": "s", "model": "m", "in": 0, "out": 0}],
        }
    )
    (r,) = t.requests
    assert (r.type, r.in_tokens, r.out_tokens, ids(r)) == ("s", 0, 0, [])
    assert (r.input_types, r.stop, r.api_time, r.think_time, r.ttft) == ((), "", None, None, None)
    assert (t.tool_tokens, t.system_tokens) == (0, 0)


@pytest.mark.parametrize("indent", [None, 2])
def test_key_order_and_white_space_do_not_matter(indent: int | None):
    value = trace(requests=[dict(reversed(request(hash_ids=[4, 5]).items())), subagent()])
    t = decode(json.dumps(dict(reversed(value.items())), indent=indent).encode())
    assert ids(t.requests[0]) == [4, 5]
    assert [ids(r) for r in t.requests[1].requests] == [[7, 8, 9]] * 2


def test_ids_are_views_of_the_file_not_copies():
    data = dump(trace(requests=[request(hash_ids=list(range(1000)))]))
    raw = decode(data).requests[0].hash_ids
    assert memoryview(raw).obj is not None
    assert bytes(raw) == json.dumps(list(range(1000)), separators=(",", ":")).encode()


# Texts that look like lists of ids but are none, and lists that stand where none is expected.
TRICKY: list[tuple[dict[str, Any], list[int]]] = [
    (request(stop='"hash_ids":[9]'), [1, 2, 3]),
    (request(stop='x"hash_ids'), [1, 2, 3]),
    (request(model='\\"hash_ids":[9]'), [1, 2, 3]),
    (request(input_types=["hash_ids", "]", "["]), [1, 2, 3]),
    (request(hash_ids=[]), []),
    (request(hash_ids=[0, 2147483647]), [0, 2147483647]),
]


@pytest.mark.parametrize(("entry", "expected"), TRICKY)
def test_text_that_looks_like_ids(entry: dict[str, Any], expected: list[int]):
    t = decode(trace(requests=[entry, subagent(requests=[entry])]))
    assert ids(t.requests[0]) == expected == ids(t.requests[1].requests[0])
    assert (t.requests[0].stop, t.requests[0].model) == (entry["stop"], entry["model"])
    assert list(t.requests[0].input_types) == entry["input_types"]


def test_ids_under_an_escaped_key_are_not_taken_from_another_request():
    data = dump(trace(requests=[request(hash_ids=[5, 6]), request(hash_ids=[77])]))
    forged = data.replace(b'"hash_ids":[77]', b'"hash\\u005fids":0')
    with pytest.raises(CorpusError, match=r"request 1: field `hash_ids`"):
        decode(forged)


# What does not change the meaning is accepted, with one kind of warning each.
ODD = [
    (trace(extra=1), "unknown_key:trace.extra"),
    (trace(_analysis={"hash_ids": [1, [2]]}), "unknown_key:trace._analysis"),
    (trace(requests=[request(_x={"y": []})]), "unknown_key:request._x"),
    (trace(requests=[request(), subagent(zz=0)]), "unknown_key:subagent.zz"),
    (trace(requests=[request(), subagent(requests=[request(hash=1)])]), "unknown_key:request.hash"),
    (trace(requests=[request(type="?")]), "unknown_request_type"),
    (trace(requests=[request(), subagent(subagent_type=None)]), "null:subagent.subagent_type"),
    (trace(requests=[request(), subagent(models=None)]), "null:subagent.models"),
    (trace(requests=[request(stop=None)]), "null:request.stop"),
    (trace(requests=[request(hash_ids=None)]), "null:request.hash_ids"),
    (trace(requests=[request(input_types=None)]), "null:request.input_types"),
    (trace(models=None), "null:trace.models"),
    (without(trace(), "models"), "missing:trace.models"),
    (trace(tool_tokens=None), "null:trace.tool_tokens"),
    (trace(requests=[request(api_time=float("nan"))]), "not_json_number"),
    (trace(requests=[request(api_time=float("-inf"), stop="NaN")]), "not_json_number"),
]


@pytest.mark.parametrize(("value", "kind"), ODD)
def test_accepted_with_a_warning(value: dict[str, Any], kind: str):
    warnings: list[tuple[str, str]] = []
    t = decode(value, warnings)
    assert {k for k, _ in warnings} == {kind}
    assert "f.jsonl line 3" in warnings[0][1]
    assert t.id == "a"
    if value["requests"][0].get("hash_ids"):
        assert ids(t.requests[0]) == value["requests"][0]["hash_ids"]
    if kind == "not_json_number":
        assert t.requests[0].api_time is None
        assert t.requests[0].stop == value["requests"][0]["stop"]


def test_silent_nulls():
    warnings: list[tuple[str, str]] = []
    agent = subagent(status="async_launched", duration_ms=None, total_tokens=None, tool_use_count=None)
    t = decode(
        trace(requests=[request(api_time=None, think_time=None, ttft=None), agent], totals=None), warnings
    )
    assert warnings == []
    assert t.requests[0].api_time is None
    assert t.requests[1].duration_ms is None


def test_oddities_stay_visible():
    t = decode(
        trace(
            requests=[
                request(5.0, api_time=-1.5),
                request(0.0, out=0, hash_ids=[]),
                request(-3.0, api_time=None),
                subagent(1.0, requests=[], duration_ms=-5),
            ]
        )
    )
    assert [e.t for e in t.requests] == [5.0, 0.0, -3.0, 1.0]
    assert [t.requests[0].api_time, t.requests[1].out_tokens, t.requests[2].api_time] == [-1.5, 0, None]
    assert (t.requests[3].requests, t.requests[3].duration_ms) == ((), -5)


# Each: the trace, and what the message must name.
BROKEN: list[tuple[dict[str, Any], list[str]]] = [
    (trace(requests=[request(), request(**{"in": -5})]), ["request 1", "`in`", "-5", ">= 0"]),
    (trace(requests=[request(), request(**{"in": "7"})]), ["request 1", "`in`", '"7"', "int"]),
    (trace(requests=[request(**{"in": 1.5})]), ["request 0", "`in`", "1.5"]),
    (trace(requests=[request(**{"in": None})]), ["request 0", "`in`", "null"]),
    (trace(requests=[request(**{"in": True})]), ["request 0", "`in`", "true"]),
    (trace(requests=[request(**{"in": 2**31})]), ["request 0", "`in`", "2147483648"]),
    (trace(requests=[request(**{"in": 10**400})]), ["request 0", "`in`"]),
    (trace(requests=[request(out=-1)]), ["request 0", "`out`", "-1"]),
    (trace(requests=[request(t=float("nan"))]), ["request 0", "`t`", "null"]),
    (trace(requests=[request(t=1e300)]), ["request 0", "`t`", "1e+300"]),
    (trace(requests=[request(model=None)]), ["request 0", "`model`", "null"]),
    (trace(requests=[request(model="")]), ["request 0", "`model`"]),
    (trace(requests=[without(request(), "out")]), ["request 0", "`out` is missing"]),
    (trace(requests=[without(request(), "type")]), ["request 0", "`type` is missing"]),
    (trace(requests=[request(type="x")]), ["request 0", "`type`", "x"]),
    (trace(requests=[request(type=3)]), ["request 0", "`type`", "3"]),
    (trace(requests=[request(), 5]), ["request 1", "object", "5"]),
    (trace(requests=[request(hash_ids=5)]), ["request 0", "`hash_ids`", "5"]),
    (trace(requests=[request(hash_ids="[1]")]), ["request 0", "`hash_ids`", "[1]"]),
    (trace(requests=[request(hash_ids=[[1]])]), ["request 0", "`hash_ids`", "[[1]]"]),
    (trace(requests=[request(hash_ids=["]"])]), ["request 0", "`hash_ids`"]),
    (trace(requests=[request(hash_ids={"a": 1})]), ["request 0", "`hash_ids`"]),
    (trace(requests=[request(input_types="text")]), ["request 0", "`input_types`", "text"]),
    (trace(requests=[request(input_types=["a", 1])]), ["request 0", "`input_types[1]`"]),
    (trace(requests=[request(api_time="2")]), ["request 0", "`api_time`"]),
    (trace(requests=[request(), subagent(agent_id=None)]), ["request 1", "`agent_id`"]),
    (trace(requests=[request(), subagent(status=None)]), ["request 1", "`status`"]),
    (trace(requests=[request(), without(subagent(), "requests")]), ["request 1", "`requests` is missing"]),
    (
        trace(requests=[request(), subagent(requests=[request(), request(out="x")])]),
        ["request 1", "inner request 1", "`out`", '"x"'],
    ),
    (
        trace(requests=[request(), subagent(requests=[subagent()])]),
        ["request 1", "inner request 0", "`type`", "subagent"],
    ),
    (trace(requests={}), ["`requests`", "{}"]),
    ({**trace(), "requests": None}, ["`requests`", "null"]),
    (without(trace(), "requests"), ["`requests` is missing"]),
    (without(trace(), "hash_id_scope"), ["`hash_id_scope` is missing"]),
    (trace(hash_id_scope="global"), ["hash_id_scope", "global", "local"]),
    (trace(block_size=0), ["`block_size`", "0"]),
    (trace(block_size=None), ["`block_size`", "null"]),
    (trace(models=[1]), ["`models[0]`"]),
    # A broken value beside an accepted oddity: the oddity must not hide it.
    (trace(extra=1, requests=[request(stop=None, out=-2)]), ["request 0", "`out`", "-2"]),
]


@pytest.mark.parametrize(("value", "words"), BROKEN)
def test_broken_traces_are_named(value: dict[str, Any], words: list[str]):
    warnings: list[tuple[str, str]] = []
    with pytest.raises(CorpusError) as error:
        decode(value, warnings)
    message = str(error.value)
    assert message.startswith("f.jsonl line 3: trace 'a'"), message
    for word in words:
        assert word in message, message
    assert warnings == []
    assert len(message) < 600


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "in the middle"),
        (b'{"id":"a"', "in the middle"),
        (b"not json", "not valid JSON"),
        (b'{"id":"a",}', "byte"),
        (dump(trace()) + b"{}", "one trace"),
        (dump(trace()) + b"\n" + dump(trace()), "jsonl"),
        (b"[" + dump(trace()) + b"]", "list"),
        (b"5", "expected"),
        (b'"text"', "expected"),
        (b"null", "expected"),
        (b'{"id":"a","requests":' + b"[" * 100_000, ""),
        (b'{"id":"\xff\xfe"}', "UTF-8"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"\x28\xb5\x2f\xfd\x00", "zstd"),
        (b"PAR1....", "Parquet"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"<!DOCTYPE html>", "HTML"),
    ],
)
def test_what_is_no_trace_at_all(data: bytes, words: str):
    with pytest.raises(CorpusError, match=re.escape("f.jsonl line 3")) as error:
        decode(data)
    assert words in str(error.value)
    with pytest.raises(CorpusError):
        decode_id(data, "f")


def test_malformed_offset_is_the_one_in_the_file():
    data = dump(trace(requests=[request(hash_ids=list(range(500))), request()]))
    at = data.rindex(b'"stop"')
    with pytest.raises(CorpusError, match=f"byte {at}\\b"):
        decode(data[:at] + b"!" + data[at:])


@pytest.mark.parametrize(
    "head",
    [
        b'{"id":"tr-1","models":["x"]',
        b' \n{ "id" : "tr-1" , "models":["x"]',
        b'{"models":["a","b"],"block_size":64,"hash_id_scope":"local","id":"tr-1","requests":[',
        b'{"models":[],"totals":null,"x":-1.5e3,"id":"tr-1"}',
    ],
)
def test_leading_id(head: bytes):
    assert leading_id(head) == "tr-1"


@pytest.mark.parametrize(
    "head",
    [
        b'{"requests":[{"id":"inner"}],"id":"tr-1"}',
        b'{"totals":{"id":"inner"},"id":"tr-1"}',
        b'{"agent_id":"x","models":["id"]',
        b'{"id":"esc\\u0041ped"}',
        b'{"id":5}',
        b'["id"',
        b'{"models":["\\"id\\":\\"x\\""],"id":"tr-1"}',
        b"",
    ],
)
def test_ids_that_need_a_decoder(head: bytes):
    assert leading_id(head) is None


def test_decode_id_wherever_it_stands():
    assert decode_id(dump({"requests": [{"id": "inner"}], "id": "outer"}), "f") == "outer"


def test_ids_of_a_request():
    t = decode(trace(requests=[request(), subagent()]))
    assert request_ids(t, 0).tolist() == [1, 2, 3]
    assert request_ids(t, 1, 1).tolist() == [7, 8, 9]
    with pytest.raises(TypeError):
        request_ids(t, 1)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def mutated_traces(draw: st.DrawFn) -> bytes:
    """A good trace with values exchanged, keys removed, or bytes damaged."""
    value = trace(requests=[request(), subagent(), request(20.0)])
    objects = [value, *value["requests"], *value["requests"][1]["requests"]]
    for _ in range(draw(st.integers(1, 3))):
        target = draw(st.sampled_from(objects))
        key = draw(st.sampled_from(sorted(target) or ["id"]))
        if draw(st.booleans()):
            target[key] = draw(json_values)
        else:
            target.pop(key, None)
    data = json.dumps(value).encode()
    if draw(st.booleans()):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(max_size=6)) + data[at + draw(st.integers(0, 4)) :]
    return data


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mutated_traces() | st.binary(max_size=40) | json_values.map(lambda v: json.dumps(v).encode()))
@example(b'{"requests":[{"hash_ids":[')
@example(b'{"id":"\\ud800"}')
@example(b'{"\\ud800":1}')
@example(b'{"id":"a","x":NaN')
@example(dump(trace()).replace(b"[1,2,3]", b"[\x801,2,3]"))
@example(dump(trace()).replace(b"[1,2,3]", b"[1,2,3]]"))
@example(dump(trace()).replace(b"[1,2,3]", b'["]",2,3]'))
def test_nothing_but_a_corpus_error_gets_out(data: bytes):
    try:
        t = decode(data)
        for i, entry in enumerate(t.requests):
            if isinstance(entry, Subagent):
                for j in range(len(entry.requests)):
                    request_ids(t, i, j)
            else:
                request_ids(t, i)
    except CorpusError as error:
        assert str(error).startswith("f.jsonl line 3")
    else:
        assert json.loads(data)["id"] == t.id  # no text is taken for a trace that is not JSON


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_cutting_out_ids_changes_nothing(data: st.DataObject):
    """The fast way gives what a plain JSON decoder gives, whatever stands in the strings."""
    words = st.sampled_from(['"hash_ids":[', "hash_ids", '"', "]", "[1,2]", "\\", "0", "\\\\", "NaN", "é"])
    text = st.lists(words, max_size=4).map("".join)
    entries = st.builds(
        lambda stop, kinds, ids: request(stop=stop, input_types=kinds, hash_ids=ids),
        text,
        st.lists(text, max_size=2),
        st.lists(st.integers(0, 2**31 - 1), max_size=5),
    )
    value = trace(requests=data.draw(st.lists(entries, min_size=1, max_size=4)))
    got = decode(json.dumps(value, indent=data.draw(st.sampled_from([None, 1])), ensure_ascii=False).encode())
    for entry, want in zip(got.requests, value["requests"], strict=True):
        assert (entry.stop, list(entry.input_types), ids(entry)) == (
            want["stop"],
            want["input_types"],
            want["hash_ids"],
        )

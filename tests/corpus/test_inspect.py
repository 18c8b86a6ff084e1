"""Statistics of a corpus: against hand-made traces and the reference numbers of the recorded ones."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.trace_files import Json, request, subagent, trace, write_lines

from agentx_engine.corpus import open_corpus
from agentx_engine.corpus.inspect import CorpusStats, _Seen, inspect_corpus, render
from agentx_engine.errors import CorpusError


def stats_of(tmp_path: Path, traces: list[Json]) -> CorpusStats:
    return inspect_corpus(open_corpus(write_lines(tmp_path / "x.jsonl", traces)))


TWO = [
    trace(
        "a",
        requests=[
            request(0.0, hash_ids=[1, 2, 3], **{"in": 200}, out=10, api_time=2.0),
            subagent(
                2.5,
                [
                    request(2.5, hash_ids=[9, 8], **{"in": 130}, out=0, model="small"),
                    request(6.0, hash_ids=[9, 8, 7], **{"in": 192}, out=4, model="small", type="s"),
                ],
            ),
            subagent(3.4, [request(3.4, hash_ids=[9, 6], **{"in": 128})], agent_id="2"),
            subagent(3.6, [], agent_id="3", status="async_launched", duration_ms=None),
            request(10.0, hash_ids=[1, 2, 4, 5], **{"in": 256}, out=20, api_time=None),
            request(11.0, hash_ids=[1, 2, 4, 5], **{"in": 256}, api_time=-1.0),
        ],
    ),
    trace("b", requests=[request(5.0, hash_ids=[]), request(1.0, **{"in": 0}, hash_ids=[1])], block_size=16),
    trace("c", requests=[]),
]


def test_counts(tmp_path: Path):
    s = stats_of(tmp_path, TWO)
    assert (s.traces, s.requests, s.root_requests, s.subagent_requests) == (3, 8, 5, 3)
    assert (s.subagents, s.async_subagents, s.traces_with_subagents) == (3, 1, 1)
    assert (s.input_tokens, s.output_tokens) == (
        200 + 130 + 192 + 128 + 256 + 256 + 192,
        10 + 4 + 10 + 20 + 30,
    )
    assert (s.models, s.types) == ({"m": 6, "small": 2}, {"n": 7, "s": 1})
    assert s.block_sizes == {"64": 2, "16": 1}
    assert s.bytes == (tmp_path / "x.jsonl").stat().st_size - 3  # without line ends


def test_prefix_reuse_runs_in_order_of_start(tmp_path: Path):
    row = stats_of(tmp_path, TWO).per_trace[0]
    # 1,2,3 | 9,8 | 9,6 | 9,8,7 | 1,2,4,5 | 1,2,4,5
    assert (row.blocks, row.distinct_blocks, row.hit_blocks) == (18, 9, 0 + 0 + 1 + 2 + 2 + 4)
    assert row.prefix_hit_rate == 9 / 18
    assert stats_of(tmp_path, TWO).prefix_hit_rate == 9 / 19


def test_distributions(tmp_path: Path):
    d = stats_of(tmp_path, TWO).distributions
    assert (d["in_tokens"].count, d["in_tokens_root"].count, d["in_tokens_subagent"].count) == (8, 5, 3)
    sizes = [200, 256, 256, 192, 0, 130, 192, 128]
    for name, q in (("min", 0), ("p50", 50), ("p90", 90), ("p99", 99), ("max", 100)):
        assert getattr(d["in_tokens"], name) == pytest.approx(np.percentile(sizes, q))
    assert d["in_tokens"].mean == pytest.approx(np.mean(sizes))
    assert (d["subagents"].max, d["fanout"].max, d["subagent_turns"].count) == (3, 2, 3)
    assert (d["root_turns"].min, d["root_turns"].max) == (0, 3)
    # Root gaps: 0+2 -> 10, and trace b's 5+2 -> 1; the request without a duration gives none.
    assert (d["gap_s"].count, d["gap_s"].min, d["gap_s"].max) == (2, -6.0, 8.0)
    assert (d["new_tokens"].max, d["new_tokens"].min) == (200, 0)


def test_oddities(tmp_path: Path):
    assert stats_of(tmp_path, TWO).oddities == {
        "out is 0": 1,
        "in is 0": 1,
        "no api_time": 1,
        "negative api_time": 1,
        "no hash_ids": 1,
        "same hash_ids as the request before": 1,
        "more hash_ids than whole blocks": 1,
        "starts before the request listed before it": 1,
        "subagent without requests": 1,
        "trace without requests": 1,
        "trace with whole-second root times": 2,
    }


def test_loader_warnings_and_short_lists_are_oddities_too(tmp_path: Path):
    s = stats_of(tmp_path, [trace(x=1, requests=[request(0.5, **{"in": 640}, type="?")])])
    assert s.oddities == {
        "fewer hash_ids than whole blocks": 1,
        'type "?"': 1,
        "loader:unknown_key:trace.x": 1,
        "loader:unknown_request_type": 1,
    }


def test_selection_and_progress(tmp_path: Path):
    corpus = open_corpus(write_lines(tmp_path / "x.jsonl", TWO)).select(entries=2)
    seen: list[int] = []
    s = inspect_corpus(corpus, seen.append)
    assert (s.traces, s.dropped, seen) == (2, {"entries": 1}, [0, 1])
    assert "1 left out (entries)" in render(s)


@pytest.mark.parametrize("ids", [["1"], [1.5], [-1], [2**31], [1, None]])
def test_a_broken_id_list_is_named(tmp_path: Path, ids: list[object]):
    broken = [request(), subagent(3.0, [request(3.0), request(4.0, hash_ids=ids)])]
    with pytest.raises(CorpusError, match=r"line 1: trace 'a', request 1, inner request 1: field `hash_ids`"):
        stats_of(tmp_path, [trace(requests=broken)])


def test_json_and_text(tmp_path: Path):
    s = stats_of(tmp_path, TWO)
    assert msgspec.json.decode(msgspec.json.encode(s), type=CorpusStats) == s
    text = render(s)
    assert "8 (5 root, 3 in subagents)" in text
    assert "47.37 % of 19 blocks" in text
    assert "out is 0" in text
    assert max(map(len, text.splitlines())) <= 100 or len(s.path) > 100
    assert text.endswith("\n")


def test_an_empty_trace_has_no_numbers(tmp_path: Path):
    s = stats_of(tmp_path, [trace(requests=[])])
    assert s.prefix_hit_rate is None
    assert s.distributions["in_tokens"].p50 is None
    assert "prefix reuse   -" in render(s)


small_or_huge = st.integers(0, 40) | st.integers(2**26 - 2, 2**26 + 2) | st.integers(2**31 - 3, 2**31 - 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(small_or_huge, max_size=8), max_size=8))
def test_seen_ids_against_a_set(lists: list[list[int]]):
    seen, model = _Seen(), set[int]()
    for ids in lists:
        array = np.array(ids, dtype=np.int32)
        leading = next((i for i, x in enumerate(ids) if x not in model), len(ids))
        assert seen.visit(array) == leading
        model |= set(ids)
    assert len(seen) == len(model)


def test_recorded_traces_against_the_reference(shared: Path):
    reference = json.loads((shared / "traces" / "STATS.json.txt").read_text())["traces"]
    s = inspect_corpus(open_corpus(shared / "traces"))
    assert (s.traces, s.requests, s.bytes) == (26, reference["requests"], reference["bytes"])
    assert (s.input_tokens, s.output_tokens) == (reference["total_in"], reference["total_out"])
    assert s.subagents == reference["subagents"]
    assert s.prefix_hit_rate == pytest.approx(reference["prefix_hit_rate_pooled"], abs=1e-6)
    rows = {f"{row.id}.json": row for row in s.per_trace}
    assert len(rows) == len(reference["per_trace"])
    for want in reference["per_trace"]:
        row = rows[want["file"]]
        same = ("bytes", "requests", "root_requests", "subagent_requests", "subagents", "async_subagents")
        for name in (*same, "first_in", "max_in", "total_in", "total_out", "blocks", "distinct_blocks"):
            assert getattr(row, name) == want[name], (row.id, name)
        assert row.max_fanout == want["max_fanout_1s"]
        assert row.prefix_hit_rate == pytest.approx(want["prefix_hit_rate"], abs=1e-6)
        if not want["missing_api_time"]:  # the reference estimates the durations that are not recorded
            assert row.duration_s == pytest.approx(want["duration_s"], abs=0.006)

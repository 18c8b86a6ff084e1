"""Synthetic sessions: the invariants of the format, whatever the seed and the parameters."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentx_engine.core.ids import parse_ids
from agentx_engine.corpus import Subagent, Trace, TraceRequest, open_corpus
from agentx_engine.corpus.inspect import inspect_corpus
from agentx_engine.corpus.shape import PRESETS, SMALL, LogNormal, Shape
from agentx_engine.corpus.synth import (
    MAX_SEED,
    SynthCounts,
    default_corpus,
    describe,
    sessions_json,
    synthesize,
)
from agentx_engine.errors import CorpusError


def lines(shape: Shape, sessions: int, seed: int) -> list[bytes]:
    return list(sessions_json(shape, sessions, seed, SynthCounts()))


def traces(path: Path) -> list[Trace]:
    shown: list[str] = []
    corpus = open_corpus(path, on_warning=shown.append)
    found = [corpus.trace(i) for i in range(len(corpus))]
    assert shown == []
    return found


def streams(trace: Trace) -> list[list[TraceRequest]]:
    root = [e for e in trace.requests if isinstance(e, TraceRequest)]
    return [root, *(list(e.requests) for e in trace.requests if isinstance(e, Subagent))]


def check_session(trace: Trace, shape: Shape) -> None:
    """The invariants of a Weka trace (generator specification, section 5)."""
    at: dict[int, tuple[int, int]] = {}
    owners: list[set[int]] = []
    for stream in streams(trace):
        owner: set[int] = set()
        for before, after in pairwise(stream):
            assert before.t + before.api_time <= after.t + 1e-9
        for r in stream:
            ids = parse_ids(r.hash_ids).tolist()
            assert len(ids) == r.in_tokens // shape.block_size
            if shape.aligned:
                assert r.in_tokens % shape.block_size == 0
            assert r.in_tokens > 0
            assert r.out_tokens >= 1
            assert r.api_time > 0
            for position, (before_id, this) in enumerate(zip([-1, *ids], ids, strict=False)):
                assert at.setdefault(this, (position, before_id)) == (position, before_id)
            owner |= set(ids)
        owners.append(owner)
    if not shape.p_fork:
        assert all(owners[0].isdisjoint(child) for child in owners[1:])
    assert sorted(at) == list(range(len(at)))
    end: dict[str, float] = {}
    last_root: TraceRequest | None = None
    for entry in trace.requests:
        if isinstance(entry, Subagent):
            assert last_root is not None
            assert last_root.stop == "tool_use"
            assert entry.t >= last_root.t + last_root.api_time
            assert entry.requests[0].t == entry.t
            if entry.status == "completed":
                finish = max(r.t + r.api_time for r in entry.requests)
                assert entry.t + entry.duration_ms / 1000 == pytest.approx(finish)
                end[entry.agent_id] = finish
        else:
            assert all(entry.t >= finish for finish in end.values())
            last_root = entry


def test_small_sessions_keep_the_invariants(tmp_path: Path):
    for seed in range(3):
        counts = synthesize(None, seed, tmp_path / f"{seed}.jsonl")
        found = traces(tmp_path / f"{seed}.jsonl")
        assert len(found) == SMALL.sessions == counts.sessions
        for t in found:
            check_session(t, SMALL)


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, MAX_SEED),
    st.fixed_dictionaries(
        {
            "p_helper": st.sampled_from([0.0, 1.0]),
            "p_resume": st.sampled_from([0.0, 1.0]),
            "p_rebuild": st.sampled_from([0.0, 0.5]),
            "p_clear": st.sampled_from([0.0, 0.3]),
            "p_tail": st.sampled_from([0.0, 1.0]),
            "p_children": st.sampled_from([0.0, 1.0]),
            "p_async": st.sampled_from([0.0, 1.0]),
            "p_fork": st.sampled_from([0.0, 0.5]),
            "block_size": st.sampled_from([16, 64]),
            "aligned": st.booleans(),
            "turns": st.sampled_from([LogNormal(1, 0, 1, 1), LogNormal(12, 0.5, 3, 30)]),
        }
    ),
)
def test_invariants_for_other_parameters(tmp_path_factory: pytest.TempPathFactory, seed: int, changes):
    shape = SMALL._replace(**changes)
    path = tmp_path_factory.mktemp("synth") / "x.jsonl"
    synthesize(3, seed, path, like=shape)
    for t in traces(path):
        check_session(t, shape)


def test_same_seed_same_bytes():
    assert lines(SMALL, 5, 7) == lines(SMALL, 5, 7)
    assert lines(SMALL, 5, 7) != lines(SMALL, 5, 8)


def test_sessions_do_not_depend_on_those_before():
    """A session's draws come from its own stream: only the corpus-wide plan is shared."""
    shape = SMALL._replace(p_children=0.0, turns=LogNormal(5, 0.0, 5, 5), growth_turns_correlation=0.0)
    few, many = lines(shape, 2, 3), lines(shape, 6, 3)
    assert many[:2] == few


def test_bytes_are_those_of_every_other_machine():
    """Written down once: a change here changes every recorded result that used the built-in corpus."""
    import hashlib

    assert hashlib.sha256(b"".join(lines(SMALL, 16, 0))).hexdigest() == DIGEST_OF_SEED_0


DIGEST_OF_SEED_0 = "83508bfb093560a61e0788411dc3b73b113439251d4c44e1c6792fff4ce17a51"


def test_counts_are_those_of_the_file(tmp_path: Path):
    counts = synthesize(6, 1, tmp_path / "x.jsonl")
    stats = inspect_corpus(open_corpus(tmp_path / "x.jsonl"))
    assert counts == SynthCounts(
        sessions=6,
        requests=stats.requests,
        root_requests=stats.root_requests,
        subagents=stats.subagents,
        input_tokens=stats.input_tokens,
        output_tokens=stats.output_tokens,
        bytes=(tmp_path / "x.jsonl").stat().st_size,
    )
    assert f"{stats.requests} requests" in describe(counts)


def test_the_small_preset_is_lively(tmp_path: Path):
    """What a one-minute demonstration needs: small prompts, short pauses, subagents, resets, tails."""
    synthesize(100, 5, tmp_path / "x.jsonl")
    corpus = open_corpus(tmp_path / "x.jsonl")
    stats = inspect_corpus(corpus)
    d = stats.distributions
    assert 4_000 < d["in_tokens_root"].p50 < 14_000
    assert d["in_tokens"].max < 24_000
    assert (d["out_tokens"].min, d["out_tokens"].max) >= (20, 100)
    assert d["out_tokens"].max <= 200
    assert 0.1 < d["gap_s"].p50 < 1
    assert d["duration_s"].p90 < 40
    assert 0.4 < stats.traces_with_subagents / stats.traces < 0.6
    assert d["fanout"].max >= 3
    assert stats.async_subagents > 0
    assert 0.7 < stats.prefix_hit_rate < 0.95
    resets = tails = 0
    for i in range(len(corpus)):
        for before, after in pairwise(streams(corpus.trace(i))[0]):
            a, b = parse_ids(before.hash_ids), parse_ids(after.hash_ids)
            same = min(len(a), len(b))
            kept = same if (a[:same] == b[:same]).all() else int((a[:same] != b[:same]).argmax())
            resets += kept < 0.9 * len(a)
            tails += 0.9 * len(a) <= kept < len(a)
    assert resets > 25
    assert tails > 10


def test_default_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = default_corpus()
    assert path.parent == tmp_path / "agentx-engine" / "corpus"
    assert path.read_bytes() == b"".join(lines(SMALL, SMALL.sessions, 0))
    stamp = path.stat().st_mtime_ns, path.stat().st_ino
    assert default_corpus() == path
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == stamp
    path.write_bytes(b"damaged")
    assert default_corpus().read_bytes() != b"damaged"
    assert list(path.parent.iterdir()) == [path]
    assert default_corpus(tmp_path / "elsewhere").parent == tmp_path / "elsewhere"
    assert set(PRESETS) == {"small"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"like": "large"}, "small"),
        ({"sessions": 0}, "1 to 1,000,000"),
        ({"seed": -1}, "from 0"),
        ({"name": "x.json"}, r"\.jsonl"),
        ({"name": "missing/x.jsonl"}, "No such file"),
    ],
)
def test_mistakes(tmp_path: Path, arguments: dict[str, object], words: str):
    arguments = {"sessions": 1, "seed": 0, "name": "x.jsonl", **arguments}
    out = tmp_path / str(arguments.pop("name"))
    with pytest.raises(CorpusError, match=words):
        synthesize(out=out, **arguments)
    assert list(tmp_path.iterdir()) == []


def test_an_old_file_stays_until_the_new_one_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "x.jsonl"
    path.write_text("old")

    def broken(*args: object):
        yield b"half"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("agentx_engine.corpus.synth.sessions_json", broken)
    with pytest.raises(CorpusError, match="No space left"):
        synthesize(2, 0, path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("seed", [-1, MAX_SEED + 1])
def test_seeds_out_of_range_are_refused(tmp_path: Path, seed: int) -> None:
    with pytest.raises(CorpusError, match="whole numbers from 0"):
        synthesize(1, seed, tmp_path / "x.jsonl")

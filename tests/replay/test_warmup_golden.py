"""The live engine against the official lane files: which primers and first requests it sends, and when."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.replay_checks import always, never_idle_longer
from support.replays import MS, SECOND, Played, replay

from agentx_engine.corpus import open_corpus
from agentx_engine.metrics.record import RequestRecord
from agentx_engine.replay.corpus_trees import CorpusTrees
from agentx_engine.replay.simserver import Answer, LinearModel
from agentx_engine.transport.base import Outcome, Request
from agentx_engine.tree import TreeOptions
from agentx_engine.tree.model import ConversationTree


class AtOnce:
    """A server that takes a millisecond."""

    def answer(self, request: Request, number: int) -> Answer:
        return Answer(MS, 0, 1)


class Kept(CorpusTrees):
    def __init__(self, traces: Path, *, harness: bool) -> None:
        corpus = open_corpus(traces, compat_harness=harness)
        super().__init__(corpus, TreeOptions.harness() if harness else TreeOptions())
        self._kept: dict[int, ConversationTree] = {}

    def load(self, index: int) -> ConversationTree:
        if index not in self._kept:
            self._kept[index] = super().load(index)
        return self._kept[index]


def play(source: Kept, want: dict[str, Any], **options: Any) -> Played:
    lanes = want["concurrency"]
    return replay(
        source,
        model=AtOnce(),
        concurrency=lanes,
        tree_count=lanes,
        start_ratios=tuple(want["ratios"]),
        seed=want["seed"],
        **options,
    )


def compare(source: Kept, played: Played, want: dict[str, Any]) -> None:
    trees = {source.trace_id(index): source.load(index) for index in range(len(source))}
    warmup = played.report.warmup
    assert warmup is not None and played.report.end_reason == "tree_count"
    primers: dict[int, list[tuple[str, int, float]]] = {}
    firsts: dict[tuple[int, str], tuple[int, int]] = {}
    for record in sorted(played.seen.records, key=lambda r: r.identity.sequence):
        identity, due = record.identity, record.result.stamps.due
        if identity.phase == "warmup":
            at_ms = round((due - warmup.started_ns) / 1e6, 6)
            primers.setdefault(identity.lane, []).append((identity.conversation_id, identity.turn, at_ms))
            assert identity.max_tokens == 1
        else:
            place = (identity.lane, identity.conversation_id)
            firsts.setdefault(place, (identity.turn, due - played.start_ns))
    compared = 0
    for lane in want["lanes"]:
        number, tree = lane["lane"], trees[lane["trace"]]
        names = {conversation.id: conversation for conversation in tree.conversations}
        expected = sorted((p["id"], p["turn"], p["send_at_ms"]) for p in lane["primers"])
        assert sorted(primers.get(number, [])) == expected
        done = dict(lane["done"])
        for stream in lane["streams"]:
            turn, due_ns = firsts[number, stream["id"]]
            assert turn == stream["next"]
            at_ms = stream["release_not_before_ms"] if stream["gated"] else stream["start_ms"]
            assert due_ns / 1e6 >= at_ms - 1e-6
            open_before = [
                p
                for p in names[stream["id"]].turns[turn].predecessors
                if p.turn >= done.get(tree.conversations[p.conversation].id, 0)
            ]
            if not stream["gated"] and not open_before:
                assert round(due_ns / 1e6, 6) == at_ms
                compared += 1
    assert compared >= want["concurrency"] // 2
    assert warmup.primers == want["primer_count"]


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("ratios", ["0.25-0.75", "0-1"])
@pytest.mark.parametrize("harness", [False, True], ids=["corrected", "harness"])
def test_primers_and_first_requests(shared: Path, lanes: int, ratios: str, harness: bool) -> None:
    folder = shared / "golden" if harness else shared / "golden" / "corrected"
    want = json.loads((folder / f"lanes_dev_c{lanes}_{ratios}.json").read_text())
    source = Kept(shared / "traces", harness=harness)
    played = play(source, want, child_pause=not harness)
    compare(source, played, want)
    counts = played.report.counts
    assert (counts.pauses_dropped > 0) == (harness and lanes == 16)


def test_worked_example_of_a_session_that_is_resumed_by_a_hidden_agent(shared: Path) -> None:
    """agentx-v1, 12.3: lane 14 has no root left; it waits for the cap of 300 s instead of 44 minutes."""
    want = json.loads((shared / "golden" / "corrected" / "lanes_dev_c16_0.25-0.75.json").read_text())
    source = Kept(shared / "traces", harness=False)
    played = play(source, want, tree_idle_cap_ns=300 * SECOND)
    (lane,) = (lane for lane in want["lanes"] if lane["lane"] == 14)
    assert lane["trace"] == "trace_0326" and lane["slot_taken_by_lane"] == "rootless"
    assert lane["streams"][0]["start_ms"] > 1000 * 300
    assert played.due("trace_0326::fa:000", lane=14) == [300 * SECOND, 312_480 * MS + MS]
    assert played.warmed("trace_0326::fa:000", lane=14) == []
    assert played.due("trace_0326", lane=14) == []


def test_worked_example_of_a_gate_at_t_star(shared: Path) -> None:
    """agentx-v1, 12.2: lane 11 plays trace_0277; its root waits for agent 4, primers at 0 and 2.909 s."""
    want = json.loads((shared / "golden" / "corrected" / "lanes_dev_c16_0.25-0.75.json").read_text())
    source = Kept(shared / "traces", harness=False)
    played = play(source, want)
    child = "trace_0277::sa:agent_004"
    assert played.warmed("trace_0277", lane=11) == [(6, 0)]
    ((turn, at_ns),) = played.warmed(child, lane=11)
    assert turn == 0 and abs(at_ns - 2909 * MS) < MS
    last = played.seen.of(child, lane=11)[-1].result.plan_end_ns
    root = played.seen.of("trace_0277", lane=11, phase="profiling")[0]
    assert root.identity.turn == 7 and root.result.stamps.due >= last


def test_worked_example_of_a_split_by_rounded_clocks(shared: Path) -> None:
    """agentx-v1, 12.4: to the harness 10 turns of the root are a child, started at issue of turn 10."""
    for harness in (True, False):
        source = Kept(shared / "traces", harness=harness)
        index = next(k for k in range(len(source)) if source.trace_id(k) == "trace_0038")
        tree = source.load(index)

        class One:
            def __len__(self) -> int:
                return 1

            def trace_id(self, _: int) -> str:
                return "trace_0038"

            def load(self, _: int, tree: ConversationTree = tree) -> ConversationTree:
                return tree

        played = replay(One(), model=AtOnce(), tree_count=1, child_pause=not harness)
        root = played.due("trace_0038")
        hidden = played.due("trace_0038::fa:000")
        if harness:
            assert (len(root), len(hidden)) == (11, 10)
            assert hidden[0] == root[10] + 6 * SECOND
        else:
            assert (len(root), len(hidden)) == (21, 0)
            assert root[11] == root[10] + MS


AGENTX: dict[str, Any] = {
    "concurrency": 64,
    "start_ratios": (0.25, 0.75),
    "warmup_requests_per_lane": 10,
    "system_idle_cap_ns": 10 * SECOND,
    "tree_idle_cap_ns": 300 * SECOND,
    "duration_ns": 3600 * SECOND,
    "release_dead": True,
}


def mixed(request: Request, number: int) -> Outcome | None:
    """Failures of all kinds, none of them in the warmup."""
    kinds = (Outcome.HTTP_STATUS, Outcome.TRUNCATED, Outcome.CONTEXT_OVERFLOW, Outcome.RESET)
    return kinds[number // 37 % 4] if number % 37 == 36 and request.max_tokens > 1 else None


def hour(source: Kept) -> Played:
    return replay(source, model=LinearModel(fault=mixed), **AGENTX)


def digest(played: Played) -> str:
    return f"{len(played.seen.events)} {hashlib.sha256(repr(played.seen.events).encode()).hexdigest()}"


def test_an_hour_of_64_lanes(shared: Path) -> None:
    """With warmup and caps: every rule holds, and another process gives the same events."""
    source = Kept(shared / "traces", harness=False)
    played = hour(source)
    always(played, [source.load(index) for index in range(len(source))], AGENTX)
    report, warmup = played.report, played.report.warmup
    assert warmup is not None and warmup.counts.started == warmup.primers + 640
    assert report.end_reason == "duration" and report.counts.barriers_broken == 0
    assert report.counts.tree_shifts > 0 and report.counts.started > 3000
    own = [r for r in played.seen.records if r.identity.phase == "profiling"]
    never_idle_longer(own, report.started_ns, 10 * SECOND, 0)
    by_tree: dict[str, list[RequestRecord]] = {}
    for record in own:
        by_tree.setdefault(record.identity.root_correlation_id, []).append(record)
    for _, what, tree, at_ns, _ in played.seen.trees:
        if what == "start":
            mine = by_tree.get(tree.root_correlation_id, [])
            never_idle_longer(mine, max(at_ns, report.started_ns), 300 * SECOND, 0)
    code = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "import importlib.util\n"
        "from pathlib import Path\n"
        f"spec = importlib.util.spec_from_file_location('t', {str(Path(__file__))!r})\n"
        "t = importlib.util.module_from_spec(spec); spec.loader.exec_module(t)\n"
        f"print(t.digest(t.hour(t.Kept(Path({str(shared / 'traces')!r}), harness=False))))\n"
    )
    other = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=Path(__file__).resolve().parents[2],
        env=os.environ | {"PYTHONHASHSEED": "271828"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.strip() == digest(played)

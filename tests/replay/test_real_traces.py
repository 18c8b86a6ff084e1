"""Recorded sessions under simulated time, and the same under another hash seed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from support.replays import MS, SECOND, Played, replay

from agentx_engine.corpus import open_corpus
from agentx_engine.replay.corpus_trees import CorpusTrees
from agentx_engine.replay.simserver import LinearModel
from agentx_engine.transport.base import Outcome, Request

ROOT = Path(__file__).resolve().parents[2]


def mixed(request: Request, number: int) -> Outcome | None:
    kinds = (Outcome.HTTP_STATUS, Outcome.TRUNCATED, Outcome.CONTEXT_OVERFLOW, Outcome.RESET)
    return kinds[number // 37 % 4] if number % 37 == 36 else None


def play(folder: Path, **options: int) -> Played:
    return replay(CorpusTrees(open_corpus(folder)), model=LinearModel(fault=mixed), **options)


def test_every_trace_is_played_to_its_end(shared: Path) -> None:
    source = CorpusTrees(open_corpus(shared / "traces"))
    played = replay(source, concurrency=8, tree_count=len(source))
    assert played.report.end_reason == "tree_count"
    assert played.report.counts.barriers_broken == 0
    sent = Counter(r.identity.trace_id for r in played.seen.records)
    for index in range(len(source)):
        tree = source.load(index)
        assert sent[tree.trace_id] == tree.requests
    first = {
        r.identity.lane: r.identity.trace_id
        for r in played.seen.records
        if r.result.stamps.due == played.start_ns
    }
    assert [first[lane] for lane in range(8)] == [source.trace_id(k) for k in range(8)]


def test_worked_example_of_subagents(shared: Path) -> None:
    """agentx-v1, section 12.2, the right reading: trace_0277."""
    corpus = open_corpus(shared / "traces")
    index = list(corpus.ids).index("trace_0277")

    class One(CorpusTrees):
        def __len__(self) -> int:
            return 1

        def load(self, _: int):  # type: ignore[no-untyped-def]
            return super().load(index)

    played = replay(One(corpus), tree_count=1)
    root = played.seen.of("trace_0277")
    x = root[0].result.plan_end_ns
    children = sorted({r.identity.conversation_id for r in played.seen.records if r.identity.depth})
    firsts = [played.seen.of(name)[0].result.stamps.due - x for name in children]
    pause = 19_461 * MS - 18_780 * MS  # kept: the recorded pause before the branch starts
    tolerance = 2 * MS
    early = sorted(firsts)[:3]
    assert all(
        abs(found - want) <= tolerance
        for found, want in zip(early, (pause, pause + 13 * MS, pause + 13 * MS), strict=True)
    )
    gated = [played.seen.of(name)[-1].result.plan_end_ns for name in children][:3]
    assert abs(root[1].result.stamps.due - max(x + 209_220 * MS, *gated)) <= tolerance * 5


def digest(played: Played) -> str:
    return hashlib.sha256(repr(played.seen.events).encode()).hexdigest()


def test_the_same_in_every_process(shared: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from pathlib import Path\n"
        "import importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('t', {str(Path(__file__))!r})\n"
        "t = importlib.util.module_from_spec(spec); spec.loader.exec_module(t)\n"
        f"folder = Path({str(shared / 'traces')!r})\n"
        "p = t.play(folder, concurrency=6, duration_ns=600 * t.SECOND, grace_ns=t.SECOND)\n"
        "print(len(p.seen.events), t.digest(p))\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-P", "-c", code],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "271828")
    }
    played = play(shared / "traces", concurrency=6, duration_ns=600 * SECOND, grace_ns=SECOND)
    assert outputs == {f"{len(played.seen.events)} {digest(played)}\n"}
    assert len(played.seen.events) > 100

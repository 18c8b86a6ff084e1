"""The same scheduler on real loops, with a thread for loading, against a transport that answers at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from support.replays import MS, SECOND, KeepAll
from support.trees import ListTrees, TreeMaker, chain, make_turn

from agentx_engine.replay.engine import Replay
from agentx_engine.replay.options import ReplayOptions, ReplayReport
from agentx_engine.replay.realclock import LoopClock
from agentx_engine.replay.simserver import LinearModel, PlannedPrompts, SimulatedTransport
from agentx_engine.tree.model import ConversationTree


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Any:
    loop = request.param()
    yield loop.run_until_complete
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def corpus() -> tuple[ConversationTree, ...]:
    maker = TreeMaker("a").root(*chain(4, delay_ns=3 * MS, out=2))
    maker.branch(0, [(0, chain(2, out=1)), (2 * MS, chain(1, out=1))], join_turn=2)
    maker.hold((1, 0), (0, 0))
    return maker.tree(), TreeMaker("b").root(*chain(6, out=2)).tree()


async def play(
    trees: ListTrees, before: Callable[[Replay], None] | None = None, **options: Any
) -> tuple[ReplayReport, KeepAll]:
    clock = LoopClock()
    seen = KeepAll(clock)  # type: ignore[arg-type]
    replay = Replay(
        clock=clock,
        transport=SimulatedTransport(clock, LinearModel(2 * MS, 0, MS)),
        trees=trees,
        prompts=PlannedPrompts(),
        recorder=seen,
        options=ReplayOptions(**options),
    )
    if before is not None:
        before(replay)
    report = await replay.run()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not others
    return report, seen


def test_whole_trees(run: Any) -> None:
    trees = corpus()
    report, seen = run(play(ListTrees(*trees), concurrency=3, tree_count=7))
    assert report.end_reason == "tree_count"
    assert len(seen.records) == 4 * trees[0].requests + 3 * trees[1].requests
    for record in seen.records:
        stamps = record.result.stamps
        assert stamps.first_sent is not None and stamps.first_sent >= stamps.due
        if record.identity.turn and record.identity.trace_id == "b":
            before = seen.of("b", lane=record.identity.lane, play=record.identity.play)[
                record.identity.turn - 1
            ]
            assert stamps.due == before.result.plan_end_ns


def test_duration_and_request_count(run: Any) -> None:
    report, seen = run(play(ListTrees(*corpus()), concurrency=2, duration_ns=80 * MS, grace_ns=SECOND))
    assert report.end_reason == "duration"
    assert report.stopped_ns == report.started_ns + 80 * MS
    assert all(r.result.stamps.due < report.stopped_ns and r.result.outcome.ok for r in seen.records)
    report, seen = run(play(ListTrees(*corpus()), concurrency=2, request_count=9))
    assert (report.end_reason, len(seen.records)) == ("request_count", 9)


def test_stop_and_abort(run: Any) -> None:
    for name in ("stop", "abort"):

        def before(replay: Replay, name: str = name) -> None:
            if replay.counters.finished < 3:
                asyncio.get_running_loop().call_later(0.002, before, replay)
            else:
                getattr(replay, name)()

        report, seen = run(play(ListTrees(*corpus()), before, concurrency=2))
        assert report.end_reason == {"stop": "stopped", "abort": "aborted"}[name]
        assert len(seen.records) + len(seen.withdrawn_) == len(seen.started_) > 2


def test_trees_are_loaded_in_another_thread(run: Any) -> None:
    threads: set[int] = set()

    class Watched(ListTrees):
        def load(self, index: int) -> ConversationTree:
            threads.add(threading.get_ident())
            return super().load(index)

    run(play(Watched(*corpus()), concurrency=1, tree_count=3))
    assert threads and threading.get_ident() not in threads


def test_cancelling_the_run_leaves_no_task(run: Any) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(play(ListTrees(*corpus()), concurrency=3))
        await asyncio.sleep(0.08)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(5):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main())


def test_warmup_and_idle_caps(run: Any) -> None:
    turns = [make_turn(k, start_ns=k * SECOND, delay_ns=20 * SECOND, out=2) for k in range(8)]
    trees = ListTrees(TreeMaker("a").root(*turns).tree(), *corpus())
    report, seen = run(
        play(
            trees,
            concurrency=3,
            tree_count=4,
            start_ratios=(0.5, 0.5),
            primer_lead_cap_ns=20 * MS,
            warmup_requests_per_lane=2,
            system_idle_cap_ns=80 * MS,
            arm_lead_ns=10 * MS,
        )
    )
    assert report.end_reason == "tree_count" and report.warmup is not None
    assert report.warmup.extra_requests == [2, 2, 2] and report.warmup.extra_missing == 0
    assert report.warmup.ended_ns is not None and report.warmup.ended_ns < report.started_ns
    assert report.counts.system_shifts >= 1
    first = seen.of("a", phase="profiling")[0].result
    before = max(r.result.plan_end_ns for r in seen.records if r.result.plan_end_ns < first.stamps.due)
    assert first.stamps.first_sent is not None and first.stamps.first_sent >= first.stamps.due >= before
    followers = seen.of("a", phase="profiling")[1:]
    assert followers and all(r.result.stamps.due - first.plan_end_ns < 20 * SECOND for r in followers)
    streams = [
        (r.identity.root_correlation_id, r.identity.conversation_id, r.identity.turn) for r in seen.records
    ]
    assert len(set(streams)) == len(streams)

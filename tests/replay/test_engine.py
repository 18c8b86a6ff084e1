"""Lanes, limits and ends of a replay (agentx-v1, sections 6.1, 6.2, 6.8)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.replays import MS, SECOND, KeepAll, Played, replay
from support.trees import ListTrees, TreeMaker, chain, make_turn

from agentx_engine.errors import CorpusError
from agentx_engine.metrics.record import RequestIdentity, RequestRecord
from agentx_engine.prompt.marker import marker_digest, marker_text
from agentx_engine.replay.engine import Replay
from agentx_engine.replay.options import ReplayOptions
from agentx_engine.replay.simserver import (
    Answer,
    PlannedPrompt,
    PlannedPrompts,
    SimulatedHandle,
    SimulatedTransport,
)
from agentx_engine.replay.simulated import SimulatedClock
from agentx_engine.transport.base import Outcome, Request
from agentx_engine.tree.model import ConversationTree, Turn


class Fixed:
    def __init__(self, latency_ns: int = SECOND) -> None:
        self.latency_ns = latency_ns

    def answer(self, request: Request, number: int) -> Answer:
        return Answer(self.latency_ns, 0, 1)


def flat(name: str, turns: int = 1, delay_ns: int = 0) -> ConversationTree:
    return TreeMaker(name).root(*chain(turns, delay_ns=delay_ns)).tree()


def starts(played: Played) -> list[tuple[int, str, int, int]]:
    """(lane, trace, play, start) of every tree, in order."""
    return [
        (tree.lane, tree.trace_id, tree.play, at - played.start_ns)
        for _, what, tree, at, _ in played.seen.trees
        if what == "start"
    ]


def call_in(ns: int, what: str, *, then: tuple[int, str] | None = None) -> Any:
    """A `before` that calls a method of the replay `ns` after the lanes have started."""

    def before(run: Replay, clock: SimulatedClock, seen: KeepAll) -> None:
        base = clock.now_ns() + 50 * MS
        clock.call_at(base + ns, getattr(run, what))
        if then is not None:
            clock.call_at(base + then[0], getattr(run, then[1]))

    return before


# -- lanes


def test_lanes_start_together_and_go_on_in_the_order_of_the_corpus() -> None:
    trees = ListTrees(flat("a", 3), flat("b", 1), flat("c", 1))
    played = replay(trees, model=Fixed(), concurrency=2, tree_count=6)
    assert starts(played) == [
        (0, "a", 0, 0),
        (1, "b", 0, 0),
        (1, "c", 0, SECOND),
        (1, "a", 1, 2 * SECOND),  # wraps around
        (0, "b", 1, 3 * SECOND),
        (0, "c", 1, 4 * SECOND),
    ]


def test_more_lanes_than_traces() -> None:
    played = replay(ListTrees(flat("a"), flat("b")), model=Fixed(), concurrency=5, tree_count=5)
    assert [(lane, trace, play) for lane, trace, play, _ in starts(played)] == [
        (0, "a", 0),
        (1, "b", 0),
        (2, "a", 1),
        (3, "b", 1),
        (4, "a", 2),
    ]
    assert {r.result.stamps.due for r in played.seen.records} == {played.start_ns}


def test_every_live_tree_has_its_own_marker() -> None:
    class Prompts(PlannedPrompts):
        def __init__(self) -> None:
            self.opened: list[tuple[str, int, str | None]] = []

        def open(self, tree: ConversationTree, conversation: int, marker: str | None) -> PlannedPrompt:
            self.opened.append((tree.trace_id, conversation, marker))
            return PlannedPrompt(tree)

    maker = TreeMaker("a").root(make_turn(0))
    maker.branch(0, [(0, chain(1))])
    prompts = Prompts()
    played = replay(
        ListTrees(maker.tree()), prompts=prompts, concurrency=2, tree_count=3, run_id="x", marker_tokens=9
    )
    marker = {
        (p, lane): marker_text(marker_digest("x", p, lane, "a")) for p, lane in ((0, 0), (1, 1), (2, 0))
    }
    assert sorted(prompts.opened, key=str) == sorted(
        [("a", c, m) for c in (0, 1) for m in marker.values()], key=str
    )
    assert {r.identity.marker_tokens for r in played.seen.records} == {9}

    prompts = Prompts()
    played = replay(ListTrees(maker.tree()), prompts=prompts, tree_count=1, marker=False)
    assert [m for *_, m in prompts.opened] == [None, None]
    assert {r.identity.marker_tokens for r in played.seen.records} == {0}


def test_trees_are_pinned_to_endpoints_in_turn() -> None:
    maker = TreeMaker("a").root(*chain(2))
    maker.branch(0, [(0, chain(2))])
    played = replay(ListTrees(maker.tree()), concurrency=2, endpoints=3, tree_count=7)
    by_tree: dict[str, set[int]] = {}
    for record in played.seen.records:
        by_tree.setdefault(record.identity.root_correlation_id, set()).add(record.identity.endpoint)
    assert all(len(endpoints) == 1 for endpoints in by_tree.values())
    assert [tree.endpoint for _, what, tree, *_ in played.seen.trees if what == "start"] == [
        0,
        1,
        2,
        0,
        1,
        2,
        0,
    ]


def test_trees_are_kept_once_and_only_while_they_are_played() -> None:
    trees = ListTrees(*(flat(name) for name in "abcd"))
    held: list[int] = []

    def before(run: Replay, clock: SimulatedClock, seen: KeepAll) -> None:
        for k in range(1, 60):
            clock.call_at(clock.now_ns() + k * 100 * MS, lambda: held.append(len(run._cache)))

    replay(trees, model=Fixed(), concurrency=2, duration_ns=6 * SECOND, before=before)
    assert max(held) == 3  # two live, one loaded ahead
    one = ListTrees(flat("a"))
    replay(one, model=Fixed(), concurrency=3, duration_ns=6 * SECOND)
    assert one.loads == [0]  # always live somewhere, or next


def test_traces_without_requests_are_skipped() -> None:
    empty = TreeMaker("empty").root().tree()
    played = replay(ListTrees(empty, flat("a"), empty), model=Fixed(), tree_count=2)
    assert [trace for _, trace, *_ in starts(played)] == ["a", "a"]


def test_a_root_without_turns_but_nothing_else_is_a_corpus_error() -> None:
    played = replay(ListTrees(TreeMaker("empty").root().tree()), concurrency=2)
    assert played.report.end_reason == "corpus"
    assert "no trace" in (played.report.error or "")
    assert played.report.counts.started == 0


def test_a_trace_that_cannot_be_used_ends_the_run_with_its_words() -> None:
    class Broken(ListTrees):
        def load(self, index: int) -> ConversationTree:
            if index == 2:
                raise CorpusError("trace_c.json: requests[0].t: missing")
            return super().load(index)

    trees = Broken(flat("a", 1), flat("b", 9), flat("c"))
    played = replay(trees, model=Fixed(1500 * MS), concurrency=2)
    report = played.report
    assert (report.end_reason, report.error) == ("corpus", "trace_c.json: requests[0].t: missing")
    assert report.traceback is None
    assert report.stopped_ns - report.started_ns == 1500 * MS
    assert len(played.seen.records) == len(played.seen.started_) - len(played.seen.withdrawn_) == 2


# -- ends


def test_duration_and_grace() -> None:
    trees = ListTrees(flat("a", 100, delay_ns=500 * MS))
    played = replay(trees, model=Fixed(), duration_ns=10 * SECOND, grace_ns=5 * SECOND)
    report = played.report
    assert report.end_reason == "duration" and not report.interrupted
    assert report.stopped_ns == report.started_ns + 10 * SECOND
    # Due at 0, 1.5, ..., 9.0; the last one returns during the grace period and counts.
    assert played.due("a") == [k * 1500 * MS for k in range(7)]
    assert all(r.result.outcome.ok for r in played.seen.records)
    assert report.ended_ns == report.stopped_ns  # 9.0 + 1.0: nothing to wait for
    assert [reason for _, what, _, _, reason in played.seen.trees if what == "end"] == ["stopped"]


def test_nothing_is_sent_at_the_end_or_later() -> None:
    trees = ListTrees(flat("a", 100, delay_ns=0))
    played = replay(trees, model=Fixed(), duration_ns=3 * SECOND)
    assert played.due("a") == [0, SECOND, 2 * SECOND]
    played = replay(trees, model=Fixed(), duration_ns=3 * SECOND + 1)
    assert played.due("a") == [0, SECOND, 2 * SECOND, 3 * SECOND]
    assert played.report.counts.withdrawn == 0


def test_a_lane_whose_next_turn_lies_beyond_the_end_takes_no_other_tree() -> None:
    trees = ListTrees(flat("a", 2, delay_ns=3600 * SECOND), flat("b"))
    played = replay(trees, model=Fixed(), duration_ns=60 * SECOND)
    assert [trace for _, trace, *_ in starts(played)] == ["a"]
    assert played.report.ended_ns == played.start_ns + 60 * SECOND


def test_the_grace_period_is_bounded() -> None:
    trees = ListTrees(flat("a"), flat("b"))
    played = replay(
        trees, model=Fixed(100 * SECOND), concurrency=2, duration_ns=10 * SECOND, grace_ns=7 * SECOND
    )
    assert [r.result.outcome for r in played.seen.records] == [Outcome.CANCELLED] * 2
    assert played.report.ended_ns == played.start_ns + 17 * SECOND
    assert played.report.counts.failed == {Outcome.CANCELLED: 2}
    assert played.report.lost == 0


def test_request_count() -> None:
    maker = TreeMaker("a").root(*chain(3))
    maker.branch(0, [(0, chain(3)) for _ in range(3)], join_turn=2)
    for count in range(1, 13):
        played = replay(ListTrees(maker.tree()), model=Fixed(), concurrency=2, request_count=count)
        assert played.report.end_reason == "request_count"
        assert len(played.seen.records) == count == played.report.counts.finished
        assert all(r.result.outcome.ok for r in played.seen.records)
        assert played.seen.withdrawn_ == []


def test_the_grace_after_the_request_count_begins_when_the_last_request_is_due() -> None:
    trees = ListTrees(flat("a", 9, delay_ns=20 * MS))
    for grace_ms, outcome in ((90, Outcome.SUCCESS), (89, Outcome.CANCELLED)):
        played = replay(trees, model=Fixed(90 * MS), request_count=2, grace_ns=grace_ms * MS)
        assert played.due("a") == [0, 110 * MS]
        assert played.seen.records[1].result.outcome is outcome
        assert played.report.stopped_ns == played.start_ns + 110 * MS


def test_stop_withdraws_what_is_armed_but_not_due_and_drains() -> None:
    maker = TreeMaker("a").root(make_turn(0), make_turn(1, delay_ns=9 * SECOND))
    trees = ListTrees(maker.tree(), flat("b", 50))
    # At 9.97 s the second turn of a is armed for 10 s, and b has a request in flight until 10 s.
    played = replay(trees, model=Fixed(), concurrency=2, before=call_in(9_970 * MS, "stop"))
    report = played.report
    assert (report.end_reason, report.interrupted) == ("stopped", True)
    assert [(w.trace_id, w.turn) for w in played.seen.withdrawn_] == [("a", 1)]
    assert played.due("a") == [0]
    assert played.due("b", lane=1) == [k * SECOND for k in range(10)]
    assert all(r.result.outcome.ok for r in played.seen.records)
    assert report.ended_ns == played.start_ns + 10 * SECOND
    assert (report.counts.withdrawn, report.counts.started, report.counts.finished) == (1, 11, 11)


def test_the_drain_after_stop_is_short() -> None:
    trees = ListTrees(flat("a"))
    played = replay(trees, model=Fixed(60 * SECOND), drain_ns=3 * SECOND, before=call_in(SECOND, "stop"))
    assert played.report.ended_ns == played.start_ns + 4 * SECOND
    assert [r.result.outcome for r in played.seen.records] == [Outcome.CANCELLED]


def test_abort_cancels_at_once() -> None:
    trees = ListTrees(flat("a"))
    played = replay(trees, model=Fixed(60 * SECOND), before=call_in(SECOND, "abort"))
    assert played.report.end_reason == "aborted"
    assert played.report.ended_ns == played.start_ns + SECOND
    assert [r.result.outcome for r in played.seen.records] == [Outcome.CANCELLED]


def test_abort_after_stop() -> None:
    trees = ListTrees(flat("a"))
    before = call_in(SECOND, "stop", then=(1500 * MS, "abort"))
    played = replay(trees, model=Fixed(60 * SECOND), before=before)
    assert (played.report.end_reason, played.report.ended_ns) == ("stopped", played.start_ns + 1500 * MS)


def test_stop_in_the_grace_period_shortens_it() -> None:
    trees = ListTrees(flat("a"))
    played = replay(
        trees,
        model=Fixed(60 * SECOND),
        duration_ns=10 * SECOND,
        grace_ns=30 * SECOND,
        drain_ns=SECOND,
        before=call_in(12 * SECOND, "stop"),
    )
    report = played.report
    assert (report.end_reason, report.interrupted) == ("duration", True)
    assert report.stopped_ns == played.start_ns + 10 * SECOND
    assert report.ended_ns == played.start_ns + 13 * SECOND


def test_stop_before_the_start() -> None:
    played = replay(ListTrees(flat("a")), before=lambda run, clock, seen: run.stop())
    assert (played.report.end_reason, played.report.counts.started) == ("stopped", 0)


def test_stop_with_a_reason_of_the_callers() -> None:
    def before(run: Replay, clock: SimulatedClock, seen: KeepAll) -> None:
        clock.call_at(clock.now_ns() + SECOND, lambda: run.stop("failed_requests"))

    assert replay(ListTrees(flat("a", 9)), before=before).report.end_reason == "failed_requests"


# -- defects


class FailingRecorder(KeepAll):
    fail_on = 5

    def finished(self, record: RequestRecord) -> None:
        if record.identity.sequence == self.fail_on:
            raise ZeroDivisionError("the disk is full of zeros")
        super().finished(record)


def accounted(played: Played) -> None:
    """Every request that was armed is recorded, withdrawn or handed back."""
    seen = [r.identity.sequence for r in (*played.seen.records, *played.report.unrecorded)]
    seen += [identity.sequence for identity in played.seen.withdrawn_]
    assert sorted(seen) == sorted(identity.sequence for identity in played.seen.started_)


def test_an_exception_in_the_recorder_ends_the_run_and_loses_nothing() -> None:
    maker = TreeMaker("a").root(*chain(5))
    maker.branch(0, [(0, chain(4)), (300 * MS, chain(4))], join_turn=3)
    played = replay(ListTrees(maker.tree()), model=Fixed(), concurrency=3, make_recorder=FailingRecorder)
    report = played.report
    assert report.end_reason == "client_error"
    assert report.error == "ZeroDivisionError: the disk is full of zeros"
    assert "in finished" in (report.traceback or "")
    assert [r.identity.sequence for r in report.unrecorded] == [5]
    assert Outcome.CANCELLED in {r.result.outcome for r in played.seen.records}
    accounted(played)


def test_a_recorder_that_always_fails() -> None:
    class Broken(KeepAll):
        def finished(self, record: RequestRecord) -> None:
            raise OSError("gone")

    played = replay(ListTrees(flat("a", 5)), model=Fixed(), concurrency=4, make_recorder=Broken)
    assert played.report.end_reason == "client_error"
    assert len(played.report.unrecorded) == len(played.seen.started_) == 4
    accounted(played)


@pytest.mark.parametrize("where", ["open", "advance", "rope"])
@pytest.mark.parametrize("after", [0, 1, 4, 9])
def test_an_exception_in_a_prompt(where: str, after: int) -> None:
    class Prompt(PlannedPrompt):
        def advance(self, turn: Turn) -> None:
            check("advance")
            super().advance(turn)

        def rope(self, turn: Turn) -> Any:
            check("rope")
            return super().rope(turn)

    class Prompts(PlannedPrompts):
        def open(self, tree: ConversationTree, conversation: int, marker: str | None) -> PlannedPrompt:
            check("open")
            return Prompt(tree)

    left = after

    def check(name: str) -> None:
        nonlocal left
        if name == where:
            if not left:
                raise LookupError(where)
            left -= 1

    maker = TreeMaker("a").root(*chain(5))
    maker.branch(0, [(0, chain(2)), (0, chain(2)), (SECOND, chain(2))], join_turn=3)
    maker.branch(1, [(0, chain(2)), (0, chain(2))], when="issue")
    played = replay(ListTrees(maker.tree()), model=Fixed(), prompts=Prompts(), concurrency=2)
    assert (played.report.end_reason, played.report.error) == ("client_error", f"LookupError: {where}")
    accounted(played)


@pytest.mark.parametrize("name", ["started", "tree_started", "tree_finished"])
def test_an_exception_elsewhere_in_the_recorder(name: str) -> None:
    def fail(*args: object) -> None:
        raise LookupError(name)

    def make(clock: SimulatedClock) -> KeepAll:
        seen = KeepAll(clock)
        real, left = getattr(seen, name), [3]

        def sometimes(*args: Any) -> None:
            real(*args)
            left[0] -= 1
            if not left[0]:
                fail()

        setattr(seen, name, sometimes)
        return seen

    trees = ListTrees(flat("a", 2), flat("b", 3))
    played = replay(trees, model=Fixed(), concurrency=2, duration_ns=60 * SECOND, make_recorder=make)
    assert (played.report.end_reason, played.report.error) == ("client_error", f"LookupError: {name}")
    accounted(played)


@pytest.mark.parametrize("sequence", [0, 1, 2, 3, 4])
def test_an_exception_in_the_middle_of_a_burst(sequence: int) -> None:
    """The siblings after it are registered but will never be launched."""

    class Broken(KeepAll):
        def started(self, identity: RequestIdentity) -> None:
            super().started(identity)
            if identity.sequence == sequence:
                raise LookupError("burst")

    maker = TreeMaker("a").root(*chain(3))
    maker.branch(0, [(0, chain(2)) for _ in range(3)], join_turn=1)
    maker.branch(0, [(0, chain(2))], when="issue")
    played = replay(ListTrees(maker.tree()), model=Fixed(), concurrency=1, make_recorder=Broken)
    assert played.report.end_reason == "client_error"
    assert len(played.seen.started_) == sequence + 1
    accounted(played)


def test_a_defect_after_the_end_is_still_reported() -> None:
    class Late(KeepAll):
        def finished(self, record: RequestRecord) -> None:
            raise LookupError("late")

    played = replay(ListTrees(flat("a")), model=Fixed(), duration_ns=SECOND // 2, make_recorder=Late)
    assert played.report.end_reason == "client_error"


def test_a_transport_that_does_not_let_go_is_left_behind() -> None:
    class Deaf(SimulatedTransport):
        def arm(self, request: Request) -> SimulatedHandle:
            handle = super().arm(request)
            handle.cancel = lambda: None  # type: ignore[method-assign]
            return handle

    trees = ListTrees(flat("a"), flat("b"))
    played = replay(
        trees,
        model=Fixed(10**6 * SECOND),
        concurrency=2,
        duration_ns=SECOND,
        grace_ns=SECOND,
        cancel_ns=5 * SECOND,
        make_transport=Deaf,
    )
    assert (played.report.lost, played.report.end_reason) == (2, "duration")
    assert played.report.ended_ns == played.start_ns + 7 * SECOND


# -- counters, options


def test_counters() -> None:
    shots: list[dict[str, Any]] = []

    def before(run: Replay, clock: SimulatedClock, seen: KeepAll) -> None:
        assert run.counters.state == "preparing"
        base = clock.now_ns() + 50 * MS
        for ns in (500 * MS, 980 * MS, 1500 * MS, 3500 * MS):

            def shoot() -> None:
                c = run.counters
                shots.append(
                    {
                        "state": c.state,
                        "elapsed": c.elapsed_ns,
                        "lanes": c.lanes,
                        "idle": c.lanes_idle,
                        "armed": c.armed,
                        "in flight": c.in_flight,
                        "finished": c.finished,
                    }
                )

            clock.call_at(base + ns, shoot)

    maker = TreeMaker("a").root(*chain(2, delay_ns=SECOND))
    maker.branch(0, [(0, chain(1)), (0, chain(1))], when="issue")
    idle = flat("b", 2, delay_ns=3600 * SECOND)
    played = replay(
        ListTrees(maker.tree(), idle), model=Fixed(), concurrency=2, duration_ns=2500 * MS, before=before
    )
    assert shots == [
        {
            "state": "sending",
            "elapsed": 500 * MS,
            "lanes": 2,
            "idle": 0,
            "armed": 4,
            "in flight": 4,
            "finished": 0,
        },
        {
            "state": "sending",
            "elapsed": 980 * MS,
            "lanes": 2,
            "idle": 0,
            "armed": 4,
            "in flight": 4,
            "finished": 0,
        },
        {
            "state": "sending",
            "elapsed": 1500 * MS,
            "lanes": 2,
            "idle": 2,
            "armed": 0,
            "in flight": 0,
            "finished": 4,
        },
    ]
    counts = played.report.counts
    assert (counts.state, counts.trees_started, counts.trees_finished) == ("ended", 2, 2)
    assert (counts.started, counts.finished, counts.succeeded, counts.lanes) == (5, 5, 5, 0)


@pytest.mark.parametrize(
    "bad", [{"concurrency": 0}, {"endpoints": 0}, {"duration_ns": 0}, {"request_count": 0}, {"grace_ns": -1}]
)
def test_impossible_options(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        ReplayOptions(**({"concurrency": 1} | bad))


def test_a_replay_runs_once() -> None:
    played = replay(ListTrees(flat("a")), tree_count=1)
    with pytest.raises(RuntimeError, match="once"):
        asyncio.run(played.replay.run())


def test_requests_carry_their_ids() -> None:
    headers: list[bytes] = []

    class Peek(SimulatedTransport):
        def arm(self, request: Request) -> SimulatedHandle:
            headers.append(request.headers)
            return super().arm(request)

    played = replay(ListTrees(flat("a")), tree_count=1, make_transport=Peek)
    identity: RequestIdentity = played.seen.started_[0]
    assert headers == [
        f"X-Request-ID: {identity.request_id}\r\nX-Correlation-ID: {identity.correlation_id}\r\n".encode()
    ]

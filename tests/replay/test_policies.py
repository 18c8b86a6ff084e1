"""What failures do to a run, and the ways of the official harness (agentx-v1, sections 6.4, 6.8, 7, 9.5)."""

from __future__ import annotations

import pytest
from support.replays import MS, SECOND, replay
from support.trees import ListTrees, TreeMaker, chain, make_turn

from agentx_engine.metrics.record import RequestRecord
from agentx_engine.replay.simserver import Answer
from agentx_engine.scenario.threshold import FailedRequestThreshold
from agentx_engine.transport.base import Outcome, Request


class Fixed:
    def __init__(self, latency_ns: int = SECOND, outcomes: dict[int, Outcome] | None = None) -> None:
        self.latency_ns = latency_ns
        self.outcomes = outcomes or {}

    def answer(self, request: Request, number: int) -> Answer:
        return Answer(self.latency_ns, 0, request.max_tokens, self.outcomes.get(number, Outcome.SUCCESS))


def one(maker: TreeMaker) -> ListTrees:
    return ListTrees(maker.tree())


# -- failures


def test_a_failure_policy_cancels_the_run() -> None:
    seen: list[Outcome] = []

    def policy(record: RequestRecord) -> bool:
        seen.append(record.result.outcome)
        return record.result.outcome is Outcome.HTTP_STATUS

    trees = ListTrees(TreeMaker("a").root(*chain(9)).tree(), TreeMaker("b").root(*chain(9)).tree())
    played = replay(
        trees, model=Fixed(outcomes={4: Outcome.HTTP_STATUS}), concurrency=2, failure_policy=policy
    )
    assert played.report.end_reason == "threshold" and not played.report.interrupted
    # The other lane's request ends at the same instant; whether it is cancelled is the order of events.
    assert len(played.seen.records) == 6 and Outcome.HTTP_STATUS in seen
    assert played.report.stopped_ns == played.report.ended_ns == played.start_ns + 3 * SECOND


def test_the_policy_does_not_see_the_warmup() -> None:
    maker = TreeMaker("a").root(*chain(4))
    maker.branch(0, [(0, chain(3))])
    phases: list[str] = []

    def policy(record: RequestRecord) -> bool:
        phases.append(record.identity.phase)
        return not record.result.outcome.ok

    # Request 1 is the child's first, in the warmup: ignored.
    played = replay(
        one(maker),
        model=Fixed(outcomes={1: Outcome.HTTP_STATUS}),
        tree_count=1,
        warmup_requests_per_lane=3,
        failure_policy=policy,
    )
    assert played.report.end_reason == "tree_count"
    assert phases == ["profiling"] * 4


def test_the_threshold_of_the_scenario() -> None:
    threshold = FailedRequestThreshold(0.10, concurrency=1)
    trees = ListTrees(TreeMaker("a").root(*chain(40)).tree())
    played = replay(
        trees,
        model=Fixed(outcomes={3: Outcome.RESET, 12: Outcome.RESET}),
        failure_policy=lambda record: threshold.add(record.result.outcome),
    )
    assert played.report.end_reason == "threshold"
    assert len(played.seen.records) == 13  # 1 of 10 is not more than 10 %, 2 of 13 are


def test_fail_fast_ends_the_tree_and_the_lane_goes_on() -> None:
    maker = TreeMaker("a").root(make_turn(0), make_turn(1, delay_ns=4 * SECOND), make_turn(2))
    maker.branch(0, [(0, chain(5)), (0, chain(2)), (3 * SECOND, chain(1))], join_turn=2)
    trees = ListTrees(maker.tree(), TreeMaker("b").root(make_turn(0)).tree())
    # Armed: root 0, children 1 and 2 at 1 s; child 2 fails at 2 s.
    played = replay(trees, model=Fixed(outcomes={2: Outcome.RESET}), tree_count=2, fail_fast=True)
    assert played.due("a") == [0]
    # Child 1 was quicker to send its second turn at that instant; it is cancelled.
    assert played.due("a::sa:001") == [SECOND, 2 * SECOND] and played.due("a::sa:003") == []
    assert played.report.counts.failed == {Outcome.RESET: 1, Outcome.CANCELLED: 1}
    assert played.due("b") == [2 * SECOND]
    counts = played.report.counts
    assert (counts.trees_torn_down, counts.trees_finished) == (1, 2)
    assert [reason for _, what, _, _, reason in played.seen.trees if what == "end"] == ["stopped", "drained"]
    slow = replay(trees, model=Fixed(outcomes={2: Outcome.RESET}), tree_count=2)
    assert slow.report.counts.trees_torn_down == 0 and len(slow.due("a")) == 3


def test_fail_fast_withdraws_what_was_armed_ahead() -> None:
    class Model:
        def answer(self, request: Request, number: int) -> Answer:
            failed = number == 1
            return Answer(980 * MS if failed else SECOND, 0, 1, Outcome.RESET if failed else Outcome.SUCCESS)

    maker = TreeMaker("a").root(make_turn(0), make_turn(1, delay_ns=SECOND))
    maker.branch(0, [(0, chain(1))])
    played = replay(one(maker), model=Model(), tree_count=1, fail_fast=True)
    assert [(i.conversation_id, i.turn) for i in played.seen.withdrawn_] == [("a", 1)]
    assert played.report.counts.withdrawn == 1


# -- as the harness does it


def test_the_pause_before_a_branch_is_kept_or_lost() -> None:
    maker = TreeMaker().root(make_turn(0), make_turn(1, delay_ns=10 * SECOND))
    maker.branch(0, [(0, chain(1)), (3 * SECOND, chain(1))], pause_ns=2 * SECOND)
    maker.branch(1, [(SECOND, chain(1))], when="issue", pause_ns=0)
    kept = replay(one(maker), model=Fixed(), tree_count=1)
    assert (kept.due("trace::sa:001"), kept.due("trace::sa:002")) == ([3 * SECOND], [6 * SECOND])
    assert (kept.report.counts.pauses_dropped, kept.report.counts.pause_dropped_ns) == (0, 0)
    lost = replay(one(maker), model=Fixed(), tree_count=1, child_pause=False)
    assert (lost.due("trace::sa:001"), lost.due("trace::sa:002")) == ([SECOND], [4 * SECOND])
    assert lost.due("trace::sa:003") == kept.due("trace::sa:003") == [12 * SECOND]
    assert (lost.report.counts.pauses_dropped, lost.report.counts.pause_dropped_ns) == (1, 2 * SECOND)


def dead() -> TreeMaker:
    maker = TreeMaker().root(*chain(3, delay_ns=SECOND))
    maker.branch(0, [(0, chain(4))], kind="flat").hold((0, 2), (1, 3))
    return maker


def test_whoever_waits_for_a_dead_stream_is_released_or_held_until_the_end() -> None:
    model = Fixed(outcomes={1: Outcome.CONTEXT_OVERFLOW})
    released = replay(one(dead()), model=model, duration_ns=20 * SECOND, tree_count=1)
    assert released.due("trace") == [0, 2 * SECOND, 4 * SECOND]
    held = replay(one(dead()), model=model, duration_ns=20 * SECOND, tree_count=1, release_dead=False)
    assert held.due("trace") == [0, 2 * SECOND]
    report = held.report
    assert (report.end_reason, report.ended_ns - report.started_ns) == ("duration", 20 * SECOND)
    assert (report.counts.held_by_dead, released.report.counts.held_by_dead) == (1, 0)
    assert report.counts.trees_finished == 1


def test_a_run_without_an_end_does_not_wait_for_the_dead_for_ever() -> None:
    model = Fixed(outcomes={1: Outcome.CONTEXT_OVERFLOW})
    played = replay(one(dead()), model=model, release_dead=False)
    assert played.report.end_reason == "held"
    assert played.report.counts.held_by_dead == 1


def test_a_quota_that_dead_streams_make_impossible() -> None:
    model = Fixed(outcomes={1: Outcome.CONTEXT_OVERFLOW})
    played = replay(
        one(dead()), model=model, duration_ns=9 * SECOND, release_dead=False, warmup_requests_per_lane=9
    )
    warmup = played.report.warmup
    assert warmup is not None and (warmup.extra_requests, warmup.extra_missing) == ([3], 6)
    assert played.report.end_reason == "duration"
    assert played.report.counts.started == 0 and played.report.counts.held_by_dead == 1


# -- the end of the measured phase


def test_the_end_settles_children_and_gates() -> None:
    maker = TreeMaker("a").root(make_turn(0), make_turn(1, delay_ns=9 * SECOND), make_turn(2))
    maker.branch(0, [(0, chain(9)), (100 * SECOND, chain(1)), (0, chain(1))], join_turn=2)
    maker.branch(0, [(0, [make_turn(0)])], join_turn=1)
    played = replay(one(maker), model=Fixed(), duration_ns=5500 * MS, grace_ns=30 * SECOND)
    report = played.report
    assert report.stopped_ns - report.started_ns == 5500 * MS
    assert report.ended_ns - report.started_ns == 6 * SECOND  # nothing in flight any more
    stats = report.counts.branches
    assert (stats.children_spawned, stats.children_delayed) == (4, 1)
    assert (stats.children_completed, stats.children_errored, stats.children_truncated) == (2, 0, 2)
    assert (stats.parents_suspended, stats.parents_resumed, stats.joins_suppressed) == (1, 0, 1)
    assert all(r.result.outcome.ok for r in played.seen.records)


def test_branch_stats_of_failures() -> None:
    maker = TreeMaker("a").root(make_turn(0), make_turn(1))
    maker.branch(0, [(0, chain(2)), (0, chain(2)), (0, chain(1)), (0, [])], join_turn=1)
    # Armed: root 0; children 1, 2, 3; then turn 1 of child 1 (request 4), of child 2 overflows before.
    played = replay(
        one(maker),
        model=Fixed(outcomes={2: Outcome.CONTEXT_OVERFLOW, 3: Outcome.RESET, 1: Outcome.HTTP_STATUS}),
        tree_count=1,
    )
    stats = played.report.counts.branches
    assert (stats.children_spawned, stats.children_completed, stats.children_errored) == (4, 2, 2)
    assert (stats.parents_suspended, stats.parents_resumed) == (1, 1)


@pytest.mark.parametrize("grace_s", [0, 2])
def test_cancelled_children_are_truncated(grace_s: int) -> None:
    maker = TreeMaker("a").root(make_turn(0))
    maker.branch(0, [(0, chain(1))])
    played = replay(one(maker), model=Fixed(9 * SECOND), duration_ns=10 * SECOND, grace_ns=grace_s * SECOND)
    stats = played.report.counts.branches
    assert (stats.children_spawned, stats.children_truncated) == (1, 1)
    assert played.report.counts.failed == {Outcome.CANCELLED: 1}

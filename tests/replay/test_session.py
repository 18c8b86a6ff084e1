"""When a turn is due, worked out by hand (agentx-v1, sections 6.3 to 6.5, 2.11, 11-9)."""

from __future__ import annotations

import pytest
from support.replays import MS, SECOND, replay
from support.trees import ListTrees, TreeMaker, chain, make_turn

from agentx_engine.core.rope import Rope
from agentx_engine.replay.simserver import (
    Answer,
    PlannedPrompt,
    PlannedPrompts,
    SimulatedHandle,
    SimulatedTransport,
)
from agentx_engine.transport.base import Outcome, Request
from agentx_engine.tree.model import ConversationTree, Turn


class Fixed:
    """Every request takes `latency_ns`; outcomes by number of arming."""

    def __init__(self, latency_ns: int = SECOND, outcomes: dict[int, Outcome] | None = None) -> None:
        self.latency_ns = latency_ns
        self.outcomes = outcomes or {}

    def answer(self, request: Request, number: int) -> Answer:
        outcome = self.outcomes.get(number, Outcome.SUCCESS)
        return Answer(self.latency_ns, 0, request.max_tokens, outcome)


class ByTokens:
    """A request takes as many milliseconds as its output limit says."""

    def answer(self, request: Request, number: int) -> Answer:
        return Answer(request.max_tokens * MS, 0, 1)


def one(maker: TreeMaker) -> ListTrees:
    return ListTrees(maker.tree())


def test_turns_follow_the_plan_end_by_their_delay() -> None:
    maker = TreeMaker().root(make_turn(0), make_turn(1, delay_ns=3 * SECOND), make_turn(2))
    played = replay(one(maker), model=Fixed(), tree_count=1)
    assert played.due("trace") == [0, 4 * SECOND, 5 * SECOND]
    assert played.report.end_reason == "tree_count"
    assert [r.identity.reactive for r in played.seen.records] == [False, False, True]


@pytest.mark.parametrize("delivery_ns", [0, 1, 3 * MS, 20 * MS])
def test_due_times_count_from_plan_ends_not_from_when_we_learn_of_them(delivery_ns: int) -> None:
    maker = TreeMaker().root(*chain(4, delay_ns=5 * MS))
    maker.branch(0, [(0, chain(2)), (10 * MS, chain(1))], join_turn=2)
    played = replay(one(maker), model=Fixed(), tree_count=2, delivery_ns=delivery_ns)
    root, first, second = (played.seen.of(f"trace{child}") for child in ("", "::sa:001", "::sa:002"))
    due = [r.result.stamps.due for r in root]
    end = [r.result.plan_end_ns for r in root]
    assert due[0] == played.start_ns
    assert due[1] == end[0] + 5 * MS
    assert due[2] == first[1].result.plan_end_ns > end[1] + 5 * MS
    assert due[3] == end[2] + 5 * MS
    assert first[0].result.stamps.due == end[0]
    assert first[1].result.stamps.due == first[0].result.plan_end_ns
    assert second[0].result.stamps.due == end[0] + 10 * MS
    # The next tree of the lane is due when the whole tree had drained, by the plan.
    assert played.seen.of("trace", play=1)[0].result.stamps.due == end[3]
    for record in played.seen.records:
        stamps = record.result.stamps
        assert stamps.first_sent == max(stamps.due, stamps.armed)


def test_requests_with_a_known_due_time_are_armed_ahead() -> None:
    maker = TreeMaker().root(make_turn(0), make_turn(1, delay_ns=20 * MS), make_turn(2, delay_ns=9 * SECOND))
    played = replay(one(maker), model=Fixed(), tree_count=1, arm_lead_ns=50 * MS)
    lead = [r.result.stamps.due - r.result.stamps.armed for r in played.seen.records]
    assert lead == [50 * MS, 20 * MS, 50 * MS]  # the lead had begun when turn 1 became known


def test_children_at_issue_count_from_the_due_time_of_the_parent() -> None:
    maker = TreeMaker().root(make_turn(0), make_turn(1, delay_ns=0), make_turn(2))
    maker.branch(1, [(0, chain(1)), (400 * MS, chain(1))], when="issue", join_turn=2)
    played = replay(one(maker), model=Fixed(), tree_count=1, delivery_ns=30 * MS)
    assert played.due("trace") == [0, SECOND, 2 * SECOND + 400 * MS]
    assert played.due("trace::sa:001") == [SECOND]  # although turn 1 was sent 30 ms late
    assert played.due("trace::sa:002") == [SECOND + 400 * MS]


def test_children_after_return_count_from_the_plan_end_and_the_recorded_pause() -> None:
    maker = TreeMaker().root(make_turn(0), make_turn(1, delay_ns=10 * SECOND))
    maker.branch(0, [(0, chain(1)), (3 * SECOND, chain(1))], pause_ns=2 * SECOND)
    played = replay(one(maker), model=Fixed(), tree_count=1)
    assert played.due("trace::sa:001") == [3 * SECOND]
    assert played.due("trace::sa:002") == [6 * SECOND]
    assert played.due("trace") == [0, 11 * SECOND]


def test_a_burst_of_children_is_armed_in_one_go() -> None:
    maker = TreeMaker().root(make_turn(0), make_turn(1, delay_ns=SECOND))
    maker.branch(0, [(0, chain(1)) for _ in range(8)], join_turn=1)
    played = replay(one(maker), model=Fixed(), tree_count=1)
    children = [e for e in played.seen.events if e[1] == "armed"][1:9]
    assert len({time for time, *_ in children}) == 1
    assert [r.identity.reactive for r in played.seen.records[1:9]] == [True] * 8


def test_a_gated_turn_waits_for_the_later_of_its_delay_and_the_last_child() -> None:
    slow = TreeMaker().root(make_turn(0, out=1000), make_turn(1, delay_ns=2 * SECOND, out=1000))
    slow.branch(0, [(0, [make_turn(0, out=1500)]), (0, [make_turn(0, out=2500)])], join_turn=1)
    played = replay(one(slow), model=ByTokens(), tree_count=1)
    assert played.due("trace") == [0, 3500 * MS]
    assert played.report.counts.join_waits == 1
    assert played.report.counts.join_wait_ns == 500 * MS
    assert played.seen.of("trace")[1].identity.reactive

    fast = TreeMaker().root(make_turn(0, out=1000), make_turn(1, delay_ns=2 * SECOND, out=1000))
    fast.branch(0, [(0, [make_turn(0, out=1500)])], join_turn=1)
    played = replay(one(fast), model=ByTokens(), tree_count=1)
    assert played.due("trace") == [0, 3 * SECOND]
    assert played.report.counts.join_waits == 0
    assert not played.seen.of("trace")[1].identity.reactive


def test_a_gate_is_the_and_of_its_branches() -> None:
    maker = TreeMaker().root(*(make_turn(k, out=1000) for k in range(3)))
    maker.branch(0, [(0, [make_turn(0, out=9000)])], join_turn=2)
    maker.branch(1, [(0, [make_turn(0, out=100)]), (0, [make_turn(0, out=3000)])], join_turn=2)
    played = replay(one(maker), model=ByTokens(), tree_count=1)
    assert played.due("trace") == [0, 1000 * MS, 10_000 * MS]


def test_a_background_child_gates_nothing_but_holds_the_lane() -> None:
    maker = TreeMaker().root(make_turn(0), make_turn(1))
    maker.branch(1, [(5 * SECOND, chain(2, delay_ns=SECOND))])
    played = replay(
        ListTrees(maker.tree(), TreeMaker("next").root(make_turn(0)).tree()), model=Fixed(), tree_count=2
    )
    # The last turn of the root spawns too; the child runs from 7 s, its second turn ends at 10 s.
    assert played.due("trace::sa:001") == [7 * SECOND, 9 * SECOND]
    assert played.due("next") == [10 * SECOND]


def test_a_child_without_turns_counts_as_finished_at_once() -> None:
    maker = TreeMaker().root(make_turn(0), make_turn(1))
    maker.branch(0, [(50 * SECOND, [])], join_turn=1)
    played = replay(one(maker), model=Fixed(), tree_count=1)
    assert played.due("trace") == [0, SECOND]
    assert played.report.counts.join_waits == 0


@pytest.mark.parametrize(
    "outcome", [o for o in Outcome if o not in (Outcome.CONTEXT_OVERFLOW, Outcome.CANCELLED, Outcome.SUCCESS)]
)
def test_after_any_other_failure_the_session_goes_on(outcome: Outcome) -> None:
    maker = TreeMaker().root(make_turn(0), make_turn(1, delay_ns=2 * SECOND))
    maker.branch(0, [(0, chain(1))], join_turn=1)
    played = replay(one(maker), model=Fixed(outcomes={0: outcome}), tree_count=1)
    assert played.due("trace") == [0, 3 * SECOND]
    assert played.due("trace::sa:001") == [SECOND]
    assert played.report.counts.failed == {outcome: 1}
    assert played.report.counts.succeeded == 2


def test_an_overflow_ends_the_root_but_not_its_children() -> None:
    maker = TreeMaker().root(*chain(4))
    maker.branch(0, [(0, chain(3))])
    maker.branch(1, [(0, chain(1))])
    nexts = TreeMaker("next").root(make_turn(0)).tree()
    # Armed: root 0, child 0, root 1 (overflow)
    played = replay(
        ListTrees(maker.tree(), nexts), model=Fixed(outcomes={2: Outcome.CONTEXT_OVERFLOW}), tree_count=2
    )
    assert played.due("trace") == [0, SECOND]
    assert played.due("trace::sa:001") == [SECOND, 2 * SECOND, 3 * SECOND]
    assert played.due("trace::sa:002") == []  # an overflowed turn spawns nothing
    assert played.due("next") == [4 * SECOND]
    assert played.seen.trees[1][4] == "drained"


def test_an_overflowed_child_counts_as_finished() -> None:
    maker = TreeMaker().root(make_turn(0), make_turn(1))
    maker.branch(0, [(0, chain(5))], join_turn=1)
    played = replay(one(maker), model=Fixed(outcomes={1: Outcome.CONTEXT_OVERFLOW}), tree_count=1)
    assert played.due("trace") == [0, 2 * SECOND]
    assert len(played.seen.of("trace::sa:001")) == 1


def test_a_barrier_holds_a_turn_until_its_predecessors_have_returned() -> None:
    maker = TreeMaker().root(make_turn(0, out=100), make_turn(1, out=100), make_turn(2, out=100))
    maker.branch(0, [(0, [make_turn(0, out=700), make_turn(1, out=50)])], kind="flat")
    maker.hold((0, 1), (1, 0))
    played = replay(one(maker), model=ByTokens(), tree_count=1)
    assert played.due("trace") == [0, 800 * MS, 900 * MS]
    assert played.seen.of("trace")[1].identity.reactive
    assert (played.report.counts.barrier_holds, played.report.counts.barrier_hold_ns) == (1, 700 * MS)
    assert played.report.counts.barriers_broken == 0


def test_a_predecessor_that_returned_long_ago_holds_nothing() -> None:
    maker = TreeMaker().root(make_turn(0), make_turn(1))
    maker.branch(0, [(9 * SECOND, chain(1))], kind="flat").hold((1, 0), (0, 0), (0, 1))
    played = replay(one(maker), model=Fixed(), tree_count=1)
    assert played.due("trace::sa:001") == [10 * SECOND]
    assert played.report.counts.barrier_holds == 0


def test_barriers_of_a_dead_stream_are_released() -> None:
    maker = TreeMaker().root(*chain(3))
    maker.branch(0, [(0, chain(4))], kind="flat").hold((0, 2), (1, 3))
    # Armed: root 0, then child 0 (launched first), root 1, ...
    played = replay(one(maker), model=Fixed(outcomes={1: Outcome.CONTEXT_OVERFLOW}), tree_count=1)
    assert [r.identity.conversation_id for r in played.seen.records if not r.result.outcome.ok] == [
        "trace::sa:001"
    ]
    assert played.due("trace") == [0, SECOND, 2 * SECOND]
    assert played.report.counts.barriers_broken == 0


def test_barriers_on_children_that_are_never_spawned_are_released() -> None:
    maker = TreeMaker().root(*chain(3))
    maker.branch(0, [(0, chain(2, delay_ns=9 * SECOND))], kind="flat")
    maker.branch(2, [(0, chain(1))], kind="flat")
    maker.hold((1, 1), (2, 0))
    played = replay(one(maker), model=Fixed(outcomes={2: Outcome.CONTEXT_OVERFLOW}), tree_count=1)
    assert len(played.seen.of("trace")) == 2
    assert played.due("trace::sa:001") == [SECOND, 11 * SECOND]
    assert played.report.counts.barriers_broken == 0


def test_recordings_that_contradict_themselves_do_not_get_stuck() -> None:
    maker = TreeMaker().root(*chain(2))
    maker.branch(1, [(0, chain(1))], kind="flat").hold((0, 1), (1, 0))  # spawned by the turn it precedes
    played = replay(one(maker), model=Fixed(), tree_count=1)
    assert played.due("trace") == [0, SECOND]
    assert played.due("trace::sa:001") == [2 * SECOND]
    assert played.report.counts.barriers_broken == 1


def test_a_broken_barrier_makes_nothing_due_in_the_past() -> None:
    maker = TreeMaker().root(make_turn(0, out=100), make_turn(1, out=7000), make_turn(2, out=100))
    # The child waits for the turn that waits for the child.
    maker.branch(0, [(0, [make_turn(0, out=100)])], join_turn=2).hold((1, 0), (0, 2))
    played = replay(one(maker), model=ByTokens(), tree_count=1)
    assert played.due("trace::sa:001") == [7100 * MS]
    assert played.due("trace") == [0, 100 * MS, 7200 * MS]
    assert played.report.counts.barriers_broken == 1


def test_what_opens_together_is_armed_before_anyone_builds() -> None:
    log: list[str] = []

    class Prompt(PlannedPrompt):
        def rope(self, turn: Turn) -> Rope:
            log.append(f"build {turn.index}")
            return super().rope(turn)

    class Prompts(PlannedPrompts):
        def open(self, tree: ConversationTree, conversation: int, marker: str | None) -> PlannedPrompt:
            return Prompt(tree)

    class Watch(SimulatedTransport):
        def arm(self, request: Request) -> SimulatedHandle:
            log.append("arm")
            return super().arm(request)

    maker = TreeMaker().root(make_turn(0), make_turn(1))
    maker.branch(0, [(0, chain(3)) for _ in range(3)], kind="flat")
    for child in (1, 2, 3):
        maker.hold((child, 1), (0, 1))
    replay(one(maker), model=Fixed(), prompts=Prompts(), tree_count=1, make_transport=Watch)
    children = ["build 0"] * 3
    assert log == [
        *["build 0", "arm", *children, "build 1"],  # children and next turn are built ahead
        *["arm", "arm", "arm", "arm", *["build 1"] * 3],
        *["arm", "arm", "arm", *["build 2"] * 3],  # woken together by the barrier
        *["arm", "arm", "arm"],
    ]


def test_identity_of_requests() -> None:
    maker = TreeMaker().root(make_turn(0, tokens=130, out=0), make_turn(1))
    maker.branch(0, [(0, chain(1))], kind="flat")
    played = replay(one(maker), model=Fixed(), tree_count=2, endpoints=2, concurrency=1, phase="warmup")
    first, child = played.seen.of("trace")[0].identity, played.seen.of("trace::sa:001")[0].identity
    again = played.seen.of("trace", play=1)[0].identity
    assert (first.phase, first.lane, first.play, first.turn, first.depth) == ("warmup", 0, 0, 0, 0)
    assert (first.recorded_in, first.recorded_out, first.max_tokens) == (130, 0, 1)
    assert (first.total_blocks, first.roles, first.source_kind) == (2, (0, 1, 0), "weka_main")
    assert first.correlation_id == first.root_correlation_id and first.parent_correlation_id is None
    assert child.root_correlation_id == child.parent_correlation_id == first.correlation_id
    assert child.correlation_id != first.correlation_id and child.source_kind == "weka_flat"
    assert child.depth == 1 and child.endpoint == first.endpoint == 0
    assert again.correlation_id != first.correlation_id and again.endpoint == 1
    sequences = [identity.sequence for identity in played.seen.started_]
    assert sequences == list(range(len(sequences)))
    assert len({identity.request_id for identity in played.seen.started_}) == len(sequences)

"""Primers, accelerated warmup, hand-over (agentx-v1, sections 5.4 to 5.9; vectors of 12.1)."""

from __future__ import annotations

from typing import Any

import pytest
from support.replays import MS, SECOND, KeepAll, Played, replay
from support.trees import ListTrees, TreeMaker, chain, make_turn

from agentx_engine.core.rope import Rope
from agentx_engine.replay.engine import Replay
from agentx_engine.replay.options import ReplayOptions
from agentx_engine.replay.simserver import Answer, PlannedPrompt, PlannedPrompts
from agentx_engine.replay.simulated import SimulatedClock
from agentx_engine.transport.base import Outcome, Request
from agentx_engine.tree.model import ConversationTree, Turn

MIDDLE = (0.5, 0.5)  # t* is in the middle, nothing is drawn


class Fixed:
    """Every request takes `latency_ns`; outcomes by number of arming."""

    def __init__(self, latency_ns: int = SECOND, outcomes: dict[int, Outcome] | None = None) -> None:
        self.latency_ns = latency_ns
        self.outcomes = outcomes or {}

    def answer(self, request: Request, number: int) -> Answer:
        return Answer(self.latency_ns, 0, request.max_tokens, self.outcomes.get(number, Outcome.SUCCESS))


def recorded(name: str, *starts_s: float) -> ConversationTree:
    """A root whose turns were recorded at these times, with pauses of 1 s."""
    turns = [
        make_turn(k, start_ns=round(at * SECOND), delay_ns=SECOND, out=9) for k, at in enumerate(starts_s)
    ]
    return TreeMaker(name).root(*turns).tree()


def family() -> ConversationTree:
    """t* = 50 s: root turn 2 (at 60 s) waits for child 1, whose next turn is at 55 s; child 2 comes later."""
    root = [make_turn(k, start_ns=at * SECOND, delay_ns=SECOND) for k, at in enumerate((0, 10, 60, 100))]
    maker = TreeMaker("f").root(*root)
    first = [make_turn(k, start_ns=at * SECOND, delay_ns=SECOND) for k, at in enumerate((20, 55))]
    maker.branch(1, [(0, first)], start_ns=20 * SECOND, join_turn=2)
    maker.branch(2, [(5 * SECOND, [make_turn(0, start_ns=70 * SECOND)])], start_ns=65 * SECOND)
    return maker.tree()


def sent(played: Played, phase: str) -> list[tuple[str, int]]:
    return [(i.conversation_id, i.turn) for i in played.seen.started_ if i.phase == phase]


# -- primers


def test_primers_are_spread_by_their_leads() -> None:
    """Leads of 30, 12 and 2 s, of which 10 count: sent at 0, 0 and 8 s."""
    trees = [recorded(n, 0, at, 100) for n, at in (("a", 20), ("b", 38), ("c", 48))]
    played = replay(ListTrees(*trees), model=Fixed(), concurrency=3, tree_count=3, start_ratios=MIDDLE)
    assert [played.warmed(n, lane=k) for k, n in enumerate("abc")] == [[(1, 0)], [(1, 0)], [(1, 8 * SECOND)]]
    warmup = played.report.warmup
    assert warmup is not None and warmup.primers == 3 and warmup.closed_ns is None
    assert warmup.primed_ns == warmup.ended_ns == warmup.started_ns + 9 * SECOND
    assert played.start_ns == warmup.ended_ns + 50 * MS
    assert warmup.counts.started == warmup.counts.succeeded == 3
    assert played.report.counts.started == 3
    for record in played.seen.records:
        identity = record.identity
        assert identity.max_tokens == (1 if identity.phase == "warmup" else 9)
        assert identity.recorded_out == 9


def test_primers_at_once() -> None:
    trees = [recorded(n, 0, at, 100) for n, at in (("a", 20), ("b", 48))]
    played = replay(
        ListTrees(*trees), model=Fixed(), concurrency=2, tree_count=2, start_ratios=MIDDLE, burst_starts=True
    )
    assert [played.warmed(n, lane=k) for k, n in enumerate("ab")] == [[(1, 0)], [(1, 0)]]


def test_primers_pass_no_barrier_and_start_nothing() -> None:
    played = replay(ListTrees(family()), model=Fixed(), tree_count=1, start_ratios=MIDDLE)
    assert sent(played, "warmup") == [("f", 1), ("f::sa:001", 0)]
    # Profiling: child 1 at 55 - 50 s is the earliest, so it starts at 0; the root was recorded 5 s later.
    assert played.due("f::sa:001") == [0]
    assert played.due("f") == [5 * SECOND, 7 * SECOND]
    assert played.due("f::sa:002") == [11 * SECOND]
    stats = played.report.counts.branches
    assert (stats.children_carried_in, stats.children_spawned, stats.children_completed) == (1, 1, 2)
    assert (stats.parents_suspended, stats.parents_resumed, stats.joins_suppressed) == (1, 1, 0)


def test_a_gated_root_waits_for_its_child_and_for_its_own_time() -> None:
    played = replay(ListTrees(family()), model=Fixed(20 * SECOND), tree_count=1, start_ratios=MIDDLE)
    assert played.due("f")[0] == 20 * SECOND  # later than 5 s
    assert played.report.counts.join_waits == 1


def test_a_lane_without_a_root() -> None:
    maker = TreeMaker("a").root(make_turn(0), make_turn(1, start_ns=10 * SECOND))
    maker.branch(1, [(0, [make_turn(0, start_ns=100 * SECOND)])])
    played = replay(ListTrees(maker.tree()), model=Fixed(), tree_count=2, start_ratios=MIDDLE)
    assert sent(played, "warmup") == []
    assert sent(played, "profiling") == [("a::sa:001", 0), ("a", 0), ("a", 1), ("a::sa:001", 0)]
    first = played.seen.records[0].identity
    assert first.parent_correlation_id == first.root_correlation_id != first.correlation_id
    assert played.report.counts.trees_finished == 2


def test_correlation_ids_markers_and_prompts_go_on() -> None:
    opened: list[tuple[int, str | None]] = []
    ropes: list[tuple[int, int | None]] = []

    class Prompt(PlannedPrompt):
        turns: int = 0

        def advance(self, turn: Turn) -> None:
            assert turn.index == self.turns, "turns in order, each once"
            self.turns += 1
            super().advance(turn)

        def rope(self, turn: Turn, max_tokens: int | None = None) -> Rope:
            assert turn.index == self.turns - 1
            ropes.append((turn.index, max_tokens))
            return super().rope(turn, max_tokens)

    class Prompts(PlannedPrompts):
        def open(self, tree: ConversationTree, conversation: int, marker: str | None) -> PlannedPrompt:
            opened.append((conversation, marker))
            return Prompt(tree)

    played = replay(
        ListTrees(recorded("a", *range(0, 100, 10))),
        model=Fixed(),
        prompts=Prompts(),
        tree_count=1,
        start_ratios=MIDDLE,
        warmup_requests_per_lane=2,
    )
    assert sent(played, "warmup") == [("a", 4), ("a", 5), ("a", 6)]
    assert sent(played, "profiling") == [("a", 7), ("a", 8), ("a", 9)]
    assert len(opened) == 1
    assert len({i.correlation_id for i in played.seen.started_}) == 1
    assert [i.sequence for i in played.seen.started_] == [0, 1, 2, 0, 1, 2]
    assert {r for r in ropes if r[0] >= 8} == {(8, None), (9, None)}
    assert {r for r in ropes if r[0] < 7} == {(4, 1), (5, 1), (6, 1)}


# -- accelerated


def test_extra_requests_follow_each_other_without_pauses() -> None:
    trees = ListTrees(recorded("a", *range(0, 100, 10)))
    played = replay(trees, model=Fixed(), tree_count=1, start_ratios=MIDDLE, warmup_requests_per_lane=3)
    # t* = 45 s: primer of turn 4 at 0, answered after 1 s; then turns 5, 6, 7 one after the other.
    assert played.warmed("a") == [(4, 0), (5, SECOND), (6, 2 * SECOND), (7, 3 * SECOND)]
    warmup = played.report.warmup
    assert warmup is not None and warmup.extra_requests == [3] and warmup.extra_missing == 0
    assert played.due("a") == [0, 2 * SECOND]  # turns 8 and 9, with the recorded pause of 1 s again


def test_the_quota_is_per_lane_and_the_hand_over_keeps_the_recorded_distance() -> None:
    trees = ListTrees(recorded("a", *range(0, 100, 10)), recorded("b", *range(0, 1000, 100)))
    played = replay(
        trees, model=Fixed(), concurrency=2, tree_count=2, start_ratios=MIDDLE, warmup_requests_per_lane=2
    )
    assert sorted(sent(played, "warmup")) == [("a", 4), ("a", 5), ("a", 6), ("b", 4), ("b", 5), ("b", 6)]
    # Offsets from t* (45, 450 s): a at 70 - 45 = 25, b at 700 - 450 = 250.
    assert played.due("a")[0] == 0
    assert played.due("b", lane=1)[0] == 225 * SECOND
    burst = replay(
        trees,
        model=Fixed(),
        concurrency=2,
        tree_count=2,
        start_ratios=MIDDLE,
        warmup_requests_per_lane=2,
        burst_starts=True,
    )
    assert burst.due("a")[0] == burst.due("b", lane=1)[0] == 0


def test_lanes_recycle_in_the_warmup_and_offsets_count_from_the_first_turn() -> None:
    trees = ListTrees(recorded("a", 0, 10), recorded("b", 500, 507, 900))
    played = replay(trees, model=Fixed(), tree_count=1, start_ratios=MIDDLE, warmup_requests_per_lane=3)
    assert sent(played, "warmup") == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    # b goes on with turn 2, recorded 400 s after its first turn; it is the only lane, so that is the zero.
    assert sent(played, "profiling")[0] == ("b", 2)
    assert [t.trace_id for _, what, t, *_ in played.seen.trees if what == "start"] == ["a", "b"]
    assert played.report.counts.trees_started == 1


def test_a_lane_that_is_through_with_its_quota_gets_a_fresh_root() -> None:
    trees = ListTrees(recorded("a", 0, 10), recorded("b", 0, 10), recorded("c", 0, 10))
    played = replay(trees, model=Fixed(), tree_count=1, start_ratios=MIDDLE, warmup_requests_per_lane=1)
    assert sent(played, "warmup") == [("a", 0), ("a", 1)]
    assert sent(played, "profiling") == [("b", 0), ("b", 1)]


def test_warmup_without_t_star() -> None:
    trees = ListTrees(recorded("a", *range(5)))
    played = replay(trees, model=Fixed(), tree_count=1, warmup_requests_per_lane=2)
    assert sent(played, "warmup") == [("a", 0), ("a", 1)]
    assert sent(played, "profiling") == [("a", 2), ("a", 3), ("a", 4)]
    assert played.report.warmup is not None and played.report.warmup.primers == 0
    assert played.report.start is None


def test_warmup_by_time() -> None:
    trees = ListTrees(recorded("a", *range(100)))
    played = replay(trees, model=Fixed(), tree_count=1, warmup_duration_ns=4500 * MS)
    assert len(sent(played, "warmup")) == 5
    warmup = played.report.warmup
    assert warmup is not None and warmup.closed_ns == warmup.started_ns + 4500 * MS
    assert warmup.ended_ns == warmup.started_ns + 5 * SECOND
    assert (warmup.extra_requests, warmup.extra_missing) == ([5], 0)


def test_children_and_gates_of_the_accelerated_stage() -> None:
    # The child plays first (turn 1, without delay), which opens the gate; root turn 2 spawns the second.
    played = replay(
        ListTrees(family()), model=Fixed(), tree_count=1, start_ratios=MIDDLE, warmup_requests_per_lane=3
    )
    assert sent(played, "warmup") == [
        ("f", 1),
        ("f::sa:001", 0),
        ("f::sa:001", 1),
        ("f", 2),
        ("f::sa:002", 0),
    ]
    assert sent(played, "profiling") == [("f", 3)]
    warmup = played.report.warmup
    assert warmup is not None
    stats = warmup.counts.branches
    assert (stats.children_carried_in, stats.children_spawned, stats.children_completed) == (1, 1, 2)


def test_children_started_while_the_warmup_drains_are_parked() -> None:
    maker = TreeMaker("a").root(*chain(3, delay_ns=SECOND))
    maker.branch(0, [(0, chain(2)), (0, chain(2))], join_turn=1)
    played = replay(ListTrees(maker.tree()), model=Fixed(), tree_count=1, warmup_requests_per_lane=1)
    assert sent(played, "warmup") == [("a", 0)]
    assert played.due("a::sa:001") == played.due("a::sa:002") == [0, SECOND]
    assert played.due("a") == [2 * SECOND, 4 * SECOND]
    warmup = played.report.warmup
    assert warmup is not None and warmup.counts.branches.children_carried_out == 2
    assert played.report.counts.branches.children_carried_in == 2


def test_a_turn_behind_a_barrier_is_parked_and_held_again() -> None:
    maker = TreeMaker("a").root(*chain(2))
    maker.branch(0, [(0, chain(3)), (0, chain(1))], kind="flat").hold((2, 0), (1, 2))
    played = replay(ListTrees(maker.tree()), model=Fixed(), tree_count=1, warmup_requests_per_lane=3)
    assert sent(played, "warmup") == [("a", 0), ("a::sa:001", 0), ("a", 1)]
    assert played.due("a::sa:001") == [0, SECOND]
    assert played.due("a::sa:002") == [2 * SECOND]


def test_idle_caps_rest_in_the_accelerated_stage_and_work_in_the_others() -> None:
    trees = ListTrees(recorded("a", 0, 20, 100), recorded("b", 0, 48, 100))
    options: dict[str, Any] = {"concurrency": 2, "tree_count": 2, "start_ratios": MIDDLE}
    played = replay(trees, model=Fixed(), system_idle_cap_ns=3 * SECOND, **options)
    # Primers at 0 and 8 s: after the first returned at 1 s, 3 s idle, the second comes at 4 s.
    assert played.warmed("b", lane=1) == [(1, 4 * SECOND)]
    warmup = played.report.warmup
    assert warmup is not None and (warmup.counts.system_shifts, warmup.counts.system_shift_ns) == (
        1,
        4 * SECOND,
    )
    assert played.report.counts.system_shifts == 0
    slow = replay(
        trees,
        model=Fixed(100 * SECOND),
        system_idle_cap_ns=3 * SECOND,
        tree_idle_cap_ns=3 * SECOND,
        warmup_requests_per_lane=2,
        **options,
    )
    assert slow.report.warmup is not None
    assert slow.report.warmup.counts.tree_shifts == 0


# -- what may go wrong


@pytest.mark.parametrize("outcome", [Outcome.HTTP_STATUS, Outcome.CONTEXT_OVERFLOW, Outcome.RESET])
@pytest.mark.parametrize("number", [0, 3])
def test_a_failed_warmup_request_of_a_root_cancels_the_run(outcome: Outcome, number: int) -> None:
    trees = ListTrees(recorded("a", *range(0, 100, 10)), recorded("b", *range(0, 1000, 100)))
    played = replay(
        trees,
        model=Fixed(outcomes={number: outcome}),
        concurrency=2,
        start_ratios=MIDDLE,
        warmup_requests_per_lane=5,
        duration_ns=100 * SECOND,
    )
    report = played.report
    assert report.end_reason == "warmup_failed"
    assert report.error is not None and outcome.value in report.error and "lane" in report.error
    assert sent(played, "profiling") == []
    assert not report.interrupted and report.started_ns == report.stopped_ns == report.ended_ns


def test_a_failed_warmup_request_of_a_child_is_ignored() -> None:
    for number in range(1, 4):
        played = replay(
            ListTrees(family()),
            model=Fixed(outcomes={number: Outcome.HTTP_STATUS} if number != 3 else {4: Outcome.RESET}),
            tree_count=1,
            start_ratios=MIDDLE,
            warmup_requests_per_lane=3,
        )
        assert played.report.end_reason == "tree_count"
        assert sent(played, "profiling") == [("f", 3)]


def test_the_drain_of_the_warmup_is_bounded() -> None:
    class Stuck:
        def answer(self, request: Request, number: int) -> Answer:
            return Answer(SECOND if number < 2 else 500 * SECOND, 0, 1)

    trees = ListTrees(recorded("a", *range(0, 100, 10)))
    played = replay(
        trees, model=Stuck(), start_ratios=MIDDLE, warmup_requests_per_lane=2, warmup_grace_ns=100 * SECOND
    )
    report = played.report
    assert report.end_reason == "warmup_failed" and "100 s" in (report.error or "")
    assert report.warmup is not None and report.warmup.closed_ns is not None
    assert report.ended_ns == report.warmup.closed_ns + 100 * SECOND
    assert report.counts.failed == {Outcome.CANCELLED: 1}


@pytest.mark.parametrize("what", ["stop", "abort"])
@pytest.mark.parametrize("at_ms", [0, 20, 500, 1020, 1500, 3000, 3500, 4040, 4060, 5000])
def test_a_warmup_can_be_stopped_at_any_moment(what: str, at_ms: int) -> None:
    def before(run: Replay, clock: SimulatedClock, seen: KeepAll) -> None:
        clock.call_at(clock.now_ns() + at_ms * MS, getattr(run, what))

    played = replay(
        ListTrees(family(), recorded("a", *range(0, 100, 10))),
        model=Fixed(),
        concurrency=2,
        start_ratios=MIDDLE,
        warmup_requests_per_lane=3,
        before=before,
    )
    report = played.report
    assert report.end_reason == {"stop": "stopped", "abort": "aborted"}[what]
    assert report.counts.trees_finished == report.counts.trees_started or at_ms == 0
    assert report.lost == 0


def test_no_lane() -> None:
    maker = TreeMaker("a").root(make_turn(0))
    maker.branch(0, [(0, [make_turn(0, start_ns=SECOND)])], start_ns=5 * SECOND)
    played = replay(ListTrees(maker.tree()), start_ratios=(2.0, 2.0), tree_count=1)
    assert played.report.end_reason == "corpus"
    assert "no trace of the corpus can be started" in (played.report.error or "")


@pytest.mark.parametrize(
    "bad",
    [
        {"warmup_requests_per_lane": 2, "warmup_duration_ns": 5},
        {"warmup_requests_per_lane": -1},
        {"warmup_grace_ns": -1},
        {"system_idle_cap_ns": 0},
        {"tree_idle_cap_ns": 0},
        {"warmup_requests_per_lane": 1, "phase": "warmup"},
    ],
)
def test_impossible_options(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        ReplayOptions(concurrency=1, **bad)


def test_counters_of_the_phases() -> None:
    shots: list[tuple[str, str, int]] = []

    def before(run: Replay, clock: SimulatedClock, seen: KeepAll) -> None:
        for at_ms in (500, 2500, 3020, 6500):
            clock.call_at(
                clock.now_ns() + at_ms * MS,
                lambda: shots.append((run.counters.phase, run.counters.state, run.counters.started)),
            )

    trees = ListTrees(recorded("a", *range(0, 100, 10)))
    replay(
        trees,
        model=Fixed(),
        duration_ns=9 * SECOND,
        start_ratios=MIDDLE,
        warmup_requests_per_lane=2,
        before=before,
    )
    assert shots == [
        ("warmup", "sending", 1),
        ("warmup", "draining", 3),
        ("warmup", "draining", 3),
        ("profiling", "sending", 2),
    ]

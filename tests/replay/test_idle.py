"""Idle caps (agentx-v1, sections 6.6 and 6.7; vectors of 12.1)."""

from __future__ import annotations

import pytest
from support.replays import MS, SECOND, replay
from support.trees import ListTrees, TreeMaker, chain, make_turn

from agentx_engine.replay.idle import IdleCap
from agentx_engine.replay.simserver import Answer
from agentx_engine.replay.simulated import SimulatedClock
from agentx_engine.replay.timers import TimerSystem
from agentx_engine.transport.base import Request

START = 1_000_000_000


class Fixed:
    def __init__(self, latency_ns: int = SECOND) -> None:
        self.latency_ns = latency_ns

    def answer(self, request: Request, number: int) -> Answer:
        return Answer(self.latency_ns, 0, 1)


class Bench:
    """A timer system with two groups, and one cap over it or over the first group."""

    def __init__(self, cap_ns: int, *, tree: bool = False, lead_ns: int = 0) -> None:
        self.clock = SimulatedClock(START)
        self.system = TimerSystem(self.clock, lead_ns)
        self.one, self.two = self.system.group(), self.system.group()
        self.shifts: list[int] = []
        self.fired: list[tuple[str, int, int]] = []
        scope = self.one if tree else self.system
        self.cap = IdleCap(self.clock, scope, cap_ns, lead_ns, self.shifts.append)

    def at(self, name: str, after_ns: int, *, group: int = 1, held: bool = False) -> None:
        def fire(due: int) -> None:
            self.fired.append((name, due - START, self.clock.now_ns() - START))
            if held:
                self.cap.held()
            else:
                self.cap.busy()

        (self.one if group == 1 else self.two).at(START + after_ns, fire)

    def run(self) -> None:
        while self.clock.step():
            pass


def test_system_vector() -> None:
    """In 3 s: timers due in 40 and 55 s; the rest of 10 s is 7, so they come nearer by 33: in 7 and 22."""
    bench = Bench(10 * SECOND)
    bench.at("a", 43 * SECOND)
    bench.at("b", 58 * SECOND, group=2)
    bench.cap.start(START)
    bench.run()
    assert bench.shifts == [33 * SECOND]
    assert bench.fired == [("a", 10 * SECOND, 10 * SECOND), ("b", 25 * SECOND, 25 * SECOND)]


def test_tree_vector() -> None:
    """Timers due in 900 and 960 s: after 300 s they come nearer by 600. The other tree is untouched."""
    bench = Bench(300 * SECOND, tree=True)
    bench.at("a", 900 * SECOND)
    bench.at("b", 960 * SECOND)
    bench.at("other", 900 * SECOND, group=2)
    bench.cap.start(START)
    bench.run()
    assert bench.shifts == [600 * SECOND]
    due = [(name, due // SECOND) for name, due, _ in bench.fired]
    assert due == [("a", 300), ("b", 360), ("other", 900)]


def test_nothing_moves_before_the_cap_has_run_out_or_if_a_timer_is_nearer() -> None:
    bench = Bench(10 * SECOND)
    bench.at("a", 10 * SECOND)
    bench.cap.start(START)
    bench.run()
    assert bench.shifts == []


def test_requests_start_the_count_again() -> None:
    bench = Bench(10 * SECOND)
    bench.at("a", 50 * SECOND)
    bench.cap.start(START)
    bench.clock.call_at(START + 3 * SECOND, bench.cap.busy)
    bench.clock.call_at(START + 9 * SECOND, lambda: bench.cap.idle(START + 9 * SECOND))
    bench.clock.call_at(START + 15 * SECOND, bench.cap.busy)
    bench.clock.call_at(START + 16 * SECOND, lambda: bench.cap.idle(START + 16 * SECOND))
    bench.run()
    assert bench.fired == [("a", 26 * SECOND, 26 * SECOND)]
    assert bench.shifts == [24 * SECOND]


def test_the_idle_time_counts_from_the_plan_end() -> None:
    bench = Bench(10 * SECOND)
    bench.at("a", 50 * SECOND)
    bench.cap.start(START)
    bench.cap.busy()
    bench.clock.call_at(START + 5 * SECOND, lambda: bench.cap.idle(START + 4 * SECOND))  # handled late
    bench.run()
    assert bench.fired == [("a", 14 * SECOND, 14 * SECOND)]


def test_what_is_held_does_not_use_up_the_idle_time() -> None:
    """A turn that its gate holds has had its turn; the next timer must not wait for another cap."""
    bench = Bench(10 * SECOND)
    bench.at("held", 40 * SECOND, held=True)
    bench.at("held too", 45 * SECOND, group=2, held=True)
    bench.at("goes", 100 * SECOND)
    bench.at("after", 103 * SECOND)
    bench.cap.start(START)
    bench.run()
    assert [(name, due // SECOND) for name, due, _ in bench.fired] == [
        ("held", 10),
        ("held too", 10),
        ("goes", 10),
        ("after", 13),
    ]
    assert bench.shifts == [30 * SECOND, 5 * SECOND, 55 * SECOND]


def test_a_turn_held_before_the_cap_changes_nothing() -> None:
    bench = Bench(10 * SECOND)
    bench.at("held", 4 * SECOND, held=True)
    bench.at("goes", 100 * SECOND)
    bench.cap.start(START)
    bench.run()
    assert [(name, due // SECOND) for name, due, _ in bench.fired] == [("held", 4), ("goes", 10)]


def test_what_becomes_due_is_known_ahead_by_the_lead() -> None:
    bench = Bench(10 * SECOND, lead_ns=50 * MS)
    bench.at("a", 43 * SECOND)
    bench.cap.start(START)
    bench.run()
    assert bench.fired == [("a", 10 * SECOND, 10 * SECOND - 50 * MS)]


def test_stopped() -> None:
    bench = Bench(10 * SECOND)
    bench.at("a", 43 * SECOND)
    bench.cap.start(START)
    bench.cap.stop()
    bench.cap.idle(START)
    bench.run()
    assert bench.shifts == []


# -- in a replay


def test_a_recorded_pause_is_cut_to_the_cap() -> None:
    maker = TreeMaker().root(make_turn(0), make_turn(1, delay_ns=500 * SECOND), make_turn(2))
    played = replay(ListTrees(maker.tree()), model=Fixed(), tree_count=1, system_idle_cap_ns=10 * SECOND)
    assert played.due("trace") == [0, 11 * SECOND, 12 * SECOND]
    stamps = [r.result.stamps for r in played.seen.of("trace")]
    assert stamps[1].due - stamps[1].armed == 50 * MS
    assert not played.seen.of("trace")[1].identity.reactive
    counts = played.report.counts
    assert (counts.system_shifts, counts.system_shift_ns) == (1, 490 * SECOND)
    assert (counts.tree_shifts, counts.tree_shift_ns) == (0, 0)


@pytest.mark.parametrize("kind", ["system_idle_cap_ns", "tree_idle_cap_ns"])
def test_lanes_keep_their_distance_under_a_shift_of_all(kind: str) -> None:
    trees = [
        TreeMaker(n).root(make_turn(0), make_turn(1, delay_ns=d * SECOND))
        for n, d in (("a", 400), ("b", 403))
    ]
    played = replay(
        ListTrees(*(m.tree() for m in trees)),
        model=Fixed(),
        concurrency=2,
        tree_count=2,
        **{kind: 10 * SECOND},
    )
    second = [played.due("a")[1], played.due("b", lane=1)[1]]
    assert second == [11 * SECOND, (14 if kind.startswith("system") else 11) * SECOND]


def test_another_lane_in_flight_keeps_the_system_busy_but_not_the_tree() -> None:
    class ByTokens:
        def answer(self, request: Request, number: int) -> Answer:
            return Answer(request.max_tokens * SECOND, 0, 1)

    waits = TreeMaker("a").root(make_turn(0, out=1), make_turn(1, delay_ns=800 * SECOND, out=1))
    long = TreeMaker("b").root(make_turn(0, out=60), make_turn(1, delay_ns=900 * SECOND, out=1))
    trees = ListTrees(waits.tree(), long.tree())
    played = replay(trees, model=ByTokens(), concurrency=2, tree_count=2, system_idle_cap_ns=10 * SECOND)
    assert played.due("a") == [0, 70 * SECOND]
    played = replay(trees, model=ByTokens(), concurrency=2, tree_count=2, tree_idle_cap_ns=10 * SECOND)
    assert played.due("a") == [0, 11 * SECOND]
    assert played.due("b", lane=1) == [0, 70 * SECOND]


@pytest.mark.parametrize(("kind", "cap"), [("system_idle_cap_ns", 10), ("tree_idle_cap_ns", 300)])
def test_a_gated_root_does_not_eat_the_idle_time(kind: str, cap: int) -> None:
    """The root's recorded pause ends first, but it waits for a child that starts much later."""
    maker = TreeMaker().root(make_turn(0), make_turn(1, delay_ns=400 * SECOND))
    maker.branch(0, [(900 * SECOND, chain(1)), (905 * SECOND, chain(1))], join_turn=1)
    played = replay(ListTrees(maker.tree()), model=Fixed(), tree_count=1, **{kind: cap * SECOND})
    assert played.due("trace::sa:001") == [(1 + cap) * SECOND]
    assert played.due("trace::sa:002") == [(6 + cap) * SECOND]
    assert played.due("trace") == [0, (7 + cap) * SECOND]


@pytest.mark.parametrize(("kind", "cap"), [("system_idle_cap_ns", 10), ("tree_idle_cap_ns", 300)])
def test_a_turn_behind_a_barrier_does_not_eat_the_idle_time(kind: str, cap: int) -> None:
    maker = TreeMaker().root(make_turn(0), make_turn(1, delay_ns=400 * SECOND))
    maker.branch(0, [(500 * SECOND, chain(1)), (900 * SECOND, chain(1))], kind="flat")
    maker.hold((0, 1), (1, 0)).hold((1, 0), (2, 0))
    played = replay(ListTrees(maker.tree()), model=Fixed(), tree_count=1, **{kind: cap * SECOND})
    assert played.due("trace::sa:002") == [(1 + cap) * SECOND]
    assert played.due("trace::sa:001") == [(2 + cap) * SECOND]
    assert played.due("trace") == [0, (3 + cap) * SECOND]
    assert played.report.counts.barriers_broken == 0


def test_two_that_wake_together_of_which_one_is_held() -> None:
    """The one that can go must be given the time to; nothing else is pulled to its instant."""
    maker = TreeMaker().root(make_turn(0), make_turn(1, delay_ns=400 * SECOND))
    maker.branch(
        0, [(400 * SECOND, chain(1)), (400 * SECOND, chain(1)), (900 * SECOND, chain(1))], kind="flat"
    )
    maker.hold((0, 1), (3, 0)).hold((1, 0), (3, 0))
    played = replay(ListTrees(maker.tree()), model=Fixed(), tree_count=1, system_idle_cap_ns=10 * SECOND)
    assert played.due("trace::sa:002") == [11 * SECOND]
    assert played.due("trace::sa:003") == [22 * SECOND]  # 500 s later by the recording, and 10 s idle


def test_idle_lanes_are_counted() -> None:
    trees = ListTrees(
        TreeMaker("a").root(make_turn(0), make_turn(1, delay_ns=3 * SECOND)).tree(),
        TreeMaker("b").root(make_turn(0), make_turn(1, delay_ns=700 * SECOND)).tree(),
    )
    counts = replay(trees, model=Fixed(), concurrency=2, duration_ns=8 * SECOND).report.counts
    # a plays for 5 s with 3 s of pause, then b again: 1 s and 2 s idle. b is idle from 1 to 8 s.
    assert (counts.lane_idle_ns, counts.lane_idle_longest_ns) == ((3 + 2 + 7) * SECOND, 7 * SECOND)

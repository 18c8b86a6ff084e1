"""t*, lane start states, primers and send times, on vectors of the specification and small trees."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.recordings import request, subagent, trace
from support.trees import SECOND, ListTrees, TreeMaker, make_turn, trees

from agentx_engine.errors import CorpusError
from agentx_engine.replay.sampler import SequentialSampler
from agentx_engine.replay.start import (
    LaneStart,
    Primer,
    StreamStart,
    fresh_start,
    lane_seed,
    lane_start,
    resume_start,
    sample_t_star,
)
from agentx_engine.replay.start_document import start_document
from agentx_engine.replay.start_plan import LaneBuilder, build_lanes, schedule
from agentx_engine.tree import build_tree
from agentx_engine.tree.model import ConversationTree, Turn

MS = 1_000_000


def at(*seconds: float) -> list[Turn]:
    return [make_turn(k, start_ns=round(s * SECOND)) for k, s in enumerate(seconds)]


def dated(tree: ConversationTree, *branch_starts: float) -> ConversationTree:
    """The tree with recorded starts (s) of its branches."""
    branches = [
        msgspec.structs.replace(branch, start_ns=round(s * SECOND))
        for branch, s in zip(tree.branches, branch_starts, strict=True)
    ]
    return msgspec.structs.replace(tree, branches=tuple(branches))


def start_at(tree: ConversationTree, t_star_s: float) -> LaneStart:
    """The state at a given t*: with equal ratios nothing is drawn."""
    starts = [turn.start_ns for c in tree.conversations for turn in c.turns]
    first, last = min(starts), max(starts)
    ratio = (t_star_s * SECOND - first) / (last - first)
    start = lane_start(tree, 0, 42, ratio, ratio)
    assert start is not None
    assert start.t_star_ms == pytest.approx(t_star_s * 1e3, abs=1e-6)
    return start


def nexts(start: LaneStart) -> dict[str, int]:
    return {stream.id: stream.turn for stream in start.streams}


# -- the draw


@pytest.mark.parametrize(
    ("lane", "seed", "fraction"),
    [(0, 11509682169371680351, 0.4758883813720638), (1, 5993130205103126803, 0.9403233463535611)],
)
def test_vectors_of_the_specification(lane: int, seed: int, fraction: float) -> None:
    """agentx-v1, 12.1."""
    assert lane_seed(42, "trace_a", lane) == seed
    assert sample_t_star(seed, 0.0, 1.0, 0.0, 1.0) == fraction


def test_t_star_lies_between_the_shares() -> None:
    for lane in range(50):
        seed = lane_seed(7, "x", lane)
        assert 1250.0 <= sample_t_star(seed, 1000.0, 2000.0, 0.25, 0.75) <= 1750.0
    assert sample_t_star(1, 1000.0, 2000.0, 0.5, 0.5) == 1500.0
    assert sample_t_star(1, 1000.0, 1000.0, 0.25, 0.75) == 1000.0


@pytest.mark.parametrize(
    ("r0", "r1"), [(0.75, 0.25), (float("nan"), 1.0), (0.0, float("inf")), (0.0, float("nan"))]
)
def test_ratios_that_cannot_be_drawn_between(r0: float, r1: float) -> None:
    with pytest.raises(ValueError, match="ratios"):
        sample_t_star(1, 0.0, 1.0, r0, r1)


# -- one lane: streams


def test_next_is_the_first_turn_at_or_after_t_star() -> None:
    tree = TreeMaker().root(*at(0, 10, 20, 30)).tree()
    for t_star, turn, offset_ms in [(0, 0, 0), (0.5, 1, 9500), (10, 1, 0), (20.25, 3, 9750), (30, 3, 0)]:
        start = start_at(tree, t_star)
        assert nexts(start) == {"trace": turn}
        assert start.streams[0].offset_ms == pytest.approx(offset_ms, abs=1e-6)
        assert [p.turn for p in start.primers] == ([turn - 1] if turn else [])
        assert [(p.id, p.turns) for p in start.done] == ([("trace", turn)] if turn else [])
        assert start.slot_taken_by_lane is None
        assert start.waits_for == ()


def test_a_turn_in_flight_at_t_star_counts_as_returned() -> None:
    tree = build_tree(trace(request(0, [1], api=100), request(200, [1, 2]), request(300, [1, 2, 3])))
    start = start_at(tree, 50)
    assert nexts(start) == {"T": 1}
    assert start.done[0].turns == 1
    assert start.primers[0].lead_ms == pytest.approx(50_000)


def test_file_order_with_times_that_go_backwards() -> None:
    tree = TreeMaker().root(*at(0, 30, 10, 40)).tree()
    start = start_at(tree, 20)
    assert nexts(start) == {"trace": 1}, "the first turn of the file at or after t*, whatever follows"


@pytest.fixture
def family() -> ConversationTree:
    """Root at 0, 100, 200, 300 s. Turn 0 starts two children at 10 s, for whom turn 2 waits; turn 2 one
    at 250 s in the background, turn 1 one at 150 s for turn 3."""
    maker = TreeMaker().root(*at(0, 100, 200, 300))
    maker.branch(0, [(0, at(10, 50, 90)), (5 * SECOND, at(15, 20))], join_turn=2)
    maker.branch(2, [(0, at(250, 260))])
    maker.branch(1, [(0, at(150, 160))], join_turn=3)
    return dated(maker.tree(), 10, 250, 150)


A, B, C, D = (f"trace::sa:{n:03d}" for n in (1, 2, 3, 4))


@pytest.mark.parametrize(
    ("t_star", "want", "branches"),
    [
        (0, {"trace": 0}, ("ahead", "ahead", "ahead")),
        (1, {"trace": 1, A: 0, B: 0}, ("live", "ahead", "ahead")),  # spawned, none has begun yet
        (60, {"trace": 1, A: 2}, ("live", "ahead", "ahead")),  # one child of two has ended
        (95, {"trace": 1}, ("over", "ahead", "ahead")),
        (100, {"trace": 1}, ("over", "ahead", "ahead")),  # turn 1 itself is still to come
        (155, {"trace": 2, D: 1}, ("over", "ahead", "live")),
        (270, {"trace": 3}, ("over", "over", "over")),
        (255, {"trace": 3, C: 1}, ("over", "live", "over")),
    ],
)
def test_branches_around_t_star(
    family: ConversationTree, t_star: float, want: dict[str, int], branches: tuple[str, ...]
) -> None:
    start = start_at(family, t_star)
    assert nexts(start) == want
    assert start.branches == branches
    done = {prefix.id: prefix.turns for prefix in start.done}
    for conversation in family.conversations:
        before = sum(turn.start_ns < t_star * SECOND for turn in conversation.turns)
        assert done.get(conversation.id, 0) == before


def test_gated_root(family: ConversationTree) -> None:
    """12.2: the root waits for a child; the child's primer is sent, and the gated parent's too."""
    maker = TreeMaker().root(*at(0, 100, 200))
    maker.branch(0, [(0, at(10, 150)), (0, at(20, 30))], join_turn=1)
    maker.branch(0, [(0, at(40, 50))], join_turn=1)
    tree = dated(maker.tree(), 10, 40)
    start = start_at(tree, 60)
    assert start.root is not None
    assert start.root.gated
    assert start.root.feeds_turn is None
    assert start.waits_for == (1,), "whoever has ended is not waited for"
    assert start.branches == ("live", "over")
    assert start.slot_taken_by_lane == "gated_root"
    assert [s.id for s in start.ready] == [A]
    assert [(p.id, p.turn) for p in start.primers] == [("trace", 0), (A, 0)]
    (child,) = start.ready
    assert (child.branch, child.branch_id, child.feeds_turn) == (0, "trace:spawn:0", 1)


def test_a_child_for_a_later_turn_gates_nothing_yet(family: ConversationTree) -> None:
    start = start_at(family, 30)
    assert start.root is not None
    assert (start.root.turn, start.root.gated) == (1, False)
    assert [s.feeds_turn for s in start.streams] == [None, 2]


def test_children_without_turns_are_not_live() -> None:
    maker = TreeMaker().root(*at(0, 100, 200))
    maker.branch(0, [(0, [])], join_turn=1)
    start = start_at(dated(maker.tree(), 10), 50)
    assert nexts(start) == {"trace": 1}
    assert start.branches == ("over",)
    assert not start.streams[0].gated


def test_a_branch_is_started_at_most_once_where_times_contradict_the_order() -> None:
    """t* has passed the branch's start but not the root's spawning turn: live now, and not again later."""
    maker = TreeMaker().root(*at(0, 100, 20, 300))
    maker.branch(2, [(0, at(25, 250))])
    start = start_at(dated(maker.tree(), 25), 50)
    assert nexts(start) == {"trace": 1, A: 1}
    assert start.branches == ("live",)


def test_a_branch_that_nobody_starts_any_more_is_over() -> None:
    """The root has ended (its context overflowed) before the turn which would have started the branch."""
    maker = TreeMaker().root(*at(0, 10, 20, 30))
    maker.branch(0, [(0, at(5, 50))])
    maker.branch(2, [(0, at(25, 26))])
    start = resume_start(dated(maker.tree(), 5, 25), 0, live={1: 1}, done=[1, 1, 0], started={0})
    assert start.root is None
    assert start.branches == ("live", "over")


# -- worked examples


def subagents_as_in_12_2() -> ConversationTree:
    """trace_0277's clock: three subagents after turn 0, one after turn 6, all in completion stamps."""
    times = (0, 228, 248, 265, 282, 307, 347, 763, 818)
    roots = [request(t, range(k + 1), api=18.78 if k == 0 else 1.0) for k, t in enumerate(times)]
    inner = [request(s, [100, 101 + k], api=1.0) for k, s in enumerate((0.0, 12.0))]
    agents = [
        subagent(end, name, inner, duration_s=length)
        for name, end, length in (("1", 79.224, 59.75), ("2", 183.906, 164.445), ("3", 211.347, 191.873))
    ]
    last = subagent(723.533, "4", inner, duration_s=337.933)
    return build_tree(trace(roots[0], *agents, *roots[1:7], last, *roots[7:], trace_id="s", settled=True))


def test_worked_example_a_recorded_subagents() -> None:
    """12.2: t* = 392.691 s: the root's turn 7 waits for agent 4, which is live at turn 1."""
    tree = subagents_as_in_12_2()
    assert [b.join_turn for b in tree.branches] == [1, 7]
    start = start_at(tree, 392.691)
    assert nexts(start) == {"s": 7, "s::sa:4": 1}
    root, child = start.streams
    assert root.gated
    assert child.feeds_turn == 7
    assert child.offset_ms == pytest.approx(4_909, abs=1e-6)
    assert [(p.id, p.turn, round(p.lead_ms)) for p in start.primers] == [
        ("s", 6, 45_691),
        ("s::sa:4", 0, 7_091),
    ]
    times = schedule([start])
    assert times.primers_ns == ((0, 2_909 * MS),)
    # Profiling begins with the child; the join is not released before its own recorded time.
    assert times.zero_ms == child.offset_ms
    assert times.streams_ns == ((round((763 - 392.691) * SECOND) - 4_909 * MS, 0),)


def test_worked_example_b_hidden_agent_after_the_session() -> None:
    """12.3: at t* the session has ended, a hidden agent is to come: live from turn 0, no root, no primer."""
    calls = [request(t, range(t + 1), api=1.0) for t in (0, 10, 20)]
    late = [request(4415, [500, 501], api=9.52, model="other"), request(4437, [500, 501, 502], model="other")]
    tree = build_tree(trace(*calls, *late, trace_id="b"))
    assert [c.id for c in tree.conversations] == ["b", "b::fa:000"]
    assert tree.branches[0].background
    start = start_at(tree, 1763.135)
    assert start.root is None
    assert start.slot_taken_by_lane == "rootless"
    assert start.primers == ()
    (hidden,) = start.streams
    assert (hidden.id, hidden.turn, hidden.feeds_turn, hidden.gated) == ("b::fa:000", 0, None, False)
    assert hidden.offset_ms == pytest.approx(2_651_865)
    assert start.branches == ("live",)
    assert [tuple(prefix)[1:] for prefix in start.done] == [("b", 3)]


def test_barrier_streams_keep_their_prefixes() -> None:
    """12.4 (trace_0053): what a hidden agent had done by t* counts for the root's barriers."""
    hidden = [request(12, [900], api=1.0, model="other"), request(14, [900, 901], api=1.0, model="other")]
    again = request(500, [900, 901, 902], api=1.0, model="other")
    calls = [request(t, range(t + 1), api=1.0) for t in (0, 10, 20, 30, 400)]
    tree = build_tree(trace(*calls[:2], *hidden, *calls[2:], again, trace_id="h"))
    start = start_at(tree, 100)
    assert nexts(start) == {"h": 4, "h::fa:000": 2}
    assert {p.id: p.turns for p in start.done} == {"h": 4, "h::fa:000": 2}
    following = tree.root.turns[4]
    returned = {p.conversation: p.turns for p in start.done}
    assert following.predecessors
    assert all(ref.turn < returned[ref.conversation] for ref in following.predecessors)


# -- without a usable moment


def test_split_by_turns_where_nothing_is_live() -> None:
    maker = TreeMaker().root(*at(0, 1, 2, 3, 4, 5, 6, 7, 8, 9))
    maker.branch(1, [(0, at(1.5, 1.7))], join_turn=9)
    maker.branch(8, [(0, at(8.5, 8.7))])
    tree = dated(maker.tree(), 1.5, 8.5)
    seen = set()
    for lane in range(60):
        start = lane_start(tree, lane, 42, 1.01, 1.2)
        assert start is not None
        assert start.t_star_ms is None
        (stream,) = start.streams
        (primer,) = start.primers
        assert (stream.turn, stream.offset_ms, stream.gated) == (primer.turn + 1, 0.0, False)
        assert primer.turn == 8, "the share is cut to the last turn but one"
        assert start.branches == ("over", "over")
        assert {p.conversation: p.turns for p in start.done} == {0: 9, 1: 2, 2: 2}
        seen.add(primer.turn)
    assert schedule([start]).zero_ms == 0.0


def test_one_lane_without_a_moment_sets_profiling_to_zero() -> None:
    usual = start_at(TreeMaker().root(*at(0, 10, 20)).tree(), 5)
    split = lane_start(TreeMaker("b").root(*at(0, 10, 20)).tree(), 1, 42, 1.5, 1.5)
    assert split is not None
    times = schedule([usual, split])
    assert times.zero_ms == 0.0
    assert times.streams_ns == ((5 * SECOND,), (0,))


def test_what_is_not_usable() -> None:
    assert lane_start(TreeMaker().root().tree(), 0, 42, 0.25, 0.75) is None
    assert lane_start(TreeMaker().root(*at(3)).tree(), 0, 42, 1.0, 2.0) is not None, "no length: t* is 3 s"
    children = TreeMaker().root(*at(3)).branch(0, [(0, at(4, 5))]).tree()
    assert lane_start(dated(children, 4), 0, 42, 1.5, 1.5) is None


def test_a_single_turn_starts_cold() -> None:
    start = lane_start(TreeMaker().root(*at(3)).tree(), 0, 42, 0.25, 0.75)
    assert start is not None
    assert nexts(start) == {"trace": 0}
    assert (start.primers, start.done) == ((), ())


# -- all lanes


def usable(name: str) -> ConversationTree:
    return TreeMaker(name).root(*at(0, 10, 20, 30)).tree()


def empty(name: str) -> ConversationTree:
    return TreeMaker(name).root().tree()


def test_lanes_take_traces_in_order_and_skip_unusable_ones() -> None:
    source = ListTrees(usable("a"), empty("b"), usable("c"), usable("d"))
    plan = build_lanes(source, 3, 42, 0.25, 0.75)
    assert [(lane.lane, lane.trace_id) for lane in plan.lanes] == [(0, "a"), (1, "c"), (2, "d")]
    assert [lane.seed for lane in plan.lanes] == [lane_seed(42, n, i) for i, n in enumerate("acd")]
    assert plan.traces == (0, 2, 3)
    assert plan.skipped == ("b",)
    assert (plan.next_index, plan.next_trace) == (0, "a")
    assert source.loads == [0, 1, 2, 3]


def test_more_lanes_than_traces_wrap_around_and_load_once() -> None:
    source = ListTrees(usable("a"), usable("b"))
    plan = build_lanes(source, 5, 42, 0.25, 0.75)
    assert [lane.trace_id for lane in plan.lanes] == ["a", "b", "a", "b", "a"]
    assert len({lane.t_star_ms for lane in plan.lanes}) == 5, "each lane draws its own t*"
    assert plan.next_trace == "b"
    assert source.loads == [0, 1]


def test_asking_is_bounded() -> None:
    """concurrency + 2 x corpus asks, however few traces are usable."""
    source = ListTrees(empty("a"), empty("b"), usable("c"), empty("d"))
    plan = build_lanes(source, 100, 42, 0.25, 0.75)
    assert len(plan.lanes) == 27  # of 100 + 2 x 4 asks every fourth succeeds
    assert plan.skipped == ("a", "b", "d")
    with pytest.raises(CorpusError, match="no trace of the corpus can be started"):
        build_lanes(ListTrees(empty("a")), 2, 42, 0.25, 0.75)


def test_the_sampler_goes_on_where_the_lanes_stopped() -> None:
    source = ListTrees(*map(usable, "abc"))
    sampler = SequentialSampler(3)
    sampler.take()
    plan = build_lanes(source, 1, 42, 0.25, 0.75, sampler=sampler)
    assert plan.lanes[0].trace_id == "b"
    assert sampler.take() == plan.next_index == 2


def test_builder_is_driven_from_outside() -> None:
    source = ListTrees(usable("a"), empty("b"))
    builder = LaneBuilder(source, 2, 42, 0.25, 0.75)
    with pytest.raises(ValueError, match="asked"):
        builder.offer(usable("a"))
    assert builder.ask() == 0
    assert builder.offer(source.load(0)) is not None
    assert builder.ask() == 1
    assert builder.offer(source.load(1)) is None
    assert builder.ask() == 0
    assert builder.offer(source.load(0)) is not None
    assert builder.ask() is None
    assert builder.plan() == build_lanes(source, 2, 42, 0.25, 0.75)


# -- send times


def a_lane(
    *offsets_s: float, leads_s: Sequence[float] = (), gated: bool = False, t_star_ms: float | None = 0.0
) -> LaneStart:
    streams = tuple(
        StreamStart(i, str(i), 1, s * 1e3, gated=gated and i == 0, branch=i or None)
        for i, s in enumerate(offsets_s)
    )
    primers = tuple(Primer(i, str(i), 0, s * 1e3) for i, s in enumerate(leads_s))
    return LaneStart(
        lane=0,
        trace_id="x",
        seed=0,
        first_ms=0,
        last_ms=1,
        t_star_ms=t_star_ms,
        streams=streams,
        primers=primers,
    )


def seconds(times: tuple[tuple[int, ...], ...]) -> list[list[float]]:
    return [[ns / SECOND for ns in lane] for lane in times]


def test_primers_are_spread_by_clamped_leads() -> None:
    """12.1: leads 30, 12, 2 s -> clamped 10, 10, 2 -> sent at 0, 0, 8 s."""
    lanes = [a_lane(1, leads_s=[30]), a_lane(1, 1, leads_s=[12, 2])]
    assert seconds(schedule(lanes).primers_ns) == [[0], [0, 8]]
    assert seconds(schedule(lanes, lead_cap_ms=None).primers_ns) == [[0], [18, 28]]
    assert seconds(schedule(lanes, burst=True).primers_ns) == [[0], [0, 0]]
    short = [a_lane(1, leads_s=[3]), a_lane(1, leads_s=[2])]
    assert seconds(schedule(short).primers_ns) == [[0], [1]], "the longest lead opens the phase"
    assert schedule([a_lane(1)]).primers_ns == ((),)


def test_profiling_begins_with_the_earliest_stream_of_all_lanes() -> None:
    lanes = [a_lane(7, 9), a_lane(4, 100), a_lane(2, 5, gated=True)]
    times = schedule(lanes)
    assert times.zero_ms == 4_000, "a gated root does not count"
    assert seconds(times.streams_ns) == [[3, 5], [0, 96], [0, 1]]
    assert seconds(schedule(lanes, burst=True).streams_ns) == [[0, 2], [0, 96], [0, 0]]
    gated = schedule([a_lane(50, 10, gated=True), a_lane(4)], burst=True)
    assert seconds(gated.streams_ns) == [[46, 0], [0]], "a join counts from the phase's zero"


def test_times_are_rounded_once() -> None:
    """Offsets 0.6 ns and 1.4 ns are 1 ns each, their difference 0.8 ns too: not the difference of rounded."""
    lanes = [a_lane(0.6e-9), a_lane(1.4e-9)]
    assert schedule(lanes).streams_ns == ((0,), (1,))


# -- after extra warmup


def test_resumed_tree(family: ConversationTree) -> None:
    """5.6: offsets count from the lane's t*, never below 0; gates and prefixes are those of now."""
    start = resume_start(
        family, 3, live={0: 3, 3: 0, 4: 1}, done=[3, 3, 2, 0, 1], started={0, 1, 2}, t_star_ms=155_000.0
    )
    assert nexts(start) == {"trace": 3, C: 0, D: 1}
    assert [s.offset_ms for s in start.streams] == [145_000, 95_000, 5_000]
    assert start.waits_for == (4,)
    assert start.branches == ("over", "live", "live")
    assert start.primers == ()
    assert [p.turns for p in start.done] == [3, 3, 2, 1]
    late = resume_start(family, 3, live={4: 1}, done=[4, 3, 2, 2, 1], started={0, 1, 2}, t_star_ms=290_000.0)
    assert [s.offset_ms for s in late.streams] == [0.0]
    assert late.slot_taken_by_lane == "rootless"
    with pytest.raises(ValueError, match="nothing to resume"):
        resume_start(family, 3, live={}, done=[4, 3, 2, 2, 2], started={0, 1, 2})


def test_fresh_tree(family: ConversationTree) -> None:
    start = fresh_start(family, 1)
    assert nexts(start) == {"trace": 0}
    assert start.streams[0].offset_ms == 0.0
    assert start.branches == ("ahead", "ahead", "ahead")
    assert start.done == ()


# -- any tree


@given(trees(contradictions=False), st.integers(0, 3), st.floats(0, 1), st.floats(0, 1))
def test_start_states_hold_together(tree: ConversationTree, lane: int, a: float, b: float) -> None:
    start = lane_start(tree, lane, 42, min(a, b), max(a, b))
    if not tree.requests:
        assert start is None
        return
    assert start is not None, "with ratios up to 1 some turn is always at or after t*"
    assert start.streams
    assert start.t_star_ms is not None
    assert start == lane_start(tree, lane, 42, min(a, b), max(a, b))
    done = {prefix.conversation: prefix.turns for prefix in start.done}
    seen: set[int] = set()
    for stream in start.streams:
        assert stream.conversation not in seen
        seen.add(stream.conversation)
        turns = tree.conversations[stream.conversation].turns
        assert stream.turn == done.get(stream.conversation, 0) < len(turns)
        assert turns[stream.turn].start_ns / 1e6 >= start.t_star_ms
        assert stream.offset_ms >= 0
        if stream.branch is not None:
            assert start.branches[stream.branch] == "live"
    assert len(start.primers) == sum(1 for stream in start.streams if stream.turn)
    assert all(primer.lead_ms > 0 for primer in start.primers)
    assert start.ready, "somebody can always begin"
    for number, branch in enumerate(tree.branches):
        if start.branches[number] == "ahead":
            assert start.root is not None
            assert start.root.turn <= branch.spawn_turn
            assert not seen & {child for child, _ in branch.children}
    times = schedule([start])
    assert min(ns for s, ns in zip(start.streams, times.streams_ns[0], strict=True) if not s.gated) == 0
    assert all(ns >= 0 for ns in (*times.streams_ns[0], *times.primers_ns[0]))


def test_document_of_an_unusual_plan() -> None:
    """Nothing recorded at the moment: null, not a missing key or a zero."""
    plan = build_lanes(ListTrees(usable("a")), 1, 42, 1.5, 1.5)
    document = start_document(plan)
    assert document["lanes"][0]["t_star_s"] is None
    assert document["lanes"][0]["primers"] == [{"id": "a", "turn": 2, "lead_ms": 0, "send_at_ms": 0}]
    assert document["ratios"] == [1.5, 1.5]

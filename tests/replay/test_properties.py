"""Any tree, any outcomes, any end: what must always hold."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st
from support.dice import DICE, Dice
from support.replays import MS, SECOND, KeepAll, Played, replay
from support.trees import ListTrees, trees

from agentx_engine.metrics.record import RequestRecord
from agentx_engine.replay.engine import Replay
from agentx_engine.replay.simulated import SimulatedClock
from agentx_engine.transport.base import Outcome
from agentx_engine.tree.model import ConversationTree

EXAMPLES = 40

CORPORA = st.integers(1, 3).flatmap(lambda n: st.tuples(*(trees(f"trace{k}") for k in range(n))))


def plays(played: Played) -> dict[str, dict[tuple[int, int], RequestRecord]]:
    """Records by live tree, then by (conversation, turn)."""
    found: dict[str, dict[tuple[int, int], RequestRecord]] = defaultdict(dict)
    for record in played.seen.records:
        identity = record.identity
        name = identity.conversation_id
        place = (int(name.rpartition(":")[2]) if "::" in name else 0, identity.turn)
        assert place not in found[identity.root_correlation_id], "a turn was sent twice"
        found[identity.root_correlation_id][place] = record
    return found


def always(played: Played, corpus: tuple[ConversationTree, ...], concurrency: int) -> None:
    """Invariants of every replay, however it ended."""
    live = most = 0
    for _, what, *_ in played.seen.trees:
        live += 1 if what == "start" else -1
        most = max(most, live)
    assert most <= concurrency and live == 0
    sequences = [r.identity.sequence for r in played.seen.records]
    sequences += [identity.sequence for identity in played.seen.withdrawn_]
    assert sorted(sequences) == list(range(len(played.seen.started_)))
    counts = played.report.counts
    assert counts.finished == counts.started == len(played.seen.records)
    assert counts.succeeded + sum(counts.failed.values()) == counts.finished
    assert counts.withdrawn == len(played.seen.withdrawn_)
    assert played.report.lost == 0 and played.report.error is None and played.report.unrecorded == []
    by_id = {tree.trace_id: tree for tree in corpus}
    for records in plays(played).values():
        tree = by_id[next(iter(records.values())).identity.trace_id]
        for (c, k), record in records.items():
            stamps = record.result.stamps
            assert stamps.first_sent is None or stamps.first_sent >= stamps.due
            if k:
                assert (c, k - 1) in records
                assert stamps.armed >= records[c, k - 1].result.plan_end_ns
            for branch in tree.conversations[c].turns[k].joins:
                for child, _ in tree.branches[branch].children:
                    for turn in range(len(tree.conversations[child].turns)):
                        if (child, turn) in records:
                            assert stamps.due >= records[child, turn].result.plan_end_ns


def planned_due(
    tree: ConversationTree, records: dict[tuple[int, int], RequestRecord], c: int, k: int, start_ns: int
) -> int:
    """The due time of a turn by the definition, from the plan ends of what caused it."""

    def end(place: tuple[int, int]) -> int:
        return records[place].result.plan_end_ns

    def last_end(conversation: int) -> int:
        return max((end(p) for p in records if p[0] == conversation), default=-1)

    turn = tree.conversations[c].turns[k]
    if k:
        due = end((c, k - 1)) + turn.delay_ns
    elif c == 0:
        due = start_ns
    else:
        (branch,) = (b for b in tree.branches if c in [child for child, _ in b.children])
        delay = dict(branch.children)[c]
        spawn = (0, branch.spawn_turn)
        due = delay + (
            records[spawn].result.stamps.due if branch.when == "issue" else end(spawn) + branch.pause_ns
        )
    for index in turn.joins:
        due = max([due, *(last_end(child) for child, _ in tree.branches[index].children)])
    for place in turn.predecessors:
        if tuple(place) in records:
            due = max(due, end(tuple(place)))
        elif any(p[0] == place.conversation for p in records):
            due = max(due, last_end(place.conversation))  # it died before that turn
        else:
            due = max(due, last_end(0))  # never started, which is settled when the root has ended
    return due


@settings(max_examples=EXAMPLES, deadline=None)
@given(CORPORA, DICE, st.integers(1, 4), st.integers(1, 6), st.sampled_from([0, 1, 2 * MS, 70 * MS]))
def test_whole_trees(
    corpus: tuple[ConversationTree, ...], dice: Dice, concurrency: int, count: int, delivery_ns: int
) -> None:
    played = replay(
        ListTrees(*corpus), model=dice, concurrency=concurrency, tree_count=count, delivery_ns=delivery_ns
    )
    always(played, corpus, concurrency)
    assert played.report.end_reason == "tree_count"
    assert played.report.counts.trees_finished == count
    assert played.seen.withdrawn_ == []
    by_id = {tree.trace_id: tree for tree in corpus}
    start = {tree.root_correlation_id: at for _, what, tree, at, _ in played.seen.trees if what == "start"}
    end = {tree.root_correlation_id: at for _, what, tree, at, _ in played.seen.trees if what == "end"}
    for root_id, records in plays(played).items():
        tree = by_id[next(iter(records.values())).identity.trace_id]
        assert end[root_id] == max(r.result.plan_end_ns for r in records.values())
        overflows = [p for p, r in records.items() if r.result.outcome is Outcome.CONTEXT_OVERFLOW]
        if not overflows:
            assert len(records) == tree.requests
        for c, k in overflows:
            assert (c, k + 1) not in records
        if played.report.counts.barriers_broken:
            continue
        for (c, k), record in records.items():
            stamps = record.result.stamps
            assert stamps.due == planned_due(tree, records, c, k, start[root_id])
            assert stamps.armed <= max(stamps.due, stamps.armed)


LIMITS = st.fixed_dictionaries(
    {
        "duration_ns": st.sampled_from([None, 1, 30 * MS, SECOND, 200 * SECOND, 3000 * SECOND]),
        "request_count": st.sampled_from([None, 1, 2, 7]),
    }
)
CALLS = st.lists(st.tuples(st.sampled_from(["stop", "abort"]), st.integers(0, 2_000_000)), max_size=2)


@settings(max_examples=EXAMPLES, deadline=None)
@given(CORPORA, DICE, st.integers(1, 4), LIMITS, st.tuples(st.sampled_from([0, 20 * MS, 50 * SECOND]), CALLS))
def test_any_end(
    corpus: tuple[ConversationTree, ...],
    dice: Dice,
    concurrency: int,
    limits: dict[str, int | None],
    ends: tuple[int, list[tuple[str, int]]],
) -> None:
    bound_ns, calls = ends
    duration_ns, request_count = limits["duration_ns"], limits["request_count"]
    if duration_ns is None and request_count is None and not calls:
        calls = [("stop", 77_000)]

    def before(run: Replay, clock: SimulatedClock, seen: KeepAll) -> None:
        for what, at_ms in calls:
            clock.call_at(clock.now_ns() + at_ms * MS, getattr(run, what))

    played = replay(
        ListTrees(*corpus),
        model=dice,
        concurrency=concurrency,
        **limits,
        grace_ns=bound_ns,
        drain_ns=bound_ns,
        before=before,
    )
    always(played, corpus, concurrency)
    report = played.report
    assert report.end_reason in ("duration", "request_count", "stopped", "aborted")
    assert report.started_ns <= report.stopped_ns
    assert report.ended_ns <= report.stopped_ns + bound_ns
    dues = [r.result.stamps.due for r in played.seen.records]
    if duration_ns is not None:
        assert all(due < report.started_ns + duration_ns for due in dues)
        assert report.stopped_ns <= report.started_ns + duration_ns
    if request_count is not None:
        assert len(played.seen.started_) <= request_count
    if report.end_reason == "request_count" and not report.interrupted:
        assert len(played.seen.records) == request_count
    if report.end_reason in ("stopped", "aborted"):
        assert all(due <= report.stopped_ns for due in dues)
        sent = [r.result.stamps.first_sent for r in played.seen.records]
        assert all(at is None or at <= report.stopped_ns for at in sent)


@settings(max_examples=20, deadline=None)
@given(CORPORA, DICE, st.integers(1, 4))
def test_two_runs_are_the_same(corpus: tuple[ConversationTree, ...], dice: Dice, concurrency: int) -> None:
    first, second = (
        replay(ListTrees(*corpus), model=dice, concurrency=concurrency, duration_ns=900 * SECOND)
        for _ in range(2)
    )
    assert first.seen.events == second.seen.events

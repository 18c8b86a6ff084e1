"""Any trees, any outcomes, any options of warmup, caps and policies: what must always hold."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.dice import ANY_DICE, Dice
from support.replays import MS, SECOND, KeepAll, Played, replay
from support.trees import ListTrees, trees

from agentx_engine.metrics.record import RequestRecord
from agentx_engine.replay.engine import Replay
from agentx_engine.replay.options import BranchStats, Counters
from agentx_engine.replay.simulated import SimulatedClock
from agentx_engine.tree.model import ConversationTree

EXAMPLES = 80
CORPORA = st.integers(1, 3).flatmap(lambda n: st.tuples(*(trees(f"trace{k}") for k in range(n))))
RATIOS = st.sampled_from([None, (0.0, 0.0), (0.25, 0.75), (0.0, 1.0), (1.0, 1.0), (0.9, 1.3)])
CAPS = st.fixed_dictionaries(
    {
        "system_idle_cap_ns": st.sampled_from([None, 20 * MS, SECOND, 10 * SECOND]),
        "tree_idle_cap_ns": st.sampled_from([None, 30 * MS, 5 * SECOND, 300 * SECOND]),
    }
)
WARMUP = st.fixed_dictionaries(
    {
        "start_ratios": RATIOS,
        "warmup_requests_per_lane": st.sampled_from([0, 0, 1, 2, 5, 12]),
        "burst_starts": st.booleans(),
        "seed": st.integers(0, 9),
    }
)
HABITS = st.fixed_dictionaries(
    {"child_pause": st.booleans(), "release_dead": st.booleans(), "fail_fast": st.booleans()}
)

KIND = st.just({"release_dead": True})
LANES = st.fixed_dictionaries({"concurrency": st.integers(1, 4)})


def merged(*parts: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(*parts).map(lambda dicts: {k: v for one in dicts for k, v in one.items()})


def settled(stats: BranchStats) -> None:
    began = stats.children_carried_in + stats.children_spawned
    ended = stats.children_completed + stats.children_errored + stats.children_truncated
    assert began == ended + stats.children_carried_out
    assert stats.parents_suspended == (
        stats.parents_resumed + stats.joins_suppressed + stats.parents_carried_out
    )


def counted(counts: Counters, records: list[RequestRecord]) -> None:
    assert counts.started == counts.finished == len(records)
    assert counts.succeeded == sum(r.result.outcome.ok for r in records)
    assert counts.succeeded + sum(counts.failed.values()) == counts.finished
    settled(counts.branches)


def place(record: RequestRecord) -> tuple[int, int]:
    name = record.identity.conversation_id
    return (int(name.rpartition(":")[2]) if "::" in name else 0, record.identity.turn)


def always(played: Played, corpus: tuple[ConversationTree, ...], options: dict[str, Any]) -> None:
    report, records = played.report, played.seen.records
    assert (report.error is None) == (report.end_reason != "warmup_failed")
    assert report.lost == 0 and report.unrecorded == [] and report.traceback is None
    live = most = 0
    for _, what, *_ in played.seen.trees:
        live += 1 if what == "start" else -1
        most = max(most, live)
    assert most <= options["concurrency"] and live == 0
    phases: dict[str, list[RequestRecord]] = {"warmup": [], "profiling": []}
    for record in records:
        phases[record.identity.phase].append(record)
        stamps = record.result.stamps
        assert stamps.first_sent is None or stamps.first_sent >= stamps.due
        assert stamps.due - stamps.armed <= 50 * MS
    for phase, own in phases.items():
        numbers = [r.identity.sequence for r in own]
        numbers += [i.sequence for i in played.seen.withdrawn_ if i.phase == phase]
        assert sorted(numbers) == list(range(len(numbers)))
    assert all(r.identity.max_tokens == 1 for r in phases["warmup"])
    warmup, ended_early = report.warmup, report.end_reason == "warmup_failed"
    if warmup is None or ended_early:
        counted(report.counts, records)
    else:
        assert warmup.primed_ns is not None and warmup.ended_ns is not None
        assert warmup.started_ns <= warmup.primed_ns <= warmup.ended_ns <= report.started_ns
        counted(warmup.counts, phases["warmup"])
        counted(report.counts, phases["profiling"])
        assert warmup.counts.branches.children_carried_out == report.counts.branches.children_carried_in
        assert warmup.counts.branches.children_truncated == 0
        assert all(r.result.plan_end_ns <= report.started_ns for r in phases["warmup"])
        assert all(r.result.stamps.due >= report.started_ns for r in phases["profiling"])
        lanes, quota = len(warmup.extra_requests), options["warmup_requests_per_lane"]
        assert len(phases["warmup"]) == warmup.primers + sum(warmup.extra_requests)
        if quota and not played.report.interrupted:
            assert sum(warmup.extra_requests) + warmup.extra_missing == quota * lanes
            assert all(sent <= quota for sent in warmup.extra_requests)
            assert warmup.extra_missing == 0 or not options["release_dead"]
    streams(played, corpus)


def streams(played: Played, corpus: tuple[ConversationTree, ...]) -> None:
    """Turns, gates and barriers of every live tree, across both phases."""
    by_id = {tree.trace_id: tree for tree in corpus}
    warmup = played.report.warmup
    plays: dict[str, list[RequestRecord]] = defaultdict(list)
    for record in played.seen.records:
        plays[record.identity.root_correlation_id].append(record)
    for records in plays.values():
        tree = by_id[records[0].identity.trace_id]
        assert len({r.identity.lane for r in records}) == 1
        turns: dict[tuple[int, int], RequestRecord] = {}
        primers: dict[int, RequestRecord] = {}
        correlation: dict[int, str] = {}
        for record in sorted(records, key=lambda r: r.result.stamps.armed):
            c, k = place(record)
            assert correlation.setdefault(c, record.identity.correlation_id) == record.identity.correlation_id
            early = warmup is not None and record.identity.phase == "warmup"
            if early and warmup is not None and record.identity.sequence < warmup.primers:
                assert c not in primers
                primers[c] = record
            else:
                assert (c, k) not in turns, "a turn was sent twice"
                turns[c, k] = record
        for (c, k), record in turns.items():
            stamps = record.result.stamps
            if (c, k - 1) in turns:
                assert stamps.armed >= turns[c, k - 1].result.plan_end_ns
            elif k:
                assert c not in primers or primers[c].identity.turn == k - 1
                assert (c, k) == min(p for p in turns if p[0] == c)
            if c in primers:
                assert primers[c].result.plan_end_ns <= stamps.armed
                assert k > primers[c].identity.turn
            for branch in tree.conversations[c].turns[k].joins:
                for child, _ in tree.branches[branch].children:
                    for other in (p for p in turns if p[0] == child):
                        assert stamps.due >= turns[other].result.plan_end_ns, "a gate was passed"
            if not played.report.counts.barriers_broken and (
                warmup is None or not warmup.counts.barriers_broken
            ):
                for before in tree.conversations[c].turns[k].predecessors:
                    if tuple(before) in turns:
                        assert stamps.due >= turns[tuple(before)].result.plan_end_ns, "a barrier was passed"


def never_idle_longer(records: list[RequestRecord], start_ns: int, cap_ns: int, slack_ns: int) -> None:
    """Between requests no more than `cap_ns` passes with nothing in flight.

    Unless the next one has been armed before the cap ran out, or that there was nothing left to wait for was
    not known yet.
    """
    busy_until = start_ns
    for record in sorted(records, key=lambda r: r.result.stamps.due):
        assert record.result.stamps.due - busy_until <= max(cap_ns, 50 * MS + slack_ns)
        busy_until = max(busy_until, record.result.plan_end_ns)


@settings(max_examples=EXAMPLES)
@given(CORPORA, ANY_DICE, merged(LANES, WARMUP, CAPS, HABITS), st.sampled_from([0, 1, 2 * MS, 70 * MS]))
def test_runs_of_a_duration(
    corpus: tuple[ConversationTree, ...],
    dice: Dice,
    options: dict[str, Any],
    delivery_ns: int,
) -> None:
    played = replay(
        ListTrees(*corpus),
        model=dice,
        delivery_ns=delivery_ns,
        duration_ns=900 * SECOND,
        grace_ns=95 * SECOND,
        **options,
    )
    always(played, corpus, options)
    report = played.report
    assert report.end_reason in ("duration", "warmup_failed")
    if report.end_reason == "warmup_failed":
        failed = [r for r in played.seen.records if not r.result.outcome.ok and r.identity.depth == 0]
        assert failed
        return
    assert report.stopped_ns == report.started_ns + 900 * SECOND
    assert all(r.result.stamps.due < report.stopped_ns for r in played.seen.records)
    own = [r for r in played.seen.records if r.identity.phase == "profiling"]
    if not options["release_dead"]:
        return
    if options["system_idle_cap_ns"] is not None:
        never_idle_longer(own, report.started_ns, options["system_idle_cap_ns"], delivery_ns)
    if options["tree_idle_cap_ns"] is not None:
        starts = {
            tree.root_correlation_id: at for _, what, tree, at, _ in played.seen.trees if what == "start"
        }
        for root, began_ns in starts.items():
            mine = [r for r in own if r.identity.root_correlation_id == root]
            never_idle_longer(
                mine, max(began_ns, report.started_ns), options["tree_idle_cap_ns"], delivery_ns
            )


@settings(max_examples=EXAMPLES)
@given(CORPORA, st.integers(0, 10**6), merged(LANES, WARMUP, CAPS, KIND))
def test_whole_trees_after_a_warmup_that_goes_well(
    corpus: tuple[ConversationTree, ...],
    seed: int,
    options: dict[str, Any],
) -> None:
    played = replay(
        ListTrees(*corpus), model=Dice(seed, 0.0), tree_count=options["concurrency"] + 2, **options
    )
    always(played, corpus, options)
    report = played.report
    assert report.end_reason == "tree_count"
    quota = options["warmup_requests_per_lane"]
    if report.warmup is not None:
        assert report.warmup.counts.started == report.warmup.primers + quota * len(
            report.warmup.extra_requests or ()
        )
        assert report.warmup.extra_missing == 0
    # Nothing is left out: of each tree every turn from where it began was sent.
    sent: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for record in played.seen.records:
        sent[record.identity.root_correlation_id].add(place(record))
    by_id = {tree.trace_id: tree for tree in corpus}
    for _, what, tree, *_ in played.seen.trees:
        if what != "end":
            continue
        plan, mine = by_id[tree.trace_id], sent[tree.root_correlation_id]
        for c in {place[0] for place in mine}:
            first = min(k for other, k in mine if other == c)
            assert {k for other, k in mine if other == c} == set(
                range(first, len(plan.conversations[c].turns))
            )


@settings(max_examples=EXAMPLES // 2)
@given(
    CORPORA,
    ANY_DICE,
    merged(LANES, WARMUP, CAPS, HABITS),
    st.lists(st.tuples(st.sampled_from(["stop", "abort"]), st.integers(0, 30_000)), min_size=1, max_size=2),
)
def test_any_end(
    corpus: tuple[ConversationTree, ...],
    dice: Dice,
    options: dict[str, Any],
    calls: list[tuple[str, int]],
) -> None:
    def before(run: Replay, clock: SimulatedClock, seen: KeepAll) -> None:
        for what, at_ms in calls:
            clock.call_at(clock.now_ns() + at_ms * MS, getattr(run, what))

    played = replay(ListTrees(*corpus), model=dice, before=before, **options)
    report = played.report
    assert report.end_reason in ("stopped", "aborted", "warmup_failed", "held")
    assert report.lost == 0 and report.unrecorded == [] and report.traceback is None
    ids = [i.request_id for i in played.seen.started_]
    assert sorted(ids) == sorted(
        [r.identity.request_id for r in played.seen.records] + [i.request_id for i in played.seen.withdrawn_]
    )
    settled(report.counts.branches)
    streams(played, corpus)


@settings(max_examples=25)
@given(CORPORA, ANY_DICE, merged(LANES, WARMUP, CAPS, HABITS))
def test_two_runs_are_the_same(
    corpus: tuple[ConversationTree, ...],
    dice: Dice,
    options: dict[str, Any],
) -> None:
    first, second = (
        replay(
            ListTrees(*corpus),
            model=dice,
            duration_ns=900 * SECOND,
            **options,
        )
        for _ in range(2)
    )
    assert first.seen.events == second.seen.events
    assert first.report.counts == second.report.counts

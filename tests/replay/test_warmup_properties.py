"""Any trees, any outcomes, any options of warmup, caps and policies: what must always hold."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.dice import ANY_DICE, Dice
from support.replay_checks import always, never_idle_longer, place, settled, streams
from support.replays import MS, SECOND, KeepAll, Played, replay
from support.trees import ListTrees, trees

from agentx_engine.replay.engine import Replay
from agentx_engine.replay.simulated import SimulatedClock
from agentx_engine.tree.model import ConversationTree

EXAMPLES = 40
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


def unusable(played: Played, options: dict[str, Any]) -> bool:
    """Beyond the end of a recording there may be nothing to start from."""
    beyond = options["start_ratios"] is not None and options["start_ratios"][1] > 1
    return beyond and played.report.end_reason == "corpus"


LANES = st.fixed_dictionaries({"concurrency": st.integers(1, 4)})


def merged(*parts: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(*parts).map(lambda dicts: {k: v for one in dicts for k, v in one.items()})


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
    if unusable(played, options):
        return
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
    if unusable(played, options):
        return
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
    by_id = {tree.trace_id: tree for tree in corpus}
    for record in played.seen.records:
        tree_of = by_id[record.identity.trace_id]
        sent[record.identity.root_correlation_id].add(place(record, tree_of))
    for _, what, tree, *_ in played.seen.trees:
        if what != "end":
            continue
        plan, mine = by_id[tree.trace_id], sent[tree.root_correlation_id]
        for c in {c for c, _ in mine}:
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
    if unusable(played, options):
        return
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

"""What must hold in every replay, with or without a warmup, however it ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from support.replays import MS, Played

from agentx_engine.metrics.record import RequestRecord
from agentx_engine.replay.options import BranchStats, Counters
from agentx_engine.tree.model import ConversationTree


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


def place(record: RequestRecord, tree: ConversationTree) -> tuple[int, int]:
    """(conversation, turn)."""
    names = [conversation.id for conversation in tree.conversations]
    return names.index(record.identity.conversation_id), record.identity.turn


def always(played: Played, corpus: Iterable[ConversationTree], options: dict[str, Any]) -> None:
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


def streams(played: Played, corpus: Iterable[ConversationTree]) -> None:
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
            c, k = place(record, tree)
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

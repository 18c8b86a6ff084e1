"""Checks of a finished run against the recording and against the simulated server's own log.

Three witnesses, joined on the request id: what the recording says (corpus and trees), what the client
wrote (the folder of the run), what the server saw (`sim --log`). Client and server share one host, so their
times are one clock; the wall pairing in run.json leads from the exported times back to it.

Nothing here looks at how the engine works inside. Expected instants are computed once more, from the
trees and from the ends in the records, and have to agree to the nanosecond: a due time has no tolerance. A
bound on how late a request may be is no part of it: that is the verdict's business, and the machine's.

    found = check_run(read_run(folder), read_plans(corpus), read_request_log(log))
    assert not found.problems, str(found)

`Findings.checked` counts what was looked at: a check that saw nothing has proved nothing.

Only for runs that play sessions from their beginning with the recorded pauses: a warmup or an idle cap moves
instants on purpose.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from support.run_files import FILES, Line, LiveTree, Plan, Roles, Run

from agentx_engine.sim.requestlog import RequestRecord as ServerLine
from agentx_engine.tree.model import Turn

MS = 1_000_000
BLOCK = 64
SHOWN = 12
MOVES_INSTANTS = (
    "system_idle_gap_cap_s",
    "trace_idle_gap_cap_s",
    "start_ratios",
    "warmup_requests_per_lane",
    "warmup_duration_s",
)

# Kernel stamps are wall times, turned into monotonic ones by an offset that is known better than this.
STAMP_ERROR_NS = MS
# What was due this long before the end has to have been sent: a result needs a moment to be handled.
HANDLING_NS = 500 * MS

Served = dict[str, ServerLine]


@dataclass
class Findings:
    problems: list[str] = field(default_factory=list)
    checked: Counter[str] = field(default_factory=Counter)

    def expect(self, what: str, holds: bool, problem: object) -> None:
        """Counts a look at `what`; notes the problem if it does not hold."""
        self.checked[what] += 1
        if not holds:
            self.problems.append(f"{what}: {problem}")

    def __str__(self) -> str:
        more = len(self.problems) - SHOWN
        shown = [f"{len(self.problems)} problems", *self.problems[:SHOWN]]
        return "\n".join(shown + ([f"... {more} more"] if more > 0 else []))


def check_run(
    run: Run, plans: dict[str, Plan], log: list[ServerLine], *, overhead: Callable[[Roles], int] | None = None
) -> Findings:
    """All checks but `check_cache`. `overhead`: the template tokens that the server was told to add."""
    moved = {name: value for name in MOVES_INSTANTS if (value := run.facts["settings"].get(name))}
    assert not moved, f"these checks do not know of {moved}"
    found = Findings()
    served = by_request(log)
    check_accounts(run, log, found)
    check_tokens(run, plans, served, found, overhead or (lambda _: 0))
    trees = run.trees(plans)
    for tree in trees:
        check_order(tree, served, found)
        check_waiting(run, tree, served, found)
        check_instants(run, tree, found)
    check_lanes(run, trees, list(plans), found)
    check_stamps(run, served, found)
    return found


def by_request(log: list[ServerLine]) -> Served:
    return {line.request_id: line for line in log if line.request_id is not None}


def check_accounts(run: Run, log: list[ServerLine], found: Findings) -> None:
    """Whatever was started is in exactly one file; whatever the server got is among it."""
    counts, lines = run.summary["counts"], run.by_id
    found.expect(
        "nothing lost",
        not (run.replay["lost"] or run.replay["unrecorded"] or run.summary["records"]["dropped"]),
        f"{run.replay}, {run.summary['records']}",
    )
    found.expect(
        "started requests have a record",
        counts["requests_started"] == counts["finished"] == len(run.lines) == run.counters["finished"],
        f"{counts}, {len(run.lines)} lines",
    )
    files = Counter(line.file for line in run.lines)
    counted = {FILES[1]: counts["cancelled"], FILES[2]: counts["context_overflows"]}
    counted[FILES[0]] = counts["finished"] - sum(counted.values())
    found.expect("files", files == Counter(counted), f"{files}, counted {counted}")
    outcomes = Counter(line.extra["outcome"] for line in run.lines)
    found.expect("outcomes", outcomes == Counter(counts["by_outcome"]), f"{outcomes}, {counts['by_outcome']}")
    found.expect("ids are unique", len(lines) == len(run.lines), len(lines))

    numbers = {line.metadata["session_num"] for line in run.lines}
    armed = len(run.lines) + run.counters["withdrawn"]
    found.expect(
        "sequence numbers",
        len(numbers) == len(run.lines) and numbers <= set(range(armed)),
        f"{len(run.lines)} lines, {len(numbers)} numbers up to {max(numbers, default=0)}, {armed} armed",
    )
    seen = Counter(line.request_id for line in log if line.request_id is not None)
    for request_id, times in seen.items():
        line = lines.get(request_id)
        sent = 0 if line is None else 1 + line.extra.get("reconnects", 0)
        found.expect(
            "the server's requests are the client's",
            times <= sent,
            f"{request_id} came {times} times, sent {sent}",
        )
    for line in run.lines:
        if line.ok:
            found.expect("successes were served", line.id in seen, line)


def check_tokens(
    run: Run, plans: dict[str, Plan], served: Served, found: Findings, overhead: Callable[[Roles], int]
) -> None:
    """The server counted what was recorded: prompt, answer, messages of each role; the client repeats it."""
    for line in run.lines:
        plan = plans[line.metadata["source_trace_id"]]
        number = plan.numbers[line.metadata["conversation_id"]]
        turn = plan.tree.conversations[number].turns[line.turn]
        recorded = plan.recorded(*line.source)
        limit = max(1, recorded.out_tokens)
        found.expect(
            "a turn is its recorded request",
            (turn.source, turn.in_tokens, turn.max_tokens) == (line.source, recorded.in_tokens, limit)
            and line.extra["recorded_input_tokens"] == recorded.in_tokens
            and line.extra["recorded_output_tokens"] == recorded.out_tokens,
            f"{line}: source {line.source}",
        )
        server = served.get(line.id)
        if server is None or server.prompt_tokens is None:
            continue
        roles = plan.roles[number, line.turn]
        seen = tuple(server.roles.get(role, 0) for role in ("system", "user", "assistant"))
        found.expect("roles", seen == roles, f"{line}: {seen}, not {roles}")
        marker = 1 if run.marked and roles[1] else 0
        expected = recorded.in_tokens + marker + overhead(roles)
        found.expect(
            "prompt tokens",
            server.prompt_tokens == expected,
            f"{line}: the server counted {server.prompt_tokens}, recorded {expected}",
        )
        found.expect(
            "output limit",
            server.max_tokens == limit and server.ignore_eos is True and server.stream is True,
            f"{line}: {server.max_tokens}, not {limit}",
        )
        if not line.ok:
            continue
        found.expect(
            "completion tokens",
            server.completion_tokens == limit and server.ended == "length",
            f"{line}: {server.completion_tokens} ({server.ended}), recorded {limit}",
        )
        told = {
            "input_sequence_length": server.prompt_tokens,
            "usage_prompt_cache_read_tokens": server.cached_tokens,
            "output_sequence_length": limit,
        }
        for tag, value in told.items():
            found.expect(
                "reported tokens", line.metric(tag) == value, f"{line}: {tag} {line.metric(tag)}, {value}"
            )


def check_order(tree: LiveTree, served: Served, found: Findings) -> None:
    """Turns of a conversation come in order and once; the server saw the recorded pause between them."""
    for number, lines in tree.lines.items():
        turns = tree.plan.tree.conversations[number].turns
        order = [line.turn for line in lines]
        found.expect("turns in order", order == list(range(len(lines))), f"{lines[0]}: {order}")
        speakers = {line.metadata["x_correlation_id"] for line in lines}
        found.expect("one correlation id", len(speakers) == 1, f"{lines[0]}: {speakers}")
        is_root = speakers == {lines[0].metadata["root_correlation_id"]}
        found.expect("the root's id is the tree's", is_root == (number == 0), f"{lines[0]}: {speakers}")
        for before, line in pairwise(lines):
            first, second = served.get(before.id), served.get(line.id)
            if first is None or second is None:
                continue
            ended = first.last_token_ns if first.last_token_ns is not None else first.arrival_ns
            pause, delay = second.arrival_ns - ended, turns[line.turn].delay_ns
            found.expect(
                "the server saw the pause", pause >= delay, f"{line}: {pause / MS:.3f} of {delay / MS:.3f} ms"
            )


def check_waiting(run: Run, tree: LiveTree, served: Served, found: Findings) -> None:
    """By the server's clock: no turn before the children that it joins and its predecessors have ended."""
    plan = tree.plan.tree
    for line in tree.all:
        turn = plan.conversations[tree.plan.numbers[line.metadata["conversation_id"]]].turns[line.turn]
        arrived = served.get(line.id)
        if arrived is None:
            continue
        for branch in turn.joins:
            for child, _ in plan.branches[branch].children:
                name = plan.conversations[child].id
                found.expect("joined children are over", tree.over(child), f"{line}: {name}")
                for part in tree.lines.get(child, []):
                    late = _after(arrived, part, served)
                    found.expect("joins", late, f"{line} came before the end of {part}")
        if run.counters["barriers_broken"]:
            continue  # a recording that contradicts itself: some barrier had to give way
        for conversation, index in turn.predecessors:
            before = tree.at(conversation, index)
            if before is None:
                last = tree.last(conversation)
                name = plan.conversations[conversation].id
                never = last is not None and last.overflowed
                found.expect("barriers", never, f"{line}: {name} turn {index} has not been sent")
            else:
                late = _after(arrived, before, served)
                found.expect("barriers", late, f"{line} came before the end of {before}")


def _after(arrived: ServerLine, line: Line, served: Served) -> bool:
    """Whether a request came after the end of another, which may have failed before it got to the server."""
    other = served.get(line.id)
    if other is None:
        return not line.ok
    return other.end_ns is not None and arrived.arrival_ns >= other.end_ns


def expected_due(tree: LiveTree, number: int, turn: Turn) -> int | None:
    """When the plan wants a turn, from the ends in the records; None if not all its causes have happened.

    The root's first turn begins the tree, so its own due time is what is expected; `check_lanes` judges it.
    """
    plan = tree.plan.tree
    if turn.index:
        before = tree.at(number, turn.index - 1)
        base = None if before is None or before.overflowed else before.plan_end + turn.delay_ns
    elif number == 0:
        first = tree.at(0, 0)
        base = None if first is None else first.due
    else:
        branch = plan.branches[tree.plan.branch_of[number]]
        delay = dict(branch.children)[number]
        spawn = tree.at(0, branch.spawn_turn)
        if spawn is None:
            base = None
        elif branch.when == "issue":
            base = spawn.due + delay
        else:
            base = None if spawn.overflowed else spawn.plan_end + branch.pause_ns + delay
    if base is None:
        return None
    causes: list[Line] = []
    for joined in turn.joins:
        for child, _ in plan.branches[joined].children:
            if not tree.over(child):
                return None
            last = tree.last(child)
            causes += [] if last is None else [last]
    for conversation, index in turn.predecessors:
        cause = tree.at(conversation, index)
        if cause is None and tree.over(conversation):
            cause = tree.last(conversation)
        if cause is None:
            return None
        causes.append(cause)
    return max([base, *(cause.plan_end for cause in causes)])


def check_instants(run: Run, tree: LiveTree, found: Findings) -> None:
    """Every due time is what the plan says, to the nanosecond; what was due before the end was sent."""
    if run.counters["barriers_broken"]:
        return  # there is no one plan
    timed, stopped = run.summary["ended_by"] == "duration", run.replay["stopped_unix_ns"]
    for number in tree.plan.played:
        conversation = tree.plan.tree.conversations[number]
        lines = tree.lines.get(number, [])
        for line in lines:
            due, first = expected_due(tree, number, conversation.turns[line.turn]), line.stamp("first_sent")
            found.expect("due", line.due == due, f"{line}: {line.due}, not {due}")
            found.expect("not sent early", first is None or first >= line.due, f"{line}: {first}, {line.due}")
            found.expect("nothing due after the end", not timed or line.due < stopped, line)
        if timed and not tree.over(number):
            turn = conversation.turns[len(lines)]
            due = expected_due(tree, number, turn)
            found.expect(
                "all that was due was sent",
                due is None or due > stopped - HANDLING_NS,
                f"{tree}: {conversation.id} turn {turn.index}, due {stopped - (due or 0)} ns before the end",
            )


def check_lanes(run: Run, trees: list[LiveTree], traces: list[str], found: Findings) -> None:
    """Lanes start together, play one tree at a time, each to its end, and take traces in their order."""
    lanes: dict[int, list[LiveTree]] = defaultdict(list)
    for tree in trees:
        lanes[tree.lane].append(tree)
    begun = run.summary["counts"]["trees_started"]
    found.expect("lanes", set(lanes) <= set(range(run.lanes)), sorted(lanes))
    # At the end of the run the last tree of a lane may not have sent anything yet.
    found.expect("trees", begun - run.lanes <= len(trees) <= begun, f"{len(trees)} of {begun}")
    for number, played in lanes.items():
        first, wanted = played[0], traces[number % len(traces)]
        found.expect("common start", first.first_due == run.replay["started_unix_ns"], first)
        found.expect("first traces", first.plan.tree.trace_id == wanted, f"{first}, not {wanted}")
        for before, tree in pairwise(played):
            found.expect(
                "next tree at the end of the last",
                tree.first_due == before.drained,
                f"{tree} {tree.first_due - before.drained} ns after {before}",
            )
            left = [n for n in before.plan.played if not before.over(n)]
            overflow = any(line.overflowed for line in before.all)
            found.expect("trees are played to their end", overflow or not left, f"{before}: {left}")
    allowed = Counter(traces[k % len(traces)] for k in range(begun))
    plays = Counter((tree.plan.tree.trace_id, tree.play) for tree in trees)
    for (trace_id, play), times in plays.items():
        found.expect(
            "plays", times == 1 and play < allowed[trace_id], f"{trace_id} play {play}: {times} trees"
        )


def check_stamps(run: Run, served: Served, found: Findings) -> None:
    """The client's stamps against the server's, on one clock: nothing is seen before it was sent."""
    for line in run.lines:
        server, first = served.get(line.id), line.stamp("first_sent")
        if server is None or first is None:
            continue
        ahead = server.arrival_ns - run.monotonic(first)
        found.expect("arrival after the send", ahead >= 0, f"{line}: {ahead} ns")
        for name, sent in (("first_content", server.first_token_ns), ("last_content", server.last_token_ns)):
            got = line.stamp(name)
            if line.ok and got is not None and sent is not None:
                ahead = run.monotonic(got) - sent
                found.expect(
                    "token after it was given", ahead >= -STAMP_ERROR_NS, f"{line}: {name} {ahead} ns"
                )


def check_cache(run: Run, plans: dict[str, Plan], log: list[ServerLine], found: Findings) -> None:
    """Shared prefixes as the server's cache saw them, if it forgets nothing and adds no template tokens.

    A turn finds at least the blocks that it keeps of the turn before. With a marker, the first prompt of
    a tree finds at most the system prefix of an earlier play.
    """
    served = by_request(log)
    for tree in run.trees(plans):
        for number, lines in tree.lines.items():
            turns = tree.plan.tree.conversations[number].turns
            for before, line in pairwise(lines):
                server = served.get(line.id)
                if server is None or not before.ok or not line.ok:
                    continue
                usable = ((server.prompt_tokens or 0) - 1) // BLOCK
                kept, cached = min(turns[line.turn].keep_blocks, usable) * BLOCK, server.cached_tokens or 0
                found.expect("kept prefix", cached >= kept, f"{line}: {cached} cached of {kept} kept")
        first = tree.at(0, 0)
        server = None if first is None else served.get(first.id)
        if run.marked and first is not None and first.ok and server is not None:
            message = tree.plan.tree.root.turns[0].messages[0]
            system = message.blocks * BLOCK if message.role == "system" else 0
            cached = server.cached_tokens or 0
            found.expect("kept apart", cached <= system, f"{first}: {cached} cached, {system} system tokens")

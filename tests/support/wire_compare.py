"""What two clients put on the wire, side by side: the captured official one, and this engine.

Both sides are read the same way: the log of a recording server says what arrived and when, the client's own
profile export, joined on the request id, says which turn of which recording that was. What the plan wants is
taken from the golden documents, which the official loader made, and not from this engine's trees.

**Trees and lanes.** Requests with one root correlation id are one live tree. The cache-bust marker names its
tree: twelve digits of SHA-256 of `<run id>:<pass>:<lane>:<trace>`, so with the run's id the lane and the pass
(how often the trace had been started before) are found by search, from the wire alone. As traces are dealt in
their order, a tree's *number* in the run is pass x traces + position of its trace. Without a marker the
lane is that of the tree whose end came last before the start.

**Complete.** A tree is complete if every turn that it had left to send was sent and answered in full. A
conversation has nothing left if its last turn is there; one that never spoke has nothing left if the tree
began, in the middle of its recording, behind the turn that joins it.

**Order.** The plan says of some pairs of requests that the one must have returned before the other is
sent: the turn before in its conversation; the turn that spawned the conversation, if it does so by its
return; the last turns of the children that a turn joins; recorded-completion predecessors (barriers); and
all that follows from these by transitivity. `happened_before` keeps of these pairs the ones in which the
first had ended before the second arrived. Two runs of a tree order it in the same way if these sets are
equal. A request has *ended* at the server's last token: nothing can follow from it earlier, and the stamp is
taken before its bytes can have been read. That alone would not notice a run in which turns wait for more than
they should, so of the pairs that the plan does not order those are compared too which the capture shows far
apart (`clearly_before`): the first has to come first in any run with the same pauses.

**Pacing.** `instants` computes for each request the time at which the plan wants it from what the server
saw: the end of the turn before plus the recorded pause, for a tree's first request the end of the tree before
it on the lane. Only for traces with one conversation, and as long as no idle cap acted.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

MS = 1_000_000
PASSES = 64  # how far the search for a marker's pass goes

Key = tuple[str, int]  # conversation id, turn


# -- what the plan wants: the recording, and the official loader's reading of it ---------------------


class Turn(NamedTuple):
    limit: int
    recorded_in: int
    recorded_out: int
    delay_ms: float | None
    segments: tuple[tuple[str, int], ...]  # role, tokens


@dataclass
class Plan:
    """One trace. `before[key]` are the turns that must have returned before the turn `key` is sent."""

    trace: str
    turns: dict[Key, Turn]
    before: dict[Key, set[Key]]
    last: dict[str, int]  # last turn of each conversation
    joined_at: dict[str, int | None]  # root turn that waits for a child, None: no turn does

    @cached_property
    def all_before(self) -> dict[Key, set[Key]]:
        """`before`, and what follows from it."""
        found: dict[Key, set[Key]] = {}

        def close(key: Key) -> set[Key]:
            if key not in found:
                direct = self.before[key]
                found[key] = direct.union(*(close(earlier) for earlier in sorted(direct)))
            return found[key]

        for key in sorted(self.turns, key=lambda key: key[1]):
            close(key)
        return found


def read_plan(golden: Path) -> Plan:
    """`golden`: a trace document of the official loader."""
    document = json.loads(golden.read_bytes())
    root: str = document["trace"]
    turns, before = dict[Key, Turn](), dict[Key, set[Key]]()
    last: dict[str, int] = {}
    for conversation in document["conversations"]:
        name = conversation["id"]
        last[name] = len(conversation["turns"]) - 1
        for turn in conversation["turns"]:
            key = (name, turn["i"])
            segments = tuple((role, tokens) for role, tokens in turn["seg"])
            turns[key] = Turn(turn["out"], turn["in"], turn["rec_out"], turn["delay_ms"], segments)
            before[key] = {(other, index) for other, index in turn.get("pred", ())}
            if turn["i"]:
                before[key].add((name, turn["i"] - 1))
    joined: dict[str, int | None] = {}
    for branch in document["branches"]:
        for child, _ in branch["children"]:
            joined[child] = branch["join_turn"]
            if branch["when"] == "return":
                before[child, 0].add((root, branch["spawn_turn"]))
            if branch["join_turn"] is not None:
                before[root, branch["join_turn"]].add((child, last[child]))
    return Plan(root, turns, before, last, joined)


# -- what was on the wire --------------------------------------------------------------------------


@dataclass
class Sent:
    """One replayed request: the server's line, and the client's."""

    wire: dict[str, Any]
    export: dict[str, Any]
    turn: Turn

    @property
    def metadata(self) -> dict[str, Any]:
        found: dict[str, Any] = self.export["metadata"]
        return found

    @property
    def key(self) -> Key:
        return self.metadata["conversation_id"], self.metadata["turn_index"]

    @property
    def phase(self) -> str:
        return str(self.metadata["benchmark_phase"])

    @property
    def ok(self) -> bool:
        return bool(self.wire["outcome"] == "ok")

    @property
    def arrival_ns(self) -> int:
        return int(self.wire["arrival_ns"])

    @property
    def ended_ns(self) -> int | None:
        return self.wire["last_token_ns"] if self.ok else None

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(message[0] for message in self.wire["messages"])

    @property
    def texts(self) -> tuple[str, ...]:
        """Hash of each message's content, the marker taken off."""
        found = [message[1] for message in self.wire["messages"]]
        marker = self.wire.get("marker")
        if marker is not None:
            found[marker["message"]] = marker["sha_without"]
        return tuple(found)

    @property
    def tokens(self) -> tuple[int, ...]:
        """Of each message, by the server's count, the marker taken off."""
        found = [message[3] for message in self.wire["messages"]]
        marker = self.wire.get("marker")
        if marker is not None:
            without = marker["tokens_without"] if "tokens_without" in marker else marker["words_without"]
            found[marker["message"]] = without
        return tuple(found)

    @property
    def recorded(self) -> tuple[int, int]:
        """Recorded tokens of prompt and answer: by this engine's export, else by the loader's document."""
        told = self.export.get("trace_data")
        if told is None:
            return self.turn.recorded_in, self.turn.recorded_out
        return told["recorded_input_tokens"], told["recorded_output_tokens"]

    @property
    def facts(self) -> tuple[Any, ...]:
        """What must be the same in both runs."""
        return (*self.key, self.phase, self.wire["max_tokens"], self.roles, *self.recorded)

    def __str__(self) -> str:
        conversation, turn = self.key
        return f"{conversation} turn {turn} ({self.phase}, limit {self.wire['max_tokens']})"


@dataclass
class Tree:
    """One play of a trace on a lane."""

    plan: Plan
    sent: list[Sent]
    lane: int = -1
    play: int = -1  # how often the trace had been started before
    number: int = -1  # how many trees had been started before

    @cached_property
    def start_ns(self) -> int:
        return min(request.arrival_ns for request in self.sent)

    @cached_property
    def at(self) -> dict[Key, Sent]:
        found = {request.key: request for request in self.sent}
        if len(found) != len(self.sent):
            raise AssertionError(f"{self} sent a turn twice")
        return found

    @cached_property
    def complete(self) -> bool:
        if not all(request.ok for request in self.sent):
            return False
        root = self.plan.trace
        began = {name: min(turn for who, turn in self.at if who == name) for name, _ in self.at}
        for name, last in self.plan.last.items():
            if name not in began:
                joined = self.plan.joined_at.get(name)
                if joined is None or began.get(root, 0) <= joined:
                    return False
            elif any((name, turn) not in self.at for turn in range(began[name], last + 1)):
                return False
        return True

    @cached_property
    def drained_ns(self) -> int | None:
        """When its last answer ended; None if it is not complete."""
        return max(request.ended_ns or 0 for request in self.sent) if self.complete else None

    def happened_before(self) -> tuple[set[tuple[Key, Key]], set[tuple[Key, Key]]]:
        """The pairs that the plan orders, of those that were sent: kept by the run, and not kept."""
        kept, broken = set[tuple[Key, Key]](), set[tuple[Key, Key]]()
        for later, request in self.at.items():
            for earlier in self.plan.all_before[later]:
                other = self.at.get(earlier)
                if other is not None:
                    ended_ns = other.ended_ns
                    in_order = ended_ns is not None and ended_ns <= request.arrival_ns
                    (kept if in_order else broken).add((earlier, later))
        return kept, broken

    def clearly_before(self, share: float, floor_ns: int) -> set[tuple[Key, Key]]:
        """Pairs of which the first had ended so long before the second arrived that it was no matter of
        chance: by `share` of the time since the tree's start, and by `floor_ns`."""
        found = set[tuple[Key, Key]]()
        for later, request in self.at.items():
            margin_ns = max(floor_ns, share * (request.arrival_ns - self.start_ns))
            for earlier, other in self.at.items():
                ended_ns = other.ended_ns
                if ended_ns is not None and ended_ns + margin_ns < request.arrival_ns:
                    found.add((earlier, later))
        return found

    def in_turn(self, pair: tuple[Key, Key]) -> bool:
        """Whether the first of two requests arrived before the second."""
        return self.at[pair[0]].arrival_ns < self.at[pair[1]].arrival_ns

    def __str__(self) -> str:
        return f"{self.plan.trace} (tree {self.number}, lane {self.lane}, play {self.play})"


@dataclass
class Wire:
    """One run. `traces`: ids in the order of the corpus; `others`: requests that no export line names."""

    traces: list[str]
    lanes: int
    trees: list[Tree]
    others: list[dict[str, Any]]

    @property
    def sent(self) -> Iterator[Sent]:
        for tree in self.trees:
            yield from tree.sent

    @property
    def began_ns(self) -> int:
        return min(tree.start_ns for tree in self.trees)

    def seconds(self, ns: int) -> float:
        return (ns - self.began_ns) / 1e9

    @property
    def dealt(self) -> list[tuple[int, str]]:
        """Lane and trace of each tree, by its number."""
        return [(tree.lane, tree.plan.trace) for tree in self.trees]

    def on_lane(self, lane: int) -> list[Tree]:
        return [tree for tree in self.trees if tree.lane == lane]

    def margins(self) -> dict[int, float]:
        """How sure it was which lane got a tree, by its number: the time from the end of the lane's tree
        before to the next end on another lane, as a share of the time since the start of the run.

        A lane that is not seen to drain is none that could have got it.
        """
        ends = {tree.number: tree.drained_ns for tree in self.trees}
        found: dict[int, float] = {}
        current = {tree.lane: tree.number for tree in self.trees[: self.lanes]}
        for tree in self.trees[self.lanes :]:
            mine = ends[current[tree.lane]]
            assert mine is not None, f"{tree} began before its lane had drained"
            rivals = [ends[number] for lane, number in current.items() if lane != tree.lane]
            next_ns = min((end for end in rivals if end is not None), default=None)
            since = mine - self.began_ns
            found[tree.number] = float("inf") if next_ns is None else (next_ns - mine) / since
            current[tree.lane] = tree.number
        return found

    def primers(self) -> list[Sent]:
        """Warmup requests before the accelerated stage: the longest run of first requests of the lanes' first
        trees, in order of arrival, that had all ended before the next request came."""
        warmup = sorted((s for s in self.sent if s.phase == "warmup"), key=lambda s: s.arrival_ns)
        first = {id(s) for tree in self.trees[: self.lanes] for s in first_of_each(tree.sent)}
        found, ended = list[Sent](), 0
        for count, request in enumerate(warmup, 1):
            if id(request) not in first:
                break
            ended = max(ended, request.ended_ns or request.arrival_ns)
            if count == len(warmup) or warmup[count].arrival_ns >= ended:
                found = warmup[:count]
        return found

    def extra_warmup(self) -> list[int]:
        """Accelerated warmup requests of each lane."""
        primers = {id(request) for request in self.primers()}
        counts = [0] * self.lanes
        for tree in self.trees:
            counts[tree.lane] += sum(s.phase == "warmup" and id(s) not in primers for s in tree.sent)
        return counts


def first_of_each(requests: Iterable[Sent]) -> list[Sent]:
    """The first request of each conversation."""
    found: dict[str, Sent] = {}
    for request in sorted(requests, key=lambda s: s.key[1]):
        found.setdefault(request.key[0], request)
    return list(found.values())


# -- reading ---------------------------------------------------------------------------------------


def read_lines(path: Path) -> list[dict[str, Any]]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt") as file:
        return [json.loads(line) for line in file]


def read_wire(
    log: Path, exports: Iterable[Path], plans: dict[str, Plan], *, run_id: str, lanes: int, marked: bool
) -> Wire:
    """Joins a server's log with a client's export; `plans` in the order of the corpus."""
    lines = {line["metadata"]["x_request_id"]: line for path in exports for line in read_lines(path)}
    traces = list(plans)
    groups: dict[str, list[Sent]] = defaultdict(list)
    others = []
    for request in sorted((line for line in read_lines(log) if "seq" in line), key=lambda line: line["seq"]):
        headers = {name.lower(): value for name, value in request["headers"]}
        export = lines.get(headers.get("x-request-id", ""))
        if export is None or request["kind"] != "request":
            others.append(request)
            continue
        metadata = export["metadata"]
        plan = plans[metadata["source_trace_id"]]
        turn = plan.turns[metadata["conversation_id"], metadata["turn_index"]]
        groups[metadata["root_correlation_id"]].append(Sent(request, export, turn))
    trees = [Tree(plans[sent[0].metadata["source_trace_id"]], sent) for sent in groups.values()]
    trees.sort(key=lambda tree: tree.start_ns)
    if marked:
        names = marker_names(run_id, traces, lanes)
        for tree in trees:
            digests = {request.wire["marker"]["digest"] for request in tree.sent}
            if len(digests) != 1:
                raise AssertionError(f"{tree.plan.trace} has markers {digests}")
            trace, tree.play, tree.lane = names[digests.pop()]
            if trace != tree.plan.trace:
                raise AssertionError(f"{tree.plan.trace} has a marker of {trace}")
            tree.number = tree.play * len(traces) + traces.index(trace)
        trees.sort(key=lambda tree: tree.number)
    else:
        guess_lanes(trees, traces, lanes)
    if [tree.number for tree in trees] != list(range(len(trees))):
        raise AssertionError(f"trees {[tree.number for tree in trees]} were dealt")
    return Wire(traces, lanes, trees, others)


def marker_names(run_id: str, traces: list[str], lanes: int) -> dict[str, tuple[str, int, int]]:
    """Digest -> trace, pass, lane."""
    return {
        hashlib.sha256(f"{run_id}:{number}:{lane}:{trace}".encode()).hexdigest()[:12]: (trace, number, lane)
        for trace, number, lane in product(traces, range(PASSES), range(lanes))
    }


def guess_lanes(trees: list[Tree], traces: list[str], lanes: int) -> None:
    """Without markers: numbers by the order of starts, lanes by what had drained last before."""
    plays: dict[str, int] = defaultdict(int)
    for tree in trees:
        tree.play = plays[tree.plan.trace]
        plays[tree.plan.trace] += 1
        tree.number = tree.play * len(traces) + traces.index(tree.plan.trace)
    trees.sort(key=lambda tree: tree.number)
    current: dict[int, Tree] = {}
    for tree in trees:
        tree.lane = tree.number
        if tree.number >= lanes:
            ends = {lane: before.drained_ns for lane, before in current.items()}
            over = {lane: end for lane, end in ends.items() if end is not None and end <= tree.start_ns}
            tree.lane = max(over, key=lambda lane: over[lane])
        current[tree.lane] = tree


# -- comparing -------------------------------------------------------------------------------------


def repeats(tree: Tree) -> list[int]:
    """Which messages of a tree are the same text: for each message, in order of conversations and turns, the
    number of the first message with that text."""
    seen: dict[str, int] = {}
    found: list[int] = []
    for key in sorted(tree.at):
        for text in tree.at[key].texts:
            found.append(seen.setdefault(text, len(found)))
    return found


def check_dealing(wire: Wire, tie_ns: int) -> list[str]:
    """Trees in the order of the corpus; first one to each lane, then each to the lane that drained first.

    Lanes that drain within `tie_ns` of each other may be served in any order.
    """
    problems = []
    freed: list[tuple[int, Tree]] = []  # when the lane of a tree had drained
    for tree in wire.trees:
        wanted = wire.traces[tree.number % len(wire.traces)]
        if tree.plan.trace != wanted:
            problems.append(f"{tree}: should be {wanted}")
        if tree.number < wire.lanes and tree.lane != tree.number:
            problems.append(f"{tree}: first trees go to lanes in order")
    for lane in range(wire.lanes):
        for before, tree in pairwise(wire.on_lane(lane)):
            if before.drained_ns is None:
                problems.append(f"{tree} began before {before} was complete")
            elif tree.start_ns < before.drained_ns:
                early = before.drained_ns - tree.start_ns
                problems.append(f"{tree} began {early} ns before the end of {before}")
            freed.append((before.drained_ns or 0, tree))
    freed.sort(key=lambda item: item[1].number)
    for (first_ns, first), (second_ns, second) in pairwise(freed):
        if first_ns > second_ns + tie_ns:
            problems.append(f"{second} was dealt after {first}, its lane had drained before")
    return problems


@dataclass
class Instant:
    """A request, and when the plan wants it. `kind`: "turn", or "tree" for a tree's first."""

    sent: Sent
    kind: str
    due_ns: int

    @property
    def arrived_late_ns(self) -> int:
        """First byte at the server, minus the plan."""
        return int(self.sent.wire["first_byte_ns"]) - self.due_ns

    def sent_late_ns(self, offset_ns: int) -> int:
        """First byte by this engine's export, minus the plan. `offset_ns`: wall minus monotonic time."""
        return int(self.sent.export["trace_data"]["stamps_unix_ns"]["first_sent"]) - offset_ns - self.due_ns


def instants(wire: Wire, speed: float = 1.0) -> list[Instant]:
    """For every request but the lanes' first ones; recorded pauses were shortened by `speed`."""
    found = []
    for lane in range(wire.lanes):
        before: Tree | None = None
        for tree in wire.on_lane(lane):
            for sent in tree.sent:
                conversation, turn = sent.key
                assert conversation == tree.plan.trace, "pacing is only computed for traces without children"
                if turn:
                    ended, delay_ms = tree.at[conversation, turn - 1].ended_ns, sent.turn.delay_ms
                    if ended is not None and delay_ms is not None:
                        found.append(Instant(sent, "turn", ended + round(delay_ms / speed * MS)))
                elif before is not None and before.drained_ns is not None:
                    found.append(Instant(sent, "tree", before.drained_ns))
            before = tree
    return found

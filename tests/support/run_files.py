"""A finished run as its files tell it: requests, live trees, and the recording that they were to follow."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from agentx_engine.corpus import open_corpus
from agentx_engine.corpus.model import Subagent, Trace, TraceRequest
from agentx_engine.tree import build_tree
from agentx_engine.tree.model import ConversationTree, Message

FILES = ("profile_export.jsonl", "cancelled.jsonl", "context_overflow.jsonl")

Roles = tuple[int, int, int]  # numbers of system, user, assistant messages


# -- the recording ------------------------------------------------------------------------------


@dataclass
class Plan:
    """A recorded trace and the tree that was made of it."""

    trace: Trace
    tree: ConversationTree

    @cached_property
    def numbers(self) -> dict[str, int]:
        return {c.id: i for i, c in enumerate(self.tree.conversations)}

    @cached_property
    def branch_of(self) -> dict[int, int]:
        """The branch that starts a conversation. The root and what is never started have none."""
        return {c: b for b, branch in enumerate(self.tree.branches) for c, _ in branch.children}

    @property
    def played(self) -> list[int]:
        """The root, and all that somebody starts."""
        return [0, *self.branch_of]

    @cached_property
    def roles(self) -> dict[tuple[int, int], Roles]:
        """Roles of each prompt, by conversation and turn."""
        made = {}
        for number, conversation in enumerate(self.tree.conversations):
            messages: tuple[Message, ...] = ()
            for turn in conversation.turns:
                messages = messages[: turn.keep_messages] + turn.messages
                made[number, turn.index] = count_roles(m.role for m in messages)
        return made

    def recorded(self, outer: int, inner: int | None) -> TraceRequest:
        entry = self.trace.requests[outer]
        if isinstance(entry, Subagent):
            assert inner is not None
            return entry.requests[inner]
        assert inner is None
        return entry


def count_roles(roles: Iterable[str]) -> Roles:
    found = Counter(roles)
    return found["system"], found["user"], found["assistant"]


def read_plans(corpus: Path) -> dict[str, Plan]:
    """By trace id, in the order of the corpus, traces without requests left out."""
    opened = open_corpus(corpus)
    plans = {}
    for number, trace_id in enumerate(opened.ids):
        trace = opened.trace(number)
        tree = build_tree(trace)
        if tree.requests:
            plans[trace_id] = Plan(trace, tree)
    return plans


# -- the run ------------------------------------------------------------------------------------


@dataclass
class Line:
    """A request as the client wrote it down. Times are exported wall times, ns."""

    raw: dict[str, Any]
    file: str

    @property
    def metadata(self) -> dict[str, Any]:
        found: dict[str, Any] = self.raw["metadata"]
        return found

    @property
    def extra(self) -> dict[str, Any]:
        found: dict[str, Any] = self.raw["trace_data"]
        return found

    @property
    def id(self) -> str:
        return str(self.metadata["x_request_id"])

    @property
    def turn(self) -> int:
        return int(self.metadata["turn_index"])

    @property
    def source(self) -> tuple[int, int | None]:
        return self.metadata["source_outer_idx"], self.metadata.get("source_inner_idx")

    @property
    def ok(self) -> bool:
        return bool(self.extra["outcome"] == "success")

    @property
    def overflowed(self) -> bool:
        return bool(self.extra["outcome"] == "context_overflow")

    def stamp(self, name: str) -> int | None:
        value: int | None = self.extra["stamps_unix_ns"].get(name)
        return value

    @property
    def due(self) -> int:
        return int(self.extra["stamps_unix_ns"]["due"])

    @property
    def plan_end(self) -> int:
        """Where the plan goes on: the last event, else the end."""
        for name in ("last_event", "end", "armed"):
            value = self.stamp(name)
            if value is not None:
                return value
        raise AssertionError(f"{self} has no stamps")

    def metric(self, tag: str) -> float | None:
        found = self.raw["metrics"].get(tag)
        return None if found is None else found["value"]

    def __str__(self) -> str:
        lane, play = self.extra["lane"], self.extra["play"]
        return f"{self.metadata['conversation_id']} turn {self.turn} (lane {lane}, play {play}, {self.id})"


@dataclass
class LiveTree:
    """One play of a trace on a lane: the requests of each of its conversations, in order of turns."""

    plan: Plan
    lane: int
    play: int
    lines: dict[int, list[Line]]

    @property
    def all(self) -> Iterator[Line]:
        for lines in self.lines.values():
            yield from lines

    def __str__(self) -> str:
        return f"{self.plan.tree.trace_id} (lane {self.lane}, play {self.play})"

    @property
    def first_due(self) -> int:
        return min(line.due for line in self.all)

    @property
    def drained(self) -> int:
        return max(line.plan_end for line in self.all)

    def last(self, conversation: int) -> Line | None:
        lines = self.lines.get(conversation)
        return lines[-1] if lines else None

    def at(self, conversation: int, turn: int) -> Line | None:
        lines = self.lines.get(conversation, [])
        return lines[turn] if turn < len(lines) else None

    def over(self, conversation: int) -> bool:
        """Whether the conversation sends nothing more: played to its end, or ended by an overflow."""
        last = self.last(conversation)
        turns = self.plan.tree.conversations[conversation].turns
        return not turns or (last is not None and (last.turn == len(turns) - 1 or last.overflowed))


@dataclass
class Run:
    facts: dict[str, Any]  # run.json
    summary: dict[str, Any]
    lines: list[Line]

    @property
    def by_id(self) -> dict[str, Line]:
        return {line.id: line for line in self.lines}

    @property
    def replay(self) -> dict[str, Any]:
        found: dict[str, Any] = self.facts["replay"]
        return found

    @property
    def counters(self) -> dict[str, Any]:
        found: dict[str, Any] = self.replay["counters"]
        return found

    @property
    def lanes(self) -> int:
        return int(self.facts["settings"]["concurrency"])

    @property
    def marked(self) -> bool:
        """Whether the prompts have a cache-bust marker."""
        return bool(self.facts["settings"]["cache_bust"] != "none")

    def monotonic(self, unix_ns: int) -> int:
        return unix_ns - int(self.facts["wall_pairing"]["offset_ns"])

    def trees(self, plans: dict[str, Plan]) -> list[LiveTree]:
        """In the order in which they began."""
        found: dict[str, LiveTree] = {}
        for line in sorted(self.lines, key=lambda line: line.turn):
            root = line.metadata["root_correlation_id"]
            plan = plans[line.metadata["source_trace_id"]]
            tree = found.get(root)
            if tree is None:
                tree = found[root] = LiveTree(plan, line.extra["lane"], line.extra["play"], defaultdict(list))
            tree.lines[plan.numbers[line.metadata["conversation_id"]]].append(line)
        return sorted(found.values(), key=lambda tree: tree.first_due)


def read_run(folder: Path) -> Run:
    """Every line has to be whole JSON: a torn one raises ValueError."""
    lines = []
    for name in FILES:
        path = folder / "aiperf_artifacts" / name
        if path.exists():
            text = path.read_text()
            if text and not text.endswith("\n"):
                raise ValueError(f"{path}: the last line is torn")
            lines += [Line(json.loads(line), name) for line in text.splitlines()]
    facts, summary = (json.loads((folder / name).read_text()) for name in ("run.json", "summary.json"))
    return Run(facts, summary, lines)

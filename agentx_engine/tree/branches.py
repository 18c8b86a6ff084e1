"""Where children start and who waits for them.

A child belongs to the root turn that stands before it in the file; the first later root turn that was sent
after the child had ended waits for it. Children with the same (spawn, join) form one branch, recorded
subagents and hidden agents apart.

A branch that began while its spawning request was still running starts when that request is sent ("issue"),
any other after it has returned ("return"). `Branch.pause_ns` then is the recorded pause between the
return and the branch's start; the official harness drops it.

Source: agentx-v1, sections 2.8 and 6.4, 11-3.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, NamedTuple

from agentx_engine.tree.calls import CLOCK_EPSILON_NS
from agentx_engine.tree.model import Branch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentx_engine.tree.calls import Call


class Child(NamedTuple):
    """A recorded subagent (with all its chains) or one hidden agent."""

    label: str  # what a branch is called that begins with it
    hidden: bool
    spawn_turn: int
    join_turn: int | None
    start_ns: int
    conversations: tuple[tuple[int, int], ...]  # (conversation index, start of its first turn)


class RootTurns:
    """The root's turns, searchable by their place in the file."""

    def __init__(self, turns: Sequence[Call]) -> None:
        order = sorted(range(len(turns)), key=lambda k: turns[k].index)
        self._turns = order
        self._places = [turns[k].index for k in order]
        self._latest_turn = list(accumulate(order, max))
        self._starts = [turns[k].start_ns for k in order]
        self._keys = [(turn.start_ns, turn.index) for turn in turns]
        self._ascending = all(a <= b for a, b in zip(self._starts, self._starts[1:], strict=False))

    def spawn(self, place: int) -> int | None:
        """The last turn that stands before `place` in the file."""
        before = bisect_left(self._places, place)
        return self._latest_turn[before - 1] if before else None

    def precedes(self, call: Call) -> int:
        """The last turn before a call in time. For roots in time order, as those with hidden agents are."""
        return max(0, bisect_left(self._keys, (call.start_ns, call.index)) - 1)

    def join(self, place: int, end_ns: int, spawn_turn: int) -> int | None:
        """The first turn after `place` in the file that was sent when the child had ended; None = nobody.

        A turn that does not come after the spawning one (only in files which are not in order) cannot wait.
        """
        sent_at_least = end_ns - CLOCK_EPSILON_NS
        first = bisect_left(self._places, place)
        if self._ascending:
            first = bisect_left(self._starts, sent_at_least, lo=first)
        for i in range(first, len(self._starts)):
            if self._starts[i] >= sent_at_least:
                return self._turns[i] if self._turns[i] > spawn_turn else None
        return None


def group(trace_id: str, root: Sequence[Call], children: Iterable[Child]) -> tuple[Branch, ...]:
    """Branches in the order of their first child."""
    groups: dict[tuple[bool, int, int | None], list[Child]] = {}
    for child in children:
        groups.setdefault((child.hidden, child.spawn_turn, child.join_turn), []).append(child)
    branches = []
    for (hidden, spawn_turn, join_turn), members in groups.items():
        parent = root[spawn_turn]
        start_ns = min(child.start_ns for child in members)
        when: Literal["issue", "return"] = "return"
        if parent.start_ns < parent.end_ns and start_ns < parent.end_ns:
            when = "issue"
        counted_from = parent.start_ns if when == "issue" else start_ns
        branches.append(
            Branch(
                id=f"{trace_id}:{'flatspawn' if hidden else 'spawn'}:{members[0].label}",
                spawn_turn=spawn_turn,
                when=when,
                start_ns=start_ns,
                pause_ns=0 if when == "issue" else max(0, start_ns - parent.end_ns),
                join_turn=join_turn,
                children=tuple(
                    (conversation, max(0, first_ns - counted_from))
                    for child in members
                    for conversation, first_ns in child.conversations
                ),
            )
        )
    return tuple(branches)

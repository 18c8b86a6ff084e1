"""Conversation trees for tests of the scheduler: by hand, and from hypothesis.

Only what the scheduler reads is filled in with care: delays, spawns, joins, predecessors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from agentx_engine.tree.model import Branch, Conversation, ConversationTree, Message, Turn, TurnRef

MS = 1_000_000
SECOND = 1_000_000_000
BLOCK = 64


def make_turn(
    index: int,
    *,
    delay_ns: int = 0,
    start_ns: int = 0,
    tokens: int = BLOCK,
    out: int = 4,
    joins: Sequence[int] = (),
    spawns: Sequence[int] = (),
    predecessors: Sequence[tuple[int, int]] = (),
    source: tuple[int, int | None] | None = None,
) -> Turn:
    return Turn(
        index=index,
        source=source or (index, None),
        model="m",
        in_tokens=tokens,
        max_tokens=max(1, out),
        recorded_out=out,
        start_ns=start_ns,
        api_ns=None,
        delay_ns=delay_ns if index else 0,
        keep_blocks=0,
        new_blocks=np.arange(tokens // BLOCK, dtype=np.int32),
        keep_messages=0,
        messages=(Message("user", 0, tokens // BLOCK, tokens % BLOCK),),
        hit_blocks=0,
        total_blocks=tokens // BLOCK,
        spawns=tuple(spawns),
        joins=tuple(joins),
        predecessors=tuple(TurnRef(*ref) for ref in predecessors),
    )


@dataclass
class TreeMaker:
    """Adds a root, then branches of children, then barriers; `tree` freezes them."""

    trace_id: str = "trace"
    turns: list[list[Turn]] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    background: list[bool] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)

    def root(self, *turns: Turn) -> TreeMaker:
        self._add("root", list(turns), background=False)
        return self

    def branch(
        self,
        spawn_turn: int,
        children: Sequence[tuple[int, Sequence[Turn]]],
        *,
        when: str = "return",
        pause_ns: int = 0,
        start_ns: int = 0,
        join_turn: int | None = None,
        kind: str = "subagent",
    ) -> TreeMaker:
        """`children` are (delay_ns, turns). Indices of conversations go on in order."""
        number = len(self.branches)
        made = tuple((self._add(kind, list(turns), join_turn is None), delay) for delay, turns in children)
        self.branches.append(
            Branch(
                id=f"{self.trace_id}:spawn:{number}",
                spawn_turn=spawn_turn,
                when=when,  # type: ignore[arg-type]
                start_ns=start_ns,
                pause_ns=pause_ns,
                join_turn=join_turn,
                children=made,
            )
        )
        root = self.turns[0]
        root[spawn_turn].spawns += (number,)
        if join_turn is not None:
            root[join_turn].joins += (number,)
        return self

    def hold(self, turn: tuple[int, int], *predecessors: tuple[int, int]) -> TreeMaker:
        self.turns[turn[0]][turn[1]].predecessors += tuple(TurnRef(*ref) for ref in predecessors)
        return self

    def tree(self) -> ConversationTree:
        conversations = []
        for index, turns in enumerate(self.turns):
            name = self.trace_id if index == 0 else f"{self.trace_id}::sa:{index:03d}"
            conversations.append(
                Conversation(
                    id=name,
                    kind=self.kinds[index],  # type: ignore[arg-type]
                    turns=tuple(turns),
                    parent=None if index == 0 else 0,
                    depth=0 if index == 0 else 1,
                    background=self.background[index],
                    agent_class="root" if index == 0 else "sa",
                )
            )
        return ConversationTree(
            trace_id=self.trace_id,
            block_size=BLOCK,
            tool_tokens=0,
            system_tokens=0,
            conversations=tuple(conversations),
            branches=tuple(self.branches),
        )

    def _add(self, kind: str, turns: list[Turn], background: bool) -> int:
        self.turns.append(turns)
        self.kinds.append(kind)
        self.background.append(background)
        return len(self.turns) - 1


def chain(turns: int, *, delay_ns: int = 0, out: int = 4) -> list[Turn]:
    return [make_turn(k, delay_ns=delay_ns, out=out) for k in range(turns)]


class ListTrees:
    """`TreeSource` over trees in memory; counts loads."""

    def __init__(self, *trees: ConversationTree) -> None:
        self.trees = trees
        self.loads: list[int] = []

    def __len__(self) -> int:
        return len(self.trees)

    def trace_id(self, index: int) -> str:
        return self.trees[index].trace_id

    def load(self, index: int) -> ConversationTree:
        self.loads.append(index)
        return self.trees[index]


_DELAYS = st.sampled_from([0, 0, 1, 7 * MS, 49 * MS, 50 * MS, 51 * MS, 3 * SECOND, 700 * SECOND])


@st.composite
def trees(draw: st.DrawFn, trace_id: str = "trace", *, contradictions: bool = True) -> ConversationTree:
    """Any tree that the model can express: gates, both kinds of spawns, empty children, barriers.

    Barriers may contradict the order of spawns, as in damaged recordings; without `contradictions` a turn
    only has predecessors recorded before it, in conversations that are spawned before it.
    """

    def turns(count: int) -> list[Turn]:
        return [
            make_turn(
                k,
                delay_ns=draw(_DELAYS),
                out=draw(st.integers(0, 5)),
                tokens=draw(st.integers(0, 3)) * BLOCK,
                start_ns=draw(st.integers(0, 20)) * SECOND,
            )
            for k in range(count)
        ]

    maker = TreeMaker(trace_id).root(*turns(draw(st.integers(1, 5))))
    root_turns = len(maker.turns[0])
    spawn_of = {0: -1}
    for _ in range(draw(st.integers(0, 3))):
        spawn = draw(st.integers(0, root_turns - 1))
        joins: list[int | None] = [None, *range(spawn + 1, root_turns)]
        children = [(draw(_DELAYS), turns(draw(st.integers(0, 3)))) for _ in range(draw(st.integers(1, 3)))]
        for number in range(len(maker.turns), len(maker.turns) + len(children)):
            spawn_of[number] = spawn
        maker.branch(
            spawn,
            children,
            when=draw(st.sampled_from(["issue", "return"])),
            pause_ns=draw(_DELAYS),
            join_turn=draw(st.sampled_from(joins)),
            kind=draw(st.sampled_from(["subagent", "flat"])),
        )
    places = [(c, k) for c, conversation in enumerate(maker.turns) for k in range(len(conversation))]
    for _ in range(draw(st.integers(0, 4))):
        held, before = draw(st.sampled_from(places)), draw(st.sampled_from(places))
        if held[0] == before[0]:
            continue
        if not contradictions and not _can_follow(held, before, spawn_of):
            continue
        maker.hold(held, before)
    return maker.tree()


def _can_follow(held: tuple[int, int], before: tuple[int, int], spawn_of: dict[int, int]) -> bool:
    """Whether root turns alone order the two: a child's turn after root turns up to its spawn."""
    return before[0] == 0 and before[1] <= spawn_of[held[0]]

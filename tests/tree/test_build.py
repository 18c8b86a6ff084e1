"""Spawns, gates, delays and what becomes of odd recordings.

Vectors: agentx-v1 sections 1.7, 1.8, 2, 6.4, 12.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.recordings import BLOCK, request, subagent, trace

from agentx_engine.corpus.model import Entry, Trace
from agentx_engine.errors import CorpusError
from agentx_engine.tree import TreeOptions, build_tree, to_document
from agentx_engine.tree.model import Branch, ConversationTree

S = 1_000_000_000
MS = 1_000_000


def ids_of(tree: ConversationTree) -> list[str]:
    return [c.id for c in tree.conversations]


def shape(branch: Branch) -> tuple[int, str, int | None, list[tuple[int, int]]]:
    """(spawn, when, join, [(conversation, delay in ms)])"""
    children = [(child, delay // MS) for child, delay in branch.children]
    return branch.spawn_turn, branch.when, branch.join_turn, children


def block_ids(tree: ConversationTree, conversation: int = 0) -> list[list[int]]:
    current: list[int] = []
    found = []
    for turn in tree.conversations[conversation].turns:
        current = current[: turn.keep_blocks] + turn.new_blocks.tolist()
        found.append(current)
    return found


def growing(*starts: float, api: float | None = None) -> list[Entry]:
    return [request(t, range(1, k + 2), api=api) for k, t in enumerate(starts)]


# Gates and delays.


def test_gates() -> None:
    """Section 12.1: children that end at 6, 12.5 and 24 with root turns at 0, 6, 20."""
    turns = growing(0, 6, 20, api=5)
    tree = build_tree(
        trace(
            turns[0],
            subagent(5.2, "a", [request(5.2, [100])], duration_s=0.8),
            subagent(5.3, "b", [request(5.3, [200])], duration_s=7.2),
            subagent(5.4, "c", [request(5.4, [300])], duration_s=18.6),
            *turns[1:],
        )
    )
    assert [shape(b) for b in tree.branches] == [
        (0, "return", 1, [(1, 0)]),
        (0, "return", 2, [(2, 0)]),
        (0, "return", None, [(3, 0)]),
    ]
    assert [b.pause_ns for b in tree.branches] == [200 * MS, 300 * MS, 400 * MS]
    root = tree.root.turns
    assert root[0].spawns == (0, 1, 2)
    assert [t.joins for t in root] == [(), (0,), (1,)]
    assert [c.background for c in tree.conversations] == [False, False, False, True]
    assert [b.id for b in tree.branches] == ["T:spawn:a", "T:spawn:b", "T:spawn:c"]


@pytest.mark.parametrize(("api", "delay_ms"), [(4.1, 5600), (12, 0), (None, 9700), (-1, 10_700)])
def test_delays_run_from_end_to_start(api: float | None, delay_ms: int) -> None:
    made = trace(request(0, [1], api=api), request(9.7, [1, 2]))
    tree = build_tree(made, TreeOptions(split_hidden_agents=False))
    assert tree.root.turns[1].delay_ns == delay_ms * MS
    assert tree.root.turns[0].delay_ns == 0
    assert tree.root.turns[0].api_ns == (None if api is None else max(0, round(api * S)))


def test_worked_example_a() -> None:
    """Completion stamps and relative inner times, read rightly and as the harness does (trace_0277)."""
    starts = (0.0, 228.0, 248.0, 265.0, 282.0, 307.0, 347.0, 763.0, 818.0)
    turns = growing(*starts)
    turns[0] = request(0, [1], api=18.78)
    children = [
        subagent(
            t, f"agent_{n}", [request(0, [1000 * n]), request(3, [1000 * n, 1000 * n + 1])], duration_s=d
        )
        for n, t, d in [
            (1, 79.224, 59.750),
            (2, 183.906, 164.445),
            (3, 211.347, 191.873),
            (4, 723.533, 337.933),
        ]
    ]
    entries = [turns[0], *children[:3], *turns[1:7], children[3], *turns[7:]]
    tree = build_tree(trace(*entries, settled=True))
    assert [shape(b) for b in tree.branches] == [
        (0, "return", 1, [(1, 13), (2, 0), (3, 13)]),
        (6, "return", 7, [(4, 0)]),
    ]
    assert tree.branches[0].start_ns == 19_461 * MS
    assert tree.branches[0].pause_ns == 681 * MS
    assert tree.root.turns[1].delay_ns == 209_220 * MS
    assert tree.corrections == ("subagent_clock",)
    assert all(not t.predecessors for c in tree.conversations for t in c.turns)

    literal = build_tree(trace(*entries, settled=False), TreeOptions.harness())
    assert [(b.start_ns // MS, b.join_turn) for b in literal.branches] == [
        (79_224, 1),
        (183_906, 7),
        (723_533, None),
    ]


def test_child_that_began_while_its_parent_ran_starts_at_issue() -> None:
    tree = build_tree(
        trace(
            request(0, [1], api=10),
            subagent(4, "a", [request(4.5, [100]), request(7, [100, 101])]),
            request(20, [1, 2]),
        )
    )
    assert [shape(b) for b in tree.branches] == [(0, "issue", 1, [(1, 4500)])]
    assert tree.branches[0].pause_ns == 0
    assert tree.branches[0].start_ns == 4 * S


def test_without_duration_the_last_inner_answer_ends_a_child() -> None:
    inner = [request(1, [100], api=3), request(5, [100, 101], api=4)]
    entries = [request(0, [1], api=1), subagent(1, "a", inner, status="async_launched")]
    tree = build_tree(trace(*entries, request(8.9, [1, 2]), request(9, [1, 2, 3])))
    assert tree.branches[0].join_turn == 2


def test_hidden_agent_after_the_session() -> None:
    """Worked example B: the pause of 3467 s that the harness drops is in `pause_ns`."""
    entries: list[Entry] = [*growing(0, 10, 20, api=3)]
    entries[2] = request(20, [1, 2, 3], api=928.11)
    entries += [
        request(4415, range(2188, 2290), api=9.52, model="n"),
        request(4437, range(2188, 2300), api=14.67, model="n"),
    ]
    tree = build_tree(trace(*entries, tool_tokens=60))
    assert ids_of(tree) == ["T", "T::fa:000"]
    assert [shape(b) for b in tree.branches] == [(2, "return", None, [(1, 0)])]
    assert tree.branches[0].pause_ns == round((4415 - 948.11) * S)
    agent = tree.conversations[1]
    assert (agent.kind, agent.scope, agent.depth, agent.background) == ("flat", "T", 1, True)
    assert [t.predecessors for t in agent.turns] == [((0, 2),), ((0, 2),)]
    assert agent.turns[1].delay_ns == 12_480 * MS
    assert [m.role for m in agent.turns[0].messages] == ["user"]


def test_whole_second_clock() -> None:
    """Worked example C: one conversation with the tolerance, an agent at issue without."""
    entries = [
        *growing(0, 300, api=5),
        request(3652, [1, 2, 3], api=6.17),
        request(3658, [1, 2, 3, 4], api=1),
    ]
    tree = build_tree(trace(*entries))
    assert ids_of(tree) == ["T"]
    assert tree.corrections == ("integer_clock_split",)
    assert tree.root.turns[3].delay_ns == 0
    split = build_tree(trace(*entries), TreeOptions.harness())
    assert [shape(b) for b in split.branches] == [(2, "issue", None, [(1, 6000)])]
    assert split.corrections == ()
    assert split.conversations[1].turns[0].predecessors == ((0, 1),)
    # With fractions of a second the clock is taken at its word.
    entries[1] = request(300.5, [1, 2], api=5)
    assert ids_of(build_tree(trace(*entries))) == ["T", "T::aux:000"]


def test_barriers_both_ways_and_off() -> None:
    entries = [
        request(0, [1], api=1),
        request(2, [50], api=1),
        request(5, [1, 2], api=1),
        request(8, [50, 51], api=1),
        request(11, [1, 2, 3], api=1),
    ]
    tree = build_tree(trace(*entries))
    root, agent = tree.conversations
    assert [t.predecessors for t in root.turns] == [(), ((1, 0),), ((1, 1),)]
    assert [t.predecessors for t in agent.turns] == [((0, 0),), ((0, 1),)]
    off = build_tree(trace(*entries), TreeOptions(barriers=False))
    assert all(not t.predecessors for c in off.conversations for t in c.turns)


def test_splitting_can_be_turned_off() -> None:
    entries = [request(0, [1], api=1), request(2, [50], api=1), request(5, [1, 2], api=1)]
    tree = build_tree(trace(*entries), TreeOptions(split_hidden_agents=False))
    assert ids_of(tree) == ["T"]
    assert [t.source for t in tree.root.turns] == [(0, None), (1, None), (2, None)]


def test_chains_inside_a_subagent() -> None:
    """They share its branch, its scope and its spawn; one that repeats the declared prefix gets it."""
    inner = [
        request(2, range(100, 400), api=10, tokens=300 * BLOCK),
        request(3, [*range(100, 350), *range(500, 600)], api=2, out=5000, tokens=350 * BLOCK),
        request(20, [*range(100, 400), 401], api=2, tokens=301 * BLOCK),
        request(21, [900], api=2),
    ]
    tree = build_tree(
        trace(
            request(0, [1], api=1),
            subagent(1.5, "a", inner, tool_tokens=100, system_tokens=28),
            request(30, [1, 2]),
        )
    )
    assert ids_of(tree) == ["T", "T::sa:a", "T::sa:a:fa:000", "T::sa:a:aux:001"]
    assert [c.agent_class for c in tree.conversations] == ["root", "sa", "fa", "aux"]
    assert {c.scope for c in tree.conversations[1:]} == {"T::sa:a"}
    assert {c.kind for c in tree.conversations[1:]} == {"subagent"}
    assert [shape(b) for b in tree.branches] == [(0, "return", 1, [(1, 500), (2, 1500), (3, 19500)])]
    heads = [c.turns[0].messages for c in tree.conversations[1:]]
    assert [[(m.role, m.blocks) for m in head] for head in heads] == [
        [("system", 2), ("user", 298)],
        [("system", 2), ("user", 348)],
        [("user", 1)],
    ]
    assert [t.source for t in tree.conversations[1].turns] == [(1, 0), (1, 2)]
    assert tree.conversations[3].turns[0].predecessors == ((1, 0), (2, 0))


def test_hidden_agents_inherit_the_prefix_of_the_detected_main_chain() -> None:
    """A title request before the session is turn 0 of the root, but not what agents are compared with."""
    entries = [
        request(0, [900, 901], api=1, out=10),
        request(2, range(1, 300), api=50),
        request(5, [*range(1, 280), 500], api=1, out=5000),
    ]
    tree = build_tree(trace(*entries, tool_tokens=BLOCK, system_tokens=0))
    assert [t.source[0] for t in tree.root.turns] == [0, 1]
    assert [[m.role for m in c.turns[0].messages] for c in tree.conversations] == [
        ["system", "user"],
        ["system", "user"],
    ]


# Odd recordings.


def test_root_out_of_order_without_agents_stays_in_file_order() -> None:
    tree = build_tree(trace(request(5, [1], api=1), request(2, [1, 2], api=1)))
    assert [t.start_ns for t in tree.root.turns] == [5 * S, 2 * S]
    assert tree.root.turns[1].delay_ns == 0
    assert [t.hit_blocks for t in tree.root.turns] == [1, 0]


def test_subagents_are_read_in_time_order() -> None:
    inner = [request(9, [100, 101]), request(3, [100])]
    tree = build_tree(trace(request(0, [1], api=1), subagent(2, "a", inner)))
    assert [t.source for t in tree.conversations[1].turns] == [(1, 1), (1, 0)]
    assert tree.branches[0].children == ((1, 1 * S),)


def test_subagent_before_the_first_request_is_dropped() -> None:
    tree = build_tree(trace(subagent(0, "a", [request(0, [100])]), request(1, [1]), subagent(2, "b")))
    assert ids_of(tree) == ["T", "T::sa:b"]
    (dropped,) = tree.dropped
    assert dropped[:3] == (0, "a", 1)
    assert "before the first root request" in dropped.reason


def test_empty_subagent_is_a_conversation_without_turns() -> None:
    tree = build_tree(trace(request(0, [1], api=1), subagent(2, "a"), request(3, [1, 2])))
    assert tree.conversations[1].turns == ()
    assert [shape(b) for b in tree.branches] == [(0, "return", 1, [(1, 0)])]


def test_duplicate_agent_ids() -> None:
    made = trace(request(0, [1]), subagent(1, "a"), subagent(2, "a"))
    with pytest.raises(
        CorpusError, match=r"made\.json: trace T, requests\[2\].*agent_id: 'a'.*requests\[1\]"
    ):
        build_tree(made)


def test_a_dropped_subagent_does_not_occupy_its_id() -> None:
    tree = build_tree(trace(subagent(0, "a"), request(0, [1]), subagent(2, "a")))
    assert ids_of(tree) == ["T", "T::sa:a"]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (trace(), "no request of its own"),
        (trace(subagent(0, "a")), "no request of its own"),
        (
            trace(request(0, [1]), tool_tokens=65),
            r"requests\[0\]: the declared prefix .* 65 tokens, 2 blocks",
        ),
        (
            trace(request(0, [1]), subagent(1, "a", [request(1, [5])], system_tokens=200)),
            r"requests\[1\]\.requests\[0\]: the declared prefix",
        ),
        (trace(request(0, [-4])), r"requests\[0\]: field hash_ids"),
        (trace(request(0, [1]), subagent(1, "a", [request(1, [2**31])])), r"requests\[1\]\.requests\[0\]"),
    ],
)
def test_unusable(made: Trace, words: str) -> None:
    with pytest.raises(CorpusError, match=words):
        build_tree(made)


def test_output_limit_is_at_least_one() -> None:
    tree = build_tree(trace(request(0, [1], out=0), request(1, [1, 2, 3], out=7)))
    assert [(t.max_tokens, t.recorded_out) for t in tree.root.turns] == [(1, 0), (7, 7)]
    assert [m.role for m in tree.root.turns[1].messages] == ["user"]


def test_input_kinds() -> None:
    entries = [
        request(0, [1], stop="tool_use"),
        request(1, [1, 2], stop="end_turn"),
        request(2, [1, 2, 3]),
        request(3, [1, 2, 3, 4], input_types=("text", "tool_result"), stop="tool_use"),
        request(4, [1, 2, 3, 4, 5], input_types=("text",)),
    ]
    kinds = [t.input_kind for t in build_tree(trace(*entries)).root.turns]
    assert kinds == [None, "tool_result", "user_input", "tool_result", "user_input"]


def test_join_that_would_precede_its_spawn_is_none() -> None:
    """A file out of time order: the only turn that stands after the child is an earlier turn of the root."""
    entries = [
        request(0, [1], api=1),
        request(100, [1, 2, 3], api=1),
        subagent(5, "a", [request(5, [900])], duration_s=5),
        request(50, [1, 2], api=1),
        request(60, [70], api=1, model="n"),
    ]
    tree = build_tree(trace(*entries))
    assert [t.source[0] for t in tree.root.turns] == [0, 3, 1]
    assert (tree.branches[0].spawn_turn, tree.branches[0].join_turn) == (2, None)


def test_hidden_agents_start_from_turns_that_precede_them_in_time() -> None:
    entries = [
        request(0, [1], api=1),
        request(100, [1, 2, 3], api=1),
        request(50, [1, 2], api=1),
        request(20, [70], api=1, model="n"),
    ]
    assert build_tree(trace(*entries)).branches[0].spawn_turn == 0
    literal = build_tree(trace(*entries), TreeOptions(time_ordered_spawns=False))
    assert literal.branches[0].spawn_turn == 2


def test_prompts_keep_only_what_is_new() -> None:
    lists = [list(range(1, k + 1)) for k in range(1, 60)]
    tree = build_tree(trace(*(request(k, ids) for k, ids in enumerate(lists))))
    assert block_ids(tree) == lists
    assert sum(t.new_blocks.size for t in tree.root.turns) == 59
    assert all(t.new_blocks.base is None for t in tree.root.turns)
    assert all(t.new_blocks.dtype == np.int32 for t in tree.root.turns)


def test_document_of_a_small_tree() -> None:
    made = trace(
        request(0, [1], api=1.5, tokens=70),
        subagent(1.75, "a", [request(2, [9], out=0)]),
        request(9, [1, 2], tokens=140),
    )
    document = to_document(build_tree(made), made)
    assert document["file"] == "made.json"
    assert "corrections" not in document
    assert document["branches"] == [
        {
            "id": "T:spawn:a",
            "spawn_turn": 0,
            "when": "return",
            "start_ms": 1750,
            "pause_ms": 250,
            "join_turn": 1,
            "background": False,
            "children": [["T::sa:a", 250]],
        }
    ]
    first, second = document["conversations"][0]["turns"]
    assert (first["seg"], first["new"], first["reset"], first["tail"]) == ([["user", 70]], 1, False, 6)
    assert second["seg"] == [["user", 64], ["assistant", 64], ["user", 12]]
    assert (second["new"], second["reset"], second["joins"]) == (3, True, ["T:spawn:a"])
    assert (first["spawns"], "joins" in first) == (["T:spawn:a"], False)


def test_document_says_where_tokens_do_not_add_up() -> None:
    made = trace(request(0, [1, 2, 3, 4], tokens=212), request(1, [1, 2, 3, 4], tokens=212))
    harness = to_document(build_tree(made, TreeOptions.harness()), made)
    assert harness["conversations"][0]["turns"][1]["sum"] == 232
    right = to_document(build_tree(made), made)
    assert "sum" not in right["conversations"][0]["turns"][1]

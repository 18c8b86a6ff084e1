"""Segments of prompts: the vectors of agentx-v1 section 12.1, and what holds for any conversation."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentx_engine.tree.model import Message
from agentx_engine.tree.segments import Layout, Step, declared_blocks, lay_out

BS = 64
ROLE = {"s": "system", "u": "user", "a": "assistant"}

Turn = tuple[int, list[int], int]  # in, ids, out


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def steps(turns: list[Turn]) -> list[Step]:
    before: list[list[int]] = [[], *(ids for _, ids, _ in turns)]
    return [
        Step(tokens, len(ids), out, common(previous, ids))
        for (tokens, ids, out), previous in zip(turns, before, strict=False)
    ]


def prompts(layouts: list[Layout]) -> list[list[Message]]:
    full: list[Message] = []
    found = []
    for layout in layouts:
        full = [*full[: layout.keep_messages], *layout.messages]
        found.append(full)
    return found


def short(messages: list[Message]) -> str:
    return " ".join(f"{m.role[0]}{m.blocks * BS + m.tail}" for m in messages)


def ids(*spans: int | range) -> list[int]:
    return [i for span in spans for i in (span if isinstance(span, range) else [span])]


VECTORS: dict[str, tuple[int, list[Turn], list[str]]] = {
    "answer and new text": (
        0,
        [(192, [1, 2, 3], 100), (448, [1, 2, 3, 5, 6, 7, 8], 1)],
        ["u192", "u192 a128 u128"],
    ),
    "tail is cut": (0, [(212, [1, 2, 3], 10), (300, [1, 2, 3, 5], 1)], ["u212", "R u192 a64 u44"]),
    "one block without tail": (
        0,
        [(192, [1, 2, 3], 300), (256, [1, 2, 3, 4], 1)],
        ["u192", "u192 u64"],
    ),
    "answer longer than growth, then an edit": (
        0,
        [
            (192, [1, 2, 3], 300),
            (576, ids(range(1, 10)), 64),
            (512, [1, 2, 3, 4, 5, 20, 21, 22], 1),
        ],
        ["u192", "u192 a320 u64", "R u192 a128 a64 u128"],
    ),
    "the same again": (0, [(192, [1, 2, 3], 10), (192, [1, 2, 3], 1)], ["u192", "R u192"]),
    "capped because a later turn only cuts": (
        0,
        [(192, [1, 2, 3], 10), (384, ids(range(1, 7)), 128), (256, [1, 2, 3, 4], 1)],
        ["u192", "u192 u192", "R u192 u64"],
    ),
    "declared prefix": (
        120,
        [(256, [1, 2, 3, 4], 10), (400, ids(range(1, 7)), 1)],
        ["s128 u128", "s128 u128 a64 u80"],
    ),
    "tail after tail": (
        0,
        [(200, [1, 2, 3], 10), (230, [1, 2, 3], 10), (300, [1, 2, 3, 4], 1)],
        ["u200", "R u192 u38", "R u192 a64 u44"],
    ),
    "partial block with an id of its own, repeated (11-6)": (
        0,
        [(212, [1, 2, 3, 4], 0), (212, [1, 2, 3, 4], 0)],
        ["u212", "R u192 u20"],
    ),
    "partial block with an id of its own, growing (11-6)": (
        0,
        [(212, [1, 2, 3, 4], 0), (320, [1, 2, 3, 4, 5], 0)],
        ["u212", "R u192 u128"],
    ),
    "list shorter than the prompt": (
        0,
        [(256, [1, 2], 64), (320, [1, 2, 3], 1)],
        ["u256", "R u128 a64 u128"],
    ),
    "nothing at all": (0, [(0, [], 1), (0, [], 1)], ["u0", "R u0"]),
    "prefix only": (128, [(128, [1, 2], 1)], ["s128"]),
    "everything new": (0, [(128, [1, 2], 64), (192, [7, 8, 9], 1)], ["u128", "R u192"]),
    "previous answer empty (K7)": (0, [(128, [1, 2], 0), (256, [1, 2, 3, 4], 1)], ["u128", "u128 u128"]),
}


@pytest.mark.parametrize("name", VECTORS)
def test_vector(name: str) -> None:
    prefix, turns, want = VECTORS[name]
    layouts = lay_out(steps(turns), block_size=BS, system_blocks=declared_blocks(prefix, BS))
    found = prompts(layouts)
    stored = []
    for k, messages in enumerate(found):
        kept = layouts[k].keep_messages == len(found[k - 1]) and layouts[k].messages
        stored.append(("" if k == 0 or kept else "R ") + short(messages))
    assert stored == want


@pytest.mark.parametrize(
    ("second", "total"),
    [((212, [1, 2, 3, 4], 1), 232), ((320, [1, 2, 3, 4, 5], 1), 276), ((320, [1, 2, 3, 4], 1), 276)],
)
def test_harness_keeps_partial_blocks(second: Turn, total: int) -> None:
    """The official harness' fault (11-6), for parity."""
    turns = steps([(212, [1, 2, 3, 4], 10), second])
    messages = prompts(lay_out(turns, block_size=BS, clamp_prefix=False))[1]
    assert sum(m.blocks * BS + m.tail for m in messages) == total


@st.composite
def conversations(draw: st.DrawFn) -> list[Turn]:
    """Prompts that grow, are cut, are edited; ids lists too short, too long, with partial blocks."""
    turns: list[Turn] = []
    current: list[int] = []
    fresh = 0
    for _ in range(draw(st.integers(1, 12))):
        keep = draw(st.one_of(st.just(len(current)), st.integers(0, len(current))))
        grow = draw(st.integers(0, 6))
        current = current[:keep] + list(range(fresh, fresh + grow))
        fresh += grow
        tokens = max(
            0, len(current) * BS + draw(st.sampled_from([0, 0, 1, 20, 63, 64, 200, -1, -20, -64, -150]))
        )
        turns.append((tokens, list(current), draw(st.sampled_from([0, 1, 64, 65, 300, 5000]))))
    return turns


@settings(max_examples=50)
@given(conversations(), st.integers(0, 400))
def test_prompts_add_up_and_tile(turns: list[Turn], prefix: int) -> None:
    system = min(declared_blocks(prefix, BS), len(turns[0][1]))
    layouts = lay_out(steps(turns), block_size=BS, system_blocks=system)
    for (tokens, block_ids, _), layout, messages in zip(turns, layouts, prompts(layouts), strict=True):
        assert sum(m.blocks * BS + m.tail for m in messages) == tokens
        assert layout.blocks == min(tokens // BS, len(block_ids))
        position = 0
        for message in messages:
            assert message.start == position
            position += message.blocks
        assert position == layout.blocks
        assert all(m.tail == 0 for m in messages[:-1])
        assert messages


@settings(max_examples=50)
@given(conversations())
def test_differences_rebuild_the_block_ids(turns: list[Turn]) -> None:
    current: list[int] = []
    for (tokens, block_ids, _), layout in zip(turns, lay_out(steps(turns), block_size=BS), strict=True):
        current = current[: layout.keep_blocks] + block_ids[layout.keep_blocks : layout.blocks]
        assert current == block_ids[: min(tokens // BS, len(block_ids))]


@settings(max_examples=50)
@given(conversations())
def test_a_message_that_is_kept_does_not_change(turns: list[Turn]) -> None:
    layouts = lay_out(steps(turns), block_size=BS)
    for (before, after), layout in zip(pairwise(prompts(layouts)), layouts[1:], strict=True):
        assert layout.keep_messages <= len(before)
        assert before[: layout.keep_messages] == after[: layout.keep_messages]
        # What is kept lies wholly inside the kept blocks.
        assert all(m.start + m.blocks <= layout.keep_blocks for m in before[: layout.keep_messages])


@settings(max_examples=50)
@given(conversations())
def test_answers_are_whole_blocks_after_the_cut(turns: list[Turn]) -> None:
    layouts = lay_out(steps(turns), block_size=BS)
    for (_, _, out), layout in zip(turns, layouts[1:], strict=False):
        fresh = [m for m in layout.messages if m.role == "assistant" and m.start >= layout.keep_blocks]
        assert len(fresh) <= 1
        assert all(m.blocks <= -(-out // BS) and m.tail == 0 for m in fresh)


def test_time_is_linear_in_turns() -> None:
    """A long session, pulled back to its start again and again: messages are popped once."""
    pushed = 0
    turns = [Step(64 * 3, 3, 64, 0)]
    turns += [Step(64 * (3 + k), 3 + k, 64, 2 + k) for k in range(1, 3000)]
    for layout in lay_out(turns, block_size=BS):
        pushed += len(layout.messages)
    assert pushed < 3 * len(turns)

"""Bodies of hand-made conversations: exact words, the same bytes for the same content, JSON that parses."""

import gc
import hashlib
import json
import os
import subprocess
import sys
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.prompt_trees import ROLES, tree, turn

from agentx_engine.core.words import words_key
from agentx_engine.errors import UserError
from agentx_engine.prompt import BodyTemplate, Overhead, PromptBuilder, default_pool
from agentx_engine.prompt.builder import scope_hash
from agentx_engine.prompt.marker import marker_text

MARKER = marker_text("4b620d0d25b1")

# Six turns over four-token blocks: system and user, growth with an answer, a cut inside a message, a
# tail-only user message, a reset to other content, the same prompt again.
GROWING = [
    turn(0, [1, 2, 3], messages=[("s", 0, 1), ("u", 1, 2, 3)], in_tokens=15),
    turn(1, [1, 2, 3, 4, 5], 3, 1, messages=[("u", 1, 2), ("a", 3, 1), ("u", 4, 1)], in_tokens=20),
    turn(2, [1, 2, 9], 2, 1, messages=[("u", 1, 1), ("u", 2, 1)], in_tokens=12),
    turn(3, [1, 2, 9], 3, 3, messages=[("u", 3, 0, 2)], in_tokens=14),
    turn(4, [7, 8], messages=[("u", 0, 2)], in_tokens=8),
    turn(5, [7, 8], 2, 1, in_tokens=8),
]


def builder(seed=42, template=None, overhead=None):
    return PromptBuilder(default_pool(), seed, template or BodyTemplate(["m"]), overhead)


def bodies(prompt, turns):
    out = []
    for t in turns:
        prompt.advance(t)
        out.append(bytes(prompt.rope(t)))
    return out


def messages_of(body):
    return [(m["role"], m["content"]) for m in json.loads(body)["messages"]]


def sizes_of(body):
    return [(role[0], len(content.split())) for role, content in messages_of(body)]


def play(turns=GROWING, *, marker=None, **options):
    return bodies(builder(**options).open(tree(turns), 0, marker), turns)


def test_every_turn_has_the_messages_and_words_of_the_recording():
    assert [sizes_of(body) for body in play()] == [
        [("s", 4), ("u", 11)],
        [("s", 4), ("u", 8), ("a", 4), ("u", 4)],
        [("s", 4), ("u", 4), ("u", 4)],
        [("s", 4), ("u", 4), ("u", 4), ("u", 2)],
        [("u", 8)],
        [("u", 8)],
    ]


def test_words_and_roles_are_those_of_the_current_turn():
    prompt = builder().open(tree(GROWING), 0)
    assert (prompt.words, prompt.roles) == (0, (0, 0, 0))
    seen = []
    for t in GROWING:
        prompt.advance(t)
        assert prompt.words == t.in_tokens
        seen.append(prompt.roles)
    assert seen == [(1, 1, 0), (1, 2, 1), (1, 2, 0), (1, 3, 0), (0, 1, 0), (0, 1, 0)]


def test_content_is_the_blocks_wherever_they_stand():
    def block(i):
        return default_pool().fill(words_key(42, scope_hash("trace_a"), i), 4).decode()

    contents = [[c for _, c in messages_of(body)] for body in play()]
    assert contents[0][0] == block(1)
    assert contents[0][1].startswith(block(2) + block(3))
    assert contents[1] == [block(1), block(2) + block(3), block(4), block(5)]
    assert contents[2] == [block(1), block(2), block(9)]
    assert contents[4] == contents[5] == [block(7) + block(8)]


def test_a_tail_belongs_to_its_turn_and_conversation():
    turns = [
        turn(0, [1], messages=[("u", 0, 1, 3)]),
        turn(1, [1], 1, 0, messages=[("u", 0, 1, 3)]),
        turn(2, [], messages=[("u", 0, 0, 3)]),
    ]
    two = tree(turns, turns)
    b = builder()
    root, child = (bodies(b.open(two, c), turns) for c in (0, 1))
    tails = [messages_of(body)[0][1].split()[-3:] for body in root + child]
    assert len({tuple(t) for t in tails}) == 6
    block = [messages_of(body)[0][1].split()[:4] for body in (root[0], root[1], child[0], child[1])]
    assert block == [block[0]] * 4


def test_a_tail_of_the_root_is_not_a_block_of_the_trace():
    turns = [turn(0, [0], messages=[("u", 0, 1, 4)])]
    content = messages_of(play(turns)[0])[0][1].split()
    assert content[:4] != content[4:]


def test_a_kept_tail_stays_as_it_was():
    turns = [turn(0, [1], messages=[("u", 0, 1, 3)]), turn(1, [1, 2], 1, 1, messages=[("u", 1, 1)])]
    first, second = play(turns)
    assert messages_of(second)[0] == messages_of(first)[0]


def test_nothing_to_say():
    empty = [turn(0, [], messages=[("u", 0, 0)]), turn(1, [], in_tokens=0)]
    first, second = play(empty)
    assert messages_of(first) == [("user", "")]
    assert messages_of(second) == []
    assert messages_of(play(empty, marker=MARKER)[0]) == [("user", MARKER)]


def test_first_words_come_from_the_list_for_trimmed_starts():
    pool_first = set((resources.files("agentx_engine") / "data" / "words-first.txt").read_text().split())
    for body in play():
        assert all(content.split()[0] in pool_first for _, content in messages_of(body))


# Turns skipped, shared text, other processes


def test_skipped_turns_do_not_change_later_bodies():
    whole = play(marker=MARKER)
    for start in range(len(GROWING)):
        prompt = builder().open(tree(GROWING), 0, MARKER)
        for t in GROWING[:start]:
            prompt.advance(t)
        assert bodies(prompt, GROWING[start:]) == whole[start:]


def test_skipped_turns_make_no_text():
    b = builder()
    prompt = b.open(tree(GROWING), 0)
    for t in GROWING:
        prompt.advance(t)
    assert b.shared_texts == 0
    prompt.rope(GROWING[-1])
    assert b.shared_texts == 1


def test_lanes_share_text_and_let_it_go():
    b, t = builder(), GROWING[1]
    prompts = [b.open(tree(GROWING), 0, marker_text(f"{lane:012x}")) for lane in range(3)]
    ropes = []
    for prompt in prompts:
        for u in GROWING[:2]:
            prompt.advance(u)
        ropes.append(prompt.rope(t))
    assert b.shared_texts == 4
    texts = [[s for s in rope.segments if s.startswith(b" ")] for rope in ropes]
    assert all(a is b is c for a, b, c in zip(*texts, strict=True))
    before = bytes(ropes[0])
    del prompts, prompt
    gc.collect()
    assert b.shared_texts == 0
    assert bytes(ropes[0]) == before


def test_text_that_was_cut_away_is_let_go():
    b = builder()
    prompt = b.open(tree(GROWING), 0)
    bodies(prompt, GROWING[:4])
    assert b.shared_texts == 3
    bodies(prompt, GROWING[4:])
    assert b.shared_texts == 1


def test_children_share_blocks_with_the_root():
    turns = [turn(0, [5, 6], messages=[("u", 0, 2)])]
    b, t = builder(), tree(turns, turns)
    assert bodies(b.open(t, 0), turns) == bodies(b.open(t, 1), turns)


def test_traces_and_seeds_share_nothing():
    turns = [turn(0, list(range(50)), messages=[("u", 0, 50)])]
    texts = [
        messages_of(bodies(builder(seed).open(tree(turns, trace_id=trace), 0), turns)[0])[0][1].split()
        for seed, trace in ((1, "a"), (1, "b"), (2, "a"))
    ]
    blocks = [{tuple(words[i : i + 4]) for i in range(0, 200, 4)} for words in texts]
    assert not (blocks[0] & blocks[1] | blocks[0] & blocks[2] | blocks[1] & blocks[2])


def digest():
    return hashlib.sha256(b"".join(play(marker=MARKER))).hexdigest()


@pytest.mark.parametrize("hash_seed", ["0", "4242"])
def test_another_process_makes_the_same_bytes(hash_seed):
    tests = str(Path(__file__).resolve().parents[1])
    code = (
        "import sys, importlib.util as u; sys.path.insert(0, sys.argv[1]);"
        "s = u.spec_from_file_location('t', sys.argv[2]); m = u.module_from_spec(s); s.loader.exec_module(m);"
        "print(m.digest())"
    )
    out = subprocess.run(
        [sys.executable, "-P", "-c", code, tests, __file__],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.strip() == digest()


def test_bytes_do_not_change_between_versions():
    """A change of this digest makes every recorded run id and seed produce other prompts."""
    assert digest() == "44523392472e62e173a09bc0662b6ed95fba1088bd6242342e28bc93de003420"


# The marker


def test_marker_stands_before_the_first_user_message_of_every_body():
    plain, marked = play(), play(marker=MARKER)
    for without, with_ in zip(plain, marked, strict=True):
        a, b = messages_of(without), messages_of(with_)
        at = next(i for i, (role, _) in enumerate(a) if role == "user")
        assert b[at] == ("user", MARKER + a[at][1])
        assert b[:at] + b[at + 1 :] == a[:at] + a[at + 1 :]


def test_marker_is_its_own_segment():
    prompt = builder().open(tree(GROWING), 0, MARKER)
    prompt.advance(GROWING[0])
    assert b"[rid:4b620d0d25b1]\\n\\n" in prompt.rope(GROWING[0]).segments


def test_marker_is_not_counted_and_moves_to_the_first_user_message_that_is_left():
    turns = [
        turn(0, [1, 2], messages=[("s", 0, 1), ("u", 1, 1)]),
        turn(1, [1, 3, 4], 1, 1, messages=[("a", 1, 1), ("u", 2, 1)], in_tokens=12),
    ]
    _, second = play(turns, marker=MARKER)
    assert [content.startswith(MARKER) for _, content in messages_of(second)] == [False, False, True]
    prompt = builder().open(tree(turns), 0, MARKER)
    prompt.advance(turns[0])
    assert prompt.words == 8


def test_no_marker_without_a_user_message():
    turns = [turn(0, [1], messages=[("s", 0, 1)])]
    assert play(turns, marker=MARKER) == play(turns)


# Overhead


def test_overhead_is_taken_out_once_per_message():
    overhead = Overhead(base=3, system=1, user=2, assistant=5, marker=2)
    got = [sizes_of(body) for body in play(overhead=overhead)]
    # The system message owes 3 + 1; the assistant message has 4 words to give for its 5, so the user message
    # behind it gives one more.
    assert got[0] == [("s", 0), ("u", 9)]
    assert got[1] == [("s", 0), ("u", 6), ("a", 0), ("u", 1)]
    prompt = builder(overhead=overhead).open(tree(GROWING), 0)
    for t, sizes in zip(GROWING, got, strict=True):
        prompt.advance(t)
        assert prompt.words == sum(n for _, n in sizes)
    marked = play(marker=MARKER, overhead=overhead)
    assert sizes_of(marked[0]) == [("s", 0), ("u", 7 + 1)]


def test_overhead_cuts_words_from_the_end():
    plain, cut = play(), play(overhead=Overhead(user=3))
    for a, b in zip(plain, cut, strict=True):
        for (role, whole), (_, short) in zip(messages_of(a), messages_of(b), strict=True):
            assert whole.split()[: len(short.split())] == short.split()
            assert whole == short if role != "user" else len(short) < len(whole)


# Faults of the caller


def test_turns_out_of_order_are_refused():
    prompt = builder().open(tree(GROWING), 0)
    with pytest.raises(ValueError, match="does not follow"):
        prompt.advance(GROWING[1])
    prompt.advance(GROWING[0])
    with pytest.raises(ValueError, match="does not follow"):
        prompt.advance(GROWING[0])
    with pytest.raises(ValueError, match="not the current turn"):
        prompt.rope(GROWING[1])


def test_blocks_that_are_not_there_are_refused():
    for wrong in (turn(0, [1], messages=[("u", 0, 2)]), turn(0, [1, 2], 1, messages=[("u", 0, 2)])):
        with pytest.raises(ValueError, match="does not have"):
            builder().open(tree([wrong]), 0).advance(wrong)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_are_unsigned_64_bit(seed):
    with pytest.raises(UserError, match="content seed"):
        builder(seed)


def test_a_turn_can_be_sent_with_another_limit():
    prompt = builder().open(tree(GROWING), 0)
    prompt.advance(GROWING[0])
    body = json.loads(bytes(prompt.rope(GROWING[0], max_tokens=1)))
    assert body["max_completion_tokens"] == 1


# Any conversation: against a model that joins strings


@st.composite
def conversations(draw):
    """Turns that cut the messages anywhere and append any."""
    turns, ids, messages = [], [], []
    for k in range(draw(st.integers(1, 6))):
        cut = draw(st.integers(0, len(ids)))
        kept = [m for m in messages if m[1] + m[2] <= cut and not m[3]]
        at = kept[-1][1] + kept[-1][2] if kept else 0
        added = []
        if at < cut:
            role = messages[len(kept)][0]
            added.append((role, at, cut - at, 0))
        new = draw(st.lists(st.integers(0, 2**31 - 1), max_size=5))
        ids = ids[:cut] + new
        if new:
            split = draw(st.integers(0, len(new)))
            added += [("a", cut, split, 0)] if split else []
            added += [("u", cut + split, len(new) - split, draw(st.integers(0, 9)))]
        messages = kept + added
        words = sum(m[2] * 4 + m[3] for m in messages)
        turns.append(turn(k, ids, cut, len(kept), messages=added, in_tokens=words))
    return turns


@settings(deadline=None)
@given(conversations(), st.sampled_from([None, Overhead(1, 2, 3, 4, 5)]), st.sampled_from([None, MARKER]))
def test_any_conversation(turns, overhead, marker):
    b = builder(overhead=overhead)
    t = tree(turns)
    prompt = b.open(t, 0, marker)
    pool = default_pool()
    before, stack, ids = [], [], np.zeros(0, dtype=np.int32)
    for u in turns:
        ids = np.concatenate([ids[: u.keep_blocks], u.new_blocks])
        stack = stack[: u.keep_messages] + [(m, u.index) for m in u.messages]
        expected, owed, marked = [], (overhead.base if overhead else 0), marker is None
        for m, k in stack:
            text = pool.blocks(42, scope_hash("trace_a"), ids[m.start : m.start + m.blocks], 4)
            text += pool.fill(words_key(42, scope_hash("trace_a\0tail"), k), m.tail)
            words = text.decode().split()
            mark = ""
            if m.role == "user" and not marked:
                mark, marked = marker, True
                owed += overhead.marker if overhead else 0
            owed += getattr(overhead, m.role) if overhead else 0
            n = max(0, len(words) - owed)
            owed -= len(words) - n
            expected.append((m.role, mark + "".join(f" {w}" for w in words[:n])))
        prompt.advance(u)
        body = bytes(prompt.rope(u))
        got = messages_of(body)
        assert got == expected
        assert prompt.roles == tuple(sum(r == role for r, _ in got) for role in ROLES.values())
        if overhead is None:
            assert prompt.words == u.in_tokens
        # What is kept is sent again byte for byte.
        assert got[: u.keep_messages] == before[: u.keep_messages]
        before = got

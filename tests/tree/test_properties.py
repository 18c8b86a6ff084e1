"""What holds for the tree of any recording, odd ones included."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest
from support.recordings import BLOCK, request, subagent, trace

from agentx_engine.corpus.model import Entry, Subagent, Trace, TraceRequest
from agentx_engine.tree import TreeOptions, build_tree
from agentx_engine.tree.model import ConversationTree

SEEDS = range(300)


def some_requests(rng: random.Random, start: float, count: int, known: list[list[int]]) -> list[TraceRequest]:
    made = []
    t = start
    for _ in range(count):
        base = rng.choice(known[-5:])
        keep = rng.choice([len(base), len(base), rng.randint(0, len(base))])
        ids = base[:keep] + [rng.randint(1, 30) for _ in range(rng.randint(0, 5))]
        known.append(ids)
        t += rng.choice([0, 1, 1.5, 30, 4000])
        tokens = max(0, len(ids) * BLOCK + rng.choice([0, 0, 17, 63, 130, -1, -40, -64]))
        api = rng.choice([None, 0, 0.5, 2, 40, -1])
        out = rng.choice([0, 1, 64, 500])
        made.append(
            request(
                t,
                ids,
                tokens=tokens,
                out=out,
                api=api,
                model=rng.choice("mmmn"),
                stop=rng.choice(["", "end_turn"]),
            )
        )
    return made


def recording(seed: int) -> Trace:
    """Root requests, subagents between them (also before the first, or empty), now and then out of order."""
    rng = random.Random(seed)
    known: list[list[int]] = [[]]
    entries: list[Entry] = list(some_requests(rng, 0, 1 + seed % 20, known))
    for n in range(rng.choice([0, 0, 1, 3])):
        place = rng.randint(0, len(entries))
        before = next((e.t for e in reversed(entries[:place])), 0.0)
        start = before + rng.choice([0, 1, 5])
        inner = some_requests(rng, start, rng.randint(0, 5), [[500 + n]])
        entries.insert(place, subagent(start, f"a{n}", inner, duration_s=rng.choice([None, 3, 50])))
    if rng.random() < 0.2:
        rng.shuffle(entries)
    return trace(*entries)


def trees() -> list[tuple[int, Trace, ConversationTree]]:
    made = [(seed, recording(seed)) for seed in SEEDS]
    return [(seed, recorded, build_tree(recorded)) for seed, recorded in made]


@pytest.fixture(scope="module")
def built() -> list[tuple[int, Trace, ConversationTree]]:
    return trees()


Built = list[tuple[int, Trace, ConversationTree]]


def leaves(recorded: Trace) -> dict[tuple[int, int | None], TraceRequest]:
    found: dict[tuple[int, int | None], TraceRequest] = {}
    for i, entry in enumerate(recorded.requests):
        if isinstance(entry, Subagent):
            found |= {(i, j): inner for j, inner in enumerate(entry.requests)}
        else:
            found[i, None] = entry
    return found


def test_the_recordings_have_what_is_tested(built: Built) -> None:
    kinds = Counter(c.agent_class for _, _, tree in built for c in tree.conversations)
    assert min(kinds["sa"], kinds["aux"], kinds["fa"], kinds["wg"] + 20) > 15, kinds
    assert sum(len(tree.dropped) for _, _, tree in built) > 5
    assert sum(len(t.predecessors) for _, _, tree in built for c in tree.conversations for t in c.turns) > 100


def test_every_request_is_there_once(built: Built) -> None:
    for seed, recorded, tree in built:
        sources = [t.source for c in tree.conversations for t in c.turns]
        for dropped in tree.dropped:
            assert dropped.reason
            sources += [(dropped.entry, j) for j in range(dropped.requests)]
        assert sorted(sources, key=str) == sorted(leaves(recorded), key=str), f"seed {seed}"


def test_prompts_are_the_recorded_ones(built: Built) -> None:
    for seed, recorded, tree in built:
        requests = leaves(recorded)
        for conversation in tree.conversations:
            ids: list[int] = []
            messages: list[tuple[str, int, int, int]] = []
            for k, turn in enumerate(conversation.turns):
                source = requests[turn.source]
                ids = ids[: turn.keep_blocks] + turn.new_blocks.tolist()
                messages = [*messages[: turn.keep_messages], *turn.messages]
                wanted = msgspec.json.decode(source.hash_ids)
                assert turn.index == k
                assert turn.in_tokens == source.in_tokens
                assert turn.total_blocks == len(wanted)
                assert ids == wanted[: source.in_tokens // BLOCK], f"seed {seed} {conversation.id} {k}"
                assert sum(m[2] * BLOCK + m[3] for m in messages) == source.in_tokens, f"seed {seed}"
                assert messages


def test_turns_are_in_time_order_or_as_in_the_file(built: Built) -> None:
    for _, _, tree in built:
        for conversation in tree.conversations:
            starts = [t.start_ns for t in conversation.turns]
            places = [t.source for t in conversation.turns]
            only_root = conversation.parent is None and all(c.kind != "flat" for c in tree.conversations)
            assert places == sorted(places) if only_root else starts == sorted(starts)


def test_references_hold(built: Built) -> None:
    for _, _, tree in built:
        spawned: Counter[int] = Counter()
        for number, branch in enumerate(tree.branches):
            assert branch.children
            assert branch.pause_ns >= 0
            assert number in tree.root.turns[branch.spawn_turn].spawns
            if branch.join_turn is not None:
                assert branch.join_turn > branch.spawn_turn
                assert number in tree.root.turns[branch.join_turn].joins
            for child, delay_ns in branch.children:
                spawned[child] += 1
                assert delay_ns >= 0
                assert tree.conversations[child].background is branch.background
        assert spawned == Counter(range(1, len(tree.conversations)))
        assert sum(len(t.spawns) for t in tree.root.turns) == len(tree.branches)
        assert sum(len(t.joins) for t in tree.root.turns) == sum(not b.background for b in tree.branches)
        for conversation in tree.conversations[1:]:
            assert conversation.parent == 0
            assert all(not t.spawns and not t.joins for t in conversation.turns)
        for conversation in tree.conversations:
            for turn in conversation.turns:
                for ref in turn.predecessors:
                    other = tree.conversations[ref.conversation]
                    assert other is not conversation
                    assert other.scope == conversation.scope
                    assert ref.turn < len(other.turns)
                assert turn.delay_ns >= 0
        assert len({c.id for c in tree.conversations}) == len(tree.conversations)


def playable(tree: ConversationTree) -> bool:
    """Whether every turn can be sent, in some order: nothing waits for what comes after it."""
    sent = [0] * len(tree.conversations)  # turns returned, per conversation
    started = {0}
    progress = True
    while progress:
        progress = False
        for number in sorted(started):
            turns = tree.conversations[number].turns
            while sent[number] < len(turns):
                turn = turns[sent[number]]
                gates = [child for b in turn.joins for child, _ in tree.branches[b].children]
                if any(c not in started or sent[c] < len(tree.conversations[c].turns) for c in gates):
                    break
                if any(sent[p.conversation] <= p.turn for p in turn.predecessors):
                    break
                sent[number] += 1
                progress = True
                for b in turn.spawns:
                    started |= {child for child, _ in tree.branches[b].children}
    return sent == [len(c.turns) for c in tree.conversations]


def test_every_tree_can_be_played_to_its_end(built: Built) -> None:
    for seed, _, tree in built:
        assert playable(tree), f"seed {seed}"


def test_playing_can_fail() -> None:
    """Out of time order and read as the harness does, a turn waits for an agent that a later turn starts."""
    recorded = trace(
        request(0, [1], api=1),
        request(100, [1, 2, 3], api=1),
        request(50, [1, 2], api=1),
        request(20, [70], api=1, model="n"),
    )
    assert playable(build_tree(recorded))
    assert not playable(build_tree(recorded, TreeOptions.harness()))


def plain_hits(recorded: Trace, tree: ConversationTree) -> dict[tuple[int, int | None], int]:
    """agentx-v1 section 9.4, one id at a time."""
    requests = leaves(recorded)
    order = []
    for conversation in tree.conversations:
        chain = 0
        if conversation.kind == "subagent":
            siblings = [c.id for c in tree.conversations if c.scope == conversation.scope]
            chain = siblings.index(conversation.id)
        for turn in conversation.turns:
            outer, inner = turn.source
            order.append((turn.start_ns, outer, chain, 0 if inner is None else turn.index, turn.source))
    seen: set[int] = set()
    hits = {}
    for *_, source in sorted(order, key=lambda o: o[:4]):
        ids = msgspec.json.decode(requests[source].hash_ids)
        run = 0
        while run < len(ids) and ids[run] in seen:
            run += 1
        hits[source] = run
        seen.update(ids)
    return hits


def test_prefix_hits_are_those_of_an_unbounded_cache(built: Built) -> None:
    for seed, recorded, tree in built:
        found = {t.source: t.hit_blocks for c in tree.conversations for t in c.turns}
        assert found == plain_hits(recorded, tree), f"seed {seed}"


def test_ids_far_apart_cost_no_memory() -> None:
    far = 2**31 - 1
    recorded = trace(request(0, [far, 5]), request(1, [far, 5, 7]), request(2, [far, 9]))
    assert [t.hit_blocks for t in build_tree(recorded).root.turns] == [0, 2, 1]


def test_same_trace_same_tree() -> None:
    recorded = recording(7)
    once, again = build_tree(recorded), build_tree(recorded)
    assert [(b.id, b.children) for b in once.branches] == [(b.id, b.children) for b in again.branches]
    assert [c.id for c in once.conversations] == [c.id for c in again.conversations]

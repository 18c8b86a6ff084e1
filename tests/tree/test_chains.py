"""Hidden agents in a flat list: worked examples, a plain quadratic reference, and cost."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentx_engine.tree import prefixes
from agentx_engine.tree.calls import Call, in_time_order
from agentx_engine.tree.chains import split_agents
from agentx_engine.tree.prefixes import PrefixTrie

S = 1_000_000_000


def call(
    index: int, t: float, ids: Sequence[int], api: float = 0.0, *, model: str = "m", out: int = 1000
) -> Call:
    start, api_ns = round(t * S), round(api * S)
    return Call(
        source=(index, None),
        index=index,
        model=model,
        in_tokens=64 * len(ids),
        out_tokens=out,
        start_ns=start,
        api_ns=api_ns,
        end_ns=start + max(0, api_ns),
        ids=np.array(ids, np.int32),
        input_types=(),
        stop="",
    )


def common(a: Call, b: Call) -> int:
    pairs = zip(a.ids.tolist(), b.ids.tolist(), strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(a.ids.size, b.ids.size))


class Plain:
    """agentx-v1, sections 2.3 to 2.5, word by word: every request against every chain."""

    def __init__(self, calls: list[Call], slack: int) -> None:
        self.slack = max(slack, 1000)
        self.calls = in_time_order(calls)
        self.preamble = self.find_preamble()
        self.chains: list[list[Call]] = []
        self.forks: dict[int, dict[str, Any]] = {}  # chain -> parent, source, depth
        for one in self.calls[len(self.preamble) :]:
            self.place(one)
        self.seams()

    def find_preamble(self) -> list[Call]:
        first, *others = self.calls
        others = [o for o in others if o.ids.size]
        if not first.ids.size or any(common(first, o) for o in others):
            return []
        reused = {i for o in others for i in o.ids.tolist()} & set(first.ids.tolist())
        return [first] if first.out_tokens <= 64 or not reused else []

    def tail(self, chain: int) -> Call | None:
        return next((c for c in reversed(self.chains[chain]) if c.ids.size), None)

    def place(self, one: Call) -> None:
        if not one.ids.size:
            if not self.chains:
                self.chains.append([])
            self.chains[0].append(one)
            return
        tails = {n: t for n in range(len(self.chains)) if (t := self.tail(n)) is not None}
        extendable = [
            (-t.ids.size, n)
            for n, t in tails.items()
            if t.model == one.model and t.end_ns <= one.start_ns + self.slack and common(t, one) == t.ids.size
        ]
        if extendable:
            self.chains[min(extendable)[1]].append(one)
            return
        if self.chains and not tails:
            self.chains[0].append(one)
            return
        self.chains.append([one])
        deepest = min(((-common(t, one), -t.ids.size, n) for n, t in tails.items()), default=None)
        if deepest is not None and deepest[0]:
            self.forks[len(self.chains) - 1] = {
                "source": tails[deepest[2]],
                "depth": -deepest[0],
            }

    def seams(self) -> None:
        owner = {id(c): n for n, chain in enumerate(self.chains) for c in chain}
        queue = sorted({f["source"].index: f["source"] for f in self.forks.values()}.items())
        merged: set[int] = set()
        while queue:
            _, source = queue.pop(0)
            chain = owner[id(source)]
            if self.tail(chain) is not source:
                continue
            waiting = [n for n, f in self.forks.items() if f["source"] is source and n not in merged]
            eligible = []
            for n in waiting:
                head, depth = self.chains[n][0], self.forks[n]["depth"]
                gap = head.start_ns - source.end_ns
                if (
                    gap >= -self.slack
                    and head.model == source.model
                    and not (gap > 3600 * S and depth / source.ids.size < 0.5)
                ):
                    eligible.append((-depth, head.start_ns, n))
            if not eligible:
                continue
            elected = min(eligible)[2]
            merged.add(elected)
            for c in self.chains[elected]:
                owner[id(c)] = chain
            self.chains[chain] += self.chains[elected]
            tail = self.tail(chain)
            assert tail is not None
            for n in waiting:
                if n != elected:
                    self.forks[n] = {"source": tail, "depth": common(tail, self.chains[n][0])}
            queue.append((tail.index, tail))
            queue.sort(key=lambda item: item[0])
        self.live = [n for n in range(len(self.chains)) if n not in merged]

    def result(self) -> tuple[list[int], list[tuple[list[int], int | None]]]:
        def indices(chain: Sequence[Call]) -> list[int]:
            return [c.index for c in in_time_order(list(chain))]

        workers = sorted(self.live[1:], key=lambda n: (self.chains[n][0].start_ns, self.chains[n][0].index))
        if not workers:
            return indices(self.calls), []
        return indices([*self.preamble, *self.chains[0]]), [
            (indices(self.chains[n]), self.forks[n]["source"].index if n in self.forks else None)
            for n in workers
        ]


def fast(calls: list[Call], slack: int) -> tuple[list[int], list[tuple[list[int], int | None]]]:
    ordered = in_time_order(calls)
    split = split_agents(ordered, tolerance_ns=slack)
    detected = ordered[split.head :]
    return [c.index for c in split.main], [
        ([c.index for c in w.calls], None if w.source is None else detected[w.source].index)
        for w in split.workers
    ]


def recording(seed: int) -> list[Call]:
    """Prompts derived from earlier prompts: continued, cut, edited, repeated; a few unrelated or empty.

    Ids come from so small a set that one id stands after different prefixes. Small seeds are short.
    """
    rng = random.Random(seed)
    alphabet = rng.choice([2, 3, 8, 1000])
    known: list[list[int]] = [[]]
    calls = []
    t = 0.0
    for index in range(1 + seed // 8 % 24):
        base = rng.choice(known[-6:])
        keep = rng.choice([len(base), rng.randint(0, len(base))])
        ids = base[:keep] + [rng.randint(1, alphabet) for _ in range(rng.randint(0, 4))]
        known.append(ids)
        t += rng.choice([0, 0, 1, 1, 2, 5, 4000]) * 0.5
        calls.append(
            call(
                index,
                t + rng.choice([0, 0, 0, 0, -3]),
                ids,
                rng.choice([0, 0.5, 1, 1.4, 3, 10, -1]),
                model=rng.choice("mmmmn"),
                out=rng.choice([10, 1000]),
            )
        )
    return calls


@pytest.mark.parametrize("slack", [0, S])
def test_same_as_the_plain_reading(slack: int) -> None:
    workers = 0
    for seed in range(384):
        calls = recording(seed)
        found = fast(calls, slack)
        assert found == Plain(calls, slack).result(), f"seed {seed}"
        workers += len(found[1])
    assert workers > 250  # the recordings do have something to find


def test_tolerance_is_reported_only_if_it_matters() -> None:
    used = 0
    for seed in range(192):
        calls = recording(seed)
        if split_agents(in_time_order(calls), tolerance_ns=S).used_tolerance:
            used += 1
        else:
            assert fast(calls, S) == fast(calls, 0), f"seed {seed}"
    assert used > 5


def test_hidden_agent_after_the_session() -> None:
    """Worked example B: another model, unrelated ids, long after the end."""
    calls = [call(k, 10 * k, range(10 + k), 3) for k in range(39)]
    calls += [
        call(39, 4415, range(2188, 2290), 9.52, model="n"),
        call(40, 4437, range(2188, 2300), 14, model="n"),
    ]
    main, workers = fast(calls, 0)
    assert main == list(range(39))
    assert workers == [([39, 40], None)]


@pytest.mark.parametrize(("slack", "agents"), [(0, [[11, 12]]), (S, [])])
def test_whole_second_clock(slack: int, agents: list[list[int]]) -> None:
    """Worked example C: request 10 ends at 3658.17, its continuation stands at 3658."""
    calls = [call(k, 300 * k, range(10 + k), 5) for k in range(10)]
    calls += [
        call(10, 3652, range(20), 6.17),
        call(11, 3658, range(25), 6),
        call(12, 3700, range(30), 6),
    ]
    split = split_agents(calls, tolerance_ns=slack)
    assert [[c.index for c in w.calls] for w in split.workers] == agents
    assert split.used_tolerance is not agents or slack == 0


def test_compaction_is_a_seam() -> None:
    calls = [call(0, 0, [1, 2, 3, 4], 1), call(1, 5, [1, 2, 9], 1), call(2, 9, [1, 2, 9, 10], 1)]
    assert fast(calls, 0) == ([0, 1, 2], [])


def test_seam_after_more_than_an_hour_needs_half_the_prompt() -> None:
    first = call(0, 0, [1, 2, 3, 4], 1)
    assert fast([first, call(1, 3602, [1, 9])], 0)[1] == [([1], 0)]
    assert fast([first, call(1, 3601, [1, 9])], 0)[1] == []
    assert fast([first, call(1, 3602, [1, 2, 9])], 0)[1] == []


def test_the_longer_state_still_in_use_makes_the_shorter_an_agent() -> None:
    calls = [call(0, 0, [1, 2, 3], 1), call(1, 5, [1, 7], 1), call(2, 9, [1, 2, 3, 4], 1)]
    assert fast(calls, 0) == ([0, 2], [([1], 0)])


def test_forks_left_over_wait_at_the_new_end() -> None:
    """Two compactions of one end: the deeper continues it, the other continues that."""
    calls = [
        call(0, 0, [1, 2, 3, 4], 1),
        call(1, 5, [1, 2, 9, 9, 9], 1),
        call(2, 10, [1, 2, 8], 1),
        call(3, 15, [1, 7], 1),
    ]
    assert fast(calls, 0) == ([0, 1, 2, 3], [])


def test_another_model_never_continues() -> None:
    calls = [call(0, 0, [1, 2], 1), call(1, 5, [1, 2, 3], 1, model="n")]
    assert fast(calls, 0) == ([0], [([1], 0)])


def test_overlap_never_continues() -> None:
    calls = [call(0, 0, [1, 2], 10), call(1, 5, [1, 2, 3], 1)]
    assert fast(calls, 0) == ([0], [([1], 0)])


def test_preamble_does_not_found_the_main_chain() -> None:
    calls = [
        call(0, 0, [50], 1, out=20),
        call(1, 2, [1, 2], 9),
        call(2, 4, [1, 2, 3], 1),
        call(3, 20, [1, 2, 5]),
    ]
    split = split_agents(calls)
    assert [c.index for c in split.main] == [0, 1, 3]
    assert split.head == 1
    # Reused later in a prompt and long: a session of one turn, not a preamble.
    calls[0] = call(0, 0, [50], 1, out=65)
    calls[3] = call(3, 20, [1, 2, 50])
    assert [c.index for c in split_agents(calls).main] == [0]


def test_calls_without_ids_stay_with_the_main_chain() -> None:
    calls = [call(0, 0, [], 1), call(1, 1, [1], 5), call(2, 2, [], 1), call(3, 3, [9], 5)]
    assert fast(calls, 0) == ([0, 1, 2], [([3], None)])


# Cost.


def lines_executed(run: Callable[[], object]) -> int:
    """Lines of the tree package that `run` executes: a count of operations that no clock disturbs."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        if event == "call" and "/tree/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


def growing(n: int) -> list[Call]:
    return [call(k, k, range(k + 1), 0.5) for k in range(n)]


def star(n: int) -> list[Call]:
    """n agents that share a prefix and all run at once."""
    return [call(k, k * 0.001, [1, 2, 1000 + k], 900) for k in range(n)]


def compactions(n: int) -> list[Call]:
    """All share a prefix only, one after the other: n seams."""
    return [call(k, k, [1, 2, 1000 + k], 0.5) for k in range(n)]


def waiting_compactions(n: int) -> list[Call]:
    """The first end has n forks; each seam hands the rest on."""
    return [call(0, 0, [1, 2, 3, 4], 0.5), *(call(k, k, [1, 2, 1000 + k], 0.5) for k in range(1, n))]


def spine(n: int) -> list[Call]:
    """The main chain grows, and every turn starts an agent from where it stands."""
    calls = []
    for k in range(n // 2):
        calls.append(call(2 * k, 10 * k, range(k + 1), 1))
        calls.append(call(2 * k + 1, 10 * k + 2, [*range(k + 1), 100_000 + k], 10_000, model="n"))
    return calls


def many_models(n: int) -> list[Call]:
    """Nested prompts, each of a model of its own, none extendable by the next."""
    return [call(k, k, range(k + 1), 0.5, model=f"m{k % 50}") for k in range(n)]


@pytest.mark.parametrize("make", [growing, star, compactions, waiting_compactions, spine, many_models])
def test_operations_grow_with_the_number_of_requests(
    make: Callable[[int], list[Call]], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = 0
    plain = prefixes.common_prefix

    def counting(a: Any, b: Any) -> int:
        nonlocal compared
        compared += 1
        return plain(a, b)

    monkeypatch.setattr(prefixes, "common_prefix", counting)

    def cost(n: int) -> tuple[int, int]:
        nonlocal compared
        compared = 0
        calls = make(n)
        return lines_executed(lambda: split_agents(calls)), compared

    lines, comparisons = cost(60)
    more_lines, more_comparisons = cost(480)
    assert lines > 100
    # A quadratic method would need 64 times as many; 8 times, and logarithms, are what is due.
    assert more_lines < 8 * 2 * lines
    assert more_comparisons < 8 * 2 * comparisons


# The trie.

LISTS = st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=12)


@settings(max_examples=40)
@given(LISTS)
def test_trie_nodes_are_shared_exactly_by_common_prefixes(lists: list[list[int]]) -> None:
    arrays = [np.array(ids, np.int32) for ids in lists]
    trie = PrefixTrie(arrays)
    assert trie.size == len({tuple(ids[: k + 1]) for ids in lists for k in range(len(ids))})
    for r, a in enumerate(lists):
        others = np.array([x for x in range(len(lists)) if x != r], np.int64)
        found = dict(zip(others.tolist(), trie.common_with(r, others).tolist(), strict=True))
        for x, b in enumerate(lists):
            shared = 0
            while shared < min(len(a), len(b)) and a[shared] == b[shared]:
                shared += 1
            both = np.intersect1d(trie.nodes[r], trie.nodes[x])
            assert both.tolist() == np.sort(trie.nodes[r][:shared]).tolist()
            if x != r:
                assert found[x] == shared

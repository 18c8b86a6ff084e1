"""Agents that were recorded into one flat list of requests, taken apart.

A coding agent that spawns helpers through the same key leaves one list in which several conversations are
interleaved. Each conversation betrays itself by its prompt, which begins with its own previous prompt.

Phase 1 reads the requests in time order and keeps, per chain, the last prompt (its tail). A request goes to
the chain whose whole tail its prompt begins with, provided that the tail's answer was back; if there is
none, it starts a new chain, a *fork* of the chain with which it shares the most.

Phase 2 closes *seams*: a chain that ended and a fork of its end that began afterwards, with enough in
common, are one conversation whose context was compacted or edited.

Both ask "which tail shares the most with this prompt". Asked pair by pair that is quadratic in chains
times requests, so here:

- prompts are paths in a trie (`prefixes`); `_Tails.best` holds for each trie node the chain with the longest
  tail through it. A chain's tail only ever grows along its own path, so entries are overwritten and never
  taken back; along a path the entries weaken monotonically, so both "how deep is anything covered" and "what
  does a longer tail overtake" are binary searches.
- a tail becomes extendable when its answer was back, which is monotone in time: a heap of pending ends
  feeds flags (node, per model), of which the deepest on the path is wanted.
- forks that wait at the same source are kept as arrays; the common prefixes with a new tail come from the
  sorted order in one vector operation.

A request costs a few binary searches and at most one pass over its own ids.

Source: agentx-v1, sections 2.3 to 2.5, 11-2.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from agentx_engine.tree.calls import CLOCK_EPSILON_NS, NS_PER_S
from agentx_engine.tree.prefixes import PrefixTrie

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from agentx_engine.tree.calls import Call

PREAMBLE_MAX_OUT = 64
# After an hour's silence a fork must share half of the old prompt to be the same conversation.
SEAM_MAX_GAP_NS = 3600 * NS_PER_S
SEAM_MIN_OVERLAP = 0.5

NOBODY = -1


class Worker(NamedTuple):
    """A hidden agent: its calls in time order, and the call of which it is a fork (None = unrelated)."""

    calls: list[Call]
    source: int | None


class Split(NamedTuple):
    """`main` with the preamble; `head` = place of the main chain's first detected call in `main`."""

    main: list[Call]
    workers: tuple[Worker, ...] = ()
    head: int = 0
    used_tolerance: bool = False


def split_agents(calls: list[Call], *, tolerance_ns: int = 0) -> Split:
    """Takes a list apart that is in time order. No workers: it was one conversation.

    `tolerance_ns` > 0: a continuation may begin that much before its predecessor ended; `used_tolerance` says
    whether that made a difference.
    """
    head = 1 if _has_preamble(calls) else 0
    detected = calls[head:]
    if len(detected) < 2:
        return Split(calls)
    trie = PrefixTrie([call.ids for call in detected])
    slack_ns = max(tolerance_ns, CLOCK_EPSILON_NS)
    chaining = _Chaining(detected, trie, slack_ns)
    chains = chaining.run()
    seams = _Seams(detected, trie, chains, slack_ns)
    seams.run()

    used_tolerance = chaining.used_tolerance or seams.used_tolerance
    live = [number for number in range(len(chains)) if seams.owner(number) == number]
    if len(live) < 2:
        return Split(calls, used_tolerance=used_tolerance)
    live[1:] = sorted(live[1:], key=lambda number: min(chains[number].calls))
    streams = [[detected[r] for r in sorted(chains[number].calls)] for number in live]
    return Split(
        main=[*calls[:head], *streams[0]],
        workers=tuple(
            Worker(stream, seams.source(number)) for number, stream in zip(live[1:], streams[1:], strict=True)
        ),
        head=head,
        used_tolerance=used_tolerance,
    )


def _has_preamble(calls: Sequence[Call]) -> bool:
    """Whether the first call is a warm-up or title request that nothing continues."""
    if not calls or not calls[0].ids.size:
        return False
    first = calls[0]
    others = [call.ids for call in calls[1:] if call.ids.size]
    if any(ids[0] == first.ids[0] for ids in others):
        return False
    return first.out_tokens <= PREAMBLE_MAX_OUT or not any(np.isin(first.ids, ids).any() for ids in others)


@dataclass(slots=True)
class _Chain:
    """Calls are numbered in time order. `tail` = the last call with ids.

    A fork shares its first `depth` ids with the call `source`.
    """

    calls: list[int] = field(default_factory=list)
    tail: int = NOBODY
    source: int = NOBODY
    depth: int = 0


class _Chaining:
    """Phase 1."""

    def __init__(self, calls: Sequence[Call], trie: PrefixTrie, slack_ns: int) -> None:
        self._calls = calls
        self._trie = trie
        self._slack_ns = slack_ns
        self._chains: list[_Chain] = []
        self._tails = _Tails(trie.size)
        self.used_tolerance = False

    def run(self) -> list[_Chain]:
        for r, call in enumerate(self._calls):
            self._place(r, call)
        return self._chains

    def _place(self, r: int, call: Call) -> None:
        chains, tails = self._chains, self._tails
        if not call.ids.size:
            if not chains:
                self._found(_Chain())
            chains[0].calls.append(r)
            return
        path = self._trie.nodes[r]
        tails.settle(call.start_ns + self._slack_ns)
        covered = tails.covered(path)
        number = tails.take_extendable(path, covered, call.model)
        if number != NOBODY:
            tail_end = self._calls[chains[number].tail].end_ns
            self.used_tolerance |= tail_end > call.start_ns + CLOCK_EPSILON_NS
        elif covered:
            parent = int(tails.best[path[covered - 1]])
            number = self._found(_Chain([], NOBODY, chains[parent].tail, covered))
        elif chains and chains[0].tail == NOBODY:
            number = 0
        else:
            number = self._found(_Chain())
        chain = chains[number]
        chain.calls.append(r)
        chain.tail = r
        tails.move(number, path, covered)
        tails.wait(call.end_ns, number, call.model, int(path[-1]))

    def _found(self, chain: _Chain) -> int:
        self._chains.append(chain)
        self._tails.lengths.append(0)
        return len(self._chains) - 1


class _Tails:
    """Where the tails of all chains lie in the trie."""

    def __init__(self, nodes: int) -> None:
        self.best: NDArray[np.int32] = np.full(nodes, NOBODY, np.int32)
        self.lengths: list[int] = []
        self._nodes = nodes
        self._best_at = self.best.data
        self._newest = 0
        self._pending: list[tuple[int, int, str, int]] = []
        self._extendable: dict[str, NDArray[np.uint8]] = {}
        self._ending_at: dict[tuple[str, int], list[int]] = {}

    def covered(self, path: NDArray[np.int32]) -> int:
        """Length of the deepest common prefix with any tail."""
        best, at = self._best_at, path.data
        guess = min(self._newest, path.size)  # most prompts go on where the last one ended
        if guess and best[at[guess - 1]] != NOBODY and (guess == path.size or best[at[guess]] == NOBODY):
            return guess
        return bisect_left(range(path.size), True, key=lambda i: best[at[i]] == NOBODY)

    def wait(self, end_ns: int, number: int, model: str, node: int) -> None:
        """The chain's new tail ends at `node`; it can be extended from `end_ns` on."""
        heappush(self._pending, (end_ns, number, model, node))

    def settle(self, now_ns: int) -> None:
        """Marks the tails that had ended by now. Time must not go backwards."""
        while self._pending and self._pending[0][0] <= now_ns:
            _, number, model, node = heappop(self._pending)
            if model not in self._extendable:
                self._extendable[model] = np.zeros(self._nodes, np.uint8)
            self._extendable[model][node] = 1
            heappush(self._ending_at.setdefault((model, node), []), number)

    def take_extendable(self, path: NDArray[np.int32], covered: int, model: str) -> int:
        """The chain with the longest ended tail that is a prefix of `path`; it is no longer extendable."""
        flags = self._extendable.get(model)
        if flags is None or not covered:
            return NOBODY
        node = int(path[covered - 1])
        if not flags[node]:
            deepest = flags[path[:covered]].tobytes().rfind(1)
            if deepest < 0:
                return NOBODY
            node = int(path[deepest])
        ending = self._ending_at[model, node]
        number = heappop(ending)
        if not ending:
            del self._ending_at[model, node]
            flags[node] = 0
        return number

    def move(self, number: int, path: NDArray[np.int32], covered: int) -> None:
        """The tail of chain `number` now is `path`, which its old tail is a prefix of."""
        best, at, strength = self._best_at, path.data, self._strength
        old = self.lengths[number]
        self.lengths[number] = self._newest = path.size
        mine = strength(number)
        # It wins from `wins` on; from `own` to `old` the nodes name it already.
        wins = 0
        if covered and strength(best[at[0]]) > mine:
            wins = bisect_left(range(covered), True, lo=1, key=lambda i: strength(best[at[i]]) <= mine)
        if wins < old and best[at[wins]] != number:
            own = bisect_left(range(old), True, lo=wins, key=lambda i: best[at[i]] == number)
            self.best[path[wins:own]] = number
        self.best[path[max(wins, old) :]] = number

    def _strength(self, number: int) -> tuple[int, int]:
        """Longer tails win, then lower numbers."""
        return self.lengths[number], -number


class _Seams:
    """Phase 2."""

    def __init__(self, calls: Sequence[Call], trie: PrefixTrie, chains: list[_Chain], slack_ns: int) -> None:
        self._calls = calls
        self._trie = trie
        self._chains = chains
        self._slack_ns = slack_ns
        self._owners = list(range(len(chains)))
        self._chain_of = [NOBODY] * len(calls)
        for number, chain in enumerate(chains):
            for r in chain.calls:
                self._chain_of[r] = number
        models = {call.model: i for i, call in enumerate(calls)}
        heads = [chain.calls[0] for chain in chains]
        self._head = np.array(heads, np.int64)
        self._start = np.array([calls[r].start_ns for r in heads], np.int64)
        self._model = np.array([models[calls[r].model] for r in heads], np.int64)
        self._models = models
        self._source = np.array([chain.source for chain in chains], np.int64)
        self._depth = np.array([chain.depth for chain in chains], np.int64)
        self.used_tolerance = False

    def owner(self, number: int) -> int:
        """The chain that a chain has been appended to, or itself."""
        owners = self._owners
        while owners[number] != number:
            owners[number] = owners[owners[number]]
            number = owners[number]
        return number

    def run(self) -> None:
        registered: dict[int, list[int]] = {}
        for number, chain in enumerate(self._chains):
            if chain.source != NOBODY:
                registered.setdefault(chain.source, []).append(number)
        waiting = {source: np.array(forks, np.int64) for source, forks in registered.items()}
        queue = sorted((self._calls[source].index, source) for source in waiting)
        while queue:
            _, source = heappop(queue)
            owner = self.owner(self._chain_of[source])
            if source not in waiting or self._chains[owner].tail != source:
                continue
            elected = self._elect(source, waiting[source])
            if elected == NOBODY:
                continue
            forks = waiting.pop(source)
            self._append(owner, elected)
            tail = self._chains[owner].tail
            if forks.size > 1:
                rest = forks[forks != elected]
                self._source[rest] = tail
                self._depth[rest] = self._trie.common_with(tail, self._head[rest])
                waiting[tail] = np.concatenate((rest, waiting.get(tail, rest[:0])))
            heappush(queue, (self._calls[tail].index, tail))

    def source(self, number: int) -> int | None:
        """The call of which a chain that is still separate is a fork; None = it shares nothing."""
        source = int(self._source[number])
        return None if source == NOBODY else source

    def _elect(self, source: int, forks: NDArray[np.int64]) -> int:
        """The fork that continues the source, or NOBODY. (All chains that are related share the first id,
        so a fork that waits has something in common with any source at which it may wait.)"""
        call = self._calls[source]
        depth, start = self._depth[forks], self._start[forks]
        eligible = start + self._slack_ns >= call.end_ns
        eligible &= self._model[forks] == self._models[call.model]
        shallow = depth < SEAM_MIN_OVERLAP * call.ids.size
        eligible &= ~((start - call.end_ns > SEAM_MAX_GAP_NS) & shallow)
        forks = forks[eligible]
        if not forks.size:
            return NOBODY
        # Deepest, then earliest, then lowest number.
        winner = int(forks[np.lexsort((forks, start[eligible], -depth[eligible]))[0]])
        self.used_tolerance |= call.end_ns > int(self._start[winner]) + CLOCK_EPSILON_NS
        return winner

    def _append(self, owner: int, elected: int) -> None:
        into, what = self._chains[owner], self._chains[elected]
        into.calls += what.calls
        into.tail = what.tail
        what.calls = []
        self._owners[elected] = owner

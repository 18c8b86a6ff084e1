"""Common prefixes of many id lists at once: a trie in two sorted arrays.

Questions about "the deepest common prefix with any of these lists" are quadratic when asked pair by pair.
Here all lists are sorted once, neighbours are compared once, and one sweep gives every distinct prefix a
number: list r passes through the trie's nodes `nodes[r][0], nodes[r][1], ...`, one per id, and two lists
share exactly the nodes of their common prefix. Nothing is hashed and nothing is assumed about ids (in real
traces an id determines its whole prefix, but files are not trusted).

Cost: the sort (recordings arrive nearly sorted, since prompts grow by appending), one comparison per
list, and memory of 4 bytes per id.
"""

from __future__ import annotations

from functools import cmp_to_key
from typing import TYPE_CHECKING

import numpy as np

from agentx_engine.core.ids import common_prefix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class PrefixTrie:
    """`nodes[r]` = the trie nodes of list r; `size` = number of nodes, which are 0 .. size - 1."""

    __slots__ = ("_neighbour", "_rank", "nodes", "size")

    def __init__(self, lists: Sequence[NDArray[np.int32]]) -> None:
        def compare(a: int, b: int) -> int:
            x, y = lists[a], lists[b]
            shared = common_prefix(x, y)
            if shared in (x.size, y.size):
                return x.size - y.size
            return 1 if x[shared] > y[shared] else -1

        order = sorted(range(len(lists)), key=cmp_to_key(compare))
        self.nodes: list[NDArray[np.int32]] = [np.empty(0, np.int32)] * len(lists)
        self._rank = np.empty(len(lists), np.int64)
        self._rank[order] = np.arange(len(lists))
        self._neighbour = np.zeros(len(lists), np.int64)  # by rank: common prefix with the rank before
        size = 0
        before = np.empty(0, np.int32)
        path = before
        for rank, r in enumerate(order):
            ids = lists[r]
            shared = common_prefix(before, ids)
            above, path = path, np.empty(ids.size, np.int32)
            path[:shared] = above[:shared]
            path[shared:] = np.arange(size, size + ids.size - shared)
            self.nodes[r] = path
            self._neighbour[rank] = shared
            size += ids.size - shared
            before = ids
        self.size = size

    def common_with(self, r: int, others: NDArray[np.int64]) -> NDArray[np.int64]:
        """Common prefix of list r with each of `others` (not r itself): the least among the ranks between."""
        mine = int(self._rank[r])
        theirs = self._rank[others]
        common = np.empty(others.size, np.int64)
        right = theirs > mine
        if right.any():
            least = np.minimum.accumulate(self._neighbour[mine + 1 : int(theirs.max()) + 1])
            common[right] = least[theirs[right] - mine - 1]
        left = ~right
        if left.any():
            lowest = int(theirs.min())
            least = np.minimum.accumulate(self._neighbour[mine:lowest:-1])
            common[left] = least[mine - theirs[left] - 1]
        return common

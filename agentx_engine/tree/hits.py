"""Theoretical prefix-cache hits: what an unbounded cache would have served in the recording.

Requests of all conversations in recorded order; a request's hits are the leading run of its ids that any
earlier request carried. A turn shares its common prefix with the turn before, and those ids have been
seen, so only what is new in a turn is looked at: the whole trace costs its distinct content, not the sum
of its prompts.

Source: agentx-v1, section 9.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from agentx_engine.tree.calls import Call


class Stream(NamedTuple):
    """A conversation's calls in turn order, `common[k]` = longest common prefix of id lists k-1 and k."""

    calls: Sequence[Call]
    common: Sequence[int]
    chain: int  # number of the chain inside its subagent, else 0


# Below this, or this many times the number of ids, a table by id is cheaper than renumbering.
_DENSE_IDS = 1 << 20


def prefix_hits(streams: Sequence[Stream]) -> list[list[int]]:
    """Hits per stream and turn, in blocks."""
    order = sorted(
        (
            (call.start_ns, call.source[0], s.chain, 0 if call.source[1] is None else k, number, k)
            for number, s in enumerate(streams)
            for k, call in enumerate(s.calls)
        ),
    )
    seen = _SeenIds([call.ids for s in streams for call in s.calls])
    hits = [[0] * len(s.calls) for s in streams]
    done = [-1] * len(streams)  # last turn taken while turns came in order
    for *_, number, k in order:
        stream = streams[number]
        in_order = done[number] == k - 1
        start = stream.common[k] if in_order and k else 0
        hits[number][k] = start + seen.leading_then_add(stream.calls[k].ids[start:])
        if in_order:
            done[number] = k
    return hits


class _SeenIds:
    """A set of ids as a bit per id; ids that are far apart are renumbered first."""

    __slots__ = ("_flags", "_known")

    def __init__(self, lists: Iterable[NDArray[np.int32]]) -> None:
        parts = [ids for ids in lists if ids.size]
        top = max((int(ids.max()) for ids in parts), default=0)
        self._known: NDArray[np.int32] | None = None
        if top > _DENSE_IDS and top > 4 * sum(ids.size for ids in parts):
            self._known = np.unique(np.concatenate(parts))
            top = self._known.size
        self._flags = np.zeros(top + 1, dtype=np.bool_)

    def leading_then_add(self, ids: NDArray[np.int32]) -> int:
        """Length of the leading run of known ids; afterwards all of them are known."""
        if not ids.size:
            return 0
        where = ids if self._known is None else np.searchsorted(self._known, ids)
        flags = self._flags[where]
        self._flags[where] = True
        run = int(flags.argmin())
        return int(ids.size) if flags[run] else run

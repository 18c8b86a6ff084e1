"""Which trace a lane plays next, and the trees which are in memory for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from agentx_engine.replay.protocols import Offload, TreeSource
from agentx_engine.tree.model import ConversationTree


class SequentialSampler:
    """Traces in the corpus' order, from the first again after the last. Lanes share one sampler."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError("the corpus has no traces")
        self._size = size
        self._next = 0

    def peek(self) -> int:
        """What `take` will give next."""
        return self._next

    def take(self) -> int:
        index = self._next
        self._next = (index + 1) % self._size
        return index


@dataclass(slots=True)
class _Entry:
    loading: asyncio.Future[ConversationTree]
    users: int = field(default=0)


class TreeCache:
    """Trees of live lanes, loaded aside, each kept once however many lanes play it.

    A tree stays while a lane holds it, or while it is the one that the sampler gives next: it is then
    loaded ahead, so that a lane which drains need not wait for it. (Counted rather than weak: the tree's
    Struct takes no weak references.)
    """

    def __init__(self, source: TreeSource, offload: Offload) -> None:
        self._source = source
        self._offload = offload
        self._entries: dict[int, _Entry] = {}
        self._ahead: int | None = None

    def __len__(self) -> int:
        return len(self._entries)

    async def acquire(self, index: int) -> ConversationTree:
        """The tree, to be given back with `release`. Raises what `TreeSource.load` raises."""
        entry = self._entry(index)
        entry.users += 1
        try:
            # Shielded: a waiter which is cancelled must not cancel the load for the others.
            return await asyncio.shield(entry.loading)
        except BaseException:
            self.release(index)
            raise

    def release(self, index: int) -> None:
        entry = self._entries[index]
        entry.users -= 1
        self._drop_unused(index)

    def load_ahead(self, index: int) -> None:
        """Begins to load the tree; it replaces the one loaded ahead before."""
        before, self._ahead = self._ahead, index
        self._entry(index)
        if before is not None and before != index:
            self._drop_unused(before)

    def close(self) -> None:
        """Forgets what was loaded ahead; a failure to load it has hurt nobody."""
        before, self._ahead = self._ahead, None
        if before is not None:
            self._drop_unused(before)

    def _entry(self, index: int) -> _Entry:
        entry = self._entries.get(index)
        if entry is None:
            loading = asyncio.ensure_future(self._offload(self._source.load, index))
            loading.add_done_callback(_retrieved)
            entry = self._entries[index] = _Entry(loading)
        return entry

    def _drop_unused(self, index: int) -> None:
        entry = self._entries.get(index)
        if entry is not None and not entry.users and index != self._ahead:
            del self._entries[index]


def _retrieved(loading: asyncio.Future[ConversationTree]) -> None:
    """Marks a failure as seen: whoever acquires the tree gets it, and nobody may."""
    if not loading.cancelled():
        loading.exception()

"""What is held at a time: sets of blocks with as many holders each as there are, and their peaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from agentx_engine.replay.forecast.paths import Body


class RefSet:
    """Blocks by number, each with a count of holders. A block's tokens count once, however many hold it."""

    def __init__(self) -> None:
        self.blocks = 0
        self.tokens = 0
        self.counts = np.zeros(1024, dtype=np.int32)

    def grow(self, size: int) -> None:
        self.counts = grown(self.counts, size)

    def add(self, path: NDArray[np.intp], block_size: int) -> None:
        """Holds each block of a path once more. A block stands in a path only once."""
        self._change(path, 1, 1, block_size)

    def remove(self, path: NDArray[np.intp], block_size: int) -> None:
        self._change(path, -1, 0, block_size)

    def _change(self, path: NDArray[np.intp], by: int, edge: int, block_size: int) -> None:
        counts = np.take(self.counts, path)
        counts += by
        self.counts[path] = counts
        changed = by * int(np.count_nonzero(counts == edge))
        self.blocks += changed
        self.tokens += changed * block_size


def grown(array: NDArray[np.int32], size: int) -> NDArray[np.int32]:
    """The array itself, or a longer one that begins with it and goes on with zeros."""
    if size <= len(array):
        return array
    longer = np.zeros(size + size // 2, dtype=array.dtype)
    longer[: len(array)] = array
    return longer


class Peak:
    """The largest value of something, and when it was first reached."""

    __slots__ = ("at_ns", "value")

    def __init__(self) -> None:
        self.value = 0
        self.at_ns: int | None = None

    def see(self, value: int, at_ns: int) -> None:
        if value > self.value:
            self.value, self.at_ns = value, at_ns


class Residents:
    """The prompts of live conversations, from their first request until their last has returned.

    `live` are the blocks whose next use is certain: a server that holds them never computes a prompt twice.
    `texts` are those that the client keeps in memory for them; `tails` their tokens that are in no block.
    """

    def __init__(self) -> None:
        self.live = RefSet()
        self.texts = RefSet()
        self.tails = 0
        self.conversations = 0
        self.peak_live = Peak()  # tokens
        self.peak_live_blocks = 0
        self.peak_texts = Peak()  # tokens, with tails
        self.peak_conversations = Peak()

    def grow(self, nodes: int, texts: int) -> None:
        self.live.grow(nodes)
        self.texts.grow(texts)

    def sent(self, body: Body, now_ns: int) -> None:
        """The body takes the place of the one that its conversation sent before."""
        before, cut = body.prompt.resident, 0
        if before is None:
            self.conversations += 1
            self.peak_conversations.see(self.conversations, now_ns)
        else:
            cut = body.common(before)
            self._drop(before, cut)
        body.prompt.resident = body
        size = body.play.block_size
        self.live.add(body.path(cut), size)
        self.texts.add(body.texts(cut), size)
        self.tails += body.tail
        if self.live.tokens > self.peak_live.value:
            self.peak_live_blocks = self.live.blocks
        self.peak_live.see(self.live.tokens, now_ns)
        self.peak_texts.see(self.texts.tokens + self.tails, now_ns)

    def returned(self, body: Body) -> None:
        if body.last and body.prompt.resident is body:
            self._drop(body, 0)
            body.prompt.resident = None
            self.conversations -= 1

    def _drop(self, body: Body, start: int) -> None:
        size = body.play.block_size
        self.live.remove(body.path(start), size)
        self.texts.remove(body.texts(start), size)
        self.tails -= body.tail

"""Words, blocks and the prefix cache of the simulated server.

A prompt is its words (separated by white space, as `str.split` has it) in order, with each message's
role glued to the front of its first word, so that a change of role changes the block. Every full block
of `block_size` words has a hash chained over all blocks before it: two prompts share exactly the blocks
of their common prefix. The cache holds block hashes and forgets the least recently used; the blocks of
one prompt are touched from its tail to its head, so that a tail is forgotten before the head that it
needs, as in vLLM.

Goals: a prompt of one million words (5 MB) costs tens of milliseconds, and most of that in numpy and
bytes methods that other threads can run beside, since `tokenize` is called on a worker thread while the
event loop sends tokens. Hence no list of words is ever built for ASCII text.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import msgspec
import numpy as np

from agentx_engine.sim.model import TemplateTokens

# Below this many bytes of a message plain bytes methods are faster than numpy.
_SMALL = 8192
# What str.split() takes as white space in ASCII, each mapped to one space.
_TO_SPACE = bytes(32 if chr(c).isspace() and c < 128 else c for c in range(256))


class Prompt(msgspec.Struct, gc=False):
    """Token count of a prompt and the chained hash of each of its full blocks.

    Hashes are Python's own and keyed per process: they mean nothing outside it.
    """

    tokens: int
    blocks: list[int]


def _single_spaced(text: str) -> bytes:
    """The words of `text` with one space between them and none around."""
    if not text.isascii():
        return " ".join(text.split()).encode("utf-8", "surrogatepass")
    data = text.encode("ascii")
    if len(data) < _SMALL:
        data = data.translate(_TO_SPACE).strip(b" ")
        while b"  " in data:
            data = data.replace(b"  ", b" ")
        return data
    # The same without any single call that keeps the interpreter for long: searching 5 MB for two spaces
    # would keep it for 14 ms.
    if (np.frombuffer(data, np.uint8) < 32).any():
        data = data.translate(_TO_SPACE)
    data = data.strip(b" ")
    array = np.frombuffer(data, np.uint8)
    space = array == 32
    doubled = space[1:] & space[:-1]
    if doubled.any():
        data = array[np.concatenate(([True], ~doubled))].tobytes()
    return data


def tokenize(messages: Iterable[tuple[str, str]], block_size: int, template: TemplateTokens) -> Prompt:
    """Counts and hashes the prompt of `messages` = (role, content) pairs.

    The template's tokens are words of their own: those of a message before its content, the fixed ones
    at the end, where a real template has the opening of the answer.
    """
    pieces: list[bytes] = []
    pending = b""
    for role, text in messages:
        pending += b"\x01" + role.encode("utf-8", "surrogatepass") + b"\x02"
        overhead = template.per_message(role)
        words = _single_spaced(text)
        if overhead:
            pieces.append(pending + b"\x03" + b" \x03" * (overhead - 1))
            pending = b""
        if words:
            pieces.append(pending + words)
            pending = b""
    if template.fixed:
        pieces.append(b"\x04" + b" \x04" * (template.fixed - 1))
    data = b" ".join(pieces)
    if not data:
        return Prompt(0, [])

    spaces = np.flatnonzero(np.frombuffer(data, np.uint8) == 32)
    tokens = len(spaces) + 1
    ends = spaces[block_size - 1 :: block_size].tolist()
    if tokens % block_size == 0:
        ends.append(len(data))
    blocks: list[int] = []
    start = chain = 0
    for end in ends:
        chain = hash((chain, data[start:end]))
        blocks.append(chain)
        start = end
    return Prompt(tokens, blocks)


class PrefixCache:
    """Block hashes with a capacity, least recently used first out. Not thread-safe: the loop's own."""

    def __init__(self, capacity_blocks: int) -> None:
        self.capacity = capacity_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def match(self, prompt: Prompt, block_size: int) -> int:
        """Tokens of the longest cached prefix. At least the last token is always computed, as in a
        real engine, which needs it to produce the first answer token."""
        usable = min(len(prompt.blocks), max(0, prompt.tokens - 1) // block_size)
        known = self._blocks
        hits = 0
        while hits < usable and prompt.blocks[hits] in known:
            hits += 1
        for block in reversed(prompt.blocks[:hits]):
            known.move_to_end(block)
        return hits * block_size

    def insert(self, prompt: Prompt) -> None:
        """Remembers the prompt's blocks, as many from its head as fit."""
        known = self._blocks
        for block in reversed(prompt.blocks[: self.capacity]):
            known[block] = None
            known.move_to_end(block)
        while len(known) > self.capacity:
            known.popitem(last=False)

    def reset(self) -> None:
        self._blocks.clear()

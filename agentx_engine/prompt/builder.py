"""Request bodies of a conversation, turn after turn.

Wanted: the body of turn k of a growing conversation in time proportional to what is new in it, although the
body itself is half a megabyte; the same bytes in every process; memory in proportion to the prompts that
are alive, however many lanes play one trace.

Plan. A body is a rope: glue, text, glue, text, ..., end. The segments of all messages so far are kept in a
core.rope.RopeBuilder, which is cut back and extended as the conversation is, and a turn's rope is one
copy of its span list (16 bytes per segment) between the constant start and the turn's own end. `advance` only
keeps the books; text is made when a rope is asked for, so that a session which starts at turn 200 makes
what turn 200 shows and nothing else.

Text. Block b of trace T is the run of words keyed by (content seed, T, b), wherever it stands; the blocks
of one message are made in one call and form one segment. Tokens beyond whole blocks (a tail) belong to
one turn of one conversation and are keyed by these two. Block segments are shared between the
conversations and lanes of a trace through a table that does not keep them alive. Bytes objects cannot
be referred to weakly, so each is held by a small object that can.

Correction for the template. A server counts what its chat template adds. Where that is wanted out of the
prompt (`Overhead`), each message gives up as many words from its end as it costs; a message that
is too short passes the rest on to the next. The cut of a message depends on what stands before it only, so a
message that is sent again is the same bytes.

Source: agentx-v1, sections 3.2 to 3.4, 3.6, 3.7 and 4. The words are not agentx-v1's, and a message is
exactly as long as its tokens say; what is shared with what is the same.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

import msgspec
import numpy as np

from agentx_engine.core.rope import Rope, RopeBuilder
from agentx_engine.core.words import words_key
from agentx_engine.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from agentx_engine.core.words import WordPool
    from agentx_engine.prompt.body import BodyTemplate
    from agentx_engine.tree.model import ConversationTree, Message, Role, Turn

START = b'{"messages":['
END = b'"}'
GLUE: Mapping[str, tuple[bytes, bytes]] = {
    # As the first message, and after another one.
    role: (b'{"role":"%s","content":"' % role.encode(), b'"},{"role":"%s","content":"' % role.encode())
    for role in ("system", "user", "assistant")
}


class Overhead(NamedTuple):
    """Tokens to be taken out of prompts: once, per message of each role, and for the marker."""

    base: int = 0
    system: int = 0
    user: int = 0
    assistant: int = 0
    marker: int = 0


class PromptBuilder:
    """Makes prompts for all conversations of a run. One per run; not for use by several threads at once.

    `content_seed` is an unsigned 64-bit number and decides the words of every prompt, nothing else does.
    """

    def __init__(
        self, pool: WordPool, content_seed: int, template: BodyTemplate, overhead: Overhead | None = None
    ) -> None:
        if not 0 <= content_seed < 2**64:
            raise UserError(f"content seed {content_seed} is not between 0 and 2^64 - 1")
        self.pool = pool
        self.seed = content_seed
        self.template = template
        self.overhead = overhead or Overhead()
        self._texts: WeakValueDictionary[tuple[int, int, bytes], _Text] = WeakValueDictionary()
        self._models: dict[str, Mapping[str, str]] = {}

    @property
    def shared_texts(self) -> int:
        """Number of block texts that are alive."""
        return len(self._texts)

    def open(
        self, tree: ConversationTree, conversation: int, marker: str | None = None
    ) -> ConversationPrompt:
        """A prompt for one conversation of a tree that goes live, before its first turn.

        `marker` is the text in front of the first user message (see `prompt.marker`), the same one
        for all conversations of the live tree.
        """
        models = self._models.get(tree.trace_id)
        if models is None:
            models = self._models[tree.trace_id] = self.template.map_models(tree)
        return ConversationPrompt(self, tree, conversation, marker, models)

    def block_text(self, scope: int, block_size: int, ids: NDArray[np.int32]) -> _Text:
        """The text of a run of blocks, made unless it is alive somewhere."""
        key = (scope, block_size, ids.tobytes())
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = _Text(self.pool.blocks(self.seed, scope, ids, block_size))
        return text


class ConversationPrompt:
    """The growing prompt of one live conversation. `advance` to a turn, then take its `rope`.

    Turns are taken in order, none left out; bodies only where they are wanted.
    """

    def __init__(
        self,
        builder: PromptBuilder,
        tree: ConversationTree,
        conversation: int,
        marker: str | None,
        models: Mapping[str, str],
    ) -> None:
        self._builder = builder
        self._models = models
        self._block_size = tree.block_size
        self._scope = scope_hash(tree.trace_id)
        self._tail_scope = scope_hash(tree.conversations[conversation].id + "\0tail")
        self._marker = msgspec.json.encode(marker)[1:-1] if marker else b""
        self._ids = np.empty(64, dtype=np.int32)  # the current prompt's block ids, and room
        self._known = 0  # ids that were ever written
        self._parts: list[_Part] = []
        self._roles = {"system": 0, "user": 0, "assistant": 0}
        self._rope = RopeBuilder()
        self._built: list[tuple[int, _Text | None]] = []  # of the leading messages: first segment, block text
        self._turn = -1

    @property
    def roles(self) -> tuple[int, int, int]:
        """Number of system, user and assistant messages in the current prompt."""
        return self._roles["system"], self._roles["user"], self._roles["assistant"]

    @property
    def words(self) -> int:
        """Words in the current prompt without the marker: `in_tokens`, less what is taken out of it."""
        return self._parts[-1].total if self._parts else 0

    def advance(self, turn: Turn) -> None:
        """Makes `turn` the current one. ValueError if it is not the next."""
        if turn.index != self._turn + 1:
            raise ValueError(f"turn {turn.index} does not follow turn {self._turn}")
        self._turn = turn.index
        end = turn.keep_blocks + len(turn.new_blocks)
        if turn.keep_blocks > self._known:
            raise ValueError(f"turn {turn.index} keeps blocks that its conversation does not have")
        if end > len(self._ids):
            grown = np.empty(max(end, 2 * len(self._ids)), dtype=np.int32)
            grown[: self._known] = self._ids[: self._known]
            self._ids = grown
        self._ids[turn.keep_blocks : end] = turn.new_blocks
        self._known = max(self._known, end)

        keep = turn.keep_messages
        for part in self._parts[keep:]:
            self._roles[part.message.role] -= 1
        del self._parts[keep:]
        if len(self._built) > keep:
            self._rope.truncate(self._built[keep][0])
            del self._built[keep:]
        for message in turn.messages:
            self._append(message)

    def _append(self, message: Message) -> None:
        if message.start + message.blocks > self._known:
            raise ValueError(f"a message of turn {self._turn} has blocks that its prompt does not have")
        overhead = self._builder.overhead
        before = self._parts[-1] if self._parts else None
        marked = message.role == "user" and not self._roles["user"] and bool(self._marker)
        owed = overhead[ROLE_FIELD[message.role]] + (before.owed if before else overhead.base)
        if marked:
            owed += overhead.marker
        words = message.blocks * self._block_size + message.tail
        cut = max(0, min(words, owed))
        total = (before.total if before else 0) + words - cut
        self._parts.append(_Part(message, self._turn, words - cut, total, owed - cut, marked))
        self._roles[message.role] += 1

    def rope(self, turn: Turn, max_tokens: int | None = None) -> Rope:
        """The whole body of `turn`, which is the current one; ValueError if it is not.

        `max_tokens` replaces the turn's output limit, as a warm-up request does.
        """
        if turn.index != self._turn:
            raise ValueError(f"turn {turn.index} is not the current turn {self._turn}")
        for part in self._parts[len(self._built) :]:
            self._build(part)
        limit = turn.max_tokens if max_tokens is None else max_tokens
        behind = self._builder.template.behind(self._models[turn.model], limit)
        return self._rope.snapshot(START, END + behind if self._parts else behind)

    def _build(self, part: _Part) -> None:
        """Appends the segments of one message: glue, marker, whole blocks, part of a block, tail."""
        (role, start, blocks, _), size = part.message, self._block_size
        builder, rope = self._builder, self._rope
        first_segment = len(rope)
        rope.append(GLUE[role][bool(self._built)])
        if part.marked:
            rope.append(self._marker)
        whole = min(blocks, part.words // size)
        rest = part.words - whole * size
        text = None
        if whole:
            text = builder.block_text(self._scope, size, self._ids[start : start + whole])
            rope.append(text.data)
        if rest and whole < blocks:
            key = words_key(builder.seed, self._scope, int(self._ids[start + whole]))
            rope.append(builder.pool.fill(key, rest))
        elif rest:
            key = words_key(builder.seed, self._tail_scope, part.turn)
            rope.append(builder.pool.fill(key, rest))
        self._built.append((first_segment, text))


def scope_hash(name: str) -> int:
    """First 8 bytes of SHA-256, as an unsigned 64-bit number."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


ROLE_FIELD: Mapping[Role, int] = {"system": 1, "user": 2, "assistant": 3}  # index in Overhead


class _Part(NamedTuple):
    """A message of the current prompt."""

    message: Message
    turn: int  # that appended it
    words: int  # that are sent of it
    total: int  # words of the prompt up to and with it
    owed: int  # words that it could not give up
    marked: bool


class _Text:
    """Shared text. The ropes hold `data`; whoever may want it again holds this."""

    __slots__ = ("__weakref__", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data

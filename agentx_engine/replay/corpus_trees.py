"""A corpus of trace files as the scheduler's source of trees."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from agentx_engine.corpus.catalog import Corpus
from agentx_engine.tree.build import build_tree
from agentx_engine.tree.model import Conversation, ConversationTree, Turn
from agentx_engine.tree.options import TreeOptions


class CorpusTrees:
    """`TreeSource` over an open corpus: a trace is decoded and reconstructed when a lane needs it.

    max_output_tokens: cap of the output limits of roots and hidden agents; recorded subagents' are never
    capped (agentx-v1, section 1.7). limit: what the request body makes of a turn's output limit.
    """

    def __init__(
        self,
        corpus: Corpus,
        options: TreeOptions | None = None,
        *,
        max_output_tokens: int | None = None,
        limit: Callable[[int], int] | None = None,
    ) -> None:
        self._corpus = corpus
        self._options = options if options is not None else TreeOptions()
        self._cap = max_output_tokens
        self._limit = limit

    def __len__(self) -> int:
        return len(self._corpus)

    def trace_id(self, index: int) -> str:
        return self._corpus.ids[index]

    def load(self, index: int) -> ConversationTree:
        """Raises CorpusError if the trace cannot be replayed."""
        tree = build_tree(self._corpus.trace(index), self._options)
        if self._cap is None and self._limit is None:
            return tree
        conversations = tuple(self._limited(conversation) for conversation in tree.conversations)
        return msgspec.structs.replace(tree, conversations=conversations)

    def _limited(self, conversation: Conversation) -> Conversation:
        capped = conversation.kind != "subagent"
        turns = tuple(self._limited_turn(turn, capped) for turn in conversation.turns)
        return msgspec.structs.replace(conversation, turns=turns)

    def _limited_turn(self, turn: Turn, capped: bool) -> Turn:
        tokens = turn.max_tokens
        if capped and self._cap is not None:
            tokens = min(tokens, self._cap)
        if self._limit is not None:
            tokens = self._limit(tokens)
        return turn if tokens == turn.max_tokens else msgspec.structs.replace(turn, max_tokens=tokens)

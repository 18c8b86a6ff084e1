"""A corpus of trace files as the scheduler's source of trees."""

from __future__ import annotations

from agentx_engine.corpus.catalog import Corpus
from agentx_engine.tree.build import build_tree
from agentx_engine.tree.model import ConversationTree
from agentx_engine.tree.options import TreeOptions


class CorpusTrees:
    """`TreeSource` over an open corpus: a trace is decoded and reconstructed when a lane needs it."""

    def __init__(self, corpus: Corpus, options: TreeOptions | None = None) -> None:
        self._corpus = corpus
        self._options = options if options is not None else TreeOptions()

    def __len__(self) -> int:
        return len(self._corpus)

    def trace_id(self, index: int) -> str:
        return self._corpus.ids[index]

    def load(self, index: int) -> ConversationTree:
        """Raises CorpusError if the trace cannot be replayed."""
        return build_tree(self._corpus.trace(index), self._options)

"""Trace files: from a path to decoded sessions.

`open_corpus(path)` finds the traces, `Corpus.trace(index)` decodes one. Nothing above this package reads
files of traces.
"""

from agentx_engine.corpus.catalog import Corpus, open_corpus
from agentx_engine.corpus.model import Entry, Subagent, Trace, TraceRequest

__all__ = ["Corpus", "Entry", "Subagent", "Trace", "TraceRequest", "open_corpus"]

"""Trace files: from a path to decoded sessions.

`open_corpus(path)` finds the traces, `Corpus.trace(index)` decodes one. Nothing above this package reads
files of traces. `request_ids` gives the block ids of one request.
"""

from agentx_engine.corpus.catalog import Corpus, open_corpus
from agentx_engine.corpus.hash_ids import request_ids
from agentx_engine.corpus.model import Entry, Subagent, Trace, TraceRequest

__all__ = ["Corpus", "Entry", "Subagent", "Trace", "TraceRequest", "open_corpus", "request_ids"]

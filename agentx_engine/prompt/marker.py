"""The cache-bust marker: a short text that keeps the prompts of one live tree apart from all others.

Two lanes that play the same trace would share every block in the server's prefix cache, and so would a
second run on a warm server. The marker stands at the start of the first user message, so that a declared
system prefix stays shared. One marker per live tree: root, children, warm-up and measured window use the
same; a tree that is started again gets a new one.

The marker's tokens come on top of the recorded prompt. How many they are depends on the server's tokenizer
and, by a token or two, on the digest, so probes measure them. A server that
counts words counts MARKER_WORDS.

Source: agentx-v1, section 4.
"""

from __future__ import annotations

import hashlib

MARKER_WORDS = 1  # runs of non-space characters in a marker


def marker_digest(run_id: str, pass_index: int, lane: int, trace_id: str) -> str:
    """12 hex digits that name one live tree.

    `pass_index` counts from 0 how often a tree of this trace was started before in this run, on any lane;
    a conversation id is cut to its trace id.
    """
    base = trace_id.partition("::")[0]
    return hashlib.sha256(f"{run_id}:{pass_index}:{lane}:{base}".encode()).hexdigest()[:12]


def marker_text(digest: str) -> str:
    """What is put in front of the first user message."""
    return f"[rid:{digest}]\n\n"

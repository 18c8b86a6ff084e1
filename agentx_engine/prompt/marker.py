"""The cache-bust marker: a short text that keeps the prompts of one live tree apart from all others.

Two lanes that play the same trace would share every block in the server's prefix cache, and so would a
second run on a warm server. The marker stands at the start of the first user message, so that a declared
system prefix stays shared. One marker per live tree: root, children, warm-up and measured window use the
same; a tree that is started again gets a new one.

The marker's tokens come on top of the recorded prompt. How many they are depends on the server's tokenizer
and, by a token or two, on the digest, so they are measured, not computed: `sample_markers` gives texts
that probes send. A server that counts words counts MARKER_WORDS.

Source: agentx-v1, section 4.
"""

from __future__ import annotations

import hashlib

from agentx_engine.errors import UserError

TARGETS = ("none", "first-turn-prefix")
OTHER_TARGETS = ("system-prefix", "system-suffix", "first-turn-suffix")
MARKER_WORDS = 1  # runs of non-space characters in a marker


def check_target(target: str) -> str:
    """The target itself if it is one of TARGETS (underscores are read as hyphens), else UserError."""
    name = target.replace("_", "-")
    if name in TARGETS:
        return name
    known = " or ".join(TARGETS)
    why = "is not offered" if name in OTHER_TARGETS else "does not exist"
    raise UserError(f"cache-bust target {target!r} {why}; use {known}")


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


def sample_markers(count: int) -> list[str]:
    """Marker texts of the usual kind, the same in every run, to measure their tokens with."""
    return [marker_text(marker_digest("sample", 0, i, "trace")) for i in range(count)]

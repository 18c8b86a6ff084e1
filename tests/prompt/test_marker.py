"""The cache-bust marker."""

import pytest

from agentx_engine.prompt.marker import MARKER_WORDS, marker_digest, marker_text


@pytest.mark.parametrize(
    ("run_id", "pass_index", "lane", "trace", "digest"),
    [
        # agentx-v1, section 12.1
        ("bench-1", 0, 0, "trace_a", "4b620d0d25b1"),
        ("bench-1", 1, 3, "trace_a", "359a4549dec1"),
        # section 4: the base trace id is what stands before the first "::"
        ("bench-1", 0, 0, "trace_a::sa:agent_001::x", "4b620d0d25b1"),
    ],
)
def test_digest(run_id, pass_index, lane, trace, digest):
    assert marker_digest(run_id, pass_index, lane, trace) == digest


def test_text():
    assert marker_text("4b620d0d25b1") == "[rid:4b620d0d25b1]\n\n"
    assert len(marker_text("4b620d0d25b1").split()) == MARKER_WORDS

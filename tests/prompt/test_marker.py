"""The cache-bust marker."""

import pytest

from agentx_engine.errors import UserError
from agentx_engine.prompt.marker import MARKER_WORDS, check_target, marker_digest, marker_text, sample_markers


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


def test_samples_are_markers_and_differ():
    samples = sample_markers(20)
    assert len(set(samples)) == 20
    assert samples == sample_markers(20)
    assert all(len(s) == len(marker_text("0" * 12)) and s.endswith("]\n\n") for s in samples)


@pytest.mark.parametrize(
    ("given", "target"),
    [("none", "none"), ("first-turn-prefix", "first-turn-prefix"), ("first_turn_prefix",) * 2],
)
def test_targets(given, target):
    assert check_target(given) == target.replace("_", "-")


@pytest.mark.parametrize(
    ("given", "why"),
    [("system-prefix", "not offered"), ("first_turn_suffix", "not offered"), ("x", "does not exist")],
)
def test_other_targets_are_refused(given, why):
    with pytest.raises(UserError, match=f"{why}; use none or first-turn-prefix"):
        check_target(given)

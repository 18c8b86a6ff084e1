"""The two clocks of subagent entries (spec sections 1.4 and 11-1, golden note K1)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.trace_files import dump, request, subagent, trace

from agentx_engine.corpus import Subagent, open_corpus
from agentx_engine.corpus.clock import settle
from agentx_engine.corpus.decode import decode_trace


def settled(agent: dict[str, object], *, compat_harness: bool = False):
    t = decode_trace(dump(trace(requests=[request(), agent])), "f", lambda kind, text: None)
    after = settle(t, compat_harness=compat_harness)
    entry = after.requests[1]
    assert isinstance(entry, Subagent)
    return entry.t, [r.t for r in entry.requests], after.corrections


def inner(*times: float) -> list[dict[str, object]]:
    return [request(t) for t in times]


RELATIVE = inner(0.0, 2.5, 90.0)


@pytest.mark.parametrize(
    ("agent", "default", "harness"),
    [
        # Published corpora: absolute times, t is the start.
        (
            subagent(80.0, inner(80.0, 82.5)),
            (80.0, [80.0, 82.5], ()),
            (80.0, [80.0, 82.5], ()),
        ),
        # Older files: relative times, t is the completion. The harness decides request by request, so the
        # third, whose relative time exceeds t, stays where it is.
        (
            subagent(80.0, RELATIVE, duration_ms=60_000),
            (20.0, [20.0, 22.5, 110.0], ("subagent_clock",)),
            (80.0, [80.0, 82.5, 90.0], ()),
        ),
        # Launch times are start times.
        (
            subagent(80.0, RELATIVE, duration_ms=None, status="async_launched"),
            (80.0, [80.0, 82.5, 170.0], ()),
            (80.0, [80.0, 82.5, 90.0], ()),
        ),
        (
            subagent(80.0, RELATIVE, duration_ms=60_000, status="async_launched"),
            (80.0, [80.0, 82.5, 170.0], ()),
            (80.0, [80.0, 82.5, 90.0], ()),
        ),
        # Without a duration the completion stamp cannot be undone; nor with a negative one.
        (
            subagent(80.0, inner(0.0), duration_ms=None),
            (80.0, [80.0], ()),
            (80.0, [80.0], ()),
        ),
        (
            subagent(80.0, inner(0.0), duration_ms=-60_000),
            (80.0, [80.0], ()),
            (80.0, [80.0], ()),
        ),
        # A microsecond before the entry is rounding, not another clock.
        (
            subagent(80.0, inner(80.0 - 5e-7)),
            (80.0, [80.0 - 5e-7], ()),
            (80.0, [80.0 - 5e-7], ()),
        ),
        (subagent(80.0, []), (80.0, [], ()), (80.0, [], ())),
    ],
)
def test_clocks(agent, default, harness):
    assert settled(agent) == default
    assert settled(agent, compat_harness=True) == harness


def test_a_trace_without_relative_times_is_returned_as_it_is():
    t = decode_trace(dump(trace(requests=[request(), subagent(3.0)])), "f", lambda kind, text: None)
    assert settle(t) is t
    assert settle(t, compat_harness=True) is t


def test_settling_twice_changes_nothing():
    t = decode_trace(
        dump(trace(requests=[request(), subagent(80.0, RELATIVE, duration_ms=60_000)])),
        "f",
        lambda kind, text: None,
    )
    once = settle(t)
    assert settle(once) is once


def inner_starts_ms(document: Path) -> dict[tuple[int, int], float]:
    """Recorded starts of subagent turns in a golden document, by their place in the trace file."""
    golden = json.loads(document.read_text())
    return {
        tuple(turn["src"]): turn["t_ms"]
        for conversation in golden["conversations"]
        if conversation["kind"] == "subagent"
        for turn in conversation["turns"]
    }


@pytest.mark.parametrize(("variant", "compat"), [("dev", True), ("corrected/dev", False)])
def test_recorded_traces_give_the_golden_times(shared: Path, variant: str, compat: bool):
    corpus = open_corpus(shared / "traces", compat_harness=compat)
    compared = 0
    for index, name in enumerate(corpus.ids):
        document = shared / "golden" / variant / f"{name}.json"
        if not document.is_file():
            continue
        t = corpus.trace(index)
        assert ("subagent_clock" in t.corrections) == (
            "subagent_clock" in json.loads(document.read_text()).get("corrections", [])
        )
        for (i, j), start_ms in inner_starts_ms(document).items():
            entry = t.requests[i]
            assert isinstance(entry, Subagent)
            assert entry.requests[j].t * 1000 == pytest.approx(start_ms, abs=1e-3)
            compared += 1
    assert compared > 150

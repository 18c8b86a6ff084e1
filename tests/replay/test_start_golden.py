"""Lane start states of the 26 real traces, against what the official harness makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentx_engine.corpus import open_corpus
from agentx_engine.replay.corpus_trees import CorpusTrees
from agentx_engine.replay.start_document import start_document
from agentx_engine.replay.start_plan import build_lanes
from agentx_engine.tree import TreeOptions
from agentx_engine.tree.model import ConversationTree

FILES = [f"lanes_dev_c{lanes}_{ratios}.json" for lanes in (8, 16) for ratios in ("0.25-0.75", "0-1")]


class KeptTrees(CorpusTrees):
    """Each tree is built once for all files."""

    def __init__(self, traces: Path, *, harness: bool) -> None:
        corpus = open_corpus(traces, compat_harness=harness)
        super().__init__(corpus, TreeOptions.harness() if harness else TreeOptions())
        self._kept: dict[int, ConversationTree] = {}

    def load(self, index: int) -> ConversationTree:
        if index not in self._kept:
            self._kept[index] = super().load(index)
        return self._kept[index]


@pytest.fixture(scope="module")
def as_harness(shared: Path) -> KeptTrees:
    return KeptTrees(shared / "traces", harness=True)


@pytest.fixture(scope="module")
def repaired(shared: Path) -> KeptTrees:
    return KeptTrees(shared / "traces", harness=False)


def differences(got: Any, want: Any, where: str = "") -> Iterator[str]:
    """One line per leaf that differs, with the path to it."""
    if isinstance(got, dict) and isinstance(want, dict):
        for key in {**want, **got}:
            yield from differences(got.get(key, "(absent)"), want.get(key, "(absent)"), f"{where}.{key}")
    elif isinstance(got, list) and isinstance(want, list) and len(got) == len(want):
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            name = a.get("trace", a.get("id", i)) if isinstance(a, dict) else i
            yield from differences(a, b, f"{where}[{name}]")
    elif got != want:
        yield f"{where}: got {str(got)[:150]}, want {str(want)[:150]}"


def compare(source: KeptTrees, golden: Path) -> None:
    want = json.loads(golden.read_text())
    plan = build_lanes(source, want["concurrency"], want["seed"], *want["ratios"])
    lines = list(differences(start_document(plan), want))
    assert not lines, "\n".join([f"{len(lines)} differences to {golden.name}", *lines[:20]])


@pytest.mark.parametrize("name", FILES)
def test_harness_parity(shared: Path, as_harness: KeptTrees, name: str) -> None:
    compare(as_harness, shared / "golden" / name)


@pytest.mark.parametrize("name", FILES)
def test_with_repairs(shared: Path, repaired: KeptTrees, name: str) -> None:
    compare(repaired, shared / "golden" / "corrected" / name)


def test_what_a_gate_waits_for(repaired: KeptTrees) -> None:
    """agentx-v1, 12.2: on lane 11 the root's turn 7 waits for agent 4 only."""
    start = build_lanes(repaired, 16, 42, 0.25, 0.75).lanes[11]
    tree = repaired.load(11)
    assert [tree.conversations[c].id for c in start.waits_for] == ["trace_0277::sa:agent_004"]
    assert start.branches == ("over", "live")


def test_the_comparison_can_fail() -> None:
    want = {"lanes": [{"trace": "x", "streams": [{"id": "y", "next": 2}]}]}
    got = {"lanes": [{"trace": "x", "streams": [{"id": "y", "next": 3}]}]}
    assert list(differences(got, want)) == [".lanes[x].streams[y].next: got 3, want 2"]
    assert list(differences({}, {"a": 1})) == [".a: got (absent), want 1"]
    assert list(differences([1], [1, 2])) == [": got [1], want [1, 2]"]

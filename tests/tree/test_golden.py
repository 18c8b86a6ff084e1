"""Trees of the 26 real traces, against what the official loader makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentx_engine.corpus.clock import settle
from agentx_engine.corpus.decode import decode_trace
from agentx_engine.tree import TreeOptions, build_tree, to_document

NUMBERS = """
    0014 0022 0024 0038 0053 0103 0130 0138 0177 0243 0274 0277 0295
    0312 0326 0338 0403 0432 0505 0546 0549 0664 0672 0675 0711 0722
""".split()  # noqa: SIM905 - a table is easier to read than 26 quoted strings


def differences(got: Any, want: Any, where: str = "") -> Iterator[str]:
    """One line per leaf that differs, with the path to it."""
    if isinstance(got, dict) and isinstance(want, dict):
        for key in {**want, **got}:
            yield from differences(got.get(key, "(absent)"), want.get(key, "(absent)"), f"{where}.{key}")
    elif isinstance(got, list) and isinstance(want, list) and len(got) == len(want):
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            name = a.get("id", i) if isinstance(a, dict) else i
            yield from differences(a, b, f"{where}[{name}]")
    elif got != want:
        yield f"{where}: got {str(got)[:150]}, want {str(want)[:150]}"


def compare(trace: Path, golden: Path, *, harness: bool) -> None:
    recorded = decode_trace(trace.read_bytes(), trace.name, lambda kind, text: None)
    recorded = settle(recorded, compat_harness=harness)
    tree = build_tree(recorded, TreeOptions.harness() if harness else TreeOptions())
    document = to_document(tree, recorded)
    for branch in document["branches"]:
        assert branch.pop("pause_ms") >= 0
    lines = list(differences(document, json.loads(golden.read_text())))
    assert not lines, "\n".join([f"{len(lines)} differences to {golden.name}", *lines[:20]])


@pytest.mark.parametrize("number", NUMBERS)
def test_harness_parity(shared: Path, number: str) -> None:
    name = f"trace_{number}.json"
    compare(shared / "traces" / name, shared / "golden" / "dev" / name, harness=True)


@pytest.mark.parametrize("number", NUMBERS)
def test_with_repairs(shared: Path, number: str) -> None:
    name = f"trace_{number}.json"
    golden = shared / "golden" / "corrected" / "dev" / name
    if not golden.exists():
        golden = shared / "golden" / "dev" / name
    compare(shared / "traces" / name, golden, harness=False)


def test_recorded_pauses_are_kept(shared: Path) -> None:
    """K3 of the golden README: pauses (s) between a parent's end and a branch, dropped by the harness."""
    want = {"0024": 77590, "0403": 48547, "0326": 3467, "0338": 67, "0053": 61}
    for number, seconds in want.items():
        path = shared / "traces" / f"trace_{number}.json"
        recorded = settle(decode_trace(path.read_bytes(), path.name, lambda kind, text: None))
        pauses = [branch.pause_ns / 1e9 for branch in build_tree(recorded).branches]
        assert max(pauses) == pytest.approx(seconds, abs=0.6), number


def test_the_comparison_can_fail() -> None:
    assert list(differences({"a": [{"id": "x", "n": 1}]}, {"a": [{"id": "x", "n": 2}]})) == [
        ".a[x].n: got 1, want 2"
    ]
    assert list(differences({}, {"a": 1})) == [".a: got (absent), want 1"]
    assert list(differences([1], [1, 2])) == [": got [1], want [1, 2]"]

"""docs/agentx.md states the rule sets for readers; the tables there are those of the code."""

import re
from pathlib import Path

import pytest

from agentx_engine.scenario import SCENARIOS, SETTINGS, apply
from agentx_engine.scenario.rules import LOCKS

PINNED = {"loader": "semianalysis_cc_traces_weka_062126"}


@pytest.fixture(scope="module")
def page():
    return (Path(__file__).parents[2] / "docs" / "agentx.md").read_text(encoding="utf-8")


def rows(page, header):
    """The body of the table whose header line begins with `header`, as lists of cells."""
    lines = page[page.index(header) :].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def shown(value):
    if value is ...:
        return [""]
    if value is None:
        return ["off", "all"]
    if isinstance(value, bool):
        return [str(value).lower()]
    return [value if isinstance(value, str) else f"{value:.9g}"]


def test_values_that_are_filled_in(page):
    stated = {row[0].strip("`"): row[1:3] for row in rows(page, "| | `agentx` | `inferencex-agentx-mvp` |")}
    effective = [apply(SCENARIOS[name], PINNED).effective for name in ("agentx", "inferencex-agentx-mvp")]
    names = {fill.setting for scenario in SCENARIOS.values() for fill in scenario.fills} - set(PINNED)
    filled = [s for s in SETTINGS.values() if s.flag and s.name in names]
    assert set(stated) == {s.flag for s in filled}
    for setting in filled:
        for cell, values in zip(stated[setting.flag], effective, strict=True):
            assert cell in shown(values.get(setting.name, ...)), setting.flag


def test_locks(page):
    stated = {(row[0], row[3].strip("`")) for row in rows(page, "| rule | setting | must be |")}
    assert stated == {(lock.row, lock.flag) for lock in LOCKS}


def test_reasons(page):
    stated = {row[0].strip("`") for row in rows(page, "| reason | when |")}
    assert stated == {
        "unsafe_override",
        "context_overflow_rate_exceeded",
        "run_cancelled",
        "insufficient_profile_metric_coverage",
    }

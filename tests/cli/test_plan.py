"""`plan --lanes`: where each lane begins."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.trace_files import request, subagent, trace, write_lines

from agentx_engine.cli.plan import main
from agentx_engine.errors import UserError
from agentx_engine.replay.start import lane_seed


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """`flat` is plain; in `gated` a child is at work in the middle; `late` has only a child at its end."""
    flat = trace("flat", [request(t) for t in (0.0, 10.0, 20.0, 30.0)])
    long = subagent(20.0, [request(20.0), request(95.0)], duration_ms=76_000)
    gated = trace("gated", [request(0.0), request(10.0), long, request(100.0)])
    late = trace("late", [request(0.0), subagent(900.0, [request(900.0), request(1000.0)], duration_ms=None)])
    return write_lines(tmp_path / "c.jsonl", [flat, gated, late])


def lanes(corpus: Path, capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, object]:
    assert main(["--lanes", "--json", "--corpus", str(corpus), *argv]) == 0
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return document


HALF = ("--trajectory-start-min-ratio", "0.5", "--trajectory-start-max-ratio", "0.5")


def test_document(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lanes(corpus, capsys, "--concurrency", "3", *HALF) == {
        "seed": 42,
        "concurrency": 3,
        "ratios": [0.5, 0.5],
        "profiling_zero_ms": 5000,
        "primer_count": 3,
        "next_recycled_trace": "flat",
        "lanes": [
            {
                "lane": 0,
                "trace": "flat",
                "seed": lane_seed(42, "flat", 0),
                "bounds_s": [0, 30],
                "t_star_s": 15,
                "root_next": 2,
                "streams": [
                    {"id": "flat", "next": 2, "offset_ms": 5000, "gated": False, "start_ms": 0},
                ],
                "primers": [{"id": "flat", "turn": 1, "lead_ms": 5000, "send_at_ms": 5000}],
                "done": [["flat", 2]],
            },
            {
                "lane": 1,
                "trace": "gated",
                "seed": lane_seed(42, "gated", 1),
                "bounds_s": [0, 100],
                "t_star_s": 50,
                "root_next": 2,
                "streams": [
                    {
                        "id": "gated",
                        "next": 2,
                        "offset_ms": 50000,
                        "gated": True,
                        "join_turn": 2,
                        "release_not_before_ms": 45000,
                    },
                    {
                        "id": "gated::sa:agent_001",
                        "next": 1,
                        "offset_ms": 45000,
                        "gated": False,
                        "branch": "gated:spawn:agent_001",
                        "feeds_turn": 2,
                        "start_ms": 40000,
                    },
                ],
                "primers": [
                    {"id": "gated", "turn": 1, "lead_ms": 40000, "send_at_ms": 0},
                    {"id": "gated::sa:agent_001", "turn": 0, "lead_ms": 30000, "send_at_ms": 0},
                ],
                "slot_taken_by_lane": "gated_root",
                "done": [["gated", 2], ["gated::sa:agent_001", 1]],
            },
            {
                "lane": 2,
                "trace": "late",
                "seed": lane_seed(42, "late", 2),
                "bounds_s": [0, 1000],
                "t_star_s": 500,
                "root_next": None,
                "streams": [
                    {
                        "id": "late::sa:agent_001",
                        "next": 0,
                        "offset_ms": 400000,
                        "gated": False,
                        "branch": "late:spawn:agent_001",
                        "feeds_turn": None,
                        "start_ms": 395000,
                    }
                ],
                "primers": [],
                "slot_taken_by_lane": "rootless",
                "done": [["late", 1]],
            },
        ],
    }


def test_table(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--lanes", "--corpus", str(corpus), "--concurrency", "3", *HALF]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "3 lanes on 3 traces, seed 42, t* from 0.5 to 0.5 of each recording",
        "warmup      3 primers, the last sent after 5.000 s",
        "profiling   begins 5.000 s after t*; roots: 1 wait for children, 1 have ended",
        "afterwards  the lane that drains first plays flat",
    ]
    assert [line.split() for line in lines[5:]] == [
        ["lane", "stream", "t*", "of", "turn", "starts", "feeds", "primer", "sent"],
        ["0", "flat", "15.000", "30.0", "2", "0.000", "1", "5.000"],
        ["1", "gated", "50.000", "100.0", "2", ">=", "45.000", "1", "0.000"],
        ["sa:agent_001", "1", "40.000", "2", "0", "0.000"],
        ["2", "late", "500.000", "1,000.0", "-"],
        ["sa:agent_001", "0", "395.000"],
    ]


def test_burst(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = lanes(corpus, capsys, "--concurrency", "3", *HALF, "--burst-phase-starts")
    made = document["lanes"]
    assert isinstance(made, list)
    assert [s.get("start_ms") for lane in made for s in lane["streams"]] == [0, None, 0, 0]
    assert {p["send_at_ms"] for lane in made for p in lane["primers"]} == {0}


def test_more_lanes_than_traces_and_other_seeds(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    by_seed = [lanes(corpus, capsys, "--concurrency", "7", "--seed", seed) for seed in ("1", "1", "2")]
    assert by_seed[0] == by_seed[1] != by_seed[2]
    made = by_seed[0]["lanes"]
    assert isinstance(made, list)
    assert [lane["trace"] for lane in made] == ["flat", "gated", "late"] * 2 + ["flat"]
    assert by_seed[0]["next_recycled_trace"] == "gated"


def test_selection(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = lanes(corpus, capsys, "--concurrency", "2", "--entries", "1")
    made = document["lanes"]
    assert isinstance(made, list)
    assert [lane["trace"] for lane in made] == ["flat", "flat"]
    with pytest.raises(UserError, match="no trace fits a context of 10 tokens"):
        main(["--lanes", "--corpus", str(corpus), "--max-context", "10"])


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "one of the arguments --lanes is required"),
        (["--lanes"], "the following arguments are required: --corpus"),
        (["--lanes", "--corpus", "/nonexistent"], "--corpus: /nonexistent does not exist"),
        (["--lanes", "--concurrency", "0"], "--concurrency: a whole number from 1"),
        (["--lanes", "--trajectory-start-min-ratio", "1.5"], "a share from 0 to 1 is expected, not '1.5'"),
        (["--lanes", "--trajectory-start-max-ratio", "nan"], "a share from 0 to 1 is expected, not 'nan'"),
        (["--lanes", "--trajectory-start-max-ratio", "half"], "a share from 0 to 1 is expected, not 'half'"),
        (
            ["--lanes", "--trajectory-start-min-ratio", "0.8"],
            "0.8 is above --trajectory-start-max-ratio 0.75",
        ),
        (["--lanes", "--input-file", "x"], "did you mean --corpus?"),
    ],
)
def test_mistakes(corpus: Path, argv: list[str], said: str) -> None:
    given = argv
    if argv and "--corpus" not in argv and "required: --corpus" not in said:
        given = [*argv, "--corpus", str(corpus)]
    elif not argv:
        given = ["--corpus", str(corpus)]
    with pytest.raises(UserError) as caught:
        main(given)
    assert said in str(caught.value)


def test_golden_file(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = lanes(shared / "traces", capsys, "--concurrency", "8", "--compat", "harness")
    assert document == json.loads((shared / "golden" / "lanes_dev_c8_0.25-0.75.json").read_text())


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from agentx_engine.cli.plan import build_parser; text = build_parser().format_help(); "
        "print(text.count('--lanes') > 1, [m for m in ('numpy', 'msgspec', 'asyncio') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True []"

"""`plan`: the forecast of a run, and `--lanes`: where each lane begins."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from support.trace_files import request, subagent, trace, write_lines

from agentx_engine.cli import flags
from agentx_engine.cli.forecast_table import sparkline
from agentx_engine.cli.plan import build_parser, main
from agentx_engine.cli.plan_forecast import settings
from agentx_engine.cli.settings import resolve
from agentx_engine.errors import UserError
from agentx_engine.replay.forecast import Forecast, ServerSpec
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
        ([], "the following arguments are required: --corpus"),
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
        (["--lanes", "--duration", "60"], "--duration: has no meaning with --lanes"),
        (["--lanes", "--prefill-shared"], "--prefill-shared: has no meaning with --lanes"),
        (["--lanes", "--cache-tokens", "0"], "--cache-tokens: has no meaning with --lanes"),
        (["--corpus", "/nonexistent"], "--corpus: /nonexistent does not exist"),
        (["--duration", "0"], "--duration: a time above 0 is expected, not '0'"),
        (["--concurrency", "0"], "--concurrency: a whole number from 1"),
        (["--itl-ms", "-1"], "--itl-ms: a number from 0 to 1,000,000,000 is expected, not '-1'"),
        (["--ttft-ms", "inf"], "--ttft-ms: a number from 0 to 1,000,000,000 is expected, not 'inf'"),
        (["--prefill-tokens-per-s", "0"], "a number above 0 is expected, not '0'"),
        (["--cache-tokens", "lots"], "--cache-tokens: a whole number from 0 is expected, not 'lots'"),
        (["--lanes", "--scenario", "agentx"], "--scenario: has no meaning with --lanes"),
        (["--lanes", "--prefill-tokens-per-s", "1"], "--prefill-tokens-per-s: has no meaning"),
        (["--scenario", "none"], "--scenario: invalid choice"),
        (
            ["--trajectory-start-min-ratio", "0.8", "--trajectory-start-max-ratio", "0.2"],
            "0.8 is above --trajectory-start-max-ratio 0.2",
        ),
        (
            ["--warmup-duration", "9", "--warmup-requests-per-lane", "1"],
            "--warmup-duration: not together with --warmup-requests-per-lane",
        ),
        (
            ["--warmup-requests-per-lane", "1", "--warmup-grace-period", "0"],
            "did not return within the grace of 0 s",
        ),
        (["--benchmark-duration", "60"], "did you mean --duration?"),
        (["--max-context", "10"], "no trace fits a context of 10 tokens"),
    ],
)
def test_mistakes(corpus: Path, argv: list[str], said: str) -> None:
    given = argv
    if "--corpus" not in argv and "required: --corpus" not in said:
        given = [*argv, "--corpus", str(corpus)]
    with pytest.raises(UserError) as caught:
        main(given)
    assert said in str(caught.value)


def test_golden_file(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = lanes(shared / "traces", capsys, "--concurrency", "8", "--compat", "harness")
    assert document == json.loads((shared / "golden" / "lanes_dev_c8_0.25-0.75.json").read_text())


def forecast(corpus: Path, capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[Forecast, list[str]]:
    """The document and the table of the same forecast."""
    given = ["--corpus", str(corpus), *argv]
    assert main([*given, "--json"]) == 0
    document = msgspec.json.decode(capsys.readouterr().out, type=Forecast, strict=True)
    assert main(given) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert all(line.isascii() and line == line.rstrip() for line in lines)
    return document, lines


SERVER = ("--ttft-ms", "1000", "--prefill-tokens-per-s", "1_000_000_000", "--itl-ms", "100")


def test_forecast(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`flat` alone: four requests of 1.9 s, 8 s between them; 31.6 s a session."""
    document, lines = forecast(
        corpus, capsys, "--entries", "1", "--concurrency", "1", "--duration", "100", *SERVER
    )
    assert document.requests.sent == document.requests.finished == 13
    assert document.tokens.input == 13 * 192
    assert document.tokens.output == 13 * 10
    assert (document.trees.started, document.trees.finished, document.trees.recycled) == (4, 3, 3)
    text = "\n".join(lines)
    assert lines[0].startswith("forecast: 1 lanes on 1 traces for 100 s, then 30 s of grace.")
    for part in (
        "mean 0.2, p50 0, p90 1, p99 1, max 1 at 0 s",
        "13 sent, 13 finished, 0 cut off at the end; 0.130/s",
        "4 started, 3 finished, 1 live at the end; of 1 traces, 3 recycled, one trace at",
        "2,496 in (25.0/s), 130 out (1.300/s)",
        "longest wait  8 s on lane 0",
        "The first token comes 1000 ms + 0.001 us per uncached prompt token",
        "The prefix cache is unbounded.",
    ):
        assert part in text


def test_forecast_says_its_model(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--duration", "100", "--itl-slope-us", "250", "--cache-tokens", "100", "--prefill-shared"]
    document, lines = forecast(corpus, capsys, *argv, "--cache-bust", "none", "--grace", "0")
    assert document.server == ServerSpec(itl_slope_us=250, cache_tokens=100, prefill_shared=True)
    assert not document.run.cache_bust
    assert document.run.grace_s == 0
    text = " ".join(" ".join(lines).split())
    assert "+ 250 us per request that decodes" in text
    assert "holds 100 tokens, least recently used out first" in text
    assert "(one prompt after another)" in text
    assert f"! {document.prefix_cache.over_capacity} requests came while" in text
    none, lines = forecast(corpus, capsys, "--cache-tokens", "0")
    assert none.prefix_cache.model_hit == 0
    assert "There is no prefix cache." in "\n".join(lines)


def test_forecast_without_anything_to_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One request that is cut off: most figures have no value."""
    corpus = write_lines(tmp_path / "c.jsonl", [trace("a", [request(0.0, out=100_000)])])
    document, lines = forecast(corpus, capsys, "--duration", "0.001", "--grace", "0", "--concurrency", "1")
    assert (document.requests.sent, document.requests.cut_off) == (1, 1)
    assert document.latency_of_the_model.ttft_ms is None
    assert any("fewer than two requests" in line for line in lines)


def test_forecast_is_the_same_again(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("--duration", "10m", "--concurrency", "7", "--cache-tokens", "2000")
    assert forecast(corpus, capsys, *argv) == forecast(corpus, capsys, *argv)


def test_forecast_of_a_scenario(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is not given is the scenario's, also in the model of the sessions."""
    given = ["--corpus", str(corpus), "--scenario", "agentx"]
    assert settings(build_parser().parse_args(given), pytest.fail)["duration_s"] == 3600
    argv = ("--scenario", "agentx", "--concurrency", "3", "--duration", "900", *HALF)
    document, lines = forecast(corpus, capsys, *argv)
    run = document.run
    assert (run.duration_s, run.grace_s, run.seed) == (900, 30, 42)
    assert run.start_ratios == (0.5, 0.5)
    assert (run.warmup_requests_per_lane, run.warmup_duration_s) == (10, None)
    assert (run.system_idle_cap_s, run.tree_idle_cap_s) == (10, 300)
    assert document.warmup is not None
    assert (document.warmup.primers, document.warmup.extra_requests) == (3, 30)
    assert document.pauses.longest_quiet_s <= 10
    assert document.idle_caps.system_shifts > 0
    text = " ".join(" ".join(lines).split())
    for part in (
        "3 primers, 30 more requests;",
        "Lanes begin between 50% and 50% of their recordings (seed 42), after a warmup of one primer",
        "10 s of nothing in flight at all or 300 s of nothing in flight for a session",
        "Children start without the pause recorded before them.",
        "system cap cut in",
    ):
        assert part in text
    open_ended, _ = forecast(
        corpus, capsys, "--scenario", "agentx", "--system-idle-gap-cap", "off", "--duration", "60"
    )
    assert open_ended.run.system_idle_cap_s is None


def test_scenarios_have_their_say(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--corpus", str(corpus), "--concurrency", "2", "--duration", "60"]
    assert main([*given, "--scenario", "inferencex-agentx-mvp"]) == 0
    said = capsys.readouterr().err
    assert "such a run breaks a rule of inferencex-agentx-mvp: --duration 60: must be at least 900 s" in said
    assert "draws its seed; this is the forecast for seed 42" in said
    assert "pinned corpora" not in said


@pytest.mark.parametrize("scenario", [[], ["--scenario", "agentx"], ["--scenario", "inferencex-agentx-mvp"]])
def test_a_run_is_what_replay_makes_of_the_same_flags(corpus: Path, scenario: list[str]) -> None:
    given = ["--corpus", str(corpus), *scenario]
    values = settings(build_parser().parse_args(given), lambda text: None)
    override = ["--unsafe-override"] if scenario else []
    args = flags.build_parser("replay", "").parse_args([*given, *override, "--url", "http://127.0.0.1:1"])
    replayed = msgspec.structs.asdict(resolve(args, {}, lambda bits: 42))
    low, high = values.pop("trajectory_start_min_ratio"), values.pop("trajectory_start_max_ratio")
    assert replayed["start_ratios"] == (None if low is None else (low, high))
    assert replayed["warmup_requests_per_lane"] == (values.pop("warmup_requests_per_lane") or 0)
    assert values == {name: replayed[name] for name in values}


def test_limits_of_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    large = request(9.0, out=100, **{"in": 640, "hash_ids": [*range(1, 11)]})
    corpus = write_lines(tmp_path / "c.jsonl", [trace("a", [request(0.0), large])])
    argv = ("--concurrency", "1", "--duration", "12", *SERVER)
    whole, _ = forecast(corpus, capsys, *argv)
    assert whole.tokens.output == 10 + 100
    capped, _ = forecast(corpus, capsys, *argv, "--max-output-tokens", "20")
    assert capped.tokens.output == 10 + 20 + 10
    small, _ = forecast(corpus, capsys, *argv, "--max-request-tokens", "600")
    assert small.tokens.input == small.requests.sent * 192


def test_seeds_move_the_starts(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("--concurrency", "3", "--trajectory-start-max-ratio", "0.9", "--seed")
    one, two = (forecast(corpus, capsys, *argv, seed)[0] for seed in ("1", "2"))
    assert one.run.start_ratios == (0, 0.9)
    assert one.curve != two.curve


def test_sparkline() -> None:
    assert sparkline([0, 1, 50, 100]) == " .+@"
    assert sparkline([0, 0]) == "  "
    assert sparkline(range(10)) == " .:-=+*#%@"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from agentx_engine.cli.plan import build_parser; text = build_parser().format_help(); "
        "print('--duration' in text, [m for m in ('numpy', 'msgspec', 'asyncio') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True []"

"""Wrong command lines: one line that names the flag, exit status 2, never a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentx_engine.cli.flags import DEMO_CONCURRENCY, DEMO_DURATION_S, REFUSED, SCENARIOS, build_parser
from agentx_engine.cli.main import main
from agentx_engine.cli.settings import ReplaySettings, resolve
from agentx_engine.errors import UserError
from agentx_engine.scenario import SCENARIOS as RULES
from agentx_engine.scenario import SETTINGS


def fails(capsys: pytest.CaptureFixture[str], *argv: str, status: int = 2) -> str:
    assert main(list(argv)) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["replya"], "unknown command replya, did you mean replay?"),
        (["--verison"], "unknown flag --verison, did you mean --version?"),
        (["xyzzy"], "unknown command xyzzy (see"),
        (["replay", "--concurency", "8"], "unknown flag --concurency, did you mean --concurrency?"),
        (["replay", "--duraton=8"], "unknown flag --duraton, did you mean --duration?"),
        (["replay", "--num-requests", "8"], "unknown flag --num-requests, did you mean --request-count?"),
        (["replay", "--random-seed", "8"], "did you mean --seed?"),
        (["replay", "--con", "8"], "unknown flag --con"),
        (["replay", "traces/"], "unexpected argument 'traces/'"),
        (["replay", "--concurrency", "0"], "--concurrency: a whole number from 1 is expected, not 0"),
        (["replay", "--concurrency", "many"], "--concurrency: a whole number from 1 is expected, not 'many'"),
        (["replay", "--duration", "-5"], "--duration"),
        (["replay", "--duration", "0"], "--duration: a time above 0 is expected"),
        (["replay", "--duration", "5 parsecs"], "--duration: seconds (or 500ms, 10m, 1.5h) are expected"),
        (["replay", "--grace", "inf"], "--grace: seconds"),
        (["replay", "--max-context", "big"], "--max-context: a whole number from 1 is expected"),
        (["replay", "--header", "no-colon"], "--header: 'Name: value' is expected"),
        (["replay", "--header", "Content-Length: 5"], "--header: Content-Length is set by the engine"),
        (["replay", "--header", "A: b\r\nEvil: c"], "--header: the value of A has characters"),
        (["replay", "--extra-body", "{bad"], "--extra-body: not JSON"),
        (["replay", "--extra-body", "[1]"], "--extra-body: a JSON object"),
        (
            ["replay", "--endpoint-path", "v1/x", "--url", "http://a"],
            "--endpoint-path: a path that begins with /",
        ),
        (["replay", "--ui", "fancy"], "--ui: invalid choice: 'fancy'"),
        (["replay", "--connections", "none"], "--connections: invalid choice"),
        (["replay", "--corpus", "/nonexistent"], "--corpus: /nonexistent does not exist"),
        (["replay", "--api-key", "k3y"], "--api-key: needs --url"),
        (["replay", "--fail-on-short", "--no-ignore-eos"], "--fail-on-short: with --no-ignore-eos"),
        (["replay", "--content-seed", str(2**64)], "--content-seed"),
        (["replay", "--seed"], "--seed: expected one argument"),
        (["replay", "--request-rate", "3", "--sweep"], "--request-rate, --sweep: do not exist here"),
        (["replay", "--inter-turn-delay-cap-seconds=5"], "--inter-turn-delay-cap: does not exist here"),
        (["replay", "--no-streaming"], "--no-streaming: does not exist here; this engine replays recordings"),
        (["replay", "--failed-request-threshold", "10"], "--failed-request-threshold: a share from 0 to 1"),
        (
            ["replay", "--trajectory-start-min-ratio", "x"],
            "--trajectory-start-min-ratio: a share from 0 to 1",
        ),
        (
            ["replay", "--trajectory-start-min-ratio", "0.8", "--trajectory-start-max-ratio", "0.5"],
            "--trajectory-start-min-ratio: 0.8 lies behind",
        ),
        (["replay", "--warmup-duration", "5", "--warmup-requests-per-lane", "3"], "must not both be given"),
        (["replay", "--isl", "wire", "--no-probe"], "--isl wire: the server's chat template has to be"),
        (["replay", "--extra-body", '{"max_tokens": 0}'], "'max_tokens': a whole number of tokens from 1"),
        (["replay", "--extra-body", '{"messages": []}'], "--extra-body: extra body member 'messages'"),
        (["replay", "--extra-body", '{"stream": false}'], "--extra-body: extra body member 'stream'"),
        (["replay", "--extra-body", '{"model": "zzz"}'], "'model': recorded models are mapped onto served"),
        (["replay", "--extra-body", '{"x": NaN}'], "--extra-body: not JSON: there is no NaN"),
        (["replay", "--extra-body", '{"x": ' + "[" * 100_000], "--extra-body: the JSON is nested too deeply"),
        (["replay", "--concurrency", "-3"], "--concurrency: a whole number from 1 is expected, not -3"),
        (["replay", "--concurrency", "9" * 20], "--concurrency: a whole number up to 1,000,000 is expected"),
        (["replay", "--request-count", "9" * 5000], "--request-count: a whole number from 1 is expected"),
        (["replay", "--warmup-requests-per-lane", "9" * 23], "a whole number up to 1,000,000 is expected"),
        (["replay", "--seed", str(2**64)], "--seed: a whole number up to 18,446,744,073,709,551,615"),
        (["replay", "--tcp-user-timeout", str(2**31)], "--tcp-user-timeout: a whole number up to"),
        (["replay", "--duration", "1e300"], "--duration: at most 10 years (315360000 s) are possible"),
        (["replay", "--grace", "1e999"], "--grace: at most 10 years"),
        (["replay", "--warmup-duration", "1e12h"], "--warmup-duration: at most 10 years"),
        (["replay", "--connect-timeout", "1e18"], "--connect-timeout: at most 10 years"),
        (["replay", "--idle-timeout", "1e12"], "--idle-timeout: at most 10 years"),
        (["replay", "--total-timeout", "1e300"], "--total-timeout: at most 10 years"),
        (["replay", "--corpus", ""], "--corpus: the value is empty"),
        (["replay", "--out="], "--out: the value is empty"),
        (["replay", "--model", ""], "--model: the value is empty"),
        (["replay", "--run-id", os.fsdecode(b"\xff")], "--run-id: the value is not UTF-8"),
        (["corpus", "inspect", ""], "the value is empty"),
        (["corpus", "synth", "--out", ""], "--out: the value is empty"),
        (["corpus", "synth", "--out", "x.jsonl", "--sessions", "9" * 20], "--sessions: a whole number up to"),
        (["corpus", "synth", "--out", "x.jsonl", "--sessions", "1000001"], "Ask for 1 to 1,000,000"),
        (["plan", "--corpus", ".", "--ttft-ms", "1e300"], "--ttft-ms: a number from 0 to 1,000,000,000"),
        (["sim", "--model", ""], "--model: the value is empty"),
        (
            ["replay", "--extra-body", '{"max_tokens": 5}', "--warmup-requests-per-lane", "1"],
            "max_tokens would replace the one token of warmup requests",
        ),
        (["replay", "--scenario", "agentix"], "--scenario: invalid choice: 'agentix'"),
        (["replay", "--agentic-warmup-grace-period", "5"], "did you mean --warmup-grace-period?"),
        (["corpus", "inspekt"], "invalid choice: 'inspekt'"),
        (["corpus", "inspect"], "PATH"),
        (["corpus", "inspect", "/nonexistent"], "/nonexistent"),
        (
            ["corpus", "synth", "--sesions", "3", "--out", "x.jsonl"],
            "unknown flag --sesions, did you mean --sessions?",
        ),
        (["corpus", "synth"], "--out"),
    ],
)
def test_one_line_that_names_the_flag(
    capsys: pytest.CaptureFixture[str],
    argv: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in fails(capsys, *argv)
    assert list(tmp_path.iterdir()) == []


def test_secrets_are_not_repeated_in_errors(capsys: pytest.CaptureFixture[str]) -> None:
    canary = "sk-canary-0123456789"
    for argv in (
        ["--url", "http://a", "--api-key", f"{canary} x"],
        ["--url", "http://a", "--header", f"{canary}"],
        ["--url", "http://a", "--header", f"X-Key: {canary}\x00"],
        ["--url", "http://a", "--extra-body", f'{{"api_key": "{canary}"'],
        ["--url", f"http://me:{canary}@a/"],
    ):
        assert canary not in fails(capsys, "replay", *argv)


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "commands:" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv", [["replay", "--help"], ["corpus", "--help"], ["corpus", "synth", "-h"], ["sim", "--help"]]
)
def test_help_of_commands(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    assert main(argv) == 0
    assert "usage: agentx-engine" in capsys.readouterr().out


def test_exit_codes_are_documented(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["--help"], ["replay", "--help"]):
        assert main(argv) == 0
        text = capsys.readouterr().out
        for code in ("0 ", "1 ", "2 ", "3 ", "4 ", "130 "):
            assert f"\n  {code}" in text


def _settings(*argv: str, env: dict[str, str] | None = None) -> ReplaySettings:
    return resolve(build_parser("replay", "").parse_args(list(argv)), env or {})


def test_defaults_with_and_without_a_server() -> None:
    real = _settings("--url", "http://a:8000")
    assert (real.concurrency, real.duration_s, real.grace_s) == (64, 600, 30)
    demo = _settings()
    assert (demo.concurrency, demo.duration_s, demo.simulated) == (DEMO_CONCURRENCY, DEMO_DURATION_S, True)
    counted = _settings("--url", "http://a:8000", "--request-count", "1,000")
    assert (counted.request_count, counted.duration_s) == (1000, None)
    both = _settings("--request-count", "5", "--duration", "2m")
    assert (both.request_count, both.duration_s) == (5, 120)


def test_a_hint_is_given_for_what_is_near_only(capsys: pytest.CaptureFixture[str]) -> None:
    """Dashes are no likeness."""
    assert "did you mean" not in fails(capsys, "replay", "--frob")
    assert "did you mean --no-probe?" in fails(capsys, "replay", "--no-prob")


def test_a_key_of_the_environment_is_checked() -> None:
    with pytest.raises(UserError, match=r"\$OPENAI_API_KEY: the key must be printable") as error:
        _settings("--url", "http://a", env={"OPENAI_API_KEY": "sk-canary\r\nEvil: 1"})
    assert "canary" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "value"), [("30", 30), ("500ms", 0.5), ("10m", 600), ("1.5h", 5400), ("2 s", 2)]
)
def test_durations(text: str, value: float) -> None:
    assert _settings("--duration", text).duration_s == value


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["replay", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_a_scenario_names_every_flag_that_breaks_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    wrong = ("--duration", "60", "--cache-bust", "none", "--request-rate", "4", "--no-ignore-eos", "--sweep")
    said = refusal(capsys, "--scenario", "agentx", "--corpus", str(tmp_path), *wrong)
    for flag in ("--duration 60", "--cache-bust none", "--request-rate 4", "--no-ignore-eos", "--sweep",
                 "--corpus", "--benchmark-duration"):  # fmt: skip
        assert f"\n  {flag}" in said or f"(official: {flag})" in said, flag
    assert "--unsafe-override helps for all but --sweep" in said


def test_no_override_for_the_synthetic_corpus(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, "--scenario", "agentx", "--unsafe-override")
    assert "--corpus: a corpus must be named" in said
    assert "--unsafe-override does not help here" in said


def test_an_override_does_not_make_a_mode_that_is_not_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    argv = ("--scenario", "agentx", "--unsafe-override", "--corpus", str(tmp_path), "--fixed-schedule")
    assert "--fixed-schedule: does not exist here" in refusal(capsys, *argv)


def test_what_a_scenario_fills_in(tmp_path: Path) -> None:
    common = ("--url", "http://a", "--unsafe-override", "--corpus", str(tmp_path))
    s = _settings("--scenario", "agentx", *common)
    assert (s.duration_s, s.grace_s, s.seed, s.entries, s.start_ratios) == (3600, 30, 42, 393, (0.25, 0.75))
    assert (s.warmup_requests_per_lane, s.warmup_grace_s, s.burst_phase_starts) == (10, 1800, False)
    assert (s.system_idle_gap_cap_s, s.trace_idle_gap_cap_s, s.failed_request_threshold) == (10, 300, 0.1)
    assert (s.tcp_user_timeout_ms, s.stats_interval_s, s.as_harness) == (900_000, 30, True)
    assert s.applied is not None
    assert s.applied.invalid_reasons == ("unsafe_override",)

    old = _settings("--scenario", "inferencex-agentx-mvp", *common)
    assert (old.duration_s, old.start_ratios, old.warmup_requests_per_lane) == (1800, (0, 1), 0)
    assert (old.warmup_grace_s, old.trace_idle_gap_cap_s, old.entries) == (None, None, None)
    timed = _settings("--scenario", "inferencex-agentx-mvp", *common, "--warmup-duration", "100")
    assert (timed.warmup_duration_s, timed.warmup_grace_s) == (100, 100)
    drawn = resolve(
        build_parser("replay", "").parse_args(["--scenario", "inferencex-agentx-mvp", *common]),
        {},
        lambda n: n,
    )
    assert drawn.seed == 63

    own = _settings(
        "--scenario", "agentx", *common, "--warmup-requests-per-lane", "off", "--trace-idle-gap-cap", "off",
        "--entries", "all", "--failed-request-threshold", "off", "--seed", "7",
        "--trajectory-start-max-ratio", "1",
    )  # fmt: skip
    assert (own.warmup_requests_per_lane, own.trace_idle_gap_cap_s, own.entries) == (0, None, None)
    assert (own.failed_request_threshold, own.seed, own.start_ratios) == (None, 7, (0.25, 1))


def test_without_a_scenario_nothing_is_as_in_the_harness() -> None:
    s = _settings("--url", "http://a")
    assert (s.scenario, s.as_harness, s.start_ratios, s.warms) == (None, False, None, False)
    assert (s.system_idle_gap_cap_s, s.trace_idle_gap_cap_s, s.failed_request_threshold) == (None,) * 3
    assert _settings("--url", "http://a", "--compat", "harness").as_harness
    assert _settings("--url", "http://a", "--trajectory-start-min-ratio", "0.5").start_ratios == (0.5, 1)


def test_flags_and_vocabulary_agree() -> None:
    """A setting that has a flag here has the one that the rules speak of; every refused one is refused."""
    assert set(SCENARIOS) == set(RULES)
    assert {name for name, _ in REFUSED} == {s.name for s in SETTINGS.values() if s.refused}
    for action in build_parser("replay", "")._actions:
        setting = SETTINGS.get(action.dest)
        if setting is not None and setting.flag is not None:
            assert setting.flag in action.option_strings


def test_api_key_comes_from_the_environment_for_a_named_server_only() -> None:
    env = {"OPENAI_API_KEY": "from-env"}
    assert _settings("--url", "http://a", env=env).api_key == "from-env"
    assert _settings("--url", "http://a", "--api-key", "given", env=env).api_key == "given"
    assert _settings("--url", "http://a", "--header", "authorization: Basic x", env=env).api_key is None
    assert _settings(env=env).api_key is None


def test_lists() -> None:
    s = _settings(
        "--url", "http://a", "--url", "http://b", "--header", "X-A: 1", "--header", "X-B:2", "--model", "m"
    )
    assert s.urls == ["http://a", "http://b"]
    assert s.headers == [("X-A", "1"), ("X-B", "2")]
    assert s.model == ["m"]


def test_a_defect_of_ours_is_told_as_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(argv: list[str]) -> int:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("agentx_engine.cli.corpus.main", broken)
    assert main(["corpus"]) == 4
    err = capsys.readouterr().err
    assert "ZeroDivisionError: oops" in err
    assert "defect of agentx-engine" in err


@pytest.mark.parametrize(
    ("module", "said"), [("agentx_engine.core.reactor", "with a C compiler"), ("numpy", "there is no numpy")]
)
def test_an_incomplete_installation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, module: str, said: str
) -> None:
    """Without its compiled part the program refuses, it does not fall back to a slow path."""

    def missing(argv: list[str]) -> int:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr("agentx_engine.cli.corpus.main", missing)
    assert said in fails(capsys, "corpus")


def test_user_errors_carry_their_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class NotReady(UserError):
        exit_code = 3

    def raising(argv: list[str]) -> int:
        raise NotReady("nobody listens at http://a:1")

    monkeypatch.setattr("agentx_engine.cli.corpus.main", raising)
    assert "nobody listens" in fails(capsys, "corpus", status=3)


HEAVY = ("numpy", "aiohttp", "uvloop", "rich", "msgspec", "hdrh", "asyncio")


@pytest.mark.parametrize("argv", [["--help"], ["replay", "--help"], ["corpus", "--help"]])
def test_help_imports_nothing_heavy(argv: list[str]) -> None:
    """guidellm#689: 27.5 s of imports before the first line."""
    code = (
        "import sys; from agentx_engine.cli.main import main; code = main(sys.argv[1:]); "
        f"print('HEAVY', [m for m in {HEAVY!r} if m in sys.modules], code)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *argv], capture_output=True, text=True, check=True
    )
    heavy = done.stdout.rpartition("HEAVY")[2].strip()
    allowed = "['msgspec'] 0" if argv[0] == "replay" else "[] 0"
    assert heavy == allowed
    assert "usage: agentx-engine" in done.stdout


def test_module_and_version_in_a_process_of_their_own() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "agentx_engine", "--version"], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert lines[0].startswith("agentx-engine ")
    assert [line.split()[0] for line in lines[1:]] == ["core", "uvloop", "python", "kernel"]
    assert "compiled" in lines[1]


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m agentx_engine corpus --help | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.strip() == "0"

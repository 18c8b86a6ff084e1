"""Runs under rules: scenarios, warmup, bounds on failures, filters, the verdict. The server is simulated."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.records import START, success

from agentx_engine.cli.flags import build_parser
from agentx_engine.cli.main import OK, UNUSABLE, main
from agentx_engine.cli.server import Server
from agentx_engine.cli.session import Session
from agentx_engine.cli.settings import ReplaySettings, resolve
from agentx_engine.cli.validity import judge_run, validity_document
from agentx_engine.corpus import open_corpus
from agentx_engine.errors import PreflightError
from agentx_engine.metrics import host
from agentx_engine.metrics.record import RequestRecord
from agentx_engine.metrics.request import compute
from agentx_engine.metrics.verdict import Bounds, Inputs, Verdict, judge
from agentx_engine.replay.options import SECOND, Counters, ReplayOptions, ReplayReport
from agentx_engine.scenario import Applied
from agentx_engine.sim.process import ChildServer
from agentx_engine.transport.native import NativeOptions
from agentx_engine.transport.preflight import PreflightReport, TemplateReport

SIM = ("--ttft-ms", "5", "--itl-ms", "1", "--prefill-rate", "1000000")
TEMPLATE = ("--template-overhead", "fixed=3,system=4,user=5,assistant=6")
CHILD_MODULE = "agentx_engine.sim.server_main"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ChildServer(CHILD_MODULE, list(SIM)) as child:
        yield child.url


def document(folder: Path, name: str = "summary.json") -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((folder / name).read_text())
    return parsed


def lines(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "aiperf_artifacts/profile_export.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


# -- the verdict on the client


def test_the_verdict_is_in_every_artifact(server: str, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    argv = ["replay", "--url", server, "--corpus", str(corpus), "--concurrency", "2", "--request-count", "6"]
    assert main([*argv, "--ui", "none", "--out", str(out)]) == 0
    verdict = document(out)["verdict"]
    assert verdict == document(out, "run.json")["verdict"]
    inputs = verdict["inputs"]
    assert inputs["planned"] == inputs["achieved"] == 6
    lag = inputs["dispatch_lag_armed_ms"]["count"] + inputs["dispatch_lag_reactive_ms"]["count"]
    assert lag == 6
    assert inputs["seconds"] > 0
    assert {t["name"] for t in inputs["threads"]} >= {"main thread", "reactor"}
    assert document(out)["validity"]["client"] == verdict["client"]


@pytest.mark.parametrize(("flags", "status"), [([], 0), (["--require-client-ok"], 1)])
def test_a_limited_client(
    *,
    server: str,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    flags: list[str],
    status: int,
) -> None:
    def strict(inputs: Inputs) -> Verdict:
        return judge(inputs, Bounds(thread_cores=0.0))

    monkeypatch.setattr(host, "judge", strict)
    out = tmp_path / "run"
    argv = ["replay", "--url", server, "--corpus", str(corpus), "--concurrency", "2", "--request-count", "6"]
    assert main([*argv, *flags, "--ui", "none", "--out", str(out)]) == status
    shown = capfd.readouterr()
    assert "client: LIMITED" in shown.out
    assert "of a core in its worst" in shown.out
    assert ("--require-client-ok: this client was the limit" in shown.err) == bool(flags)
    assert document(out)["verdict"]["client"] == "limited"
    assert len(lines(out)) == 6


def test_nothing_sent_is_not_ok() -> None:
    assert host.HostSampler().verdict(None).client == "limited"


# -- scenarios


def test_a_run_under_a_scenario(
    server: str, corpus: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Lanes begin in the middle, are warmed, and go on; only the measured phase counts."""
    out = tmp_path / "run"
    argv = ["replay", "--url", server, "--corpus", str(corpus), "--concurrency", "3", "--scenario", "agentx"]
    argv += [
        "--unsafe-override",
        "--warmup-requests-per-lane",
        "2",
        "--duration",
        "60",
        "--request-count",
        "8",
    ]
    argv += ["--system-idle-gap-cap", "0.2", "--trace-idle-gap-cap", "0.2", "--burst-phase-starts"]
    assert main([*argv, "--out", str(out)]) == 0
    shown = capfd.readouterr().out
    summary, run = document(out), document(out, "run.json")
    by_phase: dict[str, list[dict[str, Any]]] = {"warmup": [], "profiling": []}
    for line in lines(out):
        by_phase[line["metadata"]["benchmark_phase"]].append(line)
    warm, measured = by_phase["warmup"], by_phase["profiling"]
    assert summary["counts"]["finished"] == len(measured) == 8
    assert summary["warmup"]["requests"] == summary["counts"]["warmup_requests"] == len(warm)
    assert summary["warmup"]["extra_requests"] == 6
    assert summary["warmup"]["primers"] == len(warm) - 6 > 0
    assert {line["trace_data"]["max_tokens"] for line in warm} == {1}
    assert max(line["metadata"]["request_end_ns"] for line in warm) <= min(
        line["metadata"]["credit_issued_ns"] for line in measured
    )
    validity = summary["validity"]
    assert (validity["scenario"], validity["submission_valid"]) == ("agentx", False)
    assert validity["submission_invalid_reasons"] == ["unsafe_override"]
    assert validity["t_star_ratios"] == [0.25, 0.75]
    assert summary["schedule"]["as_harness"] is True
    assert run["scenario"]["name"] == "agentx"
    assert run["scenario"]["filled"]["failed_request_threshold"] == 0.1
    assert any("--corpus" in text for text in run["scenario"]["overridden"])
    assert len(run["replay"]["start"]["lanes"]) == 3
    assert run["transport"]["user_timeout_ms"] == 900_000
    # The client's lag is that of the measured phase, without the warmup's.
    inputs = summary["verdict"]["inputs"]
    assert inputs["dispatch_lag_armed_ms"]["count"] + inputs["dispatch_lag_reactive_ms"]["count"] == 8
    assert "overridden: --corpus" in shown
    assert "agentx: submission_valid false (unsafe_override)" in shown
    assert "warmup       " in shown


def test_a_warmup_that_fails(corpus: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    with ChildServer(CHILD_MODULE, [*SIM, "--error-rate", "1", "--error-as", "503"]) as child:
        argv = ["replay", "--url", child.url, "--corpus", str(corpus), "--concurrency", "2", "--no-probe"]
        argv += ["--warmup-requests-per-lane", "2", "--ui", "none", "--out", str(out)]
        assert main(argv) == 1
    assert "ended early (warmup failed): warmup request of" in capfd.readouterr().err
    summary = document(out)
    assert (summary["ended_by"], summary["counts"]["finished"]) == ("warmup_failed", 0)
    assert summary["verdict"]["client"] == "limited"
    assert "nothing was measured" in summary["verdict"]["reasons"]


def test_too_many_failures_end_the_run(
    corpus: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    with ChildServer(CHILD_MODULE, [*SIM, "--error-rate", "1", "--error-as", "503"]) as child:
        argv = ["replay", "--url", child.url, "--corpus", str(corpus), "--concurrency", "3", "--no-probe"]
        argv += ["--failed-request-threshold", "0.1", "--trace-idle-gap-cap", "0.1", "--duration", "60"]
        assert main([*argv, "--ui", "none", "--out", str(out)]) == 1
    assert "ended by --failed-request-threshold: 10 of 10 requests failed" in capfd.readouterr().err
    summary = document(out)
    assert summary["ended_by"] == "threshold"
    assert summary["counts"]["failed"] == 10


def test_short_answers_count_for_the_threshold(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with ChildServer(CHILD_MODULE, [*SIM, "--no-ignore-eos", "--stop-probability", "1"]) as child:
        argv = ["replay", "--url", child.url, "--corpus", str(corpus), "--concurrency", "3", "--no-probe"]
        argv += ["--failed-request-threshold", "0.1", "--trace-idle-gap-cap", "0.1", "--duration", "60"]
        assert main([*argv, "--fail-on-short", "--ui", "none", "--out", str(out)]) == 1
    assert document(out)["ended_by"] == "threshold"


def settings(*argv: str) -> ReplaySettings:
    return resolve(build_parser("replay", "").parse_args(list(argv)), {})


def ended(reason: str = "duration", **changes: Any) -> ReplayReport:
    fields = {"started_ns": START, "stopped_ns": START, "ended_ns": START, "end_reason": reason}
    return ReplayReport(**(fields | {"counts": Counters("profiling")} | changes))


@pytest.mark.parametrize(
    ("scenario", "at_s", "passed", "status"),
    [(True, 3500, True, OK), (True, 100, False, UNUSABLE), (False, 100, False, OK)],
)
def test_the_coverage_gate(
    *,
    corpus: Path,
    capfd: pytest.CaptureFixture[str],
    scenario: bool,
    at_s: int,
    passed: bool,
    status: int,
) -> None:
    """A server that was last seen at work long before the end: only a scenario has such a rule."""
    rules = ("--scenario", "agentx", "--unsafe-override") if scenario else ("--duration", "3600")
    session = Session(
        settings("--url", "http://a", "--corpus", str(corpus), *rules), io.StringIO(), io.StringIO()
    )
    record: RequestRecord = success(due=START + at_s * 10**9)
    session._summary.add(record, compute(record))
    session._report = ended()
    validity = judge_run(
        settings=session.settings,
        corpus=open_corpus(corpus),
        summary=session._summary,
        report=session._report,
        verdict=None,
    )
    assert validity.coverage is not None
    assert validity_document(validity)["coverage"]["passed"] is passed
    assert session._status(True, validity) == status
    assert ("last seen at work too early" in capfd.readouterr().err) == (status == UNUSABLE)
    assert ("insufficient_profile_metric_coverage" in validity.submission_invalid_reasons) == (
        scenario and not passed
    )


@pytest.mark.parametrize(
    ("reason", "changes", "cancelled"),
    [
        ("duration", {}, False),
        ("request_count", {}, False),
        ("duration", {"interrupted": True}, True),
        ("threshold", {}, True),
        ("warmup_failed", {}, True),
        ("held", {}, True),
        ("client_error", {}, True),
    ],
)
def test_what_counts_as_cancelled(
    corpus: Path, reason: str, changes: dict[str, Any], cancelled: bool
) -> None:
    given = settings(
        "--url", "http://a", "--corpus", str(corpus), "--scenario", "agentx", "--unsafe-override"
    )
    assert isinstance(given.applied, Applied)
    session = Session(given, io.StringIO(), io.StringIO())
    validity = judge_run(
        settings=given,
        corpus=open_corpus(corpus),
        summary=session._summary,
        report=ended(reason, **changes),
        verdict=None,
    )
    assert ("run_cancelled" in validity.submission_invalid_reasons) == cancelled


def looked_at(report: PreflightReport) -> Server:
    """A server as it is known before a run."""
    return Server(
        endpoints=[],
        hosts=[],
        models=["m"],
        addresses=[],
        options=NativeOptions(),
        report=report,
        limit_field="max_tokens",
        include_usage=True,
    )


def options(corpus: Path, *argv: str) -> ReplayOptions:
    given = settings("--url", "http://a", "--corpus", str(corpus), *argv)
    server = looked_at(PreflightReport(model="m", context_window=None, endpoints=[]))
    server.endpoints = [{}]
    return Session(given, io.StringIO(), io.StringIO())._options(server)


def test_the_right_way_and_the_harness_way(corpus: Path) -> None:
    """A scenario loses pauses and holds for the dead as the harness does; so does --compat, everywhere."""
    plain = options(corpus)
    assert (plain.child_pause, plain.release_dead, plain.warms) == (True, True, False)
    assert (plain.system_idle_cap_ns, plain.tree_idle_cap_ns) == (None, None)
    for argv in (("--scenario", "agentx", "--unsafe-override"), ("--compat", "harness")):
        as_harness = options(corpus, *argv)
        assert (as_harness.child_pause, as_harness.release_dead) == (False, False)
    ruled = options(corpus, "--scenario", "agentx", "--unsafe-override")
    assert (ruled.start_ratios, ruled.seed, ruled.warmup_requests_per_lane) == ((0.25, 0.75), 42, 10)
    assert (ruled.system_idle_cap_ns, ruled.tree_idle_cap_ns) == (10 * SECOND, 300 * SECOND)
    assert (ruled.primer_lead_cap_ns, ruled.warmup_grace_ns) == (10 * SECOND, 1800 * SECOND)
    assert (ruled.duration_ns, ruled.grace_ns, ruled.fail_fast) == (3600 * SECOND, 30 * SECOND, False)
    own = options(corpus, "--warmup-duration", "5", "--burst-phase-starts", "--fail-fast")
    assert (own.warmup_duration_ns, own.burst_starts, own.fail_fast) == (5 * SECOND, True, True)


# -- what is sent


def test_filters_and_caps(
    server: str, corpus: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = open_corpus(corpus)
    peaks = [whole.peak_tokens(i) for i in range(len(whole))]
    bound = max(peaks) - 1
    left_out = open_corpus(corpus, max_request_tokens=bound).select(entries=2).requests_left_out
    out = tmp_path / "run"
    argv = ["replay", "--url", server, "--corpus", str(corpus), "--concurrency", "2", "--request-count", "8"]
    argv += ["--max-request-tokens", str(bound), "--entries", "2", "--max-output-tokens", "3"]
    assert main([*argv, "--trace-idle-gap-cap", "0.1", "--out", str(out)]) == 0
    shown = capfd.readouterr().out
    assert f"--max-request-tokens: {left_out:,} requests of more than {bound:,} tokens" in shown
    assert "--entries: the first 2 traces are used, 1 are left out" in shown
    expected = {"traces": 2, "left_out": {"entries": 1}, "requests_left_out": left_out}
    assert document(out)["corpus"] == expected
    assert expected.items() <= document(out, "run.json")["corpus"].items()
    assert document(out)["validity"]["output_cap_tokens"] == 3
    for line in lines(out):
        tokens, kind = line["trace_data"]["max_tokens"], line["metadata"]["source_kind"]
        assert kind == "weka_subagent" or tokens <= 3
        assert line["metrics"]["output_sequence_length"]["value"] == tokens


def test_a_limit_in_the_extra_body_is_the_one_that_answers_are_judged_by(
    server: str, corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    argv = ["replay", "--url", server, "--corpus", str(corpus), "--concurrency", "2", "--request-count", "6"]
    argv += ["--extra-body", '{"max_completion_tokens": 4}', "--fail-on-short", "--trace-idle-gap-cap", "0.1"]
    assert main([*argv, "--ui", "none", "--out", str(out)]) == 0
    for line in lines(out):
        assert line["trace_data"]["max_tokens"] == 4
        assert line["metrics"]["output_sequence_length"]["value"] == 4
    assert document(out)["tokens"]["osl_mismatches"] == 0


@pytest.mark.parametrize(
    ("isl", "marker"), [("wire", "none"), ("wire", "first-turn-prefix"), ("text", "none")]
)
def test_isl(corpus: Path, tmp_path: Path, isl: str, marker: str) -> None:
    """The server's count equals the recording with `wire`, marker on top; the text does with `text`."""
    out = tmp_path / "run"
    with ChildServer(CHILD_MODULE, [*SIM, *TEMPLATE]) as child:
        argv = ["replay", "--url", child.url, "--corpus", str(corpus), "--concurrency", "2", "--isl", isl]
        argv += [
            "--request-count",
            "8",
            "--cache-bust",
            marker,
            "--trace-idle-gap-cap",
            "0.1",
            "--ui",
            "none",
        ]
        assert main([*argv, "--out", str(out)]) == 0
    run, summary = document(out, "run.json"), document(out)
    template = run["preflight"]["template"]
    assert (template["fit"], template["base"], template["user"]) == (True, 3, 5)
    assert (run["prompts"]["template_taken_out"] is not None) == (isl == "wire")
    more = {
        line["metrics"]["input_sequence_length"]["value"]
        - line["trace_data"]["recorded_input_tokens"]
        - line["trace_data"]["marker_tokens"]
        for line in lines(out)
    }
    assert more == {0} if isl == "wire" else min(more) >= 8
    assert summary["tokens"]["input_disagreements"] == 0


def test_isl_wire_needs_a_template_that_is_a_sum() -> None:
    def refused(template: TemplateReport | None, *warnings: str) -> str:
        report = PreflightReport(
            model="m", context_window=None, endpoints=[], template=template, warnings=list(warnings)
        )
        server = looked_at(report)
        with pytest.raises(PreflightError, match=r"^--isl wire: .*Use --isl text$") as caught:
            server.overhead()
        return str(caught.value)

    assert "no sum" in refused(TemplateReport(fit=False, reason="the template is no sum over messages"))
    assert "no prompt_tokens" in refused(None, "the chat template's tokens: no prompt_tokens")
    assert "was not measured" in refused(None)


def test_a_tokenizer(
    server: str, corpus: Path, tmp_path: Path, shared: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    path = shared / "tokenizers" / "deepseek"
    argv = ["replay", "--url", server, "--corpus", str(corpus), "--concurrency", "2", "--request-count", "4"]
    assert main([*argv, "--tokenizer", str(path), "--out", str(out)]) == 0
    assert "all 2,048 words are one token each" in capfd.readouterr().out
    assert document(out, "run.json")["prompts"]["pool"]["words"] == 2048


def test_no_tokenizer_at_that_path(
    server: str, corpus: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    argv = ["replay", "--url", server, "--corpus", str(corpus), "--tokenizer", str(tmp_path / "none")]
    assert main([*argv, "--out", str(out)]) == 2
    assert "--tokenizer: " in capfd.readouterr().err
    assert not out.exists()

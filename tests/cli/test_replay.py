"""Whole runs against the simulated server, a few seconds each."""

import asyncio
import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentx_engine.artifacts.folder import RunFolder
from agentx_engine.artifacts.writer import LineWriter
from agentx_engine.cli.main import main
from agentx_engine.corpus import open_corpus
from agentx_engine.corpus.synth import synthesize
from agentx_engine.errors import UserError
from agentx_engine.sim.process import ChildServer
from agentx_engine.transport.native import NativeTransport

KEY = "sk-canary-key-0123456789"
TOKEN = "canary-token-9876543210"
SIM = ("--ttft-ms", "5", "--itl-ms", "1", "--prefill-rate", "1000000")
CHILD_MODULE = "agentx_engine.sim.server_main"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ChildServer(CHILD_MODULE, [*SIM, "--api-key", KEY]) as child:
        yield child.url


def texts(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


def run_json(folder: Path, name: str = "summary.json") -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((folder / name).read_text())
    return parsed


def test_a_run_and_its_artifacts(
    server: str, corpus: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    argv = ["replay", "--url", server, "--corpus", str(corpus), "--concurrency", "3", "--request-count", "25"]
    argv += [
        "--api-key",
        KEY,
        "--header",
        f"X-Auth-Token: {TOKEN}",
        "--extra-body",
        f'{{"user_token": "{TOKEN}"}}',
    ]
    assert main([*argv, "--model", "simulated", "--out", str(out)]) == 0
    shown = capfd.readouterr()
    files = texts(out)
    assert set(files) >= {"run.json", "summary.json", "aiperf_artifacts/profile_export.jsonl"}
    for name, text in (*files.items(), ("stdout", shown.out), ("stderr", shown.err)):
        assert KEY not in text, name
        assert TOKEN not in text, name

    lines = [json.loads(line) for line in files["aiperf_artifacts/profile_export.jsonl"].splitlines()]
    summary, run = run_json(out), run_json(out, "run.json")
    assert len(lines) == summary["counts"]["finished"] == 25
    assert summary["counts"]["by_outcome"] == {"success": 25}
    assert summary["client"]["defects"] == {}
    assert summary["ended_by"] == "request_count"
    for line in lines:
        metadata, metrics = line["metadata"], line["metrics"]
        assert metadata["credit_issued_ns"] <= metadata["request_start_ns"] < metadata["request_ack_ns"]
        assert metadata["request_ack_ns"] < metadata["request_end_ns"]
        assert 0 < metrics["time_to_first_token"]["value"] <= metrics["request_latency"]["value"]
        assert metrics["output_sequence_length"]["value"] == line["trace_data"]["max_tokens"]
        assert metrics["input_sequence_length"]["value"] >= line["trace_data"]["recorded_input_tokens"]
    ttft = sorted(line["metrics"]["time_to_first_token"]["value"] for line in lines)
    assert summary["latency_ms"]["time_to_first_token"]["p50"] == pytest.approx(ttft[12])
    assert run["state"] == "finished"
    assert run["corpus"]["digest"].startswith("sha256:")
    assert run["host"]["kernel"].startswith("Linux")
    assert run["transport"]["tcp_nodelay"] is True
    assert "25 succeeded, 0 failed" in shown.out
    assert str(out) in shown.out


def test_json_on_stdout_is_nothing_but_json(
    server: str, corpus: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    argv = ["replay", "--url", server, "--corpus", str(corpus), "--concurrency", "2", "--request-count", "4"]
    assert main([*argv, "--api-key", KEY, "--model", "simulated", "--out", str(out), "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == run_json(out)


def test_every_request_fails(corpus: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Load generators that exit with 0 although every request failed."""
    out = tmp_path / "run"
    with ChildServer(CHILD_MODULE, [*SIM, "--error-rate", "1", "--error-as", "503"]) as child:
        argv = ["replay", "--url", child.url, "--corpus", str(corpus), "--concurrency", "2"]
        assert main([*argv, "--request-count", "4", "--no-probe", "--out", str(out)]) == 1
    assert "No request succeeded" in capfd.readouterr().out
    summary = run_json(out)
    assert summary["counts"]["by_outcome"] == {"http_status": summary["counts"]["finished"]}
    assert summary["errors"][0]["status"] == 503
    lines = (out / "aiperf_artifacts/profile_export.jsonl").read_text().splitlines()
    assert all(json.loads(line)["error"]["code"] == 503 for line in lines)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--api-key", "wrong-key-0123456789"], "refuses the key"),
        (["--api-key", KEY, "--model", "other"], "'other' is not served; served: simulated"),
        (["--api-key", KEY, "--model", "simulated", "--model", "other"], "'other' is not served"),
        (["--api-key", KEY, "--reset-cache", "--endpoint-path", "/v1/nothing"], "--endpoint-path"),
        (["--api-key", KEY, "--max-context", "auto"], "does not state its context window"),
    ],
)
def test_a_server_that_is_not_what_the_run_needs(
    server: str, corpus: Path, tmp_path: Path, argv: list[str], said: str
) -> None:
    out = tmp_path / "run"
    command = ["replay", "--url", server, "--corpus", str(corpus), "--out", str(out), *argv]
    error = io.StringIO()
    with contextlib.redirect_stderr(error):
        assert main(command) == 3
    assert said in error.getvalue()
    assert KEY not in error.getvalue()
    assert not out.exists()


def test_nobody_listens(corpus: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        argv = ["replay", "--url", url, "--corpus", str(corpus), "--out", str(tmp_path / "run")]
        assert main(argv) == 3
    error = capfd.readouterr().err
    assert url in error
    assert "--wait-ready" in error
    assert not (tmp_path / "run").exists()


def test_context_filter(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    corpus = tmp_path / "mixed.jsonl"
    synthesize(6, 3, corpus)
    peaks = sorted(open_corpus(corpus).peak_tokens(i) for i in range(6))
    window = peaks[0] + 64
    fit = sum(peak + 1 <= window for peak in peaks)  # the marker is one word here
    assert 0 < fit < 6
    argv = ["replay", "--corpus", str(corpus), "--concurrency", "1", "--request-count", "2", "--no-probe"]
    with ChildServer(CHILD_MODULE, [*SIM, "--max-model-len", str(window)]) as child:
        argv += ["--url", child.url]
        assert main([*argv, "--out", str(tmp_path / "refused")]) == 3
        assert "--max-context auto leaves out what does not fit" in capfd.readouterr().err
        assert main([*argv, "--max-context", "auto", "--out", str(tmp_path / "run")]) == 0
    run = run_json(tmp_path / "run", "run.json")
    assert run["corpus"]["traces"] == fit
    assert run["corpus"]["left_out"] == {"max_context": 6 - fit}


def test_a_run_that_is_reproduced_has_the_same_ids(server: str, corpus: Path, tmp_path: Path) -> None:
    argv = ["replay", "--url", server, "--corpus", str(corpus), "--concurrency", "1", "--request-count", "3"]
    argv += ["--api-key", KEY, "--no-probe", "--ui", "none"]
    ids = []
    for name, run_id in (("a", "X"), ("b", "X"), ("c", "Y")):
        assert main([*argv, "--run-id", run_id, "--out", str(tmp_path / name)]) == 0
        lines = (tmp_path / name / "aiperf_artifacts/profile_export.jsonl").read_text().splitlines()
        ids.append(sorted(json.loads(line)["metadata"]["x_request_id"] for line in lines))
    assert ids[0] == ids[1] != ids[2]


def test_a_disk_that_fails_makes_the_run_unusable(
    server: str,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("agentx_engine.artifacts.recorder.LineWriter", partial(LineWriter, write=full))
    out = tmp_path / "run"
    argv = ["replay", "--url", server, "--corpus", str(corpus), "--concurrency", "2", "--request-count", "4"]
    assert main([*argv, "--api-key", KEY, "--model", "simulated", "--out", str(out)]) == 1
    assert "records are missing from the files" in capfd.readouterr().out
    assert run_json(out)["counts"]["succeeded"] == 4


def test_a_defect_of_ours_leaves_a_whole_folder(
    server: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object) -> None:
        raise ZeroDivisionError(f"oops {KEY}")

    monkeypatch.setattr("agentx_engine.replay.engine.Replay.run", broken)
    out, error = tmp_path / "run", io.StringIO()
    argv = ["replay", "--url", server, "--corpus", str(corpus), "--api-key", KEY, "--no-probe"]
    with contextlib.redirect_stderr(error):
        assert main([*argv, "--out", str(out)]) == 4
    assert "ZeroDivisionError" in error.getvalue()
    assert "defect of agentx-engine" in error.getvalue()
    assert run_json(out)["ended_by"] == "client_error"
    assert "ZeroDivisionError" in run_json(out, "run.json")["error"]
    for text in (error.getvalue(), *texts(out).values()):
        assert KEY not in text


def test_a_summary_that_cannot_be_written_is_still_shown(
    server: str,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    write_json = RunFolder.write_json

    def full(self: RunFolder, name: str, value: object) -> Path:
        if name == "summary.json":
            raise OSError(28, "No space left on device")
        return write_json(self, name, value)

    monkeypatch.setattr(RunFolder, "write_json", full)
    argv = ["replay", "--url", server, "--corpus", str(corpus), "--api-key", KEY, "--no-probe"]
    assert main([*argv, "--concurrency", "1", "--request-count", "2", "--out", str(tmp_path / "run")]) == 1
    shown = capfd.readouterr()
    assert "2 succeeded" in shown.out
    assert "summary.json cannot be written: No space left on device" in shown.err


def test_a_folder_in_use_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old").touch()
    assert main(["replay", "--out", str(tmp_path)]) == 2
    assert "is not empty" in capfd.readouterr().err


def test_a_broken_trace_is_named(server: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(
        '{"id": "t1", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "requests": [{"t": "x"}]}'
    )
    out = tmp_path / "run"
    argv = ["replay", "--url", server, "--api-key", KEY, "--model", "simulated", "--corpus", str(bad)]
    assert main([*argv, "--out", str(out), "--concurrency", "1"]) == 2
    assert "bad.json" in capfd.readouterr().err


@pytest.fixture(autouse=True)
def hangup_is_not_ignored() -> Iterator[None]:
    """Under nohup, and on some CI runners, SIGHUP is ignored, and children would inherit that."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def replay_process(corpus: Path, out: Path, *argv: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-P",
        "-m",
        "agentx_engine",
        "replay",
        "--corpus",
        str(corpus),
        "--concurrency",
        "2",
    ]
    return subprocess.Popen(
        [*command, "--duration", "60", "--out", str(out), *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGINT] * 2, [signal.SIGHUP]])
def test_interrupted_before_the_run(corpus: Path, tmp_path: Path, signals: list[signal.Signals]) -> None:
    out = tmp_path / "run"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        process = replay_process(corpus, out, "--url", url, "--wait-ready", "600")
        try:
            while not (out / "aiperf_artifacts").exists():
                assert process.poll() is None, process.communicate()
            for number in signals:
                process.send_signal(number)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert not out.exists()


def test_interrupted_between_preflight_and_the_first_request(
    server: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """run.json and the file of the records are there by then, and the cancellation may be swallowed."""
    entered = NativeTransport.__aenter__

    async def interrupted(self: NativeTransport) -> NativeTransport:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(30)
        return await entered(self)

    monkeypatch.setattr(NativeTransport, "__aenter__", interrupted)
    argv = ["replay", "--url", server, "--corpus", str(corpus), "--api-key", KEY, "--no-probe"]
    assert main([*argv, "--out", str(tmp_path / "run")]) == 130
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("begun", [False, True])
def test_an_error_of_the_user_that_the_run_finds(
    server: str, corpus: Path, tmp_path: Path, begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No defect of ours. Before the first request nothing stays; later everything does."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise UserError("the words are unfit")

    monkeypatch.setattr(f"agentx_engine.cli.session.{'Replay.run' if begun else 'CorpusTrees'}", refuse)
    out, said = tmp_path / "run", io.StringIO()
    argv = ["replay", "--url", server, "--corpus", str(corpus), "--api-key", KEY, "--no-probe"]
    with contextlib.redirect_stderr(said):
        assert main([*argv, "--out", str(out)]) == 2
    error = said.getvalue()
    assert "error: the words are unfit" in error
    assert "defect" not in error
    assert "Traceback" not in error
    assert out.exists() is begun
    if begun:
        assert run_json(out, "run.json")["error"] == "the words are unfit"


@pytest.mark.parametrize("signals", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_interrupted(corpus: Path, tmp_path: Path, number: signal.Signals, signals: int) -> None:
    """Its own simulated server. Once: drain and write; twice: write at once. The folder is whole."""
    out = tmp_path / "run"
    process = replay_process(corpus, out)
    records = out / "aiperf_artifacts/profile_export.jsonl"
    try:
        while not (records.exists() and records.stat().st_size):
            assert process.poll() is None, process.communicate()
        for _ in range(signals):
            process.send_signal(number)
        shown, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    summary = run_json(out)
    assert summary["interrupted"] is True
    assert summary["ended_by"] in ("interrupted", "aborted")
    assert (
        len(records.read_text().splitlines())
        == summary["counts"]["finished"] - summary["counts"]["cancelled"]
    )
    assert "no --url: replaying against a simulated server" in shown
    assert str(out) in shown
    assert "Traceback" not in errors

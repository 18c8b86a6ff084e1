"""The whole path: trace files, `replay`, the wire, the simulated server and its log, the files of the run.

AGENTX_PATH_SECONDS sets how long the run on recorded sessions lasts (default 8). Their pauses are minutes
long and are not shortened, so a short run sees the beginnings of them only; the quickened copies and the
generated corpus reach joins, barriers and the next trees within seconds.
"""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from support.path_runs import FAST, SIM, PathRun, finished, quicken, replaying, run_path, seconds
from support.run_files import read_run

from agentx_engine.corpus.synth import synthesize
from agentx_engine.sim.process import ChildServer

SECONDS = seconds("AGENTX_PATH_SECONDS", 8)
GRACE_S = 20
# Recorded answers of thousands of tokens in a moment, at few events.
QUICK = (*FAST, "--itl-ms", "0.03", "--tokens-per-event", "64")


@pytest.mark.timeout(SECONDS + 200)
def test_real_traces(shared: Path, tmp_path: Path) -> None:
    """All recorded sessions as they are, 16 lanes."""
    argv = ("--concurrency", "16", "--duration", str(SECONDS), "--grace", str(GRACE_S))
    done = run_path(shared / "traces", tmp_path, *argv, limit_s=SECONDS + 100)
    found = done.assert_clean()
    assert done.run.summary["ended_by"] == "duration"
    assert done.run.summary["counts"]["failed"] == 0
    assert found.checked["completion tokens"] >= 16
    assert found.checked["the server saw the pause"] > 0
    print(json.dumps(found.checked, indent=1))


@pytest.fixture(scope="module")
def quickened(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Subagents, hidden agents that run beside the root, whole sessions, hundreds of times as fast."""
    folder = tmp_path_factory.mktemp("quickened")
    for name, times in (
        ("0053", 3000),
        ("0277", 300),
        ("0274", 900),
        ("0505", 90),
        ("0546", 90),
        ("0103", 10),
    ):
        quicken(shared / f"traces/trace_{name}.json", folder / f"trace_{name}.json", times=times)
    return folder


@pytest.mark.timeout(200)
@pytest.mark.parametrize("bust", ["first-turn-prefix", "none"])
def test_quickened_traces(quickened: Path, tmp_path: Path, bust: str) -> None:
    """Real trees to their end: joins, barriers, and lanes which go on to the next tree."""
    argv = ("--concurrency", "5", "--duration", "8", "--cache-bust", bust)
    done = run_path(quickened, tmp_path, *argv, sim=QUICK, limit_s=100)
    found = done.assert_clean()
    counts = done.run.summary["counts"]
    assert counts["failed"] == 0
    assert counts["trees_finished"] >= 2
    assert found.checked["joins"] > 0
    assert found.checked["barriers"] > 0
    assert found.checked["next tree at the end of the last"] > 0


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("generated") / "small.jsonl"
    synthesize(8, 7, path)
    return path


@pytest.mark.timeout(200)
@pytest.mark.parametrize("connections", ["pooled", "session", "request"])
def test_generated_corpus(generated: Path, tmp_path: Path, connections: str) -> None:
    """Subagents, joins and recycled traces on lanes of which there are more than traces."""
    argv = ("--concurrency", "12", "--duration", "4", "--connections", connections)
    done = run_path(generated, tmp_path, *argv, limit_s=100)
    found = done.assert_clean()
    counts = done.run.summary["counts"]
    assert counts["failed"] == 0
    assert counts["trees_started"] > 12
    assert found.checked["joins"] > 0
    assert any(tree.play > 0 for tree in done.run.trees(done.plans))
    assert {line.metadata["source_kind"] for line in done.run.lines} >= {"weka_main", "weka_subagent"}


@pytest.mark.timeout(200)
def test_a_server_with_faults(generated: Path, tmp_path: Path) -> None:
    """Failed turns have ended too: joins and pauses go on from their ends, nothing is lost or sent twice."""
    faults = ("--error-rate", "0.2", "--error-as", "event", "--stall-rate", "0.1", "--stall-ms", "300")
    argv = ("--concurrency", "8", "--duration", "5")
    done = run_path(generated, tmp_path, *argv, sim=(*FAST, *faults), limit_s=100)
    found = done.assert_clean()
    outcomes = done.run.summary["counts"]["by_outcome"]
    assert outcomes["server_error_event"] > 0
    assert set(outcomes) <= {"success", "server_error_event"}
    assert found.checked["joins"] > 0


def interrupted(corpus: Path, folder: Path, signals: int) -> PathRun:
    """Signals while answers of several seconds are streamed."""
    slow = (
        "--ttft-ms",
        "2",
        "--itl-ms",
        "50",
        "--prefill-rate",
        "1000000",
        "--log",
        str(folder / "server.jsonl"),
    )
    argv = ("--concurrency", "6", "--duration", "100", "--no-probe")
    with (
        ChildServer(SIM, slow) as server,
        replaying(server.url, corpus, folder / "run", *argv) as process,
    ):
        records = folder / "run/aiperf_artifacts/profile_export.jsonl"
        while not (records.exists() and records.read_bytes().count(b"\n") >= 3):
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        for _ in range(signals):
            process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        shown, errors = process.communicate(timeout=60)
    return finished(process, shown, errors, corpus, folder)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("signals", [1, 2])
def test_interrupted(generated: Path, tmp_path: Path, signals: int) -> None:
    """Ctrl-C: once lets what is in flight return for a moment, twice does not. The folder is whole."""
    done = interrupted(generated, tmp_path, signals)
    done.assert_clean(status=130)
    summary = done.run.summary
    assert summary["interrupted"] is True
    assert summary["counts"]["cancelled"] > 0
    assert done.run.facts["state"] == "finished"
    # What was cancelled on the way ended at the server because the client was gone.
    by_id = done.run.by_id
    cut = [line for line in done.log if line.cut]
    assert {by_id[line.request_id].extra["outcome"] for line in cut if line.request_id} <= {"cancelled"}
    assert len(cut) <= summary["counts"]["cancelled"]


@pytest.mark.timeout(120)
def test_the_server_is_killed(generated: Path, tmp_path: Path) -> None:
    """Its streams end without an end: truncated, never a success; the run goes on and says what happened."""
    argv = ("--concurrency", "4", "--duration", "6", "--no-probe")
    slow = ("--ttft-ms", "2", "--itl-ms", "20", "--prefill-rate", "1000000")
    with (
        ChildServer(SIM, slow) as server,
        replaying(server.url, generated, tmp_path / "run", *argv) as process,
    ):
        records = tmp_path / "run/aiperf_artifacts/profile_export.jsonl"
        while not (records.exists() and records.stat().st_size):
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        os.kill(server.pid, signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    run = read_run(tmp_path / "run")
    outcomes = run.summary["counts"]["by_outcome"]
    assert outcomes["success"] > 0
    assert outcomes.get("connect_error", 0) > 0
    assert set(outcomes) <= {"success", "truncated", "reset", "connect_error", "cancelled"}
    assert run.summary["ended_by"] == "duration"
    assert len(run.lines) == run.summary["counts"]["finished"]


def test_a_killed_client_leaves_whole_records(generated: Path, tmp_path: Path) -> None:
    """SIGKILL: what was written before stays readable, line by line, but for the last one."""
    with (
        ChildServer(SIM, FAST) as server,
        replaying(server.url, generated, tmp_path / "run", "--concurrency", "4") as process,
    ):
        records = tmp_path / "run/aiperf_artifacts/profile_export.jsonl"
        while not (records.exists() and records.read_bytes().count(b"\n") >= 5):
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.kill()
        process.communicate(timeout=60)
    lines = records.read_text().split("\n")
    assert all(json.loads(line)["metadata"]["x_request_id"] for line in lines[:-1])
    assert json.loads((tmp_path / "run/run.json").read_text())["run_id"]

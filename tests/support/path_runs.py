"""Whole runs for tests of the whole path: `replay` as a process, against `sim` as another with its log."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.run_checks import Findings, check_cache, check_run
from support.run_files import Plan, Run, read_plans, read_run

from agentx_engine.sim.process import ChildServer
from agentx_engine.sim.requestlog import RequestRecord as ServerLine
from agentx_engine.sim.requestlog import read_request_log

SIM = "agentx_engine.sim.server_main"
# A fast server of which nothing is forgotten, so that what a cache should hold is known.
FAST = ("--ttft-ms", "2", "--itl-ms", "2", "--prefill-rate", "1000000", "--cache-tokens", "1000000000")
STOP_S = 60.0


def seconds(variable: str, default: float) -> float:
    return float(os.environ.get(variable) or default)


@contextlib.contextmanager
def replaying(url: str, corpus: Path, out: Path, *argv: str) -> Iterator[subprocess.Popen[str]]:
    """`agentx-engine replay` as a process of its own, which does not outlive the block."""
    command = [sys.executable, "-P", "-m", "agentx_engine", "replay", "--url", url, "--corpus", str(corpus)]
    process = subprocess.Popen(
        [*command, "--out", str(out), "--ui", "none", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@dataclass
class PathRun:
    """What a run left behind, and what the server saw of it."""

    status: int
    shown: str
    errors: str
    run: Run
    plans: dict[str, Plan]
    log: list[ServerLine]

    def findings(self) -> Findings:
        found = check_run(self.run, self.plans, self.log)
        check_cache(self.run, self.plans, self.log, found)
        return found

    def assert_clean(self, *, status: int = 0) -> Findings:
        """The exit status, no defect of the client's own, and all checks; returns what was checked."""
        assert self.status == status, self.errors
        assert "Traceback" not in self.errors
        assert self.run.summary["client"]["defects"] == {}
        assert self.run.replay["end_reason"] != "client_error"
        found = self.findings()
        assert not found.problems, str(found)
        return found


def run_path(corpus: Path, folder: Path, *argv: str, sim: tuple[str, ...] = FAST, limit_s: float) -> PathRun:
    """One replay from its start to its end; `folder` takes its files and the server's log."""
    log, out = folder / "server.jsonl", folder / "run"
    with (
        ChildServer(SIM, [*sim, "--log", str(log)]) as server,
        replaying(server.url, corpus, out, *argv) as process,
    ):
        shown, errors = process.communicate(timeout=limit_s)
    return finished(process, shown, errors, corpus, folder)


def finished(process: subprocess.Popen[str], shown: str, errors: str, corpus: Path, folder: Path) -> PathRun:
    """Reads the files of a run; the server has to have stopped, or its log is not complete."""
    assert (folder / "run" / "summary.json").exists(), errors
    run, log = read_run(folder / "run"), read_request_log(folder / "server.jsonl")
    return PathRun(process.returncode, shown, errors, run, read_plans(corpus), log)


def quicken(source: Path, target: Path, *, times: float) -> Path:
    """A copy of a trace file `times` as fast: the same prompts and the same tree in seconds, not hours."""
    trace = json.loads(source.read_bytes())
    for entry in trace["requests"]:
        entry["t"] /= times
        if "duration_ms" in entry:
            entry["duration_ms"] = None if entry["duration_ms"] is None else entry["duration_ms"] / times
        for request in entry.get("requests", [entry]):
            if request is not entry:
                request["t"] /= times
            if request.get("api_time"):
                request["api_time"] /= times
    target.write_text(json.dumps(trace))
    return target

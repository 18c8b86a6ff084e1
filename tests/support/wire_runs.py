"""Captured runs of the official client, and the same runs by this engine against a recording server.

`Capture.read` finds a capture and its options; `play` translates the options, replays the same traces, and
reads what arrived. Recorded pauses, idle caps, and the server's own times may all be shortened by the same
`speed`: what is sent, its order, and the way trees are dealt do not depend on it. A play is stopped as soon
as every tree is there that the capture shows complete, however long this machine takes for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from support.path_runs import quicken, replaying
from support.run_files import FILES
from support.wire_compare import Plan, Wire, read_plan, read_wire

from agentx_engine.sim.process import ChildServer

TESTS = Path(__file__).resolve().parents[1]
RUNS = ("full-c4", "nobust-c2", "warm-c3", "pace-c4")
POLL_S = 0.1

SYSTEM_CAP_S = 10.0  # of the captured client, unless its command line says otherwise


@dataclass
class Capture:
    """`options`: flag -> value of the captured command line. `inputs`: the trace files, in order."""

    name: str
    options: dict[str, str]
    ttft_ms: float
    itl_ms: float
    inputs: list[Path]
    plans: dict[str, Plan]
    wire: Wire

    @classmethod
    def read(cls, shared: Path, name: str) -> Capture:
        golden = shared / "golden"
        files = golden / "wire"
        command = json.loads((files / f"{name}.cmd.json").read_bytes())
        flags = command["cmd"]
        options = {
            flag: value for flag, value in zip(flags, [*flags[1:], ""], strict=True) if flag[:2] == "--"
        }
        options.setdefault("--scenario", "agentx")
        plans = {
            plan.trace: plan for plan in (read_plan(golden / "dev" / file) for file in command["inputs"])
        }
        wire = read_wire(
            files / f"{name}.wire.jsonl.gz",
            [files / f"{name}.profile_export.jsonl.gz"],
            plans,
            run_id=json.loads((files / f"{name}.profile_export_aiperf.json").read_bytes())["benchmark_id"],
            lanes=int(options["--concurrency"]),
            marked=options.get("--cache-bust") != "none",
        )
        inputs = [shared / "traces" / file for file in command["inputs"]]
        return cls(name, options, command["ttft_ms"], command["itl_ms"], inputs, plans, wire)

    def number(self, flag: str) -> float | None:
        value = self.options.get(flag)
        return None if value is None else float(value)

    def flags(self, speed: float) -> list[str]:
        """The options of this engine that ask for the same run, `speed` times as fast."""
        found = ["--scenario", self.options["--scenario"], "--unsafe-override", "--compat", "harness"]
        same = ("--concurrency", "--model", "--cache-bust", "--trajectory-start-min-ratio")
        for flag in (*same, "--trajectory-start-max-ratio"):
            if flag in self.options:
                found += [flag, self.options[flag]]
        found += ["--seed", self.options["--random-seed"]]
        caps = {"--system-idle-gap-cap": self.number("--system-idle-gap-cap-seconds") or SYSTEM_CAP_S}
        tree_cap = self.number("--trace-idle-gap-cap-seconds")
        if tree_cap is not None:
            caps["--trace-idle-gap-cap"] = tree_cap
        for flag, seconds in caps.items():
            found += [flag, f"{seconds / speed:g}"]
        return found


@dataclass
class Played:
    """This engine's run: what arrived, and its own documents."""

    wire: Wire
    facts: dict[str, Any]  # run.json
    summary: dict[str, Any]
    speed: float

    @property
    def offset_ns(self) -> int:
        """Exported wall times minus CLOCK_MONOTONIC."""
        return int(self.facts["wall_pairing"]["offset_ns"])

    @property
    def waited(self) -> float:
        """Share of the time for which the sending thread was ready and had no core: others had it."""
        threads = self.summary["verdict"]["inputs"]["threads"]
        return float(max(thread["waiting"] or 0.0 for thread in threads if thread["name"] == "reactor"))


def play(capture: Capture, folder: Path, *, speed: float, limit_s: float) -> Played:
    """Replays the capture's traces in an own process against a recording server in another.

    Within `support_on_path`; from any thread.
    """
    corpus, log, out = folder / "traces", folder / "wire.jsonl", folder / "run"
    corpus.mkdir()
    for path in capture.inputs:
        if speed == 1:
            shutil.copy(path, corpus)
        else:
            quicken(path, corpus / path.name, times=speed)
    server_flags = ["--ttft-ms", f"{capture.ttft_ms / speed:g}", "--itl-ms", f"{capture.itl_ms / speed:g}"]
    with (
        ChildServer("support.recording_server", ["--log", str(log), *server_flags]) as server,
        replaying(
            server.url, corpus, out, *capture.flags(speed), "--no-probe", "--duration", f"{limit_s:g}"
        ) as process,
    ):
        watch = Watch(out / "aiperf_artifacts" / FILES[0], capture.wire)
        until = time.monotonic() + limit_s
        while process.poll() is None and time.monotonic() < until and not watch.enough():
            time.sleep(POLL_S)
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    if not (out / "summary.json").exists() or process.returncode != 130:
        raise AssertionError(f"replay ended with {process.returncode}: {errors}")
    facts, summary = (json.loads((out / name).read_bytes()) for name in ("run.json", "summary.json"))
    exports = [path for path in ((out / "aiperf_artifacts" / name) for name in FILES) if path.exists()]
    marked = capture.options.get("--cache-bust") != "none"
    wire = read_wire(
        log, exports, capture.plans, run_id=facts["run_id"], lanes=capture.wire.lanes, marked=marked
    )
    return Played(wire, facts, summary, speed)


class _Metadata(msgspec.Struct):
    source_trace_id: str
    root_correlation_id: str


class _Trace(msgspec.Struct):
    play: int


class _Line(msgspec.Struct):
    metadata: _Metadata
    trace_data: _Trace


class Watch:
    """Follows an export while it is written, until each tree that a capture shows complete has as many
    requests in it as there."""

    def __init__(self, export: Path, wire: Wire) -> None:
        self._export = export
        self._at = 0
        self._wanted = {(t.plan.trace, t.play): len(t.sent) for t in wire.trees if t.complete}
        self._seen: Counter[tuple[str, int]] = Counter()
        self._decoder = msgspec.json.Decoder(_Line)

    def enough(self) -> bool:
        if not self._export.exists():
            return False
        with self._export.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        for text in whole.splitlines():
            line = self._decoder.decode(text)
            self._seen[line.metadata.source_trace_id, line.trace_data.play] += 1
        return all(self._seen[tree] >= count for tree, count in self._wanted.items())


@contextlib.contextmanager
def support_on_path() -> Iterator[None]:
    """Child processes find `support` meanwhile."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), *([before] if before else [])])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before

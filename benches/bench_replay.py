"""Whole replays, as a user runs them: Python's CPU per request, start-up time, peak memory.

    python benches/bench_replay.py cost                      # CPU per request, records included
    python benches/bench_replay.py start --traces FOLDER     # first request and memory, FOLDER x 15
    python benches/bench_replay.py start --traces FOLDER --gigabytes 2

`cost` replays a made corpus (20,000 to 60,000 tokens of prompt, 444 of output) against the metronome with
two different request counts; the slope between the two leaves start-up and end out. The reference in the
same run is the CPU of the reactor thread for the same requests.
`start` copies the traces under new ids, starts `agentx-engine replay` on them with 64 lanes, and takes the
time from the start of the process to the arrival of its first replayed request at the simulated server.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from agentx_engine.sim import start_simulated_server
from agentx_engine.sim.process import ChildServer

TURNS = 20
OUT = 444
BLOCK = 64


def made_corpus(path: Path, sessions: int) -> None:
    """Sessions whose prompt grows by 2,048 tokens a turn, with 50 ms between turns."""
    with path.open("w") as file:
        for s in range(sessions):
            requests = []
            for k in range(TURNS):
                blocks = 320 + 32 * k
                requests.append(
                    {
                        "t": k * 1.05,
                        "type": "n",
                        "model": "m",
                        "in": blocks * BLOCK,
                        "out": OUT,
                        "hash_ids": list(range(blocks)),
                        "api_time": 1.0,
                    }
                )
            trace = {"id": f"made-{s}", "models": ["m"], "block_size": BLOCK, "hash_id_scope": "local"}
            file.write(json.dumps(trace | {"requests": requests}) + "\n")


def replay(corpus: Path, out: Path, *options: str) -> dict[str, Any]:
    command = [
        sys.executable,
        "-P",
        "-m",
        "agentx_engine",
        "replay",
        "--corpus",
        str(corpus),
        "--out",
        str(out),
    ]
    done = subprocess.run([*command, *options, "--ui", "none"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"replay failed with {done.returncode}:\n{done.stderr}")
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


def cost(lanes: int, counts: list[int]) -> None:
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "made.jsonl"
        made_corpus(corpus, lanes)
        used = []
        with ChildServer(
            "agentx_engine.sim.truth_main",
            ["metronome", "--interval-us", "2000", "--ttft-us", "20000"],
            cpus=[cores[0]],
        ) as server:
            for count in counts:
                os.sched_setaffinity(0, {cores[-1]})
                out = Path(folder) / f"run{count}"
                limits = ["--concurrency", str(lanes), "--request-count", str(count), "--no-probe"]
                summary = replay(corpus, out, "--url", server.url, "--model", "metronome", *limits)
                client = summary["client"]
                finished = summary["counts"]["finished"]
                used.append((finished, client["process"]["cpu_s"], client["reactor_cpu_s"]))
                os.sched_setaffinity(0, set(cores))
    (n1, all1, reactor1), (n2, all2, reactor2) = used
    reactor = (reactor2 - reactor1) / (n2 - n1) * 1e6
    python = (all2 - all1) / (n2 - n1) * 1e6 - reactor
    print(
        f"{n1} and {n2} requests of {OUT} tokens, {lanes} lanes: Python {python:.0f} us/request "
        f"(budget 300), reactor thread {reactor:.0f} us/request ({reactor / OUT:.2f} us/token), "
        f"ratio {python / reactor:.2f}"
    )


def copies(traces: Path, folder: Path, times: int) -> None:
    for path in sorted(traces.glob("*.json")):
        trace = path.read_bytes()
        name = json.loads(trace)["id"]
        for i in range(times):
            copy = trace.replace(b'"id":"%b"' % name.encode(), b'"id":"%b-%d"' % (name.encode(), i), 1)
            (folder / f"{path.stem}-{i:04d}.json").write_bytes(copy)


def start(traces: Path, times: int, gigabytes: float, lanes: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "corpus"
        folder.mkdir()
        size = sum(p.stat().st_size for p in traces.glob("*.json"))
        copies(traces, folder, times if not gigabytes else max(1, round(gigabytes * 1e9 / size)))
        files = list(folder.iterdir())
        total = sum(p.stat().st_size for p in files)
        corpus = folder
        if gigabytes:
            corpus = Path(name) / "corpus.jsonl"
            with corpus.open("wb") as out:
                for path in sorted(files):
                    out.write(path.read_bytes().strip() + b"\n")
                    path.unlink()
        with corpus.open("rb") if corpus.is_file() else tempfile.TemporaryFile() as file:
            while file.read(1 << 24):  # page cache warm
                pass
        log = Path(name) / "log.jsonl"
        with start_simulated_server(log=log, ttft_ms=50, itl_ms=20) as server:
            began = time.monotonic_ns()
            summary = replay(
                corpus,
                Path(name) / "run",
                *(
                    "--url",
                    server.url,
                    "--concurrency",
                    str(lanes),
                    "--duration",
                    str(seconds),
                    "--grace",
                    "1",
                ),
                "--no-probe",
            )
        first = min(
            line["arrival_ns"]
            for line in map(json.loads, log.read_text().splitlines())
            if line["correlation_id"] is not None
        )
    ready = (first - began) / 1e9
    peak = summary["client"]["process"]["max_rss_bytes"]
    print(
        f"{len(files)} traces, {total / 1e6:,.0f} MB: first request after {ready:.2f} s (budget 5; "
        f"{total / 1e6 / ready:,.0f} MB/s), peak memory {peak / 1e6:,.0f} MB with {lanes} lanes "
        f"(budget 600), "
        f"{summary['counts']['finished']} requests in {seconds:g} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="cost, start-up and memory of whole replays")
    commands = parser.add_subparsers(dest="command", required=True)
    of_cost = commands.add_parser("cost")
    of_cost.add_argument("--lanes", type=int, default=32)
    of_cost.add_argument("--requests", type=int, nargs=2, default=[200, 1000])
    of_start = commands.add_parser("start")
    of_start.add_argument("--traces", type=Path, required=True)
    of_start.add_argument("--times", type=int, default=15)
    of_start.add_argument("--gigabytes", type=float, default=0.0, help="one .jsonl of this size instead")
    of_start.add_argument("--lanes", type=int, default=64)
    of_start.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    if args.command == "cost":
        cost(args.lanes, args.requests)
    else:
        start(args.traces, args.times, args.gigabytes, args.lanes, args.seconds)


if __name__ == "__main__":
    main()

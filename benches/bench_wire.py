"""Pacing: how long after the instant that the plan wants a request is sent, here and by the official client.

    python benches/bench_wire.py [--shared FOLDER] [--speed 10] [--runs 3]

The plan's instants are computed from what a recording server saw: the end of the turn before plus the
recorded pause; for the first request of a recycled lane, the end of the last tree. The reference is the
capture `pace-c4`, the official client on an idle machine with the same traces and server times; its figures
are printed beside ours. `--speed` shortens recorded pauses and the server's times alike, so that one run
takes seconds; lateness is not scaled. `--speed 1` is the captured run (two minutes each).

    dispatch   our first byte by our own stamp, minus the plan: what is promised to be within 2 ms at p99
    arrival    first byte as the server's event loop noticed it, minus the plan: all that there is of the
               official client, and with ours the fair comparison; the server's own delay is in it

Everything runs on this machine, client and server: do not run anything else beside it.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.wire_compare import instants  # noqa: E402
from support.wire_runs import Capture, Played, play, support_on_path  # noqa: E402

RUN = "pace-c4"
PROMISE_MS = 2.0


def line(name: str, values_ns: list[int]) -> str:
    """One row: count, p50, p99, max, jitter (p99 - p1)."""
    ms = np.asarray(values_ns) / 1e6
    p1, p50, p99 = (float(np.percentile(ms, p)) for p in (1, 50, 99))
    return f"{name:42} {len(ms):6} {p50:9.3f} {p99:9.3f} {ms.max():9.3f} {p99 - p1:9.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shared", type=Path, default=ROOT.parent / "shared", help="with traces/ and golden/"
    )
    parser.add_argument("--speed", type=float, default=10.0)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    if not (args.shared / "golden" / "wire").is_dir():
        raise SystemExit(f"{args.shared} has no golden/wire: give --shared")
    capture = Capture.read(args.shared, RUN)
    played: list[Played] = []
    with support_on_path(), tempfile.TemporaryDirectory() as folder:
        for number in range(args.runs):
            into = Path(folder) / str(number)
            into.mkdir()
            played.append(play(capture, into, speed=args.speed, limit_s=300))

    print(f"{platform.machine()}, {os.cpu_count()} cores, kernel {platform.release()}, speed {args.speed:g}")
    waited = ", ".join(f"{run.waited:.2%}" for run in played)
    print(f"load average {os.getloadavg()[0]:.2f}; the sending thread was ready without a core for {waited}")
    print(f"\n{'ms after the plan':42} {'count':>6} {'p50':>9} {'p99':>9} {'max':>9} {'p99-p1':>9}")
    reference = instants(capture.wire)
    ours = [(run, instant) for run in played for instant in instants(run.wire, args.speed)]
    for kind, title in (("turn", "turn after its pause"), ("tree", "first request of the next tree")):
        mine = [(run, instant) for run, instant in ours if instant.kind == kind]
        arrived = [instant.arrived_late_ns for _, instant in mine]
        theirs = [instant.arrived_late_ns for instant in reference if instant.kind == kind]
        print(title)
        print(line("  agentx-engine, dispatch", [i.sent_late_ns(run.offset_ns) for run, i in mine]))
        print(line("  agentx-engine, arrival", arrived))
        print(line("  official client, arrival", theirs))
        print(f"  official / agentx-engine, arrival p50: {np.median(theirs) / np.median(arrived):.1f}")
    every = [instant.sent_late_ns(run.offset_ns) for run, instant in ours]
    print("all")
    print(line("  agentx-engine, dispatch", every))
    p99 = float(np.percentile(every, 99)) / 1e6
    kept = "within" if p99 <= PROMISE_MS else "BEYOND"
    print(f"\np99 of all dispatches: {p99:.3f} ms, {kept} {PROMISE_MS:g} ms")


if __name__ == "__main__":
    main()

"""What the instruments themselves cost and err: the metronome on one core, the floor on another.

    python benches/bench_truth.py [--seconds 5] [--cores 0,1]

For each number of streams: CPU of both per event, reads per event, events sent and taken against those
offered by the schedule, the metronome's lateness, and the error of the user-space and of the kernel's
receive stamp against the `sent_ns` in the events. CPU and stamps come from separate runs, since stamping
costs. "busy" is what other processes took of the two cores meanwhile; rows with more than a few percent
say little. The last row asks for more than one core can send.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentx_engine.sim.process import Child, ChildServer

MODULE = "agentx_engine.sim.truth_main"
TOKENS = 444
INTERVAL_US = 10_000
WARMUP_S = 2.0


def busy_s(cores: list[int]) -> float:
    """Seconds that these cores have spent on anything but idling, since boot."""
    total = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, _, values = line.partition(" ")
        if name in {f"cpu{core}" for core in cores}:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, values.split()[:8])
            total += user + nice + system + irq + softirq + steal
    return total / os.sysconf("SC_CLK_TCK")


def one_run(streams: int, interval_us: float, stamps: str, options: argparse.Namespace) -> dict[str, Any]:
    """One metronome and one floor; their results, and the share of both cores that others took."""
    server_core, client_core = options.cores
    arguments = ["metronome", "--interval-us", str(interval_us), "--phase", options.phase]
    with ChildServer(MODULE, arguments, cpus=[server_core]) as server:
        arguments = ["floor", "--port", str(server.port), "--streams", str(streams), "--tokens", str(TOKENS)]
        arguments += ["--warmup-s", str(WARMUP_S), "--duration-s", str(options.seconds), "--stamps", stamps]
        before = busy_s(options.cores)
        with Child(MODULE, arguments, cpus=[client_core]) as client:
            floor = client.result(options.seconds + WARMUP_S + 30)
        busy = busy_s(options.cores) - before
        truth = server.stop()
    assert truth is not None
    spent = truth["cpu_s"] + floor["cpu_s"] * (1 + WARMUP_S / options.seconds)
    others = max(0.0, busy - spent) / (2 * (options.seconds + WARMUP_S))
    taken = (floor["events"] + floor["warmup_events"]) / truth["events_offered"]
    return {"truth": truth, "floor": floor, "others": others, "taken": taken}


def table(columns: list[tuple[str, str]], rows: Iterable[dict[str, Any]]) -> None:
    """Prints each row as soon as it is there; a column is its title and the format of its cells."""
    print("  ".join(title for title, _ in columns))
    for row in rows:
        cells = (format(row[title], form).rjust(len(title)) for title, form in columns)
        print("  ".join(cells), flush=True)


COST_COLUMNS = [
    ("streams", "d"),
    ("tokens/s asked", ".0f"),
    ("events/s taken", ".0f"),
    ("sent/offered", ".2%"),
    ("taken/offered", ".2%"),
    ("floor us/event", ".2f"),
    ("user share", ".0%"),
    ("reads/event", ".4f"),
    ("metronome us/event", ".2f"),
    ("late p50 us", ".1f"),
    ("p99 us", ".1f"),
    ("max ms", ".1f"),
    ("busy", ".1%"),
]


def cost_row(streams: int, interval_us: float, options: argparse.Namespace) -> dict[str, Any]:
    run = one_run(streams, interval_us, "none", options)
    truth, floor = run["truth"], run["floor"]
    cells = [
        streams,
        streams * 1e6 / interval_us,
        floor["events_per_s"],
        truth["events_sent"] / truth["events_offered"],
        run["taken"],
        floor["cpu_ns_per_event"] / 1e3,
        floor["cpu_user_s"] / floor["cpu_s"],
        floor["reads_per_event"],
        truth["cpu_s"] * 1e6 / truth["events_sent"],
        truth["lateness_us"]["p50"],
        truth["lateness_us"]["p99"],
        truth["lateness_us"]["max"] / 1e3,
        run["others"],
    ]
    return {title: cell for (title, _), cell in zip(COST_COLUMNS, cells, strict=True)}


STAMP_COLUMNS = [
    ("streams", "d"),
    ("user p50 us", ".1f"),
    ("p99 us", ".1f"),
    ("kernel p50 us", ".1f"),
    ("p99  us", ".1f"),
    ("kernel, one event per read p50 us", ".1f"),
    ("p99   us", ".1f"),
    ("coalesced reads", ".2%"),
    ("busy", ".1%"),
]


def stamp_row(streams: int, options: argparse.Namespace) -> dict[str, Any]:
    run = one_run(streams, INTERVAL_US, "kernel", options)
    floor = run["floor"]
    spreads = [floor[name] for name in ("user_error_us", "kernel_error_us", "kernel_error_single_us")]
    cells = [streams, *(spread[p] for spread in spreads for p in ("p50", "p99"))]
    cells += [floor["coalesced_reads"] / floor["reads"], run["others"]]
    return {title: cell for (title, _), cell in zip(STAMP_COLUMNS, cells, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="counted per run")
    parser.add_argument("--streams", default="100,300,1000", help="numbers of streams")
    parser.add_argument("--cores", default="0,1", help="of the metronome and of the floor")
    parser.add_argument("--phase", default="spread", help="of the streams' ticks: natural, spread, sync")
    options = parser.parse_args()
    options.cores = [int(core) for core in options.cores.split(",")]
    counts = [int(count) for count in options.streams.split(",")]

    cores = "metronome on {}, floor on {}".format(*options.cores)
    print(f"{platform.platform()}, {os.cpu_count()} cores; {cores}")
    print(f"one event per write, {1e6 / INTERVAL_US:g} tokens/s per stream, answers of {TOKENS} tokens\n")
    costs = [(count, INTERVAL_US) for count in counts] + [(counts[-1], INTERVAL_US // 2)]
    table(COST_COLUMNS, (cost_row(*cost, options) for cost in costs))
    print("\nerror of the stamps")
    table(STAMP_COLUMNS, (stamp_row(count, options) for count in counts))


if __name__ == "__main__":
    main()

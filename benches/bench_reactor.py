"""The reactor against the metronome: CPU per token beside the floor's, and the error of the stamps.

    python benches/bench_reactor.py [--streams 300 1000] [--rate 100] [--seconds 10] [--rounds 3] [--json]

The metronome writes one event for each token and puts its own send time into it. It is pinned to the
first core, the client to the second. For each number of streams the floor runs before and after the
reactor, on the same core against the same server; the ratio is against the mean of the two. CPU is the
thread's own (CLOCK_THREAD_CPUTIME_ID); Python's share (submit, pop, new exchanges) is printed apart.
A comparison is valid only if both sides took >= 99.5 % of the offered events and their reads per event
are within 2 %.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import statistics
import sys
import time
from typing import Any

import numpy as np

from agentx_engine.core.clock import now_ns
from agentx_engine.core.exchange import Exchange
from agentx_engine.core.reactor import Reactor
from agentx_engine.core.rope import Rope
from agentx_engine.sim.process import Child, ChildServer

TOKENS = 444
EVENTS_PER_ANSWER = TOKENS + 3  # finish reason, usage, [DONE]
BODY = Rope([b'{"messages":[{"role":"user","content":"' + b"word " * 400 + b'"}],"max_completion_tokens":%d}' % TOKENS])
MS = 1_000_000


def main_thread_cpu_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_THREAD_CPUTIME_ID)


class Client:
    """A closed loop of `streams` requests through one reactor."""

    def __init__(self, port: int, streams: int, interval_ns: int) -> None:
        self.head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: m\r\nContent-Length: %d\r\n\r\n" % len(BODY)
        self.reactor = Reactor([("127.0.0.1", port)])
        start = now_ns() + 100 * MS
        answer_ns = EVENTS_PER_ANSWER * interval_ns
        for i in range(streams):
            self.submit(i, start + i * min(answer_ns, 2_000 * MS) // streams)
        self.kernel: list[np.ndarray] = []
        self.user: list[np.ndarray] = []
        self.flagged: list[np.ndarray] = []
        self.bad = 0

    def submit(self, session: int, due_ns: int) -> None:
        self.reactor.submit(
            Exchange(
                self.head,
                BODY,
                due_ns=due_ns,
                max_tokens=TOKENS,
                session=session,
                keep_user_ns=True,
                keep_sent_ns=True,
                tag=session,
            )
        )

    def run(self, seconds: float, keep: bool) -> None:
        stop = time.monotonic() + seconds
        while (left := stop - time.monotonic()) > 0:
            select.select([self.reactor], [], [], left)
            for exchange in self.reactor.pop():
                self.submit(exchange.tag, now_ns())
                self.bad += exchange.outcome != "success"
                if keep:
                    sent = exchange.token_sent_ns
                    user = exchange.token_user_ns
                    assert sent is not None and user is not None
                    self.kernel.append(exchange.token_ns - sent)
                    self.user.append(user - sent)
                    self.flagged.append(exchange.token_slack_ns)


def percentiles_us(values: np.ndarray) -> dict[str, float]:
    if not len(values):
        return {"p50": float("nan"), "p99": float("nan"), "max": float("nan")}
    p50, p99 = np.percentile(values, [50, 99])
    return {"p50": p50 / 1e3, "p99": p99 / 1e3, "max": values.max() / 1e3}


def run_reactor(port: int, streams: int, rate: float, seconds: float) -> dict[str, Any]:
    client = Client(port, streams, int(1e9 / rate))
    client.run(3.0, keep=False)  # everything is connected and warm
    before, cpu, python, at = client.reactor.counters(), client.reactor.cpu_ns, main_thread_cpu_ns(), now_ns()
    client.run(seconds, keep=True)
    after, cpu2, python2, at2 = client.reactor.counters(), client.reactor.cpu_ns, main_thread_cpu_ns(), now_ns()
    assert cpu is not None and cpu2 is not None
    histograms = client.reactor.histograms()
    client.reactor.close()
    client.reactor.pop()
    events = after["events"] - before["events"]
    requests = after["completed"] - before["completed"]
    offered = streams * rate * (at2 - at) / 1e9
    flagged = np.concatenate(client.flagged) > 0
    kernel = np.concatenate(client.kernel)
    return {
        "events_per_s": events / ((at2 - at) / 1e9),
        "taken": events / offered,
        "reads_per_event": (after["reads"] - before["reads"]) / events,
        "cpu_us_per_event": (cpu2 - cpu) / events / 1e3,
        "python_us_per_request": (python2 - python) / max(requests, 1) / 1e3,
        "flagged_share": float(flagged.mean()),
        "slack_p99_us": histograms["slack"].percentile(99) / 1e3,
        "read_lag_p99_us": histograms["read_lag"].percentile(99) / 1e3,
        "kernel_us": percentiles_us(kernel[~flagged]),
        "kernel_all_us": percentiles_us(kernel),
        "user_us": percentiles_us(np.concatenate(client.user)),
        "failed": client.bad,
    }


def run_floor(port: int, streams: int, seconds: float, cpu: int) -> dict[str, Any]:
    args = ["floor", "--port", str(port), "--streams", str(streams), "--tokens", str(TOKENS)]
    args += ["--warmup-s", "3", "--duration-s", str(seconds), "--body-bytes", str(len(BODY))]
    with Child("agentx_engine.sim.truth_main", args, cpus=[cpu]) as child:
        result: dict[str, Any] = child.result(timeout_s=seconds + 30)
    return result


def median_of(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in rounds[0].items():
        values = [r[key] for r in rounds]
        out[key] = median_of(values) if isinstance(value, dict) else statistics.median(values)
    return out


def measure(streams: int, rate: float, seconds: float, rounds: int, cores: list[int]) -> dict[str, Any]:
    results = []
    for _ in range(rounds):
        args = ["metronome", "--interval-us", str(1e6 / rate), "--ttft-us", "20000", "--phase", "spread"]
        with ChildServer("agentx_engine.sim.truth_main", args, cpus=[cores[0]]) as server:
            first = run_floor(server.port, streams, seconds, cores[1])
            ours = run_reactor(server.port, streams, rate, seconds)
            second = run_floor(server.port, streams, seconds, cores[1])
        floor_us = (first["cpu_ns_per_event"] + second["cpu_ns_per_event"]) / 2e3
        floor_reads = (first["reads_per_event"] + second["reads_per_event"]) / 2
        floor_rate = min(first["events_per_s"], second["events_per_s"])
        ours |= {
            "floor_us_per_event": floor_us,
            "floor_reads_per_event": floor_reads,
            "floor_taken": floor_rate / (streams * rate),
            "ratio_to_floor": ours["cpu_us_per_event"] / floor_us,
        }
        results.append(ours)
    return median_of(results)


def show(streams: int, r: dict[str, Any]) -> None:
    valid = (
        r["taken"] >= 0.995
        and r["floor_taken"] >= 0.995
        and abs(r["reads_per_event"] / r["floor_reads_per_event"] - 1) <= 0.02
    )
    print(f"\n{streams} streams: {r['events_per_s']:,.0f} events/s, {100 * r['taken']:.2f} % of the offered")
    print(
        f"  reactor {r['cpu_us_per_event']:.2f} us/event, floor {r['floor_us_per_event']:.2f}: "
        f"ratio {r['ratio_to_floor']:.2f} ({'valid' if valid else 'not comparable'}; reads/event "
        f"{r['reads_per_event']:.3f} and {r['floor_reads_per_event']:.3f}, floor took {100 * r['floor_taken']:.2f} %)"
    )
    for name, key in (
        ("kernel stamp, exact events", "kernel_us"),
        ("kernel stamp, all events", "kernel_all_us"),
        ("user-space time", "user_us"),
    ):
        e = r[key]
        print(f"  error, {name:27s} p50 {e['p50']:8.1f} us   p99 {e['p99']:9.1f} us   max {e['max']:10.1f} us")
    print(
        f"  flagged {100 * r['flagged_share']:.3f} %, slack p99 {r['slack_p99_us']:.0f} us, read lag p99 "
        f"{r['read_lag_p99_us']:.0f} us; Python (bare loop) {r['python_us_per_request']:.0f} us/request; "
        f"failed {r['failed']:.0f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="CPU per token and stamp error of the reactor")
    parser.add_argument("--streams", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--rate", type=float, default=100.0, help="tokens per second and stream")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("needs two cores: one for the metronome, one for the client", file=sys.stderr)
        return 1
    os.sched_setaffinity(0, {cores[1]})
    results = {n: measure(n, args.rate, args.seconds, args.rounds, cores) for n in args.streams}
    if args.json:
        print(json.dumps(results, indent=1))
        return 0
    print(f"{args.rounds} rounds of {args.seconds:g} s, medians; {args.rate:g} tokens/s per stream, {TOKENS} tokens")
    for streams, result in results.items():
        show(streams, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The engine against the metronome: CPU per event beside the floor's, and the error of the stamps.

    python benches/bench_reactor.py [--streams 300 1000] [--rate 100] [--seconds 10] [--rounds 3] [--json]

Each round is one `agentx-engine bench` measurement (agentx_engine/bench/measure.py says how it is done and
when a ratio is comparable); printed are the medians of the rounds beside the budgets.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from typing import Any

import uvloop

from agentx_engine.bench.measure import BenchResult, measure
from agentx_engine.bench.settings import BenchSettings

RATIO_BUDGET = 1.25
EXACT_P99_BUDGET_US = {300: 50.0, 1000: 100.0}


def figures(result: BenchResult) -> dict[str, float]:
    exact, everything, user = result.kernel_exact_us, result.kernel_all_us, result.user_us
    assert exact is not None and everything is not None and user is not None
    assert result.floor is not None and result.ratio_to_floor is not None
    return {
        "events_per_s": result.achieved_per_s,
        "taken": result.taken,
        "reactor_us_per_event": result.reactor_us_per_event,
        "floor_us_per_event": result.floor.us_per_event,
        "ratio_to_floor": result.ratio_to_floor,
        "reads_per_event": result.reads_per_event,
        "floor_reads_per_event": result.floor.reads_per_event,
        "python_us_per_request": result.python_us_per_request or 0.0,
        "exact_p50_us": exact.p50,
        "exact_p99_us": exact.p99,
        "all_p99_us": everything.p99,
        "user_p99_us": user.p99,
        "flagged_share": result.flagged_share,
        "slack_p99_us": result.slack_ms.p99 * 1e3,
        "verdict_ok": float(result.verdict.ok),
    }


def rounds_of(settings: BenchSettings, rounds: int) -> dict[str, Any]:
    results = [uvloop.run(measure(settings)) for _ in range(rounds)]
    each = [figures(result) for result in results]
    medians: dict[str, Any] = {name: statistics.median(r[name] for r in each) for name in each[0]}
    medians["not_comparable"] = [r.not_comparable for r in results if r.not_comparable]
    return medians


def show(streams: int, r: dict[str, Any]) -> None:
    budget = EXACT_P99_BUDGET_US.get(streams)
    print(f"\n{streams} streams: {r['events_per_s']:,.0f} events/s, {100 * r['taken']:.2f} % of the offered")
    print(
        f"  reactor {r['reactor_us_per_event']:.2f} us/event, floor {r['floor_us_per_event']:.2f}: ratio "
        f"{r['ratio_to_floor']:.2f} (budget {RATIO_BUDGET}), reads/event {r['reads_per_event']:.3f} and "
        f"{r['floor_reads_per_event']:.3f}"
    )
    for why in r["not_comparable"]:
        print(f"  not comparable in one round: {why}")
    print(
        f"  stamp error: exact p50 {r['exact_p50_us']:.1f} us, p99 {r['exact_p99_us']:.1f} us"
        + (f" (budget {budget:.0f})" if budget else "")
        + f"; all p99 {r['all_p99_us']:.1f} us; user space p99 {r['user_p99_us']:.1f} us"
    )
    print(
        f"  flagged {100 * r['flagged_share']:.3f} %, slack p99 {r['slack_p99_us']:.0f} us; Python "
        f"{r['python_us_per_request']:.0f} us/request"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="CPU per event and stamp error of the engine")
    parser.add_argument("--streams", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--rate", type=float, default=100.0, help="tokens per second and stream")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    results = {
        n: rounds_of(BenchSettings(streams=n, rate=args.rate, duration_s=args.seconds), args.rounds)
        for n in args.streams
    }
    if args.json:
        print(json.dumps(results, indent=1))
        return 0
    print(f"{args.rounds} rounds of {args.seconds:g} s, medians; {args.rate:g} tokens/s per stream")
    for streams, result in results.items():
        show(streams, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A client that is stalled while it measures: run by tests/bench/test_blind.py as a process of its own.

    python -P blind_client.py PORT STREAMS RATE SECONDS CORE OUT [--loop-stall S] [--idle-reactor]

Prints `{"event": "ready"}` once every stream is under way, `{...verdict...}` at the end, and saves the
token events to OUT (npz: stamp, slack, user, sent, and `ends`, true for the last token of an answer).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import uvloop

from agentx_engine.bench.client import Client
from agentx_engine.bench.settings import BenchSettings
from agentx_engine.metrics.host import REACTOR_THREAD, HostSampler
from agentx_engine.transport.native import NativeOptions, NativeTransport

# With the response head and the end, an answer is 9 packets: never more than the 10 that TCP sends before
# it must see an acknowledgement. A stalled client delays those, and a server whose TCP holds an event back
# is no witness of when it arrived.
TOKENS = 7


def _say(line: object) -> None:
    print(json.dumps(line), flush=True)


def _reactor_tids() -> list[int]:
    tasks = Path("/proc/self/task")
    return [int(t.name) for t in tasks.iterdir() if (t / "comm").read_text().strip() == REACTOR_THREAD]


async def _stall_loop(seconds: float, times: list[tuple[int, int]]) -> None:
    while True:
        await asyncio.sleep(0.2)
        began = time.monotonic_ns()
        time.sleep(seconds)  # noqa: ASYNC251 - this is the stall
        times.append((began, time.monotonic_ns()))


async def _run(args: argparse.Namespace) -> None:
    os.sched_setaffinity(0, {args.core})
    settings = BenchSettings(streams=args.streams, rate=args.rate, tokens=TOKENS, floor=False)
    options = NativeOptions(keep_user_ns=True, keep_sent_ns=True)
    async with NativeTransport.to(f"http://127.0.0.1:{args.port}", options=options) as transport:
        if args.idle_reactor:
            for tid in _reactor_tids():
                os.sched_setscheduler(tid, os.SCHED_IDLE, os.sched_param(0))
        client = Client(transport, settings)
        sampler = HostSampler()
        sampler.start()
        began = time.monotonic_ns()
        client.start()
        while transport.counters()["submitted"] < args.streams or client.finished == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        _say({"event": "ready"})
        stalls: list[tuple[int, int]] = []
        stalling = asyncio.create_task(_stall_loop(args.loop_stall, stalls)) if args.loop_stall else None
        await asyncio.sleep(args.seconds)
        if stalling is not None:
            stalling.cancel()
        sampler.stop()
        verdict = sampler.verdict(transport, planned=1, achieved=1)
        await client.stop()
        kept = client.tokens(0, 1 << 62)
        ends = np.zeros(len(kept.sent), bool)
        ends[np.cumsum([len(answer.sent) for answer in client._kept]) - 1] = True
        np.savez(args.out, **kept._asdict(), ends=ends)
        _say(
            {
                "began_ns": began,
                "stalls": stalls,
                "failures": client.failures,
                "line": verdict.line(),
                "verdict": msgspec.to_builtins(verdict),
            }
        )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("streams", type=int)
    parser.add_argument("rate", type=float)
    parser.add_argument("seconds", type=float)
    parser.add_argument("core", type=int)
    parser.add_argument("out")
    parser.add_argument("--loop-stall", type=float, default=0.0)
    parser.add_argument("--idle-reactor", action="store_true")
    uvloop.run(_run(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

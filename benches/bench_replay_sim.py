"""The scheduler under simulated time: CPU per request, and how long a simulated hour takes.

Run: python benches/bench_replay_sim.py [CORPUS] [--lanes 16 64] [--hours 1] [--words] [--agentx]

CORPUS is a file or folder of traces; without it a synthetic corpus is made. The reference of the same run is
a bare loop over the same simulated transport: one coroutine per lane sends as many requests in a row,
with no plan at all. What the scheduler adds per request is the difference. Loading traces is measured
apart. `--words` builds real request bodies instead of placeholders. `--agentx` begins each lane in the
middle of its recording, warms it with ten requests and caps idle times, as scenario `agentx` does. Times are
CPU time of this process.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from pathlib import Path
from typing import Any, cast

from agentx_engine.core.rope import Rope
from agentx_engine.corpus import open_corpus
from agentx_engine.corpus.synth import synthesize
from agentx_engine.metrics.record import RequestIdentity, RequestRecord
from agentx_engine.prompt import BodyTemplate, PromptBuilder, default_pool
from agentx_engine.replay.corpus_trees import CorpusTrees
from agentx_engine.replay.engine import Replay
from agentx_engine.replay.ids import random_ids
from agentx_engine.replay.options import SECOND, ReplayOptions, ReplayReport
from agentx_engine.replay.protocols import PromptSource, TreeEnd, TreeIdentity
from agentx_engine.replay.simserver import LinearModel, PlannedBody, PlannedPrompts, SimulatedTransport
from agentx_engine.replay.simulated import SimulatedClock, inline, run_simulated
from agentx_engine.transport.base import Request
from agentx_engine.tree.model import ConversationTree


class Loader(CorpusTrees):
    """Adds up the CPU time of loading."""

    cpu_s = 0.0

    def load(self, index: int) -> ConversationTree:
        start = time.process_time()
        tree = super().load(index)
        self.cpu_s += time.process_time() - start
        return tree


class Nobody:
    """A recorder that keeps nothing."""

    def tree_started(self, tree: TreeIdentity, start_ns: int) -> None: ...
    def tree_finished(self, tree: TreeIdentity, reason: TreeEnd, end_ns: int) -> None: ...
    def started(self, identity: RequestIdentity) -> None: ...
    def finished(self, record: RequestRecord) -> None: ...
    def withdrawn(self, identity: RequestIdentity) -> None: ...


AGENTX = {
    "start_ratios": (0.25, 0.75),
    "warmup_requests_per_lane": 10,
    "system_idle_cap_ns": 10 * SECOND,
    "tree_idle_cap_ns": 300 * SECOND,
}


def scheduler(
    trees: Loader, prompts: PromptSource, lanes: int, hours: float, habits: dict[str, Any]
) -> tuple[float, int, ReplayReport]:
    """CPU seconds without loading, events of the clock, report."""

    async def main(clock: SimulatedClock) -> ReplayReport:
        return await Replay(
            clock=clock,
            transport=SimulatedTransport(clock, LinearModel()),
            trees=trees,
            prompts=prompts,
            recorder=Nobody(),
            options=ReplayOptions(
                concurrency=lanes, duration_ns=int(hours * 3600) * SECOND, run_id="bench", **habits
            ),
            ids=random_ids,
            offload=inline,
        ).run()

    gc.collect()
    clock, loaded = SimulatedClock(), trees.cpu_s
    start = time.process_time()
    report = run_simulated(main, clock)
    return time.process_time() - start - (trees.cpu_s - loaded), clock.fired, report


def bare(requests: int, lanes: int) -> float:
    """CPU seconds of as many requests without a scheduler."""

    async def main(clock: SimulatedClock) -> None:
        import asyncio

        transport = SimulatedTransport(clock, LinearModel())
        body = cast(Rope, PlannedBody(1000, 0))

        async def lane() -> None:
            for _ in range(requests // lanes):
                await transport.arm(Request(body, clock.now_ns(), 100)).done

        await asyncio.gather(*(lane() for _ in range(lanes)))

    gc.collect()
    start = time.process_time()
    run_simulated(main)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", nargs="?", type=Path)
    parser.add_argument("--lanes", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--words", action="store_true")
    parser.add_argument("--agentx", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.corpus
        if path is None:
            path = Path(folder) / "synthetic.jsonl"
            print(synthesize(30, 1, path))
        trees = Loader(open_corpus(path))
        words = PromptBuilder(default_pool(), 1, BodyTemplate(["model"]))
        prompts = cast(PromptSource, words) if args.words else PlannedPrompts()
        for lanes in args.lanes:
            loaded = trees.cpu_s
            cpu, events, report = scheduler(trees, prompts, lanes, args.hours, AGENTX if args.agentx else {})
            loading = trees.cpu_s - loaded
            counts, warmup = report.counts, report.warmup
            requests = counts.started + (warmup.counts.started if warmup is not None else 0)
            reference = bare(requests, lanes)
            each, floor = (1e6 * s / max(1, requests) for s in (cpu, reference))
            print(
                f"{args.hours:g} h, {lanes} lanes, {len(trees)} traces: {requests} requests, "
                f"{counts.trees_started} trees, {events} events\n"
                f"  idle caps: {counts.system_shifts} shifts of all by {counts.system_shift_ns / 1e9:.0f} s, "
                f"{counts.tree_shifts} of one tree by {counts.tree_shift_ns / 1e9:.0f} s in all\n"
                f"  CPU {cpu:.2f} s, and {loading:.2f} s to load trees\n"
                f"  per request {each:.1f} us, bare transport {floor:.1f} us (ratio {each / floor:.2f}), "
                f"scheduler {each - floor:.1f} us"
            )


if __name__ == "__main__":
    main()

"""Tree reconstruction: time per trace and per request, growth with length, memory.

Run: python benches/bench_tree.py [--traces FOLDER] [--copies 15] [--each]

The reference of the same run is what nobody can do without: parsing every id list and comparing each with the
one before. Times are CPU time of this process, best of some rounds. Without `--traces` only made-up
sessions are built: a long one (1,000 turns of a growing prompt, rewritten now and then) and lists of agents
which all fork from one prefix, the worst case of a pairwise method.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from agentx_engine.core.ids import common_prefix, parse_ids
from agentx_engine.corpus import open_corpus
from agentx_engine.corpus.model import Subagent, Trace, TraceRequest
from agentx_engine.tree import build_tree

ROUNDS = 3


def best_ms(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times) * 1e3


def leaves(trace: Trace) -> list[TraceRequest]:
    return [
        request
        for entry in trace.requests
        for request in (entry.requests if isinstance(entry, Subagent) else (entry,))
    ]


def reference(traces: Sequence[Trace]) -> int:
    """Parses and compares with the predecessor; returns the number of ids."""
    total = 0
    for trace in traces:
        lists = [parse_ids(request.hash_ids) for request in leaves(trace)]
        for a, b in itertools.pairwise(lists):
            common_prefix(a, b)
        total += sum(ids.size for ids in lists)
    return total


def made(lists: Sequence[Sequence[int]], api: float = 0.5) -> Trace:
    return Trace(
        id="made",
        models=(),
        block_size=64,
        hash_id_scope="local",
        tool_tokens=0,
        system_tokens=0,
        requests=tuple(
            TraceRequest(
                t=float(k),
                model="m",
                in_tokens=64 * len(ids),
                out_tokens=100,
                hash_ids=msgspec.Raw(msgspec.json.encode(list(ids))),
                api_time=api,
            )
            for k, ids in enumerate(lists)
        ),
    )


def long_session(turns: int) -> Trace:
    """Grows by 4 blocks a turn, rewrites its last blocks every 16th, is compacted every 200th."""
    lists = []
    ids = list(range(300))
    fresh = 300
    for k in range(turns):
        if k % 200 == 199:
            del ids[300:]
        elif k % 16 == 15:
            del ids[-3:]
        ids = [*ids, *range(fresh, fresh + 4)]
        fresh += 4
        lists.append(ids)
    return made(lists)


def agents(count: int, api: float) -> Trace:
    return made([[*range(200), 1000 + k] for k in range(count)], api)


def row(name: str, traces: Sequence[Trace]) -> None:
    requests = sum(len(leaves(trace)) for trace in traces)
    ids = reference(traces)
    took = best_ms(lambda: [build_tree(trace) for trace in traces])
    least = best_ms(lambda: reference(traces))
    print(
        f"{name:34} {requests:7} requests {ids / 1e6:7.2f} M ids {took:9.1f} ms "
        f"{took / requests * 1e3:7.1f} us/request {took / least:6.1f} x reference"
    )


def memory(trace: Trace) -> None:
    build_tree(trace)
    text = sum(memoryview(request.hash_ids).nbytes for request in leaves(trace))
    tracemalloc.start()
    tree = build_tree(trace)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(
        f"memory of {trace.id} ({text / 1e6:.1f} MB of ids, {tree.requests} requests): "
        f"tree {held / 1e6:.2f} MB, peak while building {peak / 1e6:.2f} MB"
    )


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--traces", type=Path, help="folder of recorded traces")
    parser.add_argument("--copies", type=int, default=15, help="how often the folder's traces are built")
    parser.add_argument("--each", action="store_true", help="one line per trace of the folder")
    options = parser.parse_args(arguments)

    if options.traces:
        corpus = open_corpus(options.traces)
        traces = [corpus.trace(index) for index in range(len(corpus))]
        for trace in traces if options.each else ():
            row(trace.id, [trace])
        row(f"{len(traces)} traces", traces)
        row(f"{len(traces)} x {options.copies} traces", traces * options.copies)
        memory(max(traces, key=lambda t: sum(memoryview(r.hash_ids).nbytes for r in leaves(t))))
    session = long_session(1000)
    row("1,000 turns, one session", [session])
    memory(session)
    for count in (250, 500, 1000, 2000):
        row(f"{count} agents side by side", [agents(count, 1e6)])
        row(f"{count} compactions in a row", [agents(count, 0.5)])


if __name__ == "__main__":
    main(sys.argv[1:])

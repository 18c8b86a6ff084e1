"""Does the simulated server keep its own pace? Offered against achieved tokens on one core.

    python benches/bench_sim.py [--streams 300] [--rate 100] [--seconds 10]

The server is pinned to one core and a bare epoll reader, which only counts `data: `, to another. Three
figures matter: the share of the offered tokens that was written in time (from the server's own log), how
late reads saw a token (gap between two reads of a stream against the nominal one), and what a prompt of a
million words posted in the middle does to the other streams' gaps (an upper bound: the sender of those
prompts takes the reader's core). CPU figures are the server's.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from agentx_engine.sim.requestlog import read_request_log


def start_server(core: int, log: Path, itl_ms: float) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-P", "-m", "agentx_engine.sim.server_main", "--log", str(log)]
    command += ["--itl-ms", str(itl_ms), "--ttft-ms", "50", "--prefill-rate", "1e9"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    port = json.loads(server.stdout.readline())["port"]
    for task in Path(f"/proc/{server.pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {core})
    return server, port


def request(words: int, tokens: int) -> bytes:
    content = "word " * words
    body = json.dumps(
        {
            "model": "simulated",
            "stream": True,
            "max_tokens": tokens,
            "ignore_eos": True,
            "messages": [{"role": "user", "content": content}],
        }
    ).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_seconds(pid: int) -> float:
    """Time that the main thread was ready to run but did not."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def read_streams(port: int, streams: int, tokens: int, spread_s: float) -> tuple[np.ndarray, int]:
    """Gaps between reads that carried tokens, in ns, and the events counted."""
    poll = select.epoll()
    sockets = {}
    body = request(100, tokens)
    for i in range(streams):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.sendall(body)
        sock.setblocking(False)
        sockets[sock.fileno()] = sock
        poll.register(sock.fileno(), select.EPOLLIN)
        if i % 10 == 9:
            time.sleep(spread_s * 10 / streams)
    last = dict.fromkeys(sockets, 0)
    gaps: list[int] = []
    events = 0
    while sockets:
        for fd, _ in poll.poll():
            now = time.monotonic_ns()
            data = sockets[fd].recv(65536)
            count = data.count(b'"content":" ')
            events += count
            if count:
                if last[fd]:
                    gaps.append(now - last[fd])
                last[fd] = now
            if not data or data.endswith(b"0\r\n\r\n"):
                poll.unregister(fd)
                sockets.pop(fd).close()
    return np.array(gaps), events


def disturb(port: int, stop: threading.Event, answers: list[float]) -> None:
    """Posts prompts of a million words, one after the other, from another process's point of view idle."""
    body = request(1_000_000, 1)
    while not stop.wait(0.5):
        with socket.create_connection(("127.0.0.1", port)) as sock:
            begin = time.monotonic()
            sock.sendall(body)
            data = b""
            while not data.endswith(b"0\r\n\r\n"):
                data += sock.recv(65536)
            answers.append(time.monotonic() - begin)


def run(args: argparse.Namespace, big_prompts: bool) -> None:
    cores = sorted(os.sched_getaffinity(0))
    itl_ms = 1000 / args.rate
    tokens = int(args.seconds * args.rate)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        server, port = start_server(cores[0], log, itl_ms)
        os.sched_setaffinity(0, {cores[-1]})
        stop, answers = threading.Event(), list[float]()
        thread = threading.Thread(target=disturb, args=(port, stop, answers))
        if big_prompts:
            thread.start()
        before, begin = cpu_seconds(server.pid), time.monotonic()
        waited_before = wait_seconds(server.pid)
        gaps, events = read_streams(port, args.streams, tokens, 1.0)
        cpu, wall = cpu_seconds(server.pid) - before, time.monotonic() - begin
        waited = wait_seconds(server.pid) - waited_before
        stop.set()
        if big_prompts:
            thread.join()
        server.send_signal(signal.SIGTERM)
        server.wait(10)
        os.sched_setaffinity(0, cores)
        records = [r for r in read_request_log(log) if r.max_tokens == tokens]

    nominal_ns = (tokens - 1) * itl_ms * 1e6
    spans = np.array([r.last_token_ns - r.first_token_ns for r in records])
    produced = sum(r.completion_tokens for r in records)
    off_ms = np.abs(gaps / 1e6 - itl_ms)
    mean, worst = nominal_ns / spans.mean(), nominal_ns / spans.max()
    p50, p99 = np.percentile(off_ms, [50, 99])
    beside = ", beside 1 M-word prompts" if big_prompts else ""
    print(f"{args.streams} streams x {args.rate:g} tokens/s{beside}")
    print(f"  tokens produced {produced}, read {events}, asked {args.streams * tokens}")
    print(f"  achieved / offered rate of a stream: mean {mean:.4f}, worst {worst:.4f}")
    print(f"  |gap - {itl_ms:g} ms| as read: p50 {p50:.3f} p99 {p99:.3f} max {off_ms.max():.2f} ms")
    print(f"  server CPU {cpu / wall:.2f} cores, {cpu / produced * 1e6:.1f} us per token")
    print(f"  server waited {waited:.2f} of {wall:.2f} s for its core (other programs had it)")
    if answers:
        median_ms = np.median(answers) * 1e3
        print(f"  1 M-word prompts answered: {len(answers)}, median {median_ms:.0f} ms, 50 of it modelled")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=300)
    parser.add_argument("--rate", type=float, default=100.0, help="tokens/s per stream")
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    run(args, big_prompts=False)
    run(args, big_prompts=True)


if __name__ == "__main__":
    main()

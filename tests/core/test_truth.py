"""The metronome and the floor against plain readers that share no code with them.

Both run on threads of the test, in the process: their calls hold no GIL. The child processes are tested
in tests/sim/test_process.py.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from agentx_engine.core import truth
from agentx_engine.sim.process import ChildServer

FAST: dict[str, Any] = {"ttft_us": 2000, "interval_us": 500}


class Server:
    def __init__(self, **options: Any) -> None:
        self._read, self._write = os.pipe()
        ports: list[int] = []
        ready = threading.Event()

        def on_ready(port: int) -> None:
            ports.append(port)
            ready.set()

        self._pool = ThreadPoolExecutor(1)
        self._run = self._pool.submit(
            truth.run_metronome, stop_fd=self._read, ready=on_ready, **{**FAST, **options}
        )
        assert ready.wait(10)
        self.port = ports[0]

    def stop(self) -> truth.MetronomeStats:
        os.write(self._write, b"x")
        stats = self._run.result(10)
        os.close(self._read)
        os.close(self._write)
        self._pool.shutdown()
        return stats

    def stats(self) -> dict[str, Any]:
        status, body = get(self.port, "/stats")
        assert status == 200
        stats: dict[str, Any] = json.loads(body)
        return stats


@contextmanager
def metronome(**options: Any) -> Iterator[Server]:
    server = Server(**options)
    try:
        yield server
    finally:
        server.stop()


def get(port: int, path: str, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, body


def request(tokens: int, *, pad: int = 0, key: str = "max_completion_tokens", first: bool = False) -> bytes:
    content = "x" * pad + ' "max_tokens": 7, "max_completion_tokens":9'
    messages = {"messages": [{"role": "user", "content": content}]}
    fields: dict[str, Any] = {"model": "m", "stream": True}
    limit = {key: tokens}
    return json.dumps({**limit, **messages, **fields} if first else {**fields, **messages, **limit}).encode()


def head(body: bytes, extra: str = "") -> bytes:
    return f"POST /v1/chat/completions HTTP/1.1\r\n{extra}Content-Length: {len(body)}\r\n\r\n".encode()


def read_answer(
    sock: socket.socket, buffered: bytes = b"", *, size: int = 65536
) -> tuple[bytes, list[bytes], bytes]:
    """(head, chunks, rest) of one chunked answer, framing checked byte by byte."""
    data = bytearray(buffered)

    def more() -> None:
        piece = sock.recv(size)
        assert piece, f"closed after {bytes(data[-80:])!r}"
        data.extend(piece)

    while b"\r\n\r\n" not in data:
        more()
    answer_head, _, rest = bytes(data).partition(b"\r\n\r\n")
    data[:] = rest
    chunks: list[bytes] = []
    while True:
        while b"\r\n" not in data:
            more()
        line, _, rest = bytes(data).partition(b"\r\n")
        length = int(line, 16)
        while len(data) < len(line) + 2 + length + 2:
            more()
        start = len(line) + 2
        assert data[start + length : start + length + 2] == b"\r\n"
        chunk = bytes(data[start : start + length])
        del data[: start + length + 2]
        if not length:
            return answer_head, chunks, bytes(data)
        chunks.append(chunk)


def check_answer(chunks: list[bytes], tokens: int, prompt: int, finish: str = "length") -> list[int]:
    """Checks all events of an answer; returns their send times."""
    assert len(chunks) == tokens + 3
    assert chunks[-1] == b"data: [DONE]\n\n"
    events = []
    for chunk in chunks[:-1]:
        assert chunk.startswith(b"data: {") and chunk.endswith(b"}\n\n") and chunk.count(b"\n") == 2
        events.append(json.loads(chunk[6:]))
    assert [event["seq"] for event in events] == list(range(tokens + 2))
    assert len({event["id"] for event in events}) == 1
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    for event in events[:tokens]:
        assert event["choices"][0]["delta"]["content"]
        assert event["choices"][0]["finish_reason"] is None
    assert events[-2]["choices"] == [{"index": 0, "delta": {}, "finish_reason": finish}]
    assert events[-1]["choices"] == []
    assert events[-1]["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": tokens,
        "total_tokens": prompt + tokens,
    }
    sent = [event["sent_ns"] for event in events]
    assert sent == sorted(sent)
    return sent


def ask(port: int, body: bytes) -> list[bytes]:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        sock.sendall(head(body) + body)
        _, chunks, rest = read_answer(sock)
        assert rest == b""
        return chunks


def test_answer_is_a_well_framed_stream() -> None:
    body = request(20)
    with metronome() as server, socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
        before = time.monotonic_ns()
        sock.sendall(head(body) + body)
        answer_head, chunks, rest = read_answer(sock)
        after = time.monotonic_ns()
    assert answer_head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"content-type: text/event-stream" in answer_head.lower()
    assert rest == b""
    sent = check_answer(chunks, 20, len(body))
    assert before < sent[0] and sent[-1] < after


def test_events_are_never_early_and_lateness_is_counted_from_the_schedule() -> None:
    body = request(40)
    with metronome(ttft_us=5000, interval_us=1000) as server:
        before = time.monotonic_ns()
        sent = check_answer(ask(server.port, body), 40, len(body))
    for i, at in enumerate(sent[:40]):
        assert at >= before + 5_000_000 + i * 1_000_000


def test_event_size_is_exact_and_fixed() -> None:
    for size in (truth.MIN_EVENT_BYTES, 230, 1000, truth.MAX_EVENT_BYTES):
        with metronome(event_bytes=size) as server:
            chunks = ask(server.port, request(12))
        assert {len(chunk) for chunk in chunks[:12]} == {size}


@pytest.mark.parametrize(
    ("per_write", "burst", "tokens"), [(1, 4, 10), (4, 1, 10), (3, 2, 7), (8, 1, 5), (16, 16, 1)]
)
def test_groups_share_a_tick_and_keep_the_rate(per_write: int, burst: int, tokens: int) -> None:
    body = request(tokens)
    with metronome(ttft_us=1000, interval_us=2000, events_per_write=per_write, burst=burst) as server:
        before = time.monotonic_ns()
        sent = check_answer(ask(server.port, body), tokens, len(body))
        stats = server.stats()
    group = per_write * burst
    for i in range(tokens):
        assert sent[i] >= before + 1_000_000 + (i // group) * group * 2_000_000
        assert (sent[i] == sent[i - i % per_write]) or i % group >= per_write
    assert stats["lateness_us"]["count"] == -(-tokens // per_write)  # one per write


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("key", ["max_completion_tokens", "max_tokens"])
def test_limit_is_found_anywhere_and_prompt_text_is_not_taken_for_one(key: str, first: bool) -> None:
    with metronome() as server:
        for pad in (0, 200_000):
            body = request(5, pad=pad, key=key, first=first)
            check_answer(ask(server.port, body), 5, len(body))


def test_max_completion_tokens_goes_before_max_tokens() -> None:
    with metronome() as server:
        for body in (
            b'{"max_tokens":3,"max_completion_tokens" : 4}',
            b'{"max_completion_tokens":4,"max_tokens":3}',
        ):
            check_answer(ask(server.port, body), 4, len(body))


def test_without_a_limit_the_option_holds_and_the_finish_is_a_stop() -> None:
    with metronome(tokens=6, prompt_tokens=77) as server:
        for body in (b"{}", b"", b'{"max_tokens":null}'):
            check_answer(ask(server.port, body), 6, 77, finish="stop")


def test_request_cut_at_every_byte() -> None:
    body = b'{"a":1,"max_completion_tokens": 12}'
    whole = head(body) + body
    with (
        metronome(ttft_us=100, interval_us=10) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock,
    ):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for cut in range(1, len(whole)):
            sock.sendall(whole[:cut])
            time.sleep(0.0005)
            sock.sendall(whole[cut:])
            check_answer(read_answer(sock)[1], 12, len(body))
        assert server.stats()["answers"] == len(whole) - 1


def test_keep_alive_and_requests_sent_ahead() -> None:
    body = request(3)
    with metronome() as server, socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
        sock.sendall((head(body) + body) * 5 + b"GET /health HTTP/1.1\r\n\r\n")
        rest = b""
        for _ in range(5):
            _, chunks, rest = read_answer(sock, rest)
            check_answer(chunks, 3, len(body))
        while b'{"status":"ok"}' not in rest:
            rest += sock.recv(4096)
        stats = server.stats()
    assert (stats["requests"], stats["answers"], stats["aborted"]) == (5, 5, 0)
    assert stats["connections"] == 2


def test_connection_close_is_kept() -> None:
    body = request(2)
    with metronome() as server, socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
        sock.sendall(head(body, "Connection: close\r\n") + body)
        answer_head, chunks, _ = read_answer(sock)
        assert b"\r\nConnection: close" in answer_head
        check_answer(chunks, 2, len(body))
        assert sock.recv(1) == b""


def test_expect_continue() -> None:
    body = request(2)
    with metronome() as server, socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
        sock.sendall(head(body, "Expect: 100-continue\r\n"))
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(body)
        check_answer(read_answer(sock)[1], 2, len(body))


def test_plain_library_client() -> None:
    body = request(5)
    with metronome() as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        for _ in range(2):
            connection.request("POST", "/v1/chat/completions", body)
            text = connection.getresponse().read()
            check_answer([event + b"\n\n" for event in text.split(b"\n\n")[:-1]], 5, len(body))
        connection.close()
        assert server.stats()["connections"] == 2  # one of them for /stats


def test_what_else_is_served() -> None:
    with metronome() as server:
        assert get(server.port, "/health")[0] == 200
        assert json.loads(get(server.port, "/v1/models")[1])["data"][0]["id"] == "metronome"
        assert get(server.port, "/other")[0] == 404
        assert get(server.port, "/health", "DELETE")[0] == 405


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\nContent-Length: 5000000\r\n\r\n" + b"x" * 5_000_000, 413),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.0\r\nContent-Length: 0\r\n\r\n", 505),
        (b"nonsense\r\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * 70_000, 431),
    ],
)
def test_refused_requests_get_their_status_whole_and_a_close(raw: bytes, status: int) -> None:
    with metronome() as server, socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
        sock.sendall(raw)
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        assert b"\r\nConnection: close\r\n" in answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == status
        assert server.stats()["refused"] == 1


@pytest.mark.parametrize("phase", ["natural", "spread", "sync"])
def test_many_connections(phase: str) -> None:
    body = request(20)
    with metronome(phase=phase, ttft_us=20_000, interval_us=5000) as server:
        socks = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(300)]
        for sock in socks:
            sock.sendall(head(body) + body)
        for sock in socks:
            check_answer(read_answer(sock)[1], 20, len(body))
            sock.close()
        stats = server.stats()
    assert stats["answers"] == 300
    assert stats["events_offered"] == stats["events_sent"] == 300 * 23
    assert stats["events_deferred"] == 0
    assert stats["lateness_us"]["count"] == 300 * 20


def phases(phase: str) -> list[int]:
    """First send times of 24 streams asked for one after another, as offsets in a 50 ms grid, in ms."""
    body = request(1)
    with metronome(phase=phase, ttft_us=0, interval_us=50_000) as server:
        socks = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(24)]
        for sock in socks:
            sock.sendall(head(body) + body)
        return [check_answer(read_answer(sock)[1], 1, len(body))[0] // 1_000_000 % 50 for sock in socks]


def test_sync_streams_share_a_grid_and_spread_ones_do_not() -> None:
    # Medians: a machine busy with other things may delay some of the sends.
    synchronised, spread = phases("sync"), phases("spread")
    assert max(synchronised.count(ms) + synchronised.count((ms + 1) % 50) for ms in range(50)) >= 12
    assert len(set(spread)) >= 12


def test_slow_reader_loses_nothing_and_is_told_apart_from_a_late_server() -> None:
    tokens, size = 2000, 1000
    body = request(tokens)
    with metronome(interval_us=10, event_bytes=size, send_buffer_bytes=16384) as server:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            sock.settimeout(20)
            sock.connect(("127.0.0.1", server.port))
            sock.sendall(head(body) + body)
            deadline = time.monotonic() + 10
            while (stats := server.stats())["events_offered"] < tokens + 3 and time.monotonic() < deadline:
                time.sleep(0.01)
            # The schedule has run its course; the client has not read a byte.
            assert stats["events_offered"] == tokens + 3
            assert stats["events_sent"] < tokens
            assert stats["answers"] == 0
            sent = check_answer(read_answer(sock, size=4096)[1], tokens, len(body))
        stats = server.stats()
    assert stats["events_sent"] == tokens + 3
    assert stats["answers"] == 1
    assert stats["events_deferred"] > tokens / 2
    assert stats["lateness_us"]["count"] + stats["events_deferred"] == tokens + 3
    assert sent[-1] > sent[0]


def test_client_that_leaves_is_counted() -> None:
    body = request(100_000)
    with metronome() as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
            sock.sendall(head(body) + body)
            sock.recv(1000)
        deadline = time.monotonic() + 10
        while (stats := server.stats())["aborted"] == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert (stats["requests"], stats["answers"], stats["aborted"]) == (1, 0, 1)
    assert stats["connections_open"] == 1  # that of /stats


def test_without_descriptors_new_connections_are_closed_and_old_ones_served() -> None:
    body = request(5)
    with ChildServer("agentx_engine.sim.truth_main", ["metronome", "--ttft-us", "1000"]) as server:
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (40, 40))
        socks = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(60)]
        served = closed = 0
        for sock in socks:
            with sock, contextlib.suppress(ConnectionError):
                sock.sendall(head(body) + body)
                answer = sock.recv(16, socket.MSG_PEEK)
                if answer:
                    check_answer(read_answer(sock)[1], 5, len(body))
                    served += 1
                    continue
            closed += 1
        stats = server.stop()
    assert stats is not None
    assert served > 0 and closed > 0 and served + closed == 60
    assert stats["refused"] >= closed > 60 - 40
    assert stats["answers"] == served


def test_statistics_at_the_end() -> None:
    server = Server()
    ask(server.port, request(10))
    stats = server.stop()
    assert stats["events_sent"] == 13
    assert stats["cpu_s"] > 0
    assert stats["lateness_us"]["p50"] <= stats["lateness_us"]["p99"] <= stats["lateness_us"]["max"]


@pytest.mark.parametrize("stamps", ["none", "user", "kernel"])
@pytest.mark.parametrize(("per_write", "size"), [(1, 230), (7, 230), (3, 30_000)])
def test_floor_counts_what_the_metronome_sent(stamps: str, per_write: int, size: int) -> None:
    with metronome(interval_us=200, events_per_write=per_write, event_bytes=size, phase="spread") as server:
        result = truth.run_floor(
            port=server.port, streams=5, answers=20, tokens=30, body_bytes=5000, stamps=stamps, duration_s=30
        )
        stats = server.stats()
    assert result["answers"] == result["requests"] == stats["requests"] == stats["answers"] == 20
    assert result["events"] == stats["events_sent"] == stats["events_offered"] == 20 * 33
    assert result["bytes"] == stats["bytes_sent"]
    assert stats["aborted"] == 0
    if stamps == "none":
        assert "user_error_us" not in result
        return
    # [DONE] has no send time.
    assert result["user_error_us"]["count"] + result["events_unstamped"] == 20 * 32
    if stamps == "kernel":
        assert result["kernel_error_us"]["count"] == result["user_error_us"]["count"]
        assert result["kernel_error_us"]["p50"] <= result["user_error_us"]["p50"]


def test_floor_by_duration_and_stop() -> None:
    with metronome() as server:
        result = truth.run_floor(port=server.port, streams=3, warmup_s=0.05, duration_s=0.2)
        assert result["seconds"] >= 0.2
        assert result["events"] > 0
        read_fd, write_fd = os.pipe()
        os.write(write_fd, b"x")
        assert truth.run_floor(port=server.port, duration_s=1000, stop_fd=read_fd)["seconds"] < 1000
        os.close(read_fd)
        os.close(write_fd)


def test_floor_says_what_is_wrong() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionRefusedError, match="cannot connect"):
        truth.run_floor(port=port)
    with metronome(max_body_bytes=1000) as server, pytest.raises(ConnectionError, match=r"not HTTP/1\.1 200"):
        truth.run_floor(port=server.port, body_bytes=2000)


@pytest.mark.parametrize(
    ("call", "options", "message"),
    [
        ("metronome", {"port": 70000}, "port is 70000, must be 0 to 65535"),
        ("metronome", {"phase": "odd"}, "phase is 'odd', must be one of natural, spread, sync"),
        ("metronome", {"event_bytes": 10}, "event_bytes is 10"),
        ("metronome", {"interval_us": -1}, "interval_us is -1"),
        ("floor", {"stamps": "all", "port": 1}, "stamps is 'all'"),
        ("floor", {"body_bytes": 10, "port": 1}, "body_bytes is 10"),
        ("floor", {"streams": 0, "port": 1}, "streams is 0"),
    ],
)
def test_options_out_of_bounds(call: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        if call == "metronome":
            truth.run_metronome(stop_fd=0, **options)
        else:
            truth.run_floor(**options)


def test_port_in_use() -> None:
    with metronome() as server, pytest.raises(OSError, match="cannot bind the port: Address already in use"):
        truth.run_metronome(stop_fd=0, port=server.port)

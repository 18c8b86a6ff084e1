"""A server that writes down what it is sent: `python -P -m support.recording_server --log FILE ...`.

It answers like the server of the wire captures: `max_tokens` events, `--ttft-ms` to the first and
`--itl-ms` between them, then usage and [DONE], and its log has that server's fields (one line of JSON per
request, times on CLOCK_MONOTONIC). It knows nothing of the engine, shares no code with it but the life of a
child process, and understands only as much HTTP as clients send.

What differs from the captures' log: tokens are counted as words, since every word of this engine's prompts
is one token; `words_with` and `words_without` of the marker likewise. `last_token_ns` is taken before the
write that also ends the answer, so nothing can follow from the answer's end before it.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import re
import signal
import time
from pathlib import Path
from typing import IO, Any, cast

import msgspec
import uvloop

from agentx_engine.sim.process import die_with_parent

MS = 1_000_000
TICK_NS = MS  # the loop's timers are no finer; tokens that are due together are written together
MARKER = re.compile(r"\[rid:([0-9a-f]{12})\]\n\n")
HEAD_END = b"\r\n\r\n"
EVENT = (
    b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":0,"model":"%b",'
    b'"choices":[{"index":0,"delta":{"content":" a"},"finish_reason":%b}]}\n\n'
)
USAGE = (
    b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":0,"model":"%b","choices":[],'
    b'"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}\n\ndata: [DONE]\n\n'
)
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)


class Sizes:
    """Hash prefix, characters and words of texts; most of a prompt has been seen before."""

    def __init__(self) -> None:
        self._words: dict[bytes, int] = {}

    def of(self, text: str) -> tuple[str, int, int]:
        digest = hashlib.sha256(text.encode()).digest()
        words = self._words.get(digest)
        if words is None:
            words = self._words[digest] = len(text.split())
        return digest.hex()[:12], len(text), words


def describe(body: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
    """What the log says of a chat request's body."""
    messages: list[dict[str, Any]] = body["messages"]
    limits = [name for name in ("max_completion_tokens", "max_tokens") if name in body]
    hidden = {"messages", "model", *limits}
    rows = [(m["role"], *sizes.of(m["content"])) for m in messages]
    record: dict[str, Any] = {
        "body_key_order": list(body),
        "n_messages": len(messages),
        "model": body.get("model"),
        "max_tokens_field": limits[0] if limits else None,
        "max_tokens": body[limits[0]] if limits else None,
        "body": {key: value for key, value in body.items() if key not in hidden},
        "messages": rows,
        "content_tokens": sum(row[3] for row in rows),
        "message_extra_keys": sorted({key for m in messages for key in m} - {"role", "content"}),
    }
    for number, message in enumerate(messages):
        found = MARKER.match(message["content"])
        if found is not None:
            sha, _, words = sizes.of(message["content"][found.end() :])
            record["marker"] = {
                "message": number,
                "where": "prefix",
                "digest": found[1],
                "chars": found.end(),
                "sha_without": sha,
                "words_with": rows[number][3],
                "words_without": words,
            }
            break
    return record


class Recorder:
    """The log, and what all connections share."""

    def __init__(self, log: IO[str], ttft_ns: int, itl_ns: int) -> None:
        self.ttft_ns = ttft_ns
        self.itl_ns = itl_ns
        self.sizes = Sizes()
        self.seq = 0
        self.connections = 0
        self.inflight = 0
        self.open: set[Connection] = set()
        self._log = log
        self._mark("meta", ttft_ms=ttft_ns / MS, itl_ms=itl_ns / MS, usage="words")

    def write(self, line: dict[str, Any]) -> None:
        self._log.write(json.dumps(line, separators=(",", ":")) + "\n")

    def close(self) -> None:
        for connection in list(self.open):
            connection.give_up("shutdown")
        self._mark("end", requests=self.seq, cpu_s=time.process_time())
        self._log.close()

    def _mark(self, kind: str, **fields: Any) -> None:
        stamps = {"monotonic_ns": time.monotonic_ns(), "wall_ns": time.time_ns()}
        self.write({"kind": kind, **fields, **stamps})


class Connection(asyncio.Protocol):
    """One connection; one request at a time, as clients do without pipelining."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        recorder.connections += 1
        self._number = recorder.connections
        self._opened_ns = time.monotonic_ns()
        self._requests = 0
        self._buffer = bytearray()
        self._length: int | None = None  # of the body that is being read
        self._record: dict[str, Any] = {}
        self._sent = 0
        self._timer: asyncio.TimerHandle | None = None
        self._event = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._recorder.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.give_up("client_gone")
        self._recorder.open.discard(self)

    def give_up(self, outcome: str) -> None:
        """Ends an answer that was under way."""
        if self._timer is not None:
            self._timer.cancel()
            self._finish(outcome)

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        if not self._buffer and self._length is None:
            self._recorder.seq += 1
            self._requests += 1
            self._record = {
                "kind": "other",
                "seq": self._recorder.seq,
                "conn": self._number,
                "conn_req": self._requests,
                "conn_opened_ns": self._opened_ns,
                "first_byte_ns": now_ns,
            }
        self._buffer += data
        if self._length is None:
            end = self._buffer.find(HEAD_END)
            if end < 0:
                return
            self._read_head(bytes(self._buffer[:end]).decode("latin-1"), now_ns)
            del self._buffer[: end + len(HEAD_END)]
        assert self._length is not None
        if len(self._buffer) >= self._length:
            body = bytes(self._buffer)
            self._buffer.clear()
            self._length = None
            self._record |= {"arrival_ns": time.monotonic_ns(), "arrival_wall_ns": time.time_ns()}
            self._record["body_bytes"] = len(body)
            self._answer(body)

    def _read_head(self, head: str, now_ns: int) -> None:
        line, *fields = head.split("\r\n")
        headers = [field.partition(": ")[::2] for field in fields]
        self._record |= {"headers_ns": now_ns, "line": line, "headers": headers}
        lengths = [int(value) for name, value in headers if name.lower() == "content-length"]
        self._length = lengths[0] if lengths else 0

    def _answer(self, body: bytes) -> None:
        record, recorder = self._record, self._recorder
        if record["line"].startswith("GET /v1/models "):
            self._whole(b'{"object":"list","data":[{"id":"mock-model","object":"model"}]}')
            return
        if not record["line"].startswith("POST /v1/chat/completions "):
            self._whole(b'{"error":{"message":"not here"}}', b"404 Not Found")
            return
        record |= describe(msgspec.json.decode(body), recorder.sizes)
        record |= {"kind": "request", "inflight_at_arrival": recorder.inflight}
        recorder.inflight += 1
        self._sent = 0
        self._event = EVENT % (record["model"].encode(), b"null")
        self._next_ns = record["arrival_ns"] + recorder.ttft_ns
        self._transport.write(STREAM_HEAD)
        self._wait()

    def _whole(self, body: bytes, status: bytes = b"200 OK") -> None:
        head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self._transport.write(head % (status, len(body)) + body)
        self._record |= {"status": int(status[:3]), "end_ns": time.monotonic_ns()}
        self._recorder.write(self._record)

    def _wait(self) -> None:
        wait_ns = max(TICK_NS, self._next_ns - time.monotonic_ns())
        self._timer = asyncio.get_running_loop().call_later(wait_ns / 1e9, self._tick)

    def _tick(self) -> None:
        """Writes all tokens that are due; with the last one everything that ends the answer."""
        record, itl_ns, now_ns = self._record, self._recorder.itl_ns, time.monotonic_ns()
        limit = record["max_tokens"]
        due = limit - self._sent if not itl_ns else max(0, (now_ns - self._next_ns) // itl_ns + 1)
        due = min(due, limit - self._sent) if now_ns >= self._next_ns else 0
        if not due:
            self._wait()
            return
        if not self._sent:
            record["first_token_ns"] = now_ns
        self._sent += due
        self._next_ns += due * itl_ns
        if self._sent < limit:
            self._write(self._event * due)
            self._wait()
            return
        model, prompt = record["model"].encode(), record["content_tokens"]
        last = EVENT % (model, b'"length"') + USAGE % (model, prompt, limit, prompt + limit)
        record["last_token_ns"] = time.monotonic_ns()
        self._write(self._event * (due - 1) + last, b"0\r\n\r\n")
        self._finish("ok")

    def _write(self, events: bytes, end: bytes = b"") -> None:
        self._transport.write(b"%x\r\n%b\r\n%b" % (len(events), events, end))

    def _finish(self, outcome: str) -> None:
        self._timer = None
        self._recorder.inflight -= 1
        self._record |= {"outcome": outcome, "tokens_sent": self._sent, "end_ns": time.monotonic_ns()}
        self._recorder.write(self._record)


async def serve(path: Path, ttft_ns: int, itl_ns: int) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    recorder = Recorder(path.open("w"), ttft_ns, itl_ns)
    server = await loop.create_server(lambda: Connection(recorder), "127.0.0.1", 0, backlog=4096)
    print(json.dumps({"event": "ready", "port": server.sockets[0].getsockname()[1]}), flush=True)
    await stop.wait()
    server.close()
    recorder.close()


def main() -> None:
    die_with_parent()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--ttft-ms", type=float, default=50.0)
    parser.add_argument("--itl-ms", type=float, default=2.0)
    args = parser.parse_args()
    uvloop.run(serve(args.log, int(args.ttft_ms * MS), int(args.itl_ms * MS)))


if __name__ == "__main__":
    main()

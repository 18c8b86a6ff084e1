"""A simulated server on the test's own loop, and a client that reads its raw bytes."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentx_engine.sim.model import SimOptions
from agentx_engine.sim.requestlog import RequestRecord, read_request_log
from agentx_engine.sim.server import SimServer


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    chunks: list[bytes]  # of a chunked body; else one piece
    complete: bool  # the framing's end was seen

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def data(self) -> list[str]:
        """The data of each event; every event must stand in the plainest form."""
        events = self.body.decode().split("\n\n")
        assert events.pop() == ""
        assert all(e.startswith("data: ") and "\n" not in e for e in events)
        return [e.removeprefix("data: ") for e in events]

    @property
    def events(self) -> list[dict[str, Any]]:
        assert self.data[-1] == "[DONE]"
        return [json.loads(d) for d in self.data[:-1]]

    @property
    def usage(self) -> dict[str, Any]:
        if self.headers["content-type"].startswith("application/json"):
            return self.json["usage"]
        return next(e["usage"] for e in self.events if "usage" in e)

    @property
    def texts(self) -> list[str]:
        """Content of each content event."""
        deltas = [e["choices"][0]["delta"] for e in self.events if e.get("choices")]
        return [d["content"] for d in deltas if d.get("content")]

    @property
    def finish_reason(self) -> str | None:
        return [e["choices"][0]["finish_reason"] for e in self.events if e.get("choices")][-1]


@dataclass
class Sim:
    """A running server; `log` are its records after it has stopped, or what is written so far."""

    server: SimServer
    port: int
    path: Path
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    @property
    def log(self) -> list[RequestRecord]:
        return read_request_log(self.path)

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 26)
        self.writers.append(writer)
        return reader, writer

    async def request(self, method: str, path: str, body: Any = None, headers: str = "") -> Reply:
        reader, writer = await self.open()
        writer.write(encode(method, path, body, headers))
        return await read_reply(reader)

    async def chat(self, *contents: str | tuple[str, str], headers: str = "", **fields: Any) -> Reply:
        return await self.request("POST", "/v1/chat/completions", chat_body(*contents, **fields), headers)

    async def metrics(self) -> dict[str, float]:
        """Sample line up to the value -> value, without the labels that all share."""
        text = (await self.request("GET", "/metrics")).body.decode()
        samples = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                name = name.replace('engine="0",model_name="simulated"', "").replace("{,", "{")
                samples[name.replace("{}", "")] = float(value)
        return samples


def chat_body(*contents: str | tuple[str, str], **fields: Any) -> dict[str, Any]:
    """A streamed request of four tokens with usage, of user messages unless given as (role, content)."""
    messages = [c if isinstance(c, tuple) else ("user", c) for c in contents]
    body = {
        "messages": [{"role": r, "content": c} for r, c in messages],
        "model": "simulated",
        "stream": True,
        "max_completion_tokens": 4,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
        **fields,
    }
    return {k: v for k, v in body.items() if v is not None}


def encode(method: str, path: str, body: Any = None, headers: str = "") -> bytes:
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    lines = head.split("\r\n")
    headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines[1:] if line)}
    reply = Reply(int(lines[0].split()[1]), headers, [], False)
    try:
        if headers.get("transfer-encoding") == "chunked":
            while size := int(await reader.readuntil(b"\r\n"), 16):
                piece = await reader.readexactly(size + 2)
                assert piece.endswith(b"\r\n")
                reply.chunks.append(piece[:-2])
            assert await reader.readexactly(2) == b"\r\n"
        else:
            reply.chunks.append(await reader.readexactly(int(headers["content-length"])))
        reply.complete = True
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    return reply


async def until(condition: Callable[[], Any]) -> None:
    """Waits for something that happens on this loop."""
    for _ in range(20_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not happen")


@contextlib.asynccontextmanager
async def simulated(tmp_path: Path, **options: Any) -> AsyncIterator[Sim]:
    """Fast unless told otherwise: first token at once, 0.2 ms per token."""
    path = tmp_path / "requests.jsonl"
    settings = {"ttft_ms": 0.0, "itl_ms": 0.2, "prefill_rate": 1e9, "log": str(path)} | options
    server = SimServer(SimOptions(**settings))
    sim = Sim(server, await server.start(), path)
    try:
        yield sim
    finally:
        for writer in sim.writers:
            writer.close()
        await server.stop()

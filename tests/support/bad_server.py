"""Small servers that answer as they are told, for the checks before a run."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

from agentx_engine.transport.endpoint import Endpoint, parse_base_url

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": 8192}]}


def answer(body: Any = None, status: int = 200, content_type: str = "application/json") -> Handler:
    """A fixed answer; a str or bytes as it is, anything else as JSON."""
    data = (
        body
        if isinstance(body, bytes)
        else body.encode()
        if isinstance(body, str)
        else json.dumps(body).encode()
    )

    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(body=data, status=status, headers={"Content-Type": content_type})

    return handler


def sse(*events: Any, end: str = "data: [DONE]\n\n") -> Handler:
    text = "".join(f"data: {e if isinstance(e, str) else json.dumps(e)}\n\n" for e in events) + end
    return answer(text, content_type="text/event-stream")


def token(text: str = "x", finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}], **more}


def usage(prompt: int = 700, completion: int = 24, **more: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion, **more}}


@contextlib.asynccontextmanager
async def serving(routes: dict[str, Handler], port: int = 0) -> AsyncIterator[Endpoint]:
    """`routes`: "METHOD /path" -> handler; /v1/models lists one model unless it is given."""
    app = web.Application(client_max_size=1 << 26)
    for route, handler in ({"GET /v1/models": answer(MODELS)} | routes).items():
        method, path = route.split()
        app.router.add_route(method, path, handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    try:
        yield parse_base_url(f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def raw_serving(reply: bytes) -> AsyncIterator[Endpoint]:
    """Writes `reply` to whoever connects and closes."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield parse_base_url(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")

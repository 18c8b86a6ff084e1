"""The server of a run: the one that was named, or a simulated one that lives as long as the run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from agentx_engine.cli.settings import ReplaySettings
from agentx_engine.transport.endpoint import Endpoint, Resolved, parse_base_url, resolve
from agentx_engine.transport.native import Address, NativeOptions, NativeTransport

NS = 1_000_000_000
SIM_MODULE = "agentx_engine.sim.server_main"


class Server(msgspec.Struct):
    """What the run needs to know of the servers, after they have been looked at."""

    endpoints: list[dict[str, Any]]  # for run.json
    hosts: list[str]
    models: list[str]
    addresses: list[Address]
    options: NativeOptions
    max_context: int | None = None
    marker_tokens: int = 1
    report: Any = None  # of the preflight

    def transport(self) -> NativeTransport:
        return NativeTransport(self.addresses, self.options)


def transport_options(settings: ReplaySettings) -> NativeOptions:
    """The settings that are the transport's, with the headers of every request."""
    headers = list(settings.headers)
    if settings.api_key is not None and not any(name.lower() == "authorization" for name, _ in headers):
        headers.append(("Authorization", f"Bearer {settings.api_key}"))

    def ns(value: float | None) -> int:
        return 0 if value is None else max(1, int(value * NS))

    return NativeOptions(
        headers=tuple(headers),
        pooling=settings.connections,
        connect_timeout_ns=ns(settings.connect_timeout_s),
        first_byte_timeout_ns=ns(settings.first_byte_timeout_s),
        idle_timeout_ns=ns(settings.idle_timeout_s),
        total_timeout_ns=ns(settings.total_timeout_s),
        resend=settings.reconnect,
        quickack=settings.quickack,
    )


def _described(endpoint: Endpoint, resolved: Resolved) -> dict[str, Any]:
    address = resolved.addresses[0][1]
    return {
        "url": endpoint.base_url,
        "chat_path": endpoint.chat_path,
        "address": f"{address[0]}:{address[1]}",
        "dns_ms": None if resolved.dns_ns is None else resolved.dns_ns / 1e6,
    }


@contextlib.asynccontextmanager
async def connect(settings: ReplaySettings, say: Callable[[str], None]) -> AsyncIterator[Server]:
    """Starts the simulated server where none was named, resolves names, and looks at the servers.

    Raises UserError: a URL that cannot be used, a server that is not ready, a model that is not served.
    """
    async with contextlib.AsyncExitStack() as stack:
        urls = settings.urls
        if settings.simulated:
            urls = [await _simulate(settings, stack, say)]
        endpoints = [parse_base_url(url, settings.endpoint_path) for url in urls]
        resolved = [await asyncio.to_thread(resolve, endpoint) for endpoint in endpoints]
        yield Server(
            endpoints=[_described(e, r) for e, r in zip(endpoints, resolved, strict=True)],
            hosts=[e.host for e in endpoints],
            models=settings.model or ["simulated"],
            addresses=[
                Address(r.addresses[0][1], e.netloc, e.chat_path)
                for e, r in zip(endpoints, resolved, strict=True)
            ],
            options=transport_options(settings),
        )


async def _simulate(
    settings: ReplaySettings, stack: contextlib.AsyncExitStack, say: Callable[[str], None]
) -> str:
    from agentx_engine.sim.process import ChildServer

    args = ["--seed", str(settings.seed)]
    for name in settings.model:
        args += ["--model", name]
    child = await stack.enter_async_context(ChildServer(SIM_MODULE, args))
    say(
        f"no --url: replaying against a simulated server on {child.url}, "
        f"{settings.concurrency} lanes"
        + ("" if settings.duration_s is None else f" for {settings.duration_s:g} s")
    )
    return child.url

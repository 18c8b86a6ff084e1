"""The server of a run: the one that was named, or a simulated one that lives as long as the run."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from agentx_engine.cli.settings import ReplaySettings
from agentx_engine.errors import PreflightError
from agentx_engine.prompt import Overhead
from agentx_engine.transport.control import ControlClient
from agentx_engine.transport.endpoint import Endpoint, Resolved, parse_base_url, resolve
from agentx_engine.transport.native import Address, NativeOptions, NativeTransport
from agentx_engine.transport.preflight import PreflightReport, check_model, preflight
from agentx_engine.transport.probe import LimitField, Support, TemplateReport

if TYPE_CHECKING:
    from agentx_engine.prompt.tokenizer import FittedPool

NS = 1_000_000_000
CONNECT_S = 3.0
SIM_MODULE = "agentx_engine.sim.server_main"


class Server(msgspec.Struct):
    """What the run needs to know of the servers, after they have been looked at."""

    endpoints: list[dict[str, Any]]  # for run.json
    hosts: list[str]
    models: list[str]
    addresses: list[Address]
    options: NativeOptions
    report: PreflightReport
    limit_field: LimitField
    include_usage: bool

    @property
    def template(self) -> TemplateReport | None:
        """What the chat template adds to prompts, if that could be measured exactly."""
        template = self.report.template
        return template if template is not None and template.fit else None

    @property
    def marker_tokens(self) -> int:
        """What a cache-bust marker costs, by the server's own count if it was measured."""
        template = self.report.template
        return 1 if template is None else round(template.marker)

    def overhead(self) -> Overhead:
        """What the chat template adds to a prompt, to be taken out of its text. The marker stays on top.

        PreflightError if it could not be measured, or is no sum over messages.
        """
        template = self.report.template
        if template is None or not template.fit:
            why = None if template is None else template.reason
            why = why or next((w for w in self.report.warnings if "template" in w), "it was not measured")
            raise PreflightError(
                "--isl wire: the tokens of the server's chat template cannot be taken out of prompts: "
                f"{why}. Use --isl text"
            )
        return Overhead(template.base, template.system or 0, template.user, template.assistant or 0)

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
        user_timeout_ms=settings.tcp_user_timeout_ms or 0,
    )


async def _reachable(resolved: Resolved) -> tuple[Any, ...]:
    """The first address of a name that takes a connection, or simply the first."""
    loop = asyncio.get_running_loop()
    if len(resolved.addresses) > 1:
        for family, address in resolved.addresses:
            with contextlib.suppress(OSError, TimeoutError), socket.socket(family) as probe:
                probe.setblocking(False)
                async with asyncio.timeout(CONNECT_S):
                    await loop.sock_connect(probe, address)
                return address
    return resolved.addresses[0][1]


def _described(endpoint: Endpoint, resolved: Resolved, address: tuple[Any, ...]) -> dict[str, Any]:
    return {
        "url": endpoint.base_url,
        "chat_path": endpoint.chat_path,
        "address": f"{address[0]}:{address[1]}",
        "dns_ms": None if resolved.dns_ns is None else resolved.dns_ns / 1e6,
    }


@contextlib.asynccontextmanager
async def connect(
    settings: ReplaySettings, say: Callable[[str], None], fitted: FittedPool | None = None
) -> AsyncIterator[Server]:
    """Starts the simulated server where none was named, resolves names, and looks at the servers.

    `fitted`: the words of the prompts, where they are not the engine's own. Raises UserError: a URL that
    cannot be used, a server that is not ready, a model that is not served.
    """
    async with contextlib.AsyncExitStack() as stack:
        urls = settings.urls
        if settings.simulated:
            urls = [await _simulate(settings, stack, say)]
        endpoints = [parse_base_url(url, settings.endpoint_path) for url in urls]
        resolved = [await asyncio.to_thread(resolve, endpoint) for endpoint in endpoints]
        report = await _preflight(settings, endpoints, say, fitted)
        found = report.probe
        limit_field = found.limit_field if found is not None else settings.max_tokens_field
        if limit_field != settings.max_tokens_field:
            say(f"note: the server wants {limit_field}, so that is what is sent")
        addresses = [await _reachable(r) for r in resolved]
        yield Server(
            endpoints=[_described(e, r, a) for e, r, a in zip(endpoints, resolved, addresses, strict=True)],
            hosts=[e.host for e in endpoints],
            models=settings.model or [report.model],
            addresses=[Address(a, e.netloc, e.chat_path) for e, a in zip(endpoints, addresses, strict=True)],
            options=transport_options(settings),
            report=report,
            limit_field=limit_field,
            include_usage=found is None or found.usage is not Support.REJECTED,
        )


async def _preflight(
    settings: ReplaySettings,
    endpoints: list[Endpoint],
    say: Callable[[str], None],
    fitted: FittedPool | None,
) -> PreflightReport:
    async with ControlClient(dict(settings.headers), settings.api_key) as client:
        report = await preflight(
            client,
            endpoints,
            model=settings.model[0] if settings.model else None,
            wait_s=settings.wait_ready_s,
            send_probe=settings.probe,
            template=settings.probe,
            empty_cache=settings.reset_cache,
            limit_field=settings.max_tokens_field,
            extra_body={"ignore_eos": settings.ignore_eos} | settings.extra_body,
            words=None if fitted is None else fitted.words,
            first_words=None if fitted is None else fitted.first,
        )
    for endpoint, found in zip(endpoints, report.endpoints, strict=True):
        for name in settings.model[1:]:
            check_model(endpoint, found.models or None, name)
    for text in report.warnings:
        say(f"note: {text}")
    if settings.ignore_eos and report.probe is not None and report.probe.ignore_eos is Support.REJECTED:
        raise PreflightError(
            f"{endpoints[0]}: ignore_eos is refused, so no request would succeed; give --no-ignore-eos"
        )
    return report


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

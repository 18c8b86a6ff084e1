"""The transport that measures: requests go to C reactors, results come back with kernel stamps.

    async with NativeTransport.to("http://127.0.0.1:8000") as transport:
        result = await transport.post({"model": "m", "messages": [...], "stream": True}).done

Python's part of a request is this module: a request head, an Exchange, a future. Completions arrive
through one eventfd for each reactor; a wake-up takes all that have completed.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

from agentx_engine.core.clock import now_ns
from agentx_engine.core.exchange import Exchange
from agentx_engine.core.hdr import Histogram
from agentx_engine.core.reactor import Reactor
from agentx_engine.core.rope import Rope
from agentx_engine.transport.base import Outcome, Request, Result, Stamps, Usage
from agentx_engine.transport.endpoint import parse_base_url, resolve

# How servers say that a prompt does not fit; the first four are the official client's list.
OVERFLOW_PHRASES = (
    "context length",
    "maximum context",
    "context_length_exceeded",
    "prompt is too long",
    "model_context_window_exceeded",
)
_MAY_OVERFLOW = frozenset({Outcome.HTTP_STATUS, Outcome.SERVER_ERROR_EVENT, Outcome.NOT_A_STREAM})


class Address(NamedTuple):
    """Where one base URL leads: a numeric socket address and what the request line needs."""

    sockaddr: tuple[Any, ...]  # as from socket.getaddrinfo
    host: str  # the Host header
    path: str  # of the chat completions endpoint


class NativeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the native transport. Times in ns; a timeout of 0 is off."""

    threads: int = 1
    headers: tuple[tuple[str, str], ...] = ()  # on every request
    user_agent: str = "agentx-engine"
    pooling: str = "pooled"  # pooled, session, request
    connect_timeout_ns: int = 10_000_000_000
    first_byte_timeout_ns: int = 0
    idle_timeout_ns: int = 0
    total_timeout_ns: int = 0
    resend: bool = True
    quickack: bool = False
    user_timeout_ms: int = 0
    keep_user_ns: bool = False
    keep_sent_ns: bool = False

    def reactor_options(self) -> dict[str, Any]:
        names = (
            "pooling",
            "connect_timeout_ns",
            "first_byte_timeout_ns",
            "idle_timeout_ns",
            "total_timeout_ns",
            "resend",
            "quickack",
            "user_timeout_ms",
        )
        return {name: getattr(self, name) for name in names}


class NativeHandle:
    """A request on its way. `done` is a future that is always set, whatever happens."""

    __slots__ = ("_reactor", "done", "exchange", "request")

    def __init__(
        self, request: Request, exchange: Exchange, reactor: Reactor, done: asyncio.Future[Result]
    ) -> None:
        self.request = request
        self.exchange = exchange
        self.done: Awaitable[Result] = done
        self._reactor = reactor

    def cancel(self) -> None:
        self._reactor.cancel(self.exchange)


class NativeTransport:
    """Sends requests at their due times and stamps every token.

    Belongs to the event loop on which `start` (or `async with`) ran. Exchanges are spread over the
    reactor threads by session. `close` cancels what is in flight; every handle gets its result.
    """

    def __init__(self, addresses: Sequence[Address], options: NativeOptions | None = None) -> None:
        self.options = options or NativeOptions()
        self.addresses = tuple(addresses)
        common = "".join(f"{name}: {value}\r\n" for name, value in self.options.headers)
        self._heads = [
            (
                f"POST {a.path} HTTP/1.1\r\nHost: {a.host}\r\nUser-Agent: {self.options.user_agent}\r\n"
                f"{common}Accept: text/event-stream\r\nContent-Type: application/json\r\n"
            ).encode("latin-1")
            for a in self.addresses
        ]
        self._reactors: list[Reactor] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    def to(cls, *urls: str, options: NativeOptions | None = None) -> Self:
        """A transport for base URLs, which are looked up now (blocking). UserError if one is wrong."""
        endpoints = [parse_base_url(url) for url in urls]
        return cls([Address(resolve(e).addresses[0][1], e.netloc, e.chat_path) for e in endpoints], options)

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def start(self) -> None:
        """Starts the reactor threads; needs a running event loop. OSError if the system refuses."""
        loop = asyncio.get_running_loop()
        options = self.options.reactor_options()
        sockaddrs = [a.sockaddr for a in self.addresses]
        for _ in range(self.options.threads):
            reactor = Reactor(sockaddrs, **options)
            self._reactors.append(reactor)
            loop.add_reader(reactor.fileno(), self._completed, reactor)
        self._loop = loop

    def arm(self, request: Request) -> NativeHandle:
        if self._loop is None:
            raise RuntimeError("the transport has not been started")
        head = b"%b%bContent-Length: %d\r\n\r\n" % (
            self._heads[request.endpoint],
            request.headers,
            len(request.body),
        )
        options = self.options
        exchange = Exchange(
            head,
            request.body,
            due_ns=request.due_ns,
            max_tokens=request.max_tokens,
            session=request.session,
            endpoint=request.endpoint,
            reactive=request.reactive,
            keep_user_ns=options.keep_user_ns,
            keep_sent_ns=options.keep_sent_ns,
        )
        reactor = self._reactors[request.session % len(self._reactors)]
        handle = NativeHandle(request, exchange, reactor, self._loop.create_future())
        exchange.tag = handle
        reactor.submit(exchange)
        return handle

    def post(
        self, body: Mapping[str, Any] | bytes, *, due_ns: int | None = None, max_tokens: int = 1 << 30
    ) -> NativeHandle:
        """Embedding: sends one JSON body, at `due_ns` (monotonic) or now. `await post(...).done`."""
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
        due = now_ns() if due_ns is None else due_ns
        return self.arm(Request(body=Rope([raw]), due_ns=due, max_tokens=max_tokens, reactive=due_ns is None))

    def _completed(self, reactor: Reactor) -> None:
        for exchange in reactor.pop():
            handle: NativeHandle = exchange.tag
            exchange.tag = None
            done = handle.done
            assert isinstance(done, asyncio.Future)
            if not done.done():  # the waiter may have been cancelled
                done.set_result(result_of(exchange))

    async def close(self) -> None:
        reactors, self._reactors = self._reactors, []
        loop, self._loop = self._loop, None
        for reactor in reactors:
            reactor.close()
            self._completed(reactor)
            if loop is not None:
                with contextlib.suppress(ValueError):
                    loop.remove_reader(reactor.fileno())

    # -- Our own error, for the summary ---------------------------------------------------------

    def counters(self) -> dict[str, int]:
        """Counters of all reactor threads, added up (the longest turn is the longest of all)."""
        total: dict[str, int] = {}
        for reactor in self._reactors:
            counters = reactor.counters()
            if counters["longest_turn_ns"] < total.get("longest_turn_ns", 0):
                for name in ("longest_turn_ns", "longest_turn_at_ns"):
                    counters[name] = total[name]
            for name, value in counters.items():
                total[name] = value if name.startswith("longest") else total.get(name, 0) + value
        return total

    def histograms(self) -> dict[str, Histogram]:
        """Histograms of all reactor threads, merged; see Reactor.histograms."""
        total: dict[str, Histogram] = {}
        for reactor in self._reactors:
            for name, histogram in reactor.histograms().items():
                if name in total:
                    total[name].add(histogram)
                else:
                    total[name] = histogram
        return total

    def cpu_ns(self) -> int:
        """CPU time of the reactor threads so far."""
        return sum(reactor.cpu_ns or 0 for reactor in self._reactors)

    def describe(self) -> dict[str, Any]:
        """Effective settings, for run.json. Header values are left out: they may hold keys."""
        described = {
            name: value for name, value in msgspec.structs.asdict(self.options).items() if name != "headers"
        }
        described["header_names"] = [name for name, _ in self.options.headers]
        described["tcp_nodelay"] = True
        described["keep_alive_probes"] = False
        described["receive_stamps"] = "SO_TIMESTAMPNS"
        described["congestion_control"] = congestion_control()
        described["sleep"] = sorted({reactor.exact_sleep for reactor in self._reactors})
        return described


def congestion_control() -> str | None:
    """The host's default for new sockets. Some algorithms (bbr) pace what they send, which spreads a
    large request body over time; None where the kernel does not say."""
    with socket.socket() as probe:
        try:
            raw = probe.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        except OSError:
            return None
    return raw.split(b"\0", 1)[0].decode("ascii", "replace")


def result_of(exchange: Exchange) -> Result:
    """What the wire did, out of a completed exchange."""
    outcome = Outcome(exchange.outcome)
    error = exchange.error
    error_type = exchange.error_type
    if outcome in _MAY_OVERFLOW:
        words = f"{error_type} {error}".lower()
        if any(phrase in words for phrase in OVERFLOW_PHRASES):
            outcome = Outcome.CONTEXT_OVERFLOW
    reused, drained, kernel_stamps, reconnects = exchange.flags
    reads, events, content_events, coalesced, bytes_in, bytes_out = exchange.counts
    usage = exchange.usage
    return Result(
        outcome=outcome,
        stamps=Stamps(*exchange.stamps),  # type: ignore[arg-type]  # due and armed are always there
        status=exchange.status,
        usage=None if usage is None else Usage(*usage),
        finish_reason=exchange.finish_reason,
        error=error,
        error_type=error_type,
        connect_ns=exchange.connect_ns,
        reconnects=reconnects,
        reused=reused,
        drained=drained,
        kernel_stamps=kernel_stamps,
        reads=reads,
        events=events,
        content_events=content_events,
        coalesced_events=coalesced,
        bytes_in=bytes_in,
        bytes_out=bytes_out,
        token_ns=exchange.token_ns,
        token_slack_ns=exchange.token_slack_ns,
    )

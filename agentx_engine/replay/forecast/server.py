"""The forecast's server: a prefix cache, a prefill rate and a batch-dependent decode rate, no sockets.

It is the model of `agentx-engine sim` without faults and without a limit of running requests:

    first token    when the request is sent + ttft + uncached prompt tokens / prefill rate; with
                   `prefill_shared` prompts are computed one after another, else all at once
    other tokens   one inter-token time apart each: itl + slope x number of requests that decode
    cache          `cache.KvCache`; blocks can be hit from the end of the prefill that computed them

Answers are as long as recorded. The network takes no time, nothing fails, prefill does not slow decoding.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import msgspec

from agentx_engine.replay.clock import Clock, Timer
from agentx_engine.replay.forecast.cache import KvCache
from agentx_engine.replay.forecast.decoder import Decoder
from agentx_engine.replay.forecast.paths import Body
from agentx_engine.transport.base import Outcome, Request, Result, Stamps, Usage


class ServerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the server is taken to be. `cache_tokens` None = unbounded, 0 = no prefix cache."""

    ttft_ms: float = 50.0
    prefill_tokens_per_s: float = 20_000.0
    prefill_shared: bool = False
    itl_ms: float = 15.0
    itl_slope_us: float = 0.0
    cache_tokens: int | None = None

    def __post_init__(self) -> None:
        if not self.prefill_tokens_per_s > 0:
            raise ValueError("prefill_tokens_per_s must be positive")
        for name in ("ttft_ms", "itl_ms", "itl_slope_us"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative")
        if self.cache_tokens is not None and self.cache_tokens < 0:
            raise ValueError("cache_tokens must not be negative")

    def prefill_ns(self, uncached_tokens: int) -> int:
        return int(uncached_tokens * 1e9 / self.prefill_tokens_per_s)

    def itl_ns(self, decoding: int) -> int:
        return int(self.itl_ms * 1e6 + self.itl_slope_us * 1e3 * decoding)


class ForecastHandle:
    """One request on its way through the server: armed, sent, decoding, done."""

    def __init__(self, server: ForecastServer, request: Request) -> None:
        self.request = request
        self.body = cast(Body, request.body)
        self.armed_ns = server.clock.now_ns()
        self.sent_ns: int | None = None
        self.first_ns: int | None = None
        self.cached = 0
        self.timer: Timer | None = None
        self.done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._server = server

    def cancel(self) -> None:
        self._server.cancel(self)


class ForecastServer:
    """`Transport` over the model. Bodies are `paths.Body`.

    `on_sent(body, ns)` and `on_end(body)` are called when a request reaches the server and when it leaves it.
    """

    def __init__(
        self,
        clock: Clock,
        spec: ServerSpec,
        cache: KvCache,
        on_sent: Callable[[Body, int], None],
        on_end: Callable[[Body], None],
    ) -> None:
        self.clock = clock
        self._spec = spec
        self._cache = cache
        self._on_sent = on_sent
        self._on_end = on_end
        self._decoder: Decoder[ForecastHandle] = Decoder(spec.itl_ns)
        self._wake: Timer | None = None
        self._prefill_free_ns = 0
        self._base_ns = int(spec.ttft_ms * 1e6)
        self._open: dict[ForecastHandle, None] = {}  # ordered, so that closing is deterministic

    def arm(self, request: Request) -> ForecastHandle:
        handle = ForecastHandle(self, request)
        self._open[handle] = None
        handle.timer = self.clock.call_at(request.due_ns, lambda: self._send(handle))
        return handle

    def cancel(self, handle: ForecastHandle) -> None:
        if handle.done.done():
            return
        now_ns, tokens = self.clock.now_ns(), 0
        if handle.timer is not None:
            handle.timer.cancel()
        if handle.first_ns is not None:
            tokens = min(1 + self._decoder.leave(handle, now_ns), handle.request.max_tokens)
            self._rearm()
        self._complete(handle, Outcome.CANCELLED, now_ns, tokens)

    async def close(self) -> None:
        for handle in list(self._open):
            handle.cancel()

    # -- the course of a request

    def _send(self, handle: ForecastHandle) -> None:
        now_ns, body = self.clock.now_ns(), handle.body
        handle.sent_ns = now_ns
        handle.cached = self._cache.admit(body, handle.request.max_tokens, now_ns)
        compute_ns = self._spec.prefill_ns(body.tokens - handle.cached)
        begin_ns = now_ns
        if self._spec.prefill_shared:
            begin_ns = max(now_ns, self._prefill_free_ns)
            self._prefill_free_ns = begin_ns + compute_ns
        self._on_sent(body, now_ns)
        first_ns = begin_ns + compute_ns + self._base_ns
        handle.timer = self.clock.call_at(first_ns, lambda: self._first(handle))

    def _first(self, handle: ForecastHandle) -> None:
        now_ns = handle.first_ns = self.clock.now_ns()
        handle.timer = None
        self._cache.prefilled(handle.body, handle.request.max_tokens)
        self._decoder.join(handle, handle.request.max_tokens - 1, now_ns)
        self._rearm()

    def _rearm(self) -> None:
        """Sets the one timer for the stream that is done next; each change of the batch moves it."""
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        following = self._decoder.next_end()
        if following is not None:
            end_ns, handle = following
            self._wake = self.clock.call_at(end_ns, lambda: self._last(handle))

    def _last(self, handle: ForecastHandle) -> None:
        now_ns = self.clock.now_ns()
        self._wake = None
        self._decoder.leave(handle, now_ns)
        self._rearm()
        self._complete(handle, Outcome.SUCCESS, now_ns, handle.request.max_tokens)

    def _complete(self, handle: ForecastHandle, outcome: Outcome, end_ns: int, tokens: int) -> None:
        stamps = Stamps(due=handle.request.due_ns, armed=handle.armed_ns, end=end_ns)
        result = Result(outcome, stamps, events=tokens, content_events=tokens)
        if handle.sent_ns is not None:
            stamps.conn_ready = stamps.first_sent = stamps.last_sent = handle.sent_ns
            result.usage = Usage(handle.body.tokens, tokens, handle.cached)
            self._cache.ended(handle.body, handle.request.max_tokens, prefilled=handle.first_ns is not None)
            self._on_end(handle.body)
        if handle.first_ns is not None:
            result.status = 200
            stamps.ack = stamps.first_event = stamps.first_content = stamps.first_text = handle.first_ns
            stamps.last_content = stamps.last_event = end_ns
        if outcome.ok:
            result.finish_reason = "length"
        del self._open[handle]
        handle.done.set_result(result)

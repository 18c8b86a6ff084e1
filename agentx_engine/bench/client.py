"""The load of a measurement: closed loops over the real transport, and what they saw.

Each stream sends its next request when its answer is over, as a session does. Even streams pause before it,
so that it is armed ahead of its due time; odd ones do not, so that it is due when the last event has come
and Python's handling is part of its dispatch lag.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from agentx_engine.bench.settings import PAUSE_NS, BenchSettings
from agentx_engine.core.clock import now_ns
from agentx_engine.core.rope import Rope
from agentx_engine.transport.base import Outcome, Request, Result

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from agentx_engine.transport.native import NativeHandle, NativeTransport

_AFTER_FAILURE_NS = 100_000_000


class Tokens(NamedTuple):
    """One entry for each token event, ns on the monotonic clock; shapes (tokens,)."""

    stamp: NDArray[np.int64]
    slack: NDArray[np.uint32]
    user: NDArray[np.int64]
    sent: NDArray[np.int64]
    """The server's own time of the send."""


class Client:
    """Runs between `start` and `stop`, on one transport with `keep_user_ns` and `keep_sent_ns`."""

    def __init__(self, transport: NativeTransport, settings: BenchSettings) -> None:
        self._transport = transport
        self._settings = settings
        self._body = Rope(settings.body())
        self._tasks: list[asyncio.Task[None]] = []
        self._kept: list[Tokens] = []
        self._in_flight: dict[int, NativeHandle] = {}
        self.finished = 0
        self.failures: dict[str, int] = {}
        self.first_failure: str | None = None

    def start(self) -> None:
        begin, spread = now_ns() + 2 * PAUSE_NS, int(self._settings.spread_s * 1e9)
        streams = self._settings.streams
        self._tasks = [
            asyncio.get_running_loop().create_task(self._stream(i, begin + i * spread // streams))
            for i in range(streams)
        ]

    async def stop(self) -> None:
        """Cancels what is in flight; its tokens are kept too."""
        for task in self._tasks:
            task.cancel()
        handles = list(self._in_flight.values())
        for handle in handles:
            handle.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(handle.done for handle in handles))
        for handle in handles:
            self._keep(handle)

    async def _stream(self, number: int, due_ns: int) -> None:
        reactive = False
        while True:
            request = Request(
                body=self._body,
                due_ns=due_ns,
                max_tokens=self._settings.tokens,
                session=number,
                reactive=reactive,
            )
            handle = self._in_flight[number] = self._transport.arm(request)
            # Shielded: a cancelled task must not take the handle's result with it.
            result = await asyncio.shield(asyncio.ensure_future(handle.done))
            del self._in_flight[number]
            self._keep(handle)
            reactive = bool(number % 2) and result.outcome.ok
            due_ns = self._next_due(result, reactive)

    def _next_due(self, result: Result, reactive: bool) -> int:
        if result.outcome.ok:
            self.finished += 1
            return result.plan_end_ns if reactive else result.plan_end_ns + PAUSE_NS
        if result.outcome is not Outcome.CANCELLED:
            name = result.outcome.value
            self.failures[name] = self.failures.get(name, 0) + 1
            self.first_failure = self.first_failure or f"{name}: {result.error or result.error_type or '-'}"
        return now_ns() + _AFTER_FAILURE_NS

    def _keep(self, handle: NativeHandle) -> None:
        exchange = handle.exchange
        user, sent = exchange.token_user_ns, exchange.token_sent_ns
        if user is not None and sent is not None and len(sent):
            self._kept.append(Tokens(exchange.token_ns, exchange.token_slack_ns, user, sent))

    def tokens(self, from_ns: int, to_ns: int) -> Tokens:
        """Token events with a stamp in [from_ns, to_ns), in no particular order."""
        if not self._kept:
            none = np.zeros(0, np.int64)
            return Tokens(none, none.astype(np.uint32), none, none)
        stamp, sent = (
            np.concatenate([t.stamp for t in self._kept]),
            np.concatenate([t.sent for t in self._kept]),
        )
        inside = (stamp >= from_ns) & (stamp < to_ns) & (sent >= 0)
        return Tokens(
            stamp=stamp[inside],
            slack=np.concatenate([t.slack for t in self._kept])[inside],
            user=np.concatenate([t.user for t in self._kept])[inside],
            sent=sent[inside],
        )

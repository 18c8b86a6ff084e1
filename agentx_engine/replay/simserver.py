"""A server and prompts for simulated time: answers from a formula instead of a wire.

Good enough to plan a run and to test the scheduler; `agentx_engine.sim` has the server that real clients
talk to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import numpy as np

from agentx_engine.replay.clock import Clock, Timer
from agentx_engine.replay.options import MS
from agentx_engine.transport.base import Outcome, Request, Result, Stamps, Usage
from agentx_engine.tree.model import ConversationTree, Message, Turn

if TYPE_CHECKING:
    from agentx_engine.core.rope import Rope


class PlannedBody(NamedTuple):
    """Stands for a body of so many tokens, of which the recording says so many are in the prefix cache."""

    tokens: int
    cached_tokens: int


class PlannedPrompt:
    """A prompt without text: it counts its messages and tokens."""

    def __init__(self, tree: ConversationTree) -> None:
        self._block_size = tree.block_size
        self._messages: list[Message] = []

    @property
    def roles(self) -> tuple[int, int, int]:
        names = [message.role for message in self._messages]
        return (names.count("system"), names.count("user"), names.count("assistant"))

    def advance(self, turn: Turn) -> None:
        del self._messages[turn.keep_messages :]
        self._messages.extend(turn.messages)

    def rope(self, turn: Turn, max_tokens: int | None = None) -> Rope:
        return cast("Rope", PlannedBody(turn.in_tokens, turn.hit_blocks * self._block_size))


class PlannedPrompts:
    """`PromptSource` for simulated runs."""

    def open(self, tree: ConversationTree, conversation: int, marker: str | None) -> PlannedPrompt:
        return PlannedPrompt(tree)


class Answer(NamedTuple):
    """How the model answers: first token after `ttft_ns`, the others `itl_ns` apart.

    A failure ends after `ttft_ns` without content; a truncated answer breaks off after half its tokens.
    """

    ttft_ns: int
    itl_ns: int
    tokens: int
    outcome: Outcome = Outcome.SUCCESS


class ServerModel(Protocol):
    def answer(self, request: Request, number: int) -> Answer:
        """The answer to the request which was armed as the `number`-th."""


@dataclass(frozen=True, slots=True)
class LinearModel:
    """A server that is never busy: time to first token linear in the uncached prompt, constant decode rate.

    `fault(request, number)` may choose an outcome; None = success.
    """

    base_ns: int = 50 * MS
    per_uncached_token_ns: int = 50_000
    itl_ns: int = 15 * MS
    fault: Callable[[Request, int], Outcome | None] | None = None

    def answer(self, request: Request, number: int) -> Answer:
        body: object = request.body
        uncached = max(0, body.tokens - body.cached_tokens) if isinstance(body, PlannedBody) else 0
        outcome = (self.fault(request, number) if self.fault is not None else None) or Outcome.SUCCESS
        ttft_ns = self.base_ns + self.per_uncached_token_ns * uncached
        return Answer(ttft_ns, self.itl_ns, request.max_tokens, outcome)


_STATUS = {Outcome.HTTP_STATUS: 500, Outcome.CONTEXT_OVERFLOW: 400}
_UNSENT = frozenset({Outcome.CONNECT_ERROR, Outcome.TIMEOUT_CONNECT})


class SimulatedHandle:
    def __init__(self, transport: SimulatedTransport, request: Request, answer: Answer) -> None:
        self._transport = transport
        self._request = request
        self._answer = answer
        now_ns = transport.clock.now_ns()
        self._armed_ns = now_ns
        self._sent_ns = max(request.due_ns, now_ns)
        self.done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        end_ns = self._sent_ns + answer.ttft_ns + answer.itl_ns * max(0, self._arriving() - 1)
        self._end_ns = max(self._sent_ns, end_ns)
        self._timer: Timer = transport.clock.call_at(self._end_ns + transport.delivery_ns, self._finish)

    def cancel(self) -> None:
        if not self.done.done():
            self._timer.cancel()
            self._complete(Outcome.CANCELLED, self._transport.clock.now_ns())

    def _arriving(self) -> int:
        """Content events that will arrive if nobody cancels."""
        outcome, tokens = self._answer.outcome, self._answer.tokens
        if outcome is Outcome.TRUNCATED:
            return max(1, tokens // 2)
        return tokens if outcome.ok else 0

    def _finish(self) -> None:
        self._complete(self._answer.outcome, self._end_ns)

    def _complete(self, outcome: Outcome, end_ns: int) -> None:
        answer, sent_ns = self._answer, self._sent_ns
        stamps = Stamps(due=self._request.due_ns, armed=self._armed_ns, end=end_ns)
        result = Result(
            outcome, stamps, status=_STATUS.get(outcome), error=None if outcome.ok else outcome.value
        )
        if outcome not in _UNSENT and end_ns >= sent_ns:
            stamps.conn_ready = stamps.first_sent = stamps.last_sent = sent_ns
            first_ns = sent_ns + answer.ttft_ns
            arrived = self._arriving()
            if end_ns < first_ns:
                arrived = 0
            elif answer.itl_ns:
                arrived = min(arrived, (end_ns - first_ns) // answer.itl_ns + 1)
            if end_ns >= first_ns and (arrived or result.status is not None):
                stamps.ack = first_ns
                result.status = result.status or 200
            if arrived:
                last_ns = first_ns + answer.itl_ns * (arrived - 1)
                stamps.first_event = stamps.first_content = stamps.first_text = first_ns
                stamps.last_content = stamps.last_event = last_ns
                result.events = result.content_events = result.reads = arrived
                if self._transport.token_times:
                    result.token_ns = first_ns + answer.itl_ns * np.arange(arrived, dtype=np.int64)
                    result.token_slack_ns = np.zeros(arrived, dtype=np.uint32)
            if outcome.ok:
                body: object = self._request.body
                planned = body if isinstance(body, PlannedBody) else PlannedBody(0, 0)
                result.usage = Usage(planned.tokens, arrived, planned.cached_tokens)
                result.finish_reason = "length"
        self._transport.completed(self)
        self.done.set_result(result)


class SimulatedTransport:
    """`Transport` over a server model under a simulated clock.

    `delivery_ns` is how long after the end of an exchange its result reaches the scheduler; `token_times`
    gives each result the arrays of its token stamps.
    """

    def __init__(
        self, clock: Clock, model: ServerModel, *, delivery_ns: int = 0, token_times: bool = False
    ) -> None:
        self.clock = clock
        self.delivery_ns = delivery_ns
        self.token_times = token_times
        self._model = model
        self._number = 0
        self._open: dict[SimulatedHandle, None] = {}  # ordered, so that closing is deterministic

    def arm(self, request: Request) -> SimulatedHandle:
        handle = SimulatedHandle(self, request, self._model.answer(request, self._number))
        self._number += 1
        self._open[handle] = None
        return handle

    def completed(self, handle: SimulatedHandle) -> None:
        del self._open[handle]

    async def close(self) -> None:
        for handle in list(self._open):
            handle.cancel()

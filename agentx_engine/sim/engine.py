"""The simulated engine: admits requests, prefills them, and produces their tokens at paced instants.

All of it runs on the event loop's thread. A `Generation` is one request; the pacer calls it at its next
deadline. Deadlines are absolute (each is the previous one plus the time per token), so lateness of one
token never moves the next. Three things do shift a stream's deadlines, each on purpose: a stall, a
reader that does not read, and another batch size.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic_ns
from typing import Literal

from agentx_engine.sim.cache import PrefixCache, Prompt
from agentx_engine.sim.metrics import Metrics
from agentx_engine.sim.model import NS_PER_MS, Fate, SimOptions
from agentx_engine.sim.pacer import Pacer
from agentx_engine.sim.stream import HIGH_WATER_BYTES, EventStream, answer_text

Ended = Literal["length", "stop", "error", "client", "shutdown"]

_BLOCKED_RETRY_NS = 5 * NS_PER_MS


class Generation:
    """One request in the engine. `done` is set once it has ended by itself or by `Engine.abort`.

    `stream` is None for an answer that is not streamed: tokens are then only counted.
    """

    __slots__ = (
        "admitted_ns",
        "arrival_ns",
        "blocked",
        "cached",
        "decoding",
        "done",
        "ended",
        "engine",
        "fate",
        "first_token_ns",
        "last_token_ns",
        "number",
        "plain_until",
        "produced",
        "prompt",
        "stream",
    )

    def __init__(
        self,
        engine: Engine,
        *,
        number: int,
        arrival_ns: int,
        prompt: Prompt,
        fate: Fate,
        stream: EventStream | None,
    ) -> None:
        self.engine = engine
        self.number = number
        self.arrival_ns = arrival_ns
        self.prompt = prompt
        self.fate = fate
        self.stream = stream
        self.cached = 0
        self.decoding = False
        self.produced = 0
        self.plain_until = 0
        self.blocked = 0
        self.admitted_ns: int | None = None
        self.first_token_ns: int | None = None
        self.last_token_ns: int | None = None
        self.ended: Ended | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def reasoning(self) -> int:
        """Tokens produced so far as reasoning."""
        return min(self.produced, self.engine.options.reasoning_tokens)

    def fire(self, deadline_ns: int) -> int:
        """The next event, at its deadline. The short way here is nine tenths of a token's cost in
        Python, so all that is rare happens in `_fire`, which says up to which token the short way is
        good."""
        produced = self.produced
        stream = self.stream
        # Memory is bounded also if the reader is looked at only every 16 tokens.
        if produced >= self.plain_until or stream is None or stream.is_closing() or not produced & 15:
            return self._fire(deadline_ns)
        word = answer_text(self.number, produced, 1)
        before, after = stream.plain[len(word)]
        self.last_token_ns = monotonic_ns()
        stream.write(before + word + after)
        self.produced = produced + 1
        engine = self.engine
        engine.generated += 1
        return deadline_ns + engine.itl_ns

    def _fire(self, deadline_ns: int) -> int:
        if self.ended is not None:
            return 0
        engine, stream, fate = self.engine, self.stream, self.fate
        if stream is not None:
            if stream.is_closing():
                engine.end(self, "client")
                return 0
            if stream.unsent() > HIGH_WATER_BYTES:
                self.blocked += 1
                return monotonic_ns() + _BLOCKED_RETRY_NS
        if fate.error_after is not None and self.produced >= fate.error_after:
            if stream is not None:
                stream.error("simulated failure in the middle of the answer", 500)
            engine.end(self, "error")
            return 0
        if not self.decoding:
            engine.prefilled(self)
        count = min(engine.options.tokens_per_event, fate.tokens - self.produced)
        if (thinking := engine.options.reasoning_tokens - self.produced) > 0:
            count = min(count, thinking)
        if fate.stall_at is not None and fate.stall_at < self.produced + count:
            fate.stall_at = None
            return deadline_ns + engine.stall_ns

        now = monotonic_ns()
        if self.first_token_ns is None:
            self.first_token_ns = now
            engine.metrics.ttft.observe(now - self.arrival_ns)
        self.last_token_ns = now
        last = self.produced + count >= fate.tokens
        if stream is not None:
            field = "reasoning_content" if thinking > 0 else "content"
            text = answer_text(self.number, self.produced, count)
            stream.tokens(field, text, fate.finish_reason if last else None)
        self.produced += count
        engine.generated += count
        if last:
            engine.end(self, fate.finish_reason)
            return 0
        self.plain_until = self._next_special()
        return deadline_ns + count * engine.itl_ns

    def _next_special(self) -> int:
        """The next token that is not one word of plain content between two others."""
        options, fate = self.engine.options, self.fate
        if options.tokens_per_event > 1 or self.produced < options.reasoning_tokens:
            return 0
        specials = [fate.tokens - 1, fate.error_after, fate.stall_at]
        return min(s for s in specials if s is not None)


class Engine:
    """Admission, prefix cache, batch size and counters. Needs a running loop; `close` it."""

    def __init__(self, options: SimOptions) -> None:
        self.options = options
        self.metrics = Metrics()
        self.cache = PrefixCache(options.cache_tokens // options.block_size)
        self.stall_ns = int(options.stall_ms * NS_PER_MS)
        self.itl_ns = options.itl_ns(0)
        self.generated = 0
        self._pacer = Pacer()
        self._running: set[Generation] = set()
        self._waiting: deque[Generation] = deque()
        self._decoding = 0
        self._prefill_free_ns = 0
        self._held_tokens = 0

    def submit(self, generation: Generation) -> None:
        self._waiting.append(generation)
        self._admit()

    def abort(self, generation: Generation, reason: Ended) -> None:
        """Ends a generation from outside; nothing if it has ended."""
        if generation.ended is None:
            self.end(generation, reason)

    def abort_all(self, reason: Ended) -> None:
        for generation in [*self._waiting, *self._running]:
            self.abort(generation, reason)

    def close(self) -> None:
        self._pacer.close()

    def prefilled(self, generation: Generation) -> None:
        """The prompt is computed: it decodes, and others hit its blocks, from now on."""
        generation.decoding = True
        self.cache.insert(generation.prompt)
        self._set_decoding(self._decoding + 1)

    def end(self, generation: Generation, reason: Ended) -> None:
        """Settles the accounts of a generation that has not ended, and admits the next."""
        generation.ended = reason
        generation.plain_until = 0
        metrics = self.metrics
        if generation in self._running:
            self._running.discard(generation)
            self._held_tokens -= generation.prompt.tokens
        else:
            self._waiting.remove(generation)
        if generation.decoding:
            self._set_decoding(self._decoding - 1)
        metrics.finished[reason if reason in metrics.finished else "abort"] += 1
        first, last = generation.first_token_ns, generation.last_token_ns
        if first is not None and last is not None and reason in ("length", "stop"):
            metrics.latency.observe(last - generation.arrival_ns)
            if generation.produced > 1:
                metrics.tpot.observe((last - first) // (generation.produced - 1))
        if not generation.done.done():
            generation.done.set_result(None)
        self._admit()

    def _admit(self) -> None:
        limit = self.options.max_running
        while self._waiting and (limit == 0 or len(self._running) < limit):
            self._start(self._waiting.popleft())
        metrics = self.metrics
        metrics.running, metrics.waiting = len(self._running), len(self._waiting)
        metrics.kv_usage = min(1.0, self._held_tokens / max(1, self.options.cache_tokens))

    def _start(self, generation: Generation) -> None:
        options, metrics, prompt = self.options, self.metrics, generation.prompt
        now = generation.admitted_ns = monotonic_ns()
        generation.cached = self.cache.match(prompt, options.block_size)
        compute_ns = options.prefill_ns(prompt.tokens - generation.cached)
        begin = now
        if options.prefill_shared:
            begin = max(now, self._prefill_free_ns)
            self._prefill_free_ns = begin + compute_ns
        self._running.add(generation)
        self._held_tokens += prompt.tokens
        metrics.prompt_tokens += prompt.tokens
        metrics.cache_queries += prompt.tokens
        metrics.cache_hits += generation.cached
        metrics.queue.observe(now - generation.arrival_ns)
        self._pacer.add(begin + compute_ns + int(options.ttft_ms * NS_PER_MS), generation)

    def _set_decoding(self, count: int) -> None:
        self._decoding = count
        self.itl_ns = self.options.itl_ns(count)

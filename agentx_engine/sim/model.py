"""What the simulated server is asked to be, and what that means for one request. Pure: no clock, no I/O.

A request passes three stages. It waits while `max_running` others run; it is *prefilled*, which takes
a base time plus its uncached tokens at the prefill rate; it is *decoded*, one token every `itl`, which
grows with the number of requests that decode at the same time. Whether a request fails, stalls or
stops early is drawn from a generator keyed by (seed, number of the request in order of arrival), so
that the n-th request of every run meets the same fate whatever the others do.
"""

from __future__ import annotations

import random
from typing import Literal

import msgspec

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
MAX_TEMPLATE_DIGITS = 9

ErrorKind = Literal["500", "503", "event"]


class TemplateTokens(msgspec.Struct, frozen=True):
    """Tokens that a chat template adds: per prompt, and per message of each role."""

    fixed: int = 0
    system: int = 0
    user: int = 0
    assistant: int = 0
    other: int = 0

    @classmethod
    def parse(cls, text: str) -> TemplateTokens:
        """From ``4`` (for each message) or ``fixed=3,system=4,user=5,assistant=6``.

        Raises ValueError that says what was expected.
        """
        expected = "expected a number, or NAME=NUMBER pairs with fixed, system, user, assistant, other"

        def whole(number: str) -> bool:
            return number.isascii() and number.isdecimal() and len(number) <= MAX_TEMPLATE_DIGITS

        if whole(text):
            n = int(text)
            return cls(system=n, user=n, assistant=n, other=n)
        values: dict[str, int] = {}
        for pair in text.split(","):
            name, _, number = pair.partition("=")
            if name not in cls.__struct_fields__ or not whole(number):
                raise ValueError(f"{expected}, below 10^{MAX_TEMPLATE_DIGITS}, not {pair[:40]!r}")
            values[name] = int(number)
        return cls(**values)

    def __str__(self) -> str:
        return ",".join(f"{name}={getattr(self, name)}" for name in self.__struct_fields__)

    def per_message(self, role: str) -> int:
        if role in ("system", "developer"):
            return self.system
        if role == "user":
            return self.user
        if role == "assistant":
            return self.assistant
        return self.other


class SimOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that shapes the server; `server_main` has one flag per field, with the same name.

    Rates are tokens/s, times ms, sizes tokens. `cache_tokens` 0 turns the prefix cache off;
    `max_running` 0 means no limit; `max_model_len` None means none is stated or enforced.
    """

    host: str = "127.0.0.1"
    port: int = 0
    model: tuple[str, ...] = ("simulated",)
    max_model_len: int | None = None
    api_key: str | None = None
    seed: int = 0

    ttft_ms: float = 20.0
    prefill_rate: float = 100_000.0
    prefill_shared: bool = False
    itl_ms: float = 10.0
    itl_slope_us: float = 0.0
    max_running: int = 0

    block_size: int = 64
    cache_tokens: int = 4_000_000

    stop_probability: float = 0.5
    default_max_tokens: int = 128
    tokens_per_event: int = 1
    reasoning_tokens: int = 0

    error_rate: float = 0.0
    error_as: ErrorKind = "500"
    stall_rate: float = 0.0
    stall_ms: float = 1000.0

    no_usage: bool = False
    no_cached_tokens: bool = False
    no_ignore_eos: bool = False
    template_overhead: TemplateTokens = TemplateTokens()

    log: str | None = None
    keep_alive_s: float = 5.0

    def __repr__(self) -> str:
        hidden = msgspec.structs.asdict(self) | {"api_key": None if self.api_key is None else "***"}
        return f"SimOptions({', '.join(f'{k}={v!r}' for k, v in hidden.items())})"

    def prefill_ns(self, uncached_tokens: int) -> int:
        """Compute time of one prompt, without the base time."""
        return int(uncached_tokens / self.prefill_rate * NS_PER_S)

    def itl_ns(self, running: int) -> int:
        """Time between two tokens of one stream while `running` streams decode."""
        return int(self.itl_ms * NS_PER_MS + self.itl_slope_us * 1000 * running)


class Fate(msgspec.Struct, gc=False):
    """What happens to one request.

    `tokens` are produced unless an error event ends the answer after `error_after` tokens; the
    stall delays the token with index `stall_at`. None means that it does not happen.
    """

    tokens: int
    finish_reason: Literal["length", "stop"]
    error: ErrorKind | None = None
    error_after: int | None = None
    stall_at: int | None = None


def draw_fate(options: SimOptions, number: int, max_tokens: int, ignore_eos: bool) -> Fate:
    """The fate of request `number`. Each decision takes its own draw, whether or not it is used, so
    that turning one fault on does not move the others."""
    rng = random.Random((options.seed << 64) + number)
    fails, stalls, stops = rng.random(), rng.random(), rng.random()
    stop_at, stall_at = rng.random(), rng.random()

    fate = Fate(max_tokens, "length")
    if max_tokens > 1 and stops < options.stop_probability and (not ignore_eos or options.no_ignore_eos):
        fate = Fate(1 + int(stop_at * (max_tokens - 1)), "stop")
    if stalls < options.stall_rate:
        fate.stall_at = int(stall_at * fate.tokens)
    if fails < options.error_rate:
        fate.error = options.error_as
        if options.error_as == "event":
            fate.error_after = fate.tokens // 2
    return fate

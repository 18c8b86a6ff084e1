"""What a measurement is asked to do, and which cores do it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

MIN_BODY_BYTES = 256
PAUSE_NS = 60_000_000  # before every request that is armed ahead; longer than the reactor's connect lead
LONGEST_SPREAD_S = 2.0
SETTLE_S = 1.0


class BenchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One load: `streams` answers at a time, each of `tokens` tokens at `rate` tokens per second.

    `events_per_write` events go out in one send of the server, `burst` such sends at a time: the mean rate
    stays `rate`. `body_kb` is the size of a request's body in units of 1,000 bytes.
    """

    streams: int = 100
    rate: float = 100.0
    duration_s: float = 10.0
    events_per_write: int = 1
    burst: int = 1
    body_kb: float = 2.0
    io_threads: int = 1
    tokens: int = 444
    ttft_ms: float = 20.0
    floor: bool = True

    @property
    def interval_us(self) -> float:
        return 1e6 / self.rate

    @property
    def answer_s(self) -> float:
        return self.ttft_ms / 1e3 + self.tokens / self.rate

    @property
    def spread_s(self) -> float:
        """Time over which the first requests are spread."""
        return min(self.answer_s, LONGEST_SPREAD_S)

    @property
    def warmup_s(self) -> float:
        return self.spread_s + SETTLE_S

    @property
    def body_bytes(self) -> int:
        return max(int(self.body_kb * 1000), MIN_BODY_BYTES)

    def body(self) -> list[bytes]:
        """Segments of a chat completion request of `body_bytes` bytes."""
        head = b'{"model":"metronome","stream":true,"messages":[{"role":"user","content":"'
        tail = b'"}],"max_completion_tokens":%d}' % self.tokens
        words = b"word " * (self.body_bytes // 5 + 1)
        return [head, words[: self.body_bytes - len(head) - len(tail)], tail]

    def metronome_args(self) -> list[str]:
        options = {
            "--interval-us": repr(self.interval_us),
            "--ttft-us": repr(self.ttft_ms * 1e3),
            "--phase": "spread",
            "--events-per-write": str(self.events_per_write),
            "--burst": str(self.burst),
            "--max-body-bytes": str(self.body_bytes + 1000),
        }
        return ["metronome", *(part for option in options.items() for part in option)]


class Cores(msgspec.Struct, frozen=True):
    """Cores of the truth server, and of the client and the floor. The same where there is only one."""

    server: list[int]
    client: list[int]

    @property
    def shared(self) -> bool:
        return bool(set(self.server) & set(self.client))


def choose_cores(usable: set[int] | None = None) -> Cores:
    """The first usable core for the truth server, the rest for the client.

    The server's hyperthread sibling is left unused if another core remains, since the two would slow each
    other down.
    """
    usable = set(os.sched_getaffinity(0)) if usable is None else usable
    first, *rest = sorted(usable)
    if not rest:
        return Cores([first], [first])
    apart = [core for core in rest if core not in siblings(first)]
    return Cores([first], apart or rest)


def siblings(core: int) -> set[int]:
    """Logical cores that share `core`'s physical one, itself included; {core} where that is not known."""
    path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    found = {core}
    try:
        for part in path.read_text().strip().split(","):
            low, _, high = part.partition("-")
            found.update(range(int(low), int(high or low) + 1))
    except (OSError, ValueError):
        return {core}
    return found

"""Ids and id headers of requests."""

from __future__ import annotations

import random

from agentx_engine.metrics.record import RequestIdentity
from agentx_engine.replay.protocols import IdFactory

_VERSION_4 = 4 << 76 | 0b10 << 62  # version and variant, RFC 9562 section 5.4
_RANDOM_BITS = ~(0xF << 76 | 0b11 << 62)
_system_bits = random.SystemRandom().getrandbits


def random_ids() -> str:
    """A fresh random UUID (version 4) from the system's generator, for real runs."""
    return _uuid4(_system_bits(128))


def seeded_ids(seed: int) -> IdFactory:
    """UUIDs of version 4 from a seeded generator: the same sequence in every process."""
    bits = random.Random(seed).getrandbits
    return lambda: _uuid4(bits(128))


def _uuid4(bits: int) -> str:
    """Written out, since the `uuid` module takes several microseconds for one."""
    text = f"{bits & _RANDOM_BITS | _VERSION_4:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def id_headers(identity: RequestIdentity) -> bytes:
    """The header lines which every request carries: its own id and that of its live conversation."""
    return (f"X-Request-ID: {identity.request_id}\r\nX-Correlation-ID: {identity.correlation_id}\r\n").encode(
        "ascii"
    )

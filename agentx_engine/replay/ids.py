"""Ids and id headers of requests."""

from __future__ import annotations

import random
import uuid

from agentx_engine.metrics.record import RequestIdentity
from agentx_engine.replay.protocols import IdFactory


def random_ids() -> str:
    """A fresh random UUID (version 4), for real runs."""
    return str(uuid.uuid4())


def seeded_ids(seed: int) -> IdFactory:
    """UUIDs of version 4 from a seeded generator: the same sequence in every process."""
    bits = random.Random(seed).getrandbits

    def next_id() -> str:
        return str(uuid.UUID(int=bits(128), version=4))

    return next_id


def id_headers(identity: RequestIdentity) -> bytes:
    """The header lines which every request carries: its own id and that of its live conversation."""
    return (f"X-Request-ID: {identity.request_id}\r\nX-Correlation-ID: {identity.correlation_id}\r\n").encode(
        "ascii"
    )

"""Ids: version 4 UUIDs, random or seeded."""

from __future__ import annotations

import random
import uuid

from agentx_engine.replay.ids import random_ids, seeded_ids


def test_seeded_ids_are_those_of_the_uuid_module() -> None:
    next_id, bits = seeded_ids(5), random.Random(5).getrandbits
    for _ in range(200):
        assert next_id() == str(uuid.UUID(int=bits(128), version=4))


def test_random_ids_are_version_4_and_differ() -> None:
    ids = {random_ids() for _ in range(500)}
    assert len(ids) == 500
    for text in ids:
        parsed = uuid.UUID(text)
        assert (parsed.version, parsed.variant, str(parsed)) == (4, uuid.RFC_4122, text)

"""One finished request: who it was in the plan, and what the wire did."""

from __future__ import annotations

import msgspec

from agentx_engine.transport.base import Result


class RequestIdentity(msgspec.Struct, frozen=True):
    """Place of a request in the plan and in the recording.

    Correlation ids are one per live conversation; the root's is shared by its tree as
    `root_correlation_id`. `sequence` counts the requests of a phase in the order in which they were armed.
    """

    sequence: int
    phase: str  # "warmup" or "profiling"
    lane: int
    play: int  # how often this trace had been started before in this run
    trace_id: str
    conversation_id: str
    turn: int
    depth: int
    request_id: str
    correlation_id: str
    root_correlation_id: str
    parent_correlation_id: str | None
    source: tuple[int, int | None]
    source_kind: str  # weka_main, weka_subagent, weka_flat
    endpoint: int
    recorded_in: int
    recorded_out: int
    max_tokens: int
    marker_tokens: int  # words of the cache-bust marker, on top of recorded_in; 0 without a marker
    roles: tuple[int, int, int]  # numbers of system, user, assistant messages in the prompt
    hit_blocks: int
    total_blocks: int
    reactive: bool  # could not be known in advance: delay 0, a join or a barrier


class RequestRecord(msgspec.Struct):
    identity: RequestIdentity
    result: Result

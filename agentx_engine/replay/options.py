"""What a replay is asked to do, how it is getting on, and how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from agentx_engine.transport.base import Outcome

if TYPE_CHECKING:
    from agentx_engine.metrics.record import RequestRecord

MS = 1_000_000
SECOND = 1_000_000_000

# Why a replay ended: "duration", "request_count" and "tree_count" are its limits; "stopped" is the
# default reason of `Replay.stop`, whose caller may give another; "aborted" is `Replay.abort`; "corpus" a
# trace which cannot be used; "client_error" a defect of the engine.
EndReason = str


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and habits of one replay. Durations are ns; None = no such limit.

    Attributes:
        concurrency: live trees, N lanes.
        duration_ns: nothing is sent whose due time is this long after the start, or later.
        request_count: nothing is sent after so many requests.
        tree_count: no tree is started after so many; the live ones are played to their end.
        grace_ns: how long requests in flight may go on after the duration or request count; they count.
        drain_ns: the same bound after `Replay.stop`.
        cancel_ns: how long the transport may take to end what it was told to cancel.
        endpoints: number of base URLs; each tree stays on one, taken in turn.
        marker: put a cache-bust marker into the prompts, one per live tree.
        marker_tokens: what a marker costs with the server's tokenizer, for the records.
        run_id: feeds the markers; the same id and seeds give the same bytes.
        arm_lead_ns: how long before its due time a request is handed to the transport where it is known.
        reactive_notice_ns: a request whose due time became known later than this before it is `reactive`.
        phase: name in every record.
    """

    concurrency: int
    duration_ns: int | None = None
    request_count: int | None = None
    tree_count: int | None = None
    grace_ns: int = 30 * SECOND
    drain_ns: int = 2 * SECOND
    cancel_ns: int = 10 * SECOND
    endpoints: int = 1
    marker: bool = True
    marker_tokens: int = 1
    run_id: str = ""
    arm_lead_ns: int = 50 * MS
    reactive_notice_ns: int = 5 * MS
    phase: str = "profiling"

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.endpoints < 1:
            raise ValueError("concurrency and endpoints must be at least 1")
        for name in ("duration_ns", "request_count", "tree_count"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be positive or None")
        for name in (
            "grace_ns",
            "drain_ns",
            "cancel_ns",
            "arm_lead_ns",
            "reactive_notice_ns",
            "marker_tokens",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")


class Counters(msgspec.Struct):
    """Live figures of a replay; the display reads them, nobody decides by them.

    `in_flight` counts what is due and has not returned, as the client sees it; `armed` also what the
    transport holds for later. A lane is idle while its tree has nothing armed.
    """

    phase: str
    state: Literal["preparing", "sending", "draining", "cancelling", "ended"] = "preparing"
    started_ns: int | None = None
    elapsed_ns: int = 0
    lanes: int = 0
    lanes_idle: int = 0
    armed: int = 0
    in_flight: int = 0
    started: int = 0  # requests armed, without those withdrawn
    finished: int = 0
    succeeded: int = 0
    failed: dict[Outcome, int] = {}  # by outcome, CANCELLED included
    withdrawn: int = 0  # armed ahead but never sent, since the run was stopped before they were due
    trees_started: int = 0
    trees_finished: int = 0  # drained, in whatever way
    join_waits: int = 0
    join_wait_ns: int = 0  # how much later gated turns were due because children had not ended
    barrier_holds: int = 0
    barrier_hold_ns: int = 0  # how much later turns were due because predecessors had not returned
    barriers_broken: int = 0  # barriers that could never have opened (recordings that contradict themselves)


class ReplayReport(msgspec.Struct, kw_only=True):
    """How a replay went. Times are ns of its clock.

    `stopped_ns` is when sending ended, exactly `started_ns` + duration if the duration ended it;
    `ended_ns` when the last request in flight had returned.
    """

    started_ns: int
    stopped_ns: int
    ended_ns: int
    end_reason: EndReason
    counts: Counters
    interrupted: bool = False  # stop() or abort() was called, if only during the grace period
    error: str | None = None  # what ended the run as "corpus" or "client_error", for a person
    traceback: str | None = None  # of a "client_error"
    unrecorded: list[RequestRecord] = []  # finished requests which the recorder failed to take
    lost: int = 0  # requests which the transport did not end in time after their cancellation

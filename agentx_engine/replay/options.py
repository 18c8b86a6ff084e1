"""What a replay is asked to do, how it is getting on, and how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from agentx_engine.transport.base import Outcome

if TYPE_CHECKING:
    from agentx_engine.metrics.record import RequestRecord
    from agentx_engine.replay.start_plan import LanePlan

MS = 1_000_000
SECOND = 1_000_000_000

# Why a replay ended: "duration", "request_count" and "tree_count" are its limits; "stopped" is the
# default reason of `Replay.stop`, whose caller may give another; "aborted" is `Replay.abort`; "threshold" the
# failure policy; "warmup_failed" an error of a root during warmup, or a warmup that did not drain; "held" a
# replay without an end whose every turn waits for a stream that is dead (only with `release_dead` off);
# "corpus" a trace which cannot be used; "client_error" a defect of the engine.
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
        phase: name in every record of the measured phase; before it, it is "warmup".
        start_ratios: lanes start at a moment t* between these shares of their recordings, after a primer for
            each stream that was alive then; None = at the first turn.
        seed: of the draws of t*.
        burst_starts: primers, and first requests of each lane, are not spread as in the recording.
        primer_lead_cap_ns: how far apart primers may be spread.
        warmup_requests_per_lane: one-token requests of each lane before the measured phase, without pauses,
            on top of the primers.
        warmup_duration_ns: the same by time instead of number.
        warmup_grace_ns: how long the last warmup requests may go on before the run fails.
        system_idle_cap_ns: all timers come nearer when nothing was in flight for so long.
        tree_idle_cap_ns: the same for one live tree, in the measured phase.
        child_pause: children that start after a return wait for the recorded pause before their branch. Off:
            as the official harness, which loses it.
        release_dead: turns of a stream that has ended early count as returned for barriers. Off: as the
            official harness, which holds whoever waits for them until the phase ends.
        fail_fast: a failed request of a child ends its whole tree.
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
    start_ratios: tuple[float, float] | None = None
    seed: int = 42
    burst_starts: bool = False
    primer_lead_cap_ns: int | None = 10 * SECOND
    warmup_requests_per_lane: int = 0
    warmup_duration_ns: int | None = None
    warmup_grace_ns: int | None = 1800 * SECOND
    system_idle_cap_ns: int | None = None
    tree_idle_cap_ns: int | None = None
    child_pause: bool = True
    release_dead: bool = True
    fail_fast: bool = False

    @property
    def warms(self) -> bool:
        """Whether there is a warmup phase."""
        return self.start_ratios is not None or self.accelerates

    @property
    def accelerates(self) -> bool:
        return self.warmup_requests_per_lane > 0 or self.warmup_duration_ns is not None

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.endpoints < 1:
            raise ValueError("concurrency and endpoints must be at least 1")
        if self.warmup_requests_per_lane and self.warmup_duration_ns is not None:
            raise ValueError("warmup_requests_per_lane and warmup_duration_ns must not both be given")
        if self.warms and self.phase == "warmup":
            raise ValueError("the measured phase must have another name than the warmup")
        for name in (
            "duration_ns",
            "request_count",
            "tree_count",
            "warmup_duration_ns",
            "system_idle_cap_ns",
            "tree_idle_cap_ns",
        ):
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
            "primer_lead_cap_ns",
            "warmup_requests_per_lane",
            "warmup_grace_ns",
        ):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} must not be negative")


class BranchStats(msgspec.Struct):
    """What became of the children and of their parents in one phase.

    `children_carried_in` + `children_spawned` = completed + errored + truncated + `children_carried_out`, and
    `parents_suspended` = resumed + suppressed + carried out.
    """

    children_carried_in: int = 0  # alive when the phase began
    children_spawned: int = 0
    children_delayed: int = 0  # of those spawned: not due at the moment of their spawn
    children_completed: int = 0  # last turn returned, a success; or no turns at all
    children_errored: int = 0  # last turn failed, or the context overflowed
    children_truncated: int = 0  # ended by us before their last turn returned
    children_carried_out: int = 0  # alive when the phase ended
    parents_suspended: int = 0  # came to a gate while a child was still alive
    parents_resumed: int = 0  # sent the gated turn
    joins_suppressed: int = 0  # never sent it, since the phase or the tree was ended
    parents_carried_out: int = 0


class Counters(msgspec.Struct):
    """Live figures of the phase that is being played; the display reads them, nobody decides by them.

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
    branches: BranchStats = msgspec.field(default_factory=BranchStats)
    system_shifts: int = 0  # times that the idle cap of the system brought all timers nearer, and by how much
    system_shift_ns: int = 0
    tree_shifts: int = 0  # the same for idle caps of single trees
    tree_shift_ns: int = 0
    lane_idle_ns: int = 0  # sum of all times in which a live tree had no request due or in flight
    lane_idle_longest_ns: int = 0
    pauses_dropped: int = 0  # branches that started without their recorded pause, see `child_pause`
    pause_dropped_ns: int = 0
    held_by_dead: int = 0  # turns never sent since a dead stream held them, see `release_dead`
    trees_torn_down: int = 0  # by `fail_fast`

    def restart(self, phase: str) -> None:
        """Begins to count a new phase."""
        fresh = Counters(phase)
        for name in self.__struct_fields__:
            setattr(self, name, getattr(fresh, name))

    def lane_idled(self, for_ns: int) -> None:
        self.lane_idle_ns += for_ns
        self.lane_idle_longest_ns = max(self.lane_idle_longest_ns, for_ns)


class WarmupReport(msgspec.Struct, kw_only=True):
    """How the warmup went. Times are ns of the clock; None = not reached.

    Its requests are `primers` and `extra_requests`, by lane; `extra_missing` is what lanes did not send of
    their quota since nothing was left that could be sent. `ended_ns` is when its last request had returned.
    """

    started_ns: int
    primed_ns: int | None = None  # all primers are back
    closed_ns: int | None = None  # nothing more is admitted
    ended_ns: int | None = None
    primers: int = 0
    extra_requests: list[int] = []
    extra_missing: int = 0
    counts: Counters


class ReplayReport(msgspec.Struct, kw_only=True):
    """How a replay went. Times are ns of its clock; those here, and `counts`, are the measured phase's.

    `stopped_ns` is when sending ended, exactly `started_ns` + duration if the duration ended it;
    `ended_ns` when the last request in flight had returned.
    """

    started_ns: int
    stopped_ns: int
    ended_ns: int
    end_reason: EndReason
    counts: Counters
    interrupted: bool = False  # stop() or abort() was called, if only during the grace period
    error: str | None = (
        None  # what ended the run as "corpus", "warmup_failed" or "client_error", for a person
    )
    traceback: str | None = None  # of a "client_error"
    unrecorded: list[RequestRecord] = []  # finished requests which the recorder failed to take
    lost: int = 0  # requests which the transport did not end in time after their cancellation
    warmup: WarmupReport | None = None
    start: LanePlan | None = None  # with `start_ratios`: where each lane began

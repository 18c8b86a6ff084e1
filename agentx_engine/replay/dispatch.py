"""From a turn that is due to a request in the transport, and back to a record.

The one place which decides whether a request may still be sent, and which knows all that are under way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from agentx_engine.metrics.record import RequestIdentity, RequestRecord
from agentx_engine.replay.clock import Clock
from agentx_engine.replay.idle import IdleCap
from agentx_engine.replay.options import Counters, ReplayOptions
from agentx_engine.replay.phase import Phase
from agentx_engine.replay.protocols import HeaderFactory, IdFactory, Recorder
from agentx_engine.replay.tree_run import LiveTree
from agentx_engine.transport.base import Handle, Outcome, Request, Result, Transport
from agentx_engine.tree.model import Conversation, Turn

if TYPE_CHECKING:
    from agentx_engine.core.rope import Rope

FailurePolicy = Callable[[RequestRecord], bool]

SOURCE_KINDS = {"root": "weka_main", "subagent": "weka_subagent", "flat": "weka_flat"}


class Due(NamedTuple):
    """When a request is to be sent, and when that was decided: the end of the last exchange it waited for."""

    at_ns: int
    known_ns: int


class Body(NamedTuple):
    rope: Rope
    roles: tuple[int, int, int]  # numbers of system, user, assistant messages


@dataclass(frozen=True, slots=True)
class Speaker:
    """What is the same in all requests of one live conversation."""

    conversation: Conversation
    correlation_id: str
    parent_correlation_id: str | None
    session: int


@dataclass(frozen=True, slots=True, eq=False)
class Flight:
    """A request which the transport has."""

    tree: LiveTree
    identity: RequestIdentity
    due: Due
    handle: Handle


class Dispatcher:
    """Arms requests and takes their results.

    `sending` turns False once and for all when the run is to end. `end_ns` is the first instant at which
    nothing is sent any more. `on_limit` is called when the request count of the measured phase has been
    reached, with the latest due time of what is under way; `failure_policy` gets every record of that phase
    and says whether to cancel the run, which `on_failures` then does. `last_end_ns` is the latest plan end.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        transport: Transport,
        recorder: Recorder,
        options: ReplayOptions,
        phase: Phase,
        ids: IdFactory,
        headers: HeaderFactory,
        counters: Counters,
        on_limit: Callable[[int], None],
        failure_policy: FailurePolicy | None,
        on_failures: Callable[[], None],
    ) -> None:
        self.clock = clock
        self.ids = ids
        self.idle_cap: IdleCap | None = None  # of the whole system
        self.last_end_ns = clock.now_ns()
        self.sending = True
        self.end_ns: int | None = None
        self.cut_ns: int | None = None  # armed requests due after this were withdrawn
        self.flights: set[Flight] = set()
        self.unrecorded: list[RequestRecord] = []
        self._transport = transport
        self._recorder = recorder
        self._options = options
        self._phase = phase
        self._headers = headers
        self._counters = counters
        self._on_limit = on_limit
        self._failure_policy = failure_policy
        self._on_failures = on_failures
        self._sequence = 0
        self._sessions = 0

    def begin_phase(self) -> None:
        """Requests are numbered from 0 again."""
        self._sequence = 0

    def speaker(self, tree: LiveTree, conversation: int, parent_correlation_id: str | None) -> Speaker:
        """A new live conversation; the root, which has no parent, has the tree's own correlation id."""
        self._sessions += 1
        own_id = tree.identity.root_correlation_id if parent_correlation_id is None else self.ids()
        return Speaker(tree.plan.conversations[conversation], own_id, parent_correlation_id, self._sessions)

    def arm(self, tree: LiveTree, speaker: Speaker, turn: Turn, body: Body, due: Due) -> Flight | None:
        """Hands a request to the transport; None if the run sends nothing more."""
        if not self.sending:
            return None
        options, phase, place, conversation = (
            self._options,
            self._phase,
            tree.identity,
            speaker.conversation,
        )
        limit = turn.max_tokens if phase.limit is None else phase.limit
        identity = RequestIdentity(
            sequence=self._sequence,
            phase=phase.name,
            lane=place.lane,
            play=place.play,
            trace_id=place.trace_id,
            conversation_id=conversation.id,
            turn=turn.index,
            depth=conversation.depth,
            request_id=self.ids(),
            correlation_id=speaker.correlation_id,
            root_correlation_id=place.root_correlation_id,
            parent_correlation_id=speaker.parent_correlation_id,
            source=turn.source,
            source_kind=SOURCE_KINDS[conversation.kind],
            endpoint=place.endpoint,
            recorded_in=turn.in_tokens,
            recorded_out=turn.recorded_out,
            max_tokens=limit,
            marker_tokens=options.marker_tokens if tree.marker is not None else 0,
            roles=body.roles,
            hit_blocks=turn.hit_blocks,
            total_blocks=turn.total_blocks,
            reactive=due.at_ns - due.known_ns < options.reactive_notice_ns,
        )
        self._sequence += 1
        request = Request(
            body=body.rope,
            due_ns=due.at_ns,
            max_tokens=limit,
            headers=self._headers(identity),
            endpoint=place.endpoint,
            session=speaker.session,
            reactive=identity.reactive,
        )
        flight = Flight(tree, identity, due, self._transport.arm(request))
        if not self.flights and self.idle_cap is not None:
            self.idle_cap.busy()
        self.flights.add(flight)
        tree.sent(due.at_ns)
        self._counters.started += 1
        self._recorder.started(identity)
        if self._sequence == options.request_count and not phase.warming:
            self._on_limit(max(other.due.at_ns for other in self.flights))
        return flight

    def land(self, flight: Flight, result: Result) -> bool:
        """Takes a result. False if the request was withdrawn, which leaves no record."""
        self.flights.discard(flight)
        self.last_end_ns = max(self.last_end_ns, result.plan_end_ns)
        flight.tree.landed(result.plan_end_ns)
        if not self.flights and self.idle_cap is not None:
            self.idle_cap.idle(self.last_end_ns)
        counters = self._counters
        cut_ns = self.cut_ns if flight.tree.cut_ns is None else flight.tree.cut_ns
        if (
            result.outcome is Outcome.CANCELLED
            and result.stamps.first_sent is None
            and cut_ns is not None
            and flight.due.at_ns > cut_ns
        ):
            counters.started -= 1
            counters.withdrawn += 1
            self._recorder.withdrawn(flight.identity)
            return False
        counters.finished += 1
        if result.outcome.ok:
            counters.succeeded += 1
        else:
            counters.failed[result.outcome] = counters.failed.get(result.outcome, 0) + 1
        record = RequestRecord(flight.identity, result)
        try:
            self._recorder.finished(record)
        except BaseException:
            self.unrecorded.append(record)
            raise
        policy = self._failure_policy
        if policy is not None and not self._phase.warming and policy(record):
            self._on_failures()
        return True

    def withdraw(self, after_ns: int) -> None:
        """Takes back what is armed for later than `after_ns` and not yet on the wire."""
        self.cut_ns = after_ns
        for flight in self._in_order():
            if flight.due.at_ns > after_ns:
                flight.handle.cancel()

    def cancel_all(self, tree: LiveTree | None = None) -> None:
        """Cancels everything, or everything of one tree."""
        for flight in self._in_order():
            if tree is None or flight.tree is tree:
                flight.handle.cancel()

    def in_flight(self, now_ns: int) -> int:
        """Requests which are due and have not returned."""
        return sum(1 for flight in self.flights if flight.due.at_ns <= now_ns)

    def _in_order(self) -> list[Flight]:
        return sorted(self.flights, key=lambda flight: flight.identity.sequence)

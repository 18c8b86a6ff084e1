"""From a turn that is due to a request in the transport, and back to a record.

The one place which decides whether a request may still be sent, and which knows all that are under way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from agentx_engine.metrics.record import RequestIdentity, RequestRecord
from agentx_engine.replay.clock import Clock
from agentx_engine.replay.options import Counters, ReplayOptions
from agentx_engine.replay.protocols import HeaderFactory, IdFactory, Recorder
from agentx_engine.replay.tree_run import LiveTree
from agentx_engine.transport.base import Handle, Outcome, Request, Result, Transport
from agentx_engine.tree.model import Conversation, Turn

if TYPE_CHECKING:
    from agentx_engine.core.rope import Rope

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
    nothing is sent any more. `on_limit` is called when the request count has been reached, with the latest
    due time of what is under way.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        transport: Transport,
        recorder: Recorder,
        options: ReplayOptions,
        ids: IdFactory,
        headers: HeaderFactory,
        counters: Counters,
        on_limit: Callable[[int], None],
    ) -> None:
        self.clock = clock
        self.ids = ids
        self.sending = True
        self.end_ns: int | None = None
        self.cut_ns: int | None = None  # armed requests due after this were withdrawn
        self.flights: set[Flight] = set()
        self.unrecorded: list[RequestRecord] = []
        self._transport = transport
        self._recorder = recorder
        self._options = options
        self._headers = headers
        self._counters = counters
        self._on_limit = on_limit
        self._sequence = 0
        self._sessions = 0

    def speaker(self, tree: LiveTree, conversation: int, parent_correlation_id: str | None) -> Speaker:
        """A new live conversation; the root, which has no parent, has the tree's own correlation id."""
        self._sessions += 1
        own_id = tree.identity.root_correlation_id if parent_correlation_id is None else self.ids()
        return Speaker(tree.plan.conversations[conversation], own_id, parent_correlation_id, self._sessions)

    def arm(self, tree: LiveTree, speaker: Speaker, turn: Turn, body: Body, due: Due) -> Flight | None:
        """Hands a request to the transport; None if the run sends nothing more."""
        if not self.sending:
            return None
        options, place, conversation = self._options, tree.identity, speaker.conversation
        identity = RequestIdentity(
            sequence=self._sequence,
            phase=options.phase,
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
            max_tokens=turn.max_tokens,
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
            max_tokens=turn.max_tokens,
            headers=self._headers(identity),
            endpoint=place.endpoint,
            session=speaker.session,
            reactive=identity.reactive,
        )
        flight = Flight(tree, identity, due, self._transport.arm(request))
        self.flights.add(flight)
        tree.armed += 1
        self._counters.started += 1
        self._recorder.started(identity)
        if self._sequence == options.request_count:
            self._on_limit(max(other.due.at_ns for other in self.flights))
        return flight

    def land(self, flight: Flight, result: Result) -> bool:
        """Takes a result. False if the request was withdrawn, which leaves no record."""
        self.flights.discard(flight)
        flight.tree.armed -= 1
        counters = self._counters
        if (
            result.outcome is Outcome.CANCELLED
            and result.stamps.first_sent is None
            and self.cut_ns is not None
            and flight.due.at_ns > self.cut_ns
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
        return True

    def withdraw(self, after_ns: int) -> None:
        """Takes back what is armed for later than `after_ns` and not yet on the wire."""
        self.cut_ns = after_ns
        for flight in self._in_order():
            if flight.due.at_ns > after_ns:
                flight.handle.cancel()

    def cancel_all(self) -> None:
        for flight in self._in_order():
            flight.handle.cancel()

    def in_flight(self, now_ns: int) -> int:
        """Requests which are due and have not returned."""
        return sum(1 for flight in self.flights if flight.due.at_ns <= now_ns)

    def _in_order(self) -> list[Flight]:
        return sorted(self.flights, key=lambda flight: flight.identity.sequence)

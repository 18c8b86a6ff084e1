"""What a transport is: requests in, results out, stamped on the wire.

`replay` knows only this module. The native transport (`transport.native`) hands requests to the C
reactor; the simulated one (`replay.simulated`) answers from a model under simulated time. Every
time is an integer of nanoseconds on one monotonic clock; an absent time is None, never 0.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from agentx_engine.core.rope import Rope


class Outcome(enum.StrEnum):
    """How an exchange ended: exactly one, the first that applies in this order.

    Ours are CANCELLED and CLIENT_ERROR; the timeouts are the bounds that the user asked for; all
    others are the server's or the network's.
    """

    CANCELLED = "cancelled"
    TIMEOUT_CONNECT = "timeout_connect"
    TIMEOUT_FIRST_BYTE = "timeout_first_byte"
    TIMEOUT_IDLE = "timeout_idle"
    TIMEOUT_TOTAL = "timeout_total"
    CONNECT_ERROR = "connect_error"
    SEND_ERROR = "send_error"
    HTTP_STATUS = "http_status"
    CONTEXT_OVERFLOW = "context_overflow"
    NOT_A_STREAM = "not_a_stream"
    SERVER_ERROR_EVENT = "server_error_event"
    MALFORMED = "malformed"
    EMPTY = "empty"
    TRUNCATED = "truncated"
    RESET = "reset"
    SUCCESS = "success"
    CLIENT_ERROR = "client_error"

    @property
    def ok(self) -> bool:
        return self is Outcome.SUCCESS


class Request(msgspec.Struct, gc=False):
    """One request as the plan wants it.

    `body` is the whole JSON body. `headers` are complete extra header lines (``b"Name: value\\r\\n"``
    each, joined); Host, Content-Type, Accept, Content-Length and the headers of the run (user agent,
    authorization, ``--header``) are the transport's own. `session` decides connection affinity and
    the reactor thread; `endpoint` is an index into the transport's list of base URLs. `max_tokens` is
    the output limit in the body, which decides what counts as a success. `reactive` says that `due_ns`
    could not be known in advance (delay 0, joins, barriers): its dispatch lag is kept apart.
    """

    body: Rope
    due_ns: int
    max_tokens: int
    headers: bytes = b""
    endpoint: int = 0
    session: int = 0
    reactive: bool = False


class Stamps(msgspec.Struct, gc=False):
    """Times of one exchange in ns; see docs/metrics.md for the meaning of each."""

    due: int
    armed: int
    conn_ready: int | None = None
    first_sent: int | None = None
    last_sent: int | None = None
    ack: int | None = None
    first_event: int | None = None
    first_content: int | None = None
    first_text: int | None = None
    last_content: int | None = None
    last_event: int | None = None
    end: int | None = None


class Usage(msgspec.Struct, gc=False):
    """Token counts as the server stated them (the last non-empty usage); None = not reported."""

    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None
    reasoning: int | None = None


class Result(msgspec.Struct, gc=False):
    """What the wire did. Complete for every exchange, whatever its outcome.

    `token_ns[i]` is the stamp of the i-th content event, shape (content_events,), int64;
    `token_slack_ns[i]` is 0 where that stamp is exact, else (coalesced) the width of the interval that
    ends at the stamp and in which the event arrived, uint32 ns, saturating.
    """

    outcome: Outcome
    stamps: Stamps
    status: int | None = None
    usage: Usage | None = None
    finish_reason: str | None = None
    error: str | None = None  # the server's or the kernel's own words, bounded
    error_type: str | None = None  # the server's error.type or code, else the errno name or a fixed word
    connect_ns: int | None = None  # duration of the connect that this request caused, None if reused
    reconnects: int = 0  # 1 if the request was sent again on a fresh socket
    reused: bool = False  # sent on a socket that had carried a request before
    drained: bool = False  # the framing did not follow the terminal event in time
    kernel_stamps: bool = True  # False: the token stamps were taken in user space
    reads: int = 0
    events: int = 0
    content_events: int = 0
    coalesced_events: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    token_ns: NDArray[np.int64] | None = None
    token_slack_ns: NDArray[np.uint32] | None = None

    @property
    def plan_end_ns(self) -> int:
        """Where the plan continues: the last event, else the end of the exchange."""
        end = self.stamps.last_event if self.stamps.last_event is not None else self.stamps.end
        return self.stamps.armed if end is None else end


class Handle(Protocol):
    """A request on its way. Await `done` for its result; it is always set, also after `cancel`."""

    @property
    def done(self) -> Awaitable[Result]: ...

    def cancel(self) -> None:
        """Ends the exchange as CANCELLED unless it has ended; idempotent."""


class Transport(Protocol):
    def arm(self, request: Request) -> Handle:
        """Takes a request to be sent at `request.due_ns` (at once if that has passed)."""

    async def close(self) -> None:
        """Cancels what is in flight, completes every handle and releases the threads and sockets."""

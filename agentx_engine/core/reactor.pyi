from collections.abc import Iterable
from typing import Any

from agentx_engine.core.exchange import Exchange
from agentx_engine.core.hdr import Histogram

def option_defaults() -> dict[str, Any]:
    """The reactor's options and their defaults; times in ns, a timeout of 0 is off."""

class Reactor:
    """One C thread that sends exchanges at their due times and stamps what comes back.

    Used from the thread that made it. `fileno()` becomes readable when exchanges have completed; then
    `pop()` returns them. `close()` cancels what is live and joins the thread; what was live can be
    popped afterwards. At exit every reactor is closed; in a forked child it is unusable.
    """

    def __init__(self, endpoints: Iterable[tuple[Any, ...]], **options: Any) -> None:
        """`endpoints`: numeric socket addresses as from socket.getaddrinfo: (host, port[, flow, scope])."""

    def fileno(self) -> int: ...
    def submit(self, exchange: Exchange) -> None:
        """Hands over an exchange, to be sent at its due time (at once if that has passed)."""

    def cancel(self, exchange: Exchange) -> None:
        """Asks for the end of an exchange; it completes as `cancelled` unless it was complete before."""

    def pop(self) -> list[Exchange]:
        """The exchanges that have completed, in order of completion."""

    def close(self) -> None: ...
    @property
    def in_reactor(self) -> int:
        """Exchanges submitted and not popped."""

    @property
    def cpu_ns(self) -> int | None:
        """CPU time of the thread so far; None once it has ended."""

    @property
    def exact_sleep(self) -> str:
        """How the thread sleeps until the next timer: epoll_pwait2 or timerfd."""

    def counters(self) -> dict[str, int]: ...
    def histograms(self) -> dict[str, Histogram]:
        """Copies of the live histograms, values in ns, by name: dispatch_lag_armed,
        dispatch_lag_reactive, send_duration, connect, read_lag, slack, ttft, inter_chunk_gap,
        reactor_turn."""

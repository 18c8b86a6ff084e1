"""Idle caps: recorded pauses in which nothing happens at all are cut short.

A recording holds hours in which its user was away. A cap says for how long nothing may be on the wire, in
the whole system or in one live tree; then all pending timers of that scope come nearer by the same
amount, so that the earliest is due when the cap has run out. Order and spacing of what follows stay.

**Only what can be sent ends an idle time.** The turn whose timer was brought nearer may be held by a gate
or a barrier. It has then used its pause, but nothing is on the wire, and waiting out another cap for the
next timer would let every held turn cost one. So the cap stays *expired* until a request is armed: whoever
is held reports so (`held`), and the next timer is brought to the same instant.

**Quiet first.** Several waiters may be woken at one instant. As long as one of them has not run yet (the
timers' `waking`), nobody knows whether it will send, so nothing more is brought nearer; it will either arm a
request or report that it is held.

Requests that the transport has are not moved: while there is one, the scope is not idle. The cap acts
`lead_ns` before it runs out, so what it makes due is still handed over ahead of its time. The idle time
counts from the plan end of the last exchange, on the real clock: shifts do not shorten it.

Source: agentx-v1, sections 6.6 and 6.7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from agentx_engine.replay.clock import Clock, Timer


class Timers(Protocol):
    """`TimerGroup` or `TimerSystem`."""

    waking: int

    @property
    def next_due_ns(self) -> int | None: ...

    def advance(self, by_ns: int) -> None: ...


class IdleCap:
    """Watches one scope. Off until `start`; told by others when requests begin and end.

    `on_shift` gets the amount of every shift. One timer of the clock at most is pending: it is not moved by
    each request, but looks again when it fires.
    """

    def __init__(
        self, clock: Clock, timers: Timers, cap_ns: int, lead_ns: int, on_shift: Callable[[int], None]
    ) -> None:
        self._clock = clock
        self._timers = timers
        self._cap_ns = cap_ns
        self._lead_ns = lead_ns
        self._on_shift = on_shift
        self._since_ns: int | None = None  # idle since; None: something is on its way, or off
        self._on = False
        self._expired = False
        self._timer: Timer | None = None

    def start(self, since_ns: int) -> None:
        """Begins to watch a scope in which nothing is armed."""
        self._on = True
        self._expired = False
        self._since_ns = since_ns
        self._watch()

    def stop(self) -> None:
        self._on = False
        self._since_ns = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def busy(self) -> None:
        """A request has been armed."""
        self._since_ns = None
        self._expired = False

    def idle(self, since_ns: int) -> None:
        """The last request has returned; its plan end was at `since_ns`."""
        if self._on:
            self._since_ns = since_ns
            if self._timer is None:
                self._watch()

    def held(self) -> None:
        """Somebody whose time had come cannot go on."""
        if self._expired:
            self._pull()

    def _watch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._since_ns is not None:
            when_ns = self._since_ns + self._cap_ns - self._lead_ns
            self._timer = self._clock.call_at(when_ns, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._since_ns is None:
            return
        if self._clock.now_ns() < self._since_ns + self._cap_ns - self._lead_ns:
            self._watch()
            return
        self._expired = True
        self._pull()

    def _pull(self) -> None:
        if self._since_ns is None or self._timers.waking:
            return
        due_ns = self._timers.next_due_ns
        if due_ns is None:
            return
        excess_ns = due_ns - max(self._since_ns + self._cap_ns, self._clock.now_ns())
        if excess_ns > 0:
            self._on_shift(excess_ns)
            self._timers.advance(excess_ns)

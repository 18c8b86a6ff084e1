"""One live tree: who runs, who waits for whom, when it has drained.

Conversations of a tree order each other in two ways.

**Gates.** A turn that joins branches is sent when every child of these branches has *ended*: its last
turn returned, with whatever outcome, or it overflowed or was stopped.

**Barriers.** A turn with recorded predecessors is held until each of them has *returned*, with whatever
outcome. A predecessor that can never return (its conversation ended before it, or will never be
started) counts as returned, or whoever waits for it would hold a lane for ever.

Both are a `Hold`: so many causes outstanding, and the plan time of the latest one that has happened.
When the last cause happens the hold opens and its waiter learns that time; the turn is then due at the
later of it and of its own recorded time. Causes are marked in the step in which a result is handled, so
what opens together is woken together, in the order of conversation ids.

A tree may begin in the middle (`begin_at`): what was recorded before counts as returned, plan time `NEVER`.
It may be *suspended* between two phases: every conversation is then parked without a task, those which were
held included, and is launched again in the next phase.

Recordings can contradict themselves (a predecessor which, by file order, is spawned by the very turn
it precedes). When every live conversation of a tree is held, nothing can ever happen in it again; the
barrier of the turn recorded first is then broken and counted. So a tree always drains.

This module keeps state and opens futures; it sends nothing and knows no time but plan times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from agentx_engine.replay.options import Counters
from agentx_engine.replay.protocols import TreeIdentity
from agentx_engine.replay.timers import TimerGroup
from agentx_engine.tree.model import ConversationTree, Turn

if TYPE_CHECKING:
    from agentx_engine.replay.idle import IdleCap
    from agentx_engine.replay.session import Session
    from agentx_engine.replay.start import LaneStart

NEVER: Final = -1  # plan time of something that has not happened: earlier than any other


class Hold:
    """A turn which waits for `remaining` causes; `future` gets the plan time of the latest, None = stop."""

    __slots__ = ("barrier", "conversation", "future", "latest_ns", "opened", "order", "remaining")

    def __init__(self, conversation: int, turn: Turn, conversation_id: str, barrier: bool) -> None:
        self.conversation = conversation
        self.order = (conversation_id, turn.index)
        self.barrier = barrier
        self.future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self.remaining = 0
        self.latest_ns = NEVER
        self.opened = False


class LiveTree:
    """State which the conversations of one live tree share.

    `on_held` is called when a conversation whose time has come cannot go on. `release_dead` off: turns that
    can never return hold whoever waits for them until the tree is halted, and no barrier is ever broken.
    """

    def __init__(
        self,
        *,
        plan: ConversationTree,
        identity: TreeIdentity,
        marker: str | None,
        timers: TimerGroup,
        counters: Counters,
        on_held: Callable[[], None],
        release_dead: bool = True,
    ) -> None:
        self.plan = plan
        self.identity = identity
        self.marker = marker
        self.timers = timers
        self.idle_cap: IdleCap | None = None
        self.sessions: dict[int, Session] = {}  # the live conversations
        self.started: set[int] = set()  # branches which must not be started again
        self.announced = False  # the recorder knows of it
        self.halted = False
        self.cut_ns: int | None = None  # torn down: what was armed for later than this was withdrawn
        self.suspended = False
        self.armed = 0  # requests of the tree that the transport has
        self.idle_since_ns = NEVER
        self.end_ns = NEVER  # latest plan end of its requests
        self.drained: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._halt: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._counters = counters
        self._on_held = on_held
        self._release_dead = release_dead
        count = len(plan.conversations)
        self._live = 0
        self._running = 0  # live conversations which are not held
        self._returned: list[list[int]] = [[] for _ in range(count)]  # plan end of each turn
        spawnable = {c for branch in plan.branches for c, _ in branch.children}
        # Plan time at which it was settled that a conversation sends nothing more, None = it still may.
        self._over_ns: list[int | None] = [
            NEVER if c != 0 and c not in spawnable else None for c in range(count)
        ]
        self._begun = [False] * count
        self._branch_of: dict[int, int] = {}
        self._open_children = [0] * len(plan.branches)
        self._branch_end_ns = [NEVER] * len(plan.branches)
        self._holds: list[Hold] = []
        self._gate_waiters: dict[int, list[Hold]] = {}  # by branch
        self._barrier_waiters: dict[int, list[tuple[int, Hold]]] = {}  # by conversation: turn, hold

    # -- the wire

    def sent(self, due_ns: int) -> None:
        """A request has been armed."""
        if not self.armed:
            self.idle_until(due_ns)
            if self.idle_cap is not None:
                self.idle_cap.busy()
        self.armed += 1

    def landed(self, end_ns: int) -> None:
        """A request has ended."""
        self.armed -= 1
        self.idle_since_ns = max(self.idle_since_ns, end_ns)
        if not self.armed and self.idle_cap is not None:
            self.idle_cap.idle(self.idle_since_ns)

    def idle_until(self, now_ns: int) -> None:
        """Counts the time for which the lane has been idle."""
        if not self.armed and now_ns > self.idle_since_ns:
            self._counters.lane_idled(now_ns - self.idle_since_ns)
            self.idle_since_ns = now_ns

    # -- conversations begin and end

    def begin_at(self, start: LaneStart) -> None:
        """Sets the state at a moment of the recording, before anything is registered.

        Conversations which neither are live at the start nor may still be started have ended.
        """
        for conversation, _, turns in start.done:
            self._returned[conversation] = [NEVER] * turns
        open_children = {stream.conversation for stream in start.streams}
        for number, (branch, state) in enumerate(zip(self.plan.branches, start.branches, strict=True)):
            if state == "ahead":
                open_children.update(child for child, _ in branch.children)
            else:
                self.started.add(number)
        for conversation in range(len(self._over_ns)):
            if conversation not in open_children:
                self._over_ns[conversation] = NEVER
                self._begun[conversation] = True

    def progress(self) -> list[int]:
        """How many turns of each conversation have returned."""
        return [len(ends) for ends in self._returned]

    def register(self, conversation: int, branch: int | None) -> None:
        """Counts a conversation as live. All children of a branch are registered before one is sent."""
        self._live += 1
        self._running += 1
        self._begun[conversation] = True
        if branch is not None:
            self._branch_of[conversation] = branch
            self._open_children[branch] += 1

    def returned(self, conversation: int, end_ns: int) -> None:
        """The next turn of the conversation has returned."""
        ends = self._returned[conversation]
        ends.append(end_ns)
        self.end_ns = max(self.end_ns, end_ns)
        waiters = self._barrier_waiters.get(conversation)
        if waiters:
            self._settle_barriers(conversation, waiters)

    def ended(self, conversation: int) -> None:
        """The conversation sends nothing more: it counts as finished in gates, its turns as returned."""
        self.sessions.pop(conversation, None)
        self._live -= 1
        self._running -= 1
        opened: list[Hold] = []
        branch = self._branch_of.get(conversation)
        if branch is not None:
            ends = self._returned[conversation]
            if ends:
                self._branch_end_ns[branch] = max(self._branch_end_ns[branch], ends[-1])
            self._open_children[branch] -= 1
            if not self._open_children[branch]:
                for hold in self._gate_waiters.pop(branch, ()):
                    self._cause(hold, self._branch_end_ns[branch], opened)
        over_ns = self._returned[conversation][-1] if self._returned[conversation] else NEVER
        over = [conversation]
        if conversation == 0:  # nobody is left to start the rest
            over += [c for c, begun in enumerate(self._begun) if not begun and self._over_ns[c] is None]
        for other in over:
            self._over_ns[other] = over_ns
        for other in over:
            waiters = self._barrier_waiters.get(other)
            if waiters:
                self._settle_barriers(other, waiters, opened)
        self._open(opened)
        if not self._live and not self.drained.done():
            self.drained.set_result(None)
        self._break_if_stuck()

    def halt(self) -> None:
        """Nothing more is sent: wakes every waiter with None, ends who is parked. Idempotent."""
        if not self.halted and not self._release_dead:
            self._counters.held_by_dead += sum(1 for hold in self._holds if self._held_by_dead(hold))
        self.halted = True
        self.timers.close()
        if self.idle_cap is not None:
            self.idle_cap.stop()
        if not self._halt.done():
            self._halt.set_result(None)
        self._drop_holds()
        for session in list(self.sessions.values()):
            session.dismiss()

    def suspend(self) -> None:
        """The phase is over: wakes every waiter with None; conversations park instead of ending."""
        self.suspended = True
        self._running += len(self._holds)
        self._drop_holds()

    def _drop_holds(self) -> None:
        for hold in self._holds:
            if not hold.future.done():
                hold.future.set_result(None)
        self._holds.clear()
        self._gate_waiters.clear()
        self._barrier_waiters.clear()

    def _held_by_dead(self, hold: Hold) -> bool:
        """Whether everything that a held turn still waits for can never happen."""
        if not hold.barrier:
            return False
        turn = self.plan.conversations[hold.conversation].turns[hold.order[1]]
        return all(
            len(self._returned[other]) > index or self._over_ns[other] is not None
            for other, index in turn.predecessors
        )

    def abandon(self) -> None:
        """After a defect: halts, and lets the lane go without counting who is still live."""
        self.halt()
        if not self.drained.done():
            self.drained.set_result(None)

    async def until_halted(self) -> None:
        await asyncio.shield(self._halt)

    def turns_returned(self, conversation: int) -> int:
        return len(self._returned[conversation])

    @property
    def held(self) -> int:
        """Conversations that wait at a gate or a barrier."""
        return len(self._holds)

    # -- gates and barriers; each gives (held, plan time of the latest cause), time None = stop

    async def gate(self, conversation: int, turn: Turn) -> int | None:
        """Waits until all children that the turn joins have ended.

        Returns the latest plan end among them, `NEVER` if there is none, None if the tree was halted. A
        branch of which no child was registered has nothing to wait for.
        """
        latest, hold = NEVER, None
        for branch in turn.joins:
            if self._open_children[branch]:
                hold = hold or self._new_hold(conversation, turn, barrier=False)
                hold.remaining += 1
                self._gate_waiters.setdefault(branch, []).append(hold)
            else:
                latest = max(latest, self._branch_end_ns[branch])
        if hold is None:
            return latest
        self._counters.join_waits += 1
        return await self._wait(hold, latest)

    def gated(self, turn: Turn) -> bool:
        """Whether a child that the turn joins is still alive."""
        return any(self._open_children[branch] for branch in turn.joins)

    def barrier_open(self, turn: Turn) -> int | None:
        """The latest plan end of the predecessors if all have returned (`NEVER` if none), else None."""
        latest = NEVER
        for conversation, index in turn.predecessors:
            returned_ns = self._returned_ns(conversation, index)
            if returned_ns is None:
                return None
            latest = max(latest, returned_ns)
        return latest

    async def barrier(self, conversation: int, turn: Turn) -> int | None:
        """Waits until all predecessors of the turn have returned; results like those of `gate`."""
        latest = self.barrier_open(turn)
        if latest is not None:
            return latest
        hold = self._new_hold(conversation, turn, barrier=True)
        latest = NEVER
        for other, index in turn.predecessors:
            returned_ns = self._returned_ns(other, index)
            if returned_ns is None:
                hold.remaining += 1
                self._barrier_waiters.setdefault(other, []).append((index, hold))
            else:
                latest = max(latest, returned_ns)
        self._counters.barrier_holds += 1
        return await self._wait(hold, latest)

    def _returned_ns(self, conversation: int, index: int) -> int | None:
        """When a turn returned, or when it was settled that it never will; None to go on waiting."""
        ends = self._returned[conversation]
        if len(ends) > index:
            return ends[index]
        return self._over_ns[conversation] if self._release_dead else None

    def _new_hold(self, conversation: int, turn: Turn, barrier: bool) -> Hold:
        return Hold(conversation, turn, self.plan.conversations[conversation].id, barrier)

    async def _wait(self, hold: Hold, latest_ns: int) -> int | None:
        if self.halted or self.suspended:
            return None
        hold.latest_ns = max(hold.latest_ns, latest_ns)
        self._holds.append(hold)
        self._running -= 1
        self._break_if_stuck()
        if not hold.future.done():
            self._on_held()
        try:
            return await hold.future
        finally:
            if hold.opened:
                self.timers.woke(-1)

    def _settle_barriers(
        self, conversation: int, waiters: list[tuple[int, Hold]], opened: list[Hold] | None = None
    ) -> None:
        """Marks the causes which have happened in a conversation."""
        mine: list[Hold] = [] if opened is None else opened
        left: list[tuple[int, Hold]] = []
        for index, hold in waiters:
            returned_ns = self._returned_ns(conversation, index)
            if returned_ns is None:
                left.append((index, hold))
            else:
                self._cause(hold, returned_ns, mine)
        if left:
            self._barrier_waiters[conversation] = left
        else:
            self._barrier_waiters.pop(conversation, None)
        if opened is None:
            self._open(mine)

    def _cause(self, hold: Hold, end_ns: int, opened: list[Hold]) -> None:
        hold.latest_ns = max(hold.latest_ns, end_ns)
        hold.remaining -= 1
        if hold.remaining == 0:
            opened.append(hold)

    def _open(self, holds: list[Hold]) -> None:
        holds.sort(key=lambda hold: hold.order)
        for hold in holds:
            if not hold.future.done():
                self._holds.remove(hold)
                self._running += 1
                hold.opened = True
                self.timers.woke(1)
                hold.future.set_result(hold.latest_ns)

    def _break_if_stuck(self) -> None:
        """If nobody can go on any more: opens the barrier of the turn that was recorded first."""
        if self._running or not self._holds or self.halted or not self._release_dead:
            return
        conversations = self.plan.conversations

        def recorded(hold: Hold) -> tuple[bool, int, tuple[str, int]]:
            turn = conversations[hold.conversation].turns[hold.order[1]]
            return (not hold.barrier, turn.start_ns, hold.order)

        self._counters.barriers_broken += 1
        first = min(self._holds, key=recorded)
        first.latest_ns = max(first.latest_ns, self.end_ns)  # what has just happened is why it opens now
        self._open([first])

"""The coroutine of one live conversation: a root or a subagent, from its first turn to its last.

A turn is due when the plan says so: at the plan end of the exchange that caused it plus the recorded
pause. When this process gets to know of that end, and what it does before it arms the request, makes
no difference to the due time; it shows in the dispatch lag instead of adding up along the session.

To be early, work is done ahead while a request is in flight: the next prompt is built, and the
prompts of children which the return of this turn will start. Building gives way once to all tasks that
are ready to run, so a burst of requests is armed before anyone begins to build.

The order of checks before a turn is sent: its timer, its gate, its barrier, whether the run still sends,
its lane's quota (of the warmup).

A conversation outlives the warmup although its task does not: it is *idle* before its launch and while it is
parked between the phases, keeps its prompt and its ids, and is launched again with the next turn. In the
accelerated warmup recorded pauses count as 0 and every output is limited to one token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentx_engine.replay.dispatch import Body, Dispatcher, Due, Flight
from agentx_engine.replay.options import Counters, ReplayOptions
from agentx_engine.replay.phase import Phase
from agentx_engine.replay.protocols import Prompt, PromptSource
from agentx_engine.replay.tree_run import LiveTree
from agentx_engine.transport.base import Outcome, Result
from agentx_engine.tree.model import Branch, Turn

if TYPE_CHECKING:
    from agentx_engine.core.rope import Rope


@dataclass(frozen=True, slots=True)
class Crew:
    """What all conversations of a run share.

    `start_task` runs a coroutine to its end; `fail` ends the run because of a defect; `warmup_failed`
    because of a warmup request of a root; `tear_down` ends one tree.
    """

    dispatcher: Dispatcher
    prompts: PromptSource
    counters: Counters
    options: ReplayOptions
    phase: Phase
    start_task: Callable[[Coroutine[None, None, None]], object]
    fail: Callable[[BaseException], None]
    warmup_failed: Callable[[Flight, Result], None]
    tear_down: Callable[[LiveTree], None]


class Session:
    """One live conversation. `launch` starts it; it ends by itself and tells the tree.

    `turn` is the turn that it goes on with; the turns before it count as returned.
    """

    def __init__(
        self, tree: LiveTree, conversation: int, crew: Crew, parent_id: str | None = None, turn: int = 0
    ) -> None:
        self._tree = tree
        self._crew = crew
        self._index = conversation
        self._turns = tree.plan.conversations[conversation].turns
        self._speaker = crew.dispatcher.speaker(tree, conversation, parent_id)
        self._prompt: Prompt | None = None
        self._advanced = 0  # turns which the prompt has taken
        self._rope: Rope | None = None  # body of the turn `_next`, once built
        self._rope_limit: int | None = None
        self._next = turn
        self._due_ns = 0
        self._known_ns = 0
        self._flight: Flight | None = None
        self._nursery: dict[int, list[Session]] = {}  # children made ahead, by branch
        self._busy = False  # a task plays it
        self._parked = False
        self._ended = False
        self._suspended = False  # came to a gate which was not open
        self._last: Outcome | None = None  # of the latest turn that returned

    @property
    def next_turn(self) -> int:
        return self._next

    def prime(self, due_ns: int, known_ns: int) -> None:
        """Sends the turn before the next one, one token of output. Nothing follows from its return."""
        self._due_ns, self._known_ns = due_ns, known_ns
        self._start(self._prime())

    def launch(self, due_ns: int, known_ns: int) -> None:
        """Starts the conversation with its next turn due at `due_ns`.

        The first request is armed before this returns if its time has come near and no barrier holds it, so
        that siblings which start together are armed together. The conversation must be registered in its
        tree. One without turns ends at once.
        """
        tree = self._tree
        self._due_ns, self._known_ns = due_ns, known_ns
        self._parked = False
        if self._next >= len(self._turns) or tree.halted:
            self._end()
            return
        if tree.suspended:
            return
        turn = self._turns[self._next]
        self._at_gate(turn)
        if due_ns - self._crew.options.arm_lead_ns <= self._crew.dispatcher.clock.now_ns() and not turn.joins:
            cleared = tree.barrier_open(turn)
            if cleared is not None:
                self._later_of(cleared)
                if not self._crew.phase.admits(tree.identity.lane):
                    return
                self._busy = True  # this request may be the one that ends the run
                self._arm()
        self._start(self._play())

    def dismiss(self) -> None:
        """Ends the conversation if no task is about to do it."""
        if not self._busy:
            self._end()

    def build(self) -> None:
        """Builds the body of the next turn unless that has been done."""
        if self._next < len(self._turns):
            self._build(self._next)

    def build_primer(self) -> None:
        self._build(self._next - 1)

    def _build(self, index: int) -> None:
        limit = self._crew.phase.limit
        if self._rope is not None and self._advanced == index + 1 and self._rope_limit == limit:
            return
        if self._prompt is None:
            self._prompt = self._crew.prompts.open(self._tree.plan, self._index, self._tree.marker)
        while self._advanced <= index:
            self._prompt.advance(self._turns[self._advanced])
            self._advanced += 1
        turn = self._turns[index]
        self._rope = self._prompt.rope(turn) if limit is None else self._prompt.rope(turn, max_tokens=limit)
        self._rope_limit = limit

    def _start(self, coroutine: Coroutine[None, None, None]) -> None:
        self._busy = True
        self._tree.timers.woke(1)
        self._crew.start_task(coroutine)

    async def _prime(self) -> None:
        self._tree.timers.woke(-1)
        try:
            due = await self._tree.timers.wait(self._due_ns)
            if due is not None:
                self._due_ns = due
                flight = self._send(self._next - 1)
                if flight is not None:
                    await asyncio.sleep(0)
                    if not self._tree.halted:
                        self.build()
                    result = await flight.handle.done
                    if self._crew.dispatcher.land(flight, result) and not self._may_go_on(result):
                        self._crew.warmup_failed(flight, result)
        except BaseException as error:
            self._crew.fail(error)
            raise
        finally:
            self._busy = False
            if self._tree.halted:
                self._end()

    async def _play(self) -> None:
        self._tree.timers.woke(-1)
        try:
            while self._flight is not None or await self._reach():
                flight = self._flight
                assert flight is not None
                await asyncio.sleep(0)  # whoever is ready to arm a request goes first
                if not self._tree.halted:
                    self._build_ahead()
                result = await flight.handle.done
                self._flight = None
                if not self._landed(flight, result):
                    break
        except BaseException as error:
            self._crew.fail(error)
            raise
        finally:
            self._busy = False
            if self._tree.halted or not self._parked:
                self._end()

    async def _reach(self) -> bool:
        """Waits until the next turn may be sent and arms it. False: it is parked, or the run ends before."""
        tree, turn, counters = self._tree, self._turns[self._next], self._crew.counters
        if tree.suspended:
            return self._park()
        due = await tree.timers.wait(self._due_ns)
        if due is None:
            return self._park()
        self._due_ns = due
        if turn.joins:
            ended = await tree.gate(self._index, turn)
            if ended is None:
                return self._park()
            self._later_of(ended)
            counters.join_wait_ns += self._due_ns - due
        if turn.predecessors:
            due = self._due_ns
            returned = await tree.barrier(self._index, turn)
            if returned is None:
                return self._park()
            self._later_of(returned)
            counters.barrier_hold_ns += self._due_ns - due
        end_ns = self._crew.dispatcher.end_ns
        if end_ns is not None and self._due_ns >= end_ns:
            # Neither sent nor over: its lane must not go on to another tree in the time that is left.
            await tree.until_halted()
            return False
        if not self._crew.phase.admits(tree.identity.lane):
            return self._park()
        return self._arm()

    def _park(self) -> bool:
        """Waits, without a task, for the next phase; if the tree was halted it ends instead."""
        if not self._tree.halted:
            self._parked = True
            self._rope = None
            if self._suspended:
                self._suspended = False
                self._crew.counters.branches.parents_carried_out += 1
        return False

    def _later_of(self, cause_ns: int) -> None:
        self._due_ns = max(self._due_ns, cause_ns)
        self._known_ns = max(self._known_ns, cause_ns)

    def _send(self, index: int) -> Flight | None:
        """Hands a turn to the transport, unless nothing is sent any more."""
        dispatcher, end_ns = self._crew.dispatcher, self._crew.dispatcher.end_ns
        if not dispatcher.sending or self._tree.halted or (end_ns is not None and self._due_ns >= end_ns):
            return None
        self._build(index)
        assert self._prompt is not None and self._rope is not None
        flight = dispatcher.arm(
            self._tree,
            self._speaker,
            self._turns[index],
            Body(self._rope, self._prompt.roles),
            Due(self._due_ns, self._known_ns),
        )
        if flight is not None:
            self._rope = None
        return flight

    def _arm(self) -> bool:
        flight = self._send(self._next)
        if flight is None:
            return False
        self._flight = flight
        self._next += 1
        if self._suspended:
            self._suspended = False
            self._crew.counters.branches.parents_resumed += 1
        self._crew.phase.sent(self._tree.identity.lane)  # before children take the lane's last request
        self._spawn(flight, "issue", flight.due.at_ns, flight.due.known_ns)
        return True

    def _landed(self, flight: Flight, result: Result) -> bool:
        """Takes the result of a turn; False if the conversation is over."""
        tree, crew = self._tree, self._crew
        if not crew.dispatcher.land(flight, result):
            return False
        end_ns = result.plan_end_ns
        known_ns = end_ns if result.stamps.end is None else max(end_ns, result.stamps.end)
        self._last = result.outcome
        tree.returned(self._index, end_ns)
        if tree.halted:
            return False
        if crew.phase.warming:
            if not self._may_go_on(result):
                crew.warmup_failed(flight, result)
                return False
        elif crew.options.fail_fast and self._index and not result.outcome.ok:
            crew.tear_down(tree)
            return False
        if result.outcome is Outcome.CONTEXT_OVERFLOW:
            return False
        self._spawn(flight, "return", end_ns, known_ns)
        if self._next >= len(self._turns):
            return False
        turn = self._turns[self._next]
        self._due_ns = end_ns + (0 if crew.phase.accelerated else turn.delay_ns)
        self._known_ns = known_ns
        self._at_gate(turn)
        return True

    def _may_go_on(self, result: Result) -> bool:
        """Warmup: a root that cannot be warmed spoils the run, a child is merely cold."""
        return self._index != 0 or result.outcome.ok

    def _at_gate(self, turn: Turn) -> None:
        if turn.joins and self._tree.gated(turn):
            self._suspended = True
            self._crew.counters.branches.parents_suspended += 1

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        stats = self._crew.counters.branches
        if self._suspended:
            stats.joins_suppressed += 1
        if self._index:
            if self._last is Outcome.CONTEXT_OVERFLOW:
                stats.children_errored += 1
            elif self._tree.turns_returned(self._index) < len(self._turns) or self._last is Outcome.CANCELLED:
                stats.children_truncated += 1
            elif self._last is None or self._last.ok:
                stats.children_completed += 1
            else:
                stats.children_errored += 1
        self._tree.ended(self._index)

    # -- children

    def _spawn(self, flight: Flight, when: str, base_ns: int, known_ns: int) -> None:
        """Starts the branches of a turn: registers all children, then launches them in one go."""
        tree, counters = self._tree, self._crew.counters
        if tree.halted:
            return
        born: list[tuple[Session, int]] = []
        for index in self._turns[flight.identity.turn].spawns:
            branch = tree.plan.branches[index]
            if branch.when != when or index in tree.started:
                continue
            tree.started.add(index)
            sessions = self._nursery.pop(index, None) or self._make_children(index)
            pause_ns = self._pause_ns(branch)
            if branch.when == "return" and pause_ns < branch.pause_ns and not self._crew.phase.accelerated:
                counters.pauses_dropped += 1
                counters.pause_dropped_ns += branch.pause_ns
            for (child, delay_ns), session in zip(branch.children, sessions, strict=True):
                tree.register(child, index)
                tree.sessions[child] = session
                wait_ns = pause_ns + self._delay_ns(delay_ns)
                counters.branches.children_spawned += 1
                counters.branches.children_delayed += wait_ns > 0
                born.append((session, base_ns + wait_ns))
        for session, due_ns in born:
            session.launch(due_ns, known_ns)

    def _pause_ns(self, branch: Branch) -> int:
        """What children wait for on top of their own delays."""
        if branch.when == "issue" or not self._crew.options.child_pause:
            return 0
        return self._delay_ns(branch.pause_ns)

    def _delay_ns(self, recorded_ns: int) -> int:
        return 0 if self._crew.phase.accelerated else recorded_ns

    def _make_children(self, branch: int) -> list[Session]:
        parent_id = self._speaker.correlation_id
        children = self._tree.plan.branches[branch].children
        return [Session(self._tree, child, self._crew, parent_id) for child, _ in children]

    def _build_ahead(self) -> None:
        """Builds what may be due soon after the turn in flight has returned."""
        branches = self._tree.plan.branches
        for index in self._turns[self._next - 1].spawns:
            if branches[index].when == "return":
                self._build_children(index)
        if self._next < len(self._turns):
            for index in self._turns[self._next].spawns:
                if branches[index].when == "issue":
                    self._build_children(index)
        self.build()

    def _build_children(self, index: int) -> None:
        """Makes the children of a branch ahead if one starts at once, and builds those which do."""
        if index in self._tree.started or index in self._nursery:
            return
        branch = self._tree.plan.branches[index]
        soon_ns = self._crew.options.arm_lead_ns - self._pause_ns(branch)
        waits_ns = [self._delay_ns(delay_ns) for _, delay_ns in branch.children]
        if all(wait_ns > soon_ns for wait_ns in waits_ns):
            return
        sessions = self._nursery[index] = self._make_children(index)
        for wait_ns, session in zip(waits_ns, sessions, strict=True):
            if wait_ns <= soon_ns:
                session.build()

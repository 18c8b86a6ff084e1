"""The coroutine of one live conversation: a root or a subagent, from its first turn to its last.

A turn is due when the plan says so: at the plan end of the exchange that caused it plus the recorded
pause. When this process gets to know of that end, and what it does before it arms the request, makes
no difference to the due time; it shows in the dispatch lag instead of adding up along the session.

To be early, work is done ahead while a request is in flight: the next prompt is built, and the
prompts of children which the return of this turn will start. Building gives way once to all tasks that
are ready to run, so a burst of requests is armed before anyone begins to build.

The order of checks before a turn is sent: its timer, its gate, its barrier, whether the run still sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentx_engine.replay.dispatch import Body, Dispatcher, Due, Flight
from agentx_engine.replay.options import Counters
from agentx_engine.replay.protocols import Prompt, PromptSource
from agentx_engine.replay.tree_run import LiveTree
from agentx_engine.transport.base import Outcome, Result

if TYPE_CHECKING:
    from agentx_engine.core.rope import Rope


@dataclass(frozen=True, slots=True)
class Crew:
    """What all conversations of a run share.

    `start_task` runs a coroutine to its end; `fail` ends the run because of a defect.
    """

    dispatcher: Dispatcher
    prompts: PromptSource
    counters: Counters
    lead_ns: int
    start_task: Callable[[Coroutine[None, None, None]], None]
    fail: Callable[[BaseException], None]


class Session:
    """One live conversation. `launch` starts it; it ends by itself and tells the tree."""

    def __init__(self, tree: LiveTree, conversation: int, crew: Crew, parent_id: str | None = None) -> None:
        self._tree = tree
        self._crew = crew
        self._index = conversation
        self._turns = tree.plan.conversations[conversation].turns
        self._speaker = crew.dispatcher.speaker(tree, conversation, parent_id)
        self._prompt: Prompt | None = None
        self._rope: Rope | None = None  # body of the turn `_next`, once built
        self._next = 0
        self._due_ns = 0
        self._known_ns = 0
        self._flight: Flight | None = None
        self._nursery: dict[int, list[Session]] = {}  # children made ahead, by branch

    def launch(self, due_ns: int, known_ns: int) -> None:
        """Starts the conversation with its first turn due at `due_ns`.

        The first request is armed before this returns if its time has come near and no barrier holds it, so
        that siblings which start together are armed together. The conversation must be registered in its
        tree. One without turns ends at once.
        """
        self._due_ns, self._known_ns = due_ns, known_ns
        if not self._turns:
            self._tree.ended(self._index)
            return
        if due_ns - self._crew.lead_ns <= self._crew.dispatcher.clock.now_ns() and not self._turns[0].joins:
            cleared = self._tree.barrier_open(self._turns[0])
            if cleared is not None:
                self._later_of(cleared)
                self._arm()
        self._crew.start_task(self._play())

    def build(self) -> None:
        """Builds the body of the next turn unless that has been done."""
        if self._rope is not None or self._next >= len(self._turns):
            return
        turn = self._turns[self._next]
        if self._prompt is None:
            self._prompt = self._crew.prompts.open(self._tree.plan, self._index, self._tree.marker)
        self._prompt.advance(turn)
        self._rope = self._prompt.rope(turn)

    async def _play(self) -> None:
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
            self._tree.ended(self._index)

    async def _reach(self) -> bool:
        """Waits until the next turn may be sent and arms it. False if the run ends before."""
        tree, turn, counters = self._tree, self._turns[self._next], self._crew.counters
        due = await tree.timers.wait(self._due_ns)
        if due is None:
            return False
        self._due_ns = due
        if turn.joins:
            ended = await tree.gate(self._index, turn)
            if ended is None:
                return False
            self._later_of(ended)
            counters.join_wait_ns += self._due_ns - due
        if turn.predecessors:
            due = self._due_ns
            returned = await tree.barrier(self._index, turn)
            if returned is None:
                return False
            self._later_of(returned)
            counters.barrier_hold_ns += self._due_ns - due
        end_ns = self._crew.dispatcher.end_ns
        if end_ns is not None and self._due_ns >= end_ns:
            # Neither sent nor over: its lane must not go on to another tree in the time that is left.
            await tree.until_halted()
            return False
        return self._arm()

    def _later_of(self, cause_ns: int) -> None:
        self._due_ns = max(self._due_ns, cause_ns)
        self._known_ns = max(self._known_ns, cause_ns)

    def _arm(self) -> bool:
        dispatcher = self._crew.dispatcher
        end_ns = dispatcher.end_ns
        if not dispatcher.sending or self._tree.halted or (end_ns is not None and self._due_ns >= end_ns):
            return False
        self.build()
        assert self._prompt is not None and self._rope is not None
        turn = self._turns[self._next]
        flight = dispatcher.arm(
            self._tree,
            self._speaker,
            turn,
            Body(self._rope, self._prompt.roles),
            Due(self._due_ns, self._known_ns),
        )
        if flight is None:
            return False
        self._flight = flight
        self._rope = None
        self._next += 1
        self._spawn(flight, "issue", flight.due.at_ns, flight.due.known_ns)
        return True

    def _landed(self, flight: Flight, result: Result) -> bool:
        """Takes the result of a turn; False if the conversation is over."""
        tree = self._tree
        if not self._crew.dispatcher.land(flight, result):
            return False
        end_ns = result.plan_end_ns
        known_ns = end_ns if result.stamps.end is None else max(end_ns, result.stamps.end)
        tree.returned(self._index, end_ns)
        if tree.halted or result.outcome is Outcome.CONTEXT_OVERFLOW:
            return False
        self._spawn(flight, "return", end_ns, known_ns)
        if self._next >= len(self._turns):
            return False
        self._due_ns = end_ns + self._turns[self._next].delay_ns
        self._known_ns = known_ns
        return True

    # -- children

    def _spawn(self, flight: Flight, when: str, base_ns: int, known_ns: int) -> None:
        """Starts the branches of a turn: registers all children, then launches them in one go."""
        tree = self._tree
        if tree.halted:
            return
        born: list[tuple[Session, int]] = []
        for index in self._turns[flight.identity.turn].spawns:
            branch = tree.plan.branches[index]
            if branch.when != when:
                continue
            sessions = self._nursery.pop(index, None) or self._make_children(index)
            start_ns = base_ns + (branch.pause_ns if when == "return" else 0)
            for (child, delay_ns), session in zip(branch.children, sessions, strict=True):
                tree.register(child, index)
                born.append((session, start_ns + delay_ns))
        for session, due_ns in born:
            session.launch(due_ns, known_ns)

    def _make_children(self, branch: int) -> list[Session]:
        parent_id = self._speaker.correlation_id
        children = self._tree.plan.branches[branch].children
        return [Session(self._tree, child, self._crew, parent_id) for child, _ in children]

    def _build_ahead(self) -> None:
        """Builds what may be due soon after the turn in flight has returned."""
        branches = self._tree.plan.branches
        for index in self._turns[self._next - 1].spawns:
            branch = branches[index]
            if branch.when == "return":
                self._build_children(index, branch.pause_ns)
        if self._next < len(self._turns):
            for index in self._turns[self._next].spawns:
                if branches[index].when == "issue":
                    self._build_children(index, 0)
        self.build()

    def _build_children(self, branch: int, pause_ns: int) -> None:
        """Makes the children of a branch ahead if one starts at once, and builds those which do."""
        lead_ns = self._crew.lead_ns
        children = self._tree.plan.branches[branch].children
        if all(pause_ns + delay_ns > lead_ns for _, delay_ns in children):
            return
        sessions = self._nursery[branch] = self._make_children(branch)
        for (_, delay_ns), session in zip(children, sessions, strict=True):
            if pause_ns + delay_ns <= lead_ns:
                session.build()

"""A recorded trace becomes a tree of conversations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentx_engine.core.ids import common_prefix
from agentx_engine.corpus.model import Subagent, Trace
from agentx_engine.errors import CorpusError
from agentx_engine.tree import barriers, branches, hits
from agentx_engine.tree.calls import (
    NS_PER_S,
    Call,
    in_time_order,
    read_call,
    seconds_to_ns,
    where,
)
from agentx_engine.tree.chains import Split, split_agents
from agentx_engine.tree.model import (
    Branch,
    Conversation,
    ConversationTree,
    DroppedSubagent,
    Turn,
    TurnRef,
)
from agentx_engine.tree.naming import name_workers
from agentx_engine.tree.options import TreeOptions
from agentx_engine.tree.segments import Step, declared_blocks, lay_out

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INTEGER_CLOCK = "integer_clock_split"

AgentClass = Literal["root", "sa", "fa", "aux", "wg"]
DEFAULT_OPTIONS = TreeOptions()


@dataclass(slots=True)
class _Stream:
    """A conversation before its turns are laid out."""

    id: str
    kind: Literal["root", "subagent", "flat"]
    agent_class: AgentClass
    scope: str
    calls: Sequence[Call]
    common: list[int]
    prefix_tokens: int = 0
    chain: int = 0
    background: bool = False


def build_tree(trace: Trace, options: TreeOptions = DEFAULT_OPTIONS) -> ConversationTree:
    """The tree that a lane plays. `trace` has absolute inner times (`corpus.clock`).

    Conversations stand in this order: root, the subagents as in the file (main chain, then hidden agents
    inside), the hidden agents of the root's list. A subagent with an empty request list is a
    conversation without turns: it has ended as soon as it starts.

    Raises CorpusError: no root request, two subagents with one agent id, ids that are no list of ids, a
    declared prefix longer than the first prompt.

    Source: agentx-v1, sections 1.7, 2, 3.4 to 3.6, 9.4.
    """
    return _Builder(trace, options).build()


class _Builder:
    def __init__(self, trace: Trace, options: TreeOptions) -> None:
        self.trace = trace
        self.options = options
        self.streams: list[_Stream] = []
        self.children: list[branches.Child] = []
        self.dropped: list[DroppedSubagent] = []
        self.corrections = list(trace.corrections)

    def build(self) -> ConversationTree:
        trace = self.trace
        split = self._read_root()
        self.root = split.main
        self.turns_of_root = branches.RootTurns(split.main)
        self._add(
            _Stream(
                trace.id, "root", "root", trace.id, split.main, [], trace.tool_tokens + trace.system_tokens
            )
        )
        self._add_subagents()
        self._add_hidden_agents(split)

        grouped = branches.group(trace.id, self.root, self.children)
        for branch in grouped:
            for conversation, _ in branch.children:
                self.streams[conversation].background = branch.background
        gates = _Gates(len(self.root), grouped)
        predecessors = self._barriers() if self.options.barriers else {}
        hit_blocks = hits.prefix_hits([hits.Stream(s.calls, s.common, s.chain) for s in self.streams])
        return ConversationTree(
            trace_id=trace.id,
            block_size=trace.block_size,
            tool_tokens=trace.tool_tokens,
            system_tokens=trace.system_tokens,
            conversations=tuple(
                self._conversation(number, stream, hit_blocks[number], gates, predecessors)
                for number, stream in enumerate(self.streams)
            ),
            branches=grouped,
            corrections=tuple(self.corrections),
            dropped=tuple(self.dropped),
        )

    def _read_root(self) -> Split:
        trace = self.trace
        calls = [
            read_call(trace, entry, (place, None))
            for place, entry in enumerate(trace.requests)
            if not isinstance(entry, Subagent)
        ]
        if not calls:
            source = f"{trace.source}: " if trace.source else ""
            raise CorpusError(
                f"{source}trace {trace.id}: no request of its own, so there is nothing to replay. "
                "Remove the trace from the corpus."
            )
        whole_seconds = self.options.integer_clock_tolerance and all(
            c.start_ns % NS_PER_S == 0 for c in calls
        )
        split = self._split(calls, tolerance_ns=NS_PER_S if whole_seconds else 0)
        if split.used_tolerance:
            self.corrections.append(INTEGER_CLOCK)
        # Untouched lists are played as the file has them, even where times go backwards.
        return split if split.workers else split._replace(main=calls)

    def _split(self, calls: list[Call], tolerance_ns: int = 0) -> Split:
        ordered = in_time_order(calls)
        if not self.options.split_hidden_agents:
            return Split(ordered)
        return split_agents(ordered, tolerance_ns=tolerance_ns)

    def _add(self, stream: _Stream) -> int:
        ids = [call.ids for call in stream.calls]
        stream.common = [0, *map(common_prefix, ids, ids[1:])] if ids else []
        self.streams.append(stream)
        return len(self.streams) - 1

    def _add_subagents(self) -> None:
        trace = self.trace
        seen: dict[str, int] = {}
        for place, entry in enumerate(trace.requests):
            if not isinstance(entry, Subagent):
                continue
            spawn = self.turns_of_root.spawn(place)
            if spawn is None:
                reason = "stands before the first root request: nobody spawns it"
                self.dropped.append(DroppedSubagent(place, entry.agent_id, len(entry.requests), reason))
                continue
            if entry.agent_id in seen:
                raise CorpusError(
                    f"{where(trace, (place, None))}: field agent_id: {entry.agent_id!r} is also the id of "
                    f"requests[{seen[entry.agent_id]}]. Give each subagent of a trace its own id."
                )
            seen[entry.agent_id] = place
            self._add_subagent(place, entry, spawn)

    def _add_subagent(self, place: int, entry: Subagent, spawn: int) -> None:
        trace = self.trace
        calls = [read_call(trace, request, (place, i)) for i, request in enumerate(entry.requests)]
        split = self._split(calls)
        prefix_tokens = entry.tool_tokens + entry.system_tokens
        prefix_blocks = declared_blocks(prefix_tokens, trace.block_size)
        scope = f"{trace.id}::sa:{entry.agent_id}"
        start_ns = seconds_to_ns(entry.t)
        main = self._add(_Stream(scope, "subagent", "sa", scope, split.main, [], prefix_tokens))
        conversations = [(main, split.main[0].start_ns if split.main else start_ns)]
        for chain, worker in enumerate(name_workers(split), start=1):
            inherits = _starts_with(worker.calls, split.main[split.head :], prefix_blocks)
            extra = self._add(
                _Stream(
                    id=f"{scope}:{worker.name}",
                    kind="subagent",
                    agent_class=worker.agent_class,
                    scope=scope,
                    calls=worker.calls,
                    common=[],
                    prefix_tokens=prefix_tokens if inherits else 0,
                    chain=chain,
                )
            )
            conversations.append((extra, worker.calls[0].start_ns))
        if entry.duration_ms is not None:
            end_ns = start_ns + max(0, round(entry.duration_ms * 1e6))
        else:
            end_ns = max((call.end_ns for call in calls), default=start_ns)
        self.children.append(
            branches.Child(
                label=entry.agent_id,
                hidden=False,
                spawn_turn=spawn,
                join_turn=self.turns_of_root.join(place, end_ns, spawn),
                start_ns=start_ns,
                conversations=tuple(conversations),
            )
        )

    def _add_hidden_agents(self, split: Split) -> None:
        trace = self.trace
        prefix_tokens = trace.tool_tokens + trace.system_tokens
        prefix_blocks = declared_blocks(prefix_tokens, trace.block_size)
        for number, worker in enumerate(name_workers(split)):
            first = worker.calls[0]
            inherits = _starts_with(worker.calls, split.main[split.head :], prefix_blocks)
            conversation = self._add(
                _Stream(
                    id=f"{trace.id}::{worker.name}",
                    kind="flat",
                    agent_class=worker.agent_class,
                    scope=trace.id,
                    calls=worker.calls,
                    common=[],
                    prefix_tokens=prefix_tokens if inherits else 0,
                )
            )
            spawn = self.turns_of_root.spawn(first.index) or 0
            if self.options.time_ordered_spawns:
                spawn = min(spawn, self.turns_of_root.precedes(first))
            end_ns = max(call.end_ns for call in worker.calls)
            self.children.append(
                branches.Child(
                    label=str(number),
                    hidden=True,
                    spawn_turn=spawn,
                    join_turn=self.turns_of_root.join(first.index, end_ns, spawn),
                    start_ns=first.start_ns,
                    conversations=((conversation, first.start_ns),),
                )
            )

    def _barriers(self) -> Mapping[TurnRef, tuple[TurnRef, ...]]:
        scopes: dict[str, list[barriers.Stream]] = {}
        for number, stream in enumerate(self.streams):
            scopes.setdefault(stream.scope, []).append(barriers.Stream(number, stream.id, stream.calls))
        edges: dict[TurnRef, tuple[TurnRef, ...]] = {}
        for streams in scopes.values():
            edges |= barriers.predecessors(streams)
        return edges

    def _conversation(
        self,
        number: int,
        stream: _Stream,
        hit_blocks: Sequence[int],
        gates: _Gates,
        predecessors: Mapping[TurnRef, tuple[TurnRef, ...]],
    ) -> Conversation:
        block_size = self.trace.block_size
        system_blocks = declared_blocks(stream.prefix_tokens, block_size)
        if stream.calls and system_blocks > stream.calls[0].ids.size:
            raise CorpusError(
                f"{where(self.trace, stream.calls[0].source)}: the declared prefix (tool_tokens + "
                f"system_tokens = {stream.prefix_tokens} tokens, {system_blocks} blocks) is longer than the "
                f"prompt's {stream.calls[0].ids.size} hash ids. Correct tool_tokens and system_tokens, or "
                "set them to 0."
            )
        layouts = lay_out(
            [
                Step(call.in_tokens, call.ids.size, call.out_tokens, common)
                for call, common in zip(stream.calls, stream.common, strict=True)
            ],
            block_size=block_size,
            system_blocks=system_blocks,
            clamp_prefix=self.options.clamp_prefix,
        )
        turns = []
        previous: Call | None = None
        for k, (call, layout) in enumerate(zip(stream.calls, layouts, strict=True)):
            turns.append(
                Turn(
                    index=k,
                    source=call.source,
                    model=call.model,
                    in_tokens=call.in_tokens,
                    max_tokens=max(1, call.out_tokens),
                    recorded_out=call.out_tokens,
                    start_ns=call.start_ns,
                    api_ns=None if call.api_ns is None else max(0, call.api_ns),
                    delay_ns=_delay_ns(previous, call),
                    keep_blocks=layout.keep_blocks,
                    new_blocks=call.ids[layout.keep_blocks : layout.blocks].copy(),
                    keep_messages=layout.keep_messages,
                    messages=layout.messages,
                    hit_blocks=hit_blocks[k],
                    total_blocks=call.ids.size,
                    input_kind=_input_kind(previous, call),
                    spawns=gates.spawns[k] if number == 0 else (),
                    joins=gates.joins[k] if number == 0 else (),
                    predecessors=predecessors.get(TurnRef(number, k), ()),
                )
            )
            previous = call
        return Conversation(
            id=stream.id,
            kind=stream.kind,
            turns=tuple(turns),
            parent=None if number == 0 else 0,
            depth=0 if number == 0 else 1,
            background=stream.background,
            scope=stream.scope,
            agent_class=stream.agent_class,
        )


class _Gates:
    """Branches by the root turns that start them and that wait for them."""

    def __init__(self, turns: int, grouped: Sequence[Branch]) -> None:
        self.spawns: list[tuple[int, ...]] = [()] * turns
        self.joins: list[tuple[int, ...]] = [()] * turns
        for number, branch in enumerate(grouped):
            self.spawns[branch.spawn_turn] += (number,)
            if branch.join_turn is not None:
                self.joins[branch.join_turn] += (number,)


def _delay_ns(previous: Call | None, call: Call) -> int:
    """Recorded pause between the return of one turn and the start of the next, never negative."""
    if previous is None:
        return 0
    return max(0, call.start_ns - previous.start_ns - (previous.api_ns or 0))


def _input_kind(previous: Call | None, call: Call) -> Literal["tool_result", "user_input"] | None:
    if call.input_types:
        return "tool_result" if "tool_result" in call.input_types else "user_input"
    if previous is None or not previous.stop:
        return None
    return "tool_result" if previous.stop == "tool_use" else "user_input"


def _starts_with(calls: Sequence[Call], owner: Sequence[Call], blocks: int) -> bool:
    """Whether a hidden agent's first prompt begins with the declared prefix of its owner's main chain."""
    first = next((call.ids for call in owner if call.ids.size), None)
    return first is not None and bool(blocks) and common_prefix(calls[0].ids, first) >= blocks

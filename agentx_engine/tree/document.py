"""A tree as the plain data of the golden documents, for `corpus tree --json` and for comparing engines.

Fields: `trace, file, corrections?, block_size, tool_tokens, system_tokens, branches[], conversations[]`.
Times are milliseconds. `seg` is the full list of messages on the wire; `reset` and `new` tell how the
official harness stores the turn: everything again, or only what was appended. One key more than the
official form: `pause_ms` of a branch, the recorded pause between the spawning turn's return and its start.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentx_engine.corpus.model import Trace
    from agentx_engine.tree.model import Branch, Conversation, ConversationTree, Message, Turn


def to_document(tree: ConversationTree, trace: Trace) -> dict[str, Any]:
    """Plain dicts, lists, strings and numbers. Units: ms, tokens, blocks."""
    document: dict[str, Any] = {
        "trace": tree.trace_id,
        "file": PurePath(trace.source).name or f"{tree.trace_id}.json",
    }
    if tree.corrections:
        document["corrections"] = list(tree.corrections)
    return document | {
        "block_size": tree.block_size,
        "tool_tokens": tree.tool_tokens,
        "system_tokens": tree.system_tokens,
        "branches": [_branch(tree, branch) for branch in tree.branches],
        "conversations": [_conversation(tree, conversation) for conversation in tree.conversations],
    }


def _branch(tree: ConversationTree, branch: Branch) -> dict[str, Any]:
    return {
        "id": branch.id,
        "spawn_turn": branch.spawn_turn,
        "when": branch.when,
        "start_ms": _ms(branch.start_ns),
        "pause_ms": _ms(branch.pause_ns),
        "join_turn": branch.join_turn,
        "background": branch.background,
        "children": [[tree.conversations[child].id, _ms(delay)] for child, delay in branch.children],
    }


def _conversation(tree: ConversationTree, conversation: Conversation) -> dict[str, Any]:
    is_root = conversation.parent is None
    turns = []
    messages: list[Message] = []
    for turn in conversation.turns:
        turns.append(_turn(tree, turn, messages))
    return {
        "id": conversation.id,
        "kind": conversation.kind,
        "class": conversation.agent_class,
        "parent": None if conversation.parent is None else tree.conversations[conversation.parent].id,
        "scope": conversation.scope,
        "depth": conversation.depth,
        "background": None if is_root else conversation.background,
        "turns": turns,
    }


def _turn(tree: ConversationTree, turn: Turn, messages: list[Message]) -> dict[str, Any]:
    """`messages` is the prompt of the turn before and becomes this turn's."""
    block_size = tree.block_size
    # Stored whole again if an earlier message changed, or if the same prompt is sent again.
    reset = turn.index > 0 and (turn.keep_messages < len(messages) or not turn.messages)
    messages[turn.keep_messages :] = turn.messages
    segments = [[m.role, m.blocks * block_size + m.tail] for m in messages]
    blocks = turn.keep_blocks + turn.new_blocks.size
    document: dict[str, Any] = {
        "i": turn.index,
        "src": list(turn.source),
        "in": turn.in_tokens,
        "out": turn.max_tokens,
        "rec_out": turn.recorded_out,
        "model": turn.model,
        "t_ms": _ms(turn.start_ns),
        "api_ms": None if turn.api_ns is None else _ms(turn.api_ns),
        "delay_ms": _ms(turn.delay_ns) if turn.index else None,
        "reset": reset,
        "new": len(messages) if reset else len(turn.messages),
        "input_kind": turn.input_kind,
        "hit": turn.hit_blocks,
        "blocks": turn.total_blocks,
        "tail": turn.in_tokens - block_size * blocks,
    }
    if turn.predecessors:
        document["pred"] = [[tree.conversations[p.conversation].id, p.turn] for p in turn.predecessors]
    if turn.spawns:
        document["spawns"] = [tree.branches[b].id for b in turn.spawns]
    if turn.joins:
        document["joins"] = [tree.branches[b].id for b in turn.joins]
    document["seg"] = segments
    total = sum(m.blocks * block_size + m.tail for m in messages)
    if total != turn.in_tokens:
        document["sum"] = total
    return document


def _ms(ns: int) -> int | float:
    """Whole where it is; else to the microsecond, below which recorded times are rounding noise."""
    ms = round(ns / 1e6, 3)
    return int(ms) if ms.is_integer() else ms

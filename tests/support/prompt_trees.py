"""Small conversation trees, written by hand."""

import numpy as np

from agentx_engine.tree.model import Conversation, ConversationTree, Message, Turn

ROLES = {"s": "system", "u": "user", "a": "assistant"}


def turn(index, ids, keep_blocks=0, keep_messages=0, *, messages=(), block_size=4, **fields):
    """A turn with the prompt `ids`; messages are ("u", start, blocks) or ("u", start, blocks, tail).

    `in_tokens` is what the appended messages add up to, unless it is given.
    """
    parts = tuple(
        Message(ROLES[role], start, blocks, *(tail or [0])) for role, start, blocks, *tail in messages
    )
    defaults = {
        "source": (index, None),
        "model": "recorded",
        "in_tokens": sum(m.blocks * block_size + m.tail for m in parts),
        "max_tokens": 10,
        "recorded_out": 10,
        "start_ns": 0,
        "api_ns": None,
        "delay_ns": 0,
        "hit_blocks": 0,
        "total_blocks": len(ids),
    }
    return Turn(
        index=index,
        keep_blocks=keep_blocks,
        new_blocks=np.array(ids[keep_blocks:], dtype=np.int32),
        keep_messages=keep_messages,
        messages=parts,
        **(defaults | fields),
    )


def tree(*conversations, trace_id="trace_a", block_size=4):
    """A tree of conversations given as lists of turns; the first is the root."""
    return ConversationTree(
        trace_id=trace_id,
        block_size=block_size,
        tool_tokens=0,
        system_tokens=0,
        conversations=tuple(
            Conversation(
                id=f"{trace_id}::sa:{i}" if i else trace_id,
                kind="subagent" if i else "root",
                turns=tuple(turns),
                parent=0 if i else None,
                depth=min(i, 1),
            )
            for i, turns in enumerate(conversations)
        ),
        branches=(),
    )

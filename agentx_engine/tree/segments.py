"""How a prompt is cut into role messages, turn by turn.

The recording says how many tokens a prompt has and which block ids it starts with, not who said what. The
roles are derived from growth: what turn k adds to turn k-1 begins with the answer of turn k-1 (its
recorded output, rounded up to whole blocks) and goes on with the user's words or tool results. The
derivation needs only four integers per turn, so it is written on them alone: `Step`.

The messages of a prompt tile its blocks. Going from one turn to the next cuts the tile at the longest
common prefix of the two id lists and appends; both happen at the end of the list of messages, so the
list is a stack, and a whole conversation costs time in proportion to the messages ever appended.

Look-ahead. A later turn that only cuts (an abandoned branch, a context edit) ends with whoever owns the
block before the cut. If that were the assistant, the prompt would end with an assistant message. A first
pass over the tile finds these turns and caps the assistant's share at the turn which introduced the
block, so that the block is the user's from the start.

Source: agentx-v1, sections 3.4 to 3.6, 11-6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from agentx_engine.tree.model import Message

if TYPE_CHECKING:
    from collections.abc import Sequence


class Step(NamedTuple):
    """One turn: prompt tokens, length of its id list, recorded output tokens, and the longest common
    prefix (in ids) with the list of the turn before (0 for the first)."""

    in_tokens: int
    ids: int
    out_tokens: int
    common: int


class Layout(NamedTuple):
    """One turn's prompt as a difference to the turn before; see `model.Turn`."""

    keep_blocks: int
    blocks: int  # whole blocks of the prompt that come from the id list
    keep_messages: int
    messages: tuple[Message, ...]


def declared_blocks(prefix_tokens: int, block_size: int) -> int:
    """Blocks of the declared tool and system prefix, rounded up."""
    return -(-prefix_tokens // block_size)


def lay_out(
    steps: Sequence[Step], *, block_size: int, system_blocks: int = 0, clamp_prefix: bool = True
) -> list[Layout]:
    """The messages of every turn of one conversation.

    `system_blocks` is the declared prefix, which becomes a system message of the first turn; it must not
    exceed the first turn's id list (the caller checks, it knows the trace's name). With `clamp_prefix` the
    messages of each turn add up to `in_tokens`; without, they do where an id list has no partial block.
    """
    if not steps:
        return []
    whole = [_covered(step, block_size) for step in steps]
    cuts = [step.common for step in steps]
    if clamp_prefix:
        cuts[1:] = map(min, cuts[1:], whole, whole[1:])
    caps = _assistant_caps(steps, whole, cuts, block_size)
    first, covered = steps[0], whole[0]
    stack = _opening(covered, _tail(first, block_size), min(system_blocks, covered))
    users = sum(m.role == "user" for m in stack)
    layouts = [Layout(0, covered, 0, tuple(stack))]

    for k in range(1, len(steps)):
        step, cut = steps[k], cuts[k]
        before, covered = covered, whole[k]

        while stack and stack[-1].start >= cut:
            users -= stack.pop().role == "user"
        keep_messages = len(stack)
        if stack:
            last = stack[-1]
            end = last.start + last.blocks
            if end > cut or (end == cut and last.tail):
                keep_messages -= 1
                stack[-1] = Message(last.role, last.start, min(last.blocks, cut - last.start), 0)

        new = max(0, covered - cut)
        tail = _tail(step, block_size)
        answer = min(-(-steps[k - 1].out_tokens // block_size), new) if users else 0
        if k in caps:
            answer = min(answer, caps[k])
        if answer == new and new > 0 and tail == 0:
            answer -= 1
        if answer:
            stack.append(Message("assistant", cut, answer, 0))
        if new > answer or tail or not stack:
            stack.append(Message("user", cut + answer, new - answer, tail))
            users += 1
        layouts.append(
            Layout(min(cut, before, covered), covered, keep_messages, tuple(stack[keep_messages:]))
        )
    return layouts


def _opening(covered: int, tail: int, system_blocks: int) -> list[Message]:
    messages = [Message("system", 0, system_blocks, 0)] if system_blocks else []
    if covered > system_blocks or tail or not messages:
        messages.append(Message("user", system_blocks, covered - system_blocks, tail))
    return messages


def _covered(step: Step, block_size: int) -> int:
    return min(step.in_tokens // block_size, step.ids)


def _tail(step: Step, block_size: int) -> int:
    """Tokens that no block id covers: the partial last block, and whole ones where the list is short."""
    return step.in_tokens - _covered(step, block_size) * block_size


def _assistant_caps(
    steps: Sequence[Step], whole: Sequence[int], cuts: Sequence[int], block_size: int
) -> dict[int, int]:
    """Turn -> most blocks that the assistant's message of that turn may have."""
    caps: dict[int, int] = {}
    kept = [0] * len(steps)  # tile length that survived into each turn
    owners = [(whole[0], 0)]  # runs of the tile: (end block, turn that introduced it)
    for k in range(1, len(steps)):
        keep = kept[k] = min(cuts[k], owners[-1][0])
        while len(owners) > 1 and owners[-2][0] >= keep:
            owners.pop()
        owners[-1] = (keep, owners[-1][1])
        if whole[k] > keep:
            owners.append((whole[k], k))
        elif keep and not _tail(steps[k], block_size):
            owner = owners[-1][1]
            room = keep - 1 - kept[owner]
            if owner and room >= 0:
                caps[owner] = min(caps.get(owner, room), room)
    return caps

"""A recorded session as a tree of conversations: the plan that a lane plays.

Built once per trace by `tree.build`, immutable afterwards, shared by every lane that plays the trace.
Times are integer nanoseconds counted from the start of the trace. Positions of prompt text are in
blocks (of `ConversationTree.block_size` tokens) from the start of the prompt.

A prompt is a list of messages that tile the request's blocks; only the last message may have a tail
(tokens beyond whole blocks). Prompts are stored as differences: turn k keeps the first
`keep_blocks` block ids and the first `keep_messages` messages of turn k-1 and appends its own, so a tree
takes memory in proportion to what is new in each turn, not to the sum of its prompts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Role = Literal["system", "user", "assistant"]


class Message(NamedTuple):
    """`blocks` whole blocks from block position `start`, then `tail` tokens that belong to no block."""

    role: Role
    start: int
    blocks: int
    tail: int


class TurnRef(NamedTuple):
    """A turn of a conversation, by index into `ConversationTree.conversations` and `.turns`."""

    conversation: int
    turn: int


class Turn(msgspec.Struct, gc=False):
    """One request of the recording.

    The prompt's block ids are ``previous[:keep_blocks] + new_blocks``; its messages are
    ``previous[:keep_messages] + messages``. The tokens of all messages add up to `in_tokens`.
    """

    index: int
    source: tuple[int, int | None]  # index in the trace's request list, index in the subagent's list
    model: str
    in_tokens: int
    max_tokens: int  # output limit: max(1, recorded output)
    recorded_out: int
    start_ns: int  # recorded start
    api_ns: int | None  # recorded duration, None = unknown
    delay_ns: int  # pause after the previous turn of this conversation returned; 0 for turn 0
    keep_blocks: int
    new_blocks: NDArray[np.int32]
    keep_messages: int
    messages: tuple[Message, ...]
    hit_blocks: int  # theoretical prefix-cache hits: leading blocks seen before in this trace
    total_blocks: int
    input_kind: Literal["tool_result", "user_input"] | None = None
    spawns: tuple[int, ...] = ()  # branches started by this turn, indices into ConversationTree.branches
    joins: tuple[int, ...] = ()  # branches whose children must have ended before this turn is sent
    predecessors: tuple[TurnRef, ...] = ()  # turns of other streams that must have returned before


class Conversation(msgspec.Struct):
    """A sequence of turns that share one growing prompt: the root, a subagent, or a hidden agent.

    "flat" is a hidden agent of the root's request list; one inside a recorded subagent is a "subagent" too,
    told apart by its `agent_class`. No turns = an empty recording: it has ended as soon as it starts.
    """

    id: str  # trace id, or trace id + "::sa:" + agent id, ...
    kind: Literal["root", "subagent", "flat"]
    turns: tuple[Turn, ...]
    parent: int | None = None  # index of the spawning conversation, None for the root
    depth: int = 0
    background: bool = False  # nobody waits for it
    scope: str = ""  # barrier scope
    agent_class: str = "root"  # root, sa, fa, aux, wg


class Branch(msgspec.Struct):
    """Children that start together.

    `when` is "issue" (children start when the spawning turn is sent) or "return" (after it has
    returned and `pause_ns`, the recorded pause between its end and the branch start, has passed). Each
    child's delay counts from there.
    """

    id: str
    spawn_turn: int
    when: Literal["issue", "return"]
    start_ns: int
    pause_ns: int
    join_turn: int | None  # root turn that waits for all children; None = background
    children: tuple[tuple[int, int], ...]  # (conversation index, delay_ns)

    @property
    def background(self) -> bool:
        return self.join_turn is None


class DroppedSubagent(NamedTuple):
    """A recorded subagent that is not replayed: its entry in the trace's request list, and why."""

    entry: int
    agent_id: str
    requests: int
    reason: str


class ConversationTree(msgspec.Struct):
    """`conversations[0]` is the root; all others are its direct children."""

    trace_id: str
    block_size: int
    tool_tokens: int
    system_tokens: int
    conversations: tuple[Conversation, ...]
    branches: tuple[Branch, ...]
    corrections: tuple[str, ...] = ()  # repairs: "subagent_clock", "integer_clock_split"
    dropped: tuple[DroppedSubagent, ...] = ()

    @property
    def root(self) -> Conversation:
        return self.conversations[0]

    @property
    def requests(self) -> int:
        return sum(len(c.turns) for c in self.conversations)

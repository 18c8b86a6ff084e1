"""Prompts of a forecast: no text, but the identity of every block of it.

What a prefix cache can share is decided by bytes: two prompts have a block in common if they are the same up
to and with that block. So the prompts of a trace form a trie, and a block of a prompt is a *node* of it: the
node of the block before, the block's hash id, and, where a message begins, its role (a chat template puts
something there). A prompt is a path of nodes. Nodes of one trace are numbered once, in the order of
conversations and turns; this takes time in proportion to what is new in each turn.

Each play of a trace has nodes of its own, since the cache-bust marker in the first user message makes all
behind it private; a declared system prefix stands before the marker and is shared between plays. Without a
marker all plays of a trace share all nodes. Nodes of all plays live in one numbered space: a play has a
range of it, its number of a node is the trace's plus the start of its range. The client shares text
between plays whatever the marker, so texts have a space of their own, with one range per trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from agentx_engine.core.rope import Rope
    from agentx_engine.tree.model import ConversationTree, Turn

_ROLE = {"system": 1, "user": 2, "assistant": 3}


class TraceNodes:
    """The trie of one trace: `steps[c][k]` = (cut, nodes), so that turn k's path is the first `cut` nodes of
    turn k-1's path and then `nodes`."""

    __slots__ = ("count", "plays", "steps")

    def __init__(self, tree: ConversationTree) -> None:
        numbers: dict[int, int] = {}
        self.steps: list[list[tuple[int, NDArray[np.int32]]]] = []
        self.plays = 0  # live plays that use it
        for conversation in tree.conversations:
            ids: list[int] = []
            path: list[int] = []
            steps: list[tuple[int, NDArray[np.int32]]] = []
            for turn in conversation.turns:
                del ids[turn.keep_blocks :]
                ids += turn.new_blocks.tolist()
                cut = min(len(path), turn.messages[0].start if turn.messages else turn.keep_blocks)
                del path[cut:]
                for message in turn.messages:
                    role = _ROLE[message.role]
                    for block in ids[message.start : message.start + message.blocks]:
                        key = (path[-1] + 1 if path else 0) << 34 | (block & 0xFFFFFFFF) << 2 | role
                        path.append(numbers.setdefault(key, len(numbers)))
                        role = 0
                steps.append((cut, np.array(path[cut:], dtype=np.int32)))
            self.steps.append(steps)
        self.count = len(numbers)


class Space:
    """Numbers of nodes, given out in ranges. `reusable` says whether nothing refers to a range any more."""

    def __init__(self, reusable: Callable[[int, int], bool]) -> None:
        self.size = 0
        self._reusable = reusable
        self._dead: list[tuple[int, int]] = []  # count, start

    def take(self, count: int) -> int:
        """The start of a range of at least `count` numbers."""
        for place, (size, start) in enumerate(self._dead):
            if size >= count and self._reusable(start, start + size):
                del self._dead[place]
                return start
        start, self.size = self.size, self.size + count
        return start

    def give_back(self, start: int, count: int) -> None:
        self._dead.append((count, start))
        self._dead.sort()


class Body:
    """A request of a forecast: how many tokens, and which blocks. Stands in the place of a rope."""

    __slots__ = ("last", "nodes", "play", "prompt", "system", "tail", "tokens")

    def __init__(self, prompt: PathPrompt, turn: Turn, nodes: NDArray[np.int32], last: bool) -> None:
        self.prompt = prompt
        self.play = prompt.play
        self.tokens = turn.in_tokens
        self.nodes = nodes  # numbered within the trace
        self.system = prompt.system
        self.last = last  # of its conversation
        self.tail = max(0, turn.in_tokens - len(nodes) * prompt.play.block_size)  # tokens in no block

    def path(self, start: int = 0) -> NDArray[np.intp]:
        """The nodes from block `start` on, numbered among all plays."""
        play = self.play
        path = np.add(
            self.nodes[start:], play.start, dtype=np.intp
        )  # what numpy indexes with at half the cost
        shared = self.system - start
        if shared > 0 and play.shared_start != play.start:
            path[:shared] += play.shared_start - play.start
        return path

    def common(self, other: Body) -> int:
        """So many leading nodes are the same as those of another body of the play. Paths that part in a trie
        never meet again."""
        count = min(len(self.nodes), len(other.nodes))
        return int(np.count_nonzero(self.nodes[:count] == other.nodes[:count]))

    def texts(self, start: int = 0) -> NDArray[np.intp]:
        """The nodes from block `start` on, numbered among all traces."""
        return np.add(self.nodes[start:], self.play.text_start, dtype=np.intp)


class Play(NamedTuple):
    """One play of a trace: where its nodes are in the spaces."""

    key: tuple[str, str | None]  # trace id, marker
    trace: TraceNodes
    block_size: int
    start: int
    shared_start: int  # of the nodes of system prefixes
    text_start: int


class PathPrompt:
    """`Prompt` of one live conversation. `resident`: its body that was sent last, for whoever keeps books."""

    def __init__(self, tree: ConversationTree, conversation: int, play: Play) -> None:
        self.play = play
        self.system = 0  # blocks of the leading system message
        self.resident: Body | None = None
        self._last_turn = len(tree.conversations[conversation].turns) - 1
        self._steps = play.trace.steps[conversation]
        self._nodes = np.empty(64, dtype=np.int32)
        self._used = 0
        self._roles: list[str] = []

    @property
    def roles(self) -> tuple[int, int, int]:
        count = self._roles.count
        return count("system"), count("user"), count("assistant")

    def advance(self, turn: Turn) -> None:
        del self._roles[turn.keep_messages :]
        self._roles += [message.role for message in turn.messages]
        if not turn.keep_messages and turn.messages:
            first = turn.messages[0]
            self.system = first.blocks if first.role == "system" else 0
        cut, new = self._steps[turn.index]
        size = cut + len(new)
        if size > len(self._nodes) or cut < self._used:
            # Bodies hold views: what they show is never written again.
            nodes = np.empty(max(64, size + size // 2), dtype=np.int32)
            nodes[:cut] = self._nodes[:cut]
            self._nodes = nodes
        self._nodes[cut:size] = new
        self._used = size

    def rope(self, turn: Turn, max_tokens: int | None = None) -> Rope:
        last = turn.index == self._last_turn
        return cast("Rope", Body(self, turn, self._nodes[: self._used], last))


class PathPrompts:
    """`PromptSource` of a forecast. `spaces` grow as plays begin; `grown` is told their sizes."""

    def __init__(self, nodes: Space, texts: Space, grown: Callable[[int, int], None]) -> None:
        self._nodes = nodes
        self._texts = texts
        self._grown = grown
        self._traces: dict[str, TraceNodes] = {}  # of live plays
        self._starts: dict[str, tuple[int, int]] = {}  # of traces that were ever played: shared, text
        self._plays: dict[tuple[str, str | None], Play] = {}

    def open(self, tree: ConversationTree, conversation: int, marker: str | None) -> PathPrompt:
        key = (tree.trace_id, marker)
        play = self._plays.get(key)
        if play is None:
            play = self._plays[key] = self._begin(tree, key)
        return PathPrompt(tree, conversation, play)

    def _begin(self, tree: ConversationTree, key: tuple[str, str | None]) -> Play:
        name, marker = key
        trace = self._traces.get(name)
        if trace is None:
            trace = self._traces[name] = TraceNodes(tree)
        trace.plays += 1
        if name not in self._starts:
            self._starts[name] = (self._nodes.take(trace.count), self._texts.take(trace.count))
        shared, texts = self._starts[name]
        start = shared if marker is None else self._nodes.take(trace.count)
        self._grown(self._nodes.size, self._texts.size)
        return Play(key, trace, tree.block_size, start, shared, texts)

    def close(self, trace_id: str, marker: str | None) -> Play | None:
        """Ends a play: nobody will open a prompt of it again. None if there was no prompt, or no marker."""
        play = self._plays.pop((trace_id, marker), None) if marker is not None else None
        if play is not None:
            play.trace.plays -= 1
            if not play.trace.plays:
                del self._traces[trace_id]
            self._nodes.give_back(play.start, play.trace.count)
        return play

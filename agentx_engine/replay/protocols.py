"""What the scheduler needs from others: traces, prompts, and someone who takes the records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

import msgspec

from agentx_engine.metrics.record import RequestIdentity, RequestRecord
from agentx_engine.tree.model import ConversationTree, Turn

if TYPE_CHECKING:
    from agentx_engine.core.rope import Rope

T = TypeVar("T")


class TreeSource(Protocol):
    """The corpus as the sampler sees it: traces by position."""

    def __len__(self) -> int: ...

    def trace_id(self, index: int) -> str: ...

    def load(self, index: int) -> ConversationTree:
        """Reads and reconstructs one trace; may take milliseconds; called from another thread.

        Raises:
            UserError: the trace cannot be used.
        """


class Prompt(Protocol):
    """The growing prompt of one live conversation."""

    @property
    def roles(self) -> tuple[int, int, int]:
        """Numbers of system, user and assistant messages of the turn last advanced to."""

    def advance(self, turn: Turn) -> None:
        """Goes on to `turn`; turns come in order, each once."""

    def rope(self, turn: Turn, max_tokens: int | None = None) -> Rope:
        """The whole body of the request, for the turn last advanced to.

        `max_tokens` replaces the turn's output limit.
        """


class PromptSource(Protocol):
    def open(self, tree: ConversationTree, conversation: int, marker: str | None) -> Prompt:
        """Begins the prompt of ``tree.conversations[conversation]``.

        `marker` is the text that tells this live tree's prompts from all others: the same for all its
        conversations, another for every other tree; None for no marker.
        """


class TreeIdentity(msgspec.Struct, frozen=True):
    """One play of a trace by a lane."""

    index: int  # of the trace in the corpus
    trace_id: str
    lane: int
    play: int  # how often this trace had been started before in this run
    endpoint: int
    root_correlation_id: str


TreeEnd = Literal["drained", "stopped"]


class Recorder(Protocol):
    """Takes what happens, in the order in which the scheduler learns of it. Must be quick."""

    def tree_started(self, tree: TreeIdentity, start_ns: int) -> None:
        """A lane begins to play a trace; its first request is due at `start_ns`."""

    def tree_finished(self, tree: TreeIdentity, reason: TreeEnd, end_ns: int) -> None:
        """`drained`: every conversation has reached its end; `stopped`: the run ended before."""

    def started(self, identity: RequestIdentity) -> None:
        """The request has been handed to the transport."""

    def finished(self, record: RequestRecord) -> None: ...

    def withdrawn(self, identity: RequestIdentity) -> None:
        """The request was started but taken back before it was due: it leaves no record."""


IdFactory = Callable[[], str]
HeaderFactory = Callable[[RequestIdentity], bytes]


class Offload(Protocol):
    """Runs a function so that the loop goes on meanwhile, and gives its result."""

    def __call__(self, function: Callable[[int], T], argument: int, /) -> Awaitable[T]: ...

"""What the tree builder may repair or leave out."""

from __future__ import annotations

import msgspec


class TreeOptions(msgspec.Struct, frozen=True):
    """Defaults give the session as it was; `harness()` gives what the official harness makes of it.

    split_hidden_agents: take interleaved agents of one flat request list apart (chains and seams).
    barriers: order the streams of one scope by recorded completion (`Turn.predecessors`).
    integer_clock_tolerance: where every root time of a trace is a whole second, a continuation may
        seem to start up to 1 s before its predecessor ended; take it for a continuation.
    clamp_prefix: never keep more of the previous prompt than whole blocks which both prompts have.
        Without it a partial last block with an id of its own makes prompts longer than recorded.
    time_ordered_spawns: in a file whose requests are not in time order, a hidden agent starts from a turn
        that precedes it in time too. Without it turns can wait for an agent that only a later turn starts.
    """

    split_hidden_agents: bool = True
    barriers: bool = True
    integer_clock_tolerance: bool = True
    clamp_prefix: bool = True
    time_ordered_spawns: bool = True

    @classmethod
    def harness(cls) -> TreeOptions:
        """Parity with agentx-harness 1.0.12, known faults included."""
        return cls(integer_clock_tolerance=False, clamp_prefix=False, time_ordered_spawns=False)

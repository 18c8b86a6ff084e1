"""Which turns of other streams had returned before a request was sent: recorded-completion barriers.

Inside one scope (the root with its hidden agents; a recorded subagent with its own) streams ran side by
side, and what one of them wrote another may have read. So a request waits for everything that had returned
before it in the recording. Of each other stream only the latest completion counts (earlier ones are
implied by the order of the stream), and of those only the frontier: one that ended before another began is
implied by it.

One sweep in time. Completions enter a list sorted by end as the sweep passes them, one entry per
stream. With M = the latest start among the other streams' entries, an entry survives exactly if it ended
after M, or started at M; these stand together at the list's end. So a request costs O(log streams + its
own edges), and where nothing else has completed since the stream's previous request, nothing at all: the
two share one tuple.

Source: agentx-v1, section 2.11.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, NamedTuple

from agentx_engine.tree.model import TurnRef

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentx_engine.tree.calls import Call


class Stream(NamedTuple):
    conversation: int
    id: str
    calls: Sequence[Call]


class _Entry(NamedTuple):
    """The latest completion of a stream."""

    end_ns: int
    start_ns: int
    stream: int
    turn: int


def predecessors(streams: Sequence[Stream]) -> dict[TurnRef, tuple[TurnRef, ...]]:
    """Turn -> turns of the scope's other streams that must have returned, by (conversation id, turn).

    Turns without predecessors are absent.
    """
    if len(streams) < 2:
        return {}
    streams = sorted(streams, key=lambda s: s.id)
    completions = sorted(
        _Entry(call.end_ns, call.start_ns, number, turn)
        for number, s in enumerate(streams)
        for turn, call in enumerate(s.calls)
    )
    requests = sorted(
        (call.start_ns, number, turn) for number, s in enumerate(streams) for turn, call in enumerate(s.calls)
    )
    frontier = _Frontier(len(streams))
    edges: dict[TurnRef, tuple[TurnRef, ...]] = {}
    last: list[tuple[int, tuple[TurnRef, ...]]] = [(0, ())] * len(streams)
    passed = 0
    for start_ns, number, turn in requests:
        while passed < len(completions):
            entry = completions[passed]
            if (entry.end_ns, entry.start_ns) >= (start_ns, start_ns):
                break
            frontier.complete(entry)
            passed += 1
        others = passed - frontier.completed[number]
        if last[number][0] != others:
            refs = tuple(TurnRef(streams[e.stream].conversation, e.turn) for e in frontier.before(number))
            last[number] = (others, refs)
        if refs := last[number][1]:
            edges[TurnRef(streams[number].conversation, turn)] = refs
    return edges


class _Frontier:
    """The latest completion per stream, sorted by end and, apart, by start."""

    __slots__ = ("_by_end", "_by_start", "_latest", "completed")

    def __init__(self, streams: int) -> None:
        self._latest: list[_Entry | None] = [None] * streams
        self._by_end: list[_Entry] = []
        self._by_start: list[tuple[int, int]] = []
        self.completed = [0] * streams

    def complete(self, entry: _Entry) -> None:
        """The next completion in (end, start) order."""
        previous = self._latest[entry.stream]
        if previous is not None:
            del self._by_end[bisect_left(self._by_end, previous)]
            del self._by_start[bisect_left(self._by_start, (previous.start_ns, previous.stream))]
        self._latest[entry.stream] = entry
        insort(self._by_end, entry)
        insort(self._by_start, (entry.start_ns, entry.stream))
        self.completed[entry.stream] += 1

    def before(self, stream: int) -> list[_Entry]:
        """What a request of `stream` has to wait for, by stream."""
        latest_start = None
        for start_ns, other in reversed(self._by_start):
            if other != stream:
                latest_start = start_ns
                break
        found: list[_Entry] = []
        if latest_start is None:
            return found
        for entry in reversed(self._by_end):
            if entry.end_ns < latest_start:
                break
            implied = entry.end_ns == latest_start and entry.start_ns < latest_start
            if entry.stream != stream and not implied:
                found.append(entry)
        return sorted(found, key=lambda e: e.stream)

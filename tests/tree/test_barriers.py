"""Recorded-completion barriers against the plain reading of agentx-v1 section 2.11."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from agentx_engine.tree.barriers import Stream, predecessors
from agentx_engine.tree.calls import Call
from agentx_engine.tree.model import TurnRef

Span = tuple[int, int]  # start, end


def stream(number: int, name: str, spans: list[Span]) -> Stream:
    calls = [
        Call(
            source=(k, None),
            index=k,
            model="m",
            in_tokens=0,
            out_tokens=0,
            start_ns=start,
            api_ns=end - start,
            end_ns=end,
            ids=np.empty(0, np.int32),
            input_types=(),
            stop="",
        )
        for k, (start, end) in enumerate(spans)
    ]
    return Stream(number, name, calls)


def plain(streams: list[Stream]) -> dict[TurnRef, tuple[TurnRef, ...]]:
    edges = {}
    for own in streams:
        for turn, request in enumerate(own.calls):
            frontier = []
            for other in streams:
                if other is own:
                    continue
                done = [
                    (c.end_ns, c.start_ns, (other.id, k), other.conversation)
                    for k, c in enumerate(other.calls)
                    if c.start_ns < request.start_ns and c.end_ns <= request.start_ns
                ]
                if done:
                    frontier.append(max(done))
            kept = [
                TurnRef(conversation, k)
                for end, start, (name, k), conversation in sorted(frontier, key=lambda e: e[2])
                if not any(f[1] > start and f[1] >= end for f in frontier)
            ]
            if kept:
                edges[TurnRef(own.conversation, turn)] = tuple(kept)
    return edges


SPANS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), max_size=7)


@settings(max_examples=60)
@given(st.lists(SPANS, min_size=1, max_size=6), st.booleans())
def test_same_as_the_plain_reading(durations: list[list[Span]], ordered: bool) -> None:
    streams = [
        stream(n, f"T::{(7 * n) % 5}{n}", [(s, s + d) for s, d in (sorted(spans) if ordered else spans)])
        for n, spans in enumerate(durations)
    ]
    assert predecessors(streams) == plain(streams)


def test_both_directions() -> None:
    """As in trace_0053: root turns wait for the agent's last turn before them, and the other way round."""
    root = stream(0, "T", [(0, 2), (20, 22), (30, 32), (50, 52)])
    agent = stream(1, "T::fa:000", [(3, 5), (6, 9), (40, 45)])
    assert predecessors([root, agent]) == {
        TurnRef(0, 1): (TurnRef(1, 1),),
        TurnRef(0, 2): (TurnRef(1, 1),),
        TurnRef(0, 3): (TurnRef(1, 2),),
        TurnRef(1, 0): (TurnRef(0, 0),),
        TurnRef(1, 1): (TurnRef(0, 0),),
        TurnRef(1, 2): (TurnRef(0, 2),),
    }


def test_touching_is_ordered_overlap_and_equal_starts_are_not() -> None:
    assert predecessors([stream(0, "a", [(0, 5)]), stream(1, "b", [(5, 6)])]) == {
        TurnRef(1, 0): (TurnRef(0, 0),)
    }
    assert predecessors([stream(0, "a", [(0, 5)]), stream(1, "b", [(4, 6)])]) == {}
    assert predecessors([stream(0, "a", [(5, 5)]), stream(1, "b", [(5, 6)])]) == {}


def test_one_that_ended_before_another_began_is_implied() -> None:
    streams = [
        stream(0, "a", [(0, 1)]),
        stream(1, "b", [(2, 4)]),
        stream(2, "c", [(3, 5)]),
        stream(3, "d", [(9, 9)]),
    ]
    assert predecessors(streams)[TurnRef(3, 0)] == (TurnRef(1, 0), TurnRef(2, 0))


def test_unchanged_frontier_is_shared() -> None:
    """A long stream beside one that has ended holds one tuple, not one per turn."""
    ended = stream(0, "a", [(0, 1)])
    going = stream(1, "b", [(k, k + 1) for k in range(2, 500)])
    edges = predecessors([ended, going])
    assert len(edges) == 498
    assert len({id(refs) for refs in edges.values()}) == 1


def test_order_is_by_conversation_id() -> None:
    streams = [stream(0, "z", [(0, 3)]), stream(1, "a", [(0, 3)]), stream(2, "m", [(4, 5)])]
    assert predecessors(streams)[TurnRef(2, 0)] == (TurnRef(1, 0), TurnRef(0, 0))

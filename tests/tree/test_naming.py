"""Names of hidden agents: agentx-v1 section 2.6."""

from __future__ import annotations

import pytest
from support.recordings import BLOCK, request, trace

from agentx_engine.corpus.model import TraceRequest
from agentx_engine.tree import build_tree


def names(*requests: TraceRequest) -> list[str]:
    return [c.id.removeprefix("T::") for c in build_tree(trace(*requests)).conversations[1:]]


def main(t: float, blocks: int) -> list[TraceRequest]:
    """Two calls, the second of which is in flight while everything else happens."""
    return [request(t, range(blocks - 1), api=0.5), request(t + 0.75, range(blocks), api=1000.5)]


@pytest.mark.parametrize(
    ("tokens", "out", "model", "name"),
    [
        (16_383, 5000, "m", "aux:000"),  # small
        (16_384, 5000, "m", "fa:000"),
        (60_000, 5000, "other", "aux:000"),  # another model
        (60_000, 2_999, "m", "aux:000"),  # reduction: in > 20 out
        (60_000, 3_000, "m", "fa:000"),
        (100_000, 4_000, "m", "fa:000"),
        (60_000, 0, "m", "fa:000"),
    ],
)
def test_one_call(tokens: int, out: int, model: str, name: str) -> None:
    agent = request(1.5, range(5000, 5000 + tokens // BLOCK), tokens=tokens, out=out, model=model)
    assert names(*main(0, 300), agent) == [name]


def test_small_is_relative_to_the_peak_of_the_main_chain() -> None:
    peak = [request(0, range(3999), api=0.5), request(1, range(4000), tokens=300_000, api=1000.5)]
    at = request(1.5, range(5000, 5400), tokens=30_000, out=5000)
    below = request(1.5, range(5000, 5400), tokens=29_999, out=5000)
    assert names(*peak, at) == ["fa:000"]
    assert names(*peak, below) == ["aux:000"]


def test_a_preamble_does_not_define_the_main_chain() -> None:
    preamble = request(0, [9000], out=5, model="tiny")
    agent = request(3.5, range(5000, 5400), out=5000, api=1)
    assert names(preamble, *main(2, 300), agent) == ["fa:000"]


def two_calls(t: float, branch: int, api: float) -> list[TraceRequest]:
    ids = [*range(200), *range(10_000 * branch, 10_000 * branch + 100)]
    return [request(t, ids, api=1), request(t + 1, [*ids, 10_000 * branch + 100], api=api)]


def test_workers_that_forked_together_and_overlap_are_a_group() -> None:
    calls = main(0, 600)
    for branch, t in [(1, 1.5), (2, 2.0), (3, 2.5)]:
        calls += two_calls(t, branch, 5)
    calls.sort(key=lambda r: r.t)
    assert names(*calls) == ["wg:000_000", "wg:000_001", "wg:000_002"]


def test_two_are_no_group_and_touching_is_no_overlap() -> None:
    calls = [*main(0, 600), *two_calls(1.5, 1, 5), *two_calls(2, 2, 5), *two_calls(8, 3, 5)]
    calls.sort(key=lambda r: r.t)
    assert names(*calls) == ["fa:000", "fa:001", "fa:002"]


def test_helper_calls_count_but_keep_their_name() -> None:
    helper = request(2.2, [*range(200), 77_777], api=3, out=5)
    calls = [*main(0, 600), *two_calls(1.5, 1, 5), *two_calls(2, 2, 5), helper]
    calls.sort(key=lambda r: r.t)
    assert sorted(names(*calls)) == ["aux:002", "wg:000_000", "wg:000_001"]


def test_unrelated_agents_are_no_group() -> None:
    calls = main(0, 600)
    for branch, t in [(1, 1.5), (2, 2.0), (3, 2.5)]:
        ids = range(10_000 * branch, 10_000 * branch + 300)
        calls += [request(t, ids, api=1), request(t + 1, [*ids, 5], api=5)]
    calls.sort(key=lambda r: r.t)
    assert names(*calls) == ["fa:000", "fa:001", "fa:002"]

"""Timer groups: order, spacing and exactness under shifts; never early on any clock."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from support.replays import MS, SECOND

from agentx_engine.replay.realclock import LoopClock
from agentx_engine.replay.simulated import SimulatedClock, run_simulated
from agentx_engine.replay.timers import TimerSystem

START = 1_000_000_000


class Log:
    """Callbacks which note when and for which due time they were called."""

    def __init__(self, clock: SimulatedClock) -> None:
        self.clock = clock
        self.calls: list[tuple[Any, int, int]] = []

    def __call__(self, name: Any) -> Callable[[int], None]:
        return lambda due: self.calls.append((name, due, self.clock.now_ns()))


def run_out(clock: SimulatedClock) -> None:
    while clock.step():
        pass


def test_timers_fire_lead_ahead_of_their_due_time_in_order() -> None:
    clock = SimulatedClock(START)
    system, log = TimerSystem(clock, lead_ns=50), Log(clock)
    one, two = system.group(), system.group()
    one.at(START + 300, log("c"))
    two.at(START + 100, log("a"))
    one.at(START + 200, log("b"))
    two.at(START + 300, log("d"))  # as c, but set later
    assert system.next_due_ns == START + 100
    run_out(clock)
    assert log.calls == [
        ("a", START + 100, START + 50),
        ("b", START + 200, START + 150),
        ("c", START + 300, START + 250),
        ("d", START + 300, START + 250),
    ]
    assert (len(system), system.next_due_ns) == (0, None)


def test_a_group_shift_moves_one_group() -> None:
    clock = SimulatedClock(START)
    system, log = TimerSystem(clock), Log(clock)
    one, two = system.group(), system.group()
    for due in (900 * SECOND, 960 * SECOND):
        one.at(START + due, log(("one", due)))
    two.at(START + 700 * SECOND, log("two"))
    clock.call_at(START + 300 * SECOND, lambda: one.advance(600 * SECOND))
    run_out(clock)
    # agentx-v1, section 12.1: due now and in 60 s.
    assert [(name, due - START) for name, due, _ in log.calls] == [
        (("one", 900 * SECOND), 300 * SECOND),
        (("one", 960 * SECOND), 360 * SECOND),
        ("two", 700 * SECOND),
    ]
    assert all(due == called for _, due, called in log.calls)


def test_a_system_shift_moves_all() -> None:
    clock = SimulatedClock(START)
    system, log = TimerSystem(clock), Log(clock)
    one, two = system.group(), system.group()
    one.at(START + 40 * SECOND, log("a"))
    two.at(START + 55 * SECOND, log("b"))
    system.advance(33 * SECOND)  # agentx-v1, section 12.1
    late = two.at(START + 8 * SECOND, log("c"))  # set after the shift: not moved by it
    assert late.due_ns == START + 8 * SECOND
    run_out(clock)
    assert [(name, due - START) for name, due, _ in log.calls] == [
        ("a", 7 * SECOND),
        ("c", 8 * SECOND),
        ("b", 22 * SECOND),
    ]


def test_what_a_shift_brings_into_the_past_fires_at_once() -> None:
    clock = SimulatedClock(START)
    system, log = TimerSystem(clock), Log(clock)
    system.group().at(START + 10, log("a"))
    system.advance(25)
    run_out(clock)
    assert log.calls == [("a", START - 15, START)]


def test_cancelled_and_closed_timers_do_not_fire() -> None:
    clock = SimulatedClock(START)
    system, log = TimerSystem(clock), Log(clock)
    one, two = system.group(), system.group()
    first = one.at(START + 1, log("first"))
    one.at(START + 2, log("second"))
    two.at(START + 3, log("third"))
    first.cancel()
    first.cancel()
    assert (len(one), system.next_due_ns) == (1, START + 2)
    two.close()
    two.close()
    with pytest.raises(RuntimeError, match="closed"):
        two.at(START + 5, log("fourth"))
    run_out(clock)
    assert [name for name, *_ in log.calls] == ["second"]


def test_callbacks_may_set_shift_and_close() -> None:
    clock = SimulatedClock(START)
    system, log = TimerSystem(clock), Log(clock)
    one, two = system.group(), system.group()

    def first(due: int) -> None:
        log("first")(due)
        one.at(due, log("same instant"))
        two.advance(500)
        three.close()

    three = system.group()
    one.at(START + 100, first)
    two.at(START + 1000, log("shifted"))
    three.at(START + 100, log("never"))
    run_out(clock)
    assert log.calls == [
        ("first", START + 100, START + 100),
        ("same instant", START + 100, START + 100),
        ("shifted", START + 500, START + 500),
    ]


def test_only_forward_shifts() -> None:
    system = TimerSystem(SimulatedClock())
    with pytest.raises(ValueError, match="forward"):
        system.advance(-1)
    with pytest.raises(ValueError, match="forward"):
        system.group().advance(-1)


def test_wait() -> None:
    async def main(clock: SimulatedClock) -> list[int | None]:
        system = TimerSystem(clock, lead_ns=50)
        one, two = system.group(), system.group()
        now = clock.now_ns()
        assert await one.wait(now - 5) == now - 5  # past: at once
        assert await one.wait(now + 50) == now + 50  # the lead has begun: at once
        assert clock.now_ns() == now
        assert await one.wait(now + 51) == now + 51
        assert clock.now_ns() == now + 1
        waits = [asyncio.ensure_future(g.wait(now + 10_000)) for g in (one, two, two)]
        await asyncio.sleep(0)
        assert (len(one), len(two)) == (1, 2)
        waits[2].cancel()
        await asyncio.gather(waits[2], return_exceptions=True)
        assert len(two) == 1
        one.advance(1_000)
        two.close()
        found = [await waits[0], await waits[1], await two.wait(now + 99_999)]
        assert clock.now_ns() == now + 10_000 - 1_000 - 50
        assert (len(system), system.next_due_ns) == (0, None)
        return found

    clock = SimulatedClock(START)
    assert run_simulated(main, clock) == [START + 9_000, None, None]


Step = tuple[str, int, int]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 3), st.integers(0, 50)),
        st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("shift"), st.integers(0, 3), st.integers(0, 20)),
        st.tuples(st.just("shift all"), st.just(0), st.integers(0, 20)),
        st.tuples(st.just("close"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("go"), st.integers(1, 30), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(STEPS, st.sampled_from([0, 5]))
def test_against_a_plain_list(steps: list[Step], lead: int) -> None:
    """The heaps do what a list does in which a shift walks over every timer."""
    clock = SimulatedClock(START)
    system, log = TimerSystem(clock, lead_ns=lead), Log(clock)
    groups = [system.group() for _ in range(4)]
    closed: set[int] = set()
    handles: list[Any] = []
    model: dict[int, tuple[int, int]] = {}  # number: (due, group)
    expected: list[tuple[Any, int, int]] = []

    def model_to(now: int) -> None:
        """Fires what is due up to `now`, each at the first instant at which it could."""
        while ready := [(due, n) for n, (due, _) in model.items() if due - lead <= now]:
            due, number = min(ready)
            expected.append((number, due, max(due - lead, clock.now_ns())))
            del model[number]

    for name, place, value in steps:
        if name == "set" and place not in closed:
            due = clock.now_ns() + value
            model[len(handles)] = (due, place)
            handles.append(groups[place].at(due, log(len(handles))))
        elif name == "cancel" and place < len(handles):
            handles[place].cancel()
            model.pop(place, None)
        elif name == "shift":
            groups[place].advance(value)
            model = {n: (due - value * (g == place), g) for n, (due, g) in model.items()}
        elif name == "shift all":
            system.advance(value)
            model = {n: (due - value, g) for n, (due, g) in model.items()}
        elif name == "close":
            groups[place].close()
            closed.add(place)
            model = {n: (due, g) for n, (due, g) in model.items() if g != place}
        elif name == "go":
            target = clock.now_ns() + place
            model_to(target)
            clock.call_at(target, lambda: None)
            while clock.now_ns() < target or _pending_at(clock, target):
                clock.step()
        assert len(system) == len(model)
        assert system.next_due_ns == min((due for due, _ in model.values()), default=None)
    assert sorted(log.calls, key=str) == sorted(expected, key=str)
    assert [(due, n) for n, due, _ in log.calls] == [(due, n) for n, due, _ in expected]
    assert all(called >= due - lead for _, due, called in log.calls)


def _pending_at(clock: SimulatedClock, now: int) -> bool:
    heap = clock._heap
    while heap and heap[0].callback is None:
        heapq.heappop(heap)
    return bool(heap) and heap[0].when_ns <= now


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_real_clock_is_never_early(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> list[int]:
        clock = LoopClock()
        loop = asyncio.get_running_loop()
        late: list[int] = []
        done = loop.create_future()
        waits = [0, 1, 999, 100_000, 999_999, MS, MS + 1, 2 * MS, 2 * MS + 499_999, 7 * MS, 30 * MS]
        # A loop that has been busy counts its timers from a time that has passed.
        time.sleep(0.005)  # noqa: ASYNC251
        for wait in waits:
            when = clock.now_ns() + wait

            def fired(when: int = when) -> None:
                late.append(clock.now_ns() - when)
                if len(late) == len(waits):
                    done.set_result(None)

            clock.call_at(when, fired)
        cancelled = clock.call_at(clock.now_ns() + MS, lambda: late.append(-1))
        cancelled.cancel()
        await done
        return late

    loop = new_loop()
    try:
        late = loop.run_until_complete(main())
    finally:
        loop.close()
    assert len(late) == 11
    assert min(late) >= 0


def test_real_clock_is_the_monotonic_clock() -> None:
    async def main() -> None:
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        now = LoopClock().now_ns()
        assert before <= now <= time.clock_gettime_ns(time.CLOCK_MONOTONIC)

    asyncio.run(main())

"""Simulated time: exact, deterministic, and loud where it cannot go on."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from support.replays import MS, SECOND

from agentx_engine.core.rope import Rope
from agentx_engine.replay.simserver import Answer, LinearModel, PlannedBody, SimulatedTransport
from agentx_engine.replay.simulated import SimulatedClock, SimulationDeadlock, inline, run_simulated
from agentx_engine.transport.base import Outcome, Request, Result


def body(tokens: int = 1000, cached: int = 0) -> Rope:
    return cast(Rope, PlannedBody(tokens, cached))


def test_events_come_in_order_and_time_does_not_pass_meanwhile() -> None:
    async def main(clock: SimulatedClock) -> list[tuple[str, int]]:
        seen: list[tuple[str, int]] = []
        done = asyncio.get_running_loop().create_future()
        start = clock.now_ns()

        def note(name: str) -> None:
            seen.append((name, clock.now_ns() - start))

        clock.call_at(start + 10**18, lambda: done.set_result(None))  # exact where a float would round
        clock.call_at(start + 10**18 - 1, lambda: note("before"))
        clock.call_at(start + 5, lambda: note("b"))
        clock.call_at(start + 5, lambda: note("c"))
        clock.call_at(start + 1, lambda: note("a"))
        clock.call_at(start + 2, lambda: note("never")).cancel()
        clock.call_at(start - 99, lambda: note("past"))
        await asyncio.sleep(0)
        assert clock.now_ns() == start
        await done
        note("end")
        return seen

    assert run_simulated(main) == [
        ("past", 0),
        ("a", 1),
        ("b", 5),
        ("c", 5),
        ("before", 10**18 - 1),
        ("end", 10**18),
    ]


def test_a_run_that_cannot_go_on_is_a_deadlock() -> None:
    async def main(clock: SimulatedClock) -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(SimulationDeadlock):
        run_simulated(main)


def test_the_loops_own_timers_and_threads_are_refused() -> None:
    async def sleeps(clock: SimulatedClock) -> None:
        await asyncio.sleep(1)

    async def threads(clock: SimulatedClock) -> None:
        await asyncio.to_thread(int)

    for main in (sleeps, threads):
        with pytest.raises(RuntimeError, match=r"Clock keeps time|not deterministic"):
            run_simulated(main)


def test_inline_offload() -> None:
    async def main(clock: SimulatedClock) -> int:
        return await inline(abs, -3)

    assert run_simulated(main) == 3


def answer(request: Request, *, cancel_after_ns: int | None = None, outcome: Outcome | None = None) -> Result:
    async def main(clock: SimulatedClock) -> Result:
        model = LinearModel(MS, 1000, 10 * MS, fault=lambda request, number: outcome)
        transport = SimulatedTransport(clock, model, token_times=True)
        request.due_ns += clock.now_ns()
        handle = transport.arm(request)
        if cancel_after_ns is not None:
            clock.call_at(clock.now_ns() + cancel_after_ns, handle.cancel)
        result = await handle.done
        handle.cancel()
        await transport.close()
        return result

    return run_simulated(main, SimulatedClock(0))


def test_stamps_of_a_success() -> None:
    result = answer(Request(body(1000, 400), SECOND, 3))
    stamps, first = result.stamps, SECOND + MS + 600 * 1000
    assert result.outcome is Outcome.SUCCESS
    assert (stamps.due, stamps.armed, stamps.conn_ready, stamps.first_sent) == (SECOND, 0, SECOND, SECOND)
    assert (stamps.last_sent, stamps.ack, stamps.first_event, stamps.first_content) == (SECOND, *[first] * 3)
    assert stamps.first_text == first
    assert stamps.last_content == stamps.last_event == stamps.end == first + 20 * MS == result.plan_end_ns
    assert result.token_ns is not None and result.token_ns.tolist() == [
        first,
        first + 10 * MS,
        first + 20 * MS,
    ]
    assert result.token_slack_ns is not None and result.token_slack_ns.tolist() == [0, 0, 0]
    usage = result.usage
    assert usage is not None and (usage.prompt, usage.completion, usage.cached) == (1000, 3, 400)
    assert (result.status, result.content_events, result.finish_reason) == (200, 3, "length")


def test_a_due_time_in_the_past_is_sent_at_once() -> None:
    assert answer(Request(body(), -5, 1)).stamps.first_sent == 0


@pytest.mark.parametrize(
    ("after_ns", "tokens", "sent", "status"),
    [
        (SECOND - 1, 0, False, None),
        (SECOND, 0, True, None),
        (SECOND + 2 * MS - 1, 0, True, None),
        (SECOND + 2 * MS, 1, True, 200),
        (SECOND + 12 * MS, 2, True, 200),
        (SECOND + 21 * MS, 2, True, 200),
    ],
)
def test_cancelled(after_ns: int, tokens: int, sent: bool, status: int | None) -> None:
    result = answer(Request(body(1000), SECOND, 3), cancel_after_ns=after_ns)
    assert (result.outcome, result.content_events, result.status) == (Outcome.CANCELLED, tokens, status)
    assert (result.stamps.first_sent is not None) == sent
    assert result.stamps.end == after_ns
    assert result.plan_end_ns == (after_ns if not tokens else SECOND + 2 * MS + (tokens - 1) * 10 * MS)


@pytest.mark.parametrize("outcome", [o for o in Outcome if o not in (Outcome.SUCCESS, Outcome.CANCELLED)])
def test_failures(outcome: Outcome) -> None:
    result = answer(Request(body(1000), SECOND, 5), outcome=outcome)
    assert result.outcome is outcome
    assert result.stamps.end is not None and result.stamps.end >= SECOND
    assert result.content_events == (2 if outcome is Outcome.TRUNCATED else 0)
    assert result.status == {
        Outcome.HTTP_STATUS: 500,
        Outcome.CONTEXT_OVERFLOW: 400,
        Outcome.TRUNCATED: 200,
    }.get(outcome)
    assert result.usage is None


def test_a_delivery_delay_moves_no_stamp() -> None:
    async def main(clock: SimulatedClock) -> tuple[int, int]:
        transport = SimulatedTransport(clock, Instant(), delivery_ns=77)
        result = await transport.arm(Request(body(), clock.now_ns() + 10, 1)).done
        assert result.stamps.end is not None
        return clock.now_ns(), result.stamps.end

    now, end = run_simulated(main)
    assert now == end + 77


class Instant:
    def answer(self, request: Request, number: int) -> Answer:
        return Answer(0, 0, 1)

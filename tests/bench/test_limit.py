"""The search: finds the limit within its resolution and its bound of steps, and says what it did not find."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentx_engine.bench.limit import MAX_STEPS, RESOLUTION, Search, Step, find_limit, search
from agentx_engine.bench.measure import BenchResult, Truth
from agentx_engine.bench.render import render_limits
from agentx_engine.bench.settings import BenchSettings, Cores
from agentx_engine.metrics.verdict import Inputs, Spread, judge


def run(
    limit: int, start: int, *, ceiling: int = 10_000, beyond: Step = Step.LIMITED, steps: int = 30
) -> Search:
    async def probe(at: int) -> Step:
        return Step.OK if at <= limit else beyond

    return asyncio.run(
        search(probe, start, "streams", ceiling=ceiling, why_ceiling="no more ports", max_steps=steps)
    )


@given(limit=st.integers(0, 20_000), start=st.integers(1, 20_000), ceiling=st.integers(1, 10_000))
def test_the_limit_is_found(limit: int, start: int, ceiling: int) -> None:
    found = run(limit, start, ceiling=ceiling)
    if limit == 0:
        assert found.best is None
        return
    best = found.best
    assert best is not None and best <= min(limit, ceiling)
    if limit >= ceiling:
        assert best == ceiling and found.lower_bound == "no more ports"
    else:
        assert limit < best * RESOLUTION + 1
        assert found.lower_bound is None
    assert len({at for at, _ in found.steps}) == len(found.steps), "no load is tried twice"


@given(limit=st.integers(0, 20_000), start=st.integers(1, 20_000))
def test_the_search_is_bounded(limit: int, start: int) -> None:
    found = run(limit, start, steps=MAX_STEPS)
    assert len(found.steps) <= MAX_STEPS
    if found.best is not None:
        assert found.best <= limit
        assert (found.best, "ok") in found.steps


def test_a_late_truth_server_is_no_limit_of_the_client() -> None:
    found = run(700, 100, beyond=Step.SERVER)
    assert found.best is not None and 630 < found.best <= 700
    assert found.lower_bound == "the truth server cannot send more"


def test_a_search_that_runs_out_of_steps_says_so() -> None:
    found = run(10_000, 1, ceiling=1_000_000, steps=5)
    assert found.best == 16 and found.lower_bound == "the search ended after 5 steps"


def result_of(settings: BenchSettings, *, ok: bool, sent: int = 1000, achieved: int = 1000) -> BenchResult:
    inputs = Inputs(seconds=1.0, steal_share=0.0 if ok else 1.0, planned=1000, achieved=achieved)
    verdict = judge(inputs)
    verdict.reasons = [r for r in verdict.reasons if "was not measured" not in r]
    verdict.client = "limited" if verdict.reasons else "ok"
    return BenchResult(
        settings=settings,
        cores=Cores([0], [1]),
        interrupted=False,
        window_s=1.0,
        offered_per_s=1000.0,
        achieved_per_s=1000.0,
        taken=1.0,
        events=1000,
        requests=10,
        failures={},
        first_failure=None,
        reads_per_event=1.0,
        reactor_us_per_event=5.0,
        reactor_user_us_per_event=1.0,
        reactor_system_us_per_event=4.0,
        python_us_per_request=100.0,
        floor=None,
        ratio_to_floor=None,
        not_comparable=None,
        kernel_exact_us=None,
        kernel_all_us=None,
        user_us=None,
        flagged_share=0.0,
        slack_ms=Spread(),
        dispatch_lag_armed_ms=Spread(),
        dispatch_lag_reactive_ms=Spread(),
        send_ms=Spread(),
        loop_lag_ms=Spread(),
        read_lag_ms=Spread(),
        peak_rss_mb=50.0,
        threads=[],
        truth=Truth(1000, sent, 0, 5.0, 10.0),
        verdict=verdict,
    )


def test_rate_and_sessions_are_searched_with_everything_else_kept() -> None:
    asked: list[tuple[int, float]] = []

    async def measured(s: BenchSettings) -> BenchResult:
        asked.append((s.streams, s.rate))
        assert not s.floor and s.tokens == 99
        return result_of(s, ok=s.streams * s.rate <= 4000)

    said: list[str] = []
    settings = BenchSettings(streams=10, rate=100.0, tokens=99)
    limits = asyncio.run(find_limit(settings, say=said.append, measured=measured))
    assert limits.rate is not None and limits.rate.best == 400
    assert limits.sessions is not None and limits.sessions.best is not None
    assert 36 <= limits.sessions.best <= 40
    assert {streams for streams, rate in asked if rate != 100.0} == {10}
    # What failed was tried once more; each try is told.
    assert sum("limited" in line for line in said) == sum(n * r > 4000 for n, r in asked)
    assert asked.count((10, 800.0)) == 2
    text = render_limits(limits)
    assert "highest rate    400 events/s of a stream, verdict ok" in text
    assert msgspec.json.decode(msgspec.json.encode(limits))["rate"]["best"] == 400


def test_a_step_that_fails_once_and_then_not_is_ok() -> None:
    seen: dict[float, int] = {}

    async def measured(s: BenchSettings) -> BenchResult:
        key = s.streams * s.rate
        seen[key] = seen.get(key, 0) + 1
        return result_of(s, ok=key <= 200 and seen[key] > 1)

    limits = asyncio.run(find_limit(BenchSettings(streams=1, rate=100.0), measured=measured))
    assert limits.rate is not None and limits.rate.best == 200


def test_an_interruption_keeps_what_was_found() -> None:
    async def go() -> tuple[object, str]:
        stop = asyncio.Event()

        async def measured(s: BenchSettings) -> BenchResult:
            if s.streams > 10:
                stop.set()
            return result_of(s, ok=s.rate <= 100)

        limits = await find_limit(BenchSettings(streams=10, rate=100.0), stop=stop, measured=measured)
        return limits, render_limits(limits)

    limits, text = asyncio.run(go())
    assert limits.interrupted and limits.sessions is None  # type: ignore[attr-defined]
    assert "highest rate    100" in text and "Interrupted" in text


@pytest.mark.parametrize(
    ("ok", "sent", "step"),
    [(True, 1000, "ok"), (True, 900, "server"), (False, 900, "limited"), (False, 1000, "limited")],
)
def test_a_step_names_what_was_in_the_way(ok: bool, sent: int, step: str) -> None:
    said: list[str] = []

    async def measured(s: BenchSettings) -> BenchResult:
        return result_of(s, ok=ok, sent=sent, achieved=sent)

    limits = asyncio.run(find_limit(BenchSettings(streams=1, rate=1.0), say=said.append, measured=measured))
    assert limits.rate is not None and limits.rate.steps[0] == (1, step)
    assert f"  {step}" in said[1]
    if step != "ok":
        who = {"server": "the truth server", "limited": "the client"}[step]
        assert f"none: {who} is the limit even at 1" in render_limits(limits)

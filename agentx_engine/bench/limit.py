"""How much load this host can drive: the highest rate, and the most sessions, with the verdict still ok.

Doubles from the settings' own load until the verdict is `limited` (halves, if it is so from the start), then
bisects. A failed step is repeated once, since another process may have been in the way. The search ends
early where the truth server, the number of ports or of descriptors is the limit and not the client: then
the limit found is a lower bound, and says so.
"""

from __future__ import annotations

import asyncio
import enum
import resource
from collections.abc import Awaitable, Callable

import msgspec

from agentx_engine.bench.measure import BenchResult, Interrupted, estimate_s, measure
from agentx_engine.bench.settings import BenchSettings
from agentx_engine.transport.limits import OWN_DESCRIPTORS, local_ports

MAX_STEPS = 9
RESOLUTION = 1.1  # ends when the bad load is at most this times the good one


class Step(enum.StrEnum):
    OK = "ok"
    LIMITED = "limited"
    SERVER = "server"  # the truth server could not send so much: says nothing of the client


class Search(msgspec.Struct, kw_only=True):
    """What a search found. `best` None: not even the lowest load tried."""

    unit: str
    best: int | None
    lower_bound: str | None = None
    """Why the client's limit may be higher; None if it was found."""
    steps: list[tuple[int, str]] = []


async def search(
    probe: Callable[[int], Awaitable[Step]],
    start: int,
    unit: str,
    *,
    ceiling: int,
    why_ceiling: str,
    max_steps: int = MAX_STEPS,
) -> Search:
    """The highest whole number for which `probe` says OK, if what is OK stays so for all lower ones."""
    found = Search(unit=unit, best=None, steps=[])
    good, bad = 0, ceiling + 1
    at = max(1, min(start, ceiling))
    bad_is_server = False
    while len(found.steps) < max_steps and good < at < bad:
        step = await probe(at)
        found.steps.append((at, step.value))
        if step is Step.OK:
            good = at
        else:
            bad, bad_is_server = at, step is Step.SERVER
        if bad > ceiling:  # nothing has failed yet
            at = min(2 * good, ceiling)
        elif good == 0:
            at = bad // 2
        elif bad <= good * RESOLUTION:
            break
        else:
            at = (good + bad) // 2
    found.best = good or None
    if good == ceiling:
        found.lower_bound = why_ceiling
    elif bad_is_server:
        found.lower_bound = "the truth server cannot send more"
    elif bad > ceiling:
        found.lower_bound = f"the search ended after {max_steps} steps"
    return found


class Limits(msgspec.Struct, kw_only=True):
    """Result of `find_limit`."""

    settings: BenchSettings
    rate: Search | None = None
    sessions: Search | None = None
    interrupted: bool = False
    results: list[BenchResult] = []


def longest_s(settings: BenchSettings) -> float:
    """Bound of the time that find_limit takes."""
    return 2 * MAX_STEPS * 2 * (estimate_s(msgspec.structs.replace(settings, floor=False)) + 0.5)


def socket_ceiling() -> tuple[int, str]:
    """How many connections the host allows, and which limit that is."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = 1 << 20 if hard == resource.RLIM_INFINITY else hard - OWN_DESCRIPTORS
    ports = local_ports()
    if ports is not None and ports < descriptors:
        return ports, "there are no more local ports"
    return max(descriptors, 1), "there are no more file descriptors"


async def find_limit(
    settings: BenchSettings,
    *,
    stop: asyncio.Event | None = None,
    say: Callable[[str], None] = lambda _: None,
    measured: Callable[[BenchSettings], Awaitable[BenchResult]] | None = None,
) -> Limits:
    """First the rate of each of `settings.streams` streams, then the number of streams at `settings.rate`.

    Each step is a measurement without the floor; `say` is told every one. `measured` replaces `measure`.
    """
    stop = stop or asyncio.Event()
    settings = msgspec.structs.replace(settings, floor=False)
    limits = Limits(settings=settings, results=[])
    run = measured or (lambda s: measure(s, stop=stop))

    async def step(at: BenchSettings) -> Step:
        outcome = Step.LIMITED
        for attempt in (1, 2):
            if stop.is_set():
                raise Interrupted
            result = await run(at)
            if result.interrupted:
                raise Interrupted
            limits.results.append(result)
            if result.server_was_the_limit:
                outcome = Step.SERVER
            else:
                outcome = Step.OK if result.verdict.ok else Step.LIMITED
            say(describe(result, outcome) + (", again" if attempt == 1 and outcome is not Step.OK else ""))
            if outcome is Step.OK:
                break
        return outcome

    async def with_rate(rate: int) -> Step:
        return await step(msgspec.structs.replace(settings, rate=float(rate)))

    async def with_streams(streams: int) -> Step:
        return await step(msgspec.structs.replace(settings, streams=streams))

    try:
        say(f"highest rate of {settings.streams:,} streams")
        limits.rate = await search(
            with_rate,
            int(settings.rate),
            "events/s of a stream",
            ceiling=100_000,
            why_ceiling="higher rates are not tried",
        )
        say(f"most streams at {settings.rate:g} events/s each")
        ceiling, why = socket_ceiling()
        limits.sessions = await search(
            with_streams, settings.streams, "streams", ceiling=ceiling, why_ceiling=why
        )
    except Interrupted:
        limits.interrupted = True
    return limits


def describe(result: BenchResult, outcome: Step) -> str:
    """One line about a step."""
    load = f"{result.settings.streams:,} x {result.settings.rate:,.0f}/s"
    text = f"  {load:>16}  {result.achieved_per_s:>9,.0f} events/s  {outcome.value}"
    if outcome is Step.LIMITED:
        text += f": {result.verdict.reasons[0]}"
    elif outcome is Step.SERVER:
        text += f": the truth server sent {result.truth.sent:,} of {result.truth.offered:,} events"
    return text

"""One measurement: the metronome on a core of its own, the floor, the engine, the floor again.

CPU per event is the reactor threads' own, and the floor's thread's; their ratio is comparable only if both
took at least 99.5 % of the offered events with the same number of reads per event, since a late client
reads several events at once and looks cheap. The error of a stamp is the stamp minus the time that the
server put into the event right before its send, on the same clock of the same host.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from agentx_engine.bench.client import Client
from agentx_engine.bench.settings import BenchSettings, Cores, choose_cores
from agentx_engine.core.clock import now_ns
from agentx_engine.core.hdr import Histogram
from agentx_engine.errors import UserError
from agentx_engine.metrics.host import HostSample, HostSampler, sample
from agentx_engine.metrics.usage import Collector
from agentx_engine.metrics.verdict import ACHIEVED, Spread, ThreadLoad, Verdict
from agentx_engine.sim.process import Child, ChildServer
from agentx_engine.transport.limits import ensure_sockets
from agentx_engine.transport.native import NativeOptions, NativeTransport

if TYPE_CHECKING:
    from numpy.typing import NDArray

TRUTH = "agentx_engine.sim.truth_main"
FLOOR_WARMUP_S = 2.0
TICK_S = 0.25
TAKEN_BOUND = 0.995
READS_BOUND = 0.02
SERVER_LATE_US = 1000.0


class Errors(msgspec.Struct, frozen=True):
    """Stamp - the server's send time, us."""

    count: int
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, ns: NDArray[np.int64]) -> Errors | None:
        if not len(ns):
            return None
        p50, p90, p99 = np.percentile(ns, (50, 90, 99)) / 1e3
        return cls(len(ns), float(p50), float(p90), float(p99), float(ns.max()) / 1e3)


class Floor(msgspec.Struct, frozen=True):
    """The bare client, mean of its two runs."""

    us_per_event: float
    reads_per_event: float
    taken: float
    """Share of the offered events, of the worse run."""
    user_share: float


class Truth(msgspec.Struct, frozen=True):
    """What the metronome says of itself."""

    offered: int
    sent: int
    deferred: int
    """Events that waited because the client did not read."""
    lateness_p50_us: float
    lateness_p99_us: float

    @property
    def late(self) -> bool:
        """The server did not keep its own times. The true times are right, but the load is uneven."""
        return self.lateness_p99_us > SERVER_LATE_US

    @property
    def short(self) -> bool:
        """The server did not send what it had offered, whoever was in the way."""
        return self.sent < TAKEN_BOUND * self.offered


class BenchResult(msgspec.Struct, kw_only=True):
    settings: BenchSettings
    cores: Cores
    interrupted: bool
    window_s: float
    offered_per_s: float
    achieved_per_s: float
    taken: float
    """Achieved / offered."""
    events: int
    requests: int
    failures: dict[str, int]
    first_failure: str | None
    reads_per_event: float
    reactor_us_per_event: float
    reactor_user_us_per_event: float
    reactor_system_us_per_event: float
    python_us_per_request: float | None
    """CPU of the main thread; this bench's own book-keeping is in it. None if no answer ended."""
    floor: Floor | None
    ratio_to_floor: float | None
    not_comparable: str | None
    """Why the ratio means nothing."""
    kernel_exact_us: Errors | None
    kernel_all_us: Errors | None
    user_us: Errors | None
    flagged_share: float
    slack_ms: Spread
    dispatch_lag_armed_ms: Spread
    dispatch_lag_reactive_ms: Spread
    send_ms: Spread
    loop_lag_ms: Spread
    read_lag_ms: Spread
    peak_rss_mb: float
    threads: list[ThreadLoad]
    truth: Truth
    verdict: Verdict

    @property
    def server_was_the_limit(self) -> bool:
        """The load did not come about, and nothing else is wrong with the client."""
        ours = [r for r in self.verdict.reasons if not r.startswith(ACHIEVED)]
        return self.truth.short and not ours


class Interrupted(Exception):
    """Ended before anything was measured."""


async def measure(
    settings: BenchSettings,
    *,
    stop: asyncio.Event | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> BenchResult:
    """Runs one measurement on the running loop; takes `estimate_s(settings)` seconds.

    `stop` ends it early: what was measured is returned with `interrupted` set, Interrupted is raised if that
    is nothing. UserError if the host cannot hold the load.
    """
    stop = stop or asyncio.Event()
    ensure_sockets(settings.streams)
    before = os.sched_getaffinity(0)
    cores = choose_cores(before)
    os.sched_setaffinity(0, cores.client)
    try:
        async with ChildServer(TRUTH, settings.metronome_args(), cpus=cores.server) as server:
            floors = []
            half = max(settings.duration_s / 2, 0.5)
            if settings.floor:
                say(f"floor, {half:g} s")
                floors.append(await _floor(settings, server.port, half, cores, stop))
            if stop.is_set():
                raise Interrupted
            say(f"engine, {settings.duration_s:g} s")
            result = await _engine(settings, server.port, cores, stop)
            if settings.floor and not stop.is_set():
                say(f"floor, {half:g} s")
                floors.append(await _floor(settings, server.port, half, cores, stop))
            return _with_floor(result, [f for f in floors if f is not None], stop.is_set())
    finally:
        os.sched_setaffinity(0, before)


def estimate_s(settings: BenchSettings) -> float:
    floor = 2 * (FLOOR_WARMUP_S + max(settings.duration_s / 2, 0.5) + 0.5) if settings.floor else 0.0
    return settings.warmup_s + settings.duration_s + floor + 1.0


async def _sleep(seconds: float, stop: asyncio.Event) -> bool:
    """Returns whether it slept to the end."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)
        return False
    return True


async def _stats(port: int) -> dict[str, Any]:
    """The metronome's statistics."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /stats HTTP/1.1\r\nHost: metronome\r\nConnection: close\r\n\r\n")
        answer = await reader.read(-1)  # to the end: the server closes
        stats: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    finally:
        writer.close()
    return stats


# -- The floor ----------------------------------------------------------------------------------------


async def _floor(
    settings: BenchSettings, port: int, seconds: float, cores: Cores, stop: asyncio.Event
) -> dict[str, Any] | None:
    """Result of a run of the bare client; None if it was stopped before it counted anything."""
    options = {
        "--port": port,
        "--streams": settings.streams,
        "--tokens": settings.tokens,
        "--warmup-s": FLOOR_WARMUP_S,
        "--duration-s": seconds,
        "--body-bytes": settings.body_bytes,
    }
    args = ["floor", *(str(part) for option in options.items() for part in option)]
    before = await _stats(port)
    async with Child(TRUTH, args, cpus=cores.client) as child:
        ended = asyncio.ensure_future(asyncio.to_thread(child.result, seconds + FLOOR_WARMUP_S + 30))
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait((ended, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not ended.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGTERM)
        result: dict[str, Any] = await ended
    after = await _stats(port)
    offered = after["events_offered"] - before["events_offered"]
    result["taken"] = (result["events"] + result["warmup_events"]) / offered if offered else 0.0
    return result if result["events"] else None


def _with_floor(result: BenchResult, floors: list[dict[str, Any]], interrupted: bool) -> BenchResult:
    result.interrupted = result.interrupted or interrupted
    if not floors:
        return result
    n = len(floors)
    cpu = sum(f["cpu_s"] for f in floors)
    floor = Floor(
        us_per_event=sum(f["cpu_ns_per_event"] for f in floors) / n / 1e3,
        reads_per_event=sum(f["reads_per_event"] for f in floors) / n,
        taken=min(f["taken"] for f in floors),
        user_share=sum(f["cpu_user_s"] for f in floors) / cpu if cpu else 0.0,
    )
    result.floor = floor
    result.ratio_to_floor = result.reactor_us_per_event / floor.us_per_event if floor.us_per_event else None
    result.not_comparable = _not_comparable(result, floor)
    return result


def _not_comparable(result: BenchResult, floor: Floor) -> str | None:
    if result.taken < TAKEN_BOUND:
        return f"the engine took {100 * result.taken:.2f} % of the offered events"
    if floor.taken < TAKEN_BOUND:
        return f"the floor took {100 * floor.taken:.2f} % of the offered events"
    if abs(result.reads_per_event / floor.reads_per_event - 1) > READS_BOUND:
        return f"reads per event differ: {result.reads_per_event:.3f} and {floor.reads_per_event:.3f}"
    return None


# -- The engine ---------------------------------------------------------------------------------------


async def _engine(settings: BenchSettings, port: int, cores: Cores, stop: asyncio.Event) -> BenchResult:
    options = NativeOptions(threads=settings.io_threads, keep_user_ns=True, keep_sent_ns=True)
    collector, sampler = Collector(), HostSampler()
    async with NativeTransport.to(f"http://127.0.0.1:{port}", options=options) as transport:
        client = Client(transport, settings)
        collector.start()
        ticking = asyncio.get_running_loop().create_task(_tick(collector))
        try:
            sampler.start()
            client.start()
            if not await _sleep(settings.warmup_s, stop):
                await client.stop()
                raise Interrupted
            begin = await _mark(transport, client, port)
            whole = await _sleep(settings.duration_s, stop)
            end = await _mark(transport, client, port)
            sampler.stop()
            offered = end.truth["events_offered"] - begin.truth["events_offered"]
            events = end.counters["events"] - begin.counters["events"]
            verdict = sampler.verdict(
                transport,
                collector_pauses=collector.pauses,
                planned=offered,
                achieved=events,
                rate_unit="events",
            )
            histograms = transport.histograms()
            await client.stop()
        finally:
            sampler.stop()
            ticking.cancel()
            collector.stop()
    if client.failures and not client.finished:
        raise UserError(f"no request to the truth server succeeded ({client.first_failure})")
    window = _Window(begin, end, verdict, histograms)
    return _result(settings, cores, client, window, interrupted=not whole)


async def _tick(collector: Collector) -> None:
    while True:
        await asyncio.sleep(TICK_S)
        collector.tick()


class _Mark(msgspec.Struct):
    """Everything cumulative at one end of the window."""

    at_ns: int
    counters: dict[str, int]
    reactor_ns: int
    finished: int
    host: HostSample
    truth: dict[str, Any]


class _Window(NamedTuple):
    begin: _Mark
    end: _Mark
    verdict: Verdict
    """Of everything since the start: a stall does not care for our window."""
    histograms: dict[str, Histogram]


async def _mark(transport: NativeTransport, client: Client, port: int) -> _Mark:
    truth = await _stats(port)
    counters, reactor_ns, at = transport.counters(), transport.cpu_ns(), now_ns()
    return _Mark(at, counters, reactor_ns, client.finished, sample(), truth)


def _result(
    settings: BenchSettings,
    cores: Cores,
    client: Client,
    window: _Window,
    *,
    interrupted: bool,
) -> BenchResult:
    begin, end, verdict, histograms = window
    window_s = (end.at_ns - begin.at_ns) / 1e9
    events = end.counters["events"] - begin.counters["events"]
    per_event = max(events, 1)
    requests = end.finished - begin.finished
    offered = end.truth["events_offered"] - begin.truth["events_offered"]
    user_s, system_s, main_ns = _cpu_split(begin.host, end.host)
    share = user_s / (user_s + system_s) if user_s + system_s else 0.0
    reactor_us = (end.reactor_ns - begin.reactor_ns) / per_event / 1e3
    tokens = client.tokens(begin.at_ns, end.at_ns)
    kernel, exact = tokens.stamp - tokens.sent, tokens.slack == 0
    return BenchResult(
        settings=settings,
        cores=cores,
        interrupted=interrupted,
        window_s=window_s,
        offered_per_s=offered / window_s,
        achieved_per_s=events / window_s,
        taken=events / offered if offered else 0.0,
        events=events,
        requests=requests,
        failures=client.failures,
        first_failure=client.first_failure,
        reads_per_event=(end.counters["reads"] - begin.counters["reads"]) / per_event,
        reactor_us_per_event=reactor_us,
        reactor_user_us_per_event=reactor_us * share,
        reactor_system_us_per_event=reactor_us * (1 - share),
        python_us_per_request=main_ns / requests / 1e3 if requests else None,
        floor=None,
        ratio_to_floor=None,
        not_comparable=None,
        kernel_exact_us=Errors.of(kernel[exact]),
        kernel_all_us=Errors.of(kernel),
        user_us=Errors.of(tokens.user - tokens.sent),
        flagged_share=float((~exact).mean()) if len(exact) else 0.0,
        slack_ms=Spread.of(histograms["slack"]),
        dispatch_lag_armed_ms=Spread.of(histograms["dispatch_lag_armed"]),
        dispatch_lag_reactive_ms=Spread.of(histograms["dispatch_lag_reactive"]),
        send_ms=Spread.of(histograms["send_duration"]),
        loop_lag_ms=verdict.inputs.loop_lag_ms or Spread(),
        read_lag_ms=Spread.of(histograms["read_lag"]),
        peak_rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        threads=verdict.inputs.threads or [],
        truth=Truth(
            offered=offered,
            sent=end.truth["events_sent"] - begin.truth["events_sent"],
            deferred=end.truth["events_deferred"] - begin.truth["events_deferred"],
            lateness_p50_us=end.truth["lateness_us"]["p50"],
            lateness_p99_us=end.truth["lateness_us"]["p99"],
        ),
        verdict=verdict,
    )


def _cpu_split(begin: HostSample, end: HostSample) -> tuple[float, float, int]:
    """User and system seconds of the reactors (in ticks of 10 ms), CPU ns of the main thread."""
    user = system = 0.0
    for tid, thread in end.threads.items():
        earlier = begin.threads.get(tid)
        if thread.name == "agentx-reactor" and earlier is not None:
            user += thread.user_s - earlier.user_s
            system += thread.system_s - earlier.system_s
    main = os.getpid()
    if main not in end.threads or main not in begin.threads:
        return user, system, 0
    return user, system, end.threads[main].cpu_ns - begin.threads[main].cpu_ns

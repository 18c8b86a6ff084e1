"""What the host did to the client, sampled once a second: CPU of each thread, throttling, steal, loop lag.

    sampler = HostSampler()
    sampler.start()                       # on the event loop, before load is sent
    ...
    sampler.stop()                        # before the transport closes: its threads must still be there
    verdict = sampler.verdict(transport, collector_pauses=..., planned=..., achieved=...)

Sources, all cumulative and taken as differences: `/proc/self/task/*/schedstat` (CPU and waiting for a core,
ns), `stat` (user and system time, ticks), `status` (involuntary switches), `/proc/stat` (steal),
`cpu.stat` of every cgroup from ours to the root. A file that is not there, or says nothing, is an input
that was not measured.

Loop lag is how much later than asked the loop called back, every `PING_S`; a stall is seen if it is longer
than that, and is under-estimated by less than it. The period is shorter than a stall that matters, since a
stall that falls between two pings leaves no trace.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from agentx_engine.core.hdr import Histogram
from agentx_engine.metrics.verdict import Inputs, Spread, Stall, ThreadLoad, Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Mapping

PING_S = 0.02
SAMPLE_S = 1.0
SHORTEST_WINDOW_NS = 500_000_000
REACTOR_THREAD = "agentx-reactor"

_NS = 1_000_000_000
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_CGROUPS = Path("/sys/fs/cgroup")


class Measured(Protocol):
    """The part of a transport that knows its own error."""

    def counters(self) -> Mapping[str, int]: ...
    def histograms(self) -> Mapping[str, Histogram]: ...


class ThreadSample(NamedTuple):
    name: str
    cpu_ns: int
    waited_ns: int | None
    user_s: float
    system_s: float
    involuntary: int | None


class HostSample(NamedTuple):
    """Cumulative values at one moment; None = the host does not say."""

    at_ns: int
    threads: dict[int, ThreadSample]
    steal: tuple[int, int] | None
    """Ticks stolen, and all ticks, of all cores."""
    throttled: tuple[int, int] | None
    """Periods, ns."""


class CpuSample(NamedTuple):
    """What is needed every second, at a tenth of the cost."""

    at_ns: int
    cpu_ns: dict[int, int]


def sample() -> HostSample:
    """Reads everything once."""
    threads: dict[int, ThreadSample] = {}
    for tid in _tids():
        with contextlib.suppress(OSError, ValueError, IndexError):  # it may have ended meanwhile
            threads[tid] = _thread(tid)
    return HostSample(time.monotonic_ns(), threads, _steal(), _throttled(_cgroup_files()))


def cpu_sample() -> CpuSample:
    cpu_ns: dict[int, int] = {}
    for tid in _tids():
        with contextlib.suppress(OSError, ValueError, IndexError):
            exact = _schedstat(tid)
            cpu_ns[tid] = exact[0] if exact is not None else _thread(tid).cpu_ns
    return CpuSample(time.monotonic_ns(), cpu_ns)


def _read(path: str) -> str:
    with open(path) as file:  # noqa: PTH123 - Path costs as much again as the reading
        return file.read()


def _tids() -> list[int]:
    try:
        return sorted(int(entry) for entry in os.listdir("/proc/self/task"))  # noqa: PTH208
    except OSError:
        return []


def _schedstat(tid: int) -> tuple[int, int] | None:
    """CPU time and time spent waiting for a core, ns; None on a kernel without scheduler statistics."""
    try:
        fields = _read(f"/proc/self/task/{tid}/schedstat").split()
        return int(fields[0]), int(fields[1])
    except (OSError, ValueError, IndexError):
        return None


def _thread(tid: int) -> ThreadSample:
    text = _read(f"/proc/self/task/{tid}/stat")
    name = text[text.index("(") + 1 : text.rindex(")")]
    fields = text[text.rindex(")") + 2 :].split()
    user_s, system_s = int(fields[11]) * _TICK_S, int(fields[12]) * _TICK_S
    exact = _schedstat(tid)
    involuntary = None
    for line in _read(f"/proc/self/task/{tid}/status").splitlines():
        if line.startswith("nonvoluntary_ctxt_switches:"):
            involuntary = int(line.split()[1])
    return ThreadSample(
        name,
        int((user_s + system_s) * _NS) if exact is None else exact[0],
        None if exact is None else exact[1],
        user_s,
        system_s,
        involuntary,
    )


def _steal() -> tuple[int, int] | None:
    try:
        fields = [int(f) for f in _read("/proc/stat").partition("\n")[0].split()[1:9]]
        return fields[7], sum(fields)
    except (OSError, ValueError, IndexError):
        return None


def _cgroup_files() -> list[Path]:
    """`cpu.stat` of our cgroup and of those above it, whose quotas hold for us too."""
    try:
        lines = _read("/proc/self/cgroup").splitlines()
    except OSError:
        return []
    for line in sorted(lines, reverse=True):  # version 1 hierarchies first, 0:: (version 2) last
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            roots = [_CGROUPS, _CGROUPS / "unified"]
        elif "cpu" in controllers.split(","):
            roots = [_CGROUPS / controllers, _CGROUPS / "cpu"]
        else:
            continue
        for root in roots:
            below = root / path.lstrip("/")
            files = [f / "cpu.stat" for f in (below, *below.parents) if f.is_relative_to(root)]
            files = [file for file in files if file.exists()]
            if files:
                return files
    return []


def _throttled(files: Iterable[Path]) -> tuple[int, int] | None:
    periods = ns = 0
    found = False
    for file in files:
        try:
            values = dict(line.split() for line in file.read_text().splitlines())
            # The root of version 2 has no quota and therefore no such fields.
            periods += int(values.get("nr_throttled", 0))
            ns += int(values.get("throttled_time", 0)) + 1000 * int(values.get("throttled_usec", 0))
        except (OSError, ValueError):
            continue
        found = True
    return (periods, ns) if found else None


class _Worst(NamedTuple):
    cores: float
    began_ns: int


class HostSampler:
    """Samples between `start` and `stop`, on the event loop that called `start`."""

    def __init__(self) -> None:
        self.loop_lag = Histogram()
        self._first: HostSample | None = None
        self._last: HostSample | None = None
        self._windows: list[CpuSample] = []  # the latest two ends of windows
        self._worst: dict[int, _Worst] = {}
        self._longest_lag_ns = 0
        self._longest_lag_at_ns = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ping: asyncio.TimerHandle | None = None
        self._next: asyncio.TimerHandle | None = None
        self._expected_ns = 0

    def start(self) -> None:
        if self._loop is not None:
            raise RuntimeError("the sampler has been started before")
        self._loop = asyncio.get_running_loop()
        self._first = self._last = sample()
        self._windows = [cpu_sample()]
        self._longest_lag_at_ns = self._first.at_ns
        self._schedule_ping()
        self._next = self._loop.call_later(SAMPLE_S, self._sample)

    def stop(self) -> None:
        """The last sample; threads that have ended before are missing from it. Idempotent."""
        if self._ping is None or self._next is None:
            return
        self._ping.cancel()
        self._next.cancel()
        self._ping = self._next = None
        self._note_lag()  # a stall that lasts until now would otherwise be lost
        self._take(final=True)
        self._last = sample()

    def __enter__(self) -> HostSampler:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _schedule_ping(self) -> None:
        assert self._loop is not None
        self._expected_ns = time.monotonic_ns() + int(PING_S * _NS)
        self._ping = self._loop.call_later(PING_S, self._pinged)

    def _pinged(self) -> None:
        self._note_lag()
        self._schedule_ping()

    def _note_lag(self) -> None:
        lag = max(time.monotonic_ns() - self._expected_ns, 0)  # uvloop's timers may fire up to 1 ms early
        self.loop_lag.record(lag)
        if lag > self._longest_lag_ns:
            self._longest_lag_ns, self._longest_lag_at_ns = lag, self._expected_ns

    def _sample(self) -> None:
        assert self._loop is not None
        self._take()
        self._next = self._loop.call_later(SAMPLE_S, self._sample)

    def _take(self, *, final: bool = False) -> None:
        now, window_from = cpu_sample(), self._windows[-1]
        if final and now.at_ns - window_from.at_ns < SHORTEST_WINDOW_NS:
            window_from = self._windows[0]  # too short to say anything: joined with the one before it
        took = now.at_ns - window_from.at_ns
        for tid, cpu_ns in now.cpu_ns.items():
            cores = (cpu_ns - window_from.cpu_ns.get(tid, 0)) / took if took > 0 else 0.0
            worst = self._worst.get(tid)
            if worst is None or cores > worst.cores:
                self._worst[tid] = _Worst(cores, window_from.at_ns)
        self._windows = [self._windows[-1], now]

    # -- Results ----------------------------------------------------------------------------------

    def threads(self) -> list[ThreadLoad]:
        """The main thread and the reactors, and others that used more than 1 % of a core."""
        first, last = self._first, self._last
        if first is None or last is None or last.at_ns == first.at_ns:
            return []
        seconds, main = (last.at_ns - first.at_ns) / _NS, os.getpid()
        reactors = [tid for tid, t in last.threads.items() if t.name == REACTOR_THREAD]
        nothing = ThreadSample("", 0, 0, 0.0, 0.0, 0)  # for threads that were started since
        loads: list[ThreadLoad] = []
        for tid, t in last.threads.items():
            before = first.threads.get(tid, nothing)
            cores = (t.cpu_ns - before.cpu_ns) / _NS / seconds
            worst = self._worst.get(tid, _Worst(cores, first.at_ns))
            if tid == main:
                name = "main thread"
            elif tid in reactors:
                name = "reactor" if len(reactors) == 1 else f"reactor {reactors.index(tid)}"
            elif worst.cores > 0.01:
                name = t.name
            else:
                continue
            waited = involuntary = None
            if t.waited_ns is not None and before.waited_ns is not None:
                waited = (t.waited_ns - before.waited_ns) / _NS / seconds
            if t.involuntary is not None and before.involuntary is not None:
                involuntary = t.involuntary - before.involuntary
            loads.append(
                ThreadLoad(
                    name=name,
                    mean=cores,
                    worst=worst.cores,
                    worst_at_s=(worst.began_ns - first.at_ns) / _NS,
                    user_s=t.user_s - before.user_s,
                    system_s=t.system_s - before.system_s,
                    waiting=waited,
                    involuntary_switches=involuntary,
                )
            )
        return loads

    def inputs(
        self,
        transport: Measured | None,
        *,
        collector_pauses: Histogram | None = None,
        planned: float | None = None,
        achieved: float | None = None,
        rate_unit: str = "requests",
    ) -> Inputs:
        """The inputs of a verdict; call it before the transport closes.

        `collector_pauses` is the histogram of the garbage collector's pauses in ns, `planned` and
        `achieved` how many `rate_unit` the plan wanted and how many came about.
        """
        first, last = self._first, self._last
        if first is None or last is None:
            return Inputs(seconds=0.0)
        seconds = (last.at_ns - first.at_ns) / _NS
        threads = self.threads()
        reactors = [t for t in threads if t.name.startswith("reactor")]
        switches = [t.involuntary_switches for t in threads if t.involuntary_switches is not None]
        inputs = Inputs(
            seconds=seconds,
            threads=threads if reactors or transport is None else None,
            loop_stall=Stall(
                "event loop", self._longest_lag_ns / 1e6, (self._longest_lag_at_ns - first.at_ns) / _NS
            )
            if self.loop_lag.count
            else None,
            loop_lag_ms=Spread.of(self.loop_lag),
            involuntary_switches=sum(switches) if switches else None,
            collector_pauses_ms=None if collector_pauses is None else Spread.of(collector_pauses),
            planned=planned,
            achieved=achieved,
            rate_unit=rate_unit,
        )
        if first.steal is not None and last.steal is not None:
            ticks = last.steal[1] - first.steal[1]
            inputs.steal_share = (last.steal[0] - first.steal[0]) / ticks if ticks > 0 else 0.0
        if first.throttled is not None and last.throttled is not None:
            inputs.throttled_periods = last.throttled[0] - first.throttled[0]
            inputs.throttled_s = (last.throttled[1] - first.throttled[1]) / _NS
        if transport is not None:
            self._add_transport(inputs, transport, first.at_ns)
        return inputs

    def _add_transport(self, inputs: Inputs, transport: Measured, began_ns: int) -> None:
        counters, histograms = transport.counters(), transport.histograms()
        if not counters:
            return  # closed already
        inputs.dispatch_lag_armed_ms = Spread.of(histograms["dispatch_lag_armed"])
        inputs.dispatch_lag_reactive_ms = Spread.of(histograms["dispatch_lag_reactive"])
        inputs.events = counters["events"]
        inputs.events_slack_over_1ms = counters["slack_over_1ms"]
        inputs.reactor_stall = Stall(
            "reactor",
            counters["longest_turn_ns"] / 1e6,
            (counters["longest_turn_at_ns"] - began_ns) / _NS,
        )
        inputs.reads = counters["reads"]
        inputs.reads_without_kernel_stamp = counters["stamps_missing"] + counters["stamps_discarded"]
        inputs.read_lag_ms = Spread.of(histograms["read_lag"])
        inputs.reactor_turn_ms = Spread.of(histograms["reactor_turn"])

    def verdict(
        self,
        transport: Measured | None,
        *,
        collector_pauses: Histogram | None = None,
        planned: float | None = None,
        achieved: float | None = None,
        rate_unit: str = "requests",
    ) -> Verdict:
        """`judge` of `inputs`, with the same arguments."""
        return judge(
            self.inputs(
                transport,
                collector_pauses=collector_pauses,
                planned=planned,
                achieved=achieved,
                rate_unit=rate_unit,
            )
        )

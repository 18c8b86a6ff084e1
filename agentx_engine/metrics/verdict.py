"""Was the client the limit? The verdict of a run on itself.

A load generator that is late, stalls or reads in clumps measures itself and not the server. So every run
states `client: ok` or `client: limited`, with the measured inputs and their bounds. The rules:

- a bound that is passed makes the run `limited`, whatever else is good;
- an input that could not be measured is named, never taken for good; without the inputs in `ESSENTIAL`
  the client cannot be called ok, and is not;
- inputs without a bound (involuntary context switches, waiting for a core) explain, they do not judge.

Bounds and their reasons:

=====================  =========  ==================================================================
dispatch lag p99       1 / 2 ms   first byte - due; requests known in advance / those that had to wait
                                  for another answer, whose handling in Python is part of it
slack above 1 ms       1 %        share of stream events whose arrival is known only to within > 1 ms
longest stall          100 ms     of the reactor or of the event loop: nothing is sent or read meanwhile
CPU of a thread        85 %       of a core in the worst window of 1 s; beyond, queueing grows steeply
cgroup throttling      1 %        of the time; a throttled period freezes the client for tens of ms
steal                  5 %        of all cores' time, taken by the hypervisor
achieved / planned     99 %       what was sent (or, in `bench`, received) of what the plan wanted
read lag p99           1 ms       only if kernel stamps are missing for more than 1 % of the reads: with
                                  kernel stamps a late read does not move a token time
=====================  =========  ==================================================================

`--require-client-ok` makes a run whose verdict is `limited` fail: exit status 1, all artifacts written.
The flag changes nothing else.

Pure: what is measured comes from `metrics.host` and the transport.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from agentx_engine.core.hdr import Histogram

ACHIEVED = "achieved against planned"
ESSENTIAL = ("dispatch lag", "slack", "reactor stalls", "event loop stalls", "CPU of the threads")


class Spread(msgspec.Struct, frozen=True):
    """A histogram of durations in ms; all zero where nothing was recorded."""

    count: int = 0
    p50: float = 0.0
    p99: float = 0.0
    max: float = 0.0

    @classmethod
    def of(cls, histogram: Histogram) -> Spread:
        """Of a histogram of ns."""
        p50, p99 = histogram.percentiles((50, 99))
        return cls(histogram.count, p50 / 1e6, p99 / 1e6, (histogram.max or 0) / 1e6)


class Stall(msgspec.Struct, frozen=True):
    """The longest time for which `where` did nothing else (or nothing at all)."""

    where: Literal["reactor", "event loop"]
    ms: float
    at_s: float
    """When it began, seconds since measuring began."""


class ThreadLoad(msgspec.Struct, frozen=True):
    """CPU of one thread, in cores (1.0 = one core all the time)."""

    name: str
    mean: float
    worst: float
    """In its worst window of about 1 s."""
    worst_at_s: float
    """When that window began, seconds since measuring began."""
    user_s: float | None = None
    system_s: float | None = None
    waiting: float | None = None
    """Share of the time in which it could have run but had no core."""
    involuntary_switches: int | None = None


class Inputs(msgspec.Struct, kw_only=True):
    """What a verdict is made of. None: could not be measured; a Spread with count 0: there was none."""

    seconds: float
    dispatch_lag_armed_ms: Spread | None = None
    dispatch_lag_reactive_ms: Spread | None = None
    events: int | None = None
    events_slack_over_1ms: int | None = None
    reactor_stall: Stall | None = None
    loop_stall: Stall | None = None
    loop_lag_ms: Spread | None = None
    threads: list[ThreadLoad] | None = None
    throttled_s: float | None = None
    throttled_periods: int | None = None
    steal_share: float | None = None
    involuntary_switches: int | None = None
    collector_pauses_ms: Spread | None = None
    planned: float | None = None
    achieved: float | None = None
    rate_unit: str = "requests"
    reads: int | None = None
    reads_without_kernel_stamp: int | None = None
    read_lag_ms: Spread | None = None
    reactor_turn_ms: Spread | None = None


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    dispatch_lag_armed_p99_ms: float = 1.0
    dispatch_lag_reactive_p99_ms: float = 2.0
    slack_over_1ms_share: float = 0.01
    longest_stall_ms: float = 100.0
    thread_cores: float = 0.85
    throttled_share: float = 0.01
    steal_share: float = 0.05
    achieved_share: float = 0.99
    unstamped_share: float = 0.01
    read_lag_p99_ms: float = 1.0


class Check(msgspec.Struct, frozen=True):
    """One line of the verdict."""

    name: str
    state: Literal["ok", "over", "missing", "info"]
    value: str
    bound: str = ""


class Verdict(msgspec.Struct, kw_only=True):
    """`msgspec.to_builtins` makes it JSON."""

    client: Literal["ok", "limited"]
    reasons: list[str]
    """Why it is limited; empty if it is not."""
    missing: list[str]
    """Inputs that could not be measured."""
    notes: list[str]
    """What may be the cause, or must be known beside the verdict."""
    inputs: Inputs
    bounds: Bounds
    checks: list[Check]

    @property
    def ok(self) -> bool:
        return self.client == "ok"

    @property
    def longest_stall(self) -> Stall | None:
        stalls = [s for s in (self.inputs.reactor_stall, self.inputs.loop_stall) if s is not None]
        return max(stalls, key=lambda stall: stall.ms, default=None)

    def line(self) -> str:
        """One line."""
        text = f"client: {self.client}"
        if self.reasons:
            text += f" ({'; '.join(self.reasons)})"
        if self.missing:
            text += f" [not measured: {', '.join(self.missing)}]"
        return text

    def table(self) -> str:
        """The inputs beside their bounds, at most 100 columns."""
        mark = {"ok": " ", "over": "!", "missing": "?", "info": " "}
        rows = [f"client: {self.client}"]
        for check in self.checks:
            bound = f"bound {check.bound}" if check.bound else ""
            rows.append(f"{mark[check.state]} {check.name:<26} {check.value:<54} {bound}".rstrip())
        for note in self.notes:
            rows += textwrap.wrap(note, 100, initial_indent="  ", subsequent_indent="  ")
        return "\n".join(rows)


def judge(inputs: Inputs, bounds: Bounds | None = None) -> Verdict:
    """The verdict on a run."""
    bounds = bounds or Bounds()
    checks = [check for rule in _RULES for check in rule(inputs, bounds)]
    missing = [check.name for check in checks if check.state == "missing"]
    reasons = [f"{c.name}: {c.value}, bound {c.bound}" for c in checks if c.state == "over"]
    if inputs.seconds <= 0:
        reasons.append("nothing was measured")
    else:
        reasons += [f"{name} was not measured" for name in missing if name in ESSENTIAL]
    return Verdict(
        client="limited" if reasons else "ok",
        reasons=reasons,
        missing=missing,
        notes=_notes(inputs, limited=bool(reasons)),
        inputs=inputs,
        bounds=bounds,
        checks=checks,
    )


def _judged(name: str, over: bool, value: str, bound: str) -> Check:
    return Check(name, "over" if over else "ok", value, bound)


def _missing(name: str) -> list[Check]:
    return [Check(name, "missing", "not measured")]


def _ms(value: float) -> str:
    return f"{value:.3g} ms" if value < 1000 else f"{value:,.0f} ms"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _dispatch(i: Inputs, b: Bounds) -> list[Check]:
    kinds = (
        ("dispatch lag, armed", i.dispatch_lag_armed_ms, b.dispatch_lag_armed_p99_ms),
        ("dispatch lag, reactive", i.dispatch_lag_reactive_ms, b.dispatch_lag_reactive_p99_ms),
    )
    if all(lag is None or not lag.count for _, lag, _ in kinds):
        return _missing("dispatch lag")
    checks: list[Check] = []
    for name, lag, bound in kinds:
        if lag is None:
            checks += _missing(name)
        elif not lag.count:
            checks.append(Check(name, "info", "there were no such requests"))
        else:
            value = f"p99 {_ms(lag.p99)}, max {_ms(lag.max)} of {lag.count:,}"
            checks.append(_judged(name, lag.p99 > bound, value, _ms(bound)))
    return checks


def _slack(i: Inputs, b: Bounds) -> list[Check]:
    if not i.events or i.events_slack_over_1ms is None:
        return _missing("slack")
    share = i.events_slack_over_1ms / i.events
    value = f"{_percent(share)} of {i.events:,} events"
    return [
        _judged("slack above 1 ms", share > b.slack_over_1ms_share, value, _percent(b.slack_over_1ms_share))
    ]


def _stalls(i: Inputs, b: Bounds) -> list[Check]:
    checks: list[Check] = []
    for where, stall in (("reactor", i.reactor_stall), ("event loop", i.loop_stall)):
        if stall is None:
            checks += _missing(f"{where} stalls")
            continue
        value = f"{_ms(stall.ms)} at {stall.at_s:.2f} s"
        over = stall.ms > b.longest_stall_ms
        checks.append(_judged(f"longest stall, {where}", over, value, _ms(b.longest_stall_ms)))
    if i.loop_lag_ms is not None and i.loop_lag_ms.count:
        lag = i.loop_lag_ms
        checks.append(Check("event loop lag", "info", f"p99 {_ms(lag.p99)}, max {_ms(lag.max)}"))
    return checks


def _cpu(i: Inputs, b: Bounds) -> list[Check]:
    if not i.threads:
        return _missing("CPU of the threads")
    return [
        _judged(
            f"CPU, {t.name}",
            t.worst > b.thread_cores,
            f"{_percent(t.worst)} of a core in its worst 1 s, {_percent(t.mean)} mean",
            _percent(b.thread_cores),
        )
        for t in i.threads
    ]


def _host(i: Inputs, b: Bounds) -> list[Check]:
    checks: list[Check] = []
    if i.throttled_s is None:
        checks += _missing("cgroup throttling")
    else:
        share = i.throttled_s / i.seconds if i.seconds > 0 else 0.0
        value = f"{_percent(share)} of the time"
        if i.throttled_periods is not None:
            value += f", {i.throttled_periods:,} periods"
        checks.append(
            _judged("cgroup throttling", share > b.throttled_share, value, _percent(b.throttled_share))
        )
    if i.steal_share is None:
        checks += _missing("steal")
    else:
        over = i.steal_share > b.steal_share
        checks.append(_judged("steal", over, _percent(i.steal_share), _percent(b.steal_share)))
    if i.involuntary_switches is None:
        checks += _missing("involuntary switches")
    else:
        value = f"{i.involuntary_switches:,}"
        waited = [t.waiting for t in i.threads or () if t.waiting is not None]
        if waited:
            value += f", at most {_percent(max(waited))} of the time without a core"
        checks.append(Check("involuntary switches", "info", value))
    return checks


def _collector(i: Inputs, b: Bounds) -> list[Check]:
    pauses = i.collector_pauses_ms
    if pauses is None:
        return _missing("collector pauses")
    value = f"max {_ms(pauses.max)} of {pauses.count:,}" if pauses.count else "none"
    return [
        _judged("collector pauses", pauses.max > b.longest_stall_ms, value, _ms(b.longest_stall_ms)),
    ]


def _rate(i: Inputs, b: Bounds) -> list[Check]:
    if i.planned is None or i.achieved is None:
        return _missing("achieved against planned rate")
    if i.planned <= 0:
        return [Check(ACHIEVED, "info", f"no {i.rate_unit} were planned")]
    share = i.achieved / i.planned
    value = f"{_percent(share)} of {i.planned:,.0f} {i.rate_unit}"
    return [_judged(ACHIEVED, share < b.achieved_share, value, f">= {_percent(b.achieved_share)}")]


def _stamps(i: Inputs, b: Bounds) -> list[Check]:
    if i.reads is None or i.reads_without_kernel_stamp is None:
        return _missing("kernel stamps")
    if not i.reads:
        return []
    without = i.reads_without_kernel_stamp / i.reads
    lag = i.read_lag_ms
    if without <= b.unstamped_share:
        if lag is None or not lag.count:
            return []
        return [Check("read lag", "info", f"p99 {_ms(lag.p99)} (token times are the kernel's)")]
    # A read without a kernel stamp says nothing of its own lag. It is at most a turn late, plus the sleep
    # in which nothing had come.
    late = [s for s in (lag, i.reactor_turn_ms) if s is not None and s.count]
    if not late:
        return [Check("read lag", "over", f"unknown, {_percent(without)} of the reads unstamped", "known")]
    p99 = max(s.p99 for s in late)
    value = f"p99 {_ms(p99)}, {_percent(without)} of the reads unstamped"
    return [_judged("read lag", p99 > b.read_lag_p99_ms, value, _ms(b.read_lag_p99_ms))]


_RULES: tuple[Callable[[Inputs, Bounds], list[Check]], ...] = (
    _dispatch,
    _slack,
    _stalls,
    _cpu,
    _rate,
    _stamps,
    _collector,
    _host,
)


def _notes(i: Inputs, *, limited: bool) -> list[str]:
    notes: list[str] = []
    if not limited:
        return notes
    busy = max((t.waiting or 0.0 for t in i.threads or ()), default=0.0)
    if busy > 0.02:
        notes.append(
            f"Threads of this process waited {_percent(busy)} of the time for a core: other processes run on "
            "its cores, or the cores are too few."
        )
    if i.throttled_s:
        notes.append("The cgroup's CPU quota stops this process: raise it, or take it away (cpu.max).")
    if i.steal_share is not None and i.steal_share > 0.01:
        notes.append("The hypervisor gives this machine's cores to others (steal).")
    return notes

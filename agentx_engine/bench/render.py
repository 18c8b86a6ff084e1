"""A measurement as a table to paste into a report."""

from __future__ import annotations

from agentx_engine.bench.limit import Limits, Search, Step
from agentx_engine.bench.measure import BenchResult, Errors
from agentx_engine.metrics.verdict import Spread

WIDTH = 100


def _us(value: float) -> str:
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def _errors(name: str, errors: Errors | None) -> str:
    if errors is None:
        return f"  {name:<26}{'0':>9}"
    cells = "".join(f"{_us(value):>11}" for value in (errors.p50, errors.p90, errors.p99, errors.max))
    return f"  {name:<26}{errors.count:>9,}{cells}"


def _spread(name: str, spread: Spread) -> str:
    if not spread.count:
        return f"  {name:<26}{'0':>9}"
    return (
        f"  {name:<26}{spread.count:>9,}{spread.p50:>11,.3f}{'':>11}{spread.p99:>11,.3f}{spread.max:>11,.3f}"
    )


def render(result: BenchResult) -> str:
    s, r = result.settings, result
    lines = [
        f"{s.streams:,} streams x {s.rate:g} tokens/s, answers of {s.tokens:,} tokens, bodies of "
        f"{s.body_bytes / 1000:g} KB, {s.events_per_write} events in a write, bursts of {s.burst}, "
        f"{s.io_threads} I/O thread{'s' if s.io_threads > 1 else ''}",
        f"window of {r.window_s:.1f} s{' (interrupted)' if r.interrupted else ''}; truth server on core "
        f"{_cores(r.cores.server)}, client on {_cores(r.cores.client)}",
        "",
        f"events/s        {r.achieved_per_s:,.0f} of {r.offered_per_s:,.0f} offered "
        f"({100 * r.taken:.2f} %); {r.requests:,} requests, {sum(r.failures.values()):,} failed",
        *_cpu(r),
        f"Python          {_python(r)}",
        f"memory          {r.peak_rss_mb:,.0f} MB at the peak",
        "",
        f"{'stamp - server send, us':<28}{'count':>9}{'p50':>11}{'p90':>11}{'p99':>11}{'max':>11}",
        _errors("kernel, exact events", r.kernel_exact_us),
        _errors("kernel, all events", r.kernel_all_us),
        _errors("user space, all events", r.user_us),
        f"{'ms':<28}{'count':>9}{'p50':>11}{'':>11}{'p99':>11}{'max':>11}",
        _spread("dispatch lag, armed", r.dispatch_lag_armed_ms),
        _spread("dispatch lag, reactive", r.dispatch_lag_reactive_ms),
        _spread("sending a request", r.send_ms),
        _spread("read lag", r.read_lag_ms),
        _spread("slack of shared reads", r.slack_ms),
        _spread("event loop lag", r.loop_lag_ms),
        f"  {100 * r.flagged_share:.3f} % of the token times are flagged (shared a read)",
        "",
        r.verdict.table(),
    ]
    lines += [f"! {note}" for note in warnings(result)]
    return "\n".join(lines)


def _python(r: BenchResult) -> str:
    if r.python_us_per_request is None:
        return "no answer ended in the window"
    return f"{r.python_us_per_request:,.0f} us of CPU per request"


def _cores(cores: list[int]) -> str:
    return ", ".join(map(str, cores)) if len(cores) < 6 else f"{cores[0]} to {cores[-1]}"


def _cpu(r: BenchResult) -> list[str]:
    lines = [
        f"reactor         {r.reactor_us_per_event:.2f} us of CPU per event (user "
        f"{r.reactor_user_us_per_event:.2f}, kernel {r.reactor_system_us_per_event:.2f}), "
        f"{r.reads_per_event:.3f} reads per event"
    ]
    if r.floor is not None and r.ratio_to_floor is not None:
        lines.append(
            f"floor           {r.floor.us_per_event:.2f} us per event, {r.floor.reads_per_event:.3f} reads, "
            f"{100 * r.floor.taken:.2f} % taken"
        )
        valid = "" if r.not_comparable is None else f" - not comparable: {r.not_comparable}"
        lines.append(f"reactor/floor   {r.ratio_to_floor:.2f}{valid}")
    for thread in r.threads:
        split = ""
        if thread.user_s is not None and thread.system_s is not None:
            split = f" (user {thread.user_s:.2f} s, kernel {thread.system_s:.2f} s)"
        lines.append(f"  {thread.name:<14}{100 * thread.mean:.0f} % of a core{split}")
    return lines


def warnings(result: BenchResult) -> list[str]:
    """What a reader must know beside the figures."""
    found = []
    if result.cores.shared:
        found.append(
            "Only one core: the truth server took part of the client's. The verdict holds for this host; "
            "the costs and errors are not the client's alone."
        )
    if result.truth.late:
        found.append(
            f"The truth server itself was late (p99 {result.truth.lateness_p99_us / 1e3:.1f} ms): "
            "events came in clumps that were none of the client's doing."
        )
    if result.failures:
        kinds = ", ".join(f"{name} {n:,}" for name, n in sorted(result.failures.items()))
        found.append(f"Requests failed: {kinds}; the first: {result.first_failure}.")
    if result.interrupted:
        found.append("Interrupted: the window is shorter than asked for.")
    return found


def render_limits(limits: Limits) -> str:
    lines = [_found("highest rate", limits.rate), _found("most sessions", limits.sessions)]
    if limits.interrupted:
        lines.append("! Interrupted: the search is not complete.")
    return "\n".join(lines)


def _found(name: str, search: Search | None) -> str:
    if search is None:
        return f"{name:<16}not searched to the end"
    if search.best is None:
        at, step = search.steps[-1]
        who = "the truth server" if step == Step.SERVER else "the client"
        return f"{name:<16}none: {who} is the limit even at {at:,} {search.unit}"
    text = f"{name:<16}{search.best:,} {search.unit}, verdict ok"
    return text + (f" (or more: {search.lower_bound})" if search.lower_bound else "")

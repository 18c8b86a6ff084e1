"""The two clocks of subagent entries, settled once so that everything above sees absolute times.

The published AgentX corpora store a subagent's start in `t` and absolute times in its requests. The
older kv-cache-tester files store times relative to the child's own start and, for `completed` entries, the
instant of *completion* in `t`; `async_launched` entries store the launch. Taken literally, those children
start one whole duration late and spread what was one burst of siblings over tens of seconds.

Relative times give the older files away: a child's first request cannot precede the child. The official
loader knows the relative times but not the completion stamps; `compat_harness` reproduces it.
"""

from __future__ import annotations

from msgspec.structs import replace

from agentx_engine.corpus.model import Entry, Subagent, Trace

EPS_S = 1e-6
CORRECTION = "subagent_clock"


def settle(trace: Trace, *, compat_harness: bool = False) -> Trace:
    """Returns the trace with absolute inner times; `corrections` gains "subagent_clock" if a start was moved.

    Default: an entry whose first inner `t` lies before the entry has relative times. Its start is
    `t - duration_ms / 1000` if it is `completed` and has a duration, else `t`; `t` becomes that start and
    every inner time counts from it. With `compat_harness`, as the official loader: each inner request whose
    `t` lies before the entry's gets the entry's added, nothing else.
    """
    moved = False
    changed = False
    entries: list[Entry] = []
    for entry in trace.requests:
        settled = entry
        if isinstance(entry, Subagent) and entry.requests:
            settled = _literal(entry) if compat_harness else _repaired(entry)
            moved = moved or settled.t != entry.t
            changed = changed or settled is not entry
        entries.append(settled)
    if not changed:
        return trace
    corrections = (*trace.corrections, CORRECTION) if moved else trace.corrections
    return replace(trace, requests=tuple(entries), corrections=corrections)


def _repaired(entry: Subagent) -> Subagent:
    if not entry.requests[0].t + EPS_S < entry.t:
        return entry
    start = entry.t
    if entry.status == "completed" and entry.duration_ms is not None and entry.duration_ms > 0:
        start -= entry.duration_ms / 1000.0
    return replace(entry, t=start, requests=tuple(replace(r, t=r.t + start) for r in entry.requests))


def _literal(entry: Subagent) -> Subagent:
    if not any(r.t + EPS_S < entry.t for r in entry.requests):
        return entry
    return replace(
        entry,
        requests=tuple(replace(r, t=r.t + entry.t) if r.t + EPS_S < entry.t else r for r in entry.requests),
    )

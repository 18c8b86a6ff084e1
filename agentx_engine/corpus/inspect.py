"""What is in a corpus: counts, sizes, pauses, prefix reuse, oddities. One trace in memory at a time."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from agentx_engine.core.ids import common_prefix
from agentx_engine.corpus.catalog import Corpus
from agentx_engine.corpus.hash_ids import request_ids
from agentx_engine.corpus.model import AnyRequest, Entry, Subagent, Trace, UnknownRequest

FAN_OUT_WINDOW_S = 1.0
_BITMAP_IDS = 1 << 26
_NO_IDS: NDArray[np.int32] = np.empty(0, dtype=np.int32)


class Distribution(msgspec.Struct):
    """Of `count` values; percentiles by linear interpolation (numpy's default). None if there is no value."""

    count: int
    min: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None
    mean: float | None


class TraceStats(msgspec.Struct):
    """One trace. Tokens and blocks are sums over its requests, root and subagents, unless said otherwise."""

    id: str
    bytes: int
    requests: int
    root_requests: int
    subagent_requests: int
    subagents: int
    async_subagents: int
    max_fanout: int  # most subagents that start within 1 s
    first_in: int | None
    max_in: int | None
    total_in: int
    total_out: int
    duration_s: float  # first start to last recorded end
    block_size: int
    blocks: int  # ids listed
    distinct_blocks: int
    hit_blocks: int  # leading ids that an earlier request of this trace listed

    @property
    def prefix_hit_rate(self) -> float | None:
        return self.hit_blocks / self.blocks if self.blocks else None


class CorpusStats(msgspec.Struct):
    """A corpus in numbers. JSON-able with msgspec.

    Gaps run from the recorded end of a root request to the start of the next one, where that end is known.
    `prefix_hit_rate` is what an infinite cache would reach, each trace starting cold: requests in order of
    start, a block hits if all blocks up to it were listed by an earlier request (agentx-v1 section 9.4).
    `oddities` counts requests, or traces for kinds that begin with "trace" and for loader warnings.
    """

    path: str
    traces: int
    dropped: dict[str, int]
    bytes: int
    requests: int
    root_requests: int
    subagent_requests: int
    subagents: int
    async_subagents: int
    traces_with_subagents: int
    input_tokens: int
    output_tokens: int
    blocks: int
    hit_blocks: int
    prefix_hit_rate: float | None
    block_sizes: dict[str, int]  # size -> traces
    models: dict[str, int]  # name -> requests
    types: dict[str, int]  # recorded as "n", "s" or "?" -> requests
    oddities: dict[str, int]
    distributions: dict[str, Distribution]
    per_trace: list[TraceStats]


class _Tally:
    """Values and counts gathered over the traces."""

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {name: [] for name in _TITLES}
        self.models: Counter[str] = Counter()
        self.types: Counter[str] = Counter()
        self.block_sizes: Counter[str] = Counter()
        self.oddities: Counter[str] = Counter()


# Name of a distribution -> its line in the printed table.
_TITLES = {
    "in_tokens": "input tokens",
    "in_tokens_root": "  root",
    "in_tokens_subagent": "  subagent",
    "out_tokens": "output tokens",
    "out_tokens_root": "  root",
    "out_tokens_subagent": "  subagent",
    "new_tokens": "input tokens not in the prefix cache",
    "root_turns": "root turns per trace",
    "requests": "requests per trace",
    "subagents": "subagents per trace that has any",
    "subagent_turns": "turns per subagent",
    "fanout": "  most started within 1 s",
    "gap_s": "root gap, end to start (s)",
    "api_time_s": "recorded request duration (s)",
    "duration_s": "trace duration (s)",
    "trace_hit_rate": "prefix reuse per trace",
}


def inspect_corpus(corpus: Corpus, on_trace: Callable[[int], None] | None = None) -> CorpusStats:
    """Reads every selected trace once, its id lists too. Raises CorpusError for the first that is broken.

    `on_trace(index)` is called after each trace.
    """
    tally = _Tally()
    rows: list[TraceStats] = []
    for index in range(len(corpus)):
        trace = corpus.trace(index)
        rows.append(_inspect_trace(trace, corpus.bytes_of(index), tally))
        if on_trace is not None:
            on_trace(index)
    for kind, count in corpus.warnings.items():
        tally.oddities[f"loader:{kind}"] = count
    blocks = sum(r.blocks for r in rows)
    hits = sum(r.hit_blocks for r in rows)
    return CorpusStats(
        path=str(corpus.path),
        traces=len(rows),
        dropped=dict(corpus.dropped),
        bytes=sum(r.bytes for r in rows),
        requests=sum(r.requests for r in rows),
        root_requests=sum(r.root_requests for r in rows),
        subagent_requests=sum(r.subagent_requests for r in rows),
        subagents=sum(r.subagents for r in rows),
        async_subagents=sum(r.async_subagents for r in rows),
        traces_with_subagents=sum(r.subagents > 0 for r in rows),
        input_tokens=sum(r.total_in for r in rows),
        output_tokens=sum(r.total_out for r in rows),
        blocks=blocks,
        hit_blocks=hits,
        prefix_hit_rate=hits / blocks if blocks else None,
        block_sizes=dict(tally.block_sizes),
        models=dict(tally.models.most_common()),
        types=dict(tally.types.most_common()),
        oddities=dict(sorted(tally.oddities.items())),
        distributions={name: _distribution(values) for name, values in tally.values.items()},
        per_trace=rows,
    )


def _distribution(values: list[float]) -> Distribution:
    if not values:
        return Distribution(0, None, None, None, None, None, None)
    array = np.asarray(values, dtype=np.float64)
    low, p50, p90, p99, high = np.percentile(array, [0, 50, 90, 99, 100]).tolist()
    return Distribution(len(values), low, p50, p90, p99, high, float(array.mean()))


Leaf = tuple[float, int, int, AnyRequest]  # start, index of the entry, index inside it (or 0), request


def _leaves(entries: Iterable[Entry]) -> list[Leaf]:
    leaves: list[Leaf] = []
    for i, entry in enumerate(entries):
        if isinstance(entry, Subagent):
            leaves.extend((r.t, i, j, r) for j, r in enumerate(entry.requests))
        else:
            leaves.append((entry.t, i, 0, entry))
    return leaves


def _inspect_trace(trace: Trace, size: int, tally: _Tally) -> TraceStats:
    leaves = _leaves(trace.requests)
    agents = [e for e in trace.requests if isinstance(e, Subagent)]
    root = [e for e in trace.requests if not isinstance(e, Subagent)]
    requests = [leaf[3] for leaf in leaves]
    blocks, distinct, hits = _reuse(trace, leaves, tally)
    row = TraceStats(
        id=trace.id,
        bytes=size,
        requests=len(leaves),
        root_requests=len(root),
        subagent_requests=len(leaves) - len(root),
        subagents=len(agents),
        async_subagents=sum(a.status == "async_launched" for a in agents),
        max_fanout=_most_within(sorted(a.t for a in agents), FAN_OUT_WINDOW_S),
        first_in=root[0].in_tokens if root else None,
        max_in=max((r.in_tokens for r in requests), default=None),
        total_in=sum(r.in_tokens for r in requests),
        total_out=sum(r.out_tokens for r in requests),
        duration_s=_duration(requests),
        block_size=trace.block_size,
        blocks=blocks,
        distinct_blocks=distinct,
        hit_blocks=hits,
    )
    _tally_sizes(row, root, agents, tally)
    _tally_oddities(root, agents, requests, tally)
    return row


def _duration(requests: list[AnyRequest]) -> float:
    if not requests:
        return 0.0
    return max(r.t + max(r.api_time or 0.0, 0.0) for r in requests) - min(r.t for r in requests)


def _most_within(starts: list[float], window: float) -> int:
    return max((bisect_left(starts, t + window, i) - i for i, t in enumerate(starts)), default=0)


def _reuse(trace: Trace, leaves: list[Leaf], tally: _Tally) -> tuple[int, int, int]:
    """Ids listed, distinct ids, ids in leading runs of known ids; requests in order of start."""
    seen = _Seen()
    blocks = hits = 0
    previous: dict[int, NDArray[np.int32]] = {}  # stream (-1 = root, else the entry) -> its last ids
    for _, i, j, request in sorted(leaves, key=lambda leaf: leaf[:3]):
        inner = isinstance(trace.requests[i], Subagent)
        ids = request_ids(trace, i, j if inner else None)
        # What the stream's last request listed is known already: only the rest is looked up.
        stream = i if inner else -1
        last = previous.get(stream, _NO_IDS)
        shared = common_prefix(last, ids)
        hit = shared + seen.visit(ids[shared:])
        blocks += len(ids)
        hits += hit
        whole = request.in_tokens // trace.block_size
        tally.values["new_tokens"].append(request.in_tokens - min(hit, whole) * trace.block_size)
        if not len(ids):
            tally.oddities["no hash_ids"] += 1
        elif shared == len(ids) == len(last):
            tally.oddities["same hash_ids as the request before"] += 1
        if len(ids) and len(ids) < whole:
            tally.oddities["fewer hash_ids than whole blocks"] += 1
        if len(ids) > whole:
            tally.oddities["more hash_ids than whole blocks"] += 1
        previous[stream] = ids
    return blocks, len(seen), hits


class _Seen:
    """A set of ids: a bitmap as long as ids are small, as they are in all known corpora."""

    def __init__(self) -> None:
        self._bitmap = np.zeros(1 << 12, dtype=np.bool_)
        self._large: set[int] = set()

    def __len__(self) -> int:
        return int(np.count_nonzero(self._bitmap)) + len(self._large)

    def visit(self, ids: NDArray[np.int32]) -> int:
        """How many leading ids are members; afterwards all ids are."""
        if not len(ids):
            return 0
        top = int(ids.max())
        if top >= _BITMAP_IDS:
            return self._visit_large(ids)
        if top >= len(self._bitmap):
            grown = np.zeros(min(_BITMAP_IDS, 2 * (top + 1)), dtype=np.bool_)
            grown[: len(self._bitmap)] = self._bitmap
            self._bitmap = grown
        known = self._bitmap[ids]
        self._bitmap[ids] = True
        first = int(known.argmin())
        return len(ids) if known[first] else first

    def _visit_large(self, ids: NDArray[np.int32]) -> int:
        small = ids < _BITMAP_IDS
        before = [int(x) in self._large for x in ids[~small].tolist()]
        known = np.zeros(len(ids), dtype=np.bool_)
        known[~small] = before
        inside = small & (ids < len(self._bitmap))
        known[inside] = self._bitmap[ids[inside]]
        self._large.update(ids[~small].tolist())
        self.visit(ids[small])
        first = int(known.argmin())
        return len(ids) if known[first] else first


def _tally_sizes(row: TraceStats, root: list[AnyRequest], agents: list[Subagent], tally: _Tally) -> None:
    values = tally.values
    inner = [r for a in agents for r in a.requests]
    for kind, requests in (("root", root), ("subagent", inner)):
        for field, of in (
            ("in_tokens", [r.in_tokens for r in requests]),
            ("out_tokens", [r.out_tokens for r in requests]),
        ):
            values[field] += of
            values[f"{field}_{kind}"] += of
        values["api_time_s"] += [r.api_time for r in requests if r.api_time is not None]
        tally.models.update(r.model for r in requests)
        tally.types.update(r.type for r in requests)
    values["root_turns"].append(row.root_requests)
    values["requests"].append(row.requests)
    values["duration_s"].append(row.duration_s)
    values["subagent_turns"] += [len(a.requests) for a in agents]
    if agents:
        values["subagents"].append(len(agents))
        values["fanout"].append(row.max_fanout)
    if (rate := row.prefix_hit_rate) is not None:
        values["trace_hit_rate"].append(rate)
    values["gap_s"] += [b.t - a.t - a.api_time for a, b in pairwise(root) if a.api_time is not None]
    tally.block_sizes[str(row.block_size)] += 1


def _tally_oddities(
    root: list[AnyRequest], agents: list[Subagent], requests: list[AnyRequest], tally: _Tally
) -> None:
    streams = [root, *(a.requests for a in agents)]
    found = {
        "out is 0": sum(r.out_tokens == 0 for r in requests),
        "in is 0": sum(r.in_tokens == 0 for r in requests),
        "no api_time": sum(r.api_time is None for r in requests),
        "negative api_time": sum(r.api_time is not None and r.api_time < 0 for r in requests),
        'type "?"': sum(isinstance(r, UnknownRequest) for r in requests),
        "starts before the request listed before it": sum(b.t < a.t for s in streams for a, b in pairwise(s)),
        "subagent without requests": sum(not a.requests for a in agents),
        "trace without requests": int(not requests),
        "trace with whole-second root times": int(len(root) > 1 and all(r.t.is_integer() for r in root)),
        "trace with several models in the root": int(len({r.model for r in root}) > 1),
    }
    tally.oddities.update({name: count for name, count in found.items() if count})


def render(stats: CorpusStats) -> str:
    """The statistics as plain text, at most 100 columns for usual values."""
    rate = "-" if stats.prefix_hit_rate is None else f"{100 * stats.prefix_hit_rate:.2f} %"
    dropped = "".join(f", {count:,} left out ({reason})" for reason, count in stats.dropped.items())
    lines = [
        stats.path,
        "",
        f"  traces         {stats.traces:,}{dropped}",
        f"  requests       {stats.requests:,} ({stats.root_requests:,} root, "
        f"{stats.subagent_requests:,} in subagents)",
        f"  subagents      {stats.subagents:,} in {stats.traces_with_subagents:,} traces"
        f" ({stats.async_subagents:,} asynchronous)",
        f"  tokens         {stats.input_tokens:,} in, {stats.output_tokens:,} out",
        f"  prefix reuse   {rate} of {stats.blocks:,} blocks (infinite cache, each trace cold)",
        f"  block size     {_listed(stats.block_sizes, 'traces')}",
        f"  models         {_listed(stats.models, 'requests')}",
        f"  recorded as    {_listed(stats.types, 'requests')}",
        "",
        f"  {'':<{_TITLE_WIDTH}}" + "".join(f"{name:>11}" for name in ("p50", "p90", "p99", "max", "mean")),
    ]
    for name, title in _TITLES.items():
        d = stats.distributions[name]
        if d.count:
            numbers = "".join(f"{_number(v):>11}" for v in (d.p50, d.p90, d.p99, d.max, d.mean))
            lines.append(f"  {title:<{_TITLE_WIDTH}}{numbers}")
    if stats.oddities:
        lines += ["", "  oddities"]
        lines += [f"  {count:>11,}  {name}" for name, count in stats.oddities.items()]
    return "\n".join(lines) + "\n"


_TITLE_WIDTH = max(map(len, _TITLES.values()))
_LABEL_WIDTH = len("  prefix reuse   ")
_LISTED = 8


def _listed(counts: dict[str, int], unit: str) -> str:
    if not counts:
        return "-"
    if len(counts) == 1:
        return next(iter(counts))
    lines = [f"{name} ({count:,} {unit})" for name, count in list(counts.items())[:_LISTED]]
    if len(counts) > _LISTED:
        lines.append(f"and {len(counts) - _LISTED} more")
    return ("\n" + " " * _LABEL_WIDTH).join(lines)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value.is_integer() else f"{value:.3g}"

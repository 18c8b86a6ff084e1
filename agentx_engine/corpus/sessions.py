"""One synthetic session in the Weka format, drawn from a seed and a `Shape`.

A session is a root conversation whose prompt grows turn by turn, now and then loses its tail, is rebuilt or
compacted, and starts batches of subagents that have prompts of their own. Ids are chained: an id stands for
one block after one whole prefix, it has one position and one predecessor in its session, and new blocks take
the next numbers. So what a prefix cache can reuse is in the ids alone.

Sessions are independent streams: session i depends on the seed, on i, and on the corpus-wide draw of lengths
(stratified, so that totals hardly vary with the seed). Times are whole milliseconds inside.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec
from msgspec import Raw

from agentx_engine.corpus.draw import Random, clipped, quantile
from agentx_engine.corpus.shape import Growth, Shape

_PLAN, _SESSION = 0, 1  # kinds of random streams of one seed


class _Run(NamedTuple):
    """Consecutive ids, and their JSON text."""

    first: int
    blocks: int
    text: bytes


def _run(first: int, blocks: int) -> _Run:
    return _Run(first, blocks, ",".join(map(str, range(first, first + blocks))).encode())


_Ids = tuple[_Run, ...]


def _length(ids: _Ids) -> int:
    return sum(run.blocks for run in ids)


def _leading(ids: _Ids, n: int) -> _Ids:
    kept: list[_Run] = []
    for run in ids:
        if n <= 0:
            break
        kept.append(run if run.blocks <= n else _run(run.first, n))
        n -= run.blocks
    return tuple(kept)


class Call(msgspec.Struct):
    """A request as it is written; key order as in the AgentX corpora."""

    t: float
    model: str
    in_tokens: int = msgspec.field(name="in")
    out: int
    hash_ids: Raw
    api_time: float
    type: str
    stop: str
    think_time: float


class Agent(msgspec.Struct):
    t: float
    type: str
    agent_id: str
    subagent_type: str
    duration_ms: int | None
    total_tokens: int | None
    tool_use_count: int | None
    status: str
    requests: list[Call]
    models: list[str]


class Session(msgspec.Struct):
    id: str
    models: list[str]
    block_size: int
    hash_id_scope: str
    requests: list[Call | Agent]


class Plan(NamedTuple):
    """The corpus-wide draw for one session."""

    turns: int
    turns_z: float
    children: int


def plans(shape: Shape, sessions: int, seed: int) -> list[Plan]:
    rng = Random(seed, _PLAN)
    zs = [quantile((i + 0.5) / sessions) for i in rng.shuffled(sessions)]
    rho = shape.children_turns_correlation
    noise = math.sqrt(1 - rho * rho)
    scores = [rho * z + noise * rng.normal() for z in zs]
    ranked = sorted(range(sessions), key=lambda i: -scores[i])
    chosen = ranked[: round(shape.p_children * sessions)]
    groups = sorted((round(rng.log_normal(shape.groups)) for _ in chosen), reverse=True)
    children = dict(zip(chosen, groups, strict=True))
    return [Plan(round(clipped(shape.turns, z)), z, children.get(i, 0)) for i, z in enumerate(zs)]


class _Prompt:
    """The prompt of one conversation: its ids and its size."""

    def __init__(self, writer: SessionWriter, ids: _Ids = (), tokens: int = 0) -> None:
        self._writer = writer
        self.ids = ids
        self.tokens = tokens
        self.new_tokens = tokens

    def set(self, tokens: float, keep: int, of: _Ids | None = None) -> None:
        """Becomes `tokens` long, keeps at most `keep` blocks (of itself or of an older state)."""
        block = self._writer.shape.block_size
        size = max(int(tokens), 1)
        if self._writer.shape.aligned:
            size = max(block, size // block * block)
        blocks = size // block
        kept = _leading(self.ids if of is None else of, min(keep, blocks))
        known = _length(kept)
        self.ids = (*kept, self._writer.fresh(blocks - known)) if blocks > known else kept
        self.tokens = size
        self.new_tokens = size - known * block

    @property
    def blocks(self) -> int:
        return self.tokens // self._writer.shape.block_size

    def json(self) -> Raw:
        return Raw(b"[" + b",".join(run.text for run in self.ids) + b"]")


class SessionWriter:
    """One session."""

    def __init__(self, shape: Shape, seed: int, index: int, plan: Plan) -> None:
        self.shape = shape
        self._plan = plan
        self._rng = Random(seed, _SESSION, index)
        self._next_id = 0
        self._agents = 0
        self._type_prefix: dict[str, _Ids] = {}
        self.id = f"synthetic-{seed}-{index:04d}"
        self.entries: list[Call | Agent] = []

    def fresh(self, count: int) -> _Run:
        run = _run(self._next_id, count)
        self._next_id += count
        return run

    def write(self) -> Session:
        shape, rng = self.shape, self._rng
        window = shape.windows[rng.pick([w.share for w in shape.windows])]
        prefix = rng.log_normal(shape.prefix)
        prefix_blocks = int(prefix) // shape.block_size
        level = self._level(shape.growth, shape.growth_turns_correlation)
        threshold = window.tokens * rng.uniform(window.compact_from, window.compact_to)
        batches = self._batches()
        prompt = _Prompt(self)
        history: list[_Ids] = []
        clock_ms = 0
        gap_ms = 0
        if rng.chance(shape.p_helper):
            clock_ms, gap_ms = self._helper()
        reports = 0.0
        out_z = 0.0
        for turn in range(self._plan.turns):
            if turn == 0:
                self._open(prompt, window.tokens, prefix)
            else:
                added = math.exp(level + shape.growth.within * self._follow(out_z)) + reports
                if turn <= shape.early_turns:
                    added *= shape.early_factor
                if self._grow(prompt, history, added, threshold, prefix_blocks):
                    threshold = window.tokens * rng.uniform(window.compact_from, window.compact_to)
            out_z = rng.normal()
            out = max(1, round(rng.log_normal(shape.out, out_z)))
            if prompt.tokens + out > window.tokens:
                prompt.set(window.tokens - out, prompt.blocks)
            history.append(prompt.ids)
            spawns = batches.get(turn, ())
            stop = "end_turn" if not spawns and rng.chance(shape.p_end_turn) else "tool_use"
            call, end_ms = self._call(prompt, out, (clock_ms, gap_ms), stop, shape.models[0])
            self.entries.append(call)
            waited_ms, reports = self._spawn(spawns, prompt, end_ms)
            gap_ms = self._gap_ms()
            clock_ms = end_ms + gap_ms
            if waited_ms:
                clock_ms = max(clock_ms, waited_ms + _ms(rng.log_normal(shape.join_gap_s)))
                gap_ms = clock_ms - end_ms
        models = sorted({e.model for e in self.entries if isinstance(e, Call)})
        return Session(self.id, models, shape.block_size, "local", self.entries)

    def _level(self, growth: Growth, correlation: float = 0.0) -> float:
        z = correlation * self._plan.turns_z + math.sqrt(1 - correlation**2) * self._rng.normal()
        return math.log(growth.median) + growth.between * z

    def _follow(self, out_z: float) -> float:
        rho = self.shape.growth_out_correlation
        return rho * out_z + math.sqrt(1 - rho * rho) * self._rng.normal()

    def _gap_ms(self) -> int:
        parts = self.shape.gap_s
        return _ms(self._rng.log_normal(parts[self._rng.pick([w for w, _ in parts])][1]))

    def _helper(self) -> tuple[int, int]:
        prompt = _Prompt(self)
        prompt.set((6 + self._rng.below(6)) * self.shape.block_size, 0)
        call, end_ms = self._call(prompt, 20, (0, 0), "end_turn", self.shape.models[0])
        self.entries.append(call)
        gap_ms = self._gap_ms()
        return end_ms + gap_ms, gap_ms

    def _open(self, prompt: _Prompt, window: int, prefix: float) -> None:
        rng = self._rng
        if rng.chance(self.shape.p_resume):
            size = min(rng.log_normal(self.shape.resumed), 0.8 * window)
        else:
            size = rng.log_normal(self.shape.fresh)
        prompt.set(max(size, prefix + self.shape.block_size), 0)

    def _grow(
        self, prompt: _Prompt, history: list[_Ids], added: float, threshold: float, prefix_blocks: int
    ) -> bool:
        """The next prompt; True if it was compacted."""
        shape, rng = self.shape, self._rng
        if prompt.tokens + added > threshold or rng.chance(shape.p_clear):
            size = prefix_blocks * shape.block_size + rng.log_normal(shape.compacted)
            prompt.set(min(size, 0.95 * threshold), prefix_blocks)
            return True
        if rng.chance(shape.p_rebuild):
            how = rng.pick([0.675, 0.09, 0.135, 0.10])  # of ten resets, one goes back to an older branch
            if how == 3:
                prompt.set(prompt.tokens + added, prompt.blocks, history[rng.below(len(history))])
            else:
                prompt.set(prompt.tokens, (prefix_blocks, 0, rng.below(prompt.blocks + 1))[how])
            return False
        keep = prompt.blocks
        if rng.chance(shape.p_tail):
            keep -= 1
            while keep > prefix_blocks and rng.chance(shape.tail_more):
                keep -= 1
        prompt.set(prompt.tokens + added, keep)
        return False

    def _call(
        self, prompt: _Prompt, out: int, when_ms: tuple[int, int], stop: str, model: str
    ) -> tuple[Call, int]:
        """A request that starts at when_ms[0], when_ms[1] after the one before; and its end in ms."""
        pace = self.shape.pace
        thousands = prompt.new_tokens * pace.per_new_k_s + prompt.tokens * pace.per_in_k_s
        service = pace.base_s + out * pace.per_out_s + thousands / 1000
        api_ms = max(1, _ms(service * math.exp(pace.sigma * self._rng.normal())))
        start_ms, gap_ms = when_ms
        call = Call(
            t=start_ms / 1000,
            model=model,
            in_tokens=prompt.tokens,
            out=out,
            hash_ids=prompt.json(),
            api_time=api_ms / 1000,
            type="n",
            stop=stop,
            think_time=gap_ms / 1000,
        )
        return call, start_ms + api_ms

    def _batches(self) -> dict[int, list[int]]:
        """Turn -> sizes of the batches that it starts. A quarter of all start early in the session."""
        rng, turns = self._rng, self._plan.turns
        sizes = [size for size, _ in self.shape.batches]
        weights = [weight for _, weight in self.shape.batches]
        left = self._plan.children
        free = list(range(max(turns - 1, 1)))
        batches: dict[int, list[int]] = {}
        while left:
            size = min(sizes[rng.pick(weights)], left)
            left -= size
            if not free:
                free = list(range(max(turns - 1, 1)))
            turn = free.pop(rng.pick([3.0 if t < 0.05 * turns else 1.0 for t in free]))
            batches.setdefault(turn, []).append(size)
        return batches

    def _spawn(self, batches: list[int] | tuple[()], parent: _Prompt, end_ms: int) -> tuple[int, float]:
        """Writes subagents. Returns the end of the last awaited one (0 = none) and their reports' tokens."""
        shape, rng = self.shape, self._rng
        waited_ms = 0
        reports = 0.0
        agents: list[Agent] = []
        for size in batches:
            start_ms = end_ms + _ms(rng.uniform(*shape.spawn_lag_s))
            detached = rng.chance(shape.p_async)
            for _ in range(size):
                agent, child_end_ms, report = self._agent(
                    start_ms + _ms(rng.uniform(0, shape.sibling_spread_s)), parent, detached
                )
                agents.append(agent)
                if not detached:
                    waited_ms = max(waited_ms, child_end_ms)
                    reports += 0.9 * report
        self.entries.extend(sorted(agents, key=lambda a: a.t))
        return waited_ms, reports + 200 if reports else 0.0

    def _agent(self, start_ms: int, parent: _Prompt, detached: bool) -> tuple[Agent, int, int]:
        shape, rng = self.shape, self._rng
        kind = shape.child_types[rng.pick([w for _, w in shape.child_types])][0]
        level = self._level(shape.child_growth)
        turns = round(rng.log_normal(shape.child_turns))
        prompt = _Prompt(self)
        calls: list[Call] = []
        clock_ms, gap_ms, end_ms, out = start_ms, 0, start_ms, 0
        for turn in range(turns):
            last = turn == turns - 1
            out = max(1, round(rng.log_normal(shape.child_report if last else shape.child_out)))
            room = shape.child_window - out
            if turn == 0:
                self._open_child(prompt, parent, kind)
            else:
                added = math.exp(level + shape.child_growth.within * rng.normal())
                prompt.set(min(prompt.tokens + added, max(room, prompt.tokens)), prompt.blocks)
            stop = "end_turn" if last else "tool_use"
            call, end_ms = self._call(prompt, out, (clock_ms, gap_ms), stop, shape.models[1])
            calls.append(call)
            gap_ms = _ms(rng.log_normal(shape.child_gap_s))
            clock_ms = end_ms + gap_ms
        self._agents += 1
        agent = Agent(
            t=start_ms / 1000,
            type="subagent",
            agent_id=f"agent_{self._agents:03d}",
            subagent_type=kind,
            duration_ms=None if detached else end_ms - start_ms,
            total_tokens=None if detached else prompt.tokens + out,
            tool_use_count=None if detached else turns - 1,
            status="async_launched" if detached else "completed",
            requests=calls,
            models=[shape.models[1]],
        )
        return agent, end_ms, out

    def _open_child(self, prompt: _Prompt, parent: _Prompt, kind: str) -> None:
        """Own tools and system prompt, shared with earlier siblings of the type but for 1-3 blocks."""
        if self._rng.chance(self.shape.p_fork):
            prompt.set(parent.tokens + self.shape.block_size, parent.blocks, parent.ids)
            return
        known = self._type_prefix.get(kind)
        if known is None:
            prompt.set(self._rng.log_normal(self.shape.child_first), 0)
            self._type_prefix[kind] = prompt.ids
            return
        blocks = _length(known)
        prompt.set(blocks * self.shape.block_size, max(blocks - 1 - self._rng.below(3), 0), known)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)

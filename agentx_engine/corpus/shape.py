"""The parameters of a synthetic corpus: what `synth` draws from. A preset is a `Shape`, nothing more.

Sizes are in tokens, times in seconds. Distributions: log-normal by median and sigma of the logarithm, with
bounds; finite mixtures of those; weighted choices.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class LogNormal(NamedTuple):
    """exp(N(ln median, sigma)), clipped to [low, high]."""

    median: float
    sigma: float
    low: float = 0.0
    high: float = math.inf


class Growth(NamedTuple):
    """Tokens that a turn adds to the prompt: log-normal around a level that each session has of its own."""

    median: float
    within: float  # sigma of the logarithm inside a session
    between: float  # sigma of the session's level


class Window(NamedTuple):
    """A context window, and the band of its fill at which a session compacts."""

    share: float
    tokens: int
    compact_from: float
    compact_to: float


class Pace(NamedTuple):
    """Duration of a call: base + out * per_out + (new * per_new_k + in * per_in_k) / 1000, times a noise."""

    base_s: float
    per_out_s: float
    per_new_k_s: float
    per_in_k_s: float
    sigma: float


class Shape(NamedTuple):
    """Everything that decides what sessions look like, but for the seed."""

    sessions: int
    turns: LogNormal  # root turns per session
    windows: tuple[Window, ...]
    prefix: LogNormal  # tools and system prompt
    p_helper: float  # the session opens with a small call that shares nothing
    fresh: LogNormal  # first prompt of a new session
    p_resume: float
    resumed: LogNormal  # first prompt of a session recorded from its middle
    growth: Growth
    growth_turns_correlation: float  # long sessions grow slower: correlation of log growth and log turns
    early_factor: float  # on the growth of the first `early_turns`
    early_turns: int
    growth_out_correlation: float  # with the answer before
    p_rebuild: float  # same size, other content
    p_clear: float  # compaction at any size
    compacted: LogNormal  # beyond the prefix
    p_tail: float  # the last blocks are rewritten
    tail_more: float  # chance of each further block
    out: LogNormal
    p_end_turn: float  # share of turns that stop with "end_turn"
    p_children: float  # share of sessions with subagents
    children_turns_correlation: float  # subagents prefer long sessions
    groups: LogNormal  # subagents of a session that has any
    batches: tuple[tuple[int, float], ...]  # (subagents started together, weight)
    child_turns: LogNormal
    child_first: LogNormal
    child_growth: Growth
    child_out: LogNormal
    child_report: LogNormal  # the last answer of a subagent
    child_types: tuple[tuple[str, float], ...]
    child_window: int
    spawn_lag_s: tuple[float, float]  # parent's end to the batch
    sibling_spread_s: float
    p_async: float  # batches that the parent does not wait for
    p_fork: float  # subagents that start from the parent's prompt
    gap_s: tuple[tuple[float, LogNormal], ...]  # (weight, part)
    child_gap_s: LogNormal
    join_gap_s: LogNormal
    pace: Pace
    block_size: int = 64
    aligned: bool = True  # prompts are whole blocks, as in the AgentX corpora; else they have a tail
    models: tuple[str, str] = ("synthetic-large", "synthetic-small")  # root, subagents


# A demonstration: lively within a minute against a simulated server, small enough for any laptop.
SMALL = Shape(
    sessions=16,
    turns=LogNormal(9, 0.45, 4, 20),
    windows=(Window(0.3, 16_000, 0.75, 0.83), Window(0.7, 24_000, 0.80, 0.95)),
    prefix=LogNormal(1_800, 0.2, 640, 4_000),
    p_helper=0.25,
    fresh=LogNormal(2_800, 0.25, 2_000, 8_000),
    p_resume=0.25,
    resumed=LogNormal(8_000, 0.4, 4_000, 16_000),
    growth=Growth(650, 0.9, 0.3),
    growth_turns_correlation=-0.33,
    early_factor=1.5,
    early_turns=5,
    growth_out_correlation=0.37,
    p_rebuild=0.015,
    p_clear=0.01,
    compacted=LogNormal(2_500, 0.4, 500, 6_000),
    p_tail=0.049,
    tail_more=0.2,
    out=LogNormal(70, 0.6, 20, 200),
    p_end_turn=0.062,
    p_children=0.5,
    children_turns_correlation=0.56,
    groups=LogNormal(2.5, 0.6, 1, 8),
    batches=((1, 0.40), (2, 0.25), (3, 0.25), (4, 0.10)),
    child_turns=LogNormal(4, 0.5, 2, 10),
    child_first=LogNormal(2_200, 0.25, 1_280, 4_000),
    child_growth=Growth(600, 0.7, 0.3),
    child_out=LogNormal(50, 0.5, 20, 120),
    child_report=LogNormal(140, 0.3, 60, 200),
    child_types=(("Explore", 0.80), ("general-purpose", 0.15), ("Plan", 0.05)),
    child_window=16_000,
    spawn_lag_s=(0.02, 0.1),
    sibling_spread_s=0.01,
    p_async=0.10,
    p_fork=0.0,
    gap_s=(
        (0.55, LogNormal(0.15, 0.5, 0.05, 2)),
        (0.42, LogNormal(0.5, 0.6, 0.05, 2)),
        (0.03, LogNormal(1.5, 0.3, 0.05, 2)),
    ),
    child_gap_s=LogNormal(0.12, 0.5, 0.05, 1),
    join_gap_s=LogNormal(0.2, 0.5, 0.05, 1),
    pace=Pace(0.05, 0.006, 0.03, 0.003, 0.25),
)

PRESETS = {"small": SMALL}

"""The rule sets, as tables. `apply` is the only code that reads them.

A *fill* is the value that a setting gets when the user sets nothing; the user's own value wins. A *lock*
says what the value must be in the end, whoever set it. A locked equality is its own fill: unset, the
required value is put in.

Rows are numbered as in agentx-v1, section 8.2; the fills are section 8.1, column by column.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from agentx_engine.scenario.vocabulary import AGENTIC_REPLAY, LOCAL, RANDOM, REPOSITORY, SYNTHETIC

MIN_VALID_DURATION_S: Final = 900.0
FIRST_TURN_PREFIX: Final = "first-turn-prefix"
PINNED_REPOSITORY: Final = "semianalysisai/cc-traces-weka-062126"

_PUBLIC: Final = "semianalysis_cc_traces_weka"
PINNED_LOADERS: Final = tuple(
    f"{_PUBLIC}_{name}{size}"
    for name in (
        "with_subagents",
        "with_subagents_060226",
        "with_subagents_060526",
        "with_subagents_060826",
        "061326",
        "061526",
        "062126",
    )
    for size in ("", "_256k")
)


class Derived(enum.Enum):
    """Fills that are computed from other settings, see `apply.derive`."""

    TIMED_WARMUP_GRACE = enum.auto()


class Fill(msgspec.Struct, frozen=True):
    """A value for a setting that the user left open.

    unless, only_with: the name of a setting; the fill is made only if the user did not give it, or did.
    """

    setting: str
    value: object
    unless: str | None = None
    only_with: str | None = None


class Must(enum.Enum):
    """What a lock demands of a value."""

    EQUAL = "equal"
    NOT_EQUAL = "not_equal"
    AMONG = "among"
    AT_LEAST = "at_least"
    TRUTHY = "truthy"  # a flag that may come as JSON: true, 1, "yes"
    UNUSED = "unused"  # absent, None or False


class Lock(msgspec.Struct, frozen=True):
    """A rule about one setting.

    row: its number in the definition. flag: the official name of its violation. why: one sentence for
    the user. overridable: `--unsafe-override` lets the run go on. when: a (setting, value) that must hold for
    the rule to apply.
    """

    row: str
    setting: str
    must: Must
    bound: object
    flag: str
    why: str
    overridable: bool = True
    when: tuple[str, object] | None = None


class Scenario(msgspec.Struct, frozen=True):
    """A named rule set. `free`: settings that the user chooses and the scenario has no value for."""

    name: str
    fills: tuple[Fill, ...]
    locks: tuple[Lock, ...]
    free: tuple[str, ...]


_TIMING: Final = "--request-rate / --user-centric-rate / --fixed-schedule"
_RECORDED: Final = "The load is the recording's, at its own times."

LOCKS: Final = (
    Lock("1", "timing_mode", Must.EQUAL, AGENTIC_REPLAY, _TIMING, _RECORDED),
    Lock("1", "request_rate", Must.UNUSED, None, _TIMING, _RECORDED),
    Lock("1", "arrival_pattern", Must.UNUSED, None, _TIMING, _RECORDED),
    Lock("1", "user_centric_rate", Must.UNUSED, None, _TIMING, _RECORDED),
    Lock("1", "fixed_schedule", Must.UNUSED, None, _TIMING, _RECORDED),
    Lock("1", "adaptive_scale", Must.UNUSED, None, "--adaptive-scale", _RECORDED),
    Lock("2", "streaming", Must.EQUAL, True, "--streaming", "Without a stream there is no token time."),
    Lock(
        "3",
        "ignore_eos",
        Must.TRUTHY,
        True,
        "extra_inputs.ignore_eos",
        "Answers have the recorded length, so that every server does the same work.",
    ),
    Lock("4", "ignore_trace_delays", Must.UNUSED, None, "--ignore-trace-delays", _RECORDED),
    Lock("5", "synthesis_max_isl", Must.UNUSED, None, "--synthesis-max-isl", "Prompts are not cut."),
    Lock(
        "6",
        "loader",
        Must.NOT_EQUAL,
        SYNTHETIC,
        "--input-file (loader)",
        "The built-in sessions are a demonstration, not the benchmark's traffic.",
        overridable=False,
    ),
    Lock(
        "6",
        "loader",
        Must.AMONG,
        (SYNTHETIC, *PINNED_LOADERS, LOCAL, REPOSITORY),
        "--input-file (loader)",
        "Results can be compared only over the same traces.",
    ),
    Lock(
        "6a",
        "hf_dataset",
        Must.EQUAL,
        PINNED_REPOSITORY,
        "--hf-weka-dataset",
        "Results can be compared only over the same traces.",
        when=("loader", REPOSITORY),
    ),
    Lock(
        "6b",
        "loader",
        Must.NOT_EQUAL,
        LOCAL,
        "--custom-dataset-type / --input-file",
        "A local corpus is not pinned: nobody else can tell which traces it holds.",
    ),
    Lock(
        "7",
        "cache_bust",
        Must.EQUAL,
        FIRST_TURN_PREFIX,
        "--cache-bust",
        "Without the marker a session finds the prefix that another play of its trace left in the cache.",
    ),
    Lock(
        "8",
        "duration_s",
        Must.AT_LEAST,
        MIN_VALID_DURATION_S,
        "--benchmark-duration",
        "A shorter run does not see long sessions.",
    ),
    Lock("9", "inter_turn_delay_cap_s", Must.UNUSED, None, "--inter-turn-delay-cap-seconds", _RECORDED),
    Lock(
        "10",
        "system_idle_gap_cap_s",
        Must.EQUAL,
        10.0,
        "--system-idle-gap-cap-seconds",
        "Every run skips idle time alike.",
    ),
    Lock(
        "sweep",
        "sweep",
        Must.UNUSED,
        None,
        "--sweep",
        "One run is one point; its validity is its own.",
        overridable=False,
    ),
)

# Two ways to say one thing: whoever gives both has made a mistake, under any rule set.
EXCLUSIVE: Final = (("warmup_duration_s", "warmup_requests_per_lane"),)

FREE: Final = (
    "concurrency",
    "max_context",
    "max_output_tokens",
    "burst_phase_starts",
    "connections",
    "headers",
    "tokenizer",
    "model",
    "request_count",
    "warmup_duration_s",
    "fail_fast",
)

_COMMON: Final = (
    Fill("loader", SYNTHETIC),
    Fill("endpoint_type", "chat"),
    Fill("grace_s", 30.0),
    Fill("metric_coverage", 0.95),
)

SCENARIOS: Final[dict[str, Scenario]] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "agentx",
            fills=(
                *_COMMON,
                Fill("duration_s", 3600.0),
                Fill("trajectory_start_min_ratio", 0.25),
                Fill("trajectory_start_max_ratio", 0.75),
                Fill("seed", 42),
                Fill("warmup_requests_per_lane", 10, unless="warmup_duration_s"),
                Fill("warmup_grace_s", 1800.0),
                Fill("trace_idle_gap_cap_s", 300.0),
                Fill("failed_request_threshold", 0.10),
                Fill("server_token_counts", True),
                Fill("entries", 393),
                Fill("slice_duration_s", 1.0),
                Fill("stats_interval_s", 30.0),
                Fill("gpu_telemetry", False),
                Fill("dataset_timeout_s", 1800.0),
                Fill("live_metrics", True),
                Fill("tcp_user_timeout_ms", 900_000),
            ),
            locks=LOCKS,
            free=FREE,
        ),
        Scenario(
            "inferencex-agentx-mvp",
            fills=(
                *_COMMON,
                Fill("duration_s", 1800.0),
                Fill("trajectory_start_min_ratio", 0.0),
                Fill("trajectory_start_max_ratio", 1.0),
                Fill("seed", RANDOM),
                Fill("warmup_requests_per_lane", None),
                Fill("warmup_grace_s", None, unless="warmup_duration_s"),
                Fill("warmup_grace_s", Derived.TIMED_WARMUP_GRACE, only_with="warmup_duration_s"),
                Fill("trace_idle_gap_cap_s", None),
                Fill("failed_request_threshold", None),
                Fill("server_token_counts", False),
                Fill("entries", None),
                Fill("slice_duration_s", None),
            ),
            locks=LOCKS,
            free=(
                *FREE,
                "stats_interval_s",
                "gpu_telemetry",
                "dataset_timeout_s",
                "live_metrics",
                "tcp_user_timeout_ms",
            ),
        ),
    )
}

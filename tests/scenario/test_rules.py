"""The rule sets against the definition, row by row (agentx-v1, sections 8.1 and 8.2)."""

import pytest

from agentx_engine.errors import UserError
from agentx_engine.scenario import SCENARIOS, SETTINGS, apply, draw_seed, scenario_named

AGENTX, MVP = SCENARIOS["agentx"], SCENARIOS["inferencex-agentx-mvp"]
BOTH = pytest.mark.parametrize("scenario", [AGENTX, MVP], ids=lambda s: s.name)
PINNED = {"loader": "semianalysis_cc_traces_weka_062126"}


def rows(applied):
    return [v.row for v in applied.violations]


# -- section 8.1: what is filled in when the user sets nothing

FILLED = [
    # row, setting, agentx, inferencex-agentx-mvp
    ("endpoint type", "endpoint_type", "chat", "chat"),
    ("locked", "timing_mode", "agentic-replay", "agentic-replay"),
    ("locked", "streaming", True, True),
    ("locked", "ignore_eos", True, True),
    ("locked", "cache_bust", "first-turn-prefix", "first-turn-prefix"),
    ("locked", "system_idle_gap_cap_s", 10.0, 10.0),
    ("benchmark duration", "duration_s", 3600.0, 1800.0),
    ("t* ratios", "trajectory_start_min_ratio", 0.25, 0.0),
    ("t* ratios", "trajectory_start_max_ratio", 0.75, 1.0),
    ("random seed", "seed", 42, "random"),
    ("extra warmup requests per lane", "warmup_requests_per_lane", 10, None),
    ("warmup grace", "warmup_grace_s", 1800.0, None),
    ("trace idle cap", "trace_idle_gap_cap_s", 300.0, None),
    ("failed-request threshold", "failed_request_threshold", 0.10, None),
    ("server token counts", "server_token_counts", True, False),
    ("dataset entries", "entries", 393, None),
    ("slice duration", "slice_duration_s", 1.0, None),
    ("stats interval", "stats_interval_s", 30.0, ...),
    ("GPU telemetry", "gpu_telemetry", False, ...),
    ("environment", "dataset_timeout_s", 1800.0, ...),
    ("environment", "live_metrics", True, ...),
    ("environment", "tcp_user_timeout_ms", 900_000, ...),
    ("coverage gate", "metric_coverage", 0.95, 0.95),
    ("grace, section 6.8", "grace_s", 30.0, 30.0),
]


@pytest.mark.parametrize("scenario, column", [(AGENTX, 0), (MVP, 1)], ids=["agentx", "mvp"])
def test_what_is_filled_in(scenario, column):
    applied = apply(scenario, PINNED)
    expected = {setting: values[column] for _, setting, *values in FILLED if values[column] is not ...}
    assert applied.effective == expected | PINNED
    assert set(applied.filled) == set(expected)
    assert applied.violations == ()
    assert applied.refusal is None
    assert applied.invalid_reasons == ()


@BOTH
@pytest.mark.parametrize(
    "setting, value",
    [
        ("duration_s", 900.0),
        ("trajectory_start_min_ratio", 0.5),
        ("trajectory_start_max_ratio", 0.1),  # not validated
        ("seed", 7),
        ("warmup_requests_per_lane", 0),
        ("warmup_grace_s", 5.0),
        ("trace_idle_gap_cap_s", None),
        ("trace_idle_gap_cap_s", 60.0),
        ("failed_request_threshold", None),
        ("failed_request_threshold", 0.5),
        ("server_token_counts", False),
        ("entries", None),
        ("entries", 10),
        ("slice_duration_s", 5.0),
        ("stats_interval_s", 1.0),
        ("gpu_telemetry", True),
        ("grace_s", 0.0),
        ("concurrency", 4096),
        ("max_context", 131_072),
        ("max_output_tokens", 100),
        ("burst_phase_starts", True),
        ("connections", "request"),
        ("headers", [("a", "b")]),
        ("tokenizer", "folder"),
        ("request_count", 5),
        ("fail_fast", True),
    ],
)
def test_the_users_value_wins_where_nothing_is_locked(scenario, setting, value):
    applied = apply(scenario, {**PINNED, setting: value})
    assert applied.effective[setting] == value
    assert setting not in applied.filled
    assert applied.violations == ()


def test_the_timed_warmup_replaces_the_quota():
    applied = apply(AGENTX, {**PINNED, "warmup_duration_s": 120.0})
    assert "warmup_requests_per_lane" not in applied.effective
    assert applied.effective["warmup_grace_s"] == 1800.0
    assert applied.violations == ()


@pytest.mark.parametrize(
    "warmup, grace, expected",
    [(120.0, ..., 120.0), (1000.0, ..., 300.0), (5.0, ..., 30.0), (1000.0, 400.0, 400.0), (10.0, 0.0, 10.0)],
)
def test_grace_of_the_timed_warmup(warmup, grace, expected):
    given = {**PINNED, "warmup_duration_s": warmup} | ({} if grace is ... else {"grace_s": grace})
    assert apply(MVP, given).effective["warmup_grace_s"] == expected


@BOTH
def test_both_kinds_of_warmup_are_a_mistake_that_cannot_be_overridden(scenario):
    given = {**PINNED, "warmup_duration_s": 60.0, "warmup_requests_per_lane": 5, "unsafe_override": True}
    applied = apply(scenario, given)
    assert rows(applied) == ["exclusive"]
    assert "--warmup-duration" in applied.refusal
    assert "--warmup-requests-per-lane" in applied.refusal


def test_a_random_seed_is_drawn_by_the_caller():
    assert draw_seed(apply(MVP, PINNED).effective, lambda bits: bits) == 63
    assert draw_seed(apply(AGENTX, PINNED).effective, lambda bits: bits) == 42
    assert draw_seed(apply(MVP, {**PINNED, "seed": 0}).effective, lambda bits: bits) == 0
    assert draw_seed({}, lambda bits: bits) is None


# -- section 8.2: locks. Setting, values that hold, values that do not, row, official flag

OFFICIAL_TIMING = "--request-rate / --user-centric-rate / --fixed-schedule"
LOCKED = [
    ("timing_mode", ["agentic-replay"], ["request-rate", None], "1", OFFICIAL_TIMING),
    ("request_rate", [None], [5.0, 0], "1", OFFICIAL_TIMING),
    ("arrival_pattern", [None], ["gamma", "poisson", "constant"], "1", OFFICIAL_TIMING),
    ("user_centric_rate", [None], [1.0], "1", OFFICIAL_TIMING),
    ("fixed_schedule", [None, False], [True], "1", OFFICIAL_TIMING),
    ("adaptive_scale", [None, False], [True], "1", "--adaptive-scale"),
    ("streaming", [True], [False], "2", "--streaming"),
    (
        "ignore_eos",
        [True, 1, "true", " YES ", "1", "maybe"],
        [False, 0, None, "", "false", " NO ", "0", "off"],
        "3",
        "extra_inputs.ignore_eos",
    ),
    ("ignore_trace_delays", [None, False], [True], "4", "--ignore-trace-delays"),
    ("synthesis_max_isl", [None], [100_000], "5", "--synthesis-max-isl"),
    ("cache_bust", ["first-turn-prefix"], ["none", "system-prefix", None], "7", "--cache-bust"),
    (
        "duration_s",
        [900, 900.0, 7200.0, float("inf")],
        [899.999, 0, 0.0, -1, None, float("nan")],
        "8",
        "--benchmark-duration",
    ),
    ("inter_turn_delay_cap_s", [None], [0, 60.0], "9", "--inter-turn-delay-cap-seconds"),
    ("system_idle_gap_cap_s", [10, 10.0], [9.999, 0, None, 60.0], "10", "--system-idle-gap-cap-seconds"),
    ("sweep", [None, False], [[1, 2]], "sweep", "--sweep"),
]


@BOTH
@pytest.mark.parametrize("lock", LOCKED, ids=[lock[0] for lock in LOCKED])
def test_locks(scenario, lock):
    setting, good, bad, row, official = lock
    for value in good:
        assert apply(scenario, {**PINNED, setting: value}).violations == (), value
    for value in bad:
        applied = apply(scenario, {**PINNED, setting: value})
        (violation,) = applied.violations
        assert (violation.row, violation.flag, violation.setting) == (row, official, setting), value
        assert SETTINGS[setting].label in applied.refusal
        assert applied.effective[setting] is value  # what was given is not mended


@BOTH
@pytest.mark.parametrize("size", ["", "_256k"])
@pytest.mark.parametrize(
    "name",
    [
        "with_subagents",
        "with_subagents_060226",
        "with_subagents_060526",
        "with_subagents_060826",
        "061326",
        "061526",
        "062126",
    ],
)
def test_pinned_corpora(scenario, name, size):
    assert apply(scenario, {"loader": f"semianalysis_cc_traces_weka_{name}{size}"}).violations == ()


@BOTH
@pytest.mark.parametrize("loader", ["sharegpt", "semianalysis_cc_traces_weka", "mooncake_trace", None])
def test_another_corpus_runs_only_with_the_override(scenario, loader):
    refused = apply(scenario, {"loader": loader})
    assert [(v.row, v.flag, v.overridable) for v in refused.violations] == [
        ("6", "--input-file (loader)", True)
    ]
    assert apply(scenario, {"loader": loader, "unsafe_override": True}).refusal is None


@BOTH
@pytest.mark.parametrize("given", [{}, {"loader": "synthetic"}])
@pytest.mark.parametrize("override", [False, True])
def test_the_synthetic_corpus_is_never_run(scenario, given, override):
    applied = apply(scenario, {**given, "unsafe_override": override})
    assert [(v.row, v.flag, v.overridable) for v in applied.violations] == [
        ("6", "--input-file (loader)", False)
    ]
    assert "--corpus" in applied.refusal
    assert "--unsafe-override does not help" in applied.refusal
    assert applied.warnings == ()


@BOTH
def test_a_repository_must_be_the_pinned_one(scenario):
    good = {"loader": "weka_hf", "hf_dataset": "semianalysisai/cc-traces-weka-062126"}
    assert apply(scenario, good).violations == ()
    for bad in ({"loader": "weka_hf"}, {"loader": "weka_hf", "hf_dataset": "somebody/else"}):
        (violation,) = apply(scenario, bad).violations
        assert (violation.row, violation.flag) == ("6a", "--hf-weka-dataset")
        assert "semianalysisai/cc-traces-weka-062126" in str(violation)
    assert apply(scenario, {**PINNED, "hf_dataset": "somebody/else"}).violations == ()


@BOTH
def test_a_local_corpus_runs_only_with_the_override_and_is_never_valid(scenario):
    refused = apply(scenario, {"loader": "weka_trace"})
    (violation,) = refused.violations
    assert (violation.row, violation.flag) == ("6b", "--custom-dataset-type / --input-file")
    assert refused.refusal is not None
    allowed = apply(scenario, {"loader": "weka_trace", "unsafe_override": True})
    assert allowed.refusal is None
    assert allowed.invalid_reasons == ("unsafe_override",)


@BOTH
def test_everything_at_once(scenario):
    bad = {setting: values[0] for setting, _, values, _, _ in LOCKED} | {"loader": "weka_trace"}
    applied = apply(scenario, bad)
    assert sorted(v.setting for v in applied.violations) == sorted(bad)
    lines = applied.refusal.splitlines()
    assert lines[0] == f"--scenario {scenario.name}: {len(bad)} settings break its rules:"
    for setting in bad:
        label = SETTINGS[setting].label
        assert any(line.startswith((f"  {label} ", f"  {label}:")) for line in lines[1:-1])
    assert lines[-1] == "Change them; --unsafe-override helps for all but --sweep."


@BOTH
def test_with_the_override_violations_are_warnings_and_the_result_is_not_valid(scenario):
    given = {**PINNED, "duration_s": 60.0, "system_idle_gap_cap_s": 1.0, "unsafe_override": True}
    applied = apply(scenario, given)
    assert applied.refusal is None
    assert len(applied.warnings) == 2
    assert "--duration 60" in applied.warnings[0]
    assert "--system-idle-gap-cap 1" in applied.warnings[1]
    assert applied.invalid_reasons == ("unsafe_override",)
    assert applied.effective["duration_s"] == 60.0
    assert "unsafe_override" not in applied.effective


@BOTH
def test_what_cannot_be_overridden_is_refused_beside_what_can(scenario):
    applied = apply(scenario, {"duration_s": 60.0, "unsafe_override": True})
    assert [v.setting for v in applied.refused] == ["loader"]
    assert "--duration" not in applied.refusal
    assert len(applied.warnings) == 1


@BOTH
def test_an_override_that_overrides_nothing_does_no_harm(scenario):
    applied = apply(scenario, {**PINNED, "unsafe_override": True})
    assert applied.warnings == ()
    assert applied.invalid_reasons == ()


def test_the_refusal_as_the_user_sees_it():
    applied = apply(AGENTX, {**PINNED, "duration_s": 600.0, "ignore_eos": False})
    assert applied.refusal == (
        "--scenario agentx: 2 settings break its rules:\n"
        "  --no-ignore-eos, or ignore_eos in --extra-body: must not be switched off. Answers have the "
        "recorded length, so that every server does the same work. (official: extra_inputs.ignore_eos)\n"
        "  --duration 600: must be at least 900 s. A shorter run does not see long sessions. "
        "(official: --benchmark-duration)\n"
        "Change them, or give --unsafe-override to run all the same: the result is then marked "
        "submission_valid = false."
    )


# -- the tables themselves


@BOTH
def test_every_setting_is_filled_locked_or_free_and_nothing_else_is_named(scenario):
    fills = {f.setting for f in scenario.fills}
    locks = {lock.setting for lock in scenario.locks}
    named = fills | locks | set(scenario.free)
    assert named == set(SETTINGS) - {"unsafe_override"}
    assert not set(scenario.free) & (fills | locks)


def test_flags_are_named_once():
    flags = [s.flag for s in SETTINGS.values() if s.flag is not None]
    assert len(flags) == len(set(flags))


def test_a_name_outside_the_vocabulary_is_our_mistake():
    with pytest.raises(ValueError, match=r"duration, sede$"):
        apply(AGENTX, {"sede": 1, "duration": 1})


def test_given_is_left_alone():
    given = {**PINNED, "unsafe_override": True}
    apply(AGENTX, given)
    assert given == {**PINNED, "unsafe_override": True}


def test_a_scenario_that_is_not_there():
    assert scenario_named("agentx") is AGENTX
    with pytest.raises(UserError, match=r"--scenario: .*'agentex'.*agentx, inferencex-agentx-mvp"):
        scenario_named("agentex")

"""What a finished run is worth (agentx-v1, sections 7, 8.3, 8.4)."""

import msgspec
import pytest

from agentx_engine.scenario import SCENARIOS, Coverage, RunFacts, apply, coverage, validity

PINNED = {"loader": "semianalysis_cc_traces_weka_062126_256k"}
CLEAN = apply(SCENARIOS["agentx"], PINNED)
OVERRIDDEN = apply(SCENARIOS["agentx"], {"loader": "weka_trace", "unsafe_override": True})
S = 1_000_000_000
START = 77 * S


def gate(first_s=None, itl_s=None, duration_s=1000.0, **more):
    return coverage(
        phase_start_ns=more.pop("start", START),
        duration_s=duration_s,
        last_first_token_ns=None if first_s is None else START + int(first_s * S),
        last_itl_end_ns=None if itl_s is None else START + int(itl_s * S),
        **more,
    )


# -- coverage


@pytest.mark.parametrize(
    "first_s, itl_s, passed",
    [
        (950, None, True),  # either is enough, the bound belongs to it
        (None, 950, True),
        (949.999, 949.999, False),
        (949.999, 950, True),
        (950, 1, True),  # a long stream need not be there, nor a late new request
        (1, 950, True),
        (2000, None, True),
        (None, None, False),
        (-5, None, False),
    ],
)
def test_the_gate(first_s, itl_s, passed):
    found = gate(first_s, itl_s)
    assert found.skipped is None
    assert found.passed is passed
    assert (found.error is None) is passed


def test_ratios_stay_between_0_and_1():
    assert gate(-5, 1030).ttft_ratio == 0.0
    assert gate(-5, 1030).itl_ratio == 1.0
    assert gate(500, 250).ttft_ratio == 0.5
    assert gate(500, 250).itl_ratio == 0.25


@pytest.mark.parametrize(
    "more, skipped",
    [
        ({"duration_s": 899.9}, "short"),
        ({"duration_s": 0.0}, "short"),
        ({"duration_s": None}, "no duration"),
        ({"cancelled": True}, "cancelled"),
        ({"duration_s": 900.0}, None),
    ],
)
def test_where_the_gate_does_not_apply(more, skipped):
    found = gate(1, 1, **more)
    assert found.skipped == skipped
    assert found.passed is (skipped is not None)
    assert (found.exported() is None) is (skipped is not None)


def test_an_unknown_start_fails():
    found = gate(1000, 1000, start=None)
    assert not found.passed
    assert (found.ttft_ratio, found.itl_ratio) == (None, None)


def test_another_requirement():
    assert gate(500, None, required=0.5).passed
    assert not gate(499, None, required=0.5).passed


def test_the_error_says_what_was_seen_last():
    assert gate(500, None).error == (
        "The server was last seen at work too early in the 1000 s of the profiling phase: last first token "
        "50.0 % of the way, last answer with a token rate none; one of them must be at 95 %."
    )


def test_coverage_as_exported():
    assert gate(960, 200).exported() == {
        "phase_name": "profiling",
        "expected_duration_seconds": 1000.0,
        "required_ratio": 0.95,
        "ttft_ratio": 0.96,
        "inter_token_latency_ratio": 0.2,
    }
    assert "ttft_ratio" not in gate(None, 200).exported()


# -- submission_valid and its reasons


def test_a_clean_run():
    found = validity(CLEAN, RunFacts(successes=1000, coverage=gate(990, 995)))
    assert found.submission_valid is True
    assert found.submission_invalid_reasons == ()
    assert found.caveats == ()
    assert found.metadata() == {
        "scenario": "agentx",
        "submission_valid": True,
        "metric_duration_coverage": [gate(990, 995).exported()],
    }


def test_without_a_scenario_there_is_nothing_to_be_valid():
    found = validity(None, RunFacts(successes=1, errors=99, cancelled=True, coverage=gate()))
    assert found.scenario is None
    assert found.submission_valid is None
    assert found.submission_invalid_reasons == ()
    assert found.metadata() == {}
    assert found.caveats == ()
    assert found.error_rate == 0.99


REASONS = [
    (OVERRIDDEN, {}, ["unsafe_override"]),
    (CLEAN, {"overflows": 11, "successes": 989}, ["context_overflow_rate_exceeded"]),
    (CLEAN, {"cancelled": True}, ["run_cancelled"]),
    (CLEAN, {"coverage": gate(10, 10)}, ["insufficient_profile_metric_coverage"]),
    (CLEAN, {"coverage": gate(10, 10, cancelled=True), "cancelled": True}, ["run_cancelled"]),
    (
        OVERRIDDEN,
        {"overflows": 500, "cancelled": True, "coverage": gate()},
        [
            "unsafe_override",
            "context_overflow_rate_exceeded",
            "run_cancelled",
            "insufficient_profile_metric_coverage",
        ],
    ),
]


@pytest.mark.parametrize("applied, facts, reasons", REASONS)
def test_reasons(applied, facts, reasons):
    found = validity(applied, RunFacts(**{"successes": 1000, **facts}))
    assert found.submission_valid is False
    assert list(found.submission_invalid_reasons) == reasons
    assert found.metadata()["submission_invalid_reasons"] == reasons


@pytest.mark.parametrize(
    "successes, errors, overflows, valid",
    [
        (99, 0, 1, True),  # 1 % is not more than 1 %
        (297, 0, 3, True),
        (98, 0, 1, False),
        (9900, 0, 101, False),
        (0, 0, 0, True),  # no responses: a rate of 0
        (50, 49, 1, True),  # errors dilute it, which is why both are reported
        (0, 0, 1, False),
    ],
)
def test_overflow_rate(successes, errors, overflows, valid):
    found = validity(CLEAN, RunFacts(successes=successes, errors=errors, overflows=overflows))
    assert found.submission_valid is valid


def test_errors_alone_never_make_a_run_invalid():
    found = validity(CLEAN, RunFacts(successes=1, errors=999))
    assert found.submission_valid is True
    assert found.error_rate == 0.999
    assert len(found.caveats) == 1


# -- what stands beside it


def test_shares():
    found = validity(
        CLEAN,
        RunFacts(
            successes=70,
            errors=20,
            overflows=10,
            traces_kept=393,
            traces_dropped={"max_context": 7, "entries": 100},
            t_star_ratios=(0.25, 0.75),
            output_cap_tokens=500,
            client="ok",
        ),
    )
    assert found.error_rate == pytest.approx(20 / 90)
    assert found.overflow_rate == 0.1
    assert found.failure_rate == 0.3
    assert found.traces_kept_share == 393 / 500
    assert found.traces_dropped == {"max_context": 7, "entries": 100}
    assert found.t_star_ratios == (0.25, 0.75)
    assert found.output_cap_tokens == 500
    assert found.client == "ok"


def test_absent_is_absent():
    found = validity(CLEAN, RunFacts(successes=0))
    assert found.error_rate is None
    assert found.overflow_rate is None
    assert found.failure_rate is None
    assert found.traces_kept_share is None
    assert found.client is None


@pytest.mark.parametrize(
    "facts, words",
    [
        ({"successes": 990, "errors": 10}, []),  # 1 % is not more than 1 %
        ({"successes": 989, "errors": 11}, ["1.1 % of the requests failed", "11 errors", "of 1,000"]),
        ({"successes": 989, "errors": 6, "overflows": 5}, ["6 errors", "5 context overflows"]),
        ({"successes": 0}, ["no request succeeded"]),
        ({"successes": 9, "client": "ok"}, []),
        ({"successes": 9, "client": "limited"}, ["the client was the limit:"]),
        (
            {"successes": 9, "client": "limited", "client_reasons": ("dispatch lag p99 12 ms", "stall")},
            ["the client was the limit (dispatch lag p99 12 ms; stall):"],
        ),
    ],
)
def test_caveats(facts, words):
    found = validity(CLEAN, RunFacts(**facts))
    assert found.submission_valid is True
    assert len(found.caveats) == bool(words)
    for word in words:
        assert word in found.caveats[0]
    if words:
        assert found.caveats[0].startswith("Formally valid, but ")


def test_both_caveats_failures_first():
    found = validity(CLEAN, RunFacts(successes=1, errors=1, client="limited"))
    assert [c.split(",")[0] for c in found.caveats] == ["Formally valid", "Formally valid"]
    assert "failed" in found.caveats[0]
    assert "client" in found.caveats[1]


def test_an_invalid_run_has_no_caveats_it_has_reasons():
    assert validity(OVERRIDDEN, RunFacts(successes=1, errors=99, client="limited")).caveats == ()


def test_it_can_be_written_as_json():
    found = validity(CLEAN, RunFacts(successes=1, coverage=gate(1, 1)))
    assert msgspec.json.decode(msgspec.json.encode(found))["coverage"]["ttft_ratio"] == 0.001
    assert isinstance(found.coverage, Coverage)

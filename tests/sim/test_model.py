"""What is drawn for a request, and the timing model."""

import pytest

from agentx_engine.sim.model import SimOptions, TemplateTokens, draw_fate


def fates(options, max_tokens=100, ignore_eos=True, count=2000):
    return [draw_fate(options, n, max_tokens, ignore_eos) for n in range(count)]


def test_with_ignore_eos_every_answer_has_its_full_length():
    assert {(f.tokens, f.finish_reason) for f in fates(SimOptions(stop_probability=1))} == {(100, "length")}


def test_without_it_a_seeded_share_stops_early():
    drawn = fates(SimOptions(stop_probability=0.3, seed=1), ignore_eos=False)
    stopped = [f for f in drawn if f.finish_reason == "stop"]
    assert 500 < len(stopped) < 700
    assert all(1 <= f.tokens < 100 for f in stopped)
    assert min(f.tokens for f in stopped) < 5 and max(f.tokens for f in stopped) > 95
    assert drawn == fates(SimOptions(stop_probability=0.3, seed=1), ignore_eos=False)
    assert drawn != fates(SimOptions(stop_probability=0.3, seed=2), ignore_eos=False)


def test_a_server_without_ignore_eos_stops_in_spite_of_it():
    drawn = fates(SimOptions(stop_probability=1, no_ignore_eos=True))
    assert all(f.finish_reason == "stop" for f in drawn)


def test_one_token_cannot_stop_early():
    drawn = fates(SimOptions(stop_probability=1), max_tokens=1, ignore_eos=False)
    assert {(f.tokens, f.finish_reason) for f in drawn} == {(1, "length")}


def test_faults_have_their_rates_and_do_not_move_each_other():
    errors = fates(SimOptions(error_rate=0.1, error_as="503"))
    failing = [n for n, f in enumerate(errors) if f.error]
    assert 150 < len(failing) < 250
    both = fates(SimOptions(error_rate=0.1, error_as="503", stall_rate=0.5))
    assert [n for n, f in enumerate(both) if f.error] == failing
    stalls = [f.stall_at for f in both if f.stall_at is not None]
    assert 900 < len(stalls) < 1100
    assert all(0 <= s < 100 for s in stalls)


def test_an_error_event_comes_in_the_middle():
    drawn = fates(SimOptions(error_rate=1, error_as="event"), count=5)
    assert {(f.error, f.error_after) for f in drawn} == {("event", 50)}


def test_times():
    options = SimOptions(prefill_rate=1000, itl_ms=10, itl_slope_us=50)
    assert options.prefill_ns(0) == 0
    assert options.prefill_ns(500) == 500_000_000
    assert options.itl_ns(0) == 10_000_000
    assert options.itl_ns(100) == 15_000_000


def test_template_tokens_are_parsed_or_refused():
    assert TemplateTokens.parse("4") == TemplateTokens(0, 4, 4, 4, 4)
    assert TemplateTokens.parse("fixed=3,user=5") == TemplateTokens(fixed=3, user=5)
    assert TemplateTokens.parse(str(TemplateTokens(1, 2, 3, 4, 5))) == TemplateTokens(1, 2, 3, 4, 5)
    for bad in ("", "x", "-1", "user", "user=", "user=-1", "users=3", "user=1,,"):
        with pytest.raises(ValueError, match="expected a number"):
            TemplateTokens.parse(bad)


def test_the_key_is_not_in_the_repr():
    assert "hunter2" not in repr(SimOptions(api_key="hunter2"))

"""What a measurement asks for, and the cores it takes."""

import json

import pytest

from agentx_engine.bench import settings
from agentx_engine.bench.settings import BenchSettings, choose_cores, siblings


@pytest.mark.parametrize("kb", [0.3, 2.0, 500.0])
def test_a_body_has_its_size_and_its_limit(kb: float) -> None:
    raw = b"".join(BenchSettings(body_kb=kb, tokens=77).body())
    assert len(raw) == int(kb * 1000)
    body = json.loads(raw)
    assert body["max_completion_tokens"] == 77 and body["stream"] is True


def test_times_follow_from_rate_and_tokens() -> None:
    s = BenchSettings(streams=10, rate=50.0, tokens=25, ttft_ms=20)
    assert s.interval_us == 20_000
    assert s.answer_s == pytest.approx(0.52)
    assert s.spread_s == pytest.approx(0.52)
    assert BenchSettings(rate=1.0).spread_s == 2.0  # starts are not spread over minutes


def test_the_server_has_a_core_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "siblings", lambda core: {core, core ^ 4})
    assert choose_cores({0}).shared
    assert choose_cores({2, 3}) == settings.Cores([2], [3])
    assert choose_cores(set(range(8))) == settings.Cores([0], [1, 2, 3, 5, 6, 7])
    # Only the sibling is left: better than sharing the core.
    assert choose_cores({0, 4}) == settings.Cores([0], [4])


def test_siblings_of_an_unknown_core() -> None:
    assert siblings(1 << 20) == {1 << 20}

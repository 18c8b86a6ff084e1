"""What a transport measured since an instant."""

from agentx_engine.core.hdr import Histogram
from agentx_engine.metrics.since import Since


class Transport:
    def __init__(self) -> None:
        self.counts = {"events": 0, "longest_turn_ns": 0, "longest_turn_at_ns": 0}
        self.lag, self.turns = Histogram(), Histogram()

    def counters(self) -> dict[str, int]:
        return dict(self.counts)

    def histograms(self) -> dict[str, Histogram]:
        return {"lag": self.lag.copy(), "reactor_turn": self.turns.copy()}

    def turn(self, ns: int, at_ns: int) -> None:
        self.turns.record(ns)
        self.counts["events"] += 1
        if ns > self.counts["longest_turn_ns"]:
            self.counts |= {"longest_turn_ns": ns, "longest_turn_at_ns": at_ns}


def test_only_what_came_afterwards() -> None:
    transport = Transport()
    for value in (1_000_000, 2_000_000, 90_000_000):
        transport.lag.record(value)
        transport.turn(value, 5)
    since = Since(transport)
    assert since.counters()["events"] == 0
    assert since.histograms()["lag"].count == 0
    for value in (1_000_000, 3_000_000, 3_000_000):
        transport.lag.record(value)
        transport.turn(value, 7)
    lag = since.histograms()["lag"]
    assert lag.count == 3
    assert abs((lag.max or 0) - 3_000_000) <= 3_000
    assert since.counters()["events"] == 3
    # The longest turn was before: the longest since then is known from the histogram, its time is not.
    longest = since.counters()
    assert abs(longest["longest_turn_ns"] - 3_000_000) <= 3_000
    assert longest["longest_turn_at_ns"] == since.began_ns
    transport.turn(200_000_000, 9)
    assert since.counters()["longest_turn_ns"] == 200_000_000
    assert since.counters()["longest_turn_at_ns"] == 9


def test_from_the_beginning_it_is_exact() -> None:
    transport = Transport()
    since = Since(transport)
    transport.lag.record(123_456_789)
    assert since.histograms()["lag"].max == 123_456_789


def test_a_closed_transport_has_nothing() -> None:
    class Closed:
        def counters(self) -> dict[str, int]:
            return {}

        def histograms(self) -> dict[str, Histogram]:
            return {}

    since = Since(Closed())
    assert since.counters() == {}
    assert since.histograms() == {}

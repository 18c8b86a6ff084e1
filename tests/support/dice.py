"""A server for simulated time whose latencies and outcomes are drawn."""

from __future__ import annotations

import random

from hypothesis import strategies as st
from support.replays import MS, SECOND

from agentx_engine.replay.simserver import Answer
from agentx_engine.transport.base import Outcome, Request

FAILURES = [o for o in Outcome if o not in (Outcome.SUCCESS, Outcome.CANCELLED)]


class Dice:
    """Latencies and outcomes drawn by the number of the request."""

    def __init__(self, seed: int, fault_rate: float) -> None:
        self.seed = seed
        self.fault_rate = fault_rate

    def answer(self, request: Request, number: int) -> Answer:
        draw = random.Random(self.seed * 1_000_003 + number)
        outcome = draw.choice(FAILURES) if draw.random() < self.fault_rate else Outcome.SUCCESS
        latency = draw.choice([0, 1, 3 * MS, 40 * MS, 60 * MS, SECOND, 90 * SECOND])
        return Answer(latency, draw.choice([0, 1, 5 * MS]), request.max_tokens, outcome)


class RootsWarm(Dice):
    """Dice whose failures spare the warmup, so that runs come to their measured phase."""

    def answer(self, request: Request, number: int) -> Answer:
        answer = super().answer(request, number)
        return answer._replace(outcome=Outcome.SUCCESS) if request.max_tokens == 1 else answer


RATES = st.sampled_from([0.0, 0.2, 0.7])
DICE = st.builds(Dice, st.integers(0, 10**6), RATES)
ANY_DICE = st.one_of(DICE, st.builds(RootsWarm, st.integers(0, 10**6), RATES))

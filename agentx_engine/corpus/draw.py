"""Random draws for synthetic sessions, the same on every machine.

Everything is drawn through uniform doubles of PCG64 and inverse distribution functions: numpy may change how
it turns its bits into other distributions from version to version, but not these.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from agentx_engine.corpus.shape import LogNormal

_NORMAL = NormalDist()


class Random:
    """Draws of one stream."""

    def __init__(self, *key: int) -> None:
        self._uniform = np.random.default_rng(key).random

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        return low + (high - low) * float(self._uniform())

    def normal(self) -> float:
        return quantile(float(self._uniform()))

    def chance(self, p: float) -> bool:
        return float(self._uniform()) < p

    def below(self, n: int) -> int:
        return min(int(self._uniform() * n), n - 1)

    def log_normal(self, d: LogNormal, z: float | None = None) -> float:
        return clipped(d, self.normal() if z is None else z)

    def pick(self, weights: list[float]) -> int:
        mark = self.uniform(0.0, sum(weights))
        for i, weight in enumerate(weights):
            mark -= weight
            if mark < 0:
                return i
        return len(weights) - 1

    def shuffled(self, n: int) -> list[int]:
        order = list(range(n))
        for i in range(n - 1, 0, -1):
            j = self.below(i + 1)
            order[i], order[j] = order[j], order[i]
        return order


def quantile(u: float) -> float:
    return _NORMAL.inv_cdf(min(max(u, 1e-12), 1 - 1e-12))


def clipped(d: LogNormal, z: float) -> float:
    return min(max(d.median * math.exp(d.sigma * z), d.low), d.high)

"""Measure pair after pair and stop as soon as it is clear, at the error rate of a single look.

Whoever looks after every pair and stops at the first p < 0.05 is wrong far more often than 5 %. A group-sequential plan
fixes beforehand when to look, and asks at each look for a stricter level, so that all looks together keep the promise
(Jennison and Turnbull 2000, chapters 2, 9 and 19).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from torchtriage.core.arrays import Floats

SHAPE = 0.25
"""Wang and Tsiatis (1987): 0.5 asks the same level at every look (Pocock), 0 almost all at the end (O'Brien and
Fleming). Between them both the mean and the largest number of pairs are near their least."""


@dataclass(frozen=True)
class StoppingPlan:
    """When to look, and what to ask for. A look after every pair from ``first_pairs`` on.

    ``level`` : 0.98 leaves 1 % for a false regression over all looks together. ``miss`` : how often a
    regression of the smallest effect may be called "same", over all looks together; larger than the other because it
    ends most checks of code that did not change.
    """

    max_pairs: int = 20
    level: float = 0.98
    first_pairs: int = 7
    miss: float = 0.05

    def __post_init__(self) -> None:
        """Refuse a plan that cannot be carried out."""
        if not 2 <= self.first_pairs <= self.max_pairs:
            raise ValueError(f"expected 2 <= first_pairs <= max_pairs, found {self.first_pairs} and {self.max_pairs}")
        if not (0 < self.level < 1 and 0 < self.miss < 0.5):
            raise ValueError(f"expected a level of 0 to 1 and a miss of 0 to 0.5, found {self.level} and {self.miss}")

    def level_at(self, n_pairs: int) -> float:
        """Return the level of the interval after ``n_pairs``, for use at that look only."""
        return self._spent(n_pairs, (1 - self.level) / 2)

    def same_level_at(self, n_pairs: int) -> float:
        """Return the level of the interval whose upper end must exclude the smallest effect."""
        return self._spent(n_pairs, self.miss)

    def _spent(self, n_pairs: int, risk: float) -> float:
        if not self.first_pairs <= n_pairs <= self.max_pairs:
            raise ValueError(f"expected {self.first_pairs} to {self.max_pairs} pairs, found {n_pairs}")
        z = _bound(self.first_pairs, self.max_pairs, risk)
        return 1 - math.erfc(z * (n_pairs / self.max_pairs) ** (SHAPE - 0.5) / math.sqrt(2))


@lru_cache(maxsize=64)
def _bound(first: int, end: int, risk: float) -> float:
    """Return the z at the last look such that the upper bound is passed with chance ``risk``."""
    low, high = 0.0, 8.0
    while high - low > 5e-4:
        middle = (low + high) / 2
        if _crossing(first, end, middle) > risk:
            low = middle
        else:
            high = middle
    return high


def _crossing(first: int, end: int, bound: float) -> float:
    """Return the chance that a sum of standard normals passes its upper bound at some look.

    Armitage, McPherson and Rowe (1969): the density of the sum, given that no bound was passed, is carried from look to
    look, here on Gauss and Legendre's nodes, two to a standard deviation.
    """
    nodes, weights = _nodes(20 + math.ceil(4 * bound * math.sqrt(end)))
    inside, density, crossed, last = np.zeros(1), np.ones(1), 0.0, 0
    for n in range(first, end + 1):
        edge = bound * (n / end) ** (SHAPE - 0.5) * math.sqrt(n)
        deviation = math.sqrt(n - last)
        beyond = ((edge - inside) / deviation / math.sqrt(2)).tolist()
        crossed += float(np.dot([math.erfc(item) / 2 for item in beyond], density))
        places = nodes * edge
        kernel = np.exp(-(((places[:, None] - inside[None, :]) / deviation) ** 2) / 2)
        density = kernel @ density * weights * (edge / deviation / math.sqrt(2 * math.pi))
        inside, last = places, n
    return crossed


@lru_cache(maxsize=64)
def _nodes(n: int) -> tuple[Floats, Floats]:
    nodes, weights = np.polynomial.legendre.leggauss(n)
    return nodes, weights

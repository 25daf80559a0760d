"""Pairs of simulated sessions of one value each, as a shared host makes them."""

from __future__ import annotations

import math

import numpy as np


def pairs(kind: str, n_pairs: int, effect: float, rng: np.random.Generator):
    """Return (before, after), run in the order A B B A; 2.7 % from process to process."""
    n = 2 * n_pairs
    noise = 0.027 * rng.standard_normal(n)
    if kind == "heavy tails":
        noise = 0.027 * rng.standard_t(2, n)
    if kind == "remembers":
        state = 0.0
        for i in range(n):
            state = 0.95 * state + 0.012 * rng.standard_normal()
            noise[i] += state
    if kind == "drift":
        noise += np.arange(n) * 0.005
    if kind == "jumps":
        noise += np.cumsum(rng.random(n) < 0.05) * 0.1
    runs = noise.reshape(n_pairs, 2)
    runs[1::2] = runs[1::2, ::-1]
    return np.exp(runs[:, :1]), np.exp(runs[:, 1:] + math.log1p(effect))

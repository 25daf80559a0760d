"""Runs of two programs with known truth, for every test of the gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from torchtriage.core.samples import Machine, Run, Series, Session
from torchtriage.measure.gate.result import GateResult, MetricRow
from torchtriage.measure.gate.row_verdict import GateLimits

HOST = Machine((("cores", "4"), ("cpu", "Example 9000"), ("os", "Linux")))
LIMITS = GateLimits()
OTHER = Machine((("cores", "64"), ("cpu", "Example 9900"), ("os", "Linux")))


def series(
    values: Sequence[Sequence[float]],
    metric: str = "latency",
    *,
    unit: str = "ms",
    better: Any = "lower",
    kind: Any = "latency",
    rounds: bool = True,
) -> Series:
    sessions = tuple(Session(tuple(map(float, one)), round=i if rounds else None) for i, one in enumerate(values))
    return Series(metric, unit, better, kind, sessions)


def timed(
    factor: float = 1.0,
    *,
    n: int = 12,
    n_values: int = 30,
    seed: int = 1,
    metric: str = "latency",
    rounds: bool = True,
    noise: float = 0.01,
    **given: Any,
) -> Series:
    """Sessions of 10 ms that vary by 1 % from process to process and a little inside."""
    rng = np.random.default_rng(seed)
    level = 10 * factor * np.exp(rng.normal(0, noise, n))
    values = level[:, None] * (1 + rng.exponential(0.02, (n, n_values)))
    return series(values.tolist(), metric, rounds=rounds, **given)


def run(*found: Series, commit: str = "a" * 40, at_s: float = 1000.0, benchmark: str = "mlp", **given: Any) -> Run:
    """Return a run; sessions with rounds are marked as measured in turns with those of others."""
    turns = any(session.round is not None for one in found for session in one.sessions)
    environment = (("interleaving", "one"),) if turns else ()
    one = Run(benchmark, commit, "main", None, at_s, HOST, environment, found)
    return replace(one, **given)


def constant(value: float, kind: str, n: int = 5, **given: Any) -> Series:
    unit = {"memory": "B", "count": "1", "accuracy": "1", "compile_time": "s"}.get(kind, "ms")
    return series([[value]] * n, kind, kind=kind, unit=unit, **given)


def first(result: GateResult) -> MetricRow:
    return result.rows[0]

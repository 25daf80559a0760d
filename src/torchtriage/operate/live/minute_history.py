"""The last minutes of each model, second by second: constant memory, no clock of its own."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

from torchtriage.operate.monitor.aggregate import Aggregate, RequestRow

HISTORY_S = 300.0
MAX_MODELS = 12  # pairs of model and version that are shown; requests of further ones are counted together
QUANTILES = {"p50_s": 0.5, "p90_s": 0.9, "p99_s": 0.99}

Point = dict[str, Any]
Key = tuple[str, str]


class MinuteHistory:
    """Points of about a second each. A model without a request in all that time is forgotten.

    ``at_s`` is on any clock that only grows.
    """

    def __init__(self) -> None:
        self.n_not_shown = 0  # requests of models for which there was no room
        self._open: dict[Key, Aggregate] = {}
        self._points: dict[Key, deque[Point]] = {}
        self._since_s: float | None = None

    def add(self, model: str, version: str, rows: Sequence[RequestRow]) -> None:
        """Take finished requests into the point that is open."""
        key = (model, version)
        aggregate = self._open.get(key)
        if aggregate is None:
            if len(self._open.keys() | self._points.keys()) >= MAX_MODELS and key not in self._points:
                self.n_not_shown += len(rows)
                return
            aggregate = self._open[key] = Aggregate()
        aggregate.add(rows)

    def close_point(self, at_s: float) -> list[dict[str, Any]]:
        """End the point; return the models that had requests in it, each with that point."""
        span_s = 1.0 if self._since_s is None else max(at_s - self._since_s, 1e-3)
        self._since_s = at_s
        ended, self._open = self._open, {}
        for key, aggregate in ended.items():
            self._points.setdefault(key, deque()).append(_point(aggregate, at_s, span_s))
        for key, points in list(self._points.items()):
            while points and points[0]["at_s"] < at_s - HISTORY_S:
                points.popleft()
            if not points:
                del self._points[key]
        return [_model(key, [self._points[key][-1]]) for key in sorted(ended)]

    def models(self) -> list[dict[str, Any]]:
        """Return all models with all their points."""
        return [_model(key, list(points)) for key, points in sorted(self._points.items())]


def _model(key: Key, points: list[Point]) -> dict[str, Any]:
    return {"model": key[0], "version": key[1], "points": points}


def _point(aggregate: Aggregate, at_s: float, span_s: float) -> Point:
    point: Point = {
        "at_s": round(at_s, 3),
        "span_s": round(span_s, 3),
        "n": aggregate.finished,
        "errors": dict(aggregate.errors),
        "nan": aggregate.n_nan or 0,
    }
    for name, share in QUANTILES.items():
        value = aggregate.durations.quantile_s(share)
        # three digits are 0.1 %, the buckets are 2 % wide
        point[name] = float(f"{value:.3g}") if math.isfinite(value) else None
    return point

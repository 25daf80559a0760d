"""Scenarios: what sets of edits change in the graph, and what its nodes take in each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.trace.engine import find_engine
from torchtriage.diagnose.replay.engine import Schedule
from torchtriage.diagnose.replay.native import NativeSteps

__all__ = ["Scenario", "ScenarioSteps"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Scenario(NamedTuple):
    """One set of edits on the nodes: what remains of durations, other lags, floor of a step."""

    node: NDArray[np.int32]
    keep: Floats
    gone: Ints
    """Nodes that no longer exist: their gap and residual go too."""
    edge: Ints
    lag_ns: Ints
    floor_ns: float


class ScenarioSteps:
    """What each node takes, in running order; ``dur`` and ``still`` : int64[variants, nodes]."""

    def __init__(self, order: Schedule, dur: Ints, still: Ints, scenarios: Sequence[Scenario]) -> None:
        self._dur, self._still = dur, still
        left, changed = np.empty(len(order.place)), np.zeros(len(order.place), dtype=bool)
        changes = []
        for scenario in scenarios:
            place, gone = order.place[scenario.node], order.place[scenario.gone]
            left[place], left[gone] = scenario.keep, np.nan
            changed[place] = changed[gone] = True
            by_place = np.flatnonzero(changed)
            changes.append((by_place, left[by_place]))
            changed[by_place] = False
        self._first = np.cumsum([0, *(len(place) for place, _ in changes)])
        self._place, self._left = (np.concatenate(parts) for parts in zip(*changes, strict=True))
        library = find_engine().library
        self._native = library and NativeSteps(library, dur, still, self._first, self._place, self._left)

    def __call__(self, first: int, out: Ints) -> None:
        """Fill int64[nodes, variants * scenarios] for the nodes from ``first`` on."""
        if self._native is not None:
            self._native(first, out)
            return
        stop = first + len(out)
        table = out.reshape(len(out), len(self._dur), -1)
        table[:] = (self._dur[:, first:stop] + self._still[:, first:stop]).T[:, :, None]
        for s, (begin, end) in enumerate(zip(self._first[:-1].tolist(), self._first[1:].tolist(), strict=True)):
            a, b = begin + np.searchsorted(self._place[begin:end], [first, stop])
            at, left = self._place[a:b], self._left[a:b]
            gone = np.isnan(left)
            kept = (self._dur[:, at] * np.where(gone, 0.0, left)).astype(np.int64)
            table[at - first, :, s] = np.where(gone, 0, self._still[:, at] + kept).T

"""Scenarios: what sets of edits change in the graph, and what its nodes take in each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.engine import find_engine
from torchtriage.diagnose.replay.engine import Schedule
from torchtriage.diagnose.replay.native import NativeSteps

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Scenario(NamedTuple):
    """One set of edits on the nodes: what remains of durations, other lags, floor of a step."""

    node: NDArray[np.int32]
    """The changed ones, in running order."""
    left: Floats
    """What remains of each one's duration; nan where it no longer exists: its gap and residual go too."""
    edge: Ints
    lag_ns: Ints
    floor_ns: float

    def takes(self, dur_ns: Ints, still_ns: Ints) -> Ints:
        """Return int64[nodes], ns: what the changed nodes take, of what they took and took besides."""
        return _takes(self.left, dur_ns, still_ns)


class ScenarioSteps:
    """What each node takes, in running order; ``dur`` and ``still`` : int64[variants, nodes]."""

    def __init__(self, order: Schedule, dur: Ints, still: Ints, scenarios: Sequence[Scenario]) -> None:
        self._dur, self._still = dur, still
        self._first = np.cumsum([0, *(len(scenario.node) for scenario in scenarios)])
        self._place = np.concatenate([order.place[scenario.node] for scenario in scenarios])
        self._left = np.concatenate([scenario.left for scenario in scenarios])
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
            at = self._place[a:b]
            table[at - first, :, s] = _takes(self._left[a:b], self._dur[:, at], self._still[:, at]).T


def _takes(left: Floats, dur_ns: Ints, still_ns: Ints) -> Ints:
    gone = np.isnan(left)
    return np.where(gone, 0, still_ns + (dur_ns * np.where(gone, 0.0, left)).astype(np.int64))

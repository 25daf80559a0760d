"""Scenarios: what sets of edits change in the graph, and what its nodes take in each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Floats, Ints
from torchtriage.core.engine import find_engine
from torchtriage.diagnose.replay.engine import Schedule
from torchtriage.diagnose.replay.native import NativeSteps


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
    """What each node takes, in running order; ``dur`` and ``still`` : int64[nodes] of each variant."""

    def __init__(self, order: Schedule, dur: list[Ints], still: list[Ints], scenarios: Sequence[Scenario]) -> None:
        self._dur, self._still = dur, still
        self._place = [order.place[scenario.node].astype(np.int32) for scenario in scenarios]
        self._left = [scenario.left for scenario in scenarios]
        library = find_engine().library
        self._native = library and NativeSteps(library, dur, still, self._place, self._left)

    def __call__(self, first: int, out: Ints) -> None:
        """Fill int64[nodes, variants * scenarios] for the nodes from ``first`` on."""
        if self._native is not None:
            self._native(first, out)
            return
        stop = first + len(out)
        table = out.reshape(len(out), len(self._dur), -1)
        for v, (dur, still) in enumerate(zip(self._dur, self._still, strict=True)):
            table[:, v] = (dur[first:stop] + still[first:stop])[:, None]
            for s, (place, left) in enumerate(zip(self._place, self._left, strict=True)):
                a, b = np.searchsorted(place, [first, stop])
                table[place[a:b] - first, v, s] = _takes(left[a:b], dur[place[a:b]], still[place[a:b]])


def _takes(left: Floats, dur_ns: Ints, still_ns: Ints) -> Ints:
    gone = np.isnan(left)
    return np.where(gone, 0, still_ns + (dur_ns * np.where(gone, 0.0, left)).astype(np.int64))

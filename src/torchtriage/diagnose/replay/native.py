"""Chunks of a graph, run by the native library: the same sums, node by node."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_size_t, c_void_p
from typing import Any

import numpy as np

from torchtriage.core.arrays import Ints


class _Stretch(ctypes.Structure):
    _fields_ = (
        *((name, c_size_t) for name in ("width", "n_done", "n_nodes", "n_edges", "n_lags")),
        *((name, c_void_p) for name in ("before", "edge_first", "source", "lag")),
    )


class _Steps(ctypes.Structure):
    _fields_ = (
        *((name, c_size_t) for name in ("n_nodes", "n_variants", "n_scenarios")),
        *((name, c_void_p) for name in ("dur", "still", "place", "left", "n_changes")),
    )


class NativeSteps:
    """What nodes take in running order, in each variant and scenario.

    ``dur`` and ``still`` : int64[nodes] of each variant, ns. Of each scenario ``place`` : int32[k], the nodes that it
    changes, in order, and ``left`` : float64[k], what is left of their durations, nan where the node is gone.
    """

    def __init__(self, library: Any, dur: list[Ints], still: list[Ints], place: list[Any], left: list[Any]) -> None:
        self._library, self._arrays = library, (dur, still, place, left)
        tables = [[array.ctypes.data for array in arrays] for arrays in self._arrays] + [list(map(len, place))]
        self._tables = [np.array(table, np.uintp) for table in tables]
        sizes = len(dur[0]), len(dur), len(place)
        self._steps = _Steps(*sizes, *(table.ctypes.data for table in self._tables))

    def __call__(self, begin: int, table: Ints) -> None:
        """Fill int64[nodes, variants * scenarios] for the nodes from ``begin`` on."""
        if self._library.tt_steps(byref(self._steps), begin, len(table), table.ctypes.data):
            raise AssertionError("the native library refused scenarios")


def run_nodes(library: Any, table: Ints, before: Ints, edge_first: Ints, source: Ints, lag: Ints) -> None:
    """Turn the steps of a table's last rows into finish times.

    ``table`` : int64[rows, columns], ns: finish times of earlier nodes, then the steps of ``before``'s nodes; changed
    in place. ``before`` : row of the node before on the lane, -1 for a lane's first. ``edge_first`` : int64[nodes + 1],
    where the edges of each node begin. ``source`` : a row per edge. ``lag`` : int64[edges, groups], ns, for equal
    groups of consecutive columns.
    """
    arrays = [np.ascontiguousarray(item) for item in (before, edge_first, source, lag)]
    stretch = _Stretch(
        table.shape[1],
        len(table) - len(before),
        len(before),
        len(source),
        lag.shape[1],
        *(array.ctypes.data for array in arrays),
    )
    if library.tt_replay(byref(stretch), table.ctypes.data):
        raise AssertionError("the native library refused a graph")


def find_runs(library: Any, lane_first: Ints, edge_first: Ints, source: Ints) -> Ints | None:
    """Return int64[runs, 3]: lane, first node and one past the last of each run in order; None where there is a circle.

    ``lane_first`` : int64[lanes + 1] and ``edge_first`` : int64[nodes + 1], where the nodes and their edges begin.
    ``source`` : a node per edge.
    """
    arrays = [np.ascontiguousarray(item, np.int64) for item in (lane_first, edge_first, source)]
    n_lanes, n_nodes = len(lane_first) - 1, len(edge_first) - 1
    runs = np.empty((n_nodes, 3), np.int64)
    first, edges, sources = (array.ctypes.data for array in arrays)
    n = library.tt_runs(first, n_lanes, edges, n_nodes, sources, len(source), runs.ctypes.data)
    return runs[:n] if n >= 0 else None

"""The events of a window as a network reads them: each kind once, with how often and how long.

A kind is a name under a parent's name. Names are hashed: a network may know some, and has to do
with the family of those that it never met.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints, distinct
from torchtriage.core.trace.columns import Trace
from torchtriage.core.trace.frames import frame_label, is_user_frame
from torchtriage.core.trace.schema import Kind
from torchtriage.diagnose.detector.families import FRAME_FAMILIES, HOST_FAMILIES, WORK_FAMILIES, family_codes

KINDS = 48
"""Kinds of a window that are kept, those with most of the time first."""
BUCKETS = 2048
VALUES = ("log count", "share of window", "log mean own time", "depth", "category")


def window_kinds(trace: Trace, windows_ns: Ints) -> dict[str, NDArray[Any]]:
    """Return ``kind_names``: int16[n, KINDS, 2] buckets of name and parent, 0 where there is none;
    ``kind_values``: float16[n, KINDS, len(VALUES)].
    """  # noqa: D205
    n_windows = len(windows_ns)
    names = np.zeros((n_windows, KINDS, 2), np.int16)
    values = np.zeros((n_windows, KINDS, len(VALUES)), np.float16)
    rows, own_ns, depth, parent = _rows(trace)
    at = np.searchsorted(windows_ns[:, 0], trace.start_ns[rows], side="right") - 1
    inside = (at >= 0) & (trace.start_ns[rows] < windows_ns[np.maximum(at, 0), 1])
    rows, own_ns, depth, parent, at = (item[inside] for item in (rows, own_ns, depth, parent, at))
    if not len(rows):
        return {"kind_names": names, "kind_values": values}
    bucket, category = _buckets(trace, rows, parent)
    name = bucket[trace.name[rows]]
    above = np.where(parent >= 0, bucket[trace.name[np.maximum(parent, 0)]], 0)
    key = (at * BUCKETS + name) * BUCKETS + above
    unique, first, which = np.unique(key, return_index=True, return_inverse=True)
    count = np.bincount(which).astype(np.float64)
    total = np.bincount(which, own_ns)
    window = at[first]
    wall = np.maximum(windows_ns[window, 1] - windows_ns[window, 0], 1)
    told = np.stack(
        [
            np.log1p(count),
            np.minimum(total / wall, 10),
            np.log1p(total / count),
            np.bincount(which, depth) / count,
            category[trace.name[rows[first]]],
        ],
        axis=1,
    )
    # the longest first, then the most frequent
    order = np.lexsort((unique, -count, -total, window))
    place = np.arange(len(order)) - np.searchsorted(window[order], window[order])
    order, place = order[place < KINDS], place[place < KINDS]
    names[window[order], place, 0], names[window[order], place, 1] = (name[first[order]], above[first[order]])
    values[window[order], place] = told[order]
    return {"kind_names": names, "kind_values": values}


def _rows(trace: Trace) -> tuple[Ints, Ints, Ints, Ints]:
    """Return rows with their own time, depth and parent: host, Python and device."""
    parts = []
    for tree in (trace.tree, trace.frames):
        depth = np.zeros(len(trace), np.int64)
        for level, members in enumerate(tree.levels):
            depth[members] = level
        rows = tree.members
        parts.append((rows, tree.self_ns[rows], depth[rows], tree.parent[rows].astype(np.int64)))
    works = np.flatnonzero(trace.works)
    parts.append((works, trace.dur_ns[works], np.zeros(len(works), np.int64), trace.links.op[works].astype(np.int64)))
    rows, own_ns, depth, parent = (np.concatenate(column) for column in zip(*parts, strict=True))
    return rows, own_ns, depth, parent


def _buckets(trace: Trace, rows: Ints, parent: Ints) -> tuple[Ints, Ints]:
    """Return per name its bucket, 1 and up, and its family over all tables."""
    bucket, category = np.zeros(len(trace.names), np.int64), np.zeros(len(trace.names), np.int64)
    used = distinct(trace.name[np.concatenate([rows, parent[parent >= 0]])])
    python = np.zeros(len(trace.names), dtype=bool)
    python[trace.name[rows[trace.kind[rows] == Kind.PYTHON]]] = True
    device = np.zeros(len(trace.names), dtype=bool)
    device[trace.name[rows[trace.works[rows]]]] = True
    begin = 0
    for table, chosen in ((HOST_FAMILIES, ~python & ~device), (FRAME_FAMILIES, python), (WORK_FAMILIES, device)):
        codes = used[chosen[used]]
        category[codes] = begin + family_codes([trace.names[code] for code in codes], table)
        begin += len(table)
    for code in used.tolist():
        name = trace.names[code]
        # what a script's own functions are called, and where they stand, tells the script
        label = "the script's" if is_user_frame(name) else frame_label(name)
        bucket[code] = 1 + zlib.crc32(label.encode()) % (BUCKETS - 1)
    return bucket, category

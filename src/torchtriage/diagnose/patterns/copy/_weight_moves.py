"""Copies by which the weights of modules go to the device and come back, in every step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import distinct
from torchtriage.core.trace.frames import is_user_frame
from torchtriage.diagnose.patterns._recurrence import frame_around, recurs
from torchtriage.diagnose.patterns.base import Ints, Kind, Mask, Spans, Trace

_MOVES = r"(^|/)torch/nn/modules/module\.py\(\d+\): (to|cuda|cpu|xpu|_apply)$"
IN_A_ROW = 8
"""Copies of one direction with no other device work between them, for lack of stacks: a batch has fewer tensors."""


class WeightMoves(NamedTuple):
    """Copies that one function of the user's asks for, up and down; ``held`` is the time that the host is at it."""

    copies: Ints
    held: Spans


def weight_moves(trace: Trace) -> list[WeightMoves]:
    """Return the moves of weights that recur in both directions, for each function that asks for them.

    Only where there are steps to compare: a model that is loaded once goes up as well.
    """
    if trace.steps.n_steady < 2:
        return []
    rows = trace.devices[0].rows
    rows = rows[trace.links.call[rows] >= 0]
    up, down = trace.matching("HtoD"), trace.matching("DtoH")
    found = list(_by_frames(trace, rows[(up | down)[rows] & (trace.kind[rows] == Kind.MEMCPY)]))
    if not trace.has_stacks:
        found = list(_by_sizes(trace, rows, up, down))
    copies = np.concatenate([rows[:0], *(moves.copies for moves in found)])
    both = all(recurs(trace, trace.links.call[copies[way[copies]]]) for way in (up, down))
    return found if both else []


def _by_frames(trace: Trace, copies: Ints) -> Iterator[WeightMoves]:
    calls = trace.links.call[copies].astype(np.int64)
    frames = frame_around(trace, calls, trace.matching(_MOVES, Kind.PYTHON), outermost=True)
    copies, frames = copies[frames >= 0], frames[frames >= 0]
    user = frame_around(trace, frames, trace.where_name(is_user_frame))
    site = np.where(user >= 0, trace.name[user], -1)
    for place in distinct(site).tolist():
        yield WeightMoves(copies[site == place], trace.time_of(distinct(frames[site == place])))


def _by_sizes(trace: Trace, rows: Ints, up: Mask, down: Mask) -> Iterator[WeightMoves]:
    """Yield runs of copies whose sizes go up, and later in the step down again."""
    way = np.where(trace.kind[rows] != Kind.MEMCPY, 0, np.where(up[rows], 1, np.where(down[rows], 2, 0)))
    run = np.cumsum(np.diff(way, prepend=-1) != 0)
    runs = np.flatnonzero((way > 0) & (np.bincount(run)[run] >= IN_A_ROW))
    step = trace.steps.of_work(rows[runs])
    ups, downs = (_in_turn(trace.value[rows[runs]], step, way[runs] == direction) for direction in (1, 2))
    _, first, second = np.intersect1d(ups[0], downs[0], return_indices=True)
    first, second = runs[ups[1][first]], runs[downs[1][second]]
    later = second > first
    mine = np.sort(np.concatenate([first[later], second[later]]))
    of_run = np.bincount(run[mine], minlength=int(run.max(initial=0)) + 1)
    mine = mine[of_run[run[mine]] >= IN_A_ROW]
    if not len(mine):
        return
    calls = trace.links.call[rows[mine]]
    ops = trace.tree.outermost(calls, trace.kind == Kind.OP)
    begin = np.where(ops >= 0, trace.start_ns[ops], trace.start_ns[calls])
    end = np.where(ops >= 0, trace.end_ns[ops], trace.end_ns[calls])
    first = np.flatnonzero(np.diff(run[mine], prepend=-1))
    stretches = intervals.spans(np.minimum.reduceat(begin, first), np.maximum.reduceat(end, first))
    yield WeightMoves(rows[mine], intervals.union(stretches))


def _in_turn(size: Ints, step: Ints, pick: Mask) -> tuple[Ints, Ints]:
    """Return for each picked copy its step, its size and how many such came before, as one key; and its index."""
    at = np.flatnonzero(pick & (size > 0) & (step >= 0))
    order = at[np.lexsort((at, size[at], step[at]))]
    new = (np.diff(size[order], prepend=-1) != 0) | (np.diff(step[order], prepend=-1) != 0)
    nth = np.arange(len(order)) - np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
    keys = np.stack([step[order], size[order], nth], axis=1) if len(order) else np.empty((0, 3), np.int64)
    return np.ascontiguousarray(keys).view([("", np.int64)] * 3).ravel(), order

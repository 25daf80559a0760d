"""The user's line at which each of many calls is made; of calls in the backward pass, the line of the forward one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from torchtriage.core.arrays import Ints, Mask
from torchtriage.core.trace.frames import is_user_frame
from torchtriage.core.trace.schema import Kind

if TYPE_CHECKING:
    from torchtriage.core.trace import Trace


_FORWARD: WeakKeyDictionary[Trace, Ints] = WeakKeyDictionary()
"""Forward operators by their numbers: each finding in a backward pass asks for one."""


class UserPlaces(NamedTuple):
    """Where calls are made; arrays of equal length, -1 for what is not known.

    ``row`` : the host row that stands for the call, in the backward pass the forward operator. ``frame`` : the
    innermost frame of the user's code around it. ``key`` : int64[2, k], equal for calls of one place: the frame's name,
    and what is called there. ``called`` : the row of that, the call itself where it is an operator's.
    """

    row: Ints
    frame: Ints
    key: Ints
    called: Ints


def user_places(trace: Trace, calls: Ints) -> UserPlaces:
    """Return the places of host rows; -1 among them stands for none."""
    row, frame = innermost(trace, calls, _user_frames(trace))
    below = where_known(row, lambda rows: trace.frames.at(trace.lane[rows], trace.start_ns[rows]))
    while len(climb := np.flatnonzero((below >= 0) & (below != frame) & (trace.frames.parent[below] != frame))):
        below[climb] = trace.frames.parent[below[climb]]
    # calls of one function from one place of another have one line; an operator is what is called, or its name is
    called = np.where(below != frame, trace.name[below], -1 - trace.name[row])
    key = np.stack([np.where(frame >= 0, trace.name[frame], -1), np.where(frame >= 0, called, -1)])
    return UserPlaces(row, frame, key, np.where(below != frame, below, row))


def where_known(rows: Ints, look: Callable[[Ints], Ints]) -> Ints:
    """Return what ``look`` finds for rows that are some, -1 for the others."""
    out = np.full(len(rows), -1, np.int64)
    some = rows >= 0
    out[some] = look(rows[some])
    return out


def innermost(trace: Trace, calls: Ints, mask: Mask) -> tuple[Ints, Ints]:
    """Return for each launch call a host row that stands for it and the innermost frame of ``mask`` around that.

    The host row is the call itself; where it runs in the backward pass, the forward operator it is the gradient of: the
    stack of a gradient holds the call of ``backward()`` at best, unless code of the user's runs in it (recomputed
    activations, functions with a backward pass of their own).
    """

    def around(rows: Ints) -> Ints:
        inner = trace.frames.at(trace.lane[rows], trace.start_ns[rows])
        outer = where_known(inner, lambda some: trace.frames.nearest(some, mask))
        return np.where(mask[inner] | (inner < 0), inner, outer)

    is_node = _numbered(trace) & (trace.value > 0)
    node = where_known(calls, lambda rows: np.where(is_node[rows], rows, trace.tree.nearest(rows, is_node)))
    forward = where_known(node, partial(forward_operators, trace))
    frame, before = where_known(calls, around), where_known(forward, around)
    inside = (frame >= 0) & (trace.start_ns[frame] >= trace.start_ns[node])
    outside = (node >= 0) & ~inside & ((frame < 0) | (before >= 0))
    unknown = (frame < 0) & (node < 0)
    return np.where(outside, forward, np.where(unknown, -1, calls)), np.where(outside, before, frame)


def origin_of(trace: Trace, row: int) -> int:
    """Return the row whose stack says where a host row comes from: itself, or the forward operator of a gradient."""
    origin = int(innermost(trace, np.array([row]), _user_frames(trace))[0][0])
    return origin if origin >= 0 else row


def forward_operators(trace: Trace, nodes: Ints) -> Ints:
    """Return the forward operator of each autograd node, -1 where it was not recorded.

    Autograd gives a backward node the sequence number of its forward operator, and the number of its thread.
    """
    if trace not in _FORWARD:
        rows = np.flatnonzero(_numbered(trace) & (trace.value <= 0))
        _FORWARD[trace] = rows[np.lexsort((trace.start_ns[rows], trace.key[rows]))]
    forward = _FORWARD[trace]
    if not len(forward):
        return np.full(len(nodes), -1, np.int64)
    last = np.searchsorted(trace.key[forward], trace.key[nodes], side="right") - 1
    before = forward[np.maximum(last, 0)]
    return np.where((last >= 0) & (trace.key[before] == trace.key[nodes]), before, -1)


def _numbered(trace: Trace) -> Mask:
    return (trace.kind == Kind.OP) & (trace.key >= 0)


def _user_frames(trace: Trace) -> Mask:
    return (trace.kind == Kind.PYTHON) & trace.where_name(is_user_frame)

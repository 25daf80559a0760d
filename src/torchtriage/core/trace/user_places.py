"""The user's line at which each of many calls is made; of calls in the backward pass, the line of the forward one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from torchtriage.core.arrays import Ints, Mask
from torchtriage.core.trace.frames import is_user_frame, user_rows
from torchtriage.core.trace.schema import Kind

if TYPE_CHECKING:
    from torchtriage.core.trace import Trace


GRADIENT = "autograd::engine::evaluate_function: "
"""What the name of a node of the backward pass begins with."""
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
    mask = (trace.kind == Kind.PYTHON) & trace.where_name(is_user_frame)
    row, frame = innermost(trace, calls, mask)
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

    The host row is the call itself; where it runs in the backward pass, the forward operator it is the gradient of.
    """

    def around(rows: Ints) -> Ints:
        inner = trace.frames.at(trace.lane[rows], trace.start_ns[rows])
        outer = where_known(inner, lambda some: trace.frames.nearest(some, mask))
        return np.where(mask[inner] | (inner < 0), inner, outer)

    frame = where_known(calls, around)
    row = np.where(frame >= 0, calls, where_known(calls, partial(forward_of, trace)))
    return row, np.where(frame >= 0, frame, where_known(row, around))


def forward_of(trace: Trace, calls: Ints) -> Ints:
    """Return the forward operator whose gradient each call computes, -1 where it computes none."""
    nodes = trace.tree.nearest(calls, _numbered(trace) & (trace.value > 0))
    return where_known(nodes, partial(forward_operators, trace))


def origin_of(trace: Trace, row: int) -> int:
    """Return the row whose stack says where a host row comes from: itself, or the forward operator of a gradient.

    The stack of a gradient holds the call of ``backward()`` at best, unless code of the user's runs in it (recomputed
    activations, functions with a backward pass of their own).
    """
    node = next((above for above in (row, *trace.tree.chain(row)) if trace.name_of(above).startswith(GRADIENT)), -1)
    if node < 0:
        return row
    inner = [above for above, _ in user_rows(trace, row, limit=1) if is_user_frame(trace.name_of(above))]
    if inner and trace.start_ns[inner[0]] >= trace.start_ns[node]:
        return row
    forward = int(forward_of(trace, np.array([row]))[0])
    return forward if forward >= 0 else row


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

"""What the main thread does one after the other: its outermost operators, and runs of like ones."""

from __future__ import annotations

import numpy as np

from torchtriage.core.arrays import Ints, Mask
from torchtriage.core.trace import Kind, Trace


def outer_ops(trace: Trace, inside: Mask | None = None) -> Ints:
    """Return the main thread's operators that are in no other operator, in time order.

    ``inside`` : bool[n], host rows whose contents are left out as well.
    """
    is_op: Mask = trace.kind == Kind.OP
    rows = trace.tree.members
    rows = rows[is_op[rows] & (trace.lane[rows] == trace.steps.lane)]
    return rows[~trace.tree.under(is_op if inside is None else is_op | inside)[rows]]


def runs(trace: Trace, ops: Ints, fits: Mask) -> Ints:
    """Return int64[r, 2]: where runs of ``fits`` begin and end (plus one) among the operators.

    A run ends with its step.

    ``ops`` : int64[k], as :func:`outer_ops` returns them. ``fits`` : bool[k].
    """
    step = trace.steps.of_host(ops)
    goes_on = np.append(False, fits[1:] & fits[:-1] & (step[1:] == step[:-1]))[: len(ops)]
    begins = np.flatnonzero(fits & ~goes_on)
    ends = np.flatnonzero(fits & ~np.append(goes_on[1:], False)) + 1
    return np.stack([begins, ends], axis=1)

"""What the main thread does one after the other: its outermost operators, and runs of like ones."""

from __future__ import annotations

import numpy as np

from torchtriage.core.arrays import Ints, Mask
from torchtriage.core.trace import Kind, Trace


def outer_ops(trace: Trace, without: Mask | None = None) -> Ints:
    """Return the main thread's operators that are in no other operator, in time order.

    ``without`` : bool[n], host rows that are left out as well.
    """
    is_op: Mask = trace.kind == Kind.OP
    rows = trace.tree.members
    rows = rows[is_op[rows] & (trace.lane[rows] == trace.steps.lane)]
    left_out = trace.tree.under(is_op)
    return rows[~(left_out if without is None else left_out | without)[rows]]


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

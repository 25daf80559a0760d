"""The collectives that reduce gradients, in the order in which the backward pass enqueues them."""

import math
from typing import NamedTuple

import numpy as np

from torchtriage.core.trace.collective_time import ENGINE, Collectives
from torchtriage.diagnose.patterns.base import Ints, Kind, Mask, Trace

REDUCES = r"(?i)all_?reduce|reduce_?scatter"
_GRADIENT = r"evaluate_function: .*AccumulateGrad"
_FSDP1 = r"^FullyShardedDataParallel\.forward$"
_FLAT = r"evaluate_function"
"""FSDP1 has one parameter per unit; its gradient is there when the last layer of the unit is done."""
WRAPPED = r"^(Distributed|FullySharded)DataParallel\.forward$"
"""The whole forward of what DDP or FSDP1 wraps."""
FORWARD = rf"{WRAPPED}|^FSDP::root_pre_forward$"
"""One row per forward of the outermost module; FSDP2 marks its beginning only."""


class Reduces(NamedTuple):
    """Reductions of gradients by the time they were enqueued.

    ``at`` : int64[r], indices into the collectives. ``op`` : int64[r], who enqueued each. ``step`` : int64[r], the step
    on the host. ``since_ns`` : int64[r], from when on parts of each could have been sent: its first gradient is
    there, and the message before has ended. ``turn`` : int64[r], a code of the backward pass.
    """

    at: Ints
    op: Ints
    step: Ints
    since_ns: Ints
    turn: Ints


def find_reduces(trace: Trace, found: Collectives) -> Reduces | None:
    """Return what backward passes behind DDP's or FSDP's forwards reduce, None without any."""
    host = trace.is_kind(Kind.ANNOTATION, Kind.OP) & trace.hosts
    forwards = np.flatnonzero(host & trace.matching(FORWARD))
    engine = host & trace.matching(ENGINE)
    op = found.enqueued_by
    at = np.flatnonzero(op >= 0)
    at = at[trace.matching(REDUCES)[op[at]]]
    at = at[trace.tree.nearest(op[at], engine) >= 0]
    if not len(at) or not len(forwards):
        return None
    at = at[np.argsort(trace.start_ns[op[at]], kind="stable")]
    op = op[at]
    begins = np.sort(trace.start_ns[forwards])
    issued = trace.start_ns[op]
    turn = np.searchsorted(begins, issued, side="right")
    first = np.append(True, turn[1:] != turn[:-1])
    # the first gradient behind the message before, or behind the forward
    grown = engine & trace.matching(_FLAT if (host & trace.matching(_FSDP1)).any() else _GRADIENT)
    begun = np.where(first, begins[np.maximum(turn - 1, 0)], np.append(0, issued[:-1]))
    ready = _first_after(np.sort(trace.start_ns[grown]), begun, issued)
    end = np.maximum.accumulate(trace.end_ns[found.rows[at]])
    before = np.where(first, 0, np.append(0, end[:-1]))
    return Reduces(at, op, trace.steps.of_host(op), np.maximum(before, _on_device(trace, found, ready)), turn)


def earliest_end_ns(trace: Trace, found: Collectives, reduces: Reduces, which: Mask) -> Ints:
    """Return int64[r]: when each of ``which`` could end if its gradients were sent as they become ready, 0 for others.

    A gradient's part of the transfer is that of its elements; of its time where shapes were not recorded.
    """
    rows = np.flatnonzero(trace.matching(r"^torch::autograd::AccumulateGrad$", Kind.OP))
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    ready = _on_device(trace, found, trace.start_ns[rows])
    elements = np.array([_elements(dims) for dims in trace.details_of("dims", rows)], np.float64)
    weight = elements if (elements > 0).any() else trace.dur_ns[rows].astype(np.float64)
    stop = np.searchsorted(trace.start_ns[rows], trace.start_ns[reduces.op], side="right")
    first = np.append(True, reduces.turn[1:] != reduces.turn[:-1])
    begun = np.where(first, 0, np.append(0, stop[:-1]))
    out = np.zeros(len(reduces.at), np.int64)
    for index in np.flatnonzero(which).tolist():
        own = found.rows[reduces.at[index]]
        mine = slice(int(begun[index]), int(stop[index]))
        parts = weight[mine]
        # of the first message of a pass, only the gradients behind its forward
        later = ready[mine] >= reduces.since_ns[index] if first[index] else np.ones(len(parts), dtype=bool)
        parts, at_ns = parts[later], np.maximum(ready[mine][later], reduces.since_ns[index])
        if parts.sum() > 0:
            left = np.cumsum(parts[::-1])[::-1] / parts.sum()
            out[index] = int((at_ns + left * trace.dur_ns[own]).max())
    return out


def _elements(dims: object) -> int:
    shape = dims[0] if isinstance(dims, list) and dims else None
    return math.prod(shape) if isinstance(shape, list) and all(isinstance(side, int) for side in shape) else 0


def _first_after(starts: Ints, begun: Ints, otherwise: Ints) -> Ints:
    index = np.searchsorted(starts, begun)
    return np.where(index < len(starts), np.append(starts, 0)[np.minimum(index, len(starts))], otherwise)


def _on_device(trace: Trace, found: Collectives, host_ns: Ints) -> Ints:
    """Return when whoever computes began what the host enqueued from these times on."""
    if found.on_host:
        return host_ns
    device = trace.devices[0]
    rows = device.rows[~device.comm]
    launched = trace.links.launched_ns(rows)
    order = np.argsort(launched, kind="stable")
    index = np.searchsorted(launched[order], host_ns)
    return trace.start_ns[rows[order[np.minimum(index, len(order) - 1)]]]

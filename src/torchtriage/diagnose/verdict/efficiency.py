"""How near to its dense peak the main device runs products, convolutions and fused attention.

Operations come from the recorded shapes of operators, the peak from the vendor's sheet for the device and the type the
kernel computes in. What of the three is not known is not checked.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchtriage.core.arrays import Floats, Ints, Mask
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.device import Device
from torchtriage.core.trace.kernel_categories import CATEGORIES, Codes, kernel_category
from torchtriage.core.trace.matrix_products import (
    ATTENTION,
    FP32_KERNEL,
    NOT_FP32_KERNEL,
    TF32_KERNEL,
    attention_flop,
    element_type,
    gradients_wanted,
    products,
)
from torchtriage.core.trace.peak_rates import Peak, peak_of

__all__ = ["Work", "at_peak", "counted", "multiplied", "unchecked"]

_MULTIPLY = ("attention", "GEMM", "convolution")
_COUNTED = [CATEGORIES.index(category) for category in _MULTIPLY]


def unchecked(device: Device) -> str:
    """Return why nothing of a device can be held against its peak, empty where something can."""
    if peak_of(device.name) is None:
        return f"the peak rates of {device.name or 'this device'} are not known"
    return "" if device.trace.has_shapes else "input shapes are not recorded: record with record_shapes=True"


def counted(device: Device, category: Codes) -> Mask:
    """Return bool[len(device.rows)]: kernels whose time is held against a peak.

    Those that multiply by their own name too: attention also fills and copies.
    """
    multiplies = device.trace.where_name(lambda name: kernel_category(name) in _MULTIPLY)
    mask: Mask = np.isin(category, _COUNTED) & multiplies[device.rows]
    return mask


class Work(NamedTuple):
    """What the rows of a device multiply, arrays of one element per row; nan where it is not known.

    ``flop`` : operations. ``rate`` : the peak that applies to them, FLOP per ns.
    """

    flop: Floats
    rate: Floats


def at_peak(device: Device, category: Codes) -> Floats:
    """Return float64[len(device.rows)], ns: how long each counted kernel's work takes at the peak, nan if not known."""
    flop, rate = multiplied(device, category)
    return flop / rate


def multiplied(device: Device, category: Codes) -> Work:
    """Return the work of each counted kernel; either all of it is known, or nothing."""
    out = Work(np.full(len(device.rows), np.nan), np.full(len(device.rows), np.nan))
    peak = peak_of(device.name)
    if peak is None or not device.trace.has_shapes:
        return out
    trace = device.trace
    mask = counted(device, category) & (trace.links.op[device.rows] >= 0)
    fused = trace.where_name(lambda name: kernel_category(name) == "attention")[device.rows]
    for at, look in ((np.flatnonzero(mask & ~fused), _products), (np.flatnonzero(mask & fused), _attention)):
        rows = device.rows[at]
        op, flop, half, single = look(trace, rows)
        # the kernels of one operator share its operations by the time they take
        _, which = np.unique(op, return_inverse=True)
        dur = np.maximum(trace.dur_ns[rows], 1).astype(np.float64)
        whole = np.bincount(which, weights=dur)[which]
        rate = _rates(trace, rows, peak, half, single)
        known = (flop > 0) & (rate > 0)
        out.flop[at[known]] = (flop * dur / whole)[known]
        out.rate[at[known]] = rate[known]
    return out


def _products(trace: Trace, rows: Ints) -> tuple[Ints, Floats, Mask, Mask]:
    """Return for each kernel its operator, that one's operations, and whether it computes in 16 or in 32 bits."""
    op = trace.links.op[rows].astype(np.int64)
    work = products(trace, op)
    backward = trace.named("aten::convolution_backward")
    readable = trace.where_detail("concrete", lambda inputs: gradients_wanted(inputs) is not None, backward)
    flop = np.where(backward[op] & ~readable[op], 0.0, work.flop)
    return op, flop, work.dtype == "half", work.dtype == "float"


def _attention(trace: Trace, rows: Ints) -> tuple[Ints, Floats, Mask, Mask]:
    op = trace.links.op[rows].astype(np.int64)
    fused = trace.named(*ATTENTION) & (trace.kind == Kind.OP)
    op = np.where(fused[op], op, trace.tree.nearest(op, fused))
    flop, half = np.zeros(len(rows)), np.zeros(len(rows), dtype=bool)
    code = np.where(op >= 0, trace.name[op].astype(np.int64) * (len(trace.details) + 1) + trace.detail[op] + 1, -1)
    distinct, first, which = np.unique(code, return_index=True, return_inverse=True)
    for index in np.flatnonzero(distinct >= 0).tolist():
        row = [int(op[first[index]])]
        dims, concrete, types = (trace.details_of(what, row)[0] for what in ("dims", "concrete", "types"))
        mine = which == index
        flop[mine] = attention_flop(trace.name_of(row[0]), dims, concrete)
        half[mine] = element_type(types) == "half"
    # in single precision its kernels do not say whether they round to TF32
    return op, flop, half, np.zeros(len(rows), dtype=bool)


def _rates(trace: Trace, rows: Ints, peak: Peak, half: Mask, single: Mask) -> Floats:
    """Return float64[k], FLOP per ns: the peak that applies to each kernel, 0 where the type is not known."""
    tf32 = trace.matching(TF32_KERNEL)[rows]
    fp32 = trace.matching(FP32_KERNEL)[rows] & ~trace.matching(NOT_FP32_KERNEL)[rows]
    rates: Floats = np.select(
        [half, single & tf32, single & fp32],
        [peak.flop_per_ns("half"), peak.flop_per_ns("tf32"), peak.flop_per_ns("float")],
        0.0,
    )
    return rates

"""How near to its roof a device runs: each kernel's work over what the device could do in that time.

The roof is the higher of two times: operations over the dense peak of the type the kernel computes in, and the bytes
that have to move at least over the memory's bandwidth. Operations and bytes come from the recorded shapes of
operators, both rates from the vendor's sheet. What of these is not known is not checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from torchtriage.core.arrays import Floats, Ints, Mask
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.device import Device
from torchtriage.core.trace.kernel_categories import CATEGORIES, Codes, kernel_category
from torchtriage.core.trace.matrix_products import (
    ATTENTION,
    TF32_KERNEL,
    attention_flop,
    element_type,
    gradients_wanted,
    is_fp32_kernel,
    products,
)
from torchtriage.core.trace.memory_traffic import least_bytes
from torchtriage.core.trace.op_inputs import inputs_of
from torchtriage.core.trace.peak_rates import Family, Peak, family_of
from torchtriage.core.trace.tensile import instruction_set

_MULTIPLY = ("attention", "GEMM", "convolution")
_COUNTED = [CATEGORIES.index(category) for category in _MULTIPLY]
_COMMUNICATION = CATEGORIES.index("communication")
_OF_INPUT = r"dgrad|igemm_bwd|bwd_data"
_OF_WEIGHT = r"wgrad|igemm_wrw|bwd_weight|_wrw_"
_ON_DEVICE = r"(?i)DtoD|device *(?:->|to) *device"


@dataclass(frozen=True, eq=False)
class Roofline:
    """What the work rows of a device do, arrays of one element per row; nan where it is not known.

    ``multiplies`` : kernels of products, convolutions and attention. ``counted`` : rows that have a roof, these and all
    work in the device's memory. ``op`` : the operator whose work is theirs, -1 without. ``flop`` : operations.
    ``rate`` : the peak that applies to them in FLOP per ns, 0 where not known. ``n_bytes`` : moved at least.
    """

    peak: Peak
    multiplies: Mask
    counted: Mask
    op: Ints
    flop: Floats
    rate: Floats
    n_bytes: Floats
    dur_ns: Floats
    """With the clock's resolution: at most so long does a row run."""

    @property
    def peak_ns(self) -> Floats:
        """How long the operations take at the peak, ns."""
        with np.errstate(divide="ignore", invalid="ignore"):
            out: Floats = np.where(self.rate > 0, self.flop / self.rate, np.nan)
        return out

    @property
    def memory_ns(self) -> Floats:
        """How long the bytes take at the memory's bandwidth, ns."""
        return self.n_bytes / self.peak.bytes_per_ns

    @property
    def roof_ns(self) -> Floats:
        """How long the work takes at the roof, ns; nan too where it took less (Winograd; data in a cache)."""
        roof = np.where(self.multiplies, np.maximum(self.peak_ns, self.memory_ns), self.memory_ns)
        return np.where(roof <= self.dur_ns, roof, np.nan)

    @property
    def computes(self) -> Mask:
        """Rows whose roof is the peak, not the memory."""
        return self.multiplies & (self.peak_ns >= self.memory_ns)


def device_family(device: Device) -> Family | None:
    """Return which devices one without a name may be, by what its kernels are built for; None where they do not say."""
    return None if device.name or device.peak else family_of(instruction_set(device.trace))


def unchecked(device: Device) -> str:
    """Return why nothing of a device can be held against its roof, empty where something can."""
    if device.peak is None:
        if (family := device_family(device)) is not None:
            built = f"its kernels are built for {', '.join(family.names)}, between which findings give bounds"
            return f"the recording does not name the device; {built}; say with --peak which it is"
        return f"the peak rates of {device.name or 'this device'} are not known: state them with --peak"
    if device.trace.has_shapes:
        return ""
    # what other profilers take instead, a note on the recording says
    how = "" if device.trace.report.recorder else ": record with record_shapes=True"
    return f"input shapes are not recorded{how}"


def multiplying(device: Device, category: Codes) -> Mask:
    """Return bool[len(device.rows)]: kernels of products, convolutions and attention.

    Those that multiply by their own name too: attention also fills and copies.
    """
    by_name = device.trace.rows_where(device.rows, lambda name: kernel_category(name) in _MULTIPLY)
    return np.isin(category, _COUNTED) & by_name


def roofline(device: Device, category: Codes, peak: Peak | None = None, *, least_ns: int = 0) -> Roofline | None:
    """Return the work of a device's rows and its roofs; None where its rates or the shapes are not known.

    ``category`` : of :func:`~torchtriage.core.trace.kernel_categories.categories`. ``peak`` : the rates to hold it
    against, else those of the device's name. ``least_ns`` : the bytes of shorter rows are left out.
    """
    trace, rows = device.trace, device.rows
    peak = peak or device.peak
    if peak is None or not trace.has_shapes:
        return None
    multiplies = multiplying(device, category)
    kind, link = trace.kind[rows], trace.links.op[rows].astype(np.int64)
    op = np.where(kind == Kind.KERNEL, link, -1)
    flop, rate, n_bytes = (np.full(len(rows), np.nan) for _ in range(3))
    linked = multiplies & (link >= 0)
    fused = trace.rows_where(rows, lambda name: kernel_category(name) == "attention")
    for at, look in ((np.flatnonzero(linked & ~fused), _products), (np.flatnonzero(linked & fused), _attention)):
        op[at], flop[at], half, single = look(trace, rows[at])
        rate[at] = _rates(trace, rows[at], peak, half, single)
    # what else an operator that multiplies launches prepares its product: no work of its own
    owner = np.zeros(len(trace), dtype=bool)
    owner[op[multiplies & (op >= 0)]] = True
    beside = ~multiplies & (link >= 0) & owner[link]
    op[beside] = -1
    at = np.flatnonzero(op >= 0)
    dur = np.maximum(trace.dur_ns[rows[at]], 1).astype(np.float64)
    part = _parts(trace, rows[at], op[at], multiplies[at], dur)
    flop[at] *= part
    long = dur >= least_ns
    n_bytes[at[long]] = _bytes(trace, op[at[long]]) * part[long]
    copied = trace.value[rows]
    known = copied > 0
    on_device = kind == Kind.MEMCPY
    on_device[on_device] = trace.matches(rows[on_device], _ON_DEVICE)
    n_bytes[on_device & known] = 2.0 * copied[on_device & known]
    n_bytes[(kind == Kind.MEMSET) & known] = copied[(kind == Kind.MEMSET) & known]
    for values in (flop, n_bytes):
        values[~(values > 0)] = np.nan
    counted = (multiplies | ~beside) & (category != _COMMUNICATION) & ((kind != Kind.MEMCPY) | on_device)
    longest: Floats = trace.dur_ns[rows].astype(np.float64) + trace.resolution_ns
    return Roofline(peak, multiplies, counted, op, flop, rate, n_bytes, longest)


def _parts(trace: Trace, rows: Ints, op: Ints, multiplies: Mask, dur: Floats) -> Floats:
    """Return which part of its operator's work each kernel does, 0-1: by the time they take.

    The two gradients of a convolution are products of the same size: half of the work each, where the kernels' names
    tell one from the other.
    """
    both = trace.where_detail(
        "concrete", lambda inputs: gradients_wanted(inputs) == 2, trace.named("aten::convolution_backward")
    )
    gradient = multiplies & both[op]
    which = np.where(gradient & trace.matches(rows, _OF_INPUT), 1, 0)
    which[gradient & trace.matches(rows, _OF_WEIGHT)] = 2
    _, pair = np.unique(op * 2 + multiplies, return_inverse=True)
    kinds, half = np.unique(pair * 3 + which, return_inverse=True)
    n_kinds = np.bincount(kinds // 3)[pair] if len(pair) else pair
    halved = n_kinds == 2
    group = np.where(halved, half, len(kinds) + pair)
    return dur / np.bincount(group, weights=dur)[group] / np.where(halved, 2, 1)


_KNOWN: WeakKeyDictionary[Trace, dict[int, float]] = WeakKeyDictionary()
"""Bytes of operators by their name and inputs: findings and the table of device time ask for the same ones."""


def _bytes(trace: Trace, op: Ints) -> Floats:
    """Return what each operator moves at least, 0 where it is not known; each distinct one is worked out once."""
    code = trace.name[op].astype(np.int64) * (len(trace.details) + 1) + trace.detail[op] + 1
    codes, first, which = np.unique(code, return_index=True, return_inverse=True)
    known = _KNOWN.setdefault(trace, {})
    new = np.array([item not in known for item in codes.tolist()], dtype=bool)
    rows = op[first[new]]
    inputs, index = inputs_of(trace, rows)
    for item, row, at in zip(codes[new].tolist(), rows.tolist(), index.tolist(), strict=True):
        known[item] = float(least_bytes(trace.name_of(row), inputs[at]))
    return np.array([known[item] for item in codes.tolist()], dtype=np.float64)[which]


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
    tf32 = trace.matches(rows, TF32_KERNEL)
    fp32 = trace.rows_where(rows, is_fp32_kernel)
    return np.select(
        [half, single & tf32, single & fp32],
        [peak.flop_per_ns("half"), peak.flop_per_ns("tf32"), peak.flop_per_ns("float")],
        0.0,
    )

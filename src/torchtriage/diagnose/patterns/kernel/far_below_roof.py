"""Kernels run far below what the device could do with their work.

Looks like: kernels of at least 10 µs, alone and with the next one queued or the host waiting for them, whose
    operations and bytes, from the recorded shapes, take less than 30 % of their time at the device's dense peak, or
    less than 40 % at its memory bandwidth, 3 µs for their start and end not counted; each cause at least 5 % of the
    kernel time. Not the kernels of attention that is not fused (KRN025). Causes: products with fewer tiles than half
    of the device's compute units, narrow products that the memory bounds, short sequences in attention, batch norms
    that read one channel per workgroup, inputs that are broadcast or not contiguous; else the kernel itself.
Slow because: healthy kernels reach 35-80 % of the dense peak and 50-90 % of the bandwidth in recordings of V100, A100,
    H100 and MI300X. What stays far below waits: for units without work, for memory, or for its own start and end.
Cost: modelled: up to the time above 60 % of the dense peak or 80 % of the bandwidth; at the low end half of what is
    above 40 % or 50 %, and nothing where the recording does not show a cause, or the host launched the next kernel too
    late for it to matter.
Fix: by cause: split the inner dimension, batch or fuse narrow products, pack short sequences, keep tensors contiguous,
    let a tuner choose the kernel.
Leave it when: the kernel is small because the model is, and latency is what counts.
Source: Williams et al., "Roofline: An Insightful Visual Performance Model", 2009; NVIDIA, "Matrix Multiplication
    Background User's Guide", tile quantization; peak rates from the vendors' data sheets.
"""

import re
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.names import short_name
from torchtriage.core.trace.allocator_calls import allocator_calls
from torchtriage.core.trace.device import Device
from torchtriage.core.trace.kernel_categories import categories
from torchtriage.core.trace.matrix_products import ATTENTION, GEMMS, Product, element_type, product_of
from torchtriage.core.trace.op_inputs import Inputs, inputs_of
from torchtriage.core.trace.peak_rates import Peak
from torchtriage.core.trace.roofline import Roofline, device_family, roofline
from torchtriage.core.trace.tensile import tensile_of
from torchtriage.core.units import format_share
from torchtriage.diagnose.patterns._op_work import Work, work_at
from torchtriage.diagnose.patterns.base import Claim, Claims, Fix, Floats, Ints, Kind, Mask, Pattern, Trace, given
from torchtriage.diagnose.patterns.kernel._attention_chains import find_chains, kernels_of
from torchtriage.diagnose.patterns.kernel._occupancy import alone, blocks, multiprocessors

PATTERN = Pattern.of(__name__, "KRN056", "Kernels run far below their roof", order=555, needs="device shapes")

FIX = Fix(
    text="Let torch.compile generate product kernels for this shape and keep the fastest.",
    code='model = torch.compile(model, mode="max-autotune")',
    link="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
)
_TUNER_ROCM = Fix(
    text="Let TunableOp choose among the library's kernels for this shape.",
    code="torch.cuda.tunable.enable()  # tries them once for each shape, keeps the fastest",
    link="https://docs.pytorch.org/docs/stable/cuda.tunable.html",
)
_FEW_TILES = Fix(
    text="Give the device more tiles: split the long inner dimension, or join several products into a batched one.",
    code="""splits = 32  # of the inner dimension, by as many workgroups
parts = torch.bmm(a.view(m, splits, -1).transpose(0, 1), b.view(splits, -1, n))
out = parts.sum(0)""",
    link="https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html",
)
_NARROW = Fix(
    text="Fuse the product with what makes its input or uses its output, or join several into one: it moves more than"
    " it computes, so a faster product kernel changes little.",
    code="""qkv = linear(x, torch.cat([w_q, w_k, w_v]))  # one pass over x instead of three
model = torch.compile(model, mode="max-autotune")  # fuses what follows into it""",
    link="https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html",
)
_CONVOLUTION = Fix(
    text="Use channels_last with channels that are multiples of 8, and let the library search its algorithms.",
    code="""model = model.to(memory_format=torch.channels_last)
torch.backends.cudnn.benchmark = True  # MIOpen too""",
    link="https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html",
)
_ATTENTION = Fix(
    text="Try the other fused backends for this shape, and a newer build of the one in use.",
    code="""from torch.nn.attention import SDPBackend, sdpa_kernel
with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v)""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.attention.sdpa_kernel.html",
)
_ATTENTION_ROCM = Fix(
    text="Try the other fused backends for this shape, Composable Kernel's and AITER's among them.",
    code='torch.backends.cuda.preferred_rocm_fa_library("ck")',
    link="https://docs.pytorch.org/docs/stable/backends.html#torch.backends.cuda.preferred_rocm_fa_library",
)
_SHORT = Fix(
    text="Pack short sequences into longer ones, or try another backend: the fused kernel pays its fixed costs for"
    " little work.",
    code="""from torch.nn.attention.flex_attention import create_block_mask, flex_attention

def same(b, h, q, kv):
    return document[q] == document[kv]

mask = create_block_mask(same, None, None, n, n)
out = flex_attention(q, k, v, block_mask=mask)  # many sequences in one""",
    link="https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html",
)
_BATCH_NORM = Fix(
    text="Keep activations in channels_last: else PyTorch's batch norm gives each channel to one workgroup, which reads"
    " it from all over the batch.",
    code="""model = model.to(memory_format=torch.channels_last)
x = x.to(memory_format=torch.channels_last)  # once, where the batch is moved""",
    link="https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html",
)
_STRIDED = Fix(
    text="Keep the layout that the next operators expect, so that they read memory in order.",
    code="""x = x.contiguous()  # once, where several operators read it
# instead of a view per operator: x.transpose(1, 2) + y""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.Tensor.contiguous.html",
)
_BANDWIDTH = Fix(
    text="Fuse the operator with its neighbours, so that its bytes move once for all of them; and compare it with a"
    " plain copy of this size, which shows what the memory reaches on this machine.",
    code="model = torch.compile(model)",
    link="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
)

_HALF_TOO = replace(_CONVOLUTION, text=f"{_CONVOLUTION.text} Half precision makes them faster still.")

MIN_NS = 10_000
"""Shorter kernels are bound by their launch (catalogue 24)."""
MIN_UNEXPLAINED_NS = 20_000
"""Shorter ones are blamed where their shape explains it alone (as products in fp32, catalogue 22)."""
START_NS = 3_000
"""What a kernel's start and end take: kernels over a few elements run for 1.5-5 us (H100, MI300X)."""
MIN_SHARE = 0.05  # of the kernel time, as of misaligned products
FAR = {"compute": 0.30, "memory": 0.40}
REACHED = {"compute": (0.4, 0.6), "memory": (0.5, 0.8)}
"""What healthy kernels reach of their roof, a cautious and a good value: products of well-shaped layers 60-83 % (A100,
H100), 35-48 % (MI300X); pointwise kernels over large tensors 50-95 % on all."""
MAX_FILLED = 0.5
"""Workgroups per compute unit, as of kernels too small to fill the device."""
NARROW = 128
"""Longest of the shortest sides of a product that is called narrow: at most one tile."""
SHORT = 512
"""Longest sequence whose attention is called short: a few tiles of a fused kernel."""
_OUT_OF_ORDER = r"\belementwise_kernel<"
"""PyTorch's pointwise kernel for tensors that it cannot walk in order; the others are vectorized or unrolled."""

_ONE_GROUP_PER_CHANNEL = r"at::native::batch_norm_(backward|collect_statistics)_kernel<"


class _Cause(NamedTuple):
    """Why kernels are slow. ``what`` : opens the sentence. ``sure`` : whether the low end counts anything."""

    key: str
    what: str
    fix: Fix
    sure: bool = False


_CAUSES = (
    _Cause("few_tiles", "matrix products with too few tiles for the device take", _FEW_TILES, sure=True),
    _Cause("narrow", "narrow matrix products, bound by memory whatever their kernel, take", _NARROW),
    _Cause("product", "matrix products take", FIX),
    _Cause("convolution", "convolutions take", _CONVOLUTION),
    _Cause("short_attention", "fused attention over short sequences takes", _SHORT),
    _Cause("attention", "fused attention takes", _ATTENTION),
    _Cause("batch_norm", "batch norms, one workgroup per channel, take", _BATCH_NORM),
    _Cause("strided", "operators whose inputs are broadcast or not contiguous take", _STRIDED),
    _Cause("bandwidth", "operators bound by memory take", _BANDWIDTH),
)
_ON_ROCM = {"product": _TUNER_ROCM, "attention": _ATTENTION_ROCM}
_KEYS = [cause.key for cause in _CAUSES]


@dataclass(frozen=True, eq=False)
class _Kernels:
    """Slow kernels of the main device, arrays of one element each.

    ``at`` : positions in ``device.rows``. ``op`` : the operator whose work they do. ``cause`` : index of ``_CAUSES``.
    ``compute`` : whether their roof is the dense peak. ``roof_ns`` : how long their work takes there, at the slowest
    and the fastest device that it may be. ``n_groups`` : workgroups, 0 where not known.
    """

    at: Ints
    op: Ints
    cause: Ints
    compute: Mask
    roof_ns: tuple[Floats, Floats]
    n_groups: Ints

    def where(self, mask: Mask) -> "_Kernels":
        """Return some of them."""
        slow, fast = self.roof_ns
        arrays = (self.at[mask], self.op[mask], self.cause[mask], self.compute[mask])
        return _Kernels(*arrays, (slow[mask], fast[mask]), self.n_groups[mask])


def find(trace: Trace) -> Claims:
    """Yield one claim for each cause."""
    device = trace.devices[0]
    peak, family = device.peak, device_family(device)
    units = multiprocessors(device) if family is None else family.n_units
    slowest, fastest = (peak, peak) if family is None else (family.slowest, family.fastest)
    if slowest is None or fastest is None:
        return
    slow = _slow(device, slowest, fastest, units)
    for index, cause in enumerate(_CAUSES):
        kernels = slow.where(slow.cause == index)
        work = work_at(trace, kernels.at, kernels.op)
        if work is not None and work.share >= MIN_SHARE:
            yield _claim(trace, work, kernels, cause, units, family.names if family is not None else ())


def _claim(trace: Trace, work: Work, kernels: _Kernels, cause: _Cause, units: int, names: tuple[str, ...]) -> Claim:
    dur = trace.dur_ns[work.rows].astype(np.float64)
    cautious, good = (
        np.where(kernels.compute, *(REACHED[roof][end] for roof in ("compute", "memory"))) for end in (0, 1)
    )
    slowest, fastest = kernels.roof_ns
    low = np.clip(1 - (slowest / cautious + START_NS) / dur, 0, 1) / 2 if cause.sure else 0.0
    compute = 2 * float((dur * kernels.compute).sum()) >= float(dur.sum())
    of_roof = float(slowest.sum() / dur.sum())
    longest = int(np.argmax(dur))
    inputs, which = inputs_of(trace, kernels.op[[longest]])
    name = trace.name_of(int(kernels.op[longest]))
    shape, text = _sizes(name, inputs[int(which[0])])
    beside = ""
    if cause.key == "few_tiles":
        beside = f", {kernels.n_groups[longest]:,} workgroups on {'at least ' if names else ''}{units} compute units"
    fix = _ON_ROCM.get(cause.key, cause.fix) if trace.origin.vendor == "rocm" else cause.fix
    if fix is _CONVOLUTION and element_type(inputs[int(which[0])].types) != "half":
        fix = _HALF_TOO
    reached = f"{'no more than ' if names else ''}{format_share(of_roof)}"
    roof = "dense peak" if compute else "memory bandwidth"
    return work.claim(
        f"{cause.what} {work.text}, at {reached} of the {roof}; the longest is {name} over {text}{beside}",
        cause.key,
        certainty="likely" if cause.sure else "hint",
        low=low,
        high=np.clip(1 - (fastest / good + START_NS) / dur, 0, 1),
        most=np.clip(1 - fastest / dur, 0, 1),
        method="each kernel's time above 40-60 % of the dense peak, 50-80 % of the bandwidth",
        evidence={
            "n_kernels_per_step": work.n_per_step,
            "share_of_roof": round(of_roof, 6),
            "roof": "compute" if compute else "memory",
            "longest_kernel": short_name(trace.name_of(int(work.rows[longest]))),
            "longest_shape": shape,
            **given(
                n_workgroups=int(kernels.n_groups[longest]),
                n_compute_units=units if kernels.n_groups[longest] else 0,
                device_is_one_of=list(names),
            ),
        },
        fix=fix,
    )


def _slow(device: Device, slowest: Peak, fastest: Peak, units: int) -> _Kernels:
    """Return all kernels that run far below their roof, each with its cause."""
    trace = device.trace
    category = categories(device)
    line = roofline(device, category, slowest, least_ns=MIN_NS)
    other = line if fastest == slowest else roofline(device, category, fastest, least_ns=MIN_NS)
    assert line is not None  # the pattern needs shapes
    assert other is not None
    dur = trace.dur_ns[device.rows]
    compute = line.computes
    far = np.where(compute, FAR["compute"], FAR["memory"])
    roof, best = line.roof_ns, other.roof_ns
    slow = (roof < far * (dur - START_NS)) & (dur >= MIN_NS) & (trace.kind[device.rows] == Kind.KERNEL) & (line.op >= 0)
    slow &= (device.followed_in_time | _waited_for(device)) & alone(device)
    slow[_unfused_attention(trace)] = False
    at = np.flatnonzero(slow)
    cause, groups = _causes(device, line, at, units)
    kernels = _Kernels(at, line.op[at], cause, compute[at], (roof[at], best[at]), groups)
    blamed = np.isin(cause, [_KEYS.index(key) for key in ("few_tiles", "narrow")])
    return kernels.where((cause >= 0) & (blamed | (dur[at] >= MIN_UNEXPLAINED_NS)))


def _unfused_attention(trace: Trace) -> Ints:
    """Return the kernels whose problem is that attention is not fused (KRN025), as positions in ``devices[0].rows``."""
    chains = find_chains(trace)
    if chains is None:
        return np.empty(0, np.int64)
    at, _ = kernels_of(trace, chains)
    work = work_at(trace, at)
    return at if work is not None and work.share >= MIN_SHARE else at[:0]


def _waited_for(device: Device) -> Mask:
    """Return bool[len(device.rows)]: work that ends while the host stands in a call that waits for the device.

    Freeing the device's memory does too.
    """
    trace = device.trace
    _, frees = allocator_calls(trace)
    rows = np.concatenate([trace.waits.sync_row, np.flatnonzero(frees)])
    return intervals.owner(trace.time_of(rows), trace.end_ns[device.rows]) >= 0


def _causes(device: Device, line: Roofline, at: Ints, units: int) -> tuple[Ints, Ints]:
    """Return for each kernel its cause, -1 without one, and its workgroups, 0 where they are not known."""
    trace, rows, op = device.trace, device.rows[at], line.op[at]
    grid = blocks(trace, rows)
    compute = line.computes[at]
    keys = np.stack([trace.name[op], trace.detail[op], trace.name[rows], trace.detail[rows], compute], axis=1)
    _, first, which = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    inputs, of_input = inputs_of(trace, op[first])
    causes, groups = np.full(len(first), -1, np.int64), np.zeros(len(first), np.int64)
    for index, kernel in enumerate(first.tolist()):
        name, mine = trace.name_of(int(op[kernel])), inputs[int(of_input[index])]
        kernel_name = trace.name_of(int(rows[kernel]))
        product = product_of(name, mine.dims, mine.concrete)
        groups[index] = grid[kernel] or _groups(kernel_name, product)
        few = 0 < groups[index] <= MAX_FILLED * units
        key = _cause(name, kernel_name, mine, product, few=bool(few), compute=bool(compute[kernel]))
        causes[index] = _KEYS.index(key)
    which = which.ravel()
    return causes[which], groups[which]


def _cause(name: str, kernel: str, inputs: Inputs, product: Product | None, *, few: bool, compute: bool) -> str:
    if name in GEMMS and product is not None:
        narrow = not compute and min(product.m, product.n, product.k) <= NARROW
        return "few_tiles" if few else "narrow" if narrow else "product"
    if name in ATTENTION:
        first = ATTENTION[name][0]
        longest = max((inputs.shape(index)[2] for index in (first, first + 1)), default=0)
        return "short_attention" if longest <= SHORT else "attention"
    if "conv" in name:
        return "convolution"
    if re.search(_ONE_GROUP_PER_CHANNEL, kernel):
        return "batch_norm"
    return "strided" if re.search(_OUT_OF_ORDER, kernel) or _strided(inputs) else "bandwidth"


def _groups(kernel: str, product: Product | None) -> int:
    """Return the workgroups that a kernel's name tells, for recordings without a grid."""
    parameters = tensile_of(kernel)
    return parameters.n_groups(product.batch, product.m, product.n) if parameters and product else 0


def _strided(inputs: Inputs) -> bool:
    """Return whether tensors of one shape are laid out in different orders, or with holes.

    Transposed alike they are read in order: PyTorch walks them along the memory.
    """
    orders = set()
    largest = max((inputs.numel(index) for index in range(len(inputs.dims))), default=0)
    for index, strides in enumerate(inputs.strides):
        shape = inputs.shape(index)
        if not shape or inputs.numel(index) < largest or not isinstance(strides, list) or len(strides) != len(shape):
            continue
        axes = sorted((stride, side) for stride, side in zip(strides, shape, strict=True) if side > 1)
        expected = 1
        for stride, side in axes:
            if stride != expected:
                return True
            expected *= side
        orders.add(tuple(stride for stride, side in zip(strides, shape, strict=True) if side > 1))
    return len(orders) > 1


def _sizes(name: str, inputs: Inputs) -> tuple[list[Any], str]:
    """Return the shapes that describe an operator's work, as data and as text."""
    first = 1 if name in ("aten::addmm", "aten::baddbmm") else ATTENTION[name][0] if name in ATTENTION else 0
    count = 2 if name in GEMMS or name in ATTENTION or "conv" in name else 1
    shapes = [inputs.shape(index) for index in range(first, first + count)]
    separator = " @ " if name in GEMMS else " and "
    return shapes, separator.join(f"[{', '.join(f'{side:,}' for side in shape)}]" for shape in shapes if shape)

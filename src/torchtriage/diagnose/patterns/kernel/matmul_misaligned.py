"""Half-precision matrix products whose sides are not multiples of 8 run on slow kernels.

Looks like: ``mm``, ``addmm``, ``bmm``, ``baddbmm`` or ``linear`` over fp16/bf16 inputs (TF32: multiples of 4) with a
    misaligned side and, on CUDA, a kernel that confirms it (``*_align1``, ``*_align2``, or one of an older generation
    than the GPU), at least 5 % of the kernel time, below 30 % of the peak rate or below two thirds of the rate of
    aligned products of similar size in the same recording.
Slow because: tensor-core kernels load 16 bytes at a time; a row that does not start on such a boundary falls back to
    loads of 2 or 4 bytes and often to a kernel of an older GPU.
Cost: modelled: the time above what the same work takes at the aligned rate of this recording (half of the peak rate
    where there is none to compare, of the slowest and the fastest device that one without a name may be); half of it at
    the low end, and nothing where the host launched the next kernel too late for it to matter.
Fix: pad the side (vocabulary, sequence, heads) to the next multiple of 8; for attention use
    ``scaled_dot_product_attention``, which takes any length.
Leave it when: the product is memory-bound, or runs once per step and is small (a classifier head).
Source: NVIDIA, "Matrix Multiplication Background User's Guide", tensor-core alignment; PyTorch performance tuning
    guide, "Use mixed precision and AMP".
"""

import numpy as np

from torchtriage.core.names import short_name
from torchtriage.core.trace.matrix_products import GEMMS, TF32_KERNEL, Products, products
from torchtriage.core.trace.peak_rates import Peak
from torchtriage.core.trace.roofline import device_family
from torchtriage.core.units import format_ns, format_share
from torchtriage.diagnose.patterns._op_work import work_at
from torchtriage.diagnose.patterns.base import Claims, Fix, Floats, Ints, Kind, Mask, Pattern, Trace

PATTERN = Pattern.of(
    __name__, "KRN023", "Matrix products with sides that are no multiple of 8", order=520, needs="device shapes"
)
FIX = Fix(
    text="Pad the odd side to the next multiple of 8 (vocabulary, sequence length, heads).",
    code="""vocab_size = -(-vocab_size // 8) * 8  # 50257 -> 50264
batch = tokenizer(texts, padding=True, pad_to_multiple_of=8)""",
    link="https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html#requirements-tc",
)

_GEMM_KERNEL = r"(?i)gemm|cutlass|xmma|nvjet|^Cijk_|wmma"
_UNALIGNED_KERNEL = r"_align[12](?!\d)"
MIN_KERNEL_NS = 20_000  # below this a product is bound by launch and latency
MIN_SIDE = 32  # below this it is bound by memory (catalogue 23)
MIN_SHARE = 0.05
SLOW_OF_PEAK = 0.30
SLOW_OF_ALIGNED = 2 / 3
GOOD_OF_PEAK = 0.5  # what large aligned products reach where there is none to compare with
SIMILAR = 4.0  # products within this factor of each other's operations are of similar size


def find(trace: Trace) -> Claims:
    """Yield one claim over all slow misaligned product kernels of the main device."""
    if trace.origin.vendor not in ("cuda", "rocm"):
        return
    device = trace.devices[0]
    op = trace.links.op[device.rows]
    is_gemm = trace.named(*GEMMS)
    at = np.flatnonzero(
        (op >= 0)
        & is_gemm[op]
        & (trace.kind[device.rows] == Kind.KERNEL)
        & (trace.dur_ns[device.rows] >= MIN_KERNEL_NS)
    )
    at = at[trace.matches(device.rows[at], _GEMM_KERNEL)]
    rows = device.rows[at]
    inputs = products(trace, op[at])
    tf32 = (inputs.dtype == "float") & trace.matches(rows, TF32_KERNEL)
    usable = inputs.known & (inputs.least_side >= MIN_SIDE) & ((inputs.dtype == "half") | tf32)
    odd = usable & _misaligned(trace, rows, inputs, tf32)
    if not odd.any():
        return
    peak = device.peak
    dur = trace.dur_ns[rows].astype(np.float64)
    family = device_family(device)
    slowest, fastest = (peak, peak) if family is None else (family.slowest, family.fastest)
    gain, best = (_gains(inputs, dur, odd, usable & ~odd, tf32, rates) for rates in (slowest, fastest))
    slow = gain > 0
    work = work_at(trace, at[slow])
    if work is None or work.share < MIN_SHARE:
        return
    rate = float(inputs.flop[slow].sum() / dur[slow].sum())
    longest = int(np.argmax(dur * slow))
    shape = [int(side[longest]) for side in (inputs.batch, inputs.m, inputs.n, inputs.k)]
    batch = f"{shape[0]:,} x " if shape[0] > 1 else ""
    yield work.claim(
        f"matrix products with misaligned sides take {format_ns(work.per_step_ns)} {trace.steps.per},"
        f" {format_share(work.share)} of the kernel time, the longest {batch}[{shape[1]}, {shape[3]}] @"
        f" [{shape[3]}, {shape[2]}]",
        "misaligned",
        low=gain[slow] / 2,
        high=best[slow],
        method="each kernel's time above the rate of aligned products of similar size",
        evidence={
            "n_kernels_per_step": work.n_per_step,
            "achieved_tflops": round(rate / 1e3, 1),
            "longest_kernel": short_name(trace.name_of(rows[longest])),
            "longest_batch_m_n_k": shape,
            **({} if peak is None else {"share_of_peak_half_rate": round(rate / peak.flop_per_ns("half"), 6)}),
            **({} if family is None else {"device_is_one_of": list(family.names)}),
        },
        anchor=int(rows[longest]),
    )


def _misaligned(trace: Trace, rows: Ints, work: Products, tf32: Mask) -> Mask:
    """Return bool[k]: products with an odd contiguous side, confirmed by the kernel on CUDA."""
    unit = np.where(tf32, 4, 8)
    inner: Mask = (work.n % unit != 0) | (work.k % unit != 0)
    if trace.origin.vendor == "rocm":
        # Tensile names do not say how they load; rows (m) need not be contiguous
        return inner
    confirmed = trace.matches(rows, _UNALIGNED_KERNEL)
    capability = trace.origin.capability
    if capability is not None and capability >= (8, 0):
        confirmed |= trace.matches(rows, r"cutlass_75_")
    inner |= work.m % unit != 0
    return inner & confirmed


def _gains(work: Products, dur_ns: Floats, odd: Mask, even: Mask, tf32: Mask, peak: Peak | None) -> Floats:
    """Return the fraction of each kernel above the aligned rate, 0 where it is not slow.

    ``odd``, ``even``, ``tf32`` : misaligned products, aligned ones to compare with, products in TF32.
    """
    gain = np.zeros(len(dur_ns))
    rate = work.flop / dur_ns
    # one decision per distinct product, not per kernel
    keys = np.stack([work.batch, work.m, work.n, work.k, tf32.astype(np.int64)], axis=1)[odd]
    distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
    members = np.flatnonzero(odd)
    for index in range(len(distinct)):
        mine = members[inverse.ravel() == index]
        flop, own = work.flop[mine[0]], float(np.median(rate[mine]))
        near = even & (tf32 == tf32[mine[0]])
        near &= (work.flop >= flop / SIMILAR) & (work.flop <= flop * SIMILAR)
        aligned = float(np.median(rate[near])) if near.any() else 0.0
        top = peak.flop_per_ns("tf32" if tf32[mine[0]] else "half") if peak is not None else 0.0
        if own >= SLOW_OF_PEAK * top and own >= SLOW_OF_ALIGNED * aligned:
            continue
        target = aligned or GOOD_OF_PEAK * top
        left = own / target if target else 1.0
        if peak is not None:
            size = work.n_elements[mine[0]] * (4 if tf32[mine[0]] else 2)
            left = max(left, size / peak.bytes_per_ns / float(np.median(dur_ns[mine])))
        gain[mine] = max(1 - left, 0.0)
    return gain

"""Matrix products and convolutions run in fp32 while the GPU's tensor cores are idle.

Looks like: ``mm``, ``addmm``, ``bmm`` or convolutions over ``float`` inputs whose kernels are the classic fp32 ones
    (``*sgemm*``, ``*scudnn*``, ``*f32f32_f32f32*``, ROCm's ``Cijk_*_SB_*``), each at least 20 µs, together at least a
    tenth of the kernel time, on a device with tensor cores.
Slow because: tensor cores multiply TF32 4-8 times and fp16/bf16 8-16 times as fast as the fp32 units do, and
    half-precision inputs are half the bytes.
Cost: modelled: each kernel becomes twice (low) to up to eight times (high, less where the device's tensor cores are
    weaker) as fast, never faster than its bytes pass through memory, at the best rate that other kernels of the
    recording reach with as many; nothing at the low end where the host launched the next kernel too late for it to
    matter, or where TF32 is allowed and not used.
Fix: allow TF32 for fp32 products, or run the forward pass under autocast in bf16 (fp16 on Volta and Turing, which have
    neither TF32 nor bf16). Convolutions that record that TF32 is allowed already: bf16, or a search of their kernels.
Leave it when: the computation needs all 24 bits (scientific codes, some losses and normalisations), or a tolerance
    test against fp32 must pass.
Source: PyTorch documentation, "Automatic Mixed Precision package" and "TensorFloat-32 (TF32) on Ampere (and later)
    devices"; peak rates from the vendors' data sheets.
"""

from typing import Any

import numpy as np

from torchtriage.core.names import short_name
from torchtriage.core.trace.device import Device
from torchtriage.core.trace.kernel_categories import categories
from torchtriage.core.trace.matrix_products import Products, is_fp32_kernel, products
from torchtriage.core.trace.peak_rates import Peak
from torchtriage.core.trace.roofline import roofline
from torchtriage.core.units import format_ns, format_share
from torchtriage.diagnose.patterns._op_work import work_at
from torchtriage.diagnose.patterns.base import Claims, Fix, Floats, Ints, Kind, Mask, Pattern, Trace, longest_names

PATTERN = Pattern.of(__name__, "KRN022", "Matrix products run in fp32 without tensor cores", order=510, needs="device")
FIX = Fix(
    text="Let fp32 products use TF32, or run forward and loss under autocast in bf16.",
    code="""torch.set_float32_matmul_precision("high")
torch.backends.cudnn.allow_tf32 = True
# or, faster still:
with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = criterion(model(inputs), targets)""",
    link="https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices",
)
_FIX_ALLOWED = Fix(
    text="Run forward and loss under autocast in bf16, or let cuDNN search its kernels for these shapes: TF32 is"
    " allowed already, and the kernels it chose do not use it.",
    code="""with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = criterion(model(inputs), targets)
# or, where shapes repeat:
torch.backends.cudnn.benchmark = True""",
    link="https://docs.pytorch.org/docs/stable/amp.html",
)
_FIX_FP16 = Fix(
    text="Run forward and loss under autocast in fp16, with a gradient scaler in training; this GPU has neither TF32"
    " nor bf16 tensor cores.",
    code="""scaler = torch.amp.GradScaler("cuda")
with torch.autocast("cuda", dtype=torch.float16):
    loss = criterion(model(inputs), targets)
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()""",
    link="https://docs.pytorch.org/docs/stable/amp.html",
)
_FIX_BF16 = Fix(
    text="Run forward and loss under autocast in bf16.",
    code=('with torch.autocast("cuda", dtype=torch.bfloat16):\n    loss = criterion(model(inputs), targets)'),
    link="https://docs.pytorch.org/docs/stable/amp.html",
)

_BENCHMARK, _ALLOW_TF32 = 6, 8  # where they stand among the inputs of cuDNN's convolution
MIN_KERNEL_NS = 20_000  # below this a product is bound by launch and latency, not by arithmetic (catalogue 22)
MIN_SHARE = 0.10  # of the kernel time (catalogue 22)
CAUTIOUS_SPEEDUP = 2.0  # whole mixed-precision training steps gain 1.5-3 times (PyTorch's AMP recipe)
BEST_SPEEDUP = 8.0
MIN_SHOWN = 5  # kernels of a size or larger that show what the memory gives there
_ANY_PEAK = Peak(1, 1, 1, 1)  # for the bytes alone
UNKNOWN_SPEEDUP = 4.0  # for a device that is not in the table: its tensor cores are 2-16 times its fp32 units


def find(trace: Trace) -> Claims:
    """Yield one claim over all fp32 product kernels of the main device."""
    device = trace.devices[0]
    if not _has_tensor_cores(trace, device.name):
        return
    rows = device.rows
    long = (trace.kind[rows] == Kind.KERNEL) & ~device.comm & (trace.dur_ns[rows] >= MIN_KERNEL_NS)
    at = np.flatnonzero(long)
    at = at[trace.rows_where(rows[at], is_fp32_kernel)]
    rows = rows[at]
    inputs = products(trace, trace.links.op[rows])
    keep = inputs.dtype != "half"  # kernels of half-precision ops only accumulate in fp32
    at, rows = at[keep], rows[keep]
    inputs = Products(*(getattr(inputs, name)[keep] for name in ("batch", "m", "n", "k", "dtype")))
    work = work_at(trace, at)
    if work is None or work.share < MIN_SHARE:
        return
    peak = device.peak
    low, high, most = _gains(device, at)
    old = trace.origin.capability is not None and trace.origin.capability < (8, 0)
    allowed = _allowed(trace, work.op) & (not old)  # the flag is on by default where there is no TF32, too
    low = np.where(allowed, 0.0, low)  # cuDNN took these kernels for the faster ones
    evidence: dict[str, Any] = {"n_kernels_per_step": work.n_per_step}
    known = inputs.known
    if peak is not None and known.any():
        rate = float(inputs.flop[known].sum() / trace.dur_ns[rows][known].sum())
        evidence["achieved_tflops"] = round(rate / 1e3, 1)
        evidence["peak_fp32_tflops"] = peak.fp32_tflops
        evidence["peak_half_tflops"] = peak.half_tflops
    evidence["top_kernels"] = list(map(short_name, longest_names(trace, rows)))
    if trace.origin.capability:
        evidence["compute_capability"] = ".".join(map(str, trace.origin.capability))
    evidence["input_types_recorded"] = bool((inputs.dtype == "float").any())
    tf32 = 2 * int(trace.dur_ns[rows][allowed].sum()) > int(trace.dur_ns[rows].sum())
    fix = _FIX_FP16 if old else _FIX_ALLOWED if tf32 else FIX
    if trace.origin.vendor == "rocm" or (tf32 and _convolutions(trace, _BENCHMARK).any()):
        fix = _FIX_BF16
    yield work.claim(
        f"fp32 matrix products and convolutions take {format_ns(work.per_step_ns)} {trace.steps.per},"
        f" {format_share(work.share)} of the kernel time, and leave the tensor cores idle"
        + (", though TF32 is allowed for most of them" if tf32 else ""),
        "fp32",
        low=low,
        high=high,
        most=most,
        method="each fp32 kernel over its speed-up on tensor cores, 2x to the ratio of the device's rates, bounded by"
        " memory traffic",
        evidence=evidence,
        anchor=trace.longest(rows),
        fix=fix,
    )


def _has_tensor_cores(trace: Trace, device_name: str) -> bool:
    origin = trace.origin
    if origin.vendor == "rocm":
        return True  # the kernel names say which instruction they use
    # GTX 16xx is 7.5 like RTX 20xx, but has none
    return (
        origin.vendor == "cuda"
        and origin.capability is not None
        and origin.capability >= (7, 0)
        and "GTX 16" not in device_name
    )


def _allowed(trace: Trace, ops: Ints) -> Mask:
    """Return bool[k]: convolutions for which TF32 is allowed, as all forward ones of the recording say."""
    allowed = _convolutions(trace, _ALLOW_TF32)
    if not allowed.any() or (_convolutions(trace) & ~allowed).any():
        return np.zeros(len(ops), dtype=bool)
    return (ops >= 0) & trace.matching("aten::.*convolution", Kind.OP)[ops]


def _convolutions(trace: Trace, flag: int | None = None) -> Mask:
    """Return bool[n]: cuDNN's forward convolutions, all or those that record this input as true."""
    forward: Mask = trace.named("aten::cudnn_convolution") & (trace.kind == Kind.OP)
    if flag is None:
        return forward
    return trace.where_detail("concrete", lambda inputs: len(inputs) == 9 and inputs[flag] == "True", forward)


def _gains(device: Device, at: Ints) -> tuple[Floats, Floats, Floats]:
    """Return the fractions that go for sure, at best, and at most, when half the bytes alone take time."""
    peak, dur_ns = device.peak, device.trace.dur_ns[device.rows[at]]
    best = UNKNOWN_SPEEDUP
    if peak is not None:
        best = min(BEST_SPEEDUP, peak.half_tflops / peak.fp32_tflops)
    cautious = min(CAUTIOUS_SPEEDUP, best / 2)
    # TF32 still moves 4 bytes per element, half precision 2
    stated, shown = (moving_ns / dur_ns for moving_ns in _moving_ns(device, at))
    left = np.stack([np.maximum(1 / max(cautious, 1.0), shown), np.maximum(1 / best, stated / 2), stated / 2])
    low, high, most = np.clip(1 - left, 0, 1)
    return np.minimum(low, high), high, most


def _moving_ns(device: Device, at: Ints) -> tuple[Floats, Floats]:
    """Return how long the bytes of each kernel take at least, and at the best rate that this recording shows, ns.

    Shown by kernels that compute little and move as many bytes or more, as far as there are some: slow ones prove
    nothing, so where the memory's rate is known, the first is by that. 0 where not known.
    """
    line = roofline(device, categories(device), device.peak or _ANY_PEAK, least_ns=MIN_KERNEL_NS)
    if line is None:
        return np.zeros(len(at)), np.zeros(len(at))
    n_bytes = np.nan_to_num(line.n_bytes)
    others = np.flatnonzero(~line.multiplies & (line.op >= 0) & (n_bytes > 0))
    others = others[np.argsort(-n_bytes[others], kind="stable")]
    best = np.maximum.accumulate(n_bytes[others] / line.dur_ns[others])
    n_larger = np.searchsorted(-n_bytes[others], -n_bytes[at], side="right")
    stated = np.full(len(at), device.peak.bytes_per_ns if device.peak else np.inf)
    shown, known = stated.copy(), n_larger >= MIN_SHOWN
    shown[known] = np.minimum(shown[known], best[n_larger[known] - 1])
    return n_bytes[at] / (stated if device.peak else shown), n_bytes[at] / shown

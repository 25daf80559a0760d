"""Operators on float64 tensors."""

import re

import numpy as np

from torchtriage.core.arrays import distinct
from torchtriage.core.trace.frames import frame_label
from torchtriage.core.trace.op_inputs import Inputs, inputs_of, where_inputs
from torchtriage.core.units import format_ns, format_share
from torchtriage.diagnose.patterns._op_work import work_of
from torchtriage.diagnose.patterns.base import Claim, Fix, Kind, Mask, Trace, most_frequent

_FIX_DOUBLE = Fix(
    text="Make constants and inputs float32 where they are created.",
    code="""mean = torch.from_numpy(mean.astype(np.float32))  # NumPy arrays are float64
scale = torch.tensor(0.5, dtype=torch.float32, device=x.device)""",
    link="https://docs.pytorch.org/docs/stable/tensor_attributes.html#torch.dtype",
)
_CONVOLUTIONS = r"^aten::(convolution\w*|\w+_convolution\w*)$"
_WHOLE_FIX = Fix(
    text="Make the data float32 where it is created, and leave the model in float32.",
    code="""x = torch.tensor(values, dtype=torch.float32)  # values from NumPy or pandas are float64
model = Net()  # not Net().double(), nor torch.set_default_dtype(torch.float64)""",
    link=_FIX_DOUBLE.link,
)
_PRODUCTS = r"^aten::(mm|addmm|bmm|baddbmm|linear|matmul|convolution\w*|\w+_convolution\w*)$"
OF_DOUBLE = (0.4, 0.6)
"""Half the bytes, and half the arithmetic where float64 units are half as many (A100, H100, CPU); measured on a CPU: a
perceptron's step takes 54-58 % less in float32, caches helping."""
CONSUMER = ((7, 5), (8, 6), (8, 9), (12, 0))
"""Compute capabilities with a float64 unit for every 32 or 64 of float32 (CUDA programming guide, throughput of native
arithmetic instructions)."""
CONSUMER_GAIN = 31 / 32
TENSOR_CORE_GAIN = 7 / 8
"""cuDNN runs float32 convolutions in TF32 by default, 7-8 times the rate that the tensor cores of A100, H100 and H200
have in float64 (NVIDIA data sheets); measured on an H200: 16.1 ms of convolutions, 2.1 ms with their transpositions."""
ALL_DOUBLE = 0.9  # of the product time: then float64 is no leak but the type of the program
_LAYERS = (
    r"^aten::(linear|addmm|conv[123]d|convolution|\w*(layer|batch|group)_norm|lstm|gru|embedding(_bag)?|scaled_dot\w*)$"
)
_SOLVERS = r"^aten::(_?linalg_(?!vector_norm|matrix_norm)\w+|_?cholesky\w*|lu_\w+|triangular_solve|svd|geqrf|ormqr)$"
_SECOND = r"BackwardBackward\d*$"
_METHODS = re.compile(
    r"\b(torchdiffeq|torchode|torchsde|gpytorch|botorch|linear_operator|scipy/(optimize|integrate|linalg))/"
    r"|: \w*(odeint|dopri|runge|rk4|gradcheck|lbfgs)\w*$",
    re.IGNORECASE,
)


def claim_float64(trace: Trace, min_share: float) -> Claim | None:
    """Return the claim on operators over float64 tensors."""
    is_op = trace.kind == Kind.OP
    # few operators take one: their inputs need not be decoded to see that
    written = np.array([b'"double"' in detail.types for detail in trace.details] + [False])
    rows = np.flatnonzero(is_op & written[trace.detail])
    double = rows[where_inputs(trace, rows, _has_double)]
    if not len(double):
        return None
    inside = trace.mask_of(double)
    work = work_of(trace, double[~trace.tree.under(inside)[double]])
    if work is None or work.share < min_share:
        return None
    high = np.full(len(work.rows), OF_DOUBLE[1])
    if trace.origin.capability in CONSUMER:
        high[_holds(trace, _PRODUCTS)[work.op]] = CONSUMER_GAIN
    elif trace.origin.vendor == "cuda" and (peak := trace.devices[0].peak) is not None and peak.tf32_tflops:
        high[_holds(trace, _CONVOLUTIONS)[work.op]] = TENSOR_CORE_GAIN
    products = np.flatnonzero(trace.matching(_PRODUCTS) & is_op)
    dur = trace.dur_ns[products]
    whole = bool(dur[inside[products]].sum() >= ALL_DOUBLE * max(int(dur.sum()), 1))
    reason = _may_need(trace) if whole else ""
    low = 0.0 if reason else OF_DOUBLE[0]
    example = inputs_of(trace, work.op[[int(np.argmax(trace.dur_ns[work.rows]))]])[0][0]
    return work.claim(
        f"operators on float64 tensors take {format_ns(work.per_step_ns)} {trace.steps.per},"
        f" {format_share(work.share)} of {work.of}"
        + ("; the whole program computes in float64" if whole else "")
        + (f", and {reason} may need it" if reason else ""),
        "float64",
        certainty="hint" if reason else "likely",
        low=low,
        high=high,
        method="float64 time minus the same in float32: half the bytes, half the arithmetic",
        evidence={
            "n_ops_per_step": trace.steps.mean_count(trace.steps.of_host(distinct(work.op))),
            "top_ops": most_frequent(trace, work.op),
            "example_shape": next(filter(None, map(example.shape, range(3))), []),
            "float64_everywhere": whole,
        },
        fix=_WHOLE_FIX if whole else _FIX_DOUBLE,
    )


def _holds(trace: Trace, names: str) -> Mask:
    mask = trace.matching(names)
    return mask | trace.tree.above(mask)


def _may_need(trace: Trace) -> str:
    """Return what of a program that computes in float64 throughout may want it, empty for a plain network."""
    if not trace.matching(_LAYERS).any():
        return "a program without layers of a network"
    solvers = np.flatnonzero(trace.matching(_SOLVERS))
    if len(solvers):
        return trace.name_of(int(solvers[0]))
    if trace.matching(_SECOND).any():
        return "derivatives of derivatives"
    methods = np.flatnonzero(trace.where_name(lambda name: _METHODS.search(name) is not None))
    return frame_label(trace.name_of(int(methods[0]))) if len(methods) else ""


def _has_double(inputs: Inputs) -> bool:
    return any(kind == "double" and inputs.numel(index) > 1 for index, kind in enumerate(inputs.types))

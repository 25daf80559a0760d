"""Operators on float64 tensors."""

from dataclasses import replace

import numpy as np

from torchtriage.core.arrays import distinct
from torchtriage.core.trace.op_inputs import Inputs, inputs_of, where_inputs
from torchtriage.core.units import format_ns, format_share
from torchtriage.diagnose.patterns._op_work import work_of
from torchtriage.diagnose.patterns.base import Claim, Edit, Fix, Kind, Trace, most_frequent

_FIX_DOUBLE = Fix(
    text="Make constants and inputs float32 where they are created.",
    code="""mean = torch.from_numpy(mean.astype(np.float32))  # NumPy arrays are float64
scale = torch.tensor(0.5, dtype=torch.float32, device=x.device)""",
    link="https://docs.pytorch.org/docs/stable/tensor_attributes.html#torch.dtype",
)
_PRODUCTS = r"^aten::(mm|addmm|bmm|baddbmm|linear|matmul|convolution\w*|\w+_convolution\w*)$"
OF_DOUBLE = (0.4, 0.6)
"""Half the bytes, and half the arithmetic where float64 units are half as many (A100, H100, CPU); measured on a CPU: a
perceptron's step takes 54-58 % less in float32, caches helping."""
CONSUMER = ((7, 5), (8, 6), (8, 9), (12, 0))
"""Compute capabilities with a float64 unit for every 32 or 64 of float32 (CUDA programming guide, throughput of native
arithmetic instructions)."""
CONSUMER_GAIN = 31 / 32
ALL_DOUBLE = 0.9  # of the product time: then float64 is no leak but the type of the program


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
    product = trace.matching(_PRODUCTS)
    product |= trace.tree.above(product)
    high = np.full(len(work.rows), OF_DOUBLE[1])
    if trace.origin.capability in CONSUMER:
        high[product[work.op]] = CONSUMER_GAIN
    products = np.flatnonzero(trace.matching(_PRODUCTS) & is_op)
    dur = trace.dur_ns[products]
    whole = bool(dur[inside[products]].sum() >= ALL_DOUBLE * max(int(dur.sum()), 1))
    example = inputs_of(trace, work.op[[int(np.argmax(trace.dur_ns[work.rows]))]])[0][0]
    claim = work.claim(
        f"operators on float64 tensors take {format_ns(work.per_step_ns)} {trace.steps.per},"
        f" {format_share(work.share)} of {work.of}" + ("; the whole program computes in float64" if whole else ""),
        "float64",
        certainty="hint" if whole else "likely",
        low=OF_DOUBLE[0],
        high=high,
        method="float64 time minus the same in float32: half the bytes, half the arithmetic",
        evidence={
            "n_ops_per_step": trace.steps.mean_count(trace.steps.of_host(distinct(work.op))),
            "top_ops": most_frequent(trace, work.op),
            "example_shape": next(filter(None, map(example.shape, range(3))), []),
            "float64_everywhere": whole,
        },
        fix=_FIX_DOUBLE,
    )
    return replace(claim, edits=(Edit("shrink", work.rows, 1 - OF_DOUBLE[0], 1 - OF_DOUBLE[1]),))


def _has_double(inputs: Inputs) -> bool:
    return any(kind == "double" and inputs.numel(index) > 1 for index, kind in enumerate(inputs.types))

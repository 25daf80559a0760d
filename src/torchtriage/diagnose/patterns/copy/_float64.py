"""Operators on float64 tensors."""

import numpy as np

from torchtriage.core.arrays import distinct
from torchtriage.core.trace.op_inputs import Inputs, inputs_of, where_inputs
from torchtriage.core.units import format_ns, format_share
from torchtriage.diagnose.patterns._op_work import work_of
from torchtriage.diagnose.patterns.base import Certainty, Claim, Edit, Fix, Kind, Mask, Trace

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
    mine = product[work.op]
    high = np.full(len(work.rows), OF_DOUBLE[1])
    if trace.origin.capability in CONSUMER:
        high[mine] = CONSUMER_GAIN
    names, count = np.unique(trace.name[work.op], return_counts=True)
    top = [trace.names[names[row]] for row in np.argsort(-count, kind="stable")[:5].tolist()]
    whole = _all_double(trace, inside)
    example = inputs_of(trace, work.op[[int(np.argmax(trace.dur_ns[work.rows]))]])[0][0]
    certainty: Certainty = "hint" if whole else "likely"
    return Claim(
        message=(
            f"operators on float64 tensors take {format_ns(work.per_step_ns)} {trace.steps.per},"
            f" {format_share(work.share)} of {work.of}" + ("; the whole program computes in float64" if whole else "")
        ),
        certainty=certainty,
        rows=work.rows,
        spans=work.spans,
        gain_low=np.minimum(OF_DOUBLE[0], work.free),
        gain_high=high,
        time_class=work.time_class,
        basis="modelled",
        method="float64 time minus the same in float32: half the bytes, half the arithmetic",
        evidence={
            **work.evidence("float64"),
            "n_ops_per_step": trace.steps.mean_count(trace.steps.of_host(distinct(work.op))),
            "top_ops": top,
            "example_shape": next((item for item in map(example.shape, range(3)) if item), []),
            "float64_everywhere": whole,
        },
        anchor=int(work.op[np.argmax(trace.dur_ns[work.rows])]),
        fix=_FIX_DOUBLE,
        edits=(Edit("shrink", work.rows, 1 - OF_DOUBLE[0], 1 - OF_DOUBLE[1]),),
    )


def _has_double(inputs: Inputs) -> bool:
    return any(kind == "double" and inputs.numel(index) > 1 for index, kind in enumerate(inputs.types))


def _all_double(trace: Trace, double: Mask) -> bool:
    rows = np.flatnonzero(trace.matching(_PRODUCTS) & (trace.kind == Kind.OP))
    if not len(rows):
        return False
    dur = trace.dur_ns[rows]
    return bool(dur[double[rows]].sum() >= ALL_DOUBLE * max(int(dur.sum()), 1))

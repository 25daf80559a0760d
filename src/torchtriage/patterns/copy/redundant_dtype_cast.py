"""Tensors are cast to another type for nothing, or a float64 tensor slows what it touches.

Looks like: a cast that the next operator undoes (float32 to bfloat16 and straight back); operators
    on float64 tensors of more than one element; in inference under autocast, the same weights cast
    in every step. Each 2 % of the kernel time (on a CPU, of the step) or more. Casts of single
    numbers, which every operator with a Python scalar does on a CPU, do not count.
Slow because: a cast reads and writes the whole tensor and computes nothing; float64 takes twice the
    memory traffic of float32, and on GPUs that are not made for it 32-64 times the arithmetic.
Cost: the casts that go away; of float64 work 40-60 % (products on consumer GPUs up to 97 %). At the
    low end only what the device can make up for, because the next kernel is waiting.
Fix: drop the pair of casts; make inputs and constants float32 at the source; load weights in the
    type they are used in.
Leave it when: float64 is what the method needs (solvers, long sums), or between the two casts
    something is computed on purpose in float32 (norms, softmax): then LCH015 has the advice.
Source: PyTorch documentation, "Automatic Mixed Precision package"; measured: float64 point
    coordinates from NumPy put 28 % of the kernel time of a mask generator into float64.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from torchtriage.distinct import distinct
from torchtriage.finding import Certainty, Fix
from torchtriage.patterns._inputs import Inputs, inputs_of
from torchtriage.patterns._phases import inference_phase
from torchtriage.patterns._work import work_of
from torchtriage.patterns.base import Claim, Edit, Pattern
from torchtriage.trace import Kind, Trace
from torchtriage.units import format_count, format_ns, format_share

PATTERN = Pattern(
    code="CPY012",
    name="redundant-dtype-cast",
    family="copy",
    title="Casts for nothing, and float64 that leaked in",
    order=535,
    needs=frozenset({"ops", "shapes", "work"}),
)

FIX = Fix(
    text="Leave the tensor in one type: the second cast undoes the first.",
    code="x = block(x)  # not block(x.float()).to(torch.bfloat16) around every block",
    link="https://docs.pytorch.org/docs/stable/amp.html",
)
_FIX_DOUBLE = Fix(
    text="Make constants and inputs float32 where they are created.",
    code="""mean = torch.from_numpy(mean.astype(np.float32))  # NumPy arrays are float64
scale = torch.tensor(0.5, dtype=torch.float32, device=x.device)""",
    link="https://docs.pytorch.org/docs/stable/tensor_attributes.html#torch.dtype",
)
_FIX_WEIGHTS = Fix(
    text="Convert the weights once, outside the loop.",
    code="""model = model.eval().to(torch.bfloat16)  # instead of autocast over float32 weights
with torch.inference_mode():
    outputs = model(inputs.to(torch.bfloat16))""",
    link="https://docs.pytorch.org/docs/stable/amp.html",
)

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

MIN_SHARE = 0.02
"""Of the kernel time (catalogue 12)."""
_FLOATS = {"5": "c10::Half", "6": "float", "7": "double", "15": "c10::BFloat16"}
"""``torch.dtype`` as a concrete input and as an input type."""
_LAYERS = r"^aten::(linear|addmm|matmul|conv\d?d?|convolution|conv_transpose\dd)$"
_PRODUCTS = r"^aten::(mm|addmm|bmm|baddbmm|linear|matmul|convolution\w*|\w+_convolution\w*)$"
_NO_WORK = (
    r"^aten::(view|reshape|expand|as_strided|t|transpose|permute|select|slice|empty\w*|detach\w*"
    r"|result_type|unsqueeze|squeeze|resolve_\w+)$"
)
OF_DOUBLE = (0.4, 0.6)
"""Half the bytes, and half the arithmetic where float64 units are half as many (A100, H100, CPU);
measured on a CPU: a perceptron's step takes 54-58 % less in float32, caches helping."""
CONSUMER = ((7, 5), (8, 6), (8, 9), (12, 0))
"""Compute capabilities with a float64 unit for every 32 or 64 of float32 (CUDA programming guide,
throughput of native arithmetic instructions)."""
CONSUMER_GAIN = 31 / 32
ALL_DOUBLE = 0.9
"""Of the product time: then float64 is no leak but the type of the program."""


def find(trace: Trace) -> Iterator[Claim]:
    """Yield one claim per kind: casts undone, float64, weights cast in every step."""
    if not trace.devices and not trace.is_host_only:
        return
    casts, source, target = _casts(trace)
    for claim in (
        _undone(trace, casts, source, target),
        _double(trace),
        _weights(trace, casts),
    ):
        if claim is not None:
            yield claim


def _casts(trace: Trace) -> tuple[Ints, Ints, Ints]:
    """Return the casts between float types of more than one number, in order of the op tree.

    And for each a code of what it casts from and to, equal for equal shape and type.
    """
    rows = trace.tree.members
    rows = rows[trace.named("aten::_to_copy")[rows]]
    inputs, which = inputs_of(trace, rows)
    seen: dict[tuple[str, str], int] = {}
    codes = np.full((len(inputs), 2), -1, np.int64)
    for index, one in enumerate(inputs):
        before, after = one.type(0), _FLOATS.get(one.value(1), "")
        if before in _FLOATS.values() and after and before != after and one.numel(0) > 1:
            shape = str(one.shape(0))
            codes[index] = [seen.setdefault((shape, dtype), len(seen)) for dtype in (before, after)]
    source, target = codes[which].T if len(rows) else (rows, rows)
    real = source >= 0
    return rows[real], source[real], target[real]


def _undone(trace: Trace, casts: Ints, source: Ints, target: Ints) -> Claim | None:
    """Return the claim on pairs of casts with nothing but views between them."""
    if len(casts) < 2:
        return None
    ops = _working_ops(trace)
    outer = trace.tree.outermost(casts, trace.kind == Kind.OP)
    outer = np.where(outer >= 0, outer, casts)
    position = np.full(len(trace), -1, np.int64)
    position[ops] = np.arange(len(ops))
    place = position[outer]
    pair = np.zeros(len(casts), dtype=bool)
    pair[:-1] = (
        (source[:-1] == target[1:])
        & (target[:-1] == source[1:])
        & (place[1:] == place[:-1] + 1)
        & (place[:-1] >= 0)
        & (trace.lane[casts[1:]] == trace.lane[casts[:-1]])
    )
    # of three casts in a row the middle one belongs to the first pair
    second = np.append(False, pair[:-1])
    pair &= ~second
    first = np.flatnonzero(pair)
    rows = np.sort(np.concatenate([casts[first], casts[first + 1]]))
    work = work_of(trace, rows)
    if work is None or work.share < MIN_SHARE:
        return None
    inputs = inputs_of(trace, casts[first[:1]])[0][0]
    count = round(_per_step(trace, casts[first]), 2)
    forth, back = inputs.type(0), _FLOATS[inputs.value(1)]
    return Claim(
        message=(
            f"{format_count(count, 'tensor')} {trace.steps.per}"
            f" {'is' if count == 1 else 'are'} cast from {_short(forth)} to {_short(back)} and"
            f" straight back: {format_ns(work.per_step_ns)}, {format_share(work.share)} of"
            f" {work.of}"
        ),
        certainty="likely",
        rows=work.rows,
        spans=work.spans,
        gain_low=work.free,
        gain_high=1.0,
        time_class=work.time_class,
        basis="bounded",
        method="time of both casts; low: what of it the queue can make up for",
        evidence={
            **work.evidence("cast"),
            "n_round_trips_per_step": count,
            "from_type": forth,
            "to_type": back,
            "example_shape": inputs.shape(0),
        },
        anchor=int(casts[first[0]]),
        edits=(Edit("drop", work.gone),),
    )


def _working_ops(trace: Trace) -> Ints:
    """Return the ops that are in no other op and do work, lane by lane in time order."""
    is_op = trace.kind == Kind.OP
    rows = trace.tree.members
    rows = rows[is_op[rows]]
    rows = rows[~trace.tree.under(is_op)[rows]]
    idle = trace.matching(_NO_WORK)[rows]
    # .to() of what has the type already returns it
    idle |= trace.named("aten::to")[rows] & ~trace.tree.above(trace.named("aten::_to_copy"))[rows]
    working: Ints = rows[~idle]
    return working


def _double(trace: Trace) -> Claim | None:
    """Return the claim on operators over float64 tensors."""
    is_op = trace.kind == Kind.OP
    # few operators take one: their inputs need not be decoded to see that
    written = np.array([b'"double"' in one.types for one in trace.details] + [False])
    rows = np.flatnonzero(is_op & written[trace.detail])
    inputs, which = inputs_of(trace, rows)
    double = rows[np.array([_has_double(one) for one in inputs], dtype=bool)[which]]
    if not len(double):
        return None
    inside = np.zeros(len(trace), dtype=bool)
    inside[double] = True
    work = work_of(trace, double[~trace.tree.under(inside)[double]])
    if work is None or work.share < MIN_SHARE:
        return None
    product = trace.matching(_PRODUCTS)
    product |= trace.tree.above(product)
    mine = product[work.op]
    high = np.full(len(work.rows), OF_DOUBLE[1])
    if trace.origin.capability in CONSUMER:
        high[mine] = CONSUMER_GAIN
    names, count = np.unique(trace.name[work.op], return_counts=True)
    top = [trace.names[names[one]] for one in np.argsort(-count, kind="stable")[:5].tolist()]
    whole = _all_double(trace, inside)
    example = inputs_of(trace, work.op[[int(np.argmax(trace.dur_ns[work.rows]))]])[0][0]
    certainty: Certainty = "hint" if whole else "likely"
    return Claim(
        message=(
            f"operators on float64 tensors take {format_ns(work.per_step_ns)} {trace.steps.per},"
            f" {format_share(work.share)} of {work.of}"
            + ("; the whole program computes in float64" if whole else "")
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
            "n_ops_per_step": round(_per_step(trace, distinct(work.op)), 2),
            "top_ops": top,
            "example_shape": next((one for one in map(example.shape, range(3)) if one), []),
            "float64_everywhere": whole,
        },
        anchor=int(work.op[np.argmax(trace.dur_ns[work.rows])]),
        fix=_FIX_DOUBLE,
        edits=(Edit("shrink", work.rows, 1 - OF_DOUBLE[0], 1 - OF_DOUBLE[1]),),
    )


def _has_double(inputs: Inputs) -> bool:
    return any(
        kind == "double" and inputs.numel(index) > 1 for index, kind in enumerate(inputs.types)
    )


def _all_double(trace: Trace, double: Mask) -> bool:
    """Return whether (nearly) all products are over float64, so that it looks intended."""
    rows = np.flatnonzero(trace.matching(_PRODUCTS) & (trace.kind == Kind.OP))
    if not len(rows):
        return False
    dur = trace.dur_ns[rows]
    return bool(dur[double[rows]].sum() >= ALL_DOUBLE * max(int(dur.sum()), 1))


def _weights(trace: Trace, casts: Ints) -> Claim | None:
    """Return the claim on weights that inference under autocast casts in every step."""
    steps = trace.steps
    phase = inference_phase(trace)
    if phase is None or not phase.whole or steps.n_steady < 2 or not len(casts):
        return None
    layer = trace.tree.nearest(casts, trace.matching(_LAYERS) & (trace.kind == Kind.OP))
    rows, layer = casts[layer >= 0], layer[layer >= 0]
    own, which = inputs_of(trace, rows)
    of_layer, layer_is = inputs_of(trace, layer)
    pairs, inverse = np.unique(np.stack([which, layer_is], axis=1), axis=0, return_inverse=True)
    is_weight = np.array(
        [_is_weight(own[cast].shape(0), of_layer[one]) for cast, one in pairs.tolist()], dtype=bool
    )
    rows = rows[is_weight[inverse.reshape(-1)]]
    work = work_of(trace, rows)
    if work is None or work.share < MIN_SHARE:
        return None
    step_of = steps.of_host(rows)
    if steps.share_of_steps(step_of) < 1.0:
        return None
    count = steps.median_count(step_of)
    return Claim(
        message=(
            f"{format_count(count, 'weight')} {'is' if count == 1 else 'are'} cast again in every"
            f" step: {format_ns(work.per_step_ns)}, {format_share(work.share)} of {work.of}"
        ),
        certainty="likely",
        rows=work.rows,
        spans=work.spans,
        gain_low=work.free,
        gain_high=1.0,
        time_class=work.time_class,
        basis="bounded",
        method="time of the casts; low: what of it the queue can make up for",
        evidence={**work.evidence("cast"), "n_weight_casts_per_step": count},
        anchor=int(rows[0]),
        fix=_FIX_WEIGHTS,
        edits=(Edit("drop", work.gone),),
    )


def _is_weight(shape: list[int], layer: Inputs) -> bool:
    """Return whether a shape is that of a layer's weight or bias, and not also of its input."""
    others = [layer.shape(index) for index in range(1, 3)]
    return bool(shape) and shape in others and shape != layer.shape(0)


def _per_step(trace: Trace, ops: Ints) -> float:
    steady = trace.steps.in_steady(trace.steps.of_host(ops))
    return int(steady.sum()) / trace.steps.n_steady


def _short(dtype: str) -> str:
    return {"float": "float32", "double": "float64"}.get(dtype, dtype.removeprefix("c10::").lower())

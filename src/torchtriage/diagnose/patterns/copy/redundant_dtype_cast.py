"""Tensors are cast to another type for nothing, or a float64 tensor slows down everything it touches.

Looks like: a cast that the next operator undoes (float32 to bfloat16 and straight back); operators on float64 tensors
    of more than one element; in inference under autocast, the same weights cast in every step. Each takes at least 2 %
    of the kernel time (on a CPU, of the step). Casts of single numbers, which every operator with a Python scalar does
    on a CPU, do not count.
Slow because: a cast reads and writes the whole tensor and computes nothing; float64 takes twice the memory traffic of
    float32, and on consumer GPUs 32-64 times the arithmetic.
Cost: the casts that disappear; of float64 work 40-60 % (convolutions that TF32 takes over up to 87 %, products on
    consumer GPUs up to 97 %). At the low end only the part the device can recover because the next kernel is already
    queued; nothing where a program that computes in float64 throughout may need it: one without layers of a network,
    or with solvers, derivatives of derivatives, or integrators of equations.
Fix: drop the pair of casts; make inputs and constants float32 at the source; load weights in the type they are used
    in.
Leave it when: the method needs float64 (solvers, long sums), or something is computed in float32 between the two casts
    on purpose (norms, softmax): then LCH015 has the advice.
Source: PyTorch documentation, "Automatic Mixed Precision package"; measured: float64 point coordinates from NumPy put
    28 % of the kernel time of a mask generator into float64; a network of convolutions on an H200 takes 20.0 ms of
    kernels in float64 and 4.4 ms in float32.
"""

import numpy as np

from torchtriage.core.trace.inference_phase import inference_phase
from torchtriage.core.trace.op_inputs import inputs_of
from torchtriage.core.units import format_count, format_ns, format_share
from torchtriage.diagnose.patterns._op_work import work_of
from torchtriage.diagnose.patterns._weights_cast import of_weights
from torchtriage.diagnose.patterns.base import Claim, Claims, Fix, Ints, Kind, Pattern, Trace
from torchtriage.diagnose.patterns.copy._float64 import claim_float64

PATTERN = Pattern.of(__name__, "CPY012", "Redundant casts, or accidental float64", order=535, needs="ops shapes work")
FIX = Fix(
    text="Keep the tensor in one type: the second cast undoes the first.",
    code="x = block(x)  # not block(x.float()).to(torch.bfloat16) around every block",
    link="https://docs.pytorch.org/docs/stable/amp.html",
)

MIN_SHARE = 0.02  # of the kernel time (catalogue 12)
_FLOATS = {"5": "c10::Half", "6": "float", "7": "double", "15": "c10::BFloat16"}
"""``torch.dtype`` as a concrete input and as an input type."""
_NO_WORK = (
    r"^aten::(view|reshape|expand|as_strided|t|transpose|permute|select|slice|empty\w*|detach\w*"
    r"|result_type|unsqueeze|squeeze|resolve_\w+)$"
)
_FIX_WEIGHTS = Fix(
    text="Convert the weights once, outside the loop.",
    code="""model = model.eval().to(torch.bfloat16)  # instead of autocast over float32 weights
with torch.inference_mode():
    outputs = model(inputs.to(torch.bfloat16))""",
    link="https://docs.pytorch.org/docs/stable/amp.html",
)


def find(trace: Trace) -> Claims:
    """Yield one claim per kind: casts undone, float64, weights cast in every step."""
    casts, source, target = _casts(trace)
    found = _undone(trace, casts, source, target), claim_float64(trace, MIN_SHARE), _weight_casts(trace, casts)
    yield from filter(None, found)


def _casts(trace: Trace) -> tuple[Ints, Ints, Ints]:
    """Return the casts between float types of more than one number, in order of the op tree.

    And for each a code of what it casts from and to, equal for equal shape and type.
    """
    rows = trace.tree.members
    rows = rows[trace.named("aten::_to_copy")[rows]]
    inputs, which = inputs_of(trace, rows)
    seen: dict[tuple[str, str], int] = {}
    codes = np.full((len(inputs), 2), -1, np.int64)
    for index, input_ in enumerate(inputs):
        before, after = input_.type(0), _FLOATS.get(input_.value(1), "")
        if before in _FLOATS.values() and after and before != after and input_.numel(0) > 1:
            shape = str(input_.shape(0))
            codes[index] = [seen.setdefault((shape, dtype), len(seen)) for dtype in (before, after)]
    source, target = codes[which].T if len(rows) else (rows, rows)
    real = source >= 0
    return rows[real], source[real], target[real]


def _undone(trace: Trace, casts: Ints, source: Ints, target: Ints) -> Claim | None:
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
    count = trace.steps.mean_count(trace.steps.of_host(casts[first]))
    forth, back = inputs.type(0), _FLOATS[inputs.value(1)]
    return work.claim(
        message=f"{format_count(count, 'tensor')} {trace.steps.per} {'is' if count == 1 else 'are'} cast from"
        f" {_short(forth)} to {_short(back)} and straight back: {format_ns(work.per_step_ns)},"
        f" {format_share(work.share)} of {work.of}",
        what="cast",
        method="time of both casts; low: while the next work was already queued",
        evidence={
            "n_round_trips_per_step": count,
            "from_type": forth,
            "to_type": back,
            "example_shape": inputs.shape(0),
        },
        anchor=int(casts[first[0]]),
    )


def _working_ops(trace: Trace) -> Ints:
    is_op = trace.kind == Kind.OP
    rows = trace.tree.members
    rows = rows[is_op[rows]]
    rows = rows[~trace.tree.under(is_op)[rows]]
    idle = trace.matches(rows, _NO_WORK)
    # .to() of what has the type already returns it
    idle |= trace.named("aten::to")[rows] & ~trace.tree.above(trace.named("aten::_to_copy"))[rows]
    return rows[~idle]


def _short(dtype: str) -> str:
    return {"float": "float32", "double": "float64"}.get(dtype, dtype.removeprefix("c10::").lower())


def _weight_casts(trace: Trace, casts: Ints) -> Claim | None:
    """Return the claim on weights that inference under autocast casts in every step."""
    steps = trace.steps
    phase = inference_phase(trace)
    if phase is None or not phase.whole or steps.n_steady < 2 or not len(casts):
        return None
    rows = of_weights(trace, casts)
    work = work_of(trace, rows)
    if work is None or work.share < MIN_SHARE:
        return None
    step_of = steps.of_host(rows)
    if steps.share_of_steps(step_of) < 1.0:
        return None
    count = steps.median_count(step_of)
    return work.claim(
        f"{format_count(count, 'weight')} {'is' if count == 1 else 'are'} cast again in every step: {work.text}",
        "cast",
        method="time of the casts; low: while the next work was already queued",
        evidence={"n_weight_casts_per_step": count},
        anchor=int(rows[0]),
        fix=_FIX_WEIGHTS,
    )

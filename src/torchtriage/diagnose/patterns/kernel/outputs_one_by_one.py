"""A norm, a variance or an argmax computes its results one by one.

Looks like: on a CPU ``norm``, ``std``, ``var`` or ``argmax`` (also inside ``F.normalize`` and
    ``F.cosine_similarity``) over few elements along an axis that is not the last, or a norm of 1 or infinity along a
    short last one: several times longer for each element than reading and computing takes.
Slow because: these reductions have no vectorised loop across results. Each result costs about 100 ns however few
    elements it has, where ``sum``, ``amax`` and ``max`` take a tenth to a hundredth of it.
Cost: modelled, from the operators' time: what is above 2.5 ns an element at the low end (variances 6, argmax 4.3),
    above 0.5 ns at the high end; double of both for float64.
Fix: for norms move the axis to the end first, or write a norm of two components as ``hypot``; ``abs().sum(dim)`` for
    norms of 1; ``max(dim).indices`` for ``argmax``; a variance out of ``mean`` and ``sum``.
Leave it when: the tensor is small. Other norms compute a power of each element, and nothing is reported of them; nor on
    a device, where these reductions have kernels of their own.
Source: measured with torch 2.13 (AVX-512, one and two threads): of 2 x 819,200 floats ``norm(dim=0)`` 71 ms, with the
    axis moved to the end 4.8, ``hypot`` 0.9; ``argmax(1)`` of 8 x 3 x 256 x 256 56 ms, ``max(1).indices`` 5.9;
    ``std(1)`` of 8 x 21 x 128 x 128 with its backward pass 32 ms, written out 9.6.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np

from torchtriage.core.trace.op_inputs import Inputs, inputs_of, where_inputs
from torchtriage.core.units import format_count
from torchtriage.diagnose.patterns._op_work import work_of
from torchtriage.diagnose.patterns.base import Claim, Claims, Fix, Ints, Kind, Pattern, Trace

PATTERN = Pattern.of(
    __name__, "KRN073", "A reduction computes its outputs one by one", order=548, needs="ops shapes work"
)
FIX = Fix(
    text="Move the axis to the end before the norm, or write a norm of two components as hypot.",
    code="""length = x.movedim(1, -1).contiguous().norm(dim=-1)  # not x.norm(dim=1)
length = torch.hypot(re, im)  # not torch.stack([re, im]).norm(dim=0)""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.hypot.html",
)
_ABSOLUTE = Fix(
    text="Sum the absolute values, or take the largest.",
    code="""distance = (x - y).abs().sum(-1)  # not (x - y).norm(p=1, dim=-1)
largest = x.abs().amax(-1)  # not x.norm(p=float("inf"), dim=-1)""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.sum.html",
)
_VARIANCE = Fix(
    text="Compute the variance from sums, which are vectorised.",
    code="""centred = x - x.mean(1, keepdim=True)
var = centred.square().sum(1) / (x.shape[1] - 1)  # not x.var(1)""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.var.html",
)
_INDICES = Fix(
    text="Take the indices of the maximum.",
    code="label = logits.max(1).indices  # not logits.argmax(1)",
    link="https://docs.pytorch.org/docs/stable/generated/torch.max.html",
)

MIN_SHARE = 0.05
FEWEST_ELEMENTS = 10_000  # with fewer, the time is that of the call
BEST_NS = 0.5
_NORM = r"^aten::linalg_vector_norm$"
_KINDS = (  # operators, powers of norms, usual ns for each number
    (_NORM, "2", 2.5, "norms", FIX),
    (_NORM, "1 inf", 2.5, "norms", _ABSOLUTE),
    (r"^aten::(std|var)(_mean)?$", "", 6.0, "variances", _VARIANCE),
    (r"^aten::arg(max|min)$", "", 4.3, "places of extremes", _INDICES),
)
_WORDS = {"float": 1, "double": 2}
_MOST = 1 << 50


def find(trace: Trace) -> Claims:
    """Yield a claim for each kind of reduction, over its slow calls."""
    if trace.devices:
        return
    for pattern, powers, usual_ns, what, fix in _KINDS:
        mask = (trace.kind == Kind.OP) & trace.matching(pattern)
        rows = np.flatnonzero(mask)
        rows = rows[trace.tree.nearest(rows, mask) < 0]
        if powers:
            rows = rows[where_inputs(trace, rows, partial(_is_power, powers.split()))]
        yield from _claims(trace, rows, usual_ns, what, fix)


def _claims(trace: Trace, rows: Ints, usual_ns: float, what: str, fix: Fix) -> Iterator[Claim]:
    inputs, which = inputs_of(trace, rows)
    words = np.array([_words(given) for given in inputs] or [0])[which]
    each_ns = trace.dur_ns[rows] / np.maximum(words, 1)
    slow = (words >= FEWEST_ELEMENTS) & (each_ns >= 2 * usual_ns)
    work = work_of(trace, rows[slow]) if slow.any() else None
    if work is None or work.share < MIN_SHARE:
        return
    at = np.searchsorted(rows, work.rows)
    each_ns = each_ns[at]
    longest = int(np.argmax(trace.dur_ns[work.rows]))
    shape = inputs[which[at[longest]]].shape(0)
    yield work.claim(
        f"{what} of {' x '.join(map(str, shape))} numbers take {work.text}: {float(np.median(each_ns)):.0f} ns for each"
        f" number, in {format_count(work.n_per_step, 'call')} {trace.steps.per}",
        "reduction",
        low=1 - usual_ns / each_ns,
        high=1 - BEST_NS / each_ns,
        method="what is above the usual time for each element",
        evidence={"ns_per_element": round(float(np.median(each_ns)), 1), "shape": shape},
        anchor=int(work.rows[longest]),
        fix=fix,
    )


def _is_power(powers: list[str], given: Inputs) -> bool:
    return given.value(1).removesuffix(".") in powers


def _words(given: Inputs) -> int:
    """Return the size of the input in words of 32 bits; 0 without a shape, or of another type."""
    return min(given.numel(0) * _WORDS.get(given.type(0), 0), _MOST) if given.shape(0) else 0

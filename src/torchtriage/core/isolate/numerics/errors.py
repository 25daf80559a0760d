"""How far two ways to run a model are apart, judged by how far eager itself is from the truth.

The truth is eager in float64, of the same weights and inputs. Eager in the model's own dtype, and in bfloat16 where
that is lower, say what rounding does to this model: a mode is held against both, tensor by tensor, by the norm of its
error and by its worst element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

NumericsVerdict = Literal["exact", "rounding", "lower precision", "wrong", "not checked"]

SEVERITY: tuple[NumericsVerdict, ...] = ("exact", "rounding", "lower precision", "wrong")
ROUNDING = 10.0
"""Other orders of summation and fused operations: within so many times eager's own error ..."""
ULPS = 16.0
"""... or so many units of roundoff, where eager happens to be right to the last bit."""
LOWER = 4.0
"""Within so many times the error of bfloat16: a mode that computes in half precision or TF32."""


@dataclass(frozen=True)
class Distance:
    """How far one tensor is from the reference.

    ``error`` : norm of the difference over the norm of the reference; ``worst`` : the largest difference over the
    largest reference value; infinite where one is not finite and the other is. ``square``, ``norm_square``, ``dot``,
    ``own_square`` : for all tensors together. ``at`` : index of the worst element.
    """

    error: float
    worst: float
    at: tuple[int, ...]
    square: float
    norm_square: float
    own_square: float
    dot: float


def distance(answer: Any, reference: Any, scale: float = 0.0) -> Distance:
    """Return how far a tensor is from a reference of the same shape.

    ``answer``, ``reference`` : any dtype; computed in float64. Integers and flags count as numbers. ``scale`` : the
    least norm to hold a difference against, for references that are zero in theory.
    """
    import torch

    # on the host: not every device has float64
    values, truth = (value.detach().cpu().double().flatten() for value in (answer, reference))
    if not len(truth):
        return Distance(0.0, 0.0, (), 0.0, 0.0, 0.0, 0.0)
    fine = torch.isfinite(values) & torch.isfinite(truth)
    # equal infinities and NaN on both sides are agreement
    same = fine | (values == truth) | (values.isnan() & truth.isnan())
    zero = torch.zeros((), dtype=torch.float64)
    difference = torch.where(fine, values - truth, zero).abs()
    expected = torch.where(fine, truth, zero)
    own = torch.where(fine, values, zero)
    square, norm, peak = (float((difference**2).sum()), float((expected**2).sum()), float(expected.abs().max()))
    at = int(difference.argmax())
    error = square**0.5 / max(norm**0.5, scale, 1e-300) if square else 0.0
    worst = float(difference[at]) / max(peak, scale / len(truth) ** 0.5, 1e-300) if square else 0.0
    if not bool(same.all()):
        error = worst = float("inf")
        at = int((~same).nonzero()[0])
    index = tuple(int(i) for i in np.unravel_index(at, tuple(reference.shape)))
    return Distance(error, worst, index, square, norm, float((own**2).sum()), float((own * expected).sum()))


def classify(mode: Distance, eager: Distance, low: Distance | None, roundoff: float) -> NumericsVerdict:
    """Return what an error means that is not zero against eager.

    ``mode``, ``eager``, ``low`` : from the same reference: of the mode, of eager in the same dtype, and of eager in
    bfloat16; None where bfloat16 is not lower or cannot be run. ``roundoff`` : half the distance from 1 to the next
    number of the dtype.

    The dynamo benchmarks of PyTorch accept an error of two to three times that of eager against float64
    (``torch._dynamo.utils.same``) as a root mean square; here each tensor is judged, and its worst element, which
    scatters more: hence the wider factors. A fault smaller than what bfloat16 does to this model cannot be told from
    lower precision by its size.
    """
    if mode.error <= max(ROUNDING * eager.error, ULPS * roundoff) and mode.worst <= max(
        ROUNDING * eager.worst, 4 * ULPS * roundoff
    ):
        return "rounding"
    if low is not None and mode.error <= LOWER * low.error and mode.worst <= LOWER * low.worst:
        return "lower precision"
    return "wrong"


def worst_of(verdicts: Sequence[NumericsVerdict]) -> NumericsVerdict:
    """Return the worst verdict; ``exact`` for none."""
    return SEVERITY[max((SEVERITY.index(verdict) for verdict in verdicts), default=0)]

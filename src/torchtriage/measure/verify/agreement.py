"""Whether two programs compute the same, judged by what runs of one of them differ by.

What repeats itself bit by bit must be repeated by the other program, but for rounding: sums in another order, fused
kernels. What does not repeat itself may differ as much as its own runs do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Floats
from torchtriage.core.units import format_count
from torchtriage.measure.verify.result import ResultAgreement

Kind = Literal["loss", "gradients", "update", "output"]

TOLERANCE: dict[Kind, tuple[float, float]] = {
    "loss": (256, 0.01),
    "output": (1024, 0.02),
    "gradients": (8192, 0.05),
    "update": (40_000, 0.05),
}
"""Rounding that is no difference, in units of the type's own and at most, as a share of the size. An optimizer that
divides by the gradient's size turns the rounding of gradients next to zero into whole steps."""
GROWTH = 1.5
"""By which rounding grows from step to step: training is chaotic."""
SLACK = 2.0
"""How much further apart than runs of one program two programs may be."""
NOTHING = 1e-4
"""Of the largest answer of a kind: what is smaller is rounding of something else."""
NOISE = 1e-5
"""Of the size of all gradients: a tensor's gradient below is rounding."""
SINGLE = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class Answer:
    """One loss, or the sampled gradients, updates or outputs of one step.

    ``step`` : 1 for the first of its kind. ``shapes`` : of each tensor.
    ``values`` : float64[n] of each, NaN where not finite, None where there is no tensor.
    """

    kind: Kind
    step: int
    shapes: tuple[tuple[int, ...], ...]
    values: tuple[Floats | None, ...]
    epsilon: float

    def without(self, tensors: NDArray[np.bool_]) -> Answer:
        """Return the answer with no values of some tensors."""
        values = tuple(None if left_out else some for some, left_out in zip(self.values, tensors, strict=True))
        return replace(self, values=values) if tensors.any() else self

    @property
    def form(self) -> tuple[Any, ...]:
        """What has to be alike before values can be compared."""
        return (self.kind, self.shapes, tuple(values is None for values in self.values))

    @property
    def weights(self) -> Floats:
        """How many values each tensor stands for."""
        return np.array([max(math.prod(shape), 1) for shape in self.shapes], np.float64)

    @property
    def is_finite(self) -> bool:
        """Whether any value is."""
        return any(values is not None and bool(np.isfinite(values).any()) for values in self.values)

    @property
    def size(self) -> float:
        """The root mean square over all tensors; values that are not finite left out."""
        squares = [0.0 if values is None else float(np.nan_to_num(values**2).mean()) for values in self.values]
        weights = self.weights
        return float(np.sqrt((np.array(squares) * weights).sum() / max(weights.sum(), 1)))


def read_answers(document: dict[str, Any]) -> tuple[Answer, ...]:
    """Return what one process noted, as ``core/record/output_digest.py`` wrote it."""
    epsilon = max(document["epsilon"], SINGLE)
    kinds = [event["kind"] for event in document["events"]]
    return tuple(
        Answer(
            event["kind"],
            kinds[: place + 1].count(event["kind"]),
            tuple(tuple(tensor["shape"]) for tensor in event["tensors"]),
            tuple(
                None if tensor["values"] is None else np.array(tensor["values"], np.float64)
                for tensor in event["tensors"]
            ),
            epsilon,
        )
        for place, event in enumerate(document["events"])
    )


def agreement(
    before: Sequence[tuple[Answer, ...]], after: Sequence[tuple[Answer, ...]], whole: tuple[bool, bool] = (True, True)
) -> ResultAgreement:
    """Say whether both programs compute the same.

    ``before``, ``after`` : what each run of them noted, in order. ``whole`` : whether their runs went on to their own
    end; else more might have been noted.
    """
    before, after = ([_judged(run, [*before, *after]) for run in side] for side in (before, after))
    n = min(map(len, [*before, *after]))
    if not n:
        reason = "in one program nothing trains and no model is called"
        return ResultAgreement("nothing", "not compared", 0, None, None, reason)
    of: Any = {"output": "outputs", "loss": "losses"}.get(before[0][0].kind, "steps")
    lengths = [{len(run) for run in side} for side in (before, after)]
    # a program whose own runs differ in length, with a time budget perhaps, has none that the other must keep to
    settled = all(len(counts) == 1 for counts in lengths) and lengths[0] != lengths[1]
    uneven = settled and whole[max(lengths[1]) < max(lengths[0])]
    if uneven and of == "outputs":
        reason = f"the models are called a different number of times: {_lengths(before[0], after[0])}"
        return ResultAgreement(of, "not compared", 0, None, None, reason)
    worst = own_worst = 0.0
    repeats = True
    n_finite = 0
    largest: dict[Kind, float] = {}
    for answer in before[0]:
        largest[answer.kind] = max(largest.get(answer.kind, 0.0), answer.size)
    for place in range(n):
        old, new = [run[place] for run in before], [run[place] for run in after]
        noise = _noise(before[0], place)
        where = f"{old[0].kind} {old[0].step}"
        forms = {answer.form for answer in (*old, *new)}
        if len(forms) > 1:
            if of == "outputs":
                reason = "the programs call their models differently: outputs have different shapes"
                return ResultAgreement(of, "not compared", place, None, None, reason)
            return ResultAgreement(of, "differ", place + 1, None, None, _form_reason(old[0], new[0]), where)
        if not all(_finite_alike(old[0], answer) for answer in (*old, *new)):
            reason = "some values are not finite in only one program"
            return ResultAgreement(of, "differ", place + 1, None, None, reason, where)
        n_finite += old[0].is_finite
        old, new = ([answer.without(noise) for answer in side] for side in (old, new))
        floor = NOTHING * largest[old[0].kind]
        same_program = [pair for side in (old, new) for pair in combinations(side, 2)]
        units, most = TOLERANCE[old[0].kind]
        allowed = min(units * old[0].epsilon * GROWTH ** (old[0].step - 1), most)
        for distance in (_apart, _sizes_apart):
            own = max((distance(*pair, floor) for pair in same_program), default=0.0)
            apart = min(distance(*pair, floor) for pair in product(old, new))
            if apart > max(allowed, SLACK * own):
                return ResultAgreement(of, "differ", place + 1, apart, own, _largest(old[0], new[0]), where)
            worst, own_worst = max(worst, apart), max(own_worst, own)
            repeats = repeats and apart <= allowed
    if uneven:
        longest = max(*before, *after, key=len)
        where = f"{longest[n].kind} {longest[n].step}"
        return ResultAgreement(of, "differ", n + 1, None, None, _lengths(before[0], after[0]), where)
    if not n_finite:
        empty = all(values is None for answer in before[0][:n] for values in answer.values)
        reason = f"the first {of} hold no values" if empty else "none of the values are finite"
        return ResultAgreement(of, "not compared", 0, None, None, reason)
    return ResultAgreement(of, "same" if repeats else "within its own spread", n_finite, worst, own_worst)


def _judged(run: tuple[Answer, ...], runs: Sequence[tuple[Answer, ...]]) -> tuple[Answer, ...]:
    """Return the answers that are compared: without losses where steps say more, and losses where only some can say.

    A batch in one piece or in four, a division before or after the sum: the losses are others, the gradients are not.
    An optimizer that is written out in the script has no steps that can be seen.
    """
    steps = [any(answer.kind == "update" for answer in each) for each in runs]
    left_out = ("loss",) if all(steps) else ("gradients", "update") if any(steps) else ()
    return tuple(answer for answer in run if answer.kind not in left_out)


def _noise(answers: Sequence[Answer], place: int) -> NDArray[np.bool_]:
    """Return the tensors of an update whose gradient is rounding, such as a bias before a batch norm.

    Adam makes whole steps of it, in directions that mean nothing.
    """
    update = answers[place]
    gradients = answers[place - 1] if place else update
    none = np.zeros(len(update.shapes), bool)
    if (update.kind, gradients.kind) != ("update", "gradients") or update.shapes != gradients.shapes:
        return none
    least = NOISE * gradients.size
    sizes = [0.0 if values is None else float(np.sqrt((values**2).mean())) for values in gradients.values]
    return none | (np.array(sizes) < least)


def _lengths(old: tuple[Answer, ...], new: tuple[Answer, ...]) -> str:
    what = {"output": "outputs", "loss": "losses"}.get(old[0].kind, "gradients and updates")
    return f"{len(old)} of the first {what} before, {len(new)} after"


def _form_reason(old: Answer, new: Answer) -> str:
    if old.kind != new.kind:
        return f"one continues with {old.kind}, the other with {new.kind}"
    if old.shapes != new.shapes:
        return f"{old.kind} of {format_count(len(old.shapes), 'tensor')} and of {len(new.shapes)}, of different shapes"
    return f"{old.kind} are missing in one program"


def _finite_alike(old: Answer, new: Answer) -> bool:
    return all(
        first is None or other is None or bool((np.isnan(first) == np.isnan(other)).all())
        for first, other in zip(old.values, new.values, strict=True)
    )


def _apart(old: Answer, new: Answer, floor: float) -> float:
    """Return the size of the difference as a share of the larger answer's."""
    pairs = zip(old.values, new.values, strict=True)
    gaps = tuple(None if first is None or other is None else first - other for first, other in pairs)
    gap = replace(old, values=gaps).size
    scale = max(old.size, new.size, floor)
    return gap / scale if scale else 0.0


def _sizes_apart(old: Answer, new: Answer, floor: float) -> float:
    """Return the logarithm of the ratio of two sizes: nearly the share by which they differ, without an end."""
    one, other = max(old.size, floor), max(new.size, floor)
    return abs(math.log(one / other)) if one and other else 0.0


def _largest(old: Answer, new: Answer) -> str:
    """Return which tensor differs most, where there are several."""
    if len(old.shapes) < 2:
        return ""
    pairs = zip(old.values, new.values, old.weights, strict=True)
    gaps = [
        0.0 if first is None or other is None else float(np.nan_to_num((first - other) ** 2).mean()) * weight
        for first, other, weight in pairs
    ]
    place = int(np.argmax(gaps))
    shape = " x ".join(map(str, old.shapes[place])) or "scalar"
    return f"most in tensor {place + 1} of {len(gaps)} ({shape})"

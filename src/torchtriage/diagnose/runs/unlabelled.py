"""Logits of positions that have no label: what the loss is given, and what is computed for it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from torchtriage.core.finding import Finding, Fix, Frame, Place
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.op_inputs import Inputs, inputs_of
from torchtriage.core.units import format_ms, format_share
from torchtriage.diagnose.patterns._op_work import work_of
from torchtriage.diagnose.runs.account import SampledLoop
from torchtriage.diagnose.runs.causes import Cause
from torchtriage.diagnose.runs.costs import WORTH, severity_of, share_cost
from torchtriage.diagnose.runs.run_folder import Recording

UNLABELLED = Cause(
    "KRN105",
    "unlabelled-positions",
    "kernel",
    "Logits are computed for positions without a label",
    "operators",
    "logits of all positions and their loss",
    Fix(
        "Pick the positions with a label before the last layer.",
        "picked = labels != -100\nloss = F.cross_entropy(head(hidden[picked]), labels[picked])",
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.cross_entropy.html",
    ),
    gain=(0.6, 1.0),
    looks="``cross_entropy`` over 256 classes or more, of whose labels at least half are ``ignore_index`` (masked"
    " language models, prompts of fine-tuning, padding), and operators with as many rows and classes.",
    slow="the layer in front of the loss is the widest of the model, and its products, the softmax and their backward"
    " passes are done for positions that nobody asks for.",
    leave="the logits of all positions are used beside the loss.",
    cost="the time of the operators with that many rows and classes, times the share of positions without a label: 60 %"
    " of it at the low end.",
)
_OPERATORS = r"^aten::(linear|addmm|mm|matmul|cross_entropy_loss|nll_loss\w*|_?log_softmax\w*)$"


def unlabelled_positions(
    recording: Recording, traces: Sequence[Trace], loop: SampledLoop, step_ms: float
) -> Iterator[Finding]:
    """Yield a finding where most positions of a loss have no label; ``step_ms`` is what costs are of."""
    trace = traces[-1] if traces else None
    for found in recording.measured.get("unlabelled") or ():
        if trace is None or trace.devices or not trace.has_shapes:
            return
        share = _share(trace, found["rows"], found["classes"])
        low, high = (gain * share * found["share"] for gain in UNLABELLED.gain)
        if high < WORTH:
            continue
        frame = Frame(
            recording.short(found["file"]), found["line"], found["function"], exact=True, lines=(found["line"],)
        )
        yield UNLABELLED.finding(
            severity=severity_of(low, high),
            certainty="likely",
            message=f"{format_share(found['share'])} of {found['rows']:,} positions have no label; the logits of all,"
            f" over {found['classes']:,} classes, their loss and gradients take {format_ms(share * step_ms)} of"
            f" {format_ms(step_ms)}",
            place=Place(frame=frame, stack=(frame,)),
            cost=share_cost(low, high, step_ms, share, "operators with these rows, times the share without", loop, "C"),
            evidence={"share_without_label": round(found["share"], 4), "n_classes": found["classes"]},
            n_events=1,
        )
        return


def _share(trace: Trace, n_rows: int, n_classes: int) -> float:
    """Return the share of the step in operators on so many rows and classes."""
    mask = (trace.kind == Kind.OP) & trace.matching(_OPERATORS)
    rows = np.flatnonzero(mask)
    rows = rows[trace.tree.nearest(rows, mask) < 0]
    if not len(rows):
        return 0.0
    inputs, which = inputs_of(trace, rows)
    if any(_is_as_wide(given, n_rows, n_classes) for given in inputs):
        return 0.0  # which of the products are the logits' shapes do not tell
    fits = np.array([_fits(given, n_rows, n_classes) for given in inputs])[which]
    work = work_of(trace, rows[fits]) if fits.any() else None
    return min(work.share, 1.0) if work is not None else 0.0


def _is_as_wide(given: Inputs, n_rows: int, n_classes: int) -> bool:
    """Return whether a layer's input is as wide as there are classes."""
    first, weight = given.shape(0), given.shape(1)
    return len(weight) == 2 and first[-1:] == [n_classes] and math.prod(first[:-1]) == n_rows and weight[0] == weight[1]


def _fits(given: Inputs, n_rows: int, n_classes: int) -> bool:
    shapes = [given.shape(at) for at in range(3)]
    if any(n_classes in shape and math.prod(shape) == n_rows * n_classes for shape in shapes):
        return True
    # a layer, from its input to its weight
    weight = next((shape for shape in shapes if len(shape) == 2 and n_classes in shape), [])
    return bool(weight) and any(
        len(shape) >= 2 and shape is not weight and shape[-1] in weight and math.prod(shape[:-1]) == n_rows
        for shape in shapes
    )

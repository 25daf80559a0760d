"""Batch norm runs as an operator of its own after each convolution.

Looks like: in inference, a convolution followed by ``aten::batch_norm`` with stored statistics, and
    often by ``relu``; together 5 % of the kernel time (on a CPU, of the step). In training on a
    GPU, a convolution that adds a bias which the batch norm after it subtracts again.
Slow because: batch norm with stored statistics is one multiplication and one addition per channel,
    which the convolution's weights can hold; on its own it reads and writes the whole activation.
Cost: in inference the time of the batch norms (and, at the high end, of the activations after
    them, which a compiler fuses too); in training the kernels that add the bias. At the low end
    only what the device can make up for, because the next kernel is waiting.
Fix: fold the batch norm into the convolution, or compile the model; in training, ``bias=False``.
Leave it when: the statistics are still being updated, or the convolution's output is used elsewhere
    as well.
Source: PyTorch documentation, ``torch.nn.utils.fusion.fuse_conv_bn_eval``, and the performance
    tuning guide, "Disable bias for convolutions directly followed by a batch norm".
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from torchtriage.finding import Fix
from torchtriage.patterns._inputs import Inputs, inputs_of
from torchtriage.patterns._phases import inference_phase
from torchtriage.patterns._runs import outer_ops
from torchtriage.patterns._work import work_at, work_of
from torchtriage.patterns.base import Claim, Edit, Pattern
from torchtriage.trace import Trace
from torchtriage.units import format_count, format_ns, format_share

PATTERN = Pattern(
    code="KRN026",
    name="conv-bn-unfolded",
    family="kernel",
    title="Batch norm is not folded into the convolution before it",
    order=540,
    needs=frozenset({"ops", "shapes", "work"}),
)

FIX = Fix(
    text="Fold each batch norm into its convolution once, after eval(), or compile the model.",
    code="""from torch.nn.utils.fusion import fuse_conv_bn_eval
model.eval()
block.conv, block.bn = fuse_conv_bn_eval(block.conv, block.bn), torch.nn.Identity()""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.fuse_conv_bn_eval.html",
)
_FIX_BIAS = Fix(
    text="Leave out the bias: the batch norm subtracts the mean, and with it any constant.",
    code="conv = torch.nn.Conv2d(in_channels, out_channels, 3, bias=False)",
    link="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#disable-bias-for-convolutions-directly-followed-by-a-batch-norm",
)

Ints = NDArray[np.int64]

MIN_SHARE = 0.05
"""Of the kernel time (catalogue 26)."""
MIN_BIAS_SHARE = 0.01
_CONVOLUTION = r"^aten::(conv\dd|convolution)$"
_ACTIVATION = r"^aten::(relu_?|leaky_relu_?|hardtanh_?|hardswish_?|silu_?|clamp_?)$"
_ADDS = r"^aten::add_?$"


def find(trace: Trace) -> Iterator[Claim]:
    """Yield at most one claim: for inference, or for the biases of training."""
    if not trace.devices and not trace.is_host_only:
        return
    ops = outer_ops(trace)
    conv = trace.matching(_CONVOLUTION)[ops]
    norm = trace.named("aten::batch_norm")[ops]
    pairs = np.flatnonzero(conv[:-1] & norm[1:])
    if not len(pairs):
        return
    phase = inference_phase(trace)
    if phase is None:
        yield from _biases(trace, ops[pairs], ops[pairs + 1])
        return
    stored = _with_statistics(trace, ops[pairs + 1]) & phase.rows[ops[pairs + 1]]
    pairs = pairs[stored]
    after = np.minimum(pairs + 2, len(ops) - 1)
    follows = after[(after == pairs + 2) & trace.matching(_ACTIVATION)[ops[after]]]
    yield from _unfolded(trace, ops[pairs + 1], ops[follows])


def _with_statistics(trace: Trace, norms: Ints) -> NDArray[np.bool_]:
    """Return bool[k]: batch norms that use stored statistics."""
    inputs, which = inputs_of(trace, norms)
    table = np.array([one.value(5) == "False" for one in inputs], dtype=bool)
    return table[which]


def _unfolded(trace: Trace, norms: Ints, activations: Ints) -> Iterator[Claim]:
    steps = trace.steps
    work = work_of(trace, np.concatenate([norms, activations]))
    folded = work_of(trace, norms)
    if work is None or folded is None or work.share < MIN_SHARE:
        return
    is_norm = np.isin(work.op, norms)
    count = round(int(steps.in_steady(steps.of_host(norms)).sum()) / steps.n_steady, 2)
    shape = inputs_of(trace, norms[[int(np.argmax(trace.dur_ns[norms]))]])[0][0].shape(0)
    yield Claim(
        message=(
            f"batch norm after a convolution takes {format_ns(folded.per_step_ns)} {steps.per} in"
            f" {format_count(count, 'call')}, {format_share(folded.share)} of {work.of}, although"
            " the statistics are fixed"
        ),
        certainty="likely",
        rows=work.rows,
        spans=work.spans,
        gain_low=np.where(is_norm, work.free, 0.0),
        gain_high=1.0,
        time_class=work.time_class,
        basis="bounded",
        method="time of the batch norms (low), and of the activations after them (high)",
        evidence={
            **folded.evidence("batch_norm"),
            "with_activations_ms_per_step": round(work.per_step_ns / 1e6, 6),
            "n_batch_norms_per_step": count,
            "n_activations_per_step": round(
                int(steps.in_steady(steps.of_host(activations)).sum()) / steps.n_steady, 2
            ),
            "largest_shape": shape,
        },
        anchor=int(norms[np.argmax(trace.dur_ns[norms])]),
        edits=(
            Edit("drop", folded.gone),
            Edit("shrink", work.rows[~is_norm], factor=1.0, best=0.0),
        ),
    )


def _biases(trace: Trace, convolutions: Ints, norms: Ints) -> Iterator[Claim]:
    """Yield the claim on biases a batch norm in training undoes; a CPU adds them for nothing."""
    if not trace.devices:
        return
    inputs, which = inputs_of(trace, convolutions)
    biased = np.array([_has_bias(one) for one in inputs], dtype=bool)[which]
    inputs, which = inputs_of(trace, norms)
    biased &= np.array([one.value(5) == "True" for one in inputs], dtype=bool)[which]
    inside = np.zeros(len(trace), dtype=bool)
    inside[convolutions[biased]] = True
    device = trace.devices[0]
    adds = trace.tree.under(inside) & trace.matching(_ADDS)
    op = trace.links.op[device.rows]
    at = np.flatnonzero((op >= 0) & adds[op])
    work = work_at(trace, at, op[at].astype(np.int64))
    if work is None or work.share < MIN_BIAS_SHARE:
        return
    steps = trace.steps
    count = round(
        int(steps.in_steady(steps.of_host(convolutions[biased])).sum()) / steps.n_steady, 2
    )
    yield Claim(
        message=(
            f"adding biases that a batch norm takes away takes {format_ns(work.per_step_ns)}"
            f" {steps.per} in {format_count(count, 'convolution')}, {format_share(work.share)} of"
            f" {work.of}"
        ),
        certainty="certain",
        rows=work.rows,
        spans=work.spans,
        gain_low=work.free,
        gain_high=1.0,
        time_class=work.time_class,
        basis="bounded",
        method="time of the kernels that add the bias; what its gradient takes is not counted",
        evidence={**work.evidence("bias"), "n_biased_convolutions_per_step": count},
        anchor=int(convolutions[biased][0]),
        fix=_FIX_BIAS,
        edits=(Edit("drop", work.gone),),
    )


def _has_bias(inputs: Inputs) -> bool:
    return len(inputs.shape(2)) == 1

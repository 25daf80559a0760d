"""Batch norm runs as an operator of its own after each convolution.

Looks like: in inference, a convolution followed by ``aten::batch_norm`` with stored statistics, and often by ``relu``;
    together 5 % of the kernel time (on a CPU, of the step); without recorded shapes, where the name of the batch norm's
    kernel says that the statistics are stored ones. In training on a GPU, with shapes, a convolution that adds a bias
    which the batch norm after it subtracts again.
Slow because: batch norm with stored statistics is one multiplication and one addition per channel, which the
    convolution's weights can absorb; on its own it reads and writes the whole activation.
Cost: in inference the time of the batch norms (and, at the high end, of the activations after them, which a compiler
    fuses too); in training the kernels that add the bias. At the low end only the part the device can recover because
    the next kernel is already queued; on a CPU nothing, where folding gave between -20 and 13 % of a small network.
Fix: fold the batch norm into the convolution, or compile the model; in training, ``bias=False``.
Leave it when: the statistics are still being updated, or the convolution's output is used elsewhere as well.
Source: PyTorch documentation, ``torch.nn.utils.fusion.fuse_conv_bn_eval``, and the performance tuning guide, "Disable
    bias for convolutions directly followed by a batch norm".
"""

import numpy as np

from torchtriage.core.trace.inference_phase import inference_phase
from torchtriage.core.trace.op_inputs import inputs_of, where_inputs
from torchtriage.core.trace.op_runs import outer_ops
from torchtriage.core.units import format_count, format_ns, format_share
from torchtriage.diagnose.patterns._op_work import work_at, work_of
from torchtriage.diagnose.patterns.base import Claim, Claims, Edit, Fix, Ints, Kind, Pattern, Trace, given

PATTERN = Pattern.of(
    __name__,
    "KRN026",
    "Batch norm is not folded into the convolution before it",
    order=540,
    needs="ops statistics work",
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

MIN_SHARE = 0.05  # of the kernel time (catalogue 26)
MIN_BIAS_SHARE = 0.01
_CONVOLUTION = r"^aten::(conv\dd|convolution)$"
_ACTIVATION = r"^aten::(relu_?|leaky_relu_?|hardtanh_?|hardswish_?|silu_?|clamp_?)$"
_ADDS = r"^aten::add_?$"
_STORED_KERNEL = r"bn_fw_inf_|BatchNormFwdInfer"


def find(trace: Trace) -> Claims:
    """Yield at most one claim: for inference, or for the biases of training."""
    ops = outer_ops(trace)
    conv = trace.matches(ops, _CONVOLUTION)
    norm = trace.named("aten::batch_norm")[ops]
    pairs = np.flatnonzero(conv[:-1] & norm[1:])
    if not len(pairs):
        return
    phase = inference_phase(trace)
    if phase is None:
        yield from _biases(trace, ops[pairs], ops[pairs + 1])
        return
    if trace.has_shapes:
        stored = where_inputs(trace, ops[pairs + 1], lambda inputs: inputs.value(5) == "False")
    else:
        launching = trace.links.op[trace.matching(_STORED_KERNEL, Kind.KERNEL)]
        stored = trace.tree.above(trace.mask_of(launching[launching >= 0]))[ops[pairs + 1]]
    stored &= phase.rows[ops[pairs + 1]]
    pairs = pairs[stored]
    after = np.minimum(pairs + 2, len(ops) - 1)
    follows = after[(after == pairs + 2) & trace.matches(ops[after], _ACTIVATION)]
    yield from _unfolded(trace, ops[pairs + 1], ops[follows])


def _unfolded(trace: Trace, norms: Ints, activations: Ints) -> Claims:
    steps = trace.steps
    work = work_of(trace, np.concatenate([norms, activations]))
    folded = work_of(trace, norms)
    if work is None or folded is None or work.share < MIN_SHARE:
        return
    # what a device reads and writes once less is saved; a CPU's convolution may be slower with the bias it gets
    sure = np.isin(work.op, norms) & bool(trace.devices)
    count = steps.mean_count(steps.of_host(norms))
    shape = inputs_of(trace, norms[[int(np.argmax(trace.dur_ns[norms]))]])[0][0].shape(0)
    yield Claim(
        message=f"batch norm after a convolution takes {format_ns(folded.per_step_ns)} {steps.per} in"
        f" {format_count(count, 'call')}, {format_share(folded.share)} of {work.of}, although the statistics are"
        " fixed",
        certainty="likely",
        rows=work.rows,
        spans=work.spans,
        gain_low=np.where(sure, work.free, 0.0),
        time_class=work.time_class,
        method="time of the batch norms (low), and of the activations after them (high)",
        evidence={
            **folded.evidence("batch_norm"),
            "with_activations_ms_per_step": round(work.per_step_ns / 1e6, 6),
            "n_batch_norms_per_step": count,
            "n_activations_per_step": steps.mean_count(steps.of_host(activations)),
            **given(largest_shape=shape),
        },
        anchor=trace.longest(norms),
        edits=(
            *((Edit("drop", folded.gone),) if trace.devices else ()),
            Edit("shrink", work.rows[~sure], factor=1.0, best=0.0),
        ),
    )


def _biases(trace: Trace, convolutions: Ints, norms: Ints) -> Claims:
    """Yield the claim on biases a batch norm in training undoes; a CPU adds them for nothing."""
    if not trace.devices:
        return
    biased = where_inputs(trace, convolutions, lambda inputs: len(inputs.shape(2)) == 1)
    biased &= where_inputs(trace, norms, lambda inputs: inputs.value(5) == "True")
    inside = trace.mask_of(convolutions[biased])
    device = trace.devices[0]
    adds = trace.tree.under(inside) & trace.matching(_ADDS)
    op = trace.links.op[device.rows]
    at = np.flatnonzero((op >= 0) & adds[op])
    work = work_at(trace, at, op[at].astype(np.int64))
    if work is None or work.share < MIN_BIAS_SHARE:
        return
    steps = trace.steps
    count = steps.mean_count(steps.of_host(convolutions[biased]))
    yield work.claim(
        message=f"adding biases that a batch norm cancels takes {format_ns(work.per_step_ns)} {steps.per} in"
        f" {format_count(count, 'convolution')}, {format_share(work.share)} of {work.of}",
        certainty="certain",
        what="bias",
        method="time of the kernels that add the bias; what its gradient takes is not counted",
        evidence={"n_biased_convolutions_per_step": count},
        anchor=int(convolutions[biased][0]),
        fix=_FIX_BIAS,
    )

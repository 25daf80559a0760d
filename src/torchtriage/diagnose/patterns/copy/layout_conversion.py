"""Images are transposed between NCHW and NHWC around the convolutions.

Looks like: kernels that only change the layout (``nchwToNhwc``, ``nhwcToNchw``, MIOpen's ``batched_transpose``),
    copies by ``contiguous`` inside a convolution, and ``contiguous`` calls between two layers that undo NHWC; together
    3 % of the kernel time (on a CPU, of the step).
Slow because: tensor cores and CPU kernels want NHWC, so the library transposes inputs, weights and outputs of every
    convolution, and each time the whole tensor travels through memory.
Cost: the time of the conversions; at the low end only the part that remains once the next kernel is queued, and on a
    CPU only copies that undo NHWC: models that convert nothing else were 0 to 25 % faster with channels_last there.
    What the convolutions themselves gain is not counted.
Fix: keep model and inputs in the channels_last format from end to end; convolutions over one axis made two-dimensional,
    as that format needs four dimensions.
Leave it when: the conversions occur only at the two ends of the model, or an operator in between supports only NCHW:
    then each one needs a conversion anyway.
Source: PyTorch tutorial "Channels Last Memory Format in PyTorch"; measured: 9.2 % of the kernel time of a ResNet on
    A100, 16 % on MI300X.
"""

import re

import numpy as np

from torchtriage.core import fixes
from torchtriage.core.names import short_name
from torchtriage.core.trace.matrix_products import is_shape
from torchtriage.core.trace.op_inputs import Inputs, inputs_of, where_inputs
from torchtriage.core.units import format_count, format_ns, format_share
from torchtriage.diagnose.patterns._op_work import Work, work_at, work_of
from torchtriage.diagnose.patterns.base import Claims, Fix, Ints, Kind, Mask, Pattern, Trace, given, longest_names

PATTERN = Pattern.of(__name__, "CPY011", "Images are transposed around the convolutions", order=530, needs="sizes")
FIX = fixes.CHANNELS_LAST
_FIX_1D = Fix(
    text="channels_last needs four dimensions: make the convolutions over one axis two-dimensional and keep activations"
    " in that form between them. Or try torch.compile.",
    code="""conv = nn.Conv2d(64, 64, (1, 3), padding=(0, 1))
model = model.to(memory_format=torch.channels_last)
x = x.unsqueeze(2).to(memory_format=torch.channels_last)  # once, before them all""",
    link=FIX.link,
)

MIN_SHARE = 0.03  # of the kernel time (catalogue 11); the two ends of a model that is converted take 0.2-2 %
# in lower case, as names of kernels are long: without regard to case takes several times as long
_CONVERSION = re.compile(
    r"nchwtonhwc|nhwctonchw|^batched_transpose_\d|transpose_readwrite_alignment|transpose_(?:nchw2cnhw|cnhw2nchw)"
)
_ONE_AXIS = ("aten::conv1d", "aten::conv_transpose1d")
_CONVOLUTION = r"^aten::\w*conv\w*$"
NCHW = "0"  # `torch.contiguous_format` as a concrete input


def find(trace: Trace) -> Claims:
    """Yield one claim over all conversions."""
    work = _conversions(trace)
    if work is None or work.share < MIN_SHARE:
        return
    steady = trace.steps.in_steady(trace.steps.of_work(work.rows) if trace.devices else trace.steps.of_host(work.rows))
    top = list(map(short_name, longest_names(trace, work.rows[steady])))
    what, plural = ("kernel", "kernels") if trace.devices else ("copy", "copies")
    undone = None if trace.devices else np.isin(work.rows, _undoing(trace)).astype(np.float64)
    undone = None if undone is not None and undone.all() else undone
    op = work.op[[int(np.argmax(trace.dur_ns[work.rows]))]]
    shape = inputs_of(trace, op)[0][0].shape(0) if op[0] >= 0 else []
    yield work.claim(
        f"transposing between NCHW and NHWC takes {format_ns(work.per_step_ns)} {trace.steps.per} in"
        f" {format_count(work.n_per_step, what, plural)}, {format_share(work.share)} of {work.of}",
        "conversion",
        low=undone,
        method="time of the conversions; low: while the next work was already queued"
        if undone is None
        else "time of the conversions; low: copies that undo NHWC",
        evidence={"n_conversions_per_step": work.n_per_step, "top_conversions": top, **given(largest_shape=shape)},
        fix=_FIX_1D if _mostly_one_axis(trace, work) else FIX,
    )


def _mostly_one_axis(trace: Trace, work: Work) -> bool:
    """Return whether half of the time goes to convolutions over one axis."""
    is_op = trace.kind == Kind.OP
    backward = trace.where_detail(
        "dims",
        lambda dims: len(dims) > 2 and is_shape(dims[2]) and len(dims[2]) == 3,
        trace.named("aten::convolution_backward") & is_op,
    )
    inside = trace.tree.nearest(work.op, trace.named(*_ONE_AXIS) & is_op | backward) >= 0
    dur = trace.dur_ns[work.rows]
    return 2 * int(dur[inside & (work.op >= 0)].sum()) > int(dur.sum())


def _conversions(trace: Trace) -> Work | None:
    """Return the conversions: kernels by name, and copies by what they copy."""
    copies = _copies(trace)
    if not trace.devices:
        return work_of(trace, copies)
    device = trace.devices[0]
    named = trace.rows_where(device.rows, lambda name: _CONVERSION.search(name.lower()))
    inside = trace.mask_of(copies)
    call = trace.links.call[device.rows]
    copied = (call >= 0) & np.append(trace.tree.under(inside), False)[call]
    return work_at(trace, np.flatnonzero(named | copied))


def _copies(trace: Trace) -> Ints:
    """Return the ``contiguous`` ops that copy inside a convolution, or turn NHWC back to NCHW."""
    convolution = trace.matching(_CONVOLUTION, Kind.OP)
    if not convolution.any():
        return np.empty(0, np.int64)
    inside = np.flatnonzero(_copying(trace) & trace.tree.under(convolution))
    return np.concatenate([inside, _undoing(trace)])


def _undoing(trace: Trace) -> Ints:
    """Return the ``contiguous`` ops between two layers that turn NHWC back to NCHW."""
    alone = np.flatnonzero(_copying(trace) & ~trace.tree.under(trace.kind == Kind.OP))
    return alone[where_inputs(trace, alone, _undoes_nhwc)]


def _copying(trace: Trace) -> Mask:
    copying: Mask = (trace.kind == Kind.OP) & trace.named("aten::contiguous")
    copying &= trace.tree.above(trace.named("aten::clone", "aten::copy_"))
    return copying


def _undoes_nhwc(inputs: Inputs) -> bool:
    """Return whether ``contiguous`` finds an image in NHWC and is asked for NCHW."""
    shape, strides = inputs.shape(0), inputs.strides[0] if inputs.strides else None
    # with one channel or one pixel both layouts are the same
    return (
        len(shape) == 4
        and min(shape[1], shape[3]) > 1
        and inputs.value(1) == NCHW
        and isinstance(strides, list)
        and strides[1:2] == [1]
    )

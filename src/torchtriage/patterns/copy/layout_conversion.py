"""Images are transposed between NCHW and NHWC around the convolutions.

Looks like: kernels that only change the layout (``nchwToNhwc``, ``nhwcToNchw``, MIOpen's
    ``batched_transpose``), copies by ``contiguous`` inside a convolution, and ``contiguous`` calls
    between two layers that undo NHWC; together 3 % of the kernel time (on a CPU, of the step).
Slow because: tensor cores and CPU kernels want NHWC, so the library transposes inputs, weights and
    outputs of every convolution, and each time the whole tensor travels through memory.
Cost: the time of the conversions; at the low end only what is left of them once the next kernel is
    waiting in the queue. What the convolutions themselves gain is not counted.
Fix: keep model and inputs in the channels_last format from end to end.
Leave it when: the conversions stand at the two ends of the model only, or an operator in between
    knows NCHW alone: then each one costs a conversion anyway.
Source: PyTorch tutorial "Channels Last Memory Format in PyTorch"; measured: 9.2 % of the kernel
    time of a ResNet on A100, 16 % on MI300X.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtriage.finding import Fix
from torchtriage.names import short_name
from torchtriage.patterns._inputs import Inputs, inputs_of
from torchtriage.patterns._work import Work, work_at, work_of
from torchtriage.patterns.base import Claim, Edit, Pattern
from torchtriage.trace import Kind, Trace
from torchtriage.units import format_count, format_ns, format_share

PATTERN = Pattern(
    code="CPY011",
    name="layout-conversion",
    family="copy",
    title="Images are transposed around the convolutions",
    order=530,
    needs=frozenset({"sizes"}),
)

FIX = Fix(
    text="Keep weights and activations in the channels_last format.",
    code="""model = model.to(memory_format=torch.channels_last)
x = x.to(memory_format=torch.channels_last)  # once, where the batch is moved""",
    link="https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html",
)

Ints = NDArray[np.int64]

MIN_SHARE = 0.03
"""Of the kernel time (catalogue 11); the two ends of a model that is converted take 0.2-2 %."""
_CONVERSION = (
    r"(?i)nchwToNhwc|nhwcToNchw|^batched_transpose_\d|transpose_readWrite_alignment"
    r"|transpose_(NCHW2CNHW|CNHW2NCHW)"
)
_CONVOLUTION = r"^aten::\w*conv\w*$"
NCHW = "0"
"""``torch.contiguous_format`` as a concrete input."""


def find(trace: Trace) -> Iterator[Claim]:
    """Yield one claim over all conversions."""
    work = _conversions(trace)
    if work is None or work.share < MIN_SHARE:
        return
    steady = trace.steps.in_steady(
        trace.steps.of_work(work.rows) if trace.devices else trace.steps.of_host(work.rows)
    )
    names, where = np.unique(trace.name[work.rows[steady]], return_inverse=True)
    by_name = np.bincount(where, weights=trace.dur_ns[work.rows[steady]])
    top = [short_name(trace.names[names[one]]) for one in np.argsort(-by_name)[:3].tolist()]
    count = round(int(steady.sum()) / trace.steps.n_steady, 2)
    what, plural = ("kernel", "kernels") if trace.devices else ("copy", "copies")
    longest = int(np.argmax(trace.dur_ns[work.rows]))
    yield Claim(
        message=(
            f"transposing between NCHW and NHWC takes {format_ns(work.per_step_ns)}"
            f" {trace.steps.per} in {format_count(count, what, plural)},"
            f" {format_share(work.share)} of {work.of}"
        ),
        certainty="likely",
        rows=work.rows,
        spans=work.spans,
        gain_low=work.free,
        gain_high=1.0,
        time_class=work.time_class,
        basis="bounded",
        method="time of the conversions; low: what of it the queue can make up for",
        evidence={
            **work.evidence("conversion"),
            "n_conversions_per_step": count,
            "top_conversions": top,
            **_shape(trace, int(work.op[longest])),
        },
        anchor=int(work.op[longest] if work.op[longest] >= 0 else work.rows[longest]),
        edits=(Edit("drop", work.gone),),
    )


def _conversions(trace: Trace) -> Work | None:
    """Return the conversions: kernels by name, and copies by what they copy."""
    copies = _copies(trace)
    if not trace.devices:
        return work_of(trace, copies)
    device = trace.devices[0]
    named = trace.matching(_CONVERSION) & (trace.kind == Kind.KERNEL)
    inside = np.zeros(len(trace), dtype=bool)
    inside[copies] = True
    call = trace.links.call[device.rows]
    copied = (call >= 0) & np.append(trace.tree.under(inside), False)[call]
    return work_at(trace, np.flatnonzero(named[device.rows] | copied))


def _copies(trace: Trace) -> Ints:
    """Return the ``contiguous`` ops that copy inside a convolution, or turn NHWC back to NCHW."""
    is_op = trace.kind == Kind.OP
    convolution = is_op & trace.matching(_CONVOLUTION)
    if not convolution.any():
        return np.empty(0, np.int64)
    copying = is_op & trace.named("aten::contiguous")
    copying &= trace.tree.above(trace.named("aten::clone", "aten::copy_"))
    inside = np.flatnonzero(copying & trace.tree.under(convolution))
    alone = np.flatnonzero(copying & ~trace.tree.under(is_op))
    inputs, which = inputs_of(trace, alone)
    back = np.array([_undoes_nhwc(one) for one in inputs], dtype=bool)
    return np.concatenate([inside, alone[back[which]]])


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


def _shape(trace: Trace, op: int) -> dict[str, Any]:
    """Return the shape of what the costliest conversion converts, where it was recorded."""
    if op < 0:
        return {}
    shape = inputs_of(trace, np.array([op]))[0][0].shape(0)
    return {"largest_shape": shape} if shape else {}

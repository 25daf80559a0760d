"""A recurrent layer works on packed sequences, which oneDNN does not support.

Looks like: on a CPU ``aten::lstm`` of single precision in one direction with the sizes of its batches (from
    ``pack_padded_sequence``), eight of them or more, half of the padded batch or more filled.
Slow because: oneDNN's layer does a whole sequence in one call, forward and backward; it does not accept packed
    sequences: they run as a dozen small operators for each layer and time step, and twice as many in the backward pass.
Cost: the layer's time and that of its backward pass; on the padded batch it takes 0.05 to 0.5 of it for each result
    that is read, and as much for each that is padding; 0.8 at most without a backward pass, and where a time step takes
    25 million floating-point operations or more.
Fix: give the layer the padded batch, and read its outputs where the sequences end.
Leave it when: it runs in both directions, which would begin in the padding; or most of the batch is padding. On a
    device nothing is reported: cuDNN works on packed sequences.
Source: measured with torch 2.13 (one thread), fifteen sizes of 4 to 128 sequences of 30 to 300 time steps, 32 to 512
    wide and 54 to 99 % full: for each result that is read 0.06 to 0.45 where a time step takes less than 25 million
    floating-point operations, else 0.26 to 0.71; 0.14 to 0.77 without a backward pass.
"""

from typing import NamedTuple

import numpy as np

from torchtriage.core.trace.matrix_products import is_shape
from torchtriage.core.trace.op_inputs import Inputs, inputs_of
from torchtriage.core.units import format_count, format_share
from torchtriage.diagnose.patterns._host_time import host_claim, host_time, with_backward
from torchtriage.diagnose.patterns.base import Claims, Edit, Fix, Pattern, Trace

PATTERN = Pattern.of(
    __name__, "LCH076", "A recurrent layer works on packed sequences", order=348, needs="ops shapes work"
)
FIX = Fix(
    text="Give the layer the padded batch, made of sequences of similar length. The last output of each stands at its"
    " length less 1, and is not the state that the layer returns.",
    code="""outputs, _ = lstm(padded)  # batch_first; not pack_padded_sequence(padded, lengths)
last = outputs[torch.arange(len(lengths)), lengths - 1]""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html",
)

MIN_SHARE = 0.02  # of the step, as for other loops of the host
MIN_TIME_STEPS, MIN_FILLED = 8, 0.5
BEST, WORST, WORST_OF_LARGE = 0.05, 0.5, 0.8
"""What a padded batch takes of a packed one's time, for each result that is read."""
MANY_FLOPS = 25e6
"""Of a time step: products take most of it, and not the operators around them."""
BIDIRECTIONAL = 8


class _Packed(NamedTuple):
    """Time steps of a packed batch, sequences, all their elements, and FLOPs of a time step; 0 of what is none."""

    time_steps: int = 0
    n_sequences: int = 0
    n_elements: int = 0
    flops: float = 0.0


def find(trace: Trace) -> Claims:
    """Yield one claim over all layers on packed sequences."""
    if trace.devices:
        return
    rows = np.flatnonzero(trace.named("aten::lstm") & (trace.lane == trace.steps.lane))
    inputs, which = inputs_of(trace, rows)
    batches = [_packed(call) for call in inputs]
    found = np.array([batch.time_steps >= MIN_TIME_STEPS for batch in batches], dtype=bool)[which]
    rows, which = rows[found], which[found]
    time = host_time(trace, with_backward(trace, rows, rows))
    forward = host_time(trace, trace.spans_of(rows))
    own = [batches[code] for code in which.tolist()]
    full = sum(batch.time_steps * batch.n_sequences for batch in own)
    filled = sum(batch.n_elements for batch in own) / max(full, 1)
    if filled < MIN_FILLED or time.held_ns <= MIN_SHARE * trace.steps.wall_ns:
        return
    per_step = trace.steps.mean_count(trace.steps.of_host(rows))
    small = time.held_ns > forward.held_ns and max(batch.flops for batch in own) < MANY_FLOPS
    kept, most_kept = BEST / filled, min((WORST if small else WORST_OF_LARGE) / filled, 1.0)
    longest = trace.longest(rows)
    batch = _packed(inputs_of(trace, np.array([longest]))[0][0])
    yield host_claim(
        trace,
        f"aten::lstm on packed sequences, {format_count(per_step, 'call')} {trace.steps.per}, takes {time.text}"
        f" with its backward pass: it computes {batch.time_steps:,} time steps one after another; the padded batch, in"
        f" one call, would be {format_share(filled)} full",
        rows,
        time.spans,
        gain=1 - most_kept,
        gain_high=1 - kept,
        method="what a padded batch takes of a packed one's time, measured for several sizes",
        evidence={
            **time.evidence(),
            "n_calls_per_step": per_step,
            "n_time_steps": batch.time_steps,
            "n_sequences": batch.n_sequences,
            "share_filled": round(filled, 6),
        },
        anchor=longest,
        edits=(Edit("threads", factor=most_kept, best=kept, spans=time.held),),
    )


def _packed(call: Inputs) -> _Packed:
    """Return the batch of a layer that oneDNN would do whole, were it padded."""
    data, batch_sizes, states = call.shape(0), call.shape(1), call.dims[2] if len(call.dims) > 2 else None
    plain = call.type(0) == "float" and call.value(BIDIRECTIONAL) == "False"
    if not plain or len(data) != 2 or len(batch_sizes) != 1 or not isinstance(states, list) or len(states) != 2:
        return _Packed()
    hidden, cell = states
    if not is_shape(hidden) or hidden != cell or len(hidden) != 3:  # they differ where the output is projected
        return _Packed()
    time_steps, width, n_hidden = batch_sizes[0], data[1], hidden[2]
    flops = 8 * n_hidden * (width + n_hidden) * data[0] / max(time_steps, 1)
    return _Packed(time_steps, hidden[1], data[0], flops)

"""Inference records a graph for a backward pass that never runs.

Looks like: at least 80 % of the outermost core operators (convolutions, products, norms, activations, attention) carry
    a sequence number, and the numbers advance: each recorded a graph node. No backward node uses any of them, and
    nothing in the recording trains. In a training script the same applies to steps without a backward pass, provided
    that training continues after them.
Slow because: every node keeps its inputs alive, so memory grows with depth, and recording takes the host microseconds
    per operator.
Cost: on a CPU 1.5 to 8 µs for each recorded core operator and the views around it. What the kept memory costs is not in
    a trace (``torchtriage run`` counts it: steps were 1.02 to 1.7 times as long), and with a device no cost is given:
    it hides the host's time unless the host is late, and then other findings own that.
Fix: run the model under ``torch.inference_mode()`` (or ``torch.no_grad()``).
Leave it when: gradients are taken later, outside the recording, or with respect to inputs.
Source: PyTorch documentation, "Autograd mechanics", locally disabling gradient computation.
"""

import numpy as np

from torchtriage.core.arrays import distinct
from torchtriage.core.trace.inference_phase import inference_phase
from torchtriage.core.units import format_count, format_share
from torchtriage.diagnose.patterns.base import Claim, Claims, Edit, Fix, Kind, Pattern, Trace, given

PATTERN = Pattern.of(
    __name__, "CFG043", "Inference records an autograd graph that nothing uses", order=610, needs="ops"
)
FIX = Fix(
    text="Run inference without recording a graph.",
    code="with torch.inference_mode():\n    outputs = model(inputs)",
    link="https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation",
)

_CORE = (
    r"^aten::(conv\w*|_convolution|linear|addmm|mm|bmm|baddbmm|matmul|batch_norm|layer_norm"
    r"|group_norm|rms_norm|relu_?|gelu|silu_?|softmax|_softmax|scaled_dot_product_attention"
    r"|embedding)$"
)
MIN_SHARE = 0.8  # recordings show 100 % with autograd on and 0 % with it off (measured, 60 files)
MIN_ADVANCING = 0.5  # without a tensor that requires gradients the numbers are written but stand still (measured)
NODE_US = (1.5, 8.0)
"""What recording one core operator and the views around it takes, at least and at most; on CPU, torch 2.13."""
MIN_OPS = 10  # fewer are no model: a test of three products carries numbers too


def find(trace: Trace) -> Claims:
    """Yield one claim over the operators that recorded a graph for nothing."""
    phase = inference_phase(trace)
    if phase is None:
        return
    core = phase.rows & trace.matching(_CORE, Kind.OP)
    rows = np.flatnonzero(core & ~trace.tree.under(core))
    if len(rows) < MIN_OPS:
        return
    recorded = rows[trace.key[rows] >= 0]
    # rollouts keep their graph for a backward pass further on
    used = distinct(trace.key[trace.matching(r"^autograd::engine|Backward\d*$", Kind.OP)])
    recorded = recorded[~np.isin(trace.key[recorded], used[used >= 0])]
    n_nodes = len(distinct(trace.key[recorded]))
    if len(recorded) < MIN_SHARE * len(rows) or n_nodes < MIN_ADVANCING * len(recorded):
        return
    n_steps = format_count(phase.n_steps, "step")
    where = "" if phase.whole else f" in {n_steps} without a backward pass"
    low, high = (np.minimum(1e3 * node_us / np.maximum(trace.dur_ns[recorded], 1), 1.0) for node_us in NODE_US)
    unpriced = (
        "the cost of the memory it keeps is not estimated"
        if trace.is_host_only
        else "its time is not estimated where a device is used"
    )
    yield Claim(
        message=f"{len(recorded):,} of {format_count(len(rows), 'core operator')}"
        f" ({format_share(len(recorded) / len(rows))}){where} record a graph that no backward node uses; {unpriced}",
        # one forward pass alone could be the start of a training step cut off by another tool
        certainty="certain" if phase.whole and phase.n_steps >= 2 else "likely",
        rows=recorded,
        anchor=int(recorded[0]),
        spans=trace.spans_of(recorded),
        gain_low=low,
        gain_high=high,
        time_class="host" if trace.is_host_only else "none",
        basis="modelled",
        method="1.5-8 µs for each core operator that is recorded, without the memory that is kept",
        evidence={
            "recording_share_of_core_ops": round(len(recorded) / len(rows), 6),
            "n_core_ops": len(rows),
            "n_recording_ops": len(recorded),
            "n_graph_nodes": n_nodes,
            **given(n_steps=phase.n_steps),
        },
        always=True,
        edits=(Edit("shrink", recorded, factor=1 - low, best=1 - high),) if trace.is_host_only else (),
    )

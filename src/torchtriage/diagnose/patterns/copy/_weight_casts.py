"""Weights that inference under autocast casts again in every step."""

import numpy as np

from torchtriage.core.trace.inference_phase import inference_phase
from torchtriage.core.trace.op_inputs import Inputs, inputs_of
from torchtriage.core.units import format_count
from torchtriage.diagnose.patterns._op_work import work_of
from torchtriage.diagnose.patterns.base import Claim, Fix, Ints, Kind, Trace

_FIX_WEIGHTS = Fix(
    text="Convert the weights once, outside the loop.",
    code="""model = model.eval().to(torch.bfloat16)  # instead of autocast over float32 weights
with torch.inference_mode():
    outputs = model(inputs.to(torch.bfloat16))""",
    link="https://docs.pytorch.org/docs/stable/amp.html",
)
_LAYERS = r"^aten::(linear|addmm|matmul|conv\d?d?|convolution|conv_transpose\dd)$"


def claim_weight_casts(trace: Trace, casts: Ints, min_share: float) -> Claim | None:
    """Return the claim on weights that inference under autocast casts in every step."""
    steps = trace.steps
    phase = inference_phase(trace)
    if phase is None or not phase.whole or steps.n_steady < 2 or not len(casts):
        return None
    layer = trace.tree.nearest(casts, trace.matching(_LAYERS, Kind.OP))
    rows, layer = casts[layer >= 0], layer[layer >= 0]
    own, which = inputs_of(trace, rows)
    of_layer, layer_is = inputs_of(trace, layer)
    pairs, inverse = np.unique(np.stack([which, layer_is], axis=1), axis=0, return_inverse=True)
    is_weight = np.array([_is_weight(own[cast].shape(0), of_layer[item]) for cast, item in pairs.tolist()], dtype=bool)
    rows = rows[is_weight[inverse.reshape(-1)]]
    work = work_of(trace, rows)
    if work is None or work.share < min_share:
        return None
    step_of = steps.of_host(rows)
    if steps.share_of_steps(step_of) < 1.0:
        return None
    count = steps.median_count(step_of)
    return work.claim(
        f"{format_count(count, 'weight')} {'is' if count == 1 else 'are'} cast again in every step: {work.text}",
        "cast",
        method="time of the casts; low: what of it the queue can make up for",
        evidence={"n_weight_casts_per_step": count},
        anchor=int(rows[0]),
        fix=_FIX_WEIGHTS,
    )


def _is_weight(shape: list[int], layer: Inputs) -> bool:
    others = [layer.shape(index) for index in range(1, 3)]
    return bool(shape) and shape in others and shape != layer.shape(0)

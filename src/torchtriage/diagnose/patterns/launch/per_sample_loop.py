"""A Python loop runs over the elements of a tensor.

Looks like: ``aten::select`` operators outside every other operator whose index runs 0, 1, 2, ... over eight values or
    more on tensors of one shape in one step, each value followed by the same sequence of operators; or
    ``aten::unbind`` into eight or more (``for row in x``), followed by as many rounds of one sequence. Those of a
    ``DataLoader`` are excluded.
Slow because: every element needs its own operators and launches, and each is too small to use the device.
Cost: (1 - 1/min(n, 16)) of the loop's host-late idle time, n being its rounds (without a device: of its host time
    without convolutions); the low end is half of it, divided by the profiler's inflation; nothing on a CPU whose
    rounds hold products, which take their time in any case. Where every round looks up rows of an embedding, the whole
    gradient is filled once per round: on a CPU that counts too, whatever else the round holds, since the rows are
    known before the loop.
Fix: one call on the whole batch.
Leave it when: a round needs the result of the one before (decoding, recurrences), or the rounds are micro-batches that
    limited memory requires.
Source: torch.profiler._pattern_matcher, "For Loop Indexing Pattern"; measured: 1332 rounds per image in a mask
    generator.
"""

import re

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.trace.op_inputs import inputs_of
from torchtriage.core.units import format_count, format_ns, ms
from torchtriage.diagnose.patterns._host_time import host_claim
from torchtriage.diagnose.patterns.base import Claim, Claims, Edit, Fix, Ints, Kind, Pattern, Trace
from torchtriage.diagnose.patterns.launch._sample_loops import (
    MIN_ROUNDS,
    SampleLoop,
    loop_ops,
    select_loops,
    unbind_loops,
)

PATTERN = Pattern.of(
    __name__, "LCH017", "Python loop over the elements of a tensor", order=350, needs="ops shapes work"
)
FIX = Fix(
    text="Compute the whole batch in one call: broadcasting, torch.bmm, torch.vmap, or padded tensors where lengths"
    " differ.",
    code="out = torch.vmap(f)(x)  # instead of torch.stack([f(x[i]) for i in range(len(x))])",
    link="https://docs.pytorch.org/docs/stable/generated/torch.vmap.html",
)

MAX_GAIN_ROUNDS = 16
MAX_CLAIMS = 5
_CONVOLUTION = r"^aten::(conv\w*|_convolution|mkldnn_convolution)$"
_RECURRENT = r"(lstm|gru|rnn_tanh|rnn_relu)(_cell|$)|_thnn_fused"
_MESSAGE = r"^c10d::|^_?c10d_functional::"  # of a pipeline's micro-batches
_LOOK_UP, _FILL = "aten::embedding", "aten::embedding_dense_backward"
_PRODUCT = r"^aten::(linear|addmm|mm|matmul|conv\w*|scaled_dot_product_attention)$"


def find(trace: Trace) -> Claims:
    """Yield one claim per kind of loop, the longest first."""
    ops = loop_ops(trace)
    loops = [*select_loops(trace, ops), *unbind_loops(trace, ops)]
    claims = [claim for loop in loops if (claim := _claim(trace, loop)) is not None]
    claims.sort(key=lambda claim: -trace.steps.judged_ns(claim.spans))
    yield from claims[:MAX_CLAIMS]


def _fills(trace: Trace, loop: SampleLoop) -> Ints:
    if trace.devices or not any(name == _LOOK_UP for name in loop.body):
        return np.empty(0, np.int64)
    fill = trace.named(_FILL) & (trace.kind == Kind.OP)
    rows = np.flatnonzero(fill & ~trace.tree.under(fill))
    rows = rows[trace.steps.in_steady(trace.steps.of_host(rows))]
    _, which = inputs_of(trace, rows)
    # lookups elsewhere have indices of another shape, or are few
    usual = np.flatnonzero(np.bincount(which, minlength=1) >= MIN_ROUNDS * trace.steps.n_steady)
    return rows[np.isin(which, usual)]


def _claim(trace: Trace, loop: SampleLoop) -> Claim | None:
    steps, body = trace.steps, loop.body
    selects = loop.begins[steps.in_steady(steps.of_host(loop.begins))]
    if not len(selects) or any(re.search(f"{_RECURRENT}|{_MESSAGE}", name) for name in body):
        return None
    convolutions = np.flatnonzero(trace.matching(_CONVOLUTION, Kind.OP))
    # a CPU takes as long for the convolutions of a batch as for those of its images
    at_stake = intervals.subtract(loop.spans, trace.time_of(convolutions))
    if trace.devices:
        at_stake = intervals.intersect(loop.spans, trace.devices[0].host_late)
    fills = _fills(trace, loop)
    filled = trace.time_of(fills)
    lost_ns, held_ns, filled_ns = (steps.judged_ns(spans) / steps.n_steady for spans in (at_stake, loop.spans, filled))
    if not lost_ns:
        return None
    time = f"they take {format_ns(held_ns)}"
    if trace.devices:
        time = f"the {trace.origin.device_word} stands idle for {format_ns(lost_ns)}"
    lost = "gpu_idle" if trace.devices else "host_without_convolutions"
    gain = 1.0 - 1.0 / min(loop.rounds, MAX_GAIN_ROUNDS)
    shape = trace.details_of("dims", [loop.over])[0][0]
    per_step = len(selects) / steps.n_steady
    # a product may carry a state from round to round, which a trace does not show
    carries = any(re.search(_PRODUCT, name) for name in body)
    low = 0.0 if carries and not trace.devices else 0.5
    over = loop.spans if trace.devices else at_stake
    edits = [Edit("threads", factor=1.0 - low * gain, best=1.0 - gain, spans=over)]
    filling = ""
    if len(fills):
        n_fills = format_count(round(len(fills) / steps.n_steady, 2), "time")
        filling = f", and the gradient of the embedding is filled {n_fills}: {format_ns(filled_ns)}"
        edits.append(Edit("shrink", fills, factor=1.0 - 0.5 * gain, best=1.0 - gain))
    low *= gain / trace.origin.inflation
    return host_claim(
        trace,
        f"a loop over a tensor of shape {shape} runs {format_count(per_step, 'iteration')} of"
        f" {format_count(len(body), 'operator')} {steps.per}: {time} of {format_ns(steps.wall_ns)}{filling}",
        selects,
        np.concatenate([at_stake, filled]),
        certainty="hint" if carries and filled_ns < held_ns else "likely",
        gain_low=np.repeat([low, 0.5 * gain], [len(at_stake), len(filled)]) if len(fills) else low,
        gain_high=gain,
        method="idle time of the device inside the loop" if trace.devices else "host time of the loop",
        evidence={
            **({f"{lost}_ms_per_step": ms(lost_ns)} if trace.devices or lost_ns < held_ns else {}),
            "host_ms_per_step": ms(held_ns),
            **({"gradient_fills_ms_per_step": ms(filled_ns)} if len(fills) else {}),
            "n_rounds_per_step": round(per_step, 2),
            "n_ops_per_round": len(body),
            "n_rounds_of_longest_loop": loop.rounds,
            "n_loops": loop.runs,
            "tensor_shape": shape,
            "first_ops_of_round": body[:5],
        },
        edits=tuple(edits),
    )

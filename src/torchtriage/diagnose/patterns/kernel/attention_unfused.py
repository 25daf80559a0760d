"""Attention is computed as product, softmax, product instead of one fused kernel.

Looks like: a ``softmax`` over ``[batch x heads, S, S']`` between a batched product that makes those scores and one
    that uses them (also under ``_scaled_dot_product_attention_math``, and the same chain around
    ``_softmax_backward_data``), both lengths at least 128, at least 5 % of kernel time; on a CPU, of the step, and
    without dropout, which the CPU's fused kernel does not support. On a GPU without recorded shapes, forward alone:
    nothing but pointwise operators between the products; a softmax of at least 10 µs over, by its kernel's name, more
    than 128 keys; neither product more than twice as long; no average of the weights after it.
Slow because: the scores grow with the square of the length and travel to memory and back for every scale, mask,
    softmax and dropout; a fused kernel keeps them on the chip.
Cost: modelled: the chain's kernels minus the same operations in a fused kernel at 40-60 % of the peak rate; the low
    end keeps the products as they are and drops the rest. Half of that where the device is not known. Without shapes
    the chain's kernels minus 0.1-2 times the products, chosen on 2 recordings with shapes: in 5 others, of the same
    two models, what the shapes say lay within for all of 104 chains. Nothing at the low end in fp32, or where the host
    launched the next kernel late. On a CPU 10-75 % of the chain's host time; in training 0-75 % of its forward and
    0-25 % of its backward part (measured).
Fix: call ``scaled_dot_product_attention``, or select the model's ``sdpa`` implementation.
Leave it when: the attention weights themselves are needed, gradients of gradients are taken, or no fused kernel
    supports the mask.
Source: PyTorch documentation, ``torch.nn.functional.scaled_dot_product_attention``; Dao et al., "FlashAttention-2",
    rates of 50-73 % of peak.
"""

import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.core.arrays import distinct
from torchtriage.core.units import format_ns, format_share, ms
from torchtriage.diagnose.patterns._op_work import work_at
from torchtriage.diagnose.patterns.base import (
    Claim,
    Claims,
    Edit,
    Fix,
    Floats,
    Ints,
    Kind,
    Mask,
    Pattern,
    Spans,
    Trace,
    given,
)
from torchtriage.diagnose.patterns.kernel._attention_chains import (
    BACKWARD,
    FORWARD,
    AttentionChains,
    chains_in_order,
    find_chains,
    foreign_work,
    kernels_of,
    with_inner,
)

PATTERN = Pattern.of(
    __name__, "KRN025", "Attention as separate product, softmax and product", order=500, needs="ops sizes"
)
FIX = Fix(
    text="Let one fused kernel compute the attention.",
    code="""out = torch.nn.functional.scaled_dot_product_attention(
    q, k, v, attn_mask=mask, dropout_p=p if self.training else 0.0
)
# or, with transformers:
model = AutoModel.from_pretrained(name, attn_implementation="sdpa")""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
)
_FIX_MATH = Fix(
    text="scaled_dot_product_attention fell back to its math kernel: use fp16/bf16 inputs, head dimensions of at most"
    " 256, and let it say why by forcing a fused backend.",
    code="""from torch.nn.attention import SDPBackend, sdpa_kernel
with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.attention.sdpa_kernel.html",
)

_DROPOUT = r"^aten::(_fused_|native_)?dropout|^aten::bernoulli"
_MATH = "aten::_scaled_dot_product_attention_math"
_NATIVE = "aten::_native_multi_head_attention"
"""What ``nn.MultiheadAttention`` calls in inference: there is nothing to rewrite."""
MIN_SHARE = 0.05
FUSED_OF_PEAK = (0.4, 0.6)
FUSED_OF_PRODUCTS = (2.0, 0.1)
"""Without shapes. Twice where the products reach 80 % of the peak rate and the fused kernel 40 %; found: 0.14-0.23."""
ON_CPU = (0.1, 0.75)
ON_CPU_BACKWARD = 0.25
"""Measured with torch 2.13, fp32, one thread, 128-2048 keys, heads of 32-128: a forward pass gets 11-73 % shorter,
forward and backward together -9 to 25 % (71 % at 2048 keys)."""


def find(trace: Trace) -> Claims:
    """Yield one claim over all attention chains of the main device, or of the CPU alone."""
    if not trace.devices and not trace.is_host_only:
        return
    chains = chains_in_order(trace) if trace.devices and not trace.has_shapes else find_chains(trace)
    if chains is not None:
        yield from _on_device(trace, chains) if trace.devices else _on_cpu(trace, chains)


def _on_device(trace: Trace, chains: AttentionChains) -> Claims:
    at, chain = kernels_of(trace, chains)
    work = work_at(trace, at)
    if work is None or work.share < MIN_SHARE:
        return
    rows, steps = work.rows, trace.steps
    low, high = _gains(trace, chains, rows, chain)
    softmax = rows[trace.named(FORWARD, BACKWARD)[trace.links.op[rows]] & steps.in_steady(steps.of_work(rows))]
    math = trace.tree.under(trace.named(_MATH))[chains.softmax]
    half = bool(chains.half[chain].all())
    cost = np.bincount(chain, weights=trace.dur_ns[rows], minlength=len(chains.softmax))
    anchor, message, sizes = _largest(trace, chains, cost, work.per_step_ns)
    yield work.claim(
        f"{message} {steps.per}, {format_share(work.share)} of the kernel time",
        "chain",
        certainty="likely" if half and trace.has_shapes else "hint",
        low=low[chain],
        high=high[chain],
        method="the chain's kernels minus a fused kernel "
        + ("at 40-60 % of the peak rate" if trace.has_shapes else "that takes 0.1-2 times as long as the products"),
        evidence={
            "softmax_ms_per_step": ms(float(trace.dur_ns[softmax].sum()) / steps.n_steady),
            **sizes,
            "half_precision": half,
            "math_fallback": bool(math.any()),
        },
        anchor=anchor,
        fix=_FIX_MATH if math.all() else FIX,
    )


def _on_cpu(trace: Trace, chains: AttentionChains) -> Claims:
    start, end = trace.start_ns[chains.first], trace.end_ns[chains.last]
    whole = intervals.union(intervals.spans(start, end))
    tree, steps = trace.tree, trace.steps
    # the fused kernel of the CPU takes no dropout; the call that wants it runs these same chains
    unfit = np.flatnonzero(trace.matching(_DROPOUT, Kind.OP))
    if (intervals.owner(whole, trace.start_ns[unfit]) >= 0).any():
        return
    if tree.under(trace.named(_MATH, _NATIVE))[chains.softmax].any():
        return
    others = np.flatnonzero(foreign_work(trace, chains) & (trace.lane == steps.lane))
    foreign = trace.time_of(others)
    backward = trace.named(BACKWARD)[chains.softmax]

    def own(mine: Mask) -> Spans:
        """Return the host time of some chains without the neighbours' operators."""
        mine = mine & (trace.lane[chains.softmax] == steps.lane)
        return intervals.subtract(intervals.union(intervals.spans(start[mine], end[mine])), foreign)

    ahead, back = own(~backward), intervals.subtract(own(backward), own(~backward))
    at_stake = np.concatenate([ahead, back])
    chain_ns = steps.judged_ns(at_stake)
    judged_ns = intervals.length(steps.judged)
    if not chain_ns or chain_ns < MIN_SHARE * judged_ns:
        return
    trains = len(back) > 0
    low, high = ON_CPU
    per_step_ns = chain_ns / steps.n_steady
    anchor, message, sizes = _largest(trace, chains, end - start, per_step_ns)
    softmax = chains.softmax[steps.in_steady(steps.of_host(chains.softmax))]
    yield Claim(
        message=f"{message} of {format_ns(steps.wall_ns)} {steps.per}",
        certainty="hint" if trains else "likely",
        rows=distinct(np.concatenate([chains.softmax, chains.gemms])),
        spans=at_stake,
        gain_low=0.0 if trains else low,
        gain_high=np.repeat([high, ON_CPU_BACKWARD], [len(ahead), len(back)]),
        anchor=anchor,
        time_class="host",
        basis="modelled",
        method="what fused attention saved on a CPU, measured over lengths and head sizes",
        evidence={
            "chain_ms_per_step": ms(per_step_ns),
            "share_of_step": round(chain_ns / judged_ns, 6),
            "softmax_ms_per_step": ms(float(trace.dur_ns[softmax].sum()) / steps.n_steady),
            **sizes,
            "training": trains,
        },
        edits=(
            Edit("threads", factor=1.0 if trains else 1 - low, best=1 - high, spans=ahead),
            Edit("threads", factor=1.0, best=1 - ON_CPU_BACKWARD, spans=back),
        ),
    )


def _largest(
    trace: Trace, chains: AttentionChains, cost: NDArray[np.number], per_step_ns: float
) -> tuple[int, str, dict[str, float | int]]:
    forward = trace.named(FORWARD)[chains.softmax]
    largest = int(np.argmax(np.where(forward | ~forward.any(), cost, -1.0)))
    batch, queries, keys, head = chains.shape[largest].tolist()
    scores = f" over {queries:,} x {keys:,} scores" if trace.has_shapes else ""
    return (
        int(chains.softmax[largest]),
        f"attention as separate product, softmax and product{scores} takes {format_ns(per_step_ns)}",
        {
            "n_chains_per_step": trace.steps.mean_count(trace.steps.of_host(chains.softmax)),
            **given(batch_times_heads=batch, query_length=queries, key_length=keys, head_dimension=head),
        },
    )


def _gains(trace: Trace, chains: AttentionChains, rows: Ints, chain: Ints) -> tuple[Floats, Floats]:
    count = len(chains.softmax)
    dur = trace.dur_ns[rows].astype(np.float64)
    gemms = with_inner(trace, chains.gemms)
    is_gemm = gemms[trace.links.op[rows]]
    whole = np.maximum(np.bincount(chain, weights=dur, minlength=count), 1.0)
    gemm = np.bincount(chain, weights=dur * is_gemm, minlength=count)
    beside = 1 - gemm / whole
    peak = trace.devices[0].peak
    if not trace.has_shapes:
        slow, fast = (part * gemm for part in FUSED_OF_PRODUCTS)
    elif peak is None:
        return np.where(chains.half, beside / 2, 0.0), beside
    else:
        slow, fast = (
            np.maximum(chains.flop / (share * peak.flop_per_ns("half")), chains.n_bytes / peak.bytes_per_ns)
            for share in FUSED_OF_PEAK
        )
    high = np.where(chains.half, np.clip(1 - fast / whole, 0, 1), beside)
    low = np.where(chains.half, np.minimum(beside, 1 - slow / whole), 0.0)
    return np.clip(low, 0, high), high

"""Attention computed as product, softmax, product instead of one fused kernel.

Looks like: a ``softmax`` over ``[batch x heads, S, S']`` between a batched product that makes
    those scores and one that uses them (also under ``_scaled_dot_product_attention_math``, and
    the same chain around ``_softmax_backward_data``), both lengths at least 128, at least 5 % of
    kernel time; on a CPU, of the step, and without dropout, which its fused kernel does not take.
Slow because: the scores grow with the square of the length and travel to memory and back for
    every scale, mask, softmax and dropout; a fused kernel keeps them on the chip.
Cost: modelled: the chain's kernels minus the same operations in a fused kernel at 40-60 % of the
    peak rate; the low end keeps the products as they are and drops the rest. Half of that where
    the device is not known. Nothing at the low end in fp32, or where the host launched the next
    kernel late. On a CPU 10-75 % of the chain's host time; in training 0-75 % of its forward
    and 0-25 % of its backward part (measured).
Fix: call ``scaled_dot_product_attention``, or select the model's ``sdpa`` implementation.
Leave it when: the attention weights themselves are needed, gradients of gradients are taken, or
    the mask is one that no fused kernel takes.
Source: PyTorch documentation, ``torch.nn.functional.scaled_dot_product_attention``; Dao et al.,
    "FlashAttention-2", rates of 50-73 % of peak.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchtriage import intervals
from torchtriage.distinct import distinct
from torchtriage.finding import Fix
from torchtriage.patterns._products import Products, is_shape, products
from torchtriage.patterns._work import kernel_time_ns, queued_share
from torchtriage.patterns.base import Claim, Edit, Pattern
from torchtriage.patterns.kernel._peaks import peak_of
from torchtriage.trace import Kind, Trace
from torchtriage.units import format_ns, format_share, ms

PATTERN = Pattern(
    code="KRN025",
    name="attention-unfused",
    family="kernel",
    title="Attention as separate product, softmax and product",
    order=500,
    needs=frozenset({"ops", "shapes"}),
)
FIX = Fix(
    text="Let one fused kernel compute the attention.",
    code=(
        "out = torch.nn.functional.scaled_dot_product_attention(\n"
        "    q, k, v, attn_mask=mask, dropout_p=p if self.training else 0.0\n"
        ")\n"
        "# or, with transformers:\n"
        'model = AutoModel.from_pretrained(name, attn_implementation="sdpa")'
    ),
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
)
_FIX_MATH = Fix(
    text="scaled_dot_product_attention fell back to its math kernel: use fp16/bf16 inputs, head"
    " dimensions of at most 256, and let it say why by forcing a fused backend.",
    code=(
        "from torch.nn.attention import SDPBackend, sdpa_kernel\n"
        "with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):\n"
        "    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)"
    ),
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.attention.sdpa_kernel.html",
)

_PRODUCTS = ("aten::bmm", "aten::baddbmm", "aten::mm", "aten::addmm")
_FORWARD, _BACKWARD = "aten::_softmax", "aten::_softmax_backward_data"
_DROPOUT = r"^aten::(_fused_|native_)?dropout|^aten::bernoulli"
_MATH = "aten::_scaled_dot_product_attention_math"
_NATIVE = "aten::_native_multi_head_attention"
"""What ``nn.MultiheadAttention`` calls in inference: there is nothing to rewrite."""
_FOREIGN = r"^aten::(addmm|mm|linear)$|conv|norm|embedding|gelu|relu|silu"
"""Work of a neighbouring layer that may run between the products."""
MIN_LENGTH = 128
"""Shorter sequences gain little from fusion (catalogue 25)."""
MAX_HEAD = 256
"""No flash kernel beyond this head dimension."""
LEAST_HEAD = 64
"""Narrower heads make a fused kernel no faster (FlashAttention-2, figures 4-6: 64 against 128)."""
MIN_SHARE = 0.05
FUSED_OF_PEAK = (0.4, 0.6)
ON_CPU = (0.1, 0.75)
ON_CPU_BACKWARD = 0.25
"""Measured with torch 2.13, fp32, one thread, 128-2048 keys, heads of 32-128: a forward pass gets
11-73 % shorter, forward and backward together -9 to 25 % (71 % at 2048 keys)."""
RECOMPUTE = 1.25
"""A fused backward pass computes the scores again: five products instead of four."""


@dataclass(frozen=True, eq=False)
class _Chains:
    """Attention chains on the host; arrays have one element per chain.

    ``softmax``, ``first``, ``last`` : op rows. ``flop``, ``n_bytes`` : of a fused kernel.
    ``half`` : bool, half-precision inputs. ``gemms`` : op rows of all products of all chains.
    """

    softmax: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    flop: NDArray[np.float64]
    half: NDArray[np.bool_]
    n_bytes: NDArray[np.float64]
    shape: NDArray[np.int64]
    """int64[c, 4]: batch x heads, S, S', head dimension."""
    gemms: NDArray[np.int64]


def find(trace: Trace) -> Iterator[Claim]:
    """Yield one claim over all attention chains of the main device, or of the CPU alone."""
    if not trace.devices and not trace.is_host_only:
        return
    chains = _chains(trace)
    if chains is not None:
        yield from _on_device(trace, chains) if trace.devices else _on_cpu(trace, chains)


def _on_device(trace: Trace, chains: _Chains) -> Iterator[Claim]:
    device = trace.devices[0]
    at, chain = _work(trace, chains)
    rows = device.rows[at]
    if not len(rows):
        return
    spans = intervals.spans(trace.start_ns[rows], trace.end_ns[rows])
    judged = trace.steps.judged
    chain_ns = intervals.length(intervals.intersect(intervals.union(spans), judged))
    compute_ns = kernel_time_ns(trace)
    if not compute_ns or chain_ns < MIN_SHARE * compute_ns:
        return
    low, high = _gains(trace, chains, rows, chain)
    queued = queued_share(trace, device, at)
    softmax = trace.named(_FORWARD, _BACKWARD)[trace.links.op[rows]]
    steady = trace.steps.in_steady(trace.steps.of_work(rows))
    math = trace.tree.under(trace.named(_MATH))
    n_steady = trace.steps.n_steady
    half = bool(chains.half[chain].all())
    cost = np.bincount(chain, weights=trace.dur_ns[rows], minlength=len(chains.softmax))
    anchor, shapes = _costliest(trace, chains, cost)
    yield Claim(
        message=(
            f"{_described(trace, chain_ns, shapes)} {trace.steps.per},"
            f" {format_share(chain_ns / compute_ns)} of the kernel time"
        ),
        certainty="likely" if half else "hint",
        rows=rows,
        spans=spans,
        gain_low=np.minimum(low[chain], queued),
        gain_high=high[chain],
        anchor=anchor,
        time_class="compute",
        basis="modelled",
        method="the chain's kernels minus a fused kernel at 40-60 % of the peak rate",
        evidence={
            "chain_ms_per_step": ms(chain_ns / n_steady),
            "share_of_kernel_time": round(chain_ns / compute_ns, 6),
            "softmax_ms_per_step": ms(float(trace.dur_ns[rows[softmax & steady]].sum()) / n_steady),
            **_sizes(trace, chains, shapes),
            "half_precision": half,
            "math_fallback": bool(math[chains.softmax].any()),
        },
        fix=_FIX_MATH if math[chains.softmax].all() else FIX,
        edits=(Edit("shrink", rows, factor=1 - low[chain], best=1 - high[chain]),),
    )


def _on_cpu(trace: Trace, chains: _Chains) -> Iterator[Claim]:
    """Yield a claim over the host time of the chains, where a CPU has a fused kernel for them."""
    start, end = trace.start_ns[chains.first], trace.end_ns[chains.last]
    whole = intervals.union(intervals.spans(start, end))
    tree, steps = trace.tree, trace.steps
    # the fused kernel of the CPU takes no dropout; the call that wants it runs these same chains
    unfit = np.flatnonzero(trace.matching(_DROPOUT) & (trace.kind == Kind.OP))
    if (intervals.owner(whole, trace.start_ns[unfit]) >= 0).any():
        return
    if tree.under(trace.named(_MATH, _NATIVE))[chains.softmax].any():
        return
    others = np.flatnonzero(_foreign(trace, chains) & (trace.lane == steps.lane))
    foreign = intervals.union(intervals.spans(trace.start_ns[others], trace.end_ns[others]))
    backward = trace.named(_BACKWARD)[chains.softmax]

    def own(mine: NDArray[np.bool_]) -> intervals.Spans:
        """Return the host time of some chains without the neighbours' operators."""
        mine = mine & (trace.lane[chains.softmax] == steps.lane)
        return intervals.subtract(intervals.union(intervals.spans(start[mine], end[mine])), foreign)

    ahead, back = own(~backward), intervals.subtract(own(backward), own(~backward))
    at_stake = np.concatenate([ahead, back])
    chain_ns = intervals.length(intervals.intersect(intervals.union(at_stake), steps.judged))
    judged_ns = intervals.length(steps.judged)
    if not chain_ns or chain_ns < MIN_SHARE * judged_ns:
        return
    trains = len(back) > 0
    low, high = ON_CPU
    anchor, shapes = _costliest(trace, chains, (end - start).astype(np.float64))
    softmax = chains.softmax[steps.in_steady(steps.of_host(chains.softmax))]
    rows = distinct(np.concatenate([chains.softmax, chains.gemms]))
    yield Claim(
        message=f"{_described(trace, chain_ns, shapes)} of {format_ns(steps.wall_ns)} {steps.per}",
        certainty="hint" if trains else "likely",
        rows=rows,
        spans=at_stake,
        gain_low=0.0 if trains else low,
        gain_high=np.repeat([high, ON_CPU_BACKWARD], [len(ahead), len(back)]),
        anchor=anchor,
        time_class="host",
        basis="modelled",
        method="what fused attention saved on a CPU, measured over lengths and head sizes",
        evidence={
            "chain_ms_per_step": ms(chain_ns / steps.n_steady),
            "share_of_step": round(chain_ns / judged_ns, 6),
            "softmax_ms_per_step": ms(float(trace.dur_ns[softmax].sum()) / steps.n_steady),
            **_sizes(trace, chains, shapes),
            "training": trains,
        },
        edits=(
            Edit("threads", factor=1.0 if trains else 1 - low, best=1 - high, spans=ahead),
            Edit("threads", factor=1.0, best=1 - ON_CPU_BACKWARD, spans=back),
        ),
    )


def _costliest(
    trace: Trace, chains: _Chains, cost: NDArray[np.number]
) -> tuple[int, tuple[int, int, int, int]]:
    """Return the softmax and the sizes of the costliest chain, a forward one where there is one."""
    forward = trace.named(_FORWARD)[chains.softmax]
    best = int(np.argmax(np.where(forward | ~forward.any(), cost, -1.0)))
    batch, queries, keys, head = chains.shape[best].tolist()
    return int(chains.softmax[best]), (batch, queries, keys, head)


def _described(trace: Trace, chain_ns: int, shapes: tuple[int, int, int, int]) -> str:
    per_step = format_ns(chain_ns / trace.steps.n_steady)
    return (
        f"attention as separate product, softmax and product over {shapes[1]:,} x {shapes[2]:,}"
        f" scores takes {per_step}"
    )


def _sizes(
    trace: Trace, chains: _Chains, shapes: tuple[int, int, int, int]
) -> dict[str, float | int]:
    in_steady = trace.steps.in_steady(trace.steps.of_host(chains.softmax))
    batch, queries, keys, head = shapes
    return {
        "n_chains_per_step": round(int(in_steady.sum()) / trace.steps.n_steady, 2),
        "batch_times_heads": batch,
        "query_length": queries,
        "key_length": keys,
        "head_dimension": head,
    }


def _chains(trace: Trace) -> _Chains | None:
    """Return the softmax ops that stand between two products of their scores."""
    members = trace.tree.members
    wanted = trace.named(*_PRODUCTS, _FORWARD, _BACKWARD) & (trace.kind == Kind.OP)
    # autocast and old builds write an op inside itself: the outermost stands for all
    wanted &= ~trace.tree.under(wanted)
    line = members[wanted[members]]
    centre = np.flatnonzero(trace.named(_FORWARD, _BACKWARD)[line])
    scores = _scores(trace, line[centre])
    keep = (scores[:, 1] >= MIN_LENGTH) & (scores[:, 2] >= MIN_LENGTH)
    centre, scores = centre[keep], scores[keep]
    if not len(centre):
        return None
    work = products(trace, line)
    lane = trace.lane[line]
    backward = trace.named(_BACKWARD)[line[centre]]

    def of_scores(offset: int) -> NDArray[np.bool_]:
        """Return bool[c]: whether the op this far from each softmax handles its scores."""
        near = centre + offset
        inside: NDArray[np.bool_] = (near >= 0) & (near < len(line))
        near = np.where(inside, near, 0)
        inside &= (lane[near] == lane[centre]) & _handles(work, near, scores)
        return inside

    before, after = of_scores(-1), of_scores(1)
    # something else may stand between: the projection of the values, another gradient
    before_2, after_2 = of_scores(-2), of_scores(2)
    wide_before = before_2 & (~before | backward)
    wide_after = after_2 & (~after | backward)
    whole = (before | wide_before) & (after | wide_after)
    first = np.where(wide_before, centre - 2, centre - 1)
    last = np.where(wide_after, centre + 2, centre + 1)
    nearest = np.where(before, centre - 1, first)
    head = _head(work, np.clip(nearest, 0, len(line) - 1), scores)
    whole &= (head > 0) & (head <= MAX_HEAD)
    if not whole.any():
        return None
    used = [
        (centre + offset)[whole & taken]
        for offset, taken in (
            (-1, before),
            (1, after),
            (-2, wide_before),
            (2, wide_after),
        )
    ]
    batch, queries, keys = scores[whole].astype(np.float64).T
    biased = trace.named("aten::baddbmm")[line[nearest[whole]]]
    # the exponentials take as long as the products of a head this wide
    fused = 4 * batch * queries * keys * np.maximum(head[whole], LEAST_HEAD)
    return _Chains(
        softmax=line[centre[whole]],
        first=line[first[whole]],
        last=line[last[whole]],
        flop=np.where(backward[whole], 2 * RECOMPUTE, 1.0) * fused,
        # queries and output, keys and values, and a bias of the scores' size where there is one
        n_bytes=2 * batch * (2 * (queries + keys) * head[whole] + biased * queries * keys),
        half=work.dtype[nearest[whole]] == "half",
        shape=np.column_stack([scores[whole], head[whole]]),
        gemms=distinct(line[np.concatenate(used)]),
    )


def _scores(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[c, 3]: batch x heads, S and S' of each softmax; zeros where unknown."""
    out = np.zeros((len(rows), 3), np.int64)
    for index, dims in enumerate(trace.details_of("dims", rows)):
        shape = dims[0] if isinstance(dims, list) and dims else None
        if is_shape(shape) and len(shape) >= 2:
            out[index] = int(np.prod(shape[:-2], dtype=np.int64)), shape[-2], shape[-1]
    return out


def _handles(
    work: Products, index: NDArray[np.int64], scores: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return bool[c]: products with the scores' batch and both of its lengths among their sides."""
    sides = [side[index] for side in (work.m, work.n, work.k)]
    batch, queries, keys = scores.T
    found = np.zeros(len(index), dtype=bool)
    for one in range(3):
        for other in range(3):
            if one != other:
                found |= (sides[one] == queries) & (sides[other] == keys)
    found &= work.batch[index] == batch
    return found


def _head(work: Products, index: NDArray[np.int64], scores: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[c]: the side of a product that is neither of the scores' lengths."""
    volume = work.m[index] * work.n[index] * work.k[index]
    head: NDArray[np.int64] = volume // np.maximum(scores[:, 1] * scores[:, 2], 1)
    return head


def _work(trace: Trace, chains: _Chains) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the chains' kernels, as positions in the device's rows, and the chain of each."""
    device = trace.devices[0]
    op, call = trace.links.op[device.rows], trace.links.call[device.rows]
    foreign = _foreign(trace, chains)
    able = (op >= 0) & ~foreign[op] & (trace.kind[device.rows] == Kind.KERNEL) & ~device.comm
    chain = np.full(len(device.rows), -1, np.int64)
    for lane in distinct(trace.lane[chains.softmax]).tolist():
        mine = np.flatnonzero(trace.lane[chains.softmax] == lane)
        mine = mine[np.argsort(trace.start_ns[chains.first[mine]])]
        spans = intervals.spans(trace.start_ns[chains.first[mine]], trace.end_ns[chains.last[mine]])
        here = np.flatnonzero(able & (trace.lane[call] == lane))
        owner = intervals.owner(spans, trace.start_ns[call[here]])
        chain[here[owner >= 0]] = mine[owner[owner >= 0]]
    at = np.flatnonzero(chain >= 0)
    return at, chain[at]


def _foreign(trace: Trace, chains: _Chains) -> NDArray[np.bool_]:
    """Return bool[n]: names of neighbouring layers' work, the chains' own products left out."""
    return trace.matching(_FOREIGN) & ~_with_inner(trace, chains.gemms)


def _with_inner(trace: Trace, ops: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return bool[n]: these ops and whatever runs inside them."""
    mask = np.zeros(len(trace), dtype=bool)
    mask[ops] = True
    return mask | trace.tree.under(mask)


def _gains(
    trace: Trace, chains: _Chains, rows: NDArray[np.int64], chain: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the low and high fraction of each chain that fusing it gives back."""
    count = len(chains.softmax)
    dur = trace.dur_ns[rows].astype(np.float64)
    gemms = _with_inner(trace, chains.gemms)
    is_gemm = gemms[trace.links.op[rows]]
    whole = np.maximum(np.bincount(chain, weights=dur, minlength=count), 1.0)
    gemm = np.bincount(chain, weights=dur * is_gemm, minlength=count)
    beside = 1 - gemm / whole
    peak = peak_of(trace.devices[0].name)
    if peak is None:
        return np.where(chains.half, beside / 2, 0.0), beside
    slow, fast = (
        np.maximum(
            chains.flop / (share * peak.flop_per_ns("half")), chains.n_bytes / peak.bytes_per_ns
        )
        for share in FUSED_OF_PEAK
    )
    high = np.where(chains.half, np.clip(1 - fast / whole, 0, 1), beside)
    low = np.where(chains.half, np.minimum(beside, 1 - slow / whole), 0.0)
    return np.clip(low, 0, high), high

"""Attention computed as product, softmax, product instead of one fused kernel.

Looks like: a ``softmax`` over ``[batch x heads, S, S']`` between a batched product that makes
    those scores and one that uses them (also under ``_scaled_dot_product_attention_math``, and
    the same chain around ``_softmax_backward_data``), both lengths at least 128, at least 5 % of
    kernel time.
Slow because: the scores grow with the square of the length and travel to memory and back for
    every scale, mask, softmax and dropout; a fused kernel keeps them on the chip.
Cost: modelled: the chain's kernels minus the same operations in a fused kernel at 40-60 % of the
    peak rate; the low end keeps the products as they are and drops the rest. Half of that where
    the device is not known. Nothing at the low end in fp32, or where the host launched the next
    kernel late.
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
from torchtriage.finding import Fix
from torchtriage.patterns.base import Claim, Edit, Pattern
from torchtriage.patterns.kernel._peaks import peak_of
from torchtriage.patterns.kernel._products import Products, products
from torchtriage.patterns.kernel._queue import queued_share
from torchtriage.trace import Kind, Trace
from torchtriage.units import format_share, ms

PATTERN = Pattern(
    code="KRN025",
    name="attention-unfused",
    family="kernel",
    title="Attention as separate product, softmax and product",
    order=500,
    needs=frozenset({"device", "shapes"}),
)
FIX = Fix(
    text="Let one fused kernel compute the attention.",
    code=(
        "out = torch.nn.functional.scaled_dot_product_attention(\n"
        "    q, k, v, attn_mask=mask, dropout_p=p if self.training else 0.0)\n"
        'model = AutoModel.from_pretrained(name, attn_implementation="sdpa")   # transformers'
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
    """Yield one claim over the kernels of all attention chains of the main device."""
    chains = _chains(trace)
    if chains is None:
        return
    device = trace.devices[0]
    at, chain = _work(trace, chains)
    rows = device.rows[at]
    if not len(rows):
        return
    spans = intervals.spans(trace.start_ns[rows], trace.end_ns[rows])
    judged = trace.steps.judged
    chain_ns = intervals.length(intervals.intersect(intervals.union(spans), judged))
    compute_ns = intervals.length(intervals.intersect(device.compute, judged))
    if not compute_ns or chain_ns < MIN_SHARE * compute_ns:
        return
    low, high = _gains(trace, chains, rows, chain)
    queued = queued_share(trace, device, at)
    softmax = trace.named(_FORWARD, _BACKWARD)[trace.links.op[rows]]
    steady = trace.steps.in_steady(trace.steps.of_work(rows))
    per_step = chain_ns / trace.steps.n_steady
    math = trace.tree.under(trace.named("aten::_scaled_dot_product_attention_math"))
    common = np.bincount(chain, weights=trace.dur_ns[rows], minlength=len(chains.softmax))
    batch, queries, keys, head = chains.shape[int(common.argmax())].tolist()
    n_steady = trace.steps.n_steady
    in_steady = trace.steps.in_steady(trace.steps.of_host(chains.softmax))
    half = bool(chains.half[chain].all())
    yield Claim(
        message=(
            f"{format_share(chain_ns / compute_ns)} of the kernel time ({ms(per_step):.3g} ms per"
            f" {'step' if len(trace.steps) else 'window'}) is attention as separate product,"
            f" softmax and product over {queries} x {keys} scores"
        ),
        certainty="likely" if half else "hint",
        rows=rows,
        spans=spans,
        gain_low=np.minimum(low[chain], queued),
        gain_high=high[chain],
        anchor=int(chains.softmax[common.argmax()]),
        time_class="compute",
        basis="modelled",
        method="the chain's kernels minus a fused kernel at 40-60 % of the peak rate",
        evidence={
            "share_of_kernel_time": round(chain_ns / compute_ns, 4),
            "chain_ms_per_step": ms(per_step),
            "softmax_ms_per_step": ms(float(trace.dur_ns[rows[softmax & steady]].sum()) / n_steady),
            "chains_per_step": round(int(in_steady.sum()) / n_steady, 1),
            "batch_times_heads": batch,
            "query_length": queries,
            "key_length": keys,
            "head_dim": head,
            "half_precision": half,
            "math_fallback": bool(math[chains.softmax].any()),
        },
        fix=_FIX_MATH if math[chains.softmax].all() else FIX,
        edits=(Edit("shrink", rows, factor=float(1 - np.mean(low[chain]))),),
    )


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
            (-1, before), (1, after), (-2, wide_before), (2, wide_after),
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
        gemms=np.unique(line[np.concatenate(used)]),
    )


def _scores(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[c, 3]: batch x heads, S and S' of each softmax; zeros where unknown."""
    out = np.zeros((len(rows), 3), np.int64)
    for index, dims in enumerate(trace.details_of("dims", rows)):
        shape = dims[0] if isinstance(dims, list) and dims else None
        if isinstance(shape, list) and len(shape) >= 2:
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


def _head(
    work: Products, index: NDArray[np.int64], scores: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return int64[c]: the side of a product that is neither of the scores' lengths."""
    volume = work.m[index] * work.n[index] * work.k[index]
    head: NDArray[np.int64] = volume // np.maximum(scores[:, 1] * scores[:, 2], 1)
    return head


def _work(trace: Trace, chains: _Chains) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the chains' kernels, as positions in the device's rows, and the chain of each."""
    device = trace.devices[0]
    op, call = trace.links.op[device.rows], trace.links.call[device.rows]
    foreign = trace.matching(_FOREIGN)
    foreign &= ~_with_inner(trace, chains.gemms)
    able = (op >= 0) & ~foreign[op] & (trace.kind[device.rows] == Kind.KERNEL) & ~device.comm
    chain = np.full(len(device.rows), -1, np.int64)
    for lane in np.unique(trace.lane[chains.softmax]).tolist():
        mine = np.flatnonzero(trace.lane[chains.softmax] == lane)
        mine = mine[np.argsort(trace.start_ns[chains.first[mine]])]
        spans = intervals.spans(
            trace.start_ns[chains.first[mine]], trace.end_ns[chains.last[mine]]
        )
        here = np.flatnonzero(able & (trace.lane[call] == lane))
        owner = intervals.owner(spans, trace.start_ns[call[here]])
        chain[here[owner >= 0]] = mine[owner[owner >= 0]]
    at = np.flatnonzero(chain >= 0)
    return at, chain[at]


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

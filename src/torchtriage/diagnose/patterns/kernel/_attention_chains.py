"""Where operators compute attention step by step: product, softmax, product."""

import re
from dataclasses import dataclass

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import distinct
from torchtriage.core.trace.matrix_products import NOT_FP32_KERNEL, TF32_KERNEL, Products, is_shape, products
from torchtriage.diagnose.patterns.base import HOST_KINDS, Floats, Ints, Kind, Mask, Trace

_PRODUCTS = ("aten::bmm", "aten::baddbmm", "aten::mm", "aten::addmm")
FORWARD, BACKWARD = "aten::_softmax", "aten::_softmax_backward_data"
_FOREIGN = r"^aten::(addmm|mm|linear)$|conv|norm|embedding|gelu|relu|silu"
"""Work of a neighbouring layer that may run between the products."""
MIN_LENGTH = 128  # shorter sequences gain little from fusion (catalogue 25)
MAX_HEAD = 256  # no flash kernel beyond this head dimension
LEAST_HEAD = 64  # narrower heads make a fused kernel no faster (FlashAttention-2, figures 4-6: 64 against 128)
RECOMPUTE = 1.25  # a fused backward pass computes the scores again: five products instead of four

_WORK = {
    "P": r"^aten::(bmm|baddbmm)$",
    "S": rf"^{FORWARD}$",
    "w": r"^aten::((add|sub|rsub|mul|div|neg|where|masked_fill|fill|zero|copy|clamp\w*|maximum|minimum|tril|triu"
    r"|logical_\w+|bitwise_\w+|bernoulli)_?|eq|ne|lt|le|gt|ge|any|all|arange|(native_|_fused_)?dropout)$",
    "l": r"^aten::(mm|addmm)$",
    "r": r"^aten::(mean|sum|max|amax|argmax|topk|sort)$",
}
"""Letters for batched products, softmax, pointwise work, layers, and what reduces its input."""
_ATTENTION = re.compile("Pw*(S)w*(P)(?=w*l?(r)|)")
"""A layer may follow before the weights are averaged."""
_LONG = r"softmax_warp_forward<[^>]*, ([89]|1\d),|cunn_SoftMaxForward"
"""Kernels of a softmax over the last dimension: over more than 2^7 keys, by the power of two in the name, or 1,024."""
_HALF = rf"{NOT_FP32_KERNEL}|^Cijk_A[a-z]+_B[a-z]+_[BH]|^nvjet_(sm\d+_)?[ht]s"
LEAST_NS = 10_000  # the time of a shorter softmax says little about its size
MOST_PRODUCT = 2
"""In a product that takes more times the softmax, few queries meet many keys, or heads are wide."""
READS_WEIGHTS = 0.25
"""A reduction that takes this part of the softmax's time reads the weights: no fused kernel gives them."""


@dataclass(frozen=True, eq=False)
class AttentionChains:
    """Attention chains on the host; arrays have one element per chain.

    ``softmax``, ``first``, ``last`` : op rows. ``flop``, ``n_bytes`` : of a fused kernel, 0 where no shapes are.
    ``half`` : bool, half-precision inputs. ``gemms`` : op rows of all products of all chains.
    """

    softmax: Ints
    first: Ints
    last: Ints
    flop: Floats
    half: Mask
    n_bytes: Floats
    shape: Ints
    """int64[c, 4]: batch x heads, S, S', head dimension; 0 where no shapes are."""
    gemms: Ints


def find_chains(trace: Trace) -> AttentionChains | None:
    """Return the softmax ops that stand between two products of their scores."""
    members = trace.tree.members
    wanted = trace.named(*_PRODUCTS, FORWARD, BACKWARD) & (trace.kind == Kind.OP)
    # autocast and old builds write an op inside itself: the outermost stands for all
    wanted &= ~trace.tree.under(wanted)
    line = members[wanted[members]]
    centre = np.flatnonzero(trace.named(FORWARD, BACKWARD)[line])
    scores = _scores(trace, line[centre])
    keep = (scores[:, 1] >= MIN_LENGTH) & (scores[:, 2] >= MIN_LENGTH)
    centre, scores = centre[keep], scores[keep]
    if not len(centre):
        return None
    work = products(trace, line)
    lane = trace.lane[line]
    backward = trace.named(BACKWARD)[line[centre]]

    def of_scores(offset: int) -> Mask:
        """Return bool[c]: whether the op this far from each softmax handles its scores."""
        near = centre + offset
        inside: Mask = (near >= 0) & (near < len(line))
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
        for offset, taken in ((-1, before), (1, after), (-2, wide_before), (2, wide_after))
    ]
    batch, queries, keys = scores[whole].astype(np.float64).T
    biased = trace.named("aten::baddbmm")[line[nearest[whole]]]
    # the exponentials take as long as the products of a head this wide
    fused = 4 * batch * queries * keys * np.maximum(head[whole], LEAST_HEAD)
    return AttentionChains(
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


def chains_in_order(trace: Trace) -> AttentionChains | None:
    """Return the softmax ops over long rows that stand between two batched products, where shapes are not recorded.

    Nothing but pointwise work may run between them, so that each works on what the one before it made. Forward alone:
    the order of a backward pass says less.
    """
    device, members = trace.devices[0], trace.tree.members
    op, call = trace.links.op[device.rows], trace.links.call[device.rows]
    launching = np.where(op >= 0, op, call)
    ops = members[trace.mask_of(launching[launching >= 0])[members]]
    letters = np.full(len(ops), ".")
    for letter, names in _WORK.items():
        letters[trace.matches(ops, names)] = letter
    ends = np.flatnonzero(np.diff(trace.lane[ops])) + 1
    ops, letters = np.insert(ops, ends, -1), np.insert(letters, ends, "|")
    places = [list(map(found.start, range(4))) for found in _ATTENTION.finditer("".join(letters))]
    if not places:
        return None
    kernels, op = device.rows[op >= 0], op[op >= 0]
    took = np.bincount(op, weights=trace.dur_ns[kernels], minlength=len(trace))
    long = trace.mask_of(op[trace.matches(kernels, _LONG)])
    half = trace.mask_of(op[trace.matches(kernels, _HALF) & ~trace.matches(kernels, TF32_KERNEL)])
    place = np.array(places).T
    first, softmax, last, reader = ops[place]
    keep = long[softmax] & (took[softmax] >= LEAST_NS)
    keep &= np.maximum(took[first], took[last]) <= MOST_PRODUCT * took[softmax]
    keep &= (place[3] < 0) | (took[reader] < READS_WEIGHTS * took[softmax])
    if not keep.any():
        return None
    first, softmax, last = first[keep], softmax[keep], last[keep]
    unknown = np.zeros(len(softmax))
    return AttentionChains(
        softmax=softmax,
        first=first,
        last=last,
        flop=unknown,
        half=half[first] | half[softmax] | half[last],
        n_bytes=unknown,
        shape=np.zeros((len(softmax), 4), np.int64),
        gemms=distinct(np.concatenate([first, last])),
    )


def _scores(trace: Trace, rows: Ints) -> Ints:
    out = np.zeros((len(rows), 3), np.int64)
    for index, dims in enumerate(trace.details_of("dims", rows)):
        shape = dims[0] if isinstance(dims, list) and dims else None
        if is_shape(shape) and len(shape) >= 2:
            out[index] = int(np.prod(shape[:-2], dtype=np.int64)), shape[-2], shape[-1]
    return out


def _handles(work: Products, index: Ints, scores: Ints) -> Mask:
    """Return bool[c]: products with the scores' batch and both of its lengths among their sides."""
    sides = [side[index] for side in (work.m, work.n, work.k)]
    batch, queries, keys = scores.T
    found = np.zeros(len(index), dtype=bool)
    for item in range(3):
        for other in range(3):
            if item != other:
                found |= (sides[item] == queries) & (sides[other] == keys)
    found &= work.batch[index] == batch
    return found


def _head(work: Products, index: Ints, scores: Ints) -> Ints:
    volume = work.m[index] * work.n[index] * work.k[index]
    return volume // np.maximum(scores[:, 1] * scores[:, 2], 1)


def kernels_of(trace: Trace, chains: AttentionChains) -> tuple[Ints, Ints]:
    """Return the kernels of all chains, as positions in ``devices[0].rows``, and the chain that each is of."""
    device = trace.devices[0]
    op, call = trace.links.op[device.rows], trace.links.call[device.rows]
    foreign = foreign_work(trace, chains)
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


def foreign_work(trace: Trace, chains: AttentionChains) -> Mask:
    """Return bool[n]: names of neighbouring layers' work, the chains' own products left out."""
    return trace.matching(_FOREIGN, *HOST_KINDS) & ~with_inner(trace, chains.gemms)


def with_inner(trace: Trace, ops: Ints) -> Mask:
    """Return bool[n]: these ops and whatever runs inside them."""
    mask = trace.mask_of(ops)
    return mask | trace.tree.under(mask)

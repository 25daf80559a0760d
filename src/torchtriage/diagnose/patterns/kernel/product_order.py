"""Three matrices are multiplied in the order that takes more work.

Looks like: an ``einsum`` of three operands or more that goes from left to right, as it does without ``opt_einsum``, and
    so builds a product of two long axes only to sum one of them away; a product with a sparse matrix, or rows that are
    gathered and added up by index (the mean over neighbours), whose wide result a linear layer immediately narrows. At
    least 5 % of the kernel time (on a CPU, of the step), and 30 % less work the other way round.
Slow because: (A B) C and A (B C) are equal, but their work is not: with A of n x d, B of d x n and C of n x d it is
    n n d against n d d. The backward pass repeats it twice.
Cost: modelled: the products with these sides, forward and backward, times the share of the work that the other order
    leaves out (for a sparse matrix the width of what it is multiplied with); at the low end 60 % of it.
Fix: write the products apart, the narrow one first; or install ``opt_einsum``, which PyTorch then uses automatically.
Leave it when: something happens to the product in between, a softmax for example.
Source: PyTorch documentation, ``torch.einsum`` and ``torch.backends.opt_einsum``; Kipf and Welling, "Semi-Supervised
    Classification with Graph Convolutional Networks", ICLR 2017.
"""

from collections.abc import Iterator

import numpy as np

from torchtriage.core.trace.matrix_products import BATCHED, products
from torchtriage.core.trace.op_inputs import Inputs, inputs_of
from torchtriage.core.trace.op_runs import outer_ops
from torchtriage.core.trace.schema import BACKWARD_NODE
from torchtriage.core.units import format_share
from torchtriage.diagnose.patterns._op_work import work_of
from torchtriage.diagnose.patterns.base import Claim, Claims, Fix, Floats, Ints, Kind, Pattern, Trace, aten

PATTERN = Pattern.of(
    __name__, "KRN071", "Matrix products in the order that takes more work", order=546, needs="ops shapes work"
)
FIX = Fix(
    text="Contract the long axis first; with opt_einsum installed PyTorch finds the order by itself.",
    code="""context = torch.einsum("bhmd,bhme->bhde", keys, values)  # no n x m between
out = torch.einsum("bhnd,bhde->bhne", queries, context)""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.einsum.html",
)
_NARROW_FIRST = Fix(
    text="If the layer narrows the features, apply it before summing over neighbours.",
    code="""out = torch.sparse.mm(adjacency, linear(x)) + bias
# not linear(torch.sparse.mm(adjacency, x)) + bias, nor linear(mean_over_neighbours(x))""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.sparse.mm.html",
)

MIN_SHARE = 0.05
MIN_GAIN = 0.30
SURE = 0.6
_PRODUCTS = ("aten::mm", *BATCHED)
_ADDS = aten("index_add index_add_ scatter_add scatter_add_")
_GATHERS = aten("index_select index gather")
_FACTORS = aten("div div_ mul mul_")
_COUNTS = aten("bincount clamp_min clamp clamp_min_ clamp_ unsqueeze view reshape to reciprocal")
_EMPTY = aten("zeros new_zeros zeros_like ones")
"""Beside the sum over neighbours and the layer: what their number is computed by."""
MOST_BETWEEN = 12
_NARROWS = ("aten::linear", "aten::mm", "aten::matmul")


def find(trace: Trace) -> Claims:
    """Yield a claim for einsums, one for products with sparse matrices, and one for rows added up by index."""
    yield from _einsums(trace)
    yield from _sparse(trace)
    yield from _gathered(trace)


def _einsums(trace: Trace) -> Iterator[Claim]:
    is_einsum = trace.named("aten::einsum")
    if not is_einsum.any():
        return
    members = trace.tree.members
    rows = members[(trace.named(*_PRODUCTS) & (trace.kind == Kind.OP))[members]]
    work = products(trace, rows)
    inside = trace.tree.nearest(rows, is_einsum)
    sides = np.stack([work.batch, work.m, work.k, work.n], axis=1)
    pairs = np.flatnonzero((inside[:-1] >= 0) & (inside[:-1] == inside[1:]) & work.known[:-1] & work.known[1:])
    gains, einsums = {}, set()
    for pair, first, second in zip(pairs.tolist(), sides[pairs].tolist(), sides[pairs + 1].tolist(), strict=True):
        gain = _gain(*first, *second)
        if gain >= MIN_GAIN:
            gains[first[0], min(first[1], first[3]), max(first[1], first[3])] = gain
            einsums.add(int(inside[pair]))
    if not gains:
        return
    # forward and backward, each of them reads or writes the product of the two long axes
    forward = np.isin(inside, list(einsums))
    mine = forward | (trace.tree.nearest(rows, trace.matching(f"^{BACKWARD_NODE}")) >= 0)
    ends = np.sort(sides[:, 1:], axis=1)
    share = np.zeros(len(rows))
    for (batch, short, long), gain in gains.items():
        has = ((ends == short).sum(axis=1) + (ends == long).sum(axis=1) >= 2) & (work.batch == batch) & mine
        has &= (ends == short).any(axis=1) & (ends == long).any(axis=1)
        share[has] = np.maximum(share[has], gain)
    batch, short, long = max(gains, key=lambda shape: int(np.prod(shape)))
    yield from _claim(
        trace,
        rows[share > 0],
        share[share > 0],
        f"an einsum of three operands builds products of {long:,} x {short:,}, {batch:,} at a time, which take",
        {"batch": batch, "rows": long, "columns": short},
        trace.longest(rows[(share > 0) & forward]),
        FIX,
    )


def _gain(batch: int, m: int, k: int, n: int, again: int, left: int, inner: int, right: int) -> float:
    """Return the share of the work that another order leaves out, of [m, k] @ [k, n] and of what takes its result."""
    now = m * k * n + left * inner * right
    others = [now]
    if batch == again and (left, inner) == (m, n):
        others.append(k * n * right + m * k * right)
    if batch == again and (inner, right) == (m, n):
        others.append(left * m * k + left * k * n)
    return 1 - min(others) / now


def _sparse(trace: Trace) -> Iterator[Claim]:
    rows = np.flatnonzero(trace.named("aten::_sparse_mm") & (trace.kind == Kind.OP))
    if not len(rows):
        return
    ops = np.flatnonzero(trace.kind == Kind.OP)
    ops = ops[np.argsort(trace.start_ns[ops], kind="stable")]
    after = np.searchsorted(trace.start_ns[ops], trace.end_ns[rows])
    following = ops[np.minimum(after, len(ops) - 1)]
    follows = (after < len(ops)) & trace.named(*_NARROWS)[following] & (trace.lane[following] == trace.lane[rows])
    inputs, which = inputs_of(trace, rows)
    outs, of = inputs_of(trace, following)
    widths = np.array([(given.shape(1) or [0])[-1] for given in inputs])[which]
    gain = np.zeros(len(rows))
    for index in np.flatnonzero(follows).tolist():
        given, weight = inputs[which[index]].shape(1), outs[of[index]].shape(1)
        if len(given) != 2 or len(weight) != 2 or outs[of[index]].shape(0) != given:
            continue
        narrow = weight[0] if trace.name_of(following[index]) == "aten::linear" else weight[1]
        gain[index] = max(1 - narrow / given[1], 0.0)
    best = {int(width): float(gain[widths == width].max()) for width in np.unique(widths)}
    # the backward pass multiplies what has the same width
    share = np.array([best[int(width)] for width in widths])
    share[share < MIN_GAIN] = 0.0
    if not share.any():
        return
    longest = rows[gain >= MIN_GAIN][np.argmax(trace.dur_ns[rows[gain >= MIN_GAIN]])]
    width = int(widths[np.searchsorted(rows, longest)])
    yield from _claim(
        trace,
        rows[share > 0],
        share[share > 0],
        f"products of a sparse matrix with {width:,} columns, which a layer reduces right after, take",
        {"columns": width},
        int(longest),
        _NARROW_FIRST,
    )


def _gathered(trace: Trace) -> Iterator[Claim]:
    is_add, is_gather = trace.named(*_ADDS), trace.named(*_GATHERS)
    ops = outer_ops(trace)
    inputs, which = inputs_of(trace, ops)
    given = [inputs[code] for code in which.tolist()]
    names = [trace.name_of(row) for row in ops.tolist()]
    gains: dict[int, list[float]] = {}
    for place in np.flatnonzero(is_add[ops]).tolist():
        nodes, edges = given[place].shape(0), given[place].shape(3)
        if len(nodes) == 2 and len(edges) == 2 and nodes[1] == edges[1] and 0 < nodes[0] <= edges[0]:
            narrow = _follows_gather(names, given, place) and _narrows(names, given, place)
            gains.setdefault(nodes[1], []).append(max(1 - narrow / nodes[1], 0.0) if narrow else 0.0)
    # rows of the same width are gathered before, and in the backward pass, of all layers with that width
    best = {width: sum(some) / len(some) for width, some in gains.items() if max(some) >= MIN_GAIN}
    rows = np.flatnonzero((is_add | is_gather) & (trace.kind == Kind.OP))
    rows = rows[trace.tree.nearest(rows, is_add | is_gather | trace.named("aten::embedding")) < 0]
    inputs, which = inputs_of(trace, rows)
    widths = np.array([each.shape(0)[-1] if len(each.shape(0)) == 2 else 0 for each in inputs] or [0])[which]
    share = np.array([best.get(int(width), 0.0) for width in widths])
    if not share.any():
        return
    longest = int(np.argmax(np.where((share > 0) & is_add[rows], trace.dur_ns[rows], -1)))
    columns = int(widths[longest])
    yield from _claim(
        trace,
        rows[share > 0],
        share[share > 0],
        f"gathering and adding up rows of {columns:,} columns, which a layer then reduces, takes",
        {"columns": columns},
        int(rows[longest]),
        _NARROW_FIRST,
    )


def _follows_gather(names: list[str], given: list[Inputs], place: int) -> bool:
    """Return whether rows are added up as they were gathered from as many, but for a factor of each row."""
    nodes, (n_edges, _) = given[place].shape(0), given[place].shape(3)
    for before in range(place - 1, max(place - 1 - MOST_BETWEEN, -1), -1):
        if names[before] in _GATHERS:
            return given[before].shape(0) == nodes
        factor = given[before].shape(1)
        scales = names[before] in _FACTORS and factor in ([n_edges, 1], [1], [])
        counts = names[before] in _COUNTS and given[before].shape(0)[1:] != nodes[1:]
        if not scales and not counts and names[before] not in _EMPTY:
            return False
    return False


def _narrows(names: list[str], given: list[Inputs], place: int) -> int:
    """Return how wide a layer makes the sum right after, or its mean; 0 where none does."""
    nodes = given[place].shape(0)
    for after in range(place + 1, min(place + 1 + MOST_BETWEEN, len(names))):
        weight = given[after].shape(1)
        if names[after] == "aten::linear" and given[after].shape(0) == nodes and len(weight) == 2:
            return weight[0]
        factor = names[after] in _FACTORS and weight in ([nodes[0], 1], [1], [])
        counts = names[after] in _COUNTS and given[after].shape(0) != nodes  # not a clamp of the sum itself
        if not factor and not counts and names[after] not in _EMPTY:
            return 0
    return 0


def _claim(
    trace: Trace, rows: Ints, share: Floats, what: str, evidence: dict[str, int], anchor: int, fix: Fix
) -> Iterator[Claim]:
    work = work_of(trace, rows)
    if work is None or work.share < MIN_SHARE:
        return
    shares = dict(zip(rows.tolist(), share.tolist(), strict=True))
    own = np.array([shares.get(row, 0.0) for row in work.op.tolist()])
    yield work.claim(
        f"{what} {work.text}; the other order saves {format_share(float(own.max()))} of the work",
        "products",
        low=SURE * own,
        high=own,
        method="share of the work that the other order leaves out",
        evidence={**evidence, "n_per_step": work.n_per_step},
        anchor=anchor,
        fix=fix,
    )

"""Which collectives are tensor-parallel: what comes after each needs its result at once."""

import re

import numpy as np

from torchtriage.core.trace.collective_time import Collectives
from torchtriage.core.trace.messages import Messages
from torchtriage.diagnose.patterns.base import Ints, Kind, Mask, Trace
from torchtriage.diagnose.patterns.comm._sharding import FSDP

MANY = 4  # per step: forward and backward pass of two products; fewer are no layers
NEAR_OPS = 3  # operators between a product and its collective: a bias, a view, a wrapper
PRODUCT = r"^aten::(mm|addmm|bmm|baddbmm|linear|_scaled_mm|matmul)$"
_GROUP = re.compile(r"(?i)(?<![a-z])tp(?![a-z])|tensor[-_ ]?(model[-_ ]?)?parallel")
_KINDS = r"(?i)all_?reduce|all_?gather|reduce_?scatter"
_VIEWS = r"^aten::(_unsafe_view|view|reshape|t|transpose|permute|detach|alias|slice|select|as_strided|expand|to)$"
_DATA_PARALLEL = rf"{FSDP}|AccumulateGrad|^Optimizer\."


def tensor_parallel(found: Collectives) -> tuple[Mask, Ints]:
    """Return which collectives are tensor-parallel, bool[k], and the product before each, int64[k], -1 without one.

    They are of a group called so, or right behind a product, and none of FSDP's or DDP's; few per step are none.
    """
    trace, steps = found.trace, found.trace.steps
    product = _product_before(trace, found.enqueued_by)
    op = np.maximum(found.enqueued_by, 0)
    pick: Mask = (found.enqueued_by >= 0) & trace.matching(_KINDS)[op]
    pick &= trace.tree.nearest(op, trace.hosts & trace.matching(_DATA_PARALLEL)) < 0
    groups, code = Messages(trace, found.rows).groups
    named = np.array([bool(_GROUP.search(group.label)) for group in groups], dtype=bool)[code]
    # the first behind each product: gradients that are reduced one by one stand all behind the last
    order = np.lexsort((trace.start_ns[op], product))
    first = np.zeros(len(op), dtype=bool)
    first[order] = np.append(True, product[order][1:] != product[order][:-1])[: len(order)]
    pick &= named | ((product >= 0) & first)
    if steps.median_count(steps.of_host(op[pick])) < MANY:
        pick = np.zeros_like(pick)
    return pick, product


def _product_before(trace: Trace, op: Ints) -> Ints:
    """Return int64[k]: the product whose result each collective exchanges, -1 without one just before it."""
    out = np.full(len(op), -1, np.int64)
    ops = trace.kind == Kind.OP
    products = ops & trace.matching(PRODUCT)
    works = ops & trace.matching(r"^aten::") & ~trace.matching(_VIEWS) & ~trace.tree.under(products) & ~products
    for lane in np.unique(trace.lane[op[op >= 0]]).tolist():
        mine = np.flatnonzero((op >= 0) & (trace.lane[np.maximum(op, 0)] == lane))
        rows = np.flatnonzero(products & ~trace.tree.under(products) & (trace.lane == lane))
        if not len(rows):
            continue
        rows = rows[np.argsort(trace.end_ns[rows], kind="stable")]
        index = np.searchsorted(trace.end_ns[rows], trace.start_ns[op[mine]], side="right") - 1
        before = rows[np.maximum(index, 0)]
        starts = np.sort(trace.start_ns[works & (trace.lane == lane)])
        between = np.searchsorted(starts, trace.start_ns[op[mine]]) - np.searchsorted(starts, trace.end_ns[before])
        out[mine] = np.where((index >= 0) & (between <= NEAR_OPS), before, -1)
    return out

"""The gradient of an embedding table is dense although a step touches few of its rows.

Looks like: ``aten::embedding_dense_backward``, or ``aten::_embedding_bag_dense_backward``, on a table with at least ten
    times as many rows as indices in the step; its time, and that of the operators of optimizer and accumulation on
    tensors of the table's shape (of fused and foreach operators the table's part of all elements), is at least 5 % of
    the kernel time (on a CPU, of the step).
Slow because: the whole gradient is filled with zeros to set a few rows, and the optimizer reads and writes table,
    gradient and state in full.
Cost: at most the share of the untouched rows; half of that at the low end, and only the part the device can recover
    because the next kernel is already queued.
Fix: ``sparse=True`` with an optimizer that accepts sparse gradients. Plain SGD and Adagrad do, with the same result.
Leave it when: untouched rows have to move too (momentum, weight decay, Adam's moments: then it is a hint), the table is
    also the output layer, gradients are clipped by their norm, or the table is sharded over ranks.
Source: PyTorch documentation, ``torch.nn.Embedding`` (``sparse``) and ``torch.optim.SparseAdam``; measured on a CPU:
    512 indices into 200,000 rows, 53 ms of a step of 55 ms; on an H200: six tables of 8.3 million rows under Adagrad,
    8.6 of 10 ms of kernels, of which sparse gradients leave 1.4.
"""

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.trace.op_inputs import where_inputs
from torchtriage.core.units import format_count, format_ns, format_share
from torchtriage.diagnose.patterns._op_work import work_of
from torchtriage.diagnose.patterns._recurrence import recurs
from torchtriage.diagnose.patterns._sparse_tables import lookups, moves_no_other_row, passes
from torchtriage.diagnose.patterns.base import Claims, Fix, Kind, Pattern, Trace

PATTERN = Pattern.of(
    __name__, "OPT047", "Dense gradients for an embedding that is sparsely used", order=542, needs="ops shapes work"
)
FIX = Fix(
    text="Ask for sparse gradients, and give the table an optimizer that accepts them.",
    code="""table = torch.nn.Embedding(n_rows, width, sparse=True)
sparse = torch.optim.SparseAdam(table.parameters(), lr=lr)  # or SGD, Adagrad
dense = torch.optim.AdamW(other_parameters, lr=lr)""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html",
)

_SAME_RESULT = Fix(
    text="Ask for sparse gradients: this optimizer accepts them as it is (except its fused form), and rows without a"
    " gradient do not move either way.",
    code="""table = torch.nn.Embedding(n_rows, width, sparse=True)
bags = torch.nn.EmbeddingBag(n_rows, width, mode="mean", sparse=True)""",
    link=FIX.link,
)

MIN_SHARE = 0.05
MANY = 8  # fills of one table from which their number is worth a word: a loop looks rows up one by one
_UPDATE = r"^Optimizer\.step#|^torch::autograd::AccumulateGrad$"


def find(trace: Trace) -> Claims:
    """Yield one claim over all such tables."""
    steps = trace.steps
    rows, used = lookups(trace)
    if not len(rows) or not recurs(trace, rows):
        return
    marks = trace.matching(_UPDATE, Kind.ANNOTATION, Kind.OP)
    updates, part = passes(trace, marks, used)
    work = work_of(trace, np.concatenate([rows, updates]))
    if work is None:
        return
    # the part of an operator's time that is the tables'
    part_of = np.zeros(len(trace))
    part_of[rows], part_of[updates] = 1.0, part
    parts = part_of[work.op]
    took_ns = float((intervals.covered(work.spans, steps.judged) * parts).sum()) / steps.n_steady
    share = work.share * took_ns / work.per_step_ns
    if share < MIN_SHARE:
        return
    shape, n_indices = max(used, key=lambda table: table.shape[0] * table.shape[1])
    untouched = min(1 - table.n_indices / table.shape[0] for table in used)
    count = steps.mean_count(steps.of_host(rows))
    times = f" {format_count(count, 'time')} {steps.per}" if count >= MANY * len(used) else ""
    others = f", and so are those of {format_count(len(used) - 1, 'more table')}" if len(used) > 1 else ""
    same = moves_no_other_row(trace, updates, used)
    yield work._replace(per_step_ns=took_ns, share=share).claim(
        f"a gradient of {shape[0]:,} x {shape[1]:,} is filled{times} for"
        f" {format_count(n_indices, 'index', 'indices')}{others}: backward and optimizer take {format_ns(took_ns)}"
        f" {steps.per}, {format_share(share)} of {work.of}",
        "dense_gradient",
        certainty="likely" if same else "hint",
        low=0.5 * untouched * parts,
        high=untouched * parts,
        method="time of backward and update without the share of rows that were touched",
        evidence={
            "n_fills_per_step": count,
            "table_shape": list(shape),
            "n_indices": n_indices,
            "n_updates_of_that_shape": len(updates),
        },
        anchor=_lookup_of(trace, shape, trace.longest(rows)),
        fix=_SAME_RESULT if same else None,
    )


def _lookup_of(trace: Trace, shape: tuple[int, int], otherwise: int) -> int:
    """Return the first forward lookup of a table, which has the user's line."""
    rows = np.flatnonzero(trace.named("aten::embedding", "aten::embedding_bag") & (trace.kind == Kind.OP))
    rows = rows[trace.steps.in_steady(trace.steps.of_host(rows))]
    rows = rows[where_inputs(trace, rows, lambda call: tuple(call.shape(0)) == shape)]
    return int(rows[0]) if len(rows) else otherwise

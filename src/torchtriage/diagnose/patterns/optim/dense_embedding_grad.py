"""The gradient of an embedding table is dense although a step touches few of its rows.

Looks like: ``aten::embedding_dense_backward`` on a table with at least ten times as many rows as indices in the step;
    its time, and that of the optimizer's operators on tensors of the table's shape (of fused and foreach operators the
    table's part of all elements), is at least 5 % of the kernel time (on a CPU, of the step).
Slow because: the whole gradient is filled with zeros to set a few rows, and the optimizer reads and writes table,
    gradient and state in full.
Cost: at most the share of the untouched rows; half of that at the low end, and only the part the device can recover
    because the next kernel is already queued.
Fix: ``sparse=True`` with an optimizer that accepts sparse gradients.
Leave it when: untouched rows have to move too (momentum, weight decay), the table is also the output layer, or it is
    sharded over ranks.
Source: PyTorch documentation, ``torch.nn.Embedding`` (``sparse``) and ``torch.optim.SparseAdam``; measured on a CPU:
    512 indices into 200,000 rows, 53 ms of a step of 55 ms.
"""

import math
import re
from typing import Any

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import distinct
from torchtriage.core.trace.matrix_products import is_shape
from torchtriage.core.trace.op_inputs import Inputs, inputs_of
from torchtriage.core.units import format_count, format_ns, format_share
from torchtriage.diagnose.patterns._op_work import work_of
from torchtriage.diagnose.patterns._recurrence import recurs
from torchtriage.diagnose.patterns.base import Claims, Fix, Floats, Ints, Kind, Pattern, Trace

PATTERN = Pattern.of(
    __name__, "OPT047", "Dense gradients for an embedding that is sparsely used", order=542, needs="ops shapes work"
)
FIX = Fix(
    text="Ask for sparse gradients, and give the table an optimizer that takes them.",
    code="""table = torch.nn.Embedding(n_rows, width, sparse=True)
sparse = torch.optim.SparseAdam(table.parameters(), lr=lr)  # or SGD, Adagrad
dense = torch.optim.AdamW(other_parameters, lr=lr)""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html",
)

MIN_RATIO = 10  # rows per index; below, a dense gradient is no worse than sorting the indices
MIN_SHARE = 0.05
MANY = 8  # fills of one table from which their number is worth a word: a loop looks rows up one by one
_BACKWARD = "aten::embedding_dense_backward"
N_ROWS = 2  # where the number of rows stands among the inputs of the backward operator


def find(trace: Trace) -> Claims:
    """Yield one claim over all such tables."""
    steps = trace.steps
    rows = np.flatnonzero(trace.named(_BACKWARD) & (trace.kind == Kind.OP))
    rows = rows[~trace.tree.under(trace.named(_BACKWARD))[rows]]
    inputs, which = inputs_of(trace, rows)
    tables = [_table(call) for call in inputs]
    sparse = np.array([table is not None for table in tables], dtype=bool)[which]
    rows, which = rows[sparse], which[sparse]
    if not len(rows) or not recurs(trace, rows):
        return
    used = [table for code in distinct(which).tolist() if (table := tables[code]) is not None]
    updates, part = _updates(trace, {shape for shape, _ in used})
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
    shape, n_indices = max(used, key=lambda table: table[0][0] * table[0][1])
    untouched = min(1 - touched / size[0] for size, touched in used)
    count = steps.mean_count(steps.of_host(rows))
    times = f" {format_count(count, 'time')} {steps.per}" if count >= MANY * len(used) else ""
    yield work._replace(per_step_ns=took_ns, share=share).claim(
        f"a gradient of {shape[0]:,} x {shape[1]:,} is filled{times} for"
        f" {format_count(n_indices, 'index', 'indices')}: backward and optimizer take {format_ns(took_ns)}"
        f" {steps.per}, {format_share(share)} of {work.of}",
        "dense_gradient",
        certainty="hint",
        low=0.5 * untouched * parts,
        high=untouched * parts,
        method="time of backward and update without the share of rows that were touched",
        evidence={
            "n_fills_per_step": count,
            "table_shape": list(shape),
            "n_indices": n_indices,
            "n_updates_of_that_shape": len(updates),
        },
        anchor=trace.longest(rows),
    )


def _table(inputs: Inputs) -> tuple[tuple[int, int], int] | None:
    gradient, text = inputs.shape(0), inputs.value(N_ROWS)
    if not gradient or not inputs.shape(1) or not re.fullmatch(r"[0-9]{1,12}", text):
        return None
    n_rows, n_indices = int(text), inputs.numel(1)
    sparse = n_rows >= MIN_RATIO * n_indices > 0
    return ((n_rows, gradient[-1]), n_indices) if sparse else None


def _updates(trace: Trace, shapes: set[tuple[int, int]]) -> tuple[Ints, Floats]:
    marks = trace.is_kind(Kind.ANNOTATION, Kind.OP) & trace.matching(r"^Optimizer\.step#")
    rows = np.flatnonzero((trace.kind == Kind.OP) & trace.tree.under(marks))
    inputs, which = inputs_of(trace, rows)
    part = np.array([_part(call.dims, shapes) for call in inputs])[which]
    inside = trace.mask_of(rows[part > 0])
    outer = (part > 0) & ~trace.tree.under(inside)[rows]
    return rows[outer], part[outer]


def _part(dims: list[Any], shapes: set[tuple[int, int]]) -> float:
    first = dims[0] if dims else None
    tensors = [first] if is_shape(first) else first if isinstance(first, list) else []
    sizes = [math.prod(tensor) if is_shape(tensor) else 0 for tensor in tensors]
    tables = [size for size, tensor in zip(sizes, tensors, strict=True) if size and tuple(tensor) in shapes]
    return sum(tables) / sum(sizes) if tables else 0.0

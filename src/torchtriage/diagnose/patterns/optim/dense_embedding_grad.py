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

import math
import re
from typing import Any

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.arrays import distinct
from torchtriage.core.trace.matrix_products import is_shape
from torchtriage.core.trace.op_inputs import Inputs, inputs_of, where_inputs
from torchtriage.core.units import format_count, format_ns, format_share
from torchtriage.diagnose.patterns._op_work import work_of
from torchtriage.diagnose.patterns._recurrence import recurs
from torchtriage.diagnose.patterns.base import Claims, Fix, Floats, Ints, Kind, Pattern, Trace, aten

PATTERN = Pattern.of(
    __name__, "OPT047", "Dense gradients for an embedding that is sparsely used", order=351, needs="ops shapes work"
)
FIX = Fix(
    text="Ask for sparse gradients, and give the table an optimizer that takes them.",
    code="""table = torch.nn.Embedding(n_rows, width, sparse=True)
sparse = torch.optim.SparseAdam(table.parameters(), lr=lr)  # or SGD, Adagrad
dense = torch.optim.AdamW(other_parameters, lr=lr)""",
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html",
)

_SAME_RESULT = Fix(
    text="Ask for sparse gradients: this optimizer takes them as it is (but for its fused form), and rows without a"
    " gradient do not move either way.",
    code="""table = torch.nn.Embedding(n_rows, width, sparse=True)
bags = torch.nn.EmbeddingBag(n_rows, width, mode="mean", sparse=True)""",
    link=FIX.link,
)

MIN_RATIO = 10  # rows per index; below, a dense gradient is no worse than sorting the indices
MIN_SHARE = 0.05
MANY = 8  # fills of one table from which their number is worth a word: a loop looks rows up one by one
_BACKWARD = {"aten::embedding_dense_backward": 2, "aten::_embedding_bag_dense_backward": 5}
"""The backward operators, and where among their inputs the number of rows stands."""
_STEP = r"^Optimizer\.step#"
_UPDATE = rf"{_STEP}|^torch::autograd::AccumulateGrad$"
_STILL = re.compile(r"#(SGD|Adagrad)\.step$")
_PASSES = {
    f"aten::{form}{name}" for form in ("", "_foreach_") for name in ("add_", "addcmul_", "sqrt", "mul", "addcdiv_")
}
"""All that plain SGD and Adagrad do: momentum and other moments also ``mul_`` or ``lerp_``, weight decay ``add``."""


def find(trace: Trace) -> Claims:
    """Yield one claim over all such tables."""
    steps = trace.steps
    rows, used = _lookups(trace)
    if not len(rows) or not recurs(trace, rows):
        return
    shapes = {shape for shape, _ in used}
    updates, part = _updates(trace, shapes)
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
    others = f", and those of {format_count(len(used) - 1, 'more table')} likewise" if len(used) > 1 else ""
    same = _moves_no_other_row(trace, updates, shapes)
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
        anchor=trace.longest(rows),
        fix=_SAME_RESULT if same else None,
    )


def _lookups(trace: Trace) -> tuple[Ints, list[tuple[tuple[int, int], int]]]:
    """Return the backward operators over sparsely used tables; their distinct shapes and numbers of indices."""
    found: list[Ints] = []
    used = []
    for name, n_rows in _BACKWARD.items():
        rows = np.flatnonzero(trace.named(name) & (trace.kind == Kind.OP))
        rows = rows[~trace.tree.under(trace.named(name))[rows]]
        inputs, which = inputs_of(trace, rows)
        tables = [_table(call, n_rows) for call in inputs]
        sparse = np.array([table is not None for table in tables], dtype=bool)[which]
        found.append(rows[sparse])
        used += [table for code in distinct(which[sparse]).tolist() if (table := tables[code]) is not None]
    return np.sort(np.concatenate(found)), used


def _table(inputs: Inputs, at: int) -> tuple[tuple[int, int], int] | None:
    gradient, text = inputs.shape(0), inputs.value(at)
    if not gradient or not inputs.shape(1) or not re.fullmatch(r"[0-9]{1,12}", text):
        return None
    n_rows, n_indices = int(text), inputs.numel(1)
    sparse = n_rows >= MIN_RATIO * n_indices > 0
    return ((n_rows, gradient[-1]), n_indices) if sparse else None


def _updates(trace: Trace, shapes: set[tuple[int, int]]) -> tuple[Ints, Floats]:
    marks = trace.is_kind(Kind.ANNOTATION, Kind.OP) & trace.matching(_UPDATE)
    rows = np.flatnonzero((trace.kind == Kind.OP) & trace.tree.under(marks))
    inputs, which = inputs_of(trace, rows)
    part = np.array([_part(call.dims, shapes) for call in inputs])[which]
    inside = trace.mask_of(rows[part > 0])
    outer = (part > 0) & ~trace.tree.under(inside)[rows]
    return rows[outer], part[outer]


def _moves_no_other_row(trace: Trace, updates: Ints, shapes: set[tuple[int, int]]) -> bool:
    """Return whether rows without a gradient stay as they are, and no matrix product needs a dense one."""
    mark = trace.tree.outermost(updates, trace.matching(_STEP))
    steps = {trace.name_of(row) for row in distinct(mark[mark >= 0]).tolist()}
    passes = {trace.name_of(row) for row in updates[mark >= 0].tolist()}
    if not steps or not all(map(_STILL.search, steps)) or not passes <= _PASSES:
        return False
    products = np.flatnonzero(trace.named(*aten("linear matmul t mm addmm")) & (trace.kind == Kind.OP))
    tied = where_inputs(trace, products, lambda call: any(tuple(call.shape(index)) in shapes for index in range(3)))
    return not tied.any()


def _part(dims: list[Any], shapes: set[tuple[int, int]]) -> float:
    first = dims[0] if dims else None
    tensors = [first] if is_shape(first) else first if isinstance(first, list) else []
    sizes = [math.prod(tensor) if is_shape(tensor) else 0 for tensor in tensors]
    tables = [size for size, tensor in zip(sizes, tensors, strict=True) if size and tuple(tensor) in shapes]
    return sum(tables) / sum(sizes) if tables else 0.0

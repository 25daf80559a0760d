"""Embedding tables of which a step touches few rows, and the passes over all of them."""

import math
import re
from typing import Any, NamedTuple

import numpy as np

from torchtriage.core.arrays import distinct
from torchtriage.core.trace.matrix_products import is_shape
from torchtriage.core.trace.op_inputs import Inputs, inputs_of, where_inputs
from torchtriage.diagnose.patterns.base import Floats, Ints, Kind, Mask, Trace, aten

MIN_RATIO = 10  # rows per index; below, a dense gradient is no worse than sorting the indices
_BACKWARD = {"aten::embedding_dense_backward": 2, "aten::_embedding_bag_dense_backward": 5}
"""The backward operators, and where among their inputs the number of rows stands."""

_STEP = r"^Optimizer\.step#"
_STILL = re.compile(r"#(SGD|Adagrad)\.step$")
_PASSES = {
    f"aten::{form}{name}" for form in ("", "_foreach_") for name in ("add_", "addcmul_", "sqrt", "mul", "addcdiv_")
}
"""All that plain SGD and Adagrad do: momentum and other moments also ``mul_`` or ``lerp_``, weight decay ``add``."""


class Table(NamedTuple):
    """A table's shape, and how many indices into it a lookup has."""

    shape: tuple[int, int]
    n_indices: int


def lookups(trace: Trace) -> tuple[Ints, list[Table]]:
    """Return the backward operators of sparsely used tables, and those tables, each distinct use once."""
    found: list[Ints] = []
    used: list[Table] = []
    for name, at in _BACKWARD.items():
        rows = np.flatnonzero(trace.named(name) & (trace.kind == Kind.OP))
        rows = rows[~trace.tree.under(trace.named(name))[rows]]
        inputs, which = inputs_of(trace, rows)
        tables = [_table(call, at) for call in inputs]
        sparse = np.array([table is not None for table in tables], dtype=bool)[which]
        found.append(rows[sparse])
        used += [table for code in distinct(which[sparse]).tolist() if (table := tables[code]) is not None]
    return np.sort(np.concatenate(found)), used


def passes(trace: Trace, inside: Mask, tables: list[Table]) -> tuple[Ints, Floats]:
    """Return the operators under some rows that work on whole tables, and the part of their elements that are those."""
    shapes = {table.shape for table in tables}
    rows = np.flatnonzero((trace.kind == Kind.OP) & trace.tree.under(inside))
    inputs, which = inputs_of(trace, rows)
    part = np.array([_part(call.dims, shapes) for call in inputs])[which]
    touches = trace.mask_of(rows[part > 0])
    outer = (part > 0) & ~trace.tree.under(touches)[rows]
    return rows[outer], part[outer]


def moves_no_other_row(trace: Trace, updates: Ints, used: list[Table]) -> bool:
    """Return whether rows without a gradient stay as they are, and no matrix product needs a dense one."""
    mark = trace.tree.outermost(updates, trace.matching(_STEP))
    steps = {trace.name_of(row) for row in distinct(mark[mark >= 0]).tolist()}
    names = {trace.name_of(row) for row in updates[mark >= 0].tolist()}
    if not steps or not all(map(_STILL.search, steps)) or not names <= _PASSES:
        return False
    shapes = {table.shape for table in used}
    products = np.flatnonzero(trace.named(*aten("linear matmul t mm addmm")) & (trace.kind == Kind.OP))
    tied = where_inputs(trace, products, lambda call: any(tuple(call.shape(index)) in shapes for index in range(3)))
    return not tied.any()


def _table(inputs: Inputs, at: int) -> Table | None:
    gradient, text = inputs.shape(0), inputs.value(at)
    if not gradient or not inputs.shape(1) or not re.fullmatch(r"[0-9]{1,12}", text):
        return None
    n_rows, n_indices = int(text), inputs.numel(1)
    sparse = n_rows >= MIN_RATIO * n_indices > 0
    return Table((n_rows, gradient[-1]), n_indices) if sparse else None


def _part(dims: list[Any], shapes: set[tuple[int, int]]) -> float:
    first = dims[0] if dims else None
    tensors = [first] if is_shape(first) else first if isinstance(first, list) else []
    sizes = [math.prod(tensor) if is_shape(tensor) else 0 for tensor in tensors]
    tables = [size for size, tensor in zip(sizes, tensors, strict=True) if size and tuple(tensor) in shapes]
    return sum(tables) / sum(sizes) if tables else 0.0

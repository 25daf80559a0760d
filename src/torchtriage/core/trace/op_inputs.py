"""The recorded inputs of operators: each distinct set of them is decoded once."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints
from torchtriage.core.trace import Trace
from torchtriage.core.trace.matrix_products import is_shape

_FIELDS = ("dims", "types", "concrete", "strides")


class Inputs(NamedTuple):
    """The inputs of one operator, one entry each; empty lists where they were not recorded."""

    dims: list[Any]
    types: list[Any]
    concrete: list[Any]
    strides: list[Any]

    def shape(self, index: int) -> list[int]:
        """Return the shape of one input; empty for a scalar, and for what is no tensor."""
        value = self.dims[index] if index < len(self.dims) else None
        return value if is_shape(value) else []

    def numel(self, index: int) -> int:
        """Return the number of elements of one input, 1 without a shape."""
        return math.prod(self.shape(index))

    def type(self, index: int) -> str:
        """Return the type of one input as the profiler writes it; empty where unknown."""
        return _text(self.types, index)

    def value(self, index: int) -> str:
        """Return one scalar input as text; empty where unknown."""
        return _text(self.concrete, index)

    def axis(self, index: int, n_axes: int) -> int:
        """Return one scalar input as an axis counted from 0, -1 where it is none."""
        text = self.value(index)
        if not n_axes or not re.fullmatch(r"-?[0-9]{1,3}", text):
            return -1
        return int(text) % n_axes if -n_axes <= int(text) < n_axes else -1


_KNOWN: WeakKeyDictionary[Trace, dict[int, Inputs]] = WeakKeyDictionary()
"""Inputs by their code: several patterns ask for those of the same operators."""


def inputs_of(trace: Trace, rows: Ints) -> tuple[list[Inputs], Ints]:
    """Return the distinct inputs of some operators, and for each row the index of its own."""
    found, first, inverse = np.unique(trace.detail[rows], return_index=True, return_inverse=True)
    codes, known = found.tolist(), _KNOWN.setdefault(trace, {})
    new = [index for index, code in enumerate(codes) if code not in known]
    decoded = [trace.details_of(field, rows[first[new]]) for field in _FIELDS]
    for index, entry in zip(new, zip(*decoded, strict=True), strict=True):
        known[codes[index]] = Inputs(*(value or [] for value in entry))
    return [known[code] for code in codes], inverse.astype(np.int64)


def where_inputs(trace: Trace, rows: Ints, test: Callable[[Inputs], object]) -> NDArray[np.bool_]:
    """Return bool[k]: the operators whose inputs pass; each distinct set of them is tested once."""
    inputs, which = inputs_of(trace, rows)
    return np.array([bool(test(each)) for each in inputs], dtype=bool)[which]


def _text(values: list[Any], index: int) -> str:
    value = values[index] if index < len(values) else ""
    return value if isinstance(value, str) else ""

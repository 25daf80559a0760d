"""Boosted trees as arrays: numpy reads and runs them, whatever trained them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtriage.diagnose.detector.features import NAMES

_CELLS = 1 << 18
"""Rows times trees that are walked at once: what fits into a processor's cache."""
MOST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees whose leaves are added up, for one or more outputs.

    Nodes of all trees lie one after the other. ``feature``, ``threshold`` : at or below it, go
    ``left``; a leaf leads to itself. ``value`` : what a leaf adds. ``root`` : each tree's first
    node; trees of one output lie together. ``output`` : each tree's. ``base`` : where each output
    begins. ``depth`` : of the deepest tree.
    """

    feature: NDArray[np.int16]
    threshold: NDArray[np.float32]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    value: NDArray[np.float32]
    root: NDArray[np.int32]
    output: NDArray[np.int16]
    base: NDArray[np.float32]
    depth: NDArray[np.int16]

    def __call__(self, rows: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return float64[n, outputs]: the sums of the leaves that rows of features end in."""
        out = np.tile(self.base.astype(np.float64), (len(rows), 1))
        if not len(self.root):
            return out
        at_once = max(_CELLS // len(self.root), 1)
        first = np.flatnonzero(np.append(True, self.output[1:] != self.output[:-1]))
        for begin in range(0, len(rows), at_once):
            piece = rows[begin : begin + at_once]
            sums = np.add.reduceat(self._leaves(piece), first, axis=1)
            out[begin : begin + at_once, self.output[first]] += sums
        return out

    def _leaves(self, rows: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return float64[n, trees]: the leaf each row ends in."""
        node = np.tile(self.root, (len(rows), 1))
        at = np.arange(len(rows))[:, None]
        for _ in range(int(self.depth)):
            low = rows[at, self.feature[node]] <= self.threshold[node]
            node = np.where(low, self.left[node], self.right[node])
        return self.value[node].astype(np.float64)

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """Return the arrays by name, to be kept."""
        return {f"{prefix}.{field.name}": getattr(self, field.name) for field in fields(self)}

    @classmethod
    def of(cls, arrays: Mapping[str, Any], prefix: str) -> Forest:
        """Return the forest that was kept under this name.

        Raises KeyError, ValueError: it is not there, or damaged.
        """

        def of(name: str, kind: str, *shape: int, most: float = MOST) -> NDArray[Any]:
            return kept(arrays, f"{prefix}.{name}", kind, *shape, most=most)

        value, root, base = of("value", "f", -1), of("root", "i", -1), of("base", "f", -1)
        nodes, trees = len(value), len(root)
        forest = cls(
            of("feature", "i", nodes),
            of("threshold", "f", nodes, most=np.inf),  # a leaf's is infinite
            of("left", "i", nodes),
            of("right", "i", nodes),
            value,
            root,
            of("output", "i", trees),
            base,
            of("depth", "i"),
        )
        for indices, limit in (
            (forest.left, nodes),
            (forest.right, nodes),
            (forest.root, nodes),
            (forest.output, len(base)),
            (forest.feature, len(NAMES)),
        ):
            if len(indices) and not 0 <= indices.min() <= indices.max() < limit:
                raise ValueError(f"a tree of {prefix} leads out of it")
        return forest


def kept(arrays: Mapping[str, Any], name: str, kind: str, *shape: int, most: float = MOST) -> NDArray[Any]:
    """Return an array of weights.

    ``kind`` : ``f`` or ``i``, numpy's kind of number. ``shape`` : -1 for any length. ``most`` : no number is larger.

    Raises KeyError, ValueError: it is not there, or another.
    """
    found = np.asarray(arrays[name])
    fits = found.dtype.kind == kind and len(found.shape) == len(shape)
    fits = fits and all(wanted in (-1, length) for wanted, length in zip(shape, found.shape, strict=True))
    if not fits or not (np.abs(found) <= most).all():  # NaN is not, either
        raise ValueError(f"{name} of another kind ({found.dtype}), shape {found.shape}, or not finite")
    return found

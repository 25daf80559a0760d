"""More samples in a recorded batch: shapes and work scaled along the dimension that holds them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from torchtriage.core.names import word_list
from torchtriage_benchmark.synthetic.stream import LOADER, Op, Stream

_WEIGHTS = {
    "aten::conv2d": (1, 2),
    "aten::convolution": (1, 2),
    "aten::linear": (1, 2),
    "aten::conv_transpose2d": (1, 2),
    "aten::conv1d": (1, 2),
    "aten::layer_norm": (2, 3),
    "aten::group_norm": (2, 3),
    "aten::batch_norm": (1, 2, 3, 4),
    "aten::embedding": (0,),
    "torch::autograd::AccumulateGrad": (0,),
}
_SAMPLES = {"aten::linear": 0, "aten::addmm": 1, "aten::conv2d": 0, "aten::layer_norm": 0}
_SIZED = frozenset(
    word_list("""
        view reshape expand _unsafe_view _reshape_alias as_strided as_strided_ resize_ empty empty_strided zeros ones
        full new_empty new_zeros new_ones new_full new_empty_strided randn rand
    """)
)
"""Operators that are told sizes; what others are told is strides and windows."""
_LISTS = ("aten::_fused_adamw_", "aten::_foreach_zero_")


def scaled(stream: Stream, batch: int, by: int) -> None:
    """Make every batch ``by`` times as large, in place: in shapes, and in sizes asked for.

    Which dimension holds the samples is told by the shapes: the first one of what is no weight.
    """
    if by == 1:
        return
    weights = _weights(stream)
    for step in stream.steps:
        for op in step.ops:
            if not op.name.startswith(LOADER):
                for node in op.walk():
                    _scale(node, batch, by, weights)


def _weights(stream: Stream) -> set[tuple[int, ...]]:
    found: set[tuple[int, ...]] = set()
    for op in stream.ops():
        dims = op.args.get("Input Dims") or []
        for at in _WEIGHTS.get(op.name, ()):
            if at < len(dims):
                found.add(tuple(dims[at]))
        if op.name in _LISTS and dims and isinstance(dims[0], list):
            found |= {tuple(item) for item in dims[0] if isinstance(item, list)}
    return found | {item[::-1] for item in found if len(item) == 2}


def _scale(op: Op, batch: int, by: int, weights: set[tuple[int, ...]]) -> None:
    dims = op.args.get("Input Dims")
    if not dims:
        return

    def more(size: list[int]) -> list[int]:
        fits = size and size[0] >= batch and size[0] % batch == 0 and tuple(size) not in weights
        return [size[0] * by, *size[1:]] if fits else size

    def resized(size: Any, most: int) -> Any:
        if not isinstance(size, list) or not size:
            return size
        if isinstance(size[0], list):
            return [resized(item, most) for item in size]
        return more(size) if len(size) >= most else size

    op.args = dict(op.args)
    if op.name == "aten::mm" and _is_weight_gradient(dims, weights):
        op.args["Input Dims"] = [[dims[0][0], dims[0][1] * by], [dims[1][0] * by, dims[1][1]]]
        return
    ranks = [len(dim) for dim in dims if isinstance(dim, list) and dim and isinstance(dim[0], int)]
    # what is broadcast along the batch has fewer dimensions
    most = max(ranks, default=0) if _broadcasts(op.name) else 0
    op.args["Input Dims"] = [resized(dim, most) for dim in dims]
    at = _SAMPLES.get(op.name)
    if at is not None and dims[at] and dims[at] == op.args["Input Dims"][at]:
        # as large as a weight by chance
        op.args["Input Dims"][at] = [dims[at][0] * by, *dims[at][1:]]
    texts = op.args.get("Concrete Inputs")
    grew = op.args["Input Dims"] != dims
    if texts and op.name.rpartition("::")[2] in _SIZED and (grew or not any(ranks)):
        op.args["Concrete Inputs"] = [
            _scaled_text(text, more) if kind == "ScalarList" else text
            for text, kind in zip(texts, op.args["Input type"], strict=True)
        ]


def _broadcasts(name: str) -> bool:
    base = name.rpartition("::")[2].rstrip("_")
    return base in ("add", "sub", "mul", "div", "where", "masked_fill", "eq", "ne", "gt", "lt", "copy")


def _is_weight_gradient(dims: list[list[int]], weights: set[tuple[int, ...]]) -> bool:
    return (dims[0][0], dims[1][1]) in weights and tuple(dims[1]) not in weights


def _scaled_text(text: str, more: Callable[[list[int]], list[int]]) -> str:
    try:
        numbers = json.loads(text)
    except ValueError:
        return text
    if not isinstance(numbers, list) or len(numbers) < 2:
        return text
    return json.dumps(more(numbers))

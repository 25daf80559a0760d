"""The calls that a bucket is tried with: the values of real places and of padding changed, and the sizes.

One call shows little. Padding of 0 is invisible to a maximum while real values are positive, and to a threshold that
nothing reaches. Whole numbers stay within the embedding they index, else within those of the call: others might be no
valid index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from torchtriage.compile.bucketing.declarations import rule_of
from torchtriage.compile.bucketing.tensors import ModelCall, Reader, changed

Fills = Mapping[int, Any]
"""Padding's value by number of the leaf, where it is not the declared one."""


def probes(
    reader: Reader, call: ModelCall, bucket: Mapping[str, int], least: Mapping[str, int], rows: Mapping[int, int]
) -> Iterator[tuple[ModelCall, Fills]]:
    """Yield calls to compare with and without padding, and what to pad them with.

    ``least`` : the smallest size that the bucket is meant for. ``rows`` : of the embedding that a leaf's values index.
    """
    data = [at for at in data_of(reader, call) if call.leaves[at].numel()]
    for number, (change, fill_of) in enumerate(_VARIANTS):
        values, fills = {}, {}
        for at in data:
            leaf, dims = call.leaves[at], [dim for dim, _ in call.dims[at]]
            fill = rule_of(call.paths[at], reader.fill, 0)
            low, high = (0, rows[at] - 1) if at in rows else _range(leaf, fill)
            values[at] = change(leaf.detach(), low, high, fill, dims[number % len(dims)])
            if fill_of is not None:
                fills[at] = fill_of(low, high)
        probe = _with(reader, call, values, _sizes(bucket, least, number, may_fill=len(bucket) > 1))
        if probe is not None:
            yield probe, fills


def draws(
    reader: Reader,
    call: ModelCall,
    bucket: Mapping[str, int],
    least: Mapping[str, int],
    rows: Mapping[int, int],
    how_many: int,
) -> Iterator[ModelCall]:
    """Yield calls of values drawn on all sides of the declared padding, each time alike."""
    data = [at for at in data_of(reader, call) if call.leaves[at].numel()]
    for number in range(how_many):
        generator = torch.Generator().manual_seed(number)
        values = {}
        for at in data:
            leaf, dims = call.leaves[at].detach(), [dim for dim, _ in call.dims[at]]
            fill = rule_of(call.paths[at], reader.fill, 0)
            low, high = (0, rows[at] - 1) if at in rows else _range(leaf, fill)
            values[at] = _drawn(leaf, low, high, fill, number + at, generator)
            if number % 2:
                values[at] = _like_one(values[at], 0, dims[number // 2 % len(dims)])
        probe = _with(reader, call, values, _sizes(bucket, least, number))
        if probe is not None:
            yield probe


def decisive(reader: Reader, call: ModelCall, fills: Fills) -> Fills:
    """Return the other fills that must change nothing.

    They are those of inputs whose padding nobody named and whose values cannot be drawn on all sides of it.
    """
    named = {at for at in fills if rule_of(call.paths[at], reader.fill, None) is not None}
    return {at: fill for at, fill in fills.items() if at not in named and not _is_free(call.leaves[at])}


def _with(
    reader: Reader, call: ModelCall, values: Mapping[int, Tensor], sizes: Mapping[str, int] | None
) -> ModelCall | None:
    if sizes is None:
        return None
    leaves = list(call.leaves)
    for at, value in values.items():
        leaves[at] = value.requires_grad_(leaves[at].requires_grad)
    again = reader.read(*changed(call, leaves))
    return reader.resized(again, sizes)


def data_of(reader: Reader, call: ModelCall) -> list[int]:
    """Return the padded inputs that hold data: masks, and what looks like one beside data, say what is real."""
    padded = [at for at in call.dims if call.paths[at] not in reader.masks and not call.leaves[at].is_complex()]
    data = [at for at in padded if not _is_like_a_mask(call.leaves[at])]
    return data or padded


def _is_like_a_mask(leaf: Tensor) -> bool:
    if leaf.dtype == torch.bool:
        return True
    off = (leaf != 0) & (leaf != 1)
    if leaf.is_floating_point():
        off &= leaf > -1e4
    return not bool(off.any())


def _range(leaf: Tensor, fill: Any) -> tuple[float, float]:
    """Return the least and the greatest value, apart where they can be: what lies between two indices is one."""
    finite = leaf[torch.isfinite(leaf)] if leaf.is_floating_point() else leaf
    if not finite.numel():
        return -1.0, 1.0
    low, high = finite.min().item(), finite.max().item()
    if leaf.is_floating_point() and low == high:
        return low - 1.0, high + 1.0
    if low == high and fill >= 0 and low >= 0:
        return min(low, int(fill)), max(high, int(fill))
    return low, high


def _is_ordinary(fill: Any, low: float, high: float) -> bool:
    """Return whether data may lie on both sides of it: of a fill far away they do not."""
    reach = 10 * max(high - low, abs(high), abs(low))
    return bool(low - reach <= fill <= high + reach)


def _sizes(
    bucket: Mapping[str, int], least: Mapping[str, int], number: int, *, may_fill: bool = False
) -> dict[str, int] | None:
    """Return other sizes for each probe, odd and even, great and small; None where only full ones are left."""
    sizes = {}
    for at, (axis, limit) in enumerate(bucket.items()):
        middle = (least[axis] + limit) // 2
        some = [limit - 1, least[axis], limit - 2, middle, limit - 3, limit // 2, middle + 1, limit]
        some = [size for size in some if 1 <= size < limit or (may_fill and size == limit)]
        sizes[axis] = some[(number + 3 * at) % len(some)] if some else limit
    return None if sizes == dict(bucket) else sizes


_WIDTHS = (0.05, 0.3, 1.0, 3.0)

# -- values: (values, least, greatest, fill, a padded dimension) ---------------------------------

Change = Callable[[Tensor, float, float, Any, int], Tensor]


def _as_came(x: Tensor, _low: float, _high: float, _fill: Any, _dim: int) -> Tensor:
    return x


def _reflected(x: Tensor, low: float, high: float, _fill: Any, _dim: int) -> Tensor:
    if x.dtype == torch.bool:
        return ~x
    return torch.where(torch.isfinite(x), low + high - x, x).to(x.dtype)


def _like_one(x: Tensor, place: int, dim: int) -> Tensor:
    """Return values that are nearly those of one place: whatever the padding makes is often beyond all of them."""
    index = torch.tensor([place % x.shape[dim]], device=x.device)
    value = x.index_select(dim, index).expand_as(x)
    return (0.9 * value + 0.1 * x).to(x.dtype) if x.is_floating_point() else value.clone()


def _first(x: Tensor, _low: float, _high: float, _fill: Any, dim: int) -> Tensor:
    return _like_one(x, 0, dim)


def _last_reflected(x: Tensor, low: float, high: float, fill: Any, dim: int) -> Tensor:
    return _reflected(_like_one(x, -1, dim), low, high, fill, dim)


def _middle(x: Tensor, _low: float, _high: float, _fill: Any, dim: int) -> Tensor:
    return _like_one(x, x.shape[dim] // 2, dim)


def _near_the_fill(x: Tensor, low: float, high: float, fill: Any, _dim: int) -> Tensor:
    if not x.is_floating_point() or not _is_ordinary(fill, low, high):
        return x
    return (fill + 0.05 * (x - fill)).to(x.dtype)


def _mirrored(x: Tensor, low: float, high: float, fill: Any, _dim: int) -> Tensor:
    if not _is_free(x) or not _is_ordinary(fill, low, high):
        return x
    return (2 * fill - x).to(x.dtype)


def _is_free(x: Tensor) -> bool:
    """Return whether values may leave the call's range: an index in disguise must not, it ends a process on CUDA."""
    return bool(x.is_floating_point()) and (x.ndim >= 3 or x.device.type == "cpu")


def _drawn(x: Tensor, low: float, high: float, fill: Any, number: int, generator: torch.Generator) -> Tensor:
    if x.dtype == torch.bool:
        return x
    unit = torch.rand(x.shape, generator=generator).to(x.device)
    if not x.is_floating_point():
        return (low + unit * (high - low + 1)).floor().clamp(max=high).to(x.dtype)
    if not _is_free(x) or not _is_ordinary(fill, low, high):
        return (low + unit * (high - low)).to(x.dtype)
    width = _WIDTHS[number % 4] * max(high - low, abs(high - fill), abs(low - fill))
    return (fill + (number % 3 - 1 + 2 * unit - 1) * width).to(x.dtype)


_VARIANTS: tuple[tuple[Change, Callable[[float, float], float] | None], ...] = (
    (_reflected, None),
    (_first, None),
    (_as_came, min),
    (_as_came, max),
    (_last_reflected, None),
    (_near_the_fill, None),
    (_mirrored, None),
    (_middle, max),
    (_last_reflected, min),
    (_first, max),
)

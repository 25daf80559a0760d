"""What an operator of torch reads of its inputs, given which elements of its results are read.

A rule returns a mask of what is read for each tensor that the operator is given, ``None`` for nothing; tensors that it
leaves out are read whole. Beside it stands what part of the operator's work is needed: of a product rows and columns,
of a softmax whole rows, of what works element by element the elements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

Live: TypeAlias = torch.Tensor
"""bool, of the shape of a tensor: which of its elements are read."""
Shape: TypeAlias = tuple[int, ...]
Read: TypeAlias = tuple[Mapping[int, Live | None], float]
"""By place among an operator's tensors; and the part of the work."""
Rule: TypeAlias = Callable[[Sequence[Any], Sequence[Shape], Live], Read]
"""Given arguments, where tensors are ``None`` or a kept copy; the tensors' shapes; what of the result is read."""
ALL: Read = ({}, 1.0)


def part(live: Live) -> float:
    """Return what part of the elements are read."""
    return float(live.sum()) / max(live.numel(), 1)


def spread(live: Live, shape: Shape) -> Live:
    """Return what is read of a tensor that was broadcast to the shape of ``live``."""
    while live.dim() > len(shape):
        live = live.any(0)
    for dim, length in enumerate(shape):
        if length == 1 and live.shape[dim] != 1:
            live = live.any(dim, keepdim=True)
    return live.expand(shape)


def pointwise(given: Sequence[Any], shapes: Sequence[Shape], live: Live) -> Read:
    """Each element of the result is computed from one of each input."""
    return {at: spread(live, shape) for at, shape in enumerate(shapes)}, part(live)


def _mul(given: Sequence[Any], shapes: Sequence[Shape], live: Live) -> Read:
    """Leave out what is multiplied by a mask's zeros."""
    masks = [at for at, item in enumerate(given) if isinstance(item, torch.Tensor)]
    needed = live
    for at in masks:
        needed = needed & given[at]
    return {at: spread(live if at in masks else needed, shape) for at, shape in enumerate(shapes)}, part(live)


def _copy_to(given: Sequence[Any], shapes: Sequence[Shape], live: Live) -> Read:
    return {0: None, 1: spread(live, shapes[1])}, part(live)


def _product(given: Sequence[Any], shapes: Sequence[Shape], live: Live) -> Read:
    """Rows are computed from rows of the first factor, columns from columns of the second; a bias may stand before."""
    first, second = len(shapes) - 2, len(shapes) - 1
    rows, columns = live.any(-1, keepdim=True), live.any(-2, keepdim=True)
    return {first: rows.expand(shapes[first]), second: columns.expand(shapes[second])}, part(rows) * part(columns)


def _along(given: Sequence[Any], shapes: Sequence[Shape], live: Live) -> Read:
    """All along a dimension is computed together."""
    whole = live.any(given[1], keepdim=True)
    return {0: whole.expand(shapes[0])}, part(whole)


def _layer_norm(given: Sequence[Any], shapes: Sequence[Shape], live: Live) -> Read:
    whole = live
    for dim in range(1, len(given[1]) + 1):
        whole = whole.any(-dim, keepdim=True)
    return {0: whole.expand(shapes[0])}, part(whole)


def _by_first(n_dims: int) -> Rule:
    """Return the rule of what computes each sample, or each plane of one, from the same of its input."""

    def rule(given: Sequence[Any], shapes: Sequence[Shape], live: Live) -> Read:
        whole = live
        for dim in range(n_dims, live.dim()):
            whole = whole.any(dim, keepdim=True)
        if whole.shape[:n_dims] != shapes[0][:n_dims] or len(shapes[0]) != whole.dim():
            return ALL
        return {0: whole.expand(shapes[0])}, part(whole)

    return rule


def _attention(given: Sequence[Any], shapes: Sequence[Shape], live: Live) -> Read:
    queries = live.any(-1, keepdim=True)
    heads = queries.any(-2, keepdim=True)
    keys = {at: heads.expand(shapes[at]) for at in (1, 2) if shapes[at][:-2] == tuple(heads.shape[:-2])}
    return {0: queries.expand(shapes[0]), **keys}, part(queries)


def _cat(given: Sequence[Any], shapes: Sequence[Shape], live: Live) -> Read:
    dim = given[1] if len(given) > 1 else 0
    if any(len(shape) != live.dim() for shape in shapes):
        return ALL  # empty ones of before may have one dimension
    parts = live.split([shape[dim] for shape in shapes], dim)
    return dict(enumerate(parts)), part(live)


def _stack(given: Sequence[Any], shapes: Sequence[Shape], live: Live) -> Read:
    return dict(enumerate(live.unbind(given[1] if len(given) > 1 else 0))), part(live)


def _flip(given: Sequence[Any], shapes: Sequence[Shape], live: Live) -> Read:
    return {0: live.flip(given[1])}, part(live)


def _over_dims(given: Sequence[Any], shapes: Sequence[Shape], live: Live) -> Read:
    """Take all along the dimensions of a sum, mean or maximum."""
    dims = given[1] if len(given) > 1 else None
    if dims is None or isinstance(dims, bool) or dims == []:
        return ALL
    if live.dim() < len(shapes[0]):
        for dim in sorted(at % len(shapes[0]) for at in ([dims] if isinstance(dims, int) else dims)):
            live = live.unsqueeze(dim)
    return {0: live.expand(shapes[0])}, part(live)


def _index(given: Sequence[Any], shapes: Sequence[Shape], live: Live) -> Read:
    places = given[1]
    if len(shapes) != 1 + sum(isinstance(at, torch.Tensor) for at in places):
        return ALL  # of an index there is no copy
    taken = torch.zeros(shapes[0], dtype=torch.bool, device="cpu")
    taken[tuple(slice(None) if at is None else at for at in places)] = True
    return {0: taken}, part(live)


def _index_select(given: Sequence[Any], shapes: Sequence[Shape], live: Live) -> Read:
    if given[2] is None:
        return ALL
    taken = torch.zeros(shapes[0], dtype=torch.bool, device="cpu")
    return {0: taken.index_fill_(given[1], given[2].long(), True)}, part(live)


def _gather(given: Sequence[Any], shapes: Sequence[Shape], live: Live) -> Read:
    if given[2] is None:
        return ALL
    taken = torch.zeros(shapes[0], dtype=torch.bool, device="cpu")
    return {0: taken.scatter_(given[1], given[2], True)}, part(live)


def _masked_select(given: Sequence[Any], shapes: Sequence[Shape], live: Live) -> Read:
    return ({0: spread(given[1], shapes[0])}, part(live)) if given[1] is not None else ALL


def _labelled(given: Sequence[Any], shapes: Sequence[Shape], live: Live) -> Read:
    """Leave out the positions whose label is to be ignored."""
    if given[1] is None:
        return ALL
    labelled = given[1] != given[4]
    if tuple(live.shape) == tuple(labelled.shape):
        labelled &= live
    return {0: labelled.unsqueeze(1 if len(shapes[0]) > 1 else 0).expand(shapes[0])}, 1.0


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("clone", "_to_copy"), pointwise),
    "mul": _mul,
    "copy_": _copy_to,
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm"), _product),
    **dict.fromkeys(("_softmax", "_log_softmax", "softmax", "log_softmax", "cumsum"), _along),
    "native_layer_norm": _layer_norm,
    "convolution": _by_first(1),
    **dict.fromkeys(("upsample_bilinear2d", "upsample_nearest2d", "upsample_bicubic2d"), _by_first(2)),
    **dict.fromkeys(("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"), _by_first(2)),
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "cat": _cat,
    "stack": _stack,
    "flip": _flip,
    **dict.fromkeys(("sum", "mean", "amax", "amin", "argmax", "argmin", "max", "min"), _over_dims),
    "index": _index,
    "index_select": _index_select,
    "gather": _gather,
    "masked_select": _masked_select,
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _labelled),
}
KEEPS = frozenset({_index, _index_select, _gather, _masked_select, _labelled})
"""Rules for which indices are kept; of :data:`MASKS` masks are."""
MASKS = frozenset({_mul})
LOSSES = frozenset({_labelled})
"""Rules of what is computed for a backward pass: its own result need not be read."""

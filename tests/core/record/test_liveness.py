"""What operators read, held against the operators: what they do not read may be anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.torch


def calls() -> dict[str, Callable[[], tuple[Any, list[Any]]]]:
    """Return calls of operators that have a rule, by name: the operator and what it is given."""
    import torch

    aten = torch.ops.aten
    mask = torch.rand(6, 5) < 0.4
    places = torch.tensor([[1, 4], [0, 0], [3, 2]])
    return {
        "add, broadcast": lambda: (aten.add.Tensor, [torch.rand(4, 1, 5), torch.rand(6, 1)]),
        "pow": lambda: (aten.pow.Tensor_Scalar, [torch.rand(4, 5), 2]),
        "clone": lambda: (aten.clone.default, [torch.rand(4, 5)]),
        "mul, masked": lambda: (aten.mul.Tensor, [torch.rand(6, 5), mask.float()]),
        "mul, a mask of rows": lambda: (aten.mul.Tensor, [mask[:, :1], torch.rand(6, 5)]),
        "mm": lambda: (aten.mm.default, [torch.rand(4, 3), torch.rand(3, 5)]),
        "addmm": lambda: (aten.addmm.default, [torch.rand(5), torch.rand(4, 3), torch.rand(3, 5)]),
        "bmm": lambda: (aten.bmm.default, [torch.rand(2, 4, 3), torch.rand(2, 3, 5)]),
        "baddbmm": lambda: (aten.baddbmm.default, [torch.rand(4, 5), torch.rand(2, 4, 3), torch.rand(2, 3, 5)]),
        "softmax": lambda: (aten._softmax.default, [torch.rand(4, 3, 5), 1, False]),
        "cumsum": lambda: (aten.cumsum.default, [torch.rand(4, 5), -1]),
        "layer norm": lambda: (
            aten.native_layer_norm.default,
            [torch.rand(4, 3, 5), [3, 5], torch.rand(3, 5), torch.rand(3, 5), 1e-5],
        ),
        "convolution": lambda: (
            aten.convolution.default,
            [torch.rand(3, 2, 6, 6), torch.rand(4, 2, 3, 3), torch.rand(4), [1, 1], [0, 0], [1, 1], False, [0, 0], 1],
        ),
        "upsample": lambda: (aten.upsample_bilinear2d.default, [torch.rand(2, 3, 4, 4), [8, 8], False]),
        "cat": lambda: (aten.cat.default, [[torch.rand(4, 2), torch.rand(4, 5)], 1]),
        "cat along the first": lambda: (aten.cat.default, [[torch.rand(2, 5), torch.rand(4, 5)]]),
        "stack": lambda: (aten.stack.default, [[torch.rand(4, 2), torch.rand(4, 2)], -1]),
        "flip": lambda: (aten.flip.default, [torch.rand(4, 5), [1]]),
        "sum": lambda: (aten.sum.dim_IntList, [torch.rand(4, 3, 5), [0, -1]]),
        "mean, kept": lambda: (aten.mean.dim, [torch.rand(4, 3, 5), [1], True]),
        "max": lambda: (aten.max.dim, [torch.rand(4, 3, 5), 1]),
        "sum of all": lambda: (aten.sum.default, [torch.rand(4, 5)]),
        "index": lambda: (aten.index.Tensor, [torch.rand(6, 5), [torch.tensor([3, 3, 0])]]),
        "index, the second": lambda: (aten.index.Tensor, [torch.rand(6, 5), [None, torch.tensor([3, 0])]]),
        "index by a mask": lambda: (aten.index.Tensor, [torch.rand(6, 5), [mask]]),
        "index_select": lambda: (aten.index_select.default, [torch.rand(6, 5), 1, torch.tensor([4, 4, 0])]),
        "gather": lambda: (aten.gather.default, [torch.rand(3, 5), 1, places]),
        "masked_select": lambda: (aten.masked_select.default, [torch.rand(6, 5), mask]),
        "masked_select, broadcast": lambda: (aten.masked_select.default, [torch.rand(5), mask]),
        "loss": lambda: (
            aten.nll_loss_forward.default,
            [torch.rand(6, 5), torch.tensor([1, -100, 0, -100, 4, 2]), None, 1, -100],
        ),
        "loss of each": lambda: (
            aten.nll_loss_forward.default,
            [torch.rand(6, 5), torch.tensor([1, 3, 0, 3, 4, 2]), None, 0, 3],
        ),
        "loss of images": lambda: (
            aten.nll_loss2d_forward.default,
            [torch.rand(2, 5, 3, 3), torch.randint(0, 5, (2, 3, 3)), None, 1, 2],
        ),
        "attention": lambda: (
            aten._scaled_dot_product_flash_attention_for_cpu.default,
            [torch.rand(2, 3, 4, 8), torch.rand(2, 3, 6, 8), torch.rand(2, 3, 6, 8)],
        ),
    }


NAMES = [
    "add, broadcast",
    "pow",
    "clone",
    "mul, masked",
    "mul, a mask of rows",
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "softmax",
    "cumsum",
    "layer norm",
    "convolution",
    "upsample",
    "cat",
    "cat along the first",
    "stack",
    "flip",
    "sum",
    "mean, kept",
    "max",
    "sum of all",
    "index",
    "index, the second",
    "index by a mask",
    "index_select",
    "gather",
    "masked_select",
    "masked_select, broadcast",
    "loss",
    "loss of each",
    "loss of images",
    "attention",
]


def flat(given: Any) -> list[torch.Tensor]:
    import torch

    if isinstance(given, torch.Tensor):
        return [given]
    return [tensor for item in given for tensor in flat(item)] if isinstance(given, list | tuple) else []


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_read_changes_nothing_that_is(name: str) -> None:
    import torch

    from torchtriage.core.record.liveness import RULES, pointwise
    from torchtriage.core.record.operator_notes import OperatorNotes

    torch.manual_seed(0)
    assert set(calls()) == set(NAMES)
    n_unread = 0
    for trial in range(8):
        operator, given = calls()[name]()
        rule = RULES.get(operator.overloadpacket.__name__, pointwise)
        before = flat(operator(*given))[0]
        live = torch.rand(before.shape) < (0.1 if trial else 1.0)
        if before.dim() > 1:
            live[: before.shape[0] // 2] &= trial == 0  # whole rows, too
        reads, needed = rule(
            [OperatorNotes()._keep(item, rule) for item in given], [tuple(item.shape) for item in flat(given)], live
        )
        assert 0 <= needed <= 1
        for at, tensor in enumerate(flat(given)):
            mask = reads.get(at, torch.ones_like(tensor, dtype=torch.bool)) if at in reads else None
            if at in reads and mask is None:
                mask = torch.zeros_like(tensor, dtype=torch.bool)
            if mask is not None and tensor.is_floating_point():
                n_unread += int((~mask).sum())
                tensor[~mask] = torch.rand(int((~mask).sum())) * 100
        after = flat(operator(*given))[0]
        assert torch.equal(before[live], after[live])
    assert n_unread or name in ("sum of all", "masked_select, broadcast")

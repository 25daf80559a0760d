"""Operations counted from shapes agree with PyTorch's own counter."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

from torchtriage.core.trace.matrix_products import attention_flop, products

pytestmark = pytest.mark.torch

QUERY, KEY, VALUE = [2, 8, 128, 64], [2, 8, 96, 64], [2, 8, 96, 32]


def test_attention() -> None:
    from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

    forward = [QUERY, KEY, VALUE, [], [], [], []]
    assert attention_flop(
        "aten::_scaled_dot_product_flash_attention", forward, ["", "", "", "0.", "False", "False", ""]
    ) == sdpa_flop_count(QUERY, KEY, VALUE)
    gradient = [*QUERY[:3], VALUE[3]]
    backward = [gradient, QUERY, KEY, VALUE, *[[]] * 8]
    assert attention_flop(
        "aten::_scaled_dot_product_flash_attention_backward", backward, [*[""] * 11, "False"]
    ) == sdpa_backward_flop_count(gradient, QUERY, KEY, VALUE)


@pytest.mark.parametrize(
    ("name", "dims", "concrete"),
    [
        ("mm", [[64, 32], [32, 48]], None),
        ("addmm", [[48], [64, 32], [32, 48]], None),
        ("bmm", [[3, 64, 32], [3, 32, 48]], None),
    ],
)
def test_products(name: str, dims: list[list[int]], concrete: None) -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        getattr(torch, name)(*(torch.empty(shape) for shape in dims))
    trace = TraceBuilder().op(f"aten::{name}", 0, 10, dims=dims, types=["float"] * len(dims)).build()
    assert products(trace, trace.tree.members).flop.tolist() == [counter.get_total_flops()]


def test_convolutions_forward_and_backward() -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    image, weight = torch.empty(2, 8, 14, 14, requires_grad=True), torch.empty(16, 8, 3, 3, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        out = torch.nn.functional.conv2d(image, weight, stride=2, padding=1)
        forward = counter.get_total_flops()
        out.sum().backward()
    backward = counter.get_total_flops() - forward
    shapes = [list(image.shape), list(weight.shape)]
    settings = ["[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
    trace = (
        TraceBuilder()
        .op("aten::convolution", 0, 10, dims=[*shapes, *[[]] * 7], concrete=["", "", "", *settings])
        .op(
            "aten::convolution_backward",
            *(20, 10),
            dims=[list(out.shape), *shapes, *[[]] * 8],
            concrete=["", "", "", "", *settings, "[True, True, False]"],
        )
        .build()
    )
    assert products(trace, trace.tree.members).flop.tolist() == [forward, backward]

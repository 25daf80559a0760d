"""Operations counted from shapes agree with PyTorch's own counter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchtriage as tt
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.matrix_products import ATTENTION, attention_flop, products

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


def mlp() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 7))


def residual() -> Any:
    from torch import nn

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 16, 7, stride=2, padding=3, bias=False)
            self.norm = nn.BatchNorm2d(16)
            self.dilated = nn.Conv2d(16, 16, 3, padding=2, dilation=2)
            self.down = nn.Conv2d(16, 32, (1, 3), stride=(2, 1))
            self.head = nn.Linear(32, 10)

        def forward(self, image: Any) -> Any:
            image = self.norm(self.stem(image)).relu()
            return self.head(self.down(image + self.dilated(image)).mean((2, 3)))

    return Residual()


def unet() -> Any:
    import torch
    from torch import nn

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.leave = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(16, 1, 1)
            self.down = nn.Conv2d(8, 16, 3, stride=2, padding=1)
            self.up = nn.ConvTranspose2d(16, 8, 3, stride=2, padding=1, output_padding=1)

        def forward(self, image: Any) -> Any:
            across = self.enter(image).relu()
            return self.leave(torch.cat([across, self.up(self.down(across).relu())], dim=1))

    return UNet()


def audio() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv1d(2, 8, 9, stride=3, padding=4),
        nn.ConvTranspose1d(8, 6, 9, stride=3),
        nn.Unflatten(1, (1, 2, 3)),
        nn.Conv3d(1, 4, (2, 3, 5), padding=(0, 1, 2)),
    )


def transformer(*, n_heads: int = 4, causal: bool = False, fused: bool = True) -> Any:
    """Cross-attention where it gets two inputs, grouped queries with fewer heads than four."""
    from torch import nn
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(64, 16 * heads) for heads in (4, n_heads, n_heads))
            self.out = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))

        def forward(self, tokens: Any, memory: Any = None) -> Any:
            memory = tokens if memory is None else memory
            query = self.query(tokens).unflatten(-1, (4, -1)).transpose(1, 2)
            key, value = (part(memory).unflatten(-1, (n_heads, -1)).transpose(1, 2) for part in (self.key, self.value))
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION if fused else SDPBackend.MATH):
                mixed = scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=n_heads < 4)
            return self.out(mixed.transpose(1, 2).flatten(2))

    return Transformer()


def vit() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 64, 8, stride=8), nn.Flatten(2), nn.Linear(16, 64), transformer(), nn.LayerNorm(64)
    )


def recurrent() -> Any:
    from torch import nn

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTMCell(12, 20)

        def forward(self, sequence: Any) -> Any:
            state = None
            for item in sequence:
                state = self.cell(item, state)
            return state[0]

    return Recurrent()


def experts() -> Any:
    import torch
    from torch import nn

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(16, 4)
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 16)) for _ in range(4))

        def forward(self, tokens: Any) -> Any:
            share, chosen = self.router(tokens).softmax(-1).max(-1)
            out = torch.zeros_like(tokens)
            for index, expert in enumerate(self.experts):
                at = (chosen == index).nonzero()[:, 0]
                out = out.index_add(0, at, expert(tokens[at]) * share[at, None])
            return out

    return Experts()


def contractions() -> Any:
    import torch
    from torch import nn

    class Contractions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads, self.bias = nn.Parameter(torch.ones(4, 8, 6)), nn.Parameter(torch.ones(3, 1, 5))

        def forward(self, items: Any) -> Any:
            items = torch.einsum("bhk,hkm->bhm", items, self.heads)
            items = torch.baddbmm(self.bias, items, torch.ones(3, 6, 5))
            return torch.addmm(torch.ones(7), items.flatten(0, 1), torch.ones(5, 7)) @ torch.ones(7, 2)

    return Contractions()


def recorded(make: Callable[[], Any], shapes: list[tuple[int, ...]], path: Path) -> tuple[Trace, dict[str, int]]:
    """Return one forward and backward pass as it was recorded, and as PyTorch counts it."""
    import torch
    from torch.profiler import ProfilerActivity, profile
    from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

    torch.manual_seed(0)
    model, inputs = make(), [torch.randn(shape, requires_grad=True) for shape in shapes]
    # the counter has no entry for the CPU's fused attention, only for those of devices
    fused = {
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda *shapes, **_: sdpa_flop_count(*shapes[:3]),
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
            lambda *shapes, **_: sdpa_backward_flop_count(*shapes[:4])
        ),
    }
    with FlopCounterMode(display=False, custom_mapping=fused) as counter:
        model(*inputs).sum().backward()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        model(*inputs).sum().backward()
    profiler.export_chrome_trace(str(path))
    counts = counter.get_flop_counts()["Global"]
    return tt.load(path), {str(op).removeprefix("aten."): flop for op, flop in counts.items()}


def by_shapes(trace: Trace) -> dict[str, int]:
    """Return the operations by operator as the counter names them; it counts what a causal mask hides."""
    flop = products(trace, np.arange(len(trace))).flop
    for row in np.flatnonzero(trace.named(*ATTENTION) & (trace.kind == Kind.OP)).tolist():
        dims, concrete = (trace.details_of(what, [row])[0] for what in ("dims", "concrete"))
        causal_at = ATTENTION[trace.name_of(row)][1]
        flop[row] = attention_flop(
            trace.name_of(row), dims, [*concrete[:causal_at], "False", *concrete[causal_at + 1 :]]
        )
    # aten::linear holds aten::addmm, aten::convolution holds those of its backend
    flop[trace.named("aten::linear")] = 0
    outermost = np.flatnonzero((flop > 0) & ~trace.tree.under(flop > 0))
    out: dict[str, int] = {}
    for row in outermost.tolist():
        name = trace.name_of(row).removeprefix("aten::")
        out[name] = out.get(name, 0) + int(flop[row])
    return out


MODELS: dict[str, tuple[Callable[[], Any], list[tuple[int, ...]]]] = {
    "mlp": (mlp, [(5, 3, 20)]),
    "residual": (residual, [(2, 3, 32, 32)]),
    "unet": (unet, [(2, 3, 16, 16)]),
    "audio": (audio, [(3, 2, 120)]),
    "encoder": (transformer, [(2, 24, 64)]),
    "decoder": (lambda: transformer(n_heads=2, causal=True), [(2, 24, 64)]),
    "cross": (lambda: transformer(n_heads=1), [(2, 24, 64), (2, 40, 64)]),
    "unfused": (lambda: transformer(causal=True, fused=False), [(2, 24, 64)]),
    "vit": (vit, [(2, 3, 32, 32)]),
    "recurrent": (recurrent, [(6, 3, 12)]),
    "experts": (experts, [(30, 16)]),
    "contractions": (contractions, [(3, 4, 8)]),
}


@pytest.mark.parametrize("name", MODELS)
def test_recorded_models(name: str, tmp_path: Path) -> None:
    trace, expected = recorded(*MODELS[name], tmp_path / "trace.json")
    assert by_shapes(trace) == expected


def test_grouped_convolutions(tmp_path: Path) -> None:
    """The counter lets every group's gradient of the weight see all channels; each sees its own."""
    from torch import nn

    def make() -> Any:
        depthwise = nn.Conv2d(16, 16, (3, 5), stride=(2, 1), padding=(1, 2), groups=16)
        return nn.Sequential(nn.Conv2d(4, 16, 1), depthwise, nn.ConvTranspose2d(16, 8, 3, groups=4))

    trace, expected = recorded(make, [(2, 4, 12, 10)], tmp_path / "trace.json")
    counted = by_shapes(trace)
    assert counted["convolution"] == expected["convolution"]
    assert counted["convolution_backward"] == 2 * counted["convolution"] < expected["convolution_backward"]

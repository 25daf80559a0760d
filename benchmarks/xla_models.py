"""The models of the table in docs/xla-measured.md: small ones of several families, each with its trouble.

Each function returns a model with random weights and its inputs, as a target of ``torchtriage xla``
does. Those whose names begin with ``hf_`` are of the transformers library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["FAMILIES"]

Made = tuple[nn.Module, Any]


def mlp() -> Made:
    layers: list[nn.Module] = []
    for _ in range(6):
        layers += [nn.Linear(256, 256), nn.ReLU()]
    return nn.Sequential(*layers), torch.randn(64, 256)


class Residual(nn.Module):
    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(n_out), nn.BatchNorm2d(n_out)])
        self.short = nn.Conv2d(n_in, n_out, 1, stride) if (n_in, stride) != (n_out, 1) else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norms[0](self.one(x)))
        y = self.norms[1](self.two(y))
        return F.relu(y + (x if self.short is None else self.short(x)))


def resnet() -> Made:
    sizes = [(16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1)]
    blocks = [Residual(*size) for size in sizes]
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    ), torch.randn(8, 3, 64, 64)


def mobilenet() -> Made:
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 2, 1)]
    for n_in, n_out, stride in ((16, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2)):
        layers += [
            nn.Conv2d(n_in, n_in, 3, stride, 1, groups=n_in),
            nn.BatchNorm2d(n_in),
            nn.Hardswish(),
            nn.Conv2d(n_in, n_out, 1),
            nn.BatchNorm2d(n_out),
            nn.Hardswish(),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)), torch.randn(8, 3, 64, 64)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(a, b, 3, 1, 1) for a, b in ((1, 16), (16, 32), (32, 64))])
        self.up = nn.ModuleList([nn.Conv2d(a, b, 3, 1, 1) for a, b in ((96, 32), (48, 16))])
        self.head = nn.Conv2d(16, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for layer in self.down:
            x = F.relu(layer(x))
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = F.max_pool2d(kept.pop(), 2)
        x = F.interpolate(x, scale_factor=2)
        for layer in self.up:
            x = F.interpolate(x, size=kept[-1].shape[-2:]) if x.shape[-1] != kept[-1].shape[-1] else x
            x = F.relu(layer(torch.cat([x, kept.pop()], 1)))
        return self.head(x)


def unet() -> Made:
    return UNet(), torch.randn(2, 1, 64, 64)


class Block(nn.Module):
    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, width = x.shape
        q, k, v = (one.reshape(b, n, 4, width // 4).transpose(1, 2) for one in self.qkv(self.norms[0](x)).chunk(3, -1))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(seen.transpose(1, 2).reshape(b, n, width))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(1000, 128), nn.Embedding(64, 128)
        self.blocks = nn.ModuleList([Block(128, causal=True) for _ in range(4)])
        self.head = nn.Linear(128, 1000)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def gpt() -> Made:
    return Gpt(), torch.randint(0, 1000, (4, 64))


class Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 96, 8, 8)
        self.mark = nn.Parameter(torch.zeros(1, 1, 96))
        self.blocks = nn.Sequential(*[Block(96, causal=False) for _ in range(4)])
        self.head = nn.Linear(96, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        return self.head(self.blocks(torch.cat([self.mark.expand(len(x), -1, -1), x], 1))[:, 0])


def vit() -> Made:
    return Vit(), torch.randn(8, 3, 64, 64)


def encoder() -> Made:
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), torch.randn(8, 32, 128)


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(64, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def lstm() -> Made:
    return Lstm(), torch.randn(8, 24, 64)


class Loop(nn.Module):
    """A recurrent cell in a Python loop."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(len(x), 64)
        for at in range(x.shape[1]):
            state = self.cell(x[:, at], state)
        return state


def gru_loop() -> Made:
    return Loop(), torch.randn(8, 16, 64)


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(1000, 32) for _ in range(8)])
        self.top = nn.Sequential(nn.Linear(8 * 32 + 28, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = torch.stack([table(ids[:, at]) for at, table in enumerate(self.tables)], 1)
        pairs = rows @ rows.transpose(1, 2)
        one, other = torch.triu_indices(8, 8, 1, device=ids.device)
        return self.top(torch.cat([rows.flatten(1), pairs[:, one, other]], 1))


def recommender() -> Made:
    return Recommender(), torch.randint(0, 1000, (128, 8))


class GraphNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(3)])

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.zeros_like(x).index_add(0, edges[1], F.relu(layer(x))[edges[0]]) / 4 + x
        return x


def graph_net() -> Made:
    return GraphNet(), (torch.randn(256, 64), torch.randint(0, 256, (2, 1024)))


class Vae(nn.Module):
    """Draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(256, 64), nn.Linear(32, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, log_scale = self.down(x).chunk(2, -1)
        return self.up(mean + torch.randn_like(mean) * log_scale.exp())


def vae() -> Made:
    return Vae(), torch.randn(64, 256)


class EarlyExit(nn.Module):
    """Asks after each layer whether the answer is sure enough: .item() in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(128, 128) for _ in range(6)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
            if x.abs().mean().item() > 100:
                break
        return x


def early_exit() -> Made:
    return EarlyExit(), torch.randn(16, 128)


class Detector(nn.Module):
    """Boxes above a threshold by nonzero, then suppression of overlaps in a Python loop."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1))
        self.score, self.box = nn.Conv2d(16, 1, 1), nn.Conv2d(16, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.features(x)
        scores, boxes = self.score(y).flatten(), self.box(y).permute(0, 2, 3, 1).reshape(-1, 4)
        found = (scores > scores.mean()).nonzero().squeeze(1)
        best = scores[found].topk(8)[1]
        boxes = boxes[found][best]
        kept = [boxes[0]]
        for at in range(1, 8):
            apart = torch.stack([(boxes[at] - one).abs().sum() for one in kept]).min()
            if apart.item() > 0.05:
                kept.append(boxes[at])
        return torch.stack(kept)


def detector() -> Made:
    return Detector(), torch.randn(1, 3, 64, 64)


class Masked(nn.Module):
    """Keeps the rows of a mask: a size that depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.one(x))
        return self.two(x[x[:, 0] > 0])


def masked() -> Made:
    return Masked(), torch.randn(128, 64)


class Experts(nn.Module):
    """Mixture of experts, each taking the rows that chose it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(64, 4)
        self.experts = nn.ModuleList([nn.Linear(64, 64) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = torch.where(chosen == number)[0]
            out = out.index_add(0, rows, expert(x[rows]) * weight[rows, None])
        return out


def experts() -> Made:
    return Experts(), torch.randn(128, 64)


class Robust(nn.Module):
    """Operators that XLA does not know: median, histogram."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
            x = x - x.median(-1, keepdim=True).values
        return x


def robust() -> Made:
    return Robust(), torch.randn(64, 64)


class Broken(nn.Module):
    """Five graph breaks that ask for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(128, 128) for _ in range(6)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, two, three, four, five, six = self.layers
        x = F.relu(one(x))
        torch._dynamo.graph_break()
        x = F.relu(two(x))
        torch._dynamo.graph_break()
        x = F.relu(three(x))
        torch._dynamo.graph_break()
        x = F.relu(four(x))
        torch._dynamo.graph_break()
        x = F.relu(five(x))
        torch._dynamo.graph_break()
        return F.relu(six(x))


def broken() -> Made:
    """Return a model whose breaks stand one after the other."""
    return Broken(), torch.randn(32, 128)


class BrokenLoop(nn.Module):
    """A graph break in a loop: dynamo leaves the whole function."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(128, 128) for _ in range(6)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
            torch._dynamo.graph_break()
        return x


def broken_loop() -> Made:
    """Return a model whose break is in a loop."""
    return BrokenLoop(), torch.randn(32, 128)


class Logged(nn.Module):
    """Statistics of each layer are gathered outside and looked at once, at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(128, 128) for _ in range(4)])
        self.norms: list[float] = []

    @torch.compiler.disable
    def note(self, x: torch.Tensor) -> None:
        self.norms.append(float(x.detach().norm()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.norms = []
        for layer in self.layers:
            x = F.relu(layer(x))
            self.note(x)
        return x


def logged() -> Made:
    return Logged(), torch.randn(32, 128)


class Sizes(nn.Module):
    """Another length in each call, of four."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.calls = Block(64, causal=True), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.block(x[:, : 16 + 8 * (self.calls % 4)])


def sizes() -> Made:
    return Sizes(), torch.randn(4, 48, 64)


class Annealed(nn.Module):
    """A Python number that changes with each call."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.calls = nn.Linear(64, 64), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.one(x) * (0.9**self.calls)


def annealed() -> Made:
    return Annealed(), torch.randn(32, 64)


# -- of the transformers library ---------------------------------------------------------------


def _without_dropout(model: nn.Module) -> nn.Module:
    """Take dropouts of probability 0 out: dynamo's bridge then returns outputs at wrong places."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Dropout):
                setattr(parent, name, nn.Identity())
    return model


def hf_bert() -> Made:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=1000,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=256,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    ids = torch.randint(0, 1000, (4, 48))
    return _without_dropout(BertForSequenceClassification(config)), {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": torch.zeros(4, dtype=torch.long),
    }


def hf_gpt2() -> Made:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=1000,
        n_embd=128,
        n_layer=3,
        n_head=4,
        n_positions=64,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    ids = torch.randint(0, 1000, (4, 48))
    return GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}


def hf_llama() -> Made:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    ids = torch.randint(0, 1000, (4, 48))
    return LlamaForCausalLM(config), {"input_ids": ids, "labels": ids}


def hf_vit() -> Made:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=192,
        image_size=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return ViTForImageClassification(config), {"pixel_values": torch.randn(4, 3, 64, 64)}


def hf_mixtral() -> Made:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=1000,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        use_cache=False,
    )
    return MixtralForCausalLM(config), {"input_ids": torch.randint(0, 1000, (2, 32))}


FAMILIES: dict[str, tuple[Callable[[], Made], ...]] = {
    "dense": (mlp, vae, recommender, annealed),
    "convolution": (resnet, mobilenet, unet),
    "attention": (encoder, vit, gpt, sizes),
    "recurrent": (lstm, gru_loop),
    "graph": (graph_net,),
    "control flow": (early_exit, logged, broken, broken_loop),
    "dynamic shapes": (detector, masked, experts),
    "not lowered": (robust,),
    "transformers": (hf_bert, hf_gpt2, hf_llama, hf_vit, hf_mixtral),
}

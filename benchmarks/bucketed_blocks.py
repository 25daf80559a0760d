"""Random small models that people pad, for bucketed_models.py: blocks, heads, inputs, and ways to call them.

`CAREFUL` blocks leave a place's value to that place, to earlier ones, or to those the mask calls real. `CARELESS`
ones mix places without asking. Which of them padding really harms is not written down: it is computed.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

D = 8  # channels everywhere
VOCABULARY = 40
SEQ = [8, 16, 24]
BATCH = [2, 4]


@dataclasses.dataclass
class Case:
    about: str
    model: nn.Module
    pad: dict[str, dict[int, str]]
    sizes: Callable[[dict], dict[str, int]]
    draw: Callable[[random.Random, int], dict]
    buckets: dict[str, list[int]]
    fill: dict = dataclasses.field(default_factory=dict)
    masks: dict[str, tuple] = dataclasses.field(default_factory=dict)  # name: real, padding, dtype
    mask_shape: Callable[[dict], tuple[int, ...]] = lambda inputs: ()
    crop: dict | None = None
    fixed: bool = True
    precompiled: bool = False
    check: str = "first"
    grad: bool = False
    positional: bool = False
    training: Callable[[int], bool] = lambda number: False
    n_calls: int = 12


class Fn(nn.Module):
    """A block of one function of (h, real)."""

    def __init__(self, fn: Callable) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, h, real):
        return self.fn(h, real)


class With(nn.Module):
    """A block of one function of (modules, h, real)."""

    def __init__(self, fn: Callable, **parts: nn.Module) -> None:
        super().__init__()
        self.fn = fn
        self.parts = nn.ModuleDict(parts)

    def forward(self, h, real):
        return self.fn(self.parts, h, real)


def time_first(module: nn.Module) -> With:
    """Wrap a module over [B, D, T]."""
    return With(lambda p, h, real: p["m"](h.transpose(1, 2)).transpose(1, 2), m=module)


def attend(p, h, real, *, masked: bool, causal: bool):
    key_padding = None if real is None or not masked else ~real
    mask = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool).triu(1) if causal else None
    return h + p["a"](h, h, h, key_padding_mask=key_padding, attn_mask=mask, need_weights=False)[0]


def sdpa(p, h, real, *, masked: bool, causal: bool = False, local: bool = False):
    q, k, v = p["qkv"](h).chunk(3, -1)
    if masked and real is not None:
        mask = real[:, None, :].expand(-1, h.shape[1], -1)
        return h + F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    if local:
        i = torch.arange(h.shape[1])
        return h + F.scaled_dot_product_attention(q, k, v, attn_mask=(i[:, None] - i).abs() <= 2)
    return h + F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def hand_attention(p, h, real, *, bias: bool):
    scores = h @ p["w"](h).transpose(1, 2) / math.sqrt(D)
    if real is not None:
        scores = scores + (1 - real[:, None, :].to(h.dtype)) * -1e4
    if bias:
        i = torch.arange(h.shape[1])
        scores = scores - 0.1 * (i[:, None] - i).abs()
    return h + scores.softmax(-1) @ h


def masked_mean(h, real):
    if real is None:
        return h.mean(1)
    w = real.unsqueeze(-1).to(h.dtype)
    return (h * w).sum(1) / w.sum(1).clamp(min=1)


def masked_max(h, real):
    return h.amax(1) if real is None else h.masked_fill(~real.unsqueeze(-1), -math.inf).amax(1)


def sinusoid(h):
    i = torch.arange(h.shape[1], dtype=h.dtype)[:, None] * torch.exp(-torch.arange(0, D, 2) / D * math.log(100.0))
    return torch.cat([i.sin(), i.cos()], -1).to(h.dtype)


def rotary(h, real):
    i = torch.arange(h.shape[1], dtype=h.dtype)[:, None] / 10 ** torch.arange(D // 2)
    a, b = h.chunk(2, -1)
    return torch.cat([a * i.cos() - b * i.sin(), a * i.sin() + b * i.cos()], -1).to(h.dtype)


def lookup(p, h, real):
    """Vector quantisation: the nearest row of a codebook, gradient straight through."""
    codes = torch.cdist(h, p["book"].weight.expand(h.shape[0], -1, -1)).argmin(-1)
    return h + (p["book"](codes) - h).detach()


CAREFUL: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: With(lambda p, h, real: h + p["b"](F.gelu(p["a"](h))), a=nn.Linear(D, 2 * D), b=nn.Linear(2 * D, D)),
    "glu": lambda: With(lambda p, h, real: F.glu(p["a"](h)), a=nn.Linear(D, 2 * D)),
    "layer norm": lambda: With(lambda p, h, real: p["n"](h), n=nn.LayerNorm(D)),
    "rms norm": lambda: With(lambda p, h, real: p["n"](h), n=nn.RMSNorm(D)),
    "batch norm": lambda: time_first(nn.BatchNorm1d(D)),
    "batch norm without statistics": lambda: time_first(nn.BatchNorm1d(D, track_running_stats=False)),
    "dropout": lambda: With(lambda p, h, real: p["d"](h), d=nn.Dropout(0.2)),
    "causal sdpa": lambda: With(lambda p, h, r: sdpa(p, h, r, masked=False, causal=True), qkv=nn.Linear(D, 3 * D)),
    "masked sdpa": lambda: With(lambda p, h, r: sdpa(p, h, r, masked=True), qkv=nn.Linear(D, 3 * D)),
    "causal mha": lambda: With(
        lambda p, h, r: attend(p, h, r, masked=False, causal=True), a=nn.MultiheadAttention(D, 2, batch_first=True)
    ),
    "masked mha": lambda: With(
        lambda p, h, r: attend(p, h, r, masked=True, causal=False),
        a=nn.MultiheadAttention(D, 2, dropout=0.1, batch_first=True),
    ),
    "hand attention": lambda: With(lambda p, h, r: hand_attention(p, h, r, bias=False), w=nn.Linear(D, D)),
    "alibi attention": lambda: With(lambda p, h, r: hand_attention(p, h, r, bias=True), w=nn.Linear(D, D)),
    "encoder layer": lambda: With(
        lambda p, h, r: p["e"](h, src_key_padding_mask=None if r is None else ~r),
        e=nn.TransformerEncoderLayer(D, 2, 16, dropout=0.1, batch_first=True),
    ),
    "encoder": lambda: With(
        lambda p, h, r: p["e"](h, src_key_padding_mask=None if r is None else ~r),
        e=nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 2, 16, batch_first=True), 2),
    ),
    "gru": lambda: With(lambda p, h, real: p["r"](h)[0], r=nn.GRU(D, D, batch_first=True)),
    "lstm": lambda: With(lambda p, h, real: h + p["r"](h)[0], r=nn.LSTM(D, D, 2, dropout=0.1, batch_first=True)),
    "causal conv": lambda: time_first(nn.Sequential(nn.ConstantPad1d((2, 0), 0.0), nn.Conv1d(D, D, 3))),
    "pointwise conv": lambda: time_first(nn.Conv1d(D, D, 1)),
    "cumsum": lambda: Fn(lambda h, real: h.cumsum(1) / 8),
    "causal mean": lambda: Fn(lambda h, real: h.cumsum(1) / torch.arange(1, h.shape[1] + 1, dtype=h.dtype)[:, None]),
    "cummax": lambda: Fn(lambda h, real: h.cummax(1).values),
    "logcumsumexp": lambda: Fn(lambda h, real: h.clamp(-9, 9).logcumsumexp(1)),
    "shift": lambda: Fn(lambda h, real: torch.cat([torch.zeros_like(h[:, :1]), h[:, :-1]], 1)),
    "sinusoidal positions": lambda: Fn(lambda h, real: h + sinusoid(h)),
    "learned positions": lambda: With(lambda p, h, real: h + p["e"](torch.arange(h.shape[1])), e=nn.Embedding(64, D)),
    "too few positions": lambda: With(lambda p, h, real: h + p["e"](torch.arange(h.shape[1])), e=nn.Embedding(22, D)),
    "rotary": lambda: Fn(rotary),
    "positions of the mask": lambda: With(
        lambda p, h, r: h if r is None else h + p["e"](r.long().cumsum(1)), e=nn.Embedding(64, D)
    ),
    "masked mean context": lambda: Fn(lambda h, real: h + masked_mean(h, real).unsqueeze(1)),
    "masked max context": lambda: Fn(lambda h, real: h + masked_max(h, real).nan_to_num(0, 0, 0).unsqueeze(1)),
    "channel sort": lambda: Fn(lambda h, real: h.sort(-1).values),
    "channel softmax": lambda: Fn(lambda h, real: h.softmax(-1) * D),
    "channel top-k": lambda: Fn(lambda h, real: torch.where(h >= h.topk(3, -1).values[..., -1:], h, 0 * h)),
    "channel std": lambda: Fn(lambda h, real: (h - h.mean(-1, keepdim=True)) / (h.std(-1, keepdim=True) + 1e-3)),
    "root of squares": lambda: Fn(lambda h, real: h / (h.square().sum(-1, keepdim=True).sqrt() + 1e-2)),
    "unit length": lambda: Fn(lambda h, real: F.normalize(h, dim=-1)),
    "codebook": lambda: With(lookup, book=nn.Embedding(6, D)),
    "mask times": lambda: Fn(lambda h, real: h if real is None else h * real.unsqueeze(-1)),
}

CARELESS: dict[str, Callable[[], nn.Module]] = {
    "unmasked sdpa": lambda: With(lambda p, h, r: sdpa(p, h, r, masked=False), qkv=nn.Linear(D, 3 * D)),
    "local sdpa": lambda: With(lambda p, h, r: sdpa(p, h, r, masked=False, local=True), qkv=nn.Linear(D, 3 * D)),
    "unmasked mha": lambda: With(
        lambda p, h, r: attend(p, h, r, masked=False, causal=False), a=nn.MultiheadAttention(D, 2, batch_first=True)
    ),
    "two-way gru": lambda: With(
        lambda p, h, real: p["r"](h)[0], r=nn.GRU(D, D // 2, batch_first=True, bidirectional=True)
    ),
    "conv": lambda: time_first(nn.Conv1d(D, D, 3, padding=1)),
    "conv without bias": lambda: time_first(nn.Conv1d(D, D, 3, padding=1, bias=False)),
    "reflecting conv": lambda: time_first(nn.Conv1d(D, D, 3, padding=1, padding_mode="reflect")),
    "circular conv": lambda: time_first(nn.Conv1d(D, D, 3, padding=1, padding_mode="circular")),
    "group norm": lambda: time_first(nn.GroupNorm(2, D)),
    "instance norm": lambda: time_first(nn.InstanceNorm1d(D)),
    "instance norm, tracked": lambda: time_first(nn.InstanceNorm1d(D, track_running_stats=True)),
    "mean context": lambda: Fn(lambda h, real: h + h.mean(1, keepdim=True)),
    "max context": lambda: Fn(lambda h, real: h + h.amax(1, keepdim=True)),
    "max of relu": lambda: Fn(lambda h, real: h + h.relu().amax(1, keepdim=True)),
    "min context": lambda: Fn(lambda h, real: h - h.amin(1, keepdim=True)),
    "gate by size": lambda: Fn(lambda h, real: torch.where(h.abs().amax(1, keepdim=True) > 6, 0.5 * h, h)),
    "any above": lambda: Fn(lambda h, real: h + (h > 2.5).any(1, keepdim=True)),
    "log-sum-exp": lambda: Fn(lambda h, real: h - h.logsumexp(1, keepdim=True)),
    "softmax over time": lambda: Fn(lambda h, real: h * h.softmax(1)),
    "sort over time": lambda: Fn(lambda h, real: h.sort(1, descending=True).values),
    "ascending sort": lambda: Fn(lambda h, real: h.sort(1).values),
    "top-2 of time": lambda: Fn(lambda h, real: h + h.topk(2, 1).values.mean(1, keepdim=True) if h.shape[1] > 1 else h),
    "argmax over time": lambda: Fn(
        lambda h, real: h + torch.gather(h, 1, h[..., :1].argmax(1, keepdim=True).expand(-1, -1, D))
    ),
    "argmin over time": lambda: Fn(lambda h, real: h + h.argmin(1, keepdim=True).to(h.dtype)),
    "median": lambda: Fn(lambda h, real: h - h.median(1, keepdim=True).values),
    "quantile": lambda: Fn(lambda h, real: h.clamp(max=h.float().quantile(0.9, dim=1, keepdim=True).to(h.dtype))),
    "flip": lambda: Fn(lambda h, real: h.flip(1)),
    "flip there and back": lambda: Fn(lambda h, real: h + h.flip(1).cumsum(1).flip(1) / 8),
    "roll": lambda: Fn(lambda h, real: h + h.roll(1, 1)),
    "fft": lambda: Fn(lambda h, real: torch.fft.fft(h.float(), dim=1).real.to(h.dtype) / 4),
    "relative positions": lambda: Fn(lambda h, real: h + torch.arange(h.shape[1])[:, None].to(h.dtype) / h.shape[1]),
    "positions from the end": lambda: With(
        lambda p, h, real: h + p["e"](torch.arange(h.shape[1]).flip(0)), e=nn.Embedding(64, D)
    ),
    "scale by length": lambda: Fn(lambda h, real: h / math.sqrt(h.shape[1])),
    "branch on length": lambda: Fn(lambda h, real: h * 2 if h.shape[1] > 16 else h),
    "standardise": lambda: Fn(lambda h, real: (h - h.mean()) / (h.std() + 1e-3)),
    "range": lambda: Fn(lambda h, real: (h - h.min()) / (h.max() - h.min() + 1e-3)),
    "count of zeros": lambda: Fn(lambda h, real: h + 0.1 * (h == 0).sum(1, keepdim=True)),
    "noise": lambda: Fn(lambda h, real: h + 0.05 * torch.randn_like(h)),
    "always dropout": lambda: Fn(lambda h, real: F.dropout(h, 0.2, training=True)),
    "dropout of steps": lambda: Fn(lambda h, real: h * F.dropout(torch.ones(h.shape[1], 1, dtype=h.dtype), 0.2)),
    "squeeze and excite": lambda: With(
        lambda p, h, real: h * p["a"](h.mean(1, keepdim=True)).sigmoid(), a=nn.Linear(D, D)
    ),
    "linear attention": lambda: Fn(lambda h, real: h + F.elu(h) @ (F.elu(h).transpose(1, 2) @ h) / 32),
    "rank of zeros": lambda: Fn(lambda h, real: h + (h[..., :1] < 0).sum(1, keepdim=True) / 8),
    "clipped sum": lambda: Fn(lambda h, real: h + h.relu().sum(1, keepdim=True).clamp(max=1)),
    "in place": lambda: Fn(lambda h, real: h.clone().mul_(0.5).add_(1)),
}


def last_real(h, real):
    if real is None:
        return h[:, -1]
    return h[torch.arange(h.shape[0]), real.long().sum(1).clamp(min=1) - 1]


HEADS: dict[str, tuple[bool, Callable]] = {  # careful or not, function of (linear, h, real)
    "places": (True, lambda w, h, r: w(h)),
    "two of a dict": (True, lambda w, h, r: {"logits": w(h), "first": h[:, 0]}),
    "all hidden": (True, lambda w, h, r: (w(h), (h, h * 2))),
    "first place": (True, lambda w, h, r: w(h[:, 0])),
    "masked mean": (True, lambda w, h, r: w(masked_mean(h, r))),
    "masked max": (True, lambda w, h, r: w(masked_max(h, r))),
    "last real": (True, lambda w, h, r: w(last_real(h, r))),
    "labels": (True, lambda w, h, r: w(h).argmax(-1)),
    "beams": (True, lambda w, h, r: tuple(w(h).topk(2, -1))),
    "scores of pairs": (True, lambda w, h, r: h @ w(h).transpose(1, 2)),
    "masked probabilities": (
        True,
        lambda w, h, r: (w(h)[..., 0] if r is None else w(h)[..., 0].masked_fill(~r, -1e9)).softmax(1),
    ),
    "masked loss": (
        True,
        lambda w, h, r: w(h).square().mean() if r is None else (w(h).square().mean(-1) * r).sum() / r.sum(),
    ),
    "mean": (False, lambda w, h, r: w(h.mean(1))),
    "max": (False, lambda w, h, r: w(h.amax(1))),
    "max with places": (False, lambda w, h, r: {"pooled": h.amax(1), "logits": w(h)}),
    "last": (False, lambda w, h, r: w(h[:, -1])),
    "middle": (False, lambda w, h, r: w(h[:, h.shape[1] // 2])),
    "argmax of places": (False, lambda w, h, r: w(h)[..., 0].argmax(1)),
    "span": (False, lambda w, h, r: (w(h)[..., 0].argmax(1), w(h)[..., 1].amax(1))),
    "top-k of places": (False, lambda w, h, r: w(h)[..., 0].topk(min(2, h.shape[1]), 1).indices),
    "sorted places": (False, lambda w, h, r: w(h)[..., 0].sort(1).values),
    "probabilities": (False, lambda w, h, r: w(h)[..., 0].softmax(1)),
    "number": (False, lambda w, h, r: {"logits": w(h), "total": float(h.detach().sum())}),
    "length": (False, lambda w, h, r: (w(h), h.shape[1])),
    "loss": (False, lambda w, h, r: w(h).square().mean()),
    "is any": (False, lambda w, h, r: (w(h)[..., 0] > 2).any(1)),
    "histogram": (False, lambda w, h, r: torch.stack([torch.bincount(row, minlength=D) for row in w(h).argmax(-1)])),
}


def floats(rng: random.Random, *shape: int) -> torch.Tensor:
    """Values as requests bring them: mostly alike, now and then of another sign or size."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(rng.randrange(2**31)))
    style = rng.choice(
        ["plain"] * 4 + ["small", "below", "above", "large", "negative", "positive", "constant", "sparse"]
    )
    return {
        "plain": x,
        "small": x * 0.05,
        "below": x - 3,
        "above": x + 3,
        "large": x * 15,
        "negative": -x.abs() - 0.1,
        "positive": x.abs() + 0.1,
        "constant": torch.full_like(x, rng.choice([-1.0, 0.5, 2.0])) + 0.01 * x,
        "sparse": x * (x > 0.5),
    }[style]


def tokens(rng: random.Random, *shape: int) -> torch.Tensor:
    """Ids from 1 up: 0 is the padding's."""
    low, high = rng.choice([(1, VOCABULARY)] * 3 + [(1, 4), (30, VOCABULARY), (7, 8)])
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(rng.randrange(2**31)))


class SequenceNet(nn.Module):
    """Stem, blocks and a head over [B, T, D]; the mask comes in one of several ways."""

    def __init__(self, stem: nn.Module, blocks: list[nn.Module], head: Callable, way: str) -> None:
        super().__init__()
        self.stem, self.blocks, self.head, self.way = stem, nn.ModuleList(blocks), head, way
        self.out = nn.Linear(D, 5 if head is not HEADS["scores of pairs"][1] else D)

    def body(self, x, real):
        h = self.stem(x)
        for block in self.blocks:
            h = block(h, real)
        return self.head(self.out, h, real)


class Plain(SequenceNet):
    def forward(self, x):
        return self.body(x, None)


class Masked(SequenceNet):
    def forward(self, x, attention_mask=None):
        return self.body(x, None if attention_mask is None else attention_mask.bool())


class KeyPadding(SequenceNet):
    def forward(self, x, key_padding_mask=None):
        return self.body(x, None if key_padding_mask is None else ~key_padding_mask)


class Lengths(SequenceNet):
    def forward(self, x, lengths):
        return self.body(x, torch.arange(x.shape[1]) < lengths[:, None])


class PadId(SequenceNet):
    def forward(self, x):
        return self.body(x, x != 0 if not x.dtype.is_floating_point else (x != 0).any(-1))


class Batch(SequenceNet):
    def forward(self, batch):
        return self.body(batch["x"], batch["mask"].bool())


class Labelled(SequenceNet):
    """Training as transformers does it: a loss that ignores labels of -100, beside logits."""

    def forward(self, x, labels, attention_mask=None):
        logits = self.body(x, None if attention_mask is None else attention_mask.bool())
        return {"loss": F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100), "logits": logits}


def modes(rng: random.Random) -> tuple[Callable[[int], bool], str]:
    kind = rng.choice(["eval"] * 5 + ["train"] * 3 + ["eval, then train", "train, then eval"])
    return {
        "eval": lambda i: False,
        "train": lambda i: True,
        "eval, then train": lambda i: i >= 5,
        "train, then eval": lambda i: i < 5,
    }[kind], kind


def usage(rng: random.Random, case: Case, kind: str) -> Case:
    case.fixed = len(case.buckets) > 1 or rng.random() < 0.7
    case.precompiled = not case.fixed or rng.random() < 0.4
    case.check = "always" if rng.random() < 0.2 else "first"
    case.grad = "train" in kind and rng.random() < 0.7
    case.about += (
        f"; {kind}" + ("; gradients" if case.grad else "") + (f"; {case.check}" if case.check != "first" else "")
    )
    return case


def sequence(rng: random.Random) -> Case:
    careful = rng.random() < 0.55
    way = rng.choice([Plain, Masked, Masked, KeyPadding, Lengths, PadId, Batch, Labelled])
    pool = list(CAREFUL) if careful else list(CAREFUL) + 2 * list(CARELESS)
    names = [rng.choice(pool) for _ in range(rng.randint(1, 3))]
    if careful and way is Plain:
        names = [name for name in names if "mask" not in name]
    heads = [n for n, (ok, _) in HEADS.items() if ok or not careful]
    if way in (Plain,) and careful:
        heads = ["places", "two of a dict", "all hidden", "first place", "labels", "beams", "scores of pairs"]
    head = "places" if way is Labelled else rng.choice(heads)
    ids = rng.random() < 0.5
    stem = (
        nn.Embedding(VOCABULARY, D, padding_idx=rng.choice([None, 0]))
        if ids
        else rng.choice([nn.Linear(D, D), nn.Linear(D, D, bias=False), nn.Identity()])
    )
    both = rng.random() < 0.25  # batch padded as well
    training, kind = modes(rng)
    model = way(stem, [(CAREFUL | CARELESS)[n]() for n in names], HEADS[head][1], way.__name__)
    double = not ids and rng.random() < 0.15
    if double:
        model = model.double()
    dims = {0: "batch", 1: "seq"} if both else {1: "seq"}
    with_mask = rng.random() < 0.5  # calls bring a mask of their own

    def draw(r: random.Random, i: int) -> dict:
        n, t = (r.randint(1, 4) if both else 2), r.randint(3, 24)
        x = tokens(r, n, t) if ids else floats(r, n, t, D)
        x = x.double() if double else x
        lengths = torch.tensor([t] + [r.randint(1, t) for _ in range(n - 1)])
        real = torch.arange(t) < lengths[:, None]
        if way is PadId:
            x = x * (real if ids else real.unsqueeze(-1))
        if way is Masked:
            return {"x": x, "attention_mask": real.long() if with_mask else None}
        if way is KeyPadding:
            return {"x": x, "key_padding_mask": ~real if with_mask else None}
        if way is Lengths:
            return {"x": x, "lengths": lengths}
        if way is Batch:
            return {"batch": {"x": x, "mask": real.long()}}
        if way is Labelled:
            labels = torch.randint(0, 5, (n, t), generator=torch.Generator().manual_seed(r.randrange(2**31)))
            return {"x": x, "labels": labels, "attention_mask": real.long() if with_mask else None}
        return {"x": x}

    pad = {"batch.x": dims, "batch.mask": dims} if way is Batch else {"x": dims}
    masks: dict[str, tuple] = {}
    fill: dict = {}
    if way in (Masked, Labelled):
        masks, pad = {"attention_mask": (1, 0, torch.int64)}, pad | {"attention_mask": dims}
    if way is KeyPadding:
        masks, pad = {"key_padding_mask": (False, True, torch.bool)}, pad | {"key_padding_mask": dims}
    if way is Lengths and both:
        pad = pad | {"lengths": {0: "batch"}}
    if way is Labelled:
        pad, fill = pad | {"labels": dims}, {"labels": -100}
    if way is PadId:
        fill = {"x": 0}
    elif rng.random() < 0.2 and way is not Batch:
        fill = fill | {"x": 3}

    def sizes(inputs: dict) -> dict[str, int]:
        x = inputs["batch"]["x"] if way is Batch else inputs["x"]
        return {axis: x.shape[dim] for dim, axis in dims.items()}

    case = Case(
        f"{way.__name__}({'ids' if ids else 'floats'}): {type(stem).__name__}, {', '.join(names)} -> {head}",
        model, pad, sizes, draw, {"batch": BATCH, "seq": SEQ} if both else {"seq": SEQ},
        fill, masks, lambda inputs: tuple(inputs["x"].shape[:2]), None,
        positional=way is not Batch and rng.random() < 0.3, training=training,
    )  # fmt: skip
    return usage(rng, case, kind)

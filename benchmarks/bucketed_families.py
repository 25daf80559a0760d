"""The families of models that bucketed_models.py draws from: sequences, rows, signals, images, graphs, pairs, boxes."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from bucketed_blocks import SEQ, Case, D, floats, modes, sequence, tokens, usage
from torch import nn
from torch.nn import functional as F


class Layers(nn.Module):
    """Layers over one tensor, the last of which may be a function."""

    def __init__(self, layers: list) -> None:
        super().__init__()
        self.steps = [layer if not isinstance(layer, nn.Module) else None for layer in layers]
        self.layers = nn.ModuleList([layer for layer in layers if isinstance(layer, nn.Module)])

    def forward(self, x):
        modules = iter(self.layers)
        for step in self.steps:
            x = step(x) if step is not None else next(modules)(x)
        return x


ROWS: list[tuple[str, Callable]] = [
    ("linear", lambda: nn.Linear(D, D)),
    ("relu", lambda: nn.ReLU()),
    ("batch norm", lambda: nn.BatchNorm1d(D)),
    ("layer norm", lambda: nn.LayerNorm(D)),
    ("dropout", lambda: nn.Dropout(0.3)),
    ("alpha dropout", lambda: nn.AlphaDropout(0.2)),
    ("row sort", lambda: lambda x: x.sort(-1).values),
    ("standardise batch", lambda: lambda x: (x - x.mean(0)) / (x.std(0, unbiased=False) + 1e-2)),
    ("softmax of batch", lambda: lambda x: x.softmax(0)),
    ("centre by max", lambda: lambda x: x - x.amax(0)),
    ("cosine", lambda: lambda x: F.normalize(x, dim=-1)),
    ("spectral linear", lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(D, D))),
]
ROW_HEADS: list[tuple[str, Callable]] = [
    ("rows", lambda x: x),
    ("rows", lambda x: x),
    ("best class", lambda x: x.argmax(-1)),
    ("mean loss", lambda x: x.square().mean()),
    ("sum loss", lambda x: x.relu().sum()),
    ("contrastive", lambda x: F.log_softmax(x @ x.T, -1).diagonal()),
    ("similarities", lambda x: x @ x.T),
    ("best of batch", lambda x: x[:, 0].argmax()),
    ("maximum of batch", lambda x: {"rows": x, "best": x.amax(0)}),
    ("nearest other", lambda x: torch.cdist(x, x).add(1e3 * torch.eye(x.shape[0], dtype=x.dtype)).argmin(-1)),
    ("order", lambda x: x[:, 0].argsort()),
    ("unique", lambda x: x.round().unique(dim=0)),
]


def rows(rng: random.Random) -> Case:
    """Draw a model of a batch of rows, the batch padded."""
    picked = [rng.choice(ROWS) for _ in range(rng.randint(1, 4))]
    head = rng.choice(ROW_HEADS)
    training, kind = modes(rng)
    model = Layers([make() for _, make in picked] + [head[1]])
    case = Case(
        f"rows: {', '.join(n for n, _ in picked)} -> {head[0]}", model, {"x": {0: "batch"}},
        lambda inputs: {"batch": inputs["x"].shape[0]},
        lambda r, i: {"x": floats(r, r.randint(2, 24), D)}, {"batch": SEQ}, training=training,
    )  # fmt: skip
    return usage(rng, case, kind)


SIGNAL: list[tuple[str, Callable]] = [
    ("conv", lambda: nn.Conv1d(D, D, 3, padding=1)),
    ("conv without bias", lambda: nn.Conv1d(D, D, 5, padding=2, bias=False)),
    ("causal conv", lambda: nn.Sequential(nn.ConstantPad1d((4, 0), 0.0), nn.Conv1d(D, D, 3, dilation=2))),
    ("pointwise", lambda: nn.Conv1d(D, D, 1)),
    ("batch norm", lambda: nn.BatchNorm1d(D)),
    ("group norm", lambda: nn.GroupNorm(4, D)),
    ("relu", lambda: nn.ReLU()),
    ("max pool same", lambda: nn.MaxPool1d(3, 1, 1)),
    ("average pool same", lambda: nn.AvgPool1d(3, 1, 1)),
    ("dropout of channels", lambda: nn.Dropout1d(0.2)),
    ("local response norm", lambda: nn.LocalResponseNorm(3)),
    ("prelu", lambda: nn.PReLU()),
]


def signal(rng: random.Random) -> Case:
    """[B, C, T], the time padded; the last layer may halve or double it."""
    picked = [rng.choice(SIGNAL) for _ in range(rng.randint(1, 3))]
    layers = [make() for _, make in picked]
    crop: dict | None = None
    tail = rng.choice(["same"] * 4 + ["half", "patches", "double", "mean", "max", "adaptive", "windows", "framed"])
    if tail == "half":
        layers.append(nn.Conv1d(D, D, 3, stride=2, padding=1))
        crop = {2: lambda seq: (seq + 1) // 2}
    if tail == "patches":  # those of real samples alone
        layers.append(nn.Conv1d(D, D, 2, stride=2))
        crop = {2: lambda seq: seq // 2}
    if tail == "double":
        layers.append(nn.Upsample(scale_factor=2, mode=rng.choice(["nearest", "linear"])))
        crop = {2: lambda seq: 2 * seq}
    if tail == "windows":
        layers.append(nn.Conv1d(D, D, 3))
        crop = {2: lambda seq: seq - 2}
    if tail == "mean":
        layers.append(lambda x: x.mean(-1))
    if tail == "max":
        layers.append(nn.AdaptiveMaxPool1d(1))
    if tail == "adaptive":
        layers.append(nn.AdaptiveAvgPool1d(4))
    if tail == "framed":
        layers.append(lambda x: x.unfold(-1, 3, 1).amax(-1))
        crop = {2: lambda seq: seq - 2}
    if crop is not None and rng.random() < 0.3:
        crop = None  # left to be found out
    training, kind = modes(rng)
    case = Case(
        f"signal: {', '.join(n for n, _ in picked)} -> {tail}", Layers(layers), {"x": {2: "seq"}},
        lambda inputs: {"seq": inputs["x"].shape[2]},
        lambda r, i: {"x": floats(r, 2, D, r.randint(3, 24))}, {"seq": SEQ}, crop=crop, training=training,
    )  # fmt: skip
    return usage(rng, case, kind)


IMAGE: list[tuple[str, Callable]] = [
    ("pointwise", lambda: nn.Conv2d(4, 4, 1)),
    ("conv", lambda: nn.Conv2d(4, 4, 3, padding=1)),
    ("conv without bias", lambda: nn.Conv2d(4, 4, 3, padding=1, bias=False)),
    ("relu", lambda: nn.ReLU()),
    ("batch norm", lambda: nn.BatchNorm2d(4)),
    ("group norm", lambda: nn.GroupNorm(2, 4)),
    ("layer norm of channels", lambda: lambda x: F.layer_norm(x.movedim(1, -1), (4,)).movedim(-1, 1)),
    ("dropout of channels", lambda: nn.Dropout2d(0.2)),
    ("softmax of channels", lambda: nn.Softmax2d()),
    ("squeeze and excite", lambda: lambda x: x * x.mean((2, 3), keepdim=True).sigmoid()),
]
IMAGE_TAILS: list[tuple[str, Callable]] = [
    ("map", lambda x: x),
    ("map", lambda x: x),
    ("labels", lambda x: x.argmax(1)),
    ("mean", lambda x: x.mean((2, 3))),
    ("max", lambda x: x.amax((2, 3))),
    ("columns", lambda x: x.mean(2)),
    ("flat", lambda x: x.flatten(2)),
    ("softmax of places", lambda x: x.flatten(2).softmax(-1).view_as(x)),
    ("shuffle", lambda x: F.pixel_shuffle(x, 2)),
]


def image(rng: random.Random) -> Case:
    """[B, C, H, W], the width or both padded."""
    picked = [rng.choice(IMAGE) for _ in range(rng.randint(1, 3))]
    tail = rng.choice(IMAGE_TAILS)
    dims = {2: "height", 3: "width"} if rng.random() < 0.4 else {3: "width"}
    training, kind = modes(rng)
    case = Case(
        f"image: {', '.join(n for n, _ in picked)} -> {tail[0]}", Layers([make() for _, make in picked] + [tail[1]]),
        {"x": dims}, lambda inputs: {axis: inputs["x"].shape[dim] for dim, axis in dims.items()},
        lambda r, i: {"x": floats(r, 2, 4, r.randint(3, 16) if len(dims) == 2 else 6, r.randint(3, 16))},
        {axis: [8, 16] for axis in dims.values()}, training=training,
    )  # fmt: skip
    return usage(rng, case, kind)


class Graph(nn.Module):
    """Messages along edges, the edges padded: an edge of padding goes from node 0 to node 0."""

    def __init__(self, how: str, bias: bool) -> None:
        super().__init__()
        self.how, self.message = how, nn.Linear(D, D, bias=bias)

    def forward(self, x, edges, weight):
        source, target = edges
        m = self.message(x[source])
        if self.how in ("weighted", "pooled"):
            m = m * weight.unsqueeze(-1)
        zeros = torch.zeros_like(x)
        if self.how == "maximum":
            return zeros.index_reduce(0, target, m, "amax", include_self=True)
        out = zeros.index_add(0, target, m)
        if self.how == "average":
            count = torch.zeros(x.shape[0], dtype=x.dtype).index_add(0, target, torch.ones_like(weight))
            out = out / count.clamp(min=1).unsqueeze(-1)
        return (out, out.mean(0)) if self.how == "pooled" else x + out


def graph(rng: random.Random) -> Case:
    how, bias = rng.choice(["weighted", "weighted", "sum", "average", "maximum", "pooled"]), rng.random() < 0.5
    training, kind = modes(rng)

    def draw(r: random.Random, i: int) -> dict:
        nodes, edges = 6, r.randint(3, 24)
        pairs = torch.randint(0, nodes, (2, edges), generator=torch.Generator().manual_seed(r.randrange(2**31)))
        return {"x": floats(r, nodes, D), "edges": pairs, "weight": floats(r, edges)}

    case = Case(
        f"graph: {how}{', bias' if bias else ''}", Graph(how, bias), {"edges": {1: "edges"}, "weight": {0: "edges"}},
        lambda inputs: {"edges": inputs["weight"].shape[0]}, draw, {"edges": SEQ}, training=training,
    )  # fmt: skip
    return usage(rng, case, kind)


class Pair(nn.Module):
    """Two sequences with axes of their own: scores, cross attention, or a decoder over a memory."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.embed = how, nn.Embedding(40, D)
        self.layer = nn.TransformerDecoderLayer(D, 2, 16, dropout=0.1, batch_first=True)

    def forward(self, source, target, source_mask=None):
        s, t = self.embed(source), self.embed(target)
        padding = None if source_mask is None else ~source_mask.bool()
        if self.how == "scores":
            return t @ s.transpose(1, 2)
        if self.how == "best match":
            return (t @ s.transpose(1, 2)).amax(-1)
        if self.how == "late interaction":
            scores = t @ s.transpose(1, 2)
            return (scores if padding is None else scores.masked_fill(padding[:, None], -1e9)).amax(-1)
        causal = torch.ones(t.shape[1], t.shape[1], dtype=torch.bool).triu(1)
        if self.how == "unmasked decoder":
            padding = None
        out = self.layer(t, s, tgt_mask=causal, memory_key_padding_mask=padding)
        return out.mean(1) if self.how == "pooled decoder" else out


def pair(rng: random.Random) -> Case:
    how = rng.choice(
        ["scores", "best match", "late interaction", "decoder", "decoder", "unmasked decoder", "pooled decoder"]
    )
    training, kind = modes(rng)
    case = Case(
        f"pair: {how}", Pair(how), {"source": {1: "source"}, "target": {1: "target"}, "source_mask": {1: "source"}},
        lambda inputs: {"source": inputs["source"].shape[1], "target": inputs["target"].shape[1]},
        lambda r, i: {name: tokens(r, 2, r.randint(3, 16)) for name in ("source", "target")} | {"source_mask": None},
        {"source": [8, 16], "target": [8, 16]}, masks={"source_mask": (1, 0, torch.int64)},
        mask_shape=lambda inputs: tuple(inputs["source"].shape), training=training,
    )  # fmt: skip
    return usage(rng, case, kind)


class Recurrent(nn.Module):
    """Time first, as recurrent models have it, with what they return."""

    def __init__(self, kind: type, two_way: bool, what: str) -> None:
        super().__init__()
        self.cell, self.what = kind(D, D, bidirectional=two_way), what

    def forward(self, x):
        out, state = self.cell(x)
        return {"outputs": out, "both": (out, state), "state": state, "last": out[-1], "running": out.cumsum(0).tanh()}[
            self.what
        ]


def recurrent(rng: random.Random) -> Case:
    kind, two_way = rng.choice([nn.RNN, nn.GRU, nn.LSTM]), rng.random() < 0.25
    what = rng.choice(["outputs", "outputs", "running", "both", "state", "last"])
    training, mode = modes(rng)
    case = Case(
        f"recurrent: {kind.__name__}{', two-way' if two_way else ''} -> {what}", Recurrent(kind, two_way, what),
        {"x": {0: "seq"}}, lambda inputs: {"seq": inputs["x"].shape[0]},
        lambda r, i: {"x": floats(r, r.randint(3, 24), 2, D)}, {"seq": SEQ}, training=training,
    )  # fmt: skip
    return usage(rng, case, mode)


class Boxes(nn.Module):
    """Detections: the best few of many candidates, whose number varies."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.score = how, nn.Linear(4, 1)

    def forward(self, boxes, scores):
        boxes = torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:].abs()], -1)
        if self.how == "best":
            return boxes[scores.topk(3).indices], scores.topk(3).values
        if self.how == "sorted":
            order = scores.argsort(descending=True)
            return boxes[order], scores[order]
        if self.how == "overlaps":
            corner = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:]) - torch.maximum(
                boxes[:, None, :2], boxes[None, :, :2]
            )
            return corner.clamp(min=0).prod(-1)
        if self.how == "suppressed":  # soft suppression: what overlaps a better box counts for less
            corner = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:]) - torch.maximum(
                boxes[:, None, :2], boxes[None, :, :2]
            )
            better = (scores[None] > scores[:, None]) & (corner.clamp(min=0).prod(-1) > 0)
            return scores * 0.5 ** better.sum(-1)
        if self.how == "count":
            return (scores > 0.5).sum()
        if self.how == "kept":
            return boxes[scores > 0.5]
        return self.score(boxes).squeeze(-1).sigmoid() * scores


def boxes(rng: random.Random) -> Case:
    how = rng.choice(["best", "sorted", "overlaps", "suppressed", "count", "kept", "scored"])
    fill = rng.choice([{}, {"scores": -1e9}])
    training, kind = modes(rng)

    def draw(r: random.Random, i: int) -> dict:
        n = r.randint(3, 24)
        return {"boxes": floats(r, n, 4), "scores": floats(r, n)}

    case = Case(
        f"boxes: {how}{', fill' if fill else ''}", Boxes(how), {"boxes": {0: "n"}, "scores": {0: "n"}},
        lambda inputs: {"n": inputs["scores"].shape[0]}, draw, {"n": SEQ}, fill=fill, training=training,
    )  # fmt: skip
    return usage(rng, case, kind)


FAMILIES: list[Callable[[random.Random], Case]] = [
    *[sequence] * 8, *[rows] * 2, *[signal] * 2, *[image] * 2, graph, pair, recurrent, boxes,
]  # fmt: skip

"""Targets whose graphs on PyTorch/XLA can be counted by hand."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn


def plain() -> Any:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), torch.randn(4, 8)


class Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.one(x))
        if x.sum().item() > -1:
            x = x * 2
        return self.two(x)


def reads() -> Any:
    return Reads(), torch.randn(4, 8)


class NotLowered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.one(x)
        return self.two(x - x.median())


def not_lowered() -> Any:
    return NotLowered(), torch.randn(4, 8)


class Dynamic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.one(x)
        return self.two(x[torch.nonzero(x[:, 0] > -100).squeeze(1)])


def dynamic() -> Any:
    return Dynamic(), torch.randn(4, 8)


class Growing(nn.Module):
    """Another size in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.calls = nn.Linear(8, 8), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.one(x[: 2 + self.calls])


def growing() -> Any:
    return Growing(), torch.randn(32, 8)


class Sliding(nn.Module):
    """Another constant in each call: where the rows begin."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.calls = nn.Linear(8, 8), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.one(x[self.calls : self.calls + 4])


def sliding() -> Any:
    return Sliding(), torch.randn(32, 8)


class Synced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.one(x)
        if x.device.type == "xla":
            import torch_xla

            torch_xla.sync()
        return x * 2


def synced() -> Any:
    return Synced(), torch.randn(4, 8)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows, self.head = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)
        self.head.weight = self.rows.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.rows(ids))


def tied() -> Any:
    return Tied(), torch.randint(0, 16, (4, 3))


class Ranked(nn.Module):
    """A parameter that nothing flows back to: it only says which rows are taken."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.score = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(x)[self.score(x).flatten().topk(2)[1]]


def ranked() -> Any:
    return Ranked(), torch.randn(4, 8)


class Dropped(nn.Module):
    """A dropout of probability 0 hands out what it is given, and both are kept for backward."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.head, self.dropout = nn.Linear(8, 8), nn.Linear(8, 2), nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.head(self.dropout(torch.tanh(self.pool(x))))
        target = torch.zeros(len(x), dtype=torch.long, device=x.device)
        return {"loss": nn.functional.cross_entropy(out, target), "out": out}


def dropped() -> Any:
    return Dropped(), torch.randn(4, 8)


class Wrong(nn.Module):
    """Answers otherwise on XLA."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (1 if x.device.type == "xla" else 0)


def wrong() -> Any:
    return Wrong(), torch.randn(4, 8)


def function(device: Any = None) -> Any:
    x = torch.randn(4, 8, device=device)
    return lambda: x * 2


def function_without_device() -> Any:
    return lambda: None


def fails() -> Any:
    raise RuntimeError("the weights\nare not here")


def hangs() -> Any:
    time.sleep(600)

"""Small models in buckets, and a fresh compiler for each test."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import torchtriage as tt

torch: Any = pytest.importorskip("torch")

BucketedModule = tt.BucketedModule

SIZES = [5, 6, 7, 8, 11, 12, 16]


class Encoder(torch.nn.Module):
    """Tokens to features, each by itself; a masked mean beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(50, 8)
        self.linear = torch.nn.Linear(8, 8)
        self.scale = 1.0

    def forward(self, ids: Any, attention_mask: Any = None) -> dict[str, Any]:
        hidden = torch.relu(self.linear(self.embed(ids))) * self.scale
        if attention_mask is None:
            return {"hidden": hidden, "mean": hidden.mean(1)}
        real = attention_mask[..., None].to(hidden.dtype)
        return {"hidden": hidden, "mean": (hidden * real).sum(1) / real.sum(1)}


@pytest.fixture(autouse=True)
def fresh() -> Any:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    assert not [
        one for one in threading.enumerate() if one.name == "torchtriage-buckets" and one.is_alive() and not _ends(one)
    ]


def _ends(thread: threading.Thread) -> bool:
    thread.join(60)
    return not thread.is_alive()


def tokens(length: int, batch: int = 2) -> Any:
    return torch.randint(0, 50, (batch, length))


def encoder(**more: Any) -> Any:
    settings = {"pad": {"ids": 1}, "mask": "attention_mask", "backend": "eager", **more}
    return BucketedModule(Encoder().eval(), **settings)


def same(out: Any, wanted: Any) -> None:
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)


def per_element(*, crop: Any = None, **more: Any) -> Any:
    """Return a bucketed model whose outputs are elementwise."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()).eval()
    return BucketedModule(model, pad=1, crop=crop, backend="eager", **more)

"""A small network over events, in the spirit of TorchTraceAP, to compare the trees with.

An event encoder reads each kind of event of a window (:mod:`torchtriage_benchmark.training.event_tokens`): its
name, its parent's, its family, how often, how long, how deep. A window encoder reads what they add
up to, beside the same of the whole recording. Two heads say how likely a fault is, and which. It is
trained with torch and never shipped: what is shipped runs without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtriage.core.arrays import Floats
from torchtriage.core.errors import MissingExtraError
from torchtriage.diagnose.detector.families import FRAME_FAMILIES, HOST_FAMILIES, WORK_FAMILIES
from torchtriage_benchmark.training.event_tokens import BUCKETS, VALUES
from torchtriage_benchmark.training.training_set import Example

if TYPE_CHECKING:
    import torch

EPOCHS = 16
_NAME, _FAMILY, _EVENT, _WINDOW = 16, 8, 48, 96
"""Widths: of a name, a family, an encoded event, an encoded window."""
_FORGOTTEN = 0.3
"""Share of names that are hidden while it learns, so that it has to know families as well."""
_SCALE = (4.0, 0.2, 10.0, 8.0)
"""What divides the values, so that they are about one."""

Network = Callable[[Example], tuple[Floats, tuple[dict[str, float], ...]]]
"""Of a recording: each window's score, and how likely it is each type if there is a fault."""


def network(train: Sequence[Example], *, seed: int = 0) -> Network:
    """Return a network trained on the labels of windows.

    Raises MissingExtraError: torch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError(
            "training the network needs torch, not installed here", hint="pip install 'torchtriage[torch]'"
        ) from error
    from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

    codes = sorted({item.code for item in train if item.code})
    inputs = [_tensors(item) for item in train]
    truths = [torch.from_numpy(item.faulty.astype(np.float32)) for item in train]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = _encoder(len(codes))
        optimizer = torch.optim.AdamW(encoder.parameters(), lr=2e-3, weight_decay=0.05)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=EPOCHS * len(train))
        encoder.train()
        for _ in range(EPOCHS):
            for at in torch.randperm(len(train)).tolist():
                scores, types = encoder(*inputs[at])
                loss = binary_cross_entropy_with_logits(scores, truths[at])
                faulty = truths[at] > 0
                if faulty.any():
                    code = torch.full((int(faulty.sum()),), codes.index(train[at].code))
                    loss = loss + 0.5 * cross_entropy(types[faulty], code)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
        encoder.eval()

    def judge(example: Example) -> tuple[Floats, tuple[dict[str, float], ...]]:
        with torch.inference_mode():
            scores, types = encoder(*_tensors(example))
            shares = torch.softmax(types, dim=1).numpy()
        told = tuple(dict(zip(codes, row.tolist(), strict=True)) for row in shares)
        return scores.double().numpy(), told

    return judge


def _tensors(example: Example) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return buckets int64[windows, kinds, 2], families int64[windows, kinds] and values."""
    import torch

    values = example.looked["kind_values"].astype(np.float32)
    family = values[:, :, VALUES.index("category")].astype(np.int64)
    numbers = values[:, :, : len(_SCALE)] / np.array(_SCALE, np.float32)
    names = example.looked["kind_names"].astype(np.int64)
    return torch.from_numpy(names), torch.from_numpy(family), torch.from_numpy(numbers)


def _encoder(n_codes: int) -> Any:
    import torch
    from torch import nn

    class Encoder(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            n_families = len(HOST_FAMILIES) + len(FRAME_FAMILIES) + len(WORK_FAMILIES)
            self.name = nn.Embedding(BUCKETS, _NAME)
            self.family = nn.Embedding(n_families, _FAMILY)
            self.event = nn.Sequential(
                nn.Linear(2 * _NAME + _FAMILY + len(_SCALE), _EVENT), nn.GELU(), nn.Linear(_EVENT, _EVENT), nn.GELU()
            )
            self.window = nn.Sequential(nn.Dropout(0.2), nn.Linear(6 * _EVENT, _WINDOW), nn.GELU(), nn.Dropout(0.2))
            self.faulty = nn.Linear(_WINDOW, 1)
            self.kind = nn.Linear(_WINDOW, n_codes)

        def forward(
            self, names: torch.Tensor, family: torch.Tensor, values: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            there = names[:, :, :1] > 0
            if self.training:
                names = names * (torch.rand(names.shape) >= _FORGOTTEN)
            told = (self.name(names).flatten(2), self.family(family), values)
            events = self.event(torch.cat(told, dim=2)) * there
            share = values[:, :, 1:2].clamp(max=5)
            sums = (events.sum(dim=1) / there.sum(dim=1).clamp(min=1), (events * share).sum(dim=1), events.amax(dim=1))
            window = torch.cat(sums, dim=1)
            beside = window - window.mean(dim=0, keepdim=True)
            encoded = self.window(torch.cat([window, beside], dim=1))
            return self.faulty(encoded)[:, 0], self.kind(encoded)

    return Encoder()

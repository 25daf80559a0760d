"""Gradients that no optimizer takes, as the script's process sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from torchtriage.core.record import unused_gradients
from torchtriage.core.record.unused_gradients import GradientWatch

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
Watched = Callable[[Any, list[Any]], "dict[str, Any] | None"]


class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
    """An encoder and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
        self.head = torch.nn.Linear(8, 1)

    def forward(self, x: Any) -> Any:
        return self.head(self.encoder(x))


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Returns what is noted at the ends of two steps; other tests of this process have optimizers of their own."""

    def noted(model: Any, optimizers: list[Any]) -> dict[str, Any] | None:
        objects = [*model.modules(), *model.parameters(), *optimizers]
        monkeypatch.setattr(unused_gradients.gc, "get_objects", lambda: objects)
        return _noted(model, optimizers)

    return noted


def _noted(model: Any, optimizers: list[Any]) -> dict[str, Any] | None:
    watch = None
    for _ in range(2):
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        watch = watch or GradientWatch()
    assert watch is not None
    watch.thrown.stop()
    return watch.facts()


def test_a_frozen_encoder_that_only_the_optimizer_knows_of_is_named(watched: Watched) -> None:
    model = Model()
    facts = watched(model, [torch.optim.SGD(model.head.parameters(), 0.1)])
    assert facts == {"unused": 144, "taken": 9, "parameters": 4, "modules": ["encoder"]}


@pytest.mark.parametrize("frozen", ["requires_grad", "other optimizer"])
def test_what_is_frozen_or_trained_by_another_optimizer_is_none(frozen: str, watched: Watched) -> None:
    model = Model()
    optimizers = [torch.optim.SGD(model.head.parameters(), 0.1)]
    if frozen == "requires_grad":
        model.encoder.requires_grad_(False)
    else:
        optimizers.append(torch.optim.SGD(model.encoder.parameters(), 0.1))
    assert watched(model, optimizers) is None


def test_gradients_left_from_a_training_before_are_none(watched: Watched) -> None:
    model = Model()
    model(torch.randn(4, 8)).sum().backward()
    model.encoder.requires_grad_(False)
    assert watched(model, [torch.optim.SGD(model.head.parameters(), 0.1)]) is None


def test_a_script_that_updates_by_hand_is_not_judged(watched: Watched) -> None:
    assert watched(Model(), []) is None

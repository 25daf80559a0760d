"""What is computed again: steps in which it is known."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def every_operator_takes_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a clock that goes on at each look, so that no share is luck."""
    pytest.importorskip("torch")
    from torchtriage.core.record import operator_probe

    ticks = count(0, 1000)
    monkeypatch.setattr(operator_probe, "time", SimpleNamespace(perf_counter_ns=lambda: next(ticks)))


def repeated(step: Callable[[int], object]) -> dict[int, tuple[float, float]]:
    """Return what part of its lines, from its first, repeat the step before, and the same step; after one step."""
    from torchtriage.core.record.operator_probe import OperatorProbe

    step(0)
    probe = OperatorProbe()
    assert probe.start()
    step(1)
    probe.step()
    step(2)
    _, found = probe.stop()
    first = step.__code__.co_firstlineno
    return {row["line"] - first: (row["again_ns"] / row["ns"], row["within_ns"] / row["ns"]) for row in found}


@pytest.fixture(name="given")
def tensors() -> Any:
    """Return a matrix, a layer with its optimizer, and a batch for each step."""
    import torch

    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 64)
    return torch.rand(256, 256), layer, torch.optim.AdamW(layer.parameters()), [torch.rand(256, 64) for _ in range(3)]


def test_constants_of_a_training_step(given: Any) -> None:
    matrix, layer, optimizer, batches = given

    def step(number: int) -> None:
        degrees = matrix.sum(1).rsqrt()
        normal = degrees[:, None] * matrix * degrees[None]
        hidden = normal @ batches[number]
        layer(hidden).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    assert repeated(step) == {1: (1.0, 0.0), 2: (1.0, 0.0)}


def test_what_each_layer_makes_from_nothing(given: Any) -> None:
    import torch

    _, _, _, batches = given

    def step(number: int) -> None:
        hidden = batches[number]
        for _ in range(4):
            places = torch.outer(torch.arange(256.0), 1 / torch.arange(1.0, 65.0)).cos()
            for _ in range(8):
                hidden = hidden @ (hidden.T @ hidden).softmax(-1)
            hidden = hidden + places
        hidden.sum().item()

    found = repeated(step)
    assert found[3][0] == 1.0
    assert found[3][1] == pytest.approx(0.75, abs=0.1)
    assert set(found) == {3}


@pytest.mark.parametrize("name", ["changed in place", "changed by numpy", "random", "an optimizer's"])
def test_values_that_change_are_others(name: str, given: Any) -> None:
    import torch
    from torch.nn import functional

    matrix, layer, optimizer, batches = given
    held = np.zeros((256, 256), np.float32)
    shared, total = torch.from_numpy(held), torch.zeros(256, 256)

    def step(number: int) -> None:
        held[:] = number
        total.add_(batches[number] @ batches[number].T)
        if name == "changed in place":
            (total @ total).sum().item()
        elif name == "changed by numpy":
            (shared @ shared).sum().item()
        elif name == "random":
            (functional.dropout(matrix, 0.1) @ matrix).sum().item()
        else:
            layer(matrix[:, :64]).square().mean().backward()
            optimizer.step()

    assert not repeated(step)


def test_a_table_that_is_filled_in_each_step_is_made_again(given: Any) -> None:
    import torch

    matrix, _, _, batches = given

    def step(number: int) -> None:
        table = torch.zeros(256, 256)
        table += matrix
        table[:, :64] = batches[number]
        (table @ batches[number]).sum().item()

    def constant(number: int) -> None:
        table = torch.zeros(256, 256)
        table += matrix
        table[:, :64] = 1
        (table @ batches[number]).sum().item()

    assert not repeated(step)
    assert set(repeated(constant)) == {1, 2, 3}


def test_a_benchmark_of_the_same_batch_repeats_nothing(given: Any) -> None:
    _, layer, _, batches = given

    def step(number: int) -> None:
        layer(batches[0]).relu().sum().item()

    assert not repeated(step)


def test_what_is_computed_again_for_the_backward_pass_is_wanted(given: Any) -> None:
    from torch.utils.checkpoint import checkpoint

    _, layer, _, batches = given

    def step(number: int) -> None:
        hidden = checkpoint(lambda rows: layer(rows).exp(), batches[number], use_reentrant=False)
        hidden.square().mean().backward()

    assert not repeated(step)

"""The probe of operators: the script does not notice it, and it ends where it has to."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.core.record.noted_step import layers, unread

pytestmark = pytest.mark.torch

KINDS: dict[str, Callable[[dict[str, Any]], float]] = {}


def kind(step: Callable[[dict[str, Any]], float]) -> Callable[[dict[str, Any]], float]:
    KINDS[step.__name__] = step
    return step


@kind
def autocast_and_scaler(held: dict[str, Any]) -> float:
    import torch
    from torch import nn

    model = held.setdefault("model", nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    optimizer = held.setdefault("optimizer", torch.optim.AdamW(model.parameters(), fused=True))
    scaler = held.setdefault("scaler", torch.amp.GradScaler("cpu"))
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.randn(32, 64)).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return float(loss.detach())


@kind
def checkpoints(held: dict[str, Any]) -> float:
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    layer = held.setdefault("layer", nn.Linear(64, 64))
    hidden: Any = torch.randn(8, 64, requires_grad=True)
    for reentrant in (True, False):
        hidden = checkpoint(lambda rows: layer(rows).tanh(), hidden, use_reentrant=reentrant)
    hidden.sum().backward()
    return float(layer.weight.grad.sum())


@kind
def function_transforms(_: dict[str, Any]) -> float:
    import torch

    gradient = torch.func.vmap(torch.func.grad(lambda row: row.sin().square().sum()))(torch.randn(8, 32))
    return float(gradient.sum() + torch.func.jacrev(lambda row: row.exp())(torch.randn(6)).sum())


@kind
def sparse_gradients(held: dict[str, Any]) -> float:
    import torch
    from torch import nn

    table = held.setdefault("table", nn.EmbeddingBag(500, 16, mode="sum", sparse=True))
    optimizer = held.setdefault("optimizer", torch.optim.SparseAdam(list(table.parameters())))
    loss = table(torch.randint(0, 500, (8, 4))).sum().square()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach())


@kind
def complex_numbers(_: dict[str, Any]) -> float:
    import torch

    spectrum = torch.fft.rfft(torch.randn(16, 256))
    return float((spectrum.conj() * spectrum).real.sum())


@kind
def packed_sequences(held: dict[str, Any]) -> float:
    import torch
    from torch import nn

    layer = held.setdefault("layer", nn.LSTM(16, 32, batch_first=True))
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(4, 10, 16), [10, 7, 5, 2], batch_first=True)
    rows, _ = nn.utils.rnn.pad_packed_sequence(layer(packed)[0], batch_first=True)
    rows[:, -1].sum().backward()
    return float(rows.detach().sum())


@kind
def inference_of_a_transformer(held: dict[str, Any]) -> float:
    import torch
    from torch import nn

    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = held.setdefault("model", nn.TransformerEncoder(layer, 2).eval())
    with torch.inference_mode():
        return float(model(torch.randn(4, 20, 32)).sum())


@kind
def jagged_tensors(_: dict[str, Any]) -> float:
    import torch

    rows = torch.nested.nested_tensor([torch.randn(3, 4), torch.randn(5, 4)], layout=torch.jagged)
    return float(rows.sin().sum())


@kind
def memory_of_others(_: dict[str, Any]) -> float:
    import torch

    weight = torch.nn.Parameter(torch.zeros(100))
    weight.data = torch.randn(100)
    rows = torch.empty(0)
    rows.set_(weight.detach().clone())
    rows.resize_(50)
    windows = torch.as_strided(torch.randn(1000), (10, 10), (1, 1))
    return float(rows.sum() + weight.detach().sum() + windows.sum() + torch.randn(9).view(torch.int32).sum())


@kind
def closures(held: dict[str, Any]) -> float:
    import torch

    weight = held.setdefault("weight", torch.randn(100, requires_grad=True))
    optimizer = held.setdefault("optimizer", torch.optim.LBFGS([weight], max_iter=3))

    def loss() -> Any:
        optimizer.zero_grad()
        value = weight.square().sum()
        value.backward()
        return value

    return float(optimizer.step(loss).detach())


def test_nothing_large_is_imported_for_it() -> None:
    """Such as torch's compiler, which takes a second or two, in the middle of a step."""
    text = """
import sys, torch
from torchtriage.core.record.operator_probe import OperatorProbe
before = set(sys.modules)
probe = OperatorProbe()
assert probe.start()
for _ in range(2):
    torch.nn.functional.linear(torch.rand(4, 8), torch.rand(8, 8)).relu()[:, -1].sum().item()
    probe.step()
probe.stop()
print(*sorted(set(sys.modules) - before))
"""
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert len(ended.stdout.split()) < 5, ended.stdout


@pytest.mark.parametrize("name", KINDS)
def test_steps_of_all_kinds_are_as_without(name: str) -> None:
    import torch

    from torchtriage.core.record.operator_probe import OperatorProbe

    def run(probe: OperatorProbe | None) -> list[float]:
        torch.manual_seed(0)
        held: dict[str, Any] = {}
        losses = []
        for number in range(6):
            if probe is not None and number == 2:
                assert probe.start()
            elif probe is not None and number == 3:
                probe.step()
            elif probe is not None and number == 4:
                probe.stop()
            losses.append(KINDS[name](held))
        return losses

    assert run(None) == run(OperatorProbe())


def test_results_and_random_numbers_are_as_without() -> None:
    import torch
    from torch.nn import functional

    body, head, hidden, labels = layers()

    def step() -> tuple[float, Any]:
        torch.manual_seed(1)
        logits = head(functional.dropout(body(hidden), 0.3))[:, -1]
        loss = functional.cross_entropy(logits, labels[:, -1])
        gradient = torch.autograd.grad(loss, head.weight)[0]
        return float(loss.detach()), gradient

    plain, seen = step(), []
    unread(lambda: seen.append(step()))
    assert seen[0][0] == plain[0]
    assert torch.equal(seen[0][1], plain[1])


def test_whoever_looks_already_is_left_alone() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    from torchtriage.core.record.operator_probe import OperatorProbe

    with FlopCounterMode(display=False):
        assert not OperatorProbe().start()
    sys.setprofile(lambda *_: None)
    try:
        assert not OperatorProbe().start()
    finally:
        sys.setprofile(None)


def test_modes_of_the_script_inside_a_step() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    _, head, hidden, _ = layers()

    def step() -> None:
        with FlopCounterMode(display=False) as flops:
            head(hidden)[:, -1].sum().item()
        assert flops.get_total_flops() == 2 * 400 * 32 * 2000

    unread(step)


def test_a_step_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchtriage.core.record import operator_probe

    _, head, hidden, _ = layers()
    monkeypatch.setattr(operator_probe, "LONGEST_S", 0.0)
    monkeypatch.setattr(operator_probe, "LOOKS_AT_CLOCK", 1)
    assert not unread(lambda: [head(hidden)[:, -1].sum().item() for _ in range(3)])


def test_it_is_never_left_in_a_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks and functions of the script's run in it, and what fails there fails for the script."""
    import torch
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    from torchtriage.core.record import operator_probe

    monkeypatch.setattr(operator_probe, "LOOKS_AT_CLOCK", 1)
    table = torch.nn.Embedding(1000, 16, sparse=True)
    probe = operator_probe.OperatorProbe()
    inside: list[int] = []

    def hook(gradient: Any) -> None:
        probe.give_up()
        abs(1)  # an event in a frame that is not the loop's
        inside.append(len(_get_current_dispatch_mode_stack()))

    rows = table(torch.arange(32))
    rows.register_hook(hook)
    assert probe.start()
    rows.square().sum().backward()
    assert table.weight.grad is not None
    assert table.weight.grad.is_sparse
    abs(1)
    assert inside == [1]
    assert not _get_current_dispatch_mode_stack()
    assert sys.getprofile() is None


def test_it_is_left_under_the_guard_that_it_was_entered_in() -> None:
    import torch
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    from torchtriage.core.record.operator_probe import OperatorProbe

    _, head, hidden, _ = layers()
    probe = OperatorProbe()
    assert probe.start()
    with torch.inference_mode():
        head(hidden)
        probe.stop()
        head(hidden)
    head(hidden).sum().backward()
    assert not _get_current_dispatch_mode_stack()


def test_an_exception_of_the_script_is_its_own() -> None:
    import torch

    _, head, _, _ = layers()

    def step() -> None:
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            head(torch.rand(3, 3))

    assert not unread(step)


def test_tensors_without_a_storage_are_left_out() -> None:
    import torch

    def step() -> None:
        sparse = torch.eye(100).to_sparse()
        (sparse @ torch.rand(100, 200))[:5].sum().item()

    assert not unread(step)

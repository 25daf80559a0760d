"""Gradients that are made for a step of another model and thrown away, as the script's process sees them."""

from __future__ import annotations

import copy
import gc
import linecache
import pickle
import threading
import weakref
from typing import Any

import pytest

from torchtriage.core.record import thrown_gradients
from torchtriage.core.record.thrown_gradients import ThrownGradients

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process may have compiled something: then nothing is watched."""
    monkeypatch.setattr(thrown_gradients, "may_compile", lambda: False)


def model(n_in: int, n_out: int) -> Any:
    return torch.nn.Sequential(torch.nn.Linear(n_in, 8), torch.nn.ReLU(), torch.nn.Linear(8, n_out))


def noted(
    *, detached: bool = False, real_first: bool = True, alike: bool = False, frozen: bool = False
) -> list[dict[str, Any]]:
    """Return what three rounds of a generator and a discriminator show.

    ``alike`` : both are trained by one loss. ``frozen`` : the discriminator is, while the generator is trained.
    """
    maker, judge = model(4, 6), model(6, 1)
    optimizers = [torch.optim.SGD(part.parameters(), 0.1) for part in (maker, judge)]
    names = {id(maker[0].weight): {"maker": maker}, id(judge[0].weight): {"judge": judge}}
    judge.requires_grad_(not frozen)
    hooks = dict(torch.nn.modules.module._global_forward_pre_hooks)
    watch = ThrownGradients(optimizers, lambda some: next(names[given] for given in some if given in names))
    for _ in range(3):
        judge.requires_grad_(True)
        fake = maker(torch.randn(3, 4))
        given = fake.detach() if detached else fake
        for optimizer in optimizers:
            optimizer.zero_grad()
        first, second = (torch.randn(3, 6), given) if real_first else (given, torch.randn(3, 6))
        (judge(first).sum() + judge(second).square().sum()).backward()
        if alike:
            optimizers[0].step()
        optimizers[1].step()
        if not alike:
            judge.requires_grad_(not frozen)
            optimizers[0].zero_grad()
            judge(maker(torch.randn(3, 4))).sum().backward()
            optimizers[0].step()
    facts = watch.facts()
    assert torch.nn.modules.module._global_forward_pre_hooks == hooks
    assert not judge[0].weight._post_accumulate_grad_hooks
    return facts


@pytest.mark.parametrize("real_first", [True, False])
def test_a_loss_that_goes_back_through_what_made_its_input(real_first: bool) -> None:
    facts, through = sorted(noted(real_first=real_first), key=lambda one: not one["needless"])
    assert (facts["of"], facts["by"], facts["needless"]) == (["maker"], ["judge"], True)
    assert (through["of"], through["by"], through["needless"]) == (["judge"], ["maker"], False)
    assert 0 < facts["share"] < 1
    for file, line, function in facts["lines"]:
        assert file == __file__
        assert function == "noted"
        assert "square().sum()).backward()" in linecache.getline(file, line)
    assert [linecache.getline(file, line).strip() for file, line, _ in through["lines"]] == [
        "judge(maker(torch.randn(3, 4))).sum().backward()"
    ] * 2


def test_a_generator_needs_its_way_through_the_discriminator_but_no_gradients_of_its_weights() -> None:
    (facts,) = noted(detached=True)
    assert (facts["of"], facts["by"], facts["needless"]) == (["judge"], ["maker"], False)


def test_a_discriminator_that_is_frozen_for_the_generators_step() -> None:
    assert noted(detached=True, frozen=True) == []
    (facts,) = noted(frozen=True)
    assert (facts["of"], facts["by"], facts["needless"]) == (["maker"], ["judge"], True)


def test_one_loss_for_both() -> None:
    assert noted(alike=True) == []


def test_what_is_saved_or_copied_while_it_is_watched_is_as_it_was() -> None:
    parts = model(4, 6), model(6, 1)
    optimizers = [torch.optim.SGD(part.parameters(), 0.1) for part in parts]
    watch = ThrownGradients(optimizers, lambda some: {})
    try:
        assert b"torchtriage" not in pickle.dumps(parts)
        assert not copy.deepcopy(parts[1])[0].weight._post_accumulate_grad_hooks
    finally:
        watch.stop()


def test_a_backward_pass_in_a_thread_of_autograds_and_an_input_that_refuses_to_be_read() -> None:
    class Batch:
        def __getattr__(self, name: str) -> Any:
            raise KeyError(name)

    class Judge(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, batch: Any) -> Any:
            return self.weight.sum()

    judge, other = Judge(), model(4, 1)
    optimizers = [torch.optim.SGD(part.parameters(), 0.1) for part in (judge, other)]
    watch = ThrownGradients(optimizers, lambda some: {"judge": judge} if id(judge.weight) in some else {})
    loss = judge(Batch())
    thread = threading.Thread(target=watch._accumulated, args=(0, judge.weight))
    thread.start()
    thread.join()
    loss.backward()
    optimizers[0].step()
    assert not watch._over
    assert watch.facts() == []


def test_gradients_that_are_replaced_before_both_take_them() -> None:
    maker, judge = model(4, 6), model(6, 1)
    optimizers = [torch.optim.SGD(part.parameters(), 0.1) for part in (maker, judge)]
    names = {id(maker[0].weight): {"maker": maker}, id(judge[0].weight): {"judge": judge}}
    watch = ThrownGradients(optimizers, lambda some: next(names[given] for given in some if given in names))
    for _ in range(3):
        judge(maker(torch.randn(3, 4))).sum().backward()
        for given in (*maker.parameters(), *judge.parameters()):
            given.grad = given.grad.clamp(-1, 1)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert watch.facts() == []


def test_a_model_that_takes_its_gradients_now_and_then_is_none() -> None:
    maker, judge = model(4, 6), model(6, 1)
    optimizers = [torch.optim.SGD(part.parameters(), 0.1) for part in (maker, judge)]
    names = {id(maker[0].weight): {"maker": maker}, id(judge[0].weight): {"judge": judge}}
    watch = ThrownGradients(optimizers, lambda some: next(names[given] for given in some if given in names))
    for number in range(6):
        for optimizer in optimizers:
            optimizer.zero_grad()
        judge(maker(torch.randn(3, 4))).sum().backward()
        optimizers[0].step()
        if number % 3 == 2:
            optimizers[1].step()
    assert watch.facts() == []


def test_models_that_are_gone_are_not_held() -> None:
    parts = [model(4, 6), model(6, 1)]
    optimizers = [torch.optim.SGD(part.parameters(), 0.1) for part in parts]
    watch = ThrownGradients(optimizers, lambda some: {})
    parts[1](parts[0](torch.randn(3, 4))).sum().backward()
    gone = weakref.ref(parts[0][0].weight)
    del parts[:], optimizers[:]
    gc.collect()
    assert gone() is None
    watch.stop()

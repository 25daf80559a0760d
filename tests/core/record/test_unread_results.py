"""What nobody reads: steps in which it is known, and that nothing else changes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def time_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an operator take a nanosecond for each element that it makes, so that no share is luck."""
    torch = pytest.importorskip("torch")
    from torchtriage.core.record.unread_results import OperatorProbe

    note = OperatorProbe.note

    def sized(probe: Any, func: Any, args: Any, kwargs: Any, result: Any, _: int) -> None:
        made = result if isinstance(result, (list, tuple)) else [result]
        note(probe, func, args, kwargs, result, sum(item.numel() for item in made if isinstance(item, torch.Tensor)))

    monkeypatch.setattr(OperatorProbe, "note", sized)


@pytest.fixture(name="net")
def a_small_model() -> Any:
    """Return a layer, a wide one behind it, inputs of 8 x 50 positions, and labels for the last ten alone."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    labels = torch.randint(0, 2000, (8, 50))
    labels[:, :40] = -100
    return nn.Linear(32, 32), nn.Linear(32, 2000), torch.randn(8, 50, 32), labels


def unread(step: Callable[[], object]) -> list[dict[str, Any]]:
    """Return what one step computes for nothing."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    from torchtriage.core.record.unread_results import OperatorProbe

    probe = OperatorProbe()
    assert probe.start()
    probe.step()
    step()
    found, _ = probe.stop()
    assert sys.getprofile() is None
    assert not _get_current_dispatch_mode_stack()
    return found


def here(step: Callable[[], object], *offsets: int) -> list[int]:
    """Return lines of a step, counted from its first."""
    return [step.__code__.co_firstlineno + offset for offset in offsets]


def test_one_position_of_all_logits(net: Any) -> None:
    import torch

    body, head, hidden, _ = net

    def step() -> Any:
        first = body(hidden)
        logits = head(first)
        return logits[:, -1].argmax(-1)

    with torch.no_grad():
        (found,) = unread(step)
    assert (found["file"], [found["line"]]) == (__file__, here(step, 3))
    assert {row["line"] for row in found["lines"]} == {*here(step, 1, 2)}
    assert all(row["unread_ns"] == pytest.approx(0.98 * row["ns"], rel=0.2) for row in found["lines"])
    assert (found["operator"], found["needs_grad"]) == ("addmm", False)


def test_labels_that_are_ignored_and_inference_mode(net: Any) -> None:
    import torch
    from torch.nn import functional

    body, head, hidden, labels = net

    def step() -> None:
        logits = head(body(hidden).relu())
        functional.cross_entropy(logits.view(-1, 2000), labels.view(-1)).backward()

    (found,) = unread(step)
    assert [found["line"]] == here(step, 2)
    assert {row["line"] for row in found["lines"]} == {*here(step, 1, 2)}
    assert found["needs_grad"]
    assert found["lines"][0]["unread_ns"] == pytest.approx(0.8 * found["lines"][0]["ns"], rel=0.02)

    def infer() -> None:
        with torch.inference_mode():
            head(hidden)[:, -1].sum().item()

    assert [found["operator"] for found in unread(infer)] == ["addmm"]


def test_a_loss_times_a_mask(net: Any) -> None:
    from torch.nn import functional

    body, head, hidden, labels = net
    mask = (labels != -100).float().view(-1)

    def step() -> None:
        logits = head(body(hidden)).view(-1, 2000)
        losses = functional.cross_entropy(logits, labels.clamp(min=0).view(-1), reduction="none")
        ((losses * mask).sum() / mask.sum()).backward()

    (found,) = unread(step)
    assert [found["line"]] == here(step, 3)


def test_a_crop_after_other_transforms() -> None:
    import torch

    image = torch.rand(3, 256, 256)

    def step() -> Any:
        bright = image.pow(0.9)
        normal = (bright - 0.4) / 0.2
        return normal[:, 40:72, 40:72].contiguous()

    (found,) = unread(step)
    assert {row["line"] for row in found["lines"]} == {*here(step, 1, 2)}
    assert found["lines"][0]["unread_ns"] > 0.9 * found["lines"][0]["ns"]


def test_layers_of_a_model_that_reads_its_last_position() -> None:
    """The layer behind the choice is no fault; nor is the last block, which is like those before it."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    blocks = nn.ModuleList(nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True) for _ in range(2))
    inner, head, hidden = nn.Linear(32, 32), nn.Linear(32, 500), torch.randn(8, 50, 32)

    def step() -> None:
        inputs = hidden * 2
        mixed = blocks[0](inputs)
        for block in (inner, inner):
            mixed = mixed + block(mixed).softmax(1)
        head(mixed[:, -1]).sum().backward()

    def of_one() -> None:
        inputs = hidden * 2
        mixed = blocks[1](inputs)
        head(mixed[:, -1]).sum().backward()

    assert not unread(step)
    assert not unread(of_one)


KEPT: list[Any] = []
READS: dict[str, Callable[[torch.Tensor], object]] = {
    "kept": lambda wide: KEPT.append(wide),
    "a view is kept": lambda wide: KEPT.append(wide.flatten()),
    "numpy": lambda wide: np.asarray(wide).sum(),
    "tolist": lambda wide: wide.tolist(),
    "a norm": lambda wide: float(wide.norm()),
    "the other part": lambda wide: wide[:, :49].amax(),
    "as another type": lambda wide: wide.view(wide.new_empty(0).int().dtype).sum(),
    "in place": lambda wide: wide.mul_(2).sum(),
    "as another class": lambda wide: wide.as_subclass(type("Named", (type(wide),), {})).sum(),
    "DLPack": lambda wide: np.from_dlpack(wide).sum(),
    "another thread": lambda wide: _in_a_thread(wide.sum),
    "windows that overlap": lambda wide: wide.unfold(1, 3, 1).exp(),
    "sorted": lambda wide: wide.sort()[0],
    "a large mask": lambda wide: wide[0, 0].masked_select(wide > 0).sum(),
}


def _in_a_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


@pytest.mark.parametrize("name", READS)
def test_what_is_read_in_another_way_is_read(name: str, net: Any) -> None:
    import torch

    _, head, hidden, _ = net

    def step() -> None:
        wide = head(hidden)
        wide[:, -1].sum().item()
        READS[name](wide)

    with torch.no_grad():
        assert not unread(step)
    KEPT.clear()


def test_memory_that_others_see(net: Any) -> None:
    """What was there before the step, of which a part is kept; and what NumPy was given before it was written."""
    import torch

    _, head, hidden, _ = net
    before = torch.zeros(4, 8, 50, 2000)

    def step() -> None:
        before[1] = head(hidden)
        KEPT.append(before[1][:, -1])

    def shared() -> None:
        table = torch.empty(400, 2000)
        seen = table.numpy()
        table.copy_(head(hidden).view(400, 2000))
        KEPT.append(float(seen.sum()))
        table[:10].sum().item()

    with torch.no_grad():
        assert not unread(step)
        assert not unread(shared)
    KEPT.clear()


def test_results_of_the_whole_batch_and_what_nobody_reads_at_all(net: Any) -> None:
    from torch.nn import functional

    body, head, hidden, labels = net

    def step() -> None:
        logits = head(body(hidden)).view(-1, 2000)
        logits.softmax(-1)
        functional.cross_entropy(logits, labels.clamp(min=0).view(-1)).backward()

    assert not unread(step)


def test_a_graph_that_goes_on_behind_reads(net: Any) -> None:
    """A result of a custom function is read in the backward pass alone."""
    import torch

    class Scaled(torch.autograd.Function):  # type: ignore[misc,unused-ignore]
        @staticmethod
        def forward(ctx: Any, given: Any) -> Any:
            factor = given.exp() + 1
            ctx.save_for_backward(factor)
            return given + factor[:, :1]

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient * ctx.saved_tensors[0]

    body, _, hidden, _ = net
    assert not unread(lambda: Scaled.apply(body(hidden)).sum().backward())


def test_results_and_random_numbers_are_as_without(net: Any) -> None:
    import torch
    from torch.nn import functional

    body, head, hidden, labels = net

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


def test_whoever_looks_already_is_left_alone(net: Any) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    from torchtriage.core.record.unread_results import OperatorProbe

    with FlopCounterMode(display=False):
        assert not OperatorProbe().start()
    sys.setprofile(lambda *_: None)
    try:
        assert not OperatorProbe().start()
    finally:
        sys.setprofile(None)


def test_modes_of_the_script_inside_a_step(net: Any) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    _, head, hidden, _ = net

    def step() -> None:
        with FlopCounterMode(display=False) as flops:
            head(hidden)[:, -1].sum().item()
        assert flops.get_total_flops() == 2 * 400 * 32 * 2000

    unread(step)


def test_a_step_that_takes_too_long_is_given_up(net: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchtriage.core.record import unread_results

    _, head, hidden, _ = net
    monkeypatch.setattr(unread_results, "LONGEST_S", 0.0)
    monkeypatch.setattr(unread_results, "LOOKS_AT_CLOCK", 1)
    assert not unread(lambda: [head(hidden)[:, -1].sum().item() for _ in range(3)])


@pytest.mark.parametrize("limit", ["MOST_TOLD_APART", "LONGEST_JUDGED_S"])
def test_what_would_take_too_much_is_not_judged(limit: str, net: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from torchtriage.core.record import unread_results

    _, head, hidden, _ = net
    monkeypatch.setattr(unread_results, limit, 0)
    with torch.no_grad():
        assert not unread(lambda: head(hidden)[:, -1].sum().item())


def test_it_is_never_left_in_a_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks and functions of the script's run in it, and what fails there fails for the script."""
    import torch
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    from torchtriage.core.record import unread_results

    monkeypatch.setattr(unread_results, "LOOKS_AT_CLOCK", 1)
    table = torch.nn.Embedding(1000, 16, sparse=True)
    probe = unread_results.OperatorProbe()
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


def test_it_is_left_under_the_guard_that_it_was_entered_in(net: Any) -> None:
    import torch
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    from torchtriage.core.record.unread_results import OperatorProbe

    _, head, hidden, _ = net
    probe = OperatorProbe()
    assert probe.start()
    with torch.inference_mode():
        head(hidden)
        probe.stop()
        head(hidden)
    head(hidden).sum().backward()
    assert not _get_current_dispatch_mode_stack()


def test_an_exception_of_the_script_is_its_own(net: Any) -> None:
    import torch

    _, head, _, _ = net

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

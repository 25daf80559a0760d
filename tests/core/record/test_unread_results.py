"""What nobody reads: steps in which it is known, and that nothing else changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.core.record.noted_step import layers, unread

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def time_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an operator take a nanosecond for each element that it makes, so that no share is luck."""
    pytest.importorskip("torch")
    from torchtriage.core.record.operator_notes import OperatorNotes

    add = OperatorNotes.add

    def sized(notes: Any, func: Any, args: Any, read: Any, made: Any, line: Any, _: int, **more: Any) -> None:
        add(notes, func, args, read, made, line, sum(tensor.numel() for tensor in made), **more)

    monkeypatch.setattr(OperatorNotes, "add", sized)


def here(step: Callable[[], object], *offsets: int) -> list[int]:
    """Return lines of a step, counted from its first."""
    return [step.__code__.co_firstlineno + offset for offset in offsets]


def test_one_position_of_all_logits() -> None:
    import torch

    body, head, hidden, _ = layers()

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


def test_stages_behind_the_last_that_is_read() -> None:
    import torch

    stages, x = [torch.nn.Linear(256, 256) for _ in range(5)], torch.randn(64, 256)

    def towers(x: torch.Tensor) -> list[torch.Tensor]:
        kept = []
        for stage in stages:
            x = stage(x).relu_()
            kept.append(x)
        return kept

    def step() -> None:
        kept = towers(x)
        (kept[0].mean() + kept[1].mean()).backward()

    def all_read() -> None:
        kept = towers(x)
        sum(item.mean() for item in kept).backward()

    def none_read() -> None:
        towers(x)

    def read_by_numpy() -> None:
        kept = towers(x)
        with torch.no_grad():
            seen = towers(x)[-1].numpy().sum()
        (kept[-1].mean() * float(seen)).backward()

    (found,) = unread(step)
    assert [found["line"]] == here(step, 2)
    (row,) = found["lines"]
    assert [row["line"]] == here(towers, 3)
    assert row["unread_ns"] == pytest.approx(0.6 * row["ns"])
    assert not found["needs_grad"]
    assert not unread(all_read)
    assert not unread(none_read)
    assert not unread(read_by_numpy)


def test_what_is_run_for_its_statistics_or_its_gradients_is_read() -> None:
    import torch

    norms = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.BatchNorm1d(256)) for _ in range(4)]
    layers, x, gradient = [torch.nn.Linear(256, 256) for _ in range(4)], torch.randn(64, 256), torch.randn(64, 256)

    def through(modules: Any, x: torch.Tensor) -> torch.Tensor:
        for module in modules:
            x = x + module(x)
        return x

    def statistics() -> None:
        through(norms, x).mean().backward()
        with torch.no_grad():
            through(norms, 2 * x)

    def cached() -> None:
        through(layers, x).backward(gradient)

    assert sum(found["share"] for found in unread(statistics)) < 0.05
    assert not unread(cached)


def test_stages_of_several_lines_are_read_where_their_features_are() -> None:
    import torch

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(256, 256)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.linear(x)
            return torch.nn.functional.gelu(x)

    blocks, x = [Block() for _ in range(6)], torch.randn(64, 256)

    def towers(x: torch.Tensor) -> list[torch.Tensor]:
        kept = []
        for block in blocks:
            x = block(x)
            kept.append(x)
        return kept

    def step() -> None:
        kept = towers(x)
        (kept[0].mean() + kept[1].mean()).backward()

    (found,) = unread(step)
    assert [found["line"]] == here(step, 2)
    assert {row["line"] for row in found["lines"]} == set(here(Block.forward, 1, 2))


def test_labels_that_are_ignored_and_inference_mode() -> None:
    import torch
    from torch.nn import functional

    body, head, hidden, labels = layers()

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


def test_a_loss_times_a_mask() -> None:
    from torch.nn import functional

    body, head, hidden, labels = layers()
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
def test_what_is_read_in_another_way_is_read(name: str) -> None:
    import torch

    _, head, hidden, _ = layers()

    def step() -> None:
        wide = head(hidden)
        wide[:, -1].sum().item()
        READS[name](wide)

    with torch.no_grad():
        assert not unread(step)
    KEPT.clear()


def test_memory_that_others_see() -> None:
    """What was there before the step, of which a part is kept; and what NumPy was given before it was written."""
    import torch

    _, head, hidden, _ = layers()
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


def test_results_of_the_whole_batch_and_what_nobody_reads_at_all() -> None:
    from torch.nn import functional

    body, head, hidden, labels = layers()

    def step() -> None:
        logits = head(body(hidden)).view(-1, 2000)
        logits.softmax(-1)
        functional.cross_entropy(logits, labels.clamp(min=0).view(-1)).backward()

    assert not unread(step)


def test_a_graph_that_goes_on_behind_reads() -> None:
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

    body, _, hidden, _ = layers()
    assert not unread(lambda: Scaled.apply(body(hidden)).sum().backward())


@pytest.mark.parametrize("limit", ["MOST_DISTINGUISHED", "LONGEST_S"])
def test_what_would_take_too_much_is_not_judged(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from torchtriage.core.record import unread_results

    _, head, hidden, _ = layers()
    monkeypatch.setattr(unread_results, limit, 0)
    with torch.no_grad():
        assert not unread(lambda: head(hidden)[:, -1].sum().item())

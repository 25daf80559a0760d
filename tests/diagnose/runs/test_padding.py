"""Texts that are longer than the longest of their batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.runs.samples_builder import SamplesBuilder

from torchtriage.core.finding import Finding
from torchtriage.diagnose.runs.padding import padding
from torchtriage.diagnose.runs.run_folder import Recording

SOURCE = """\
for ids, labels in loader:
    loss = model(ids, labels)
    loss.backward()
    optimizer.step()
"""
FORWARD = ("torch/nn/modules/module.py:Module._call_impl",)
BACKWARD = ("torch/_tensor.py:Tensor.backward", "torch/autograd/graph.py:_engine_run_backward")
OPTIMIZER = ("torch/optim/adam.py:Adam.step",)


def found(folder: Path, *seen: dict[str, Any], on_device: bool = False) -> list[Finding]:
    """Return what is said of steps of which the forward pass takes 30 % and the backward pass 50 %."""
    built = SamplesBuilder(folder, SOURCE)
    for _ in range(40):
        built.look("loss = model", below=FORWARD, ms=6)
        built.look("loss.backward()", below=BACKWARD, ms=10)
        built.look("optimizer.step()", below=OPTIMIZER, ms=4)
        built.step()
    loop = built.loop(boundary="optimizer.step()", operators=1.0)
    assert loop is not None
    text = {"file": "train.py", "line": 2, "function": "<module>", "module": "Classifier", "n_calls": 2}
    text["trains"] = True
    return padding(
        Recording({}, {"padded": [text | item for item in seen]}, None, None), loop, 20.0, on_device=on_device
    )


def test_half_of_the_padded_share_is_sure_and_its_square_possible(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, {"n_positions": 256, "n_padding": 128})
    assert finding.place.frame is not None
    assert finding.cost is not None
    assert (finding.code, finding.place.frame.line) == ("DAT102", 2)
    assert "128 positions, of which the longest in a batch needs 64 (50 % are padding)" in finding.message
    assert (finding.cost.share_low, finding.cost.share_high) == pytest.approx((0.075, 0.6), abs=0.02)


def test_without_gradients_the_backward_pass_is_of_something_else(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, {"n_positions": 256, "n_padding": 128, "trains": False})
    assert finding.cost is not None
    assert "backward" not in finding.message
    assert (finding.cost.share_low, finding.cost.share_high) == pytest.approx((0.075, 0.225), abs=0.02)


def test_the_call_that_takes_most_is_named(tmp_path: Path) -> None:
    inner = {"line": 4, "module": "Embedding", "n_positions": 256, "n_padding": 128}
    (finding,) = found(tmp_path, inner, {"n_positions": 256, "n_padding": 100})
    assert "Classifier()" in finding.message


def test_nothing_is_sure_on_a_device(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, {"n_positions": 256, "n_padding": 128}, on_device=True)
    assert finding.cost is not None
    assert finding.cost.low_ms == 0


@pytest.mark.parametrize("seen", [[], [{"n_positions": 256, "n_padding": 12}]])
def test_without_padding_there_is_nothing(tmp_path: Path, seen: list[dict[str, Any]]) -> None:
    assert not found(tmp_path, *seen)

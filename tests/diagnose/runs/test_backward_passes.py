"""Backward passes for gradients that nobody takes, or through activations that are computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.runs.samples_builder import SamplesBuilder

from torchtriage.core.finding import Finding
from torchtriage.diagnose.runs.backward_passes import backward_passes
from torchtriage.diagnose.runs.run_folder import Recording

SOURCE = """\
arguments = Arguments(
    lr=1e-3,
    gradient_checkpointing=True,
)
for batch in loader:
    loss = model(batch)
    loss.backward()
    optimizer.step()
"""
OP = ("torch/nn/modules/module.py:Module._call_impl",)
BACKWARD = ("torch/_tensor.py:Tensor.backward", "torch/autograd/graph.py:_engine_run_backward")
AGAIN = (*BACKWARD, "torch/utils/checkpoint.py:_checkpoint_without_reentrant_generator.<locals>.recompute_fn")
UNUSED = {"unused": 900, "taken": 100, "parameters": 4, "modules": ["encoder"]}


def found(
    folder: Path,
    unused: dict[str, Any] | None = None,
    *,
    again: bool = False,
    torch: dict[str, Any] | None = None,
    thrown: dict[str, Any] | None = None,
) -> dict[str, Finding]:
    """Return what is found in steps that are half forward and half backward, by code."""
    built = SamplesBuilder(folder, SOURCE)
    for _ in range(20):
        built.look("loss = model", below=OP, ms=10)
        built.look("loss.backward()", below=BACKWARD, ms=6)
        built.look("loss.backward()", below=AGAIN if again else BACKWARD, ms=4)
        built.step()
    built.resident(100)
    samples, loop = built.samples(), built.loop(boundary="optimizer.step()", operators=1.0)
    samples.torch.update(torch or {})
    assert loop is not None
    measured = {
        "unused_gradients": unused,
        "thrown_gradients": [
            {**thrown, "lines": [(str(folder / "train.py"), line, "f") for line in thrown.get("lines", (7, 6))]}
        ]
        if thrown
        else [],
    }
    recording = Recording({}, measured, None, None)
    return {finding.code: finding for finding in backward_passes(recording, samples, loop, built.view, 20.0)}


def test_gradients_that_nobody_takes_cost_a_part_of_the_backward_pass(tmp_path: Path) -> None:
    finding = found(tmp_path, UNUSED)["OPT101"]
    assert finding.place.frame is not None
    assert finding.cost is not None
    assert finding.place.frame.line == 7
    assert "encoder" in finding.message
    assert (finding.cost.share_low, finding.cost.share_high) == (
        pytest.approx(0.12, abs=0.02),
        pytest.approx(0.55, abs=0.02),
    )


def test_gradients_that_are_thrown_away_cost_the_way_to_them(tmp_path: Path) -> None:
    given = {"of": ["maker"], "by": ["judge"], "needless": True, "share": 0.1}
    finding = found(tmp_path, thrown=given)["OPT103"]
    assert finding.place.frame is not None
    assert finding.cost is not None
    assert (finding.place.frame.line, finding.place.frame.lines) == (7, (6, 7))
    assert finding.message.startswith("the loss of judge goes back through maker")
    assert (finding.cost.share_low, finding.cost.share_high) == (0.08, 0.2)
    assert "detach" in finding.fix.code
    assert not found(tmp_path, thrown=given | {"share": 0.001})
    weights = found(tmp_path, thrown=given | {"needless": False})["OPT103"]
    assert weights.cost is not None
    assert (weights.cost.share_low, weights.cost.share_high) == (0.02, 0.07)
    assert "requires_grad_(False)" in weights.fix.code


def test_with_a_device_nothing_is_promised_and_there_may_be_no_line(tmp_path: Path) -> None:
    given = {"of": ["maker"], "by": ["judge"], "needless": True, "share": 0.1, "lines": ()}
    finding = found(tmp_path, thrown=given, torch={"device": True})["OPT103"]
    assert finding.place.frame is None
    assert finding.cost is not None
    assert (finding.cost.share_low, finding.cost.share_high) == (0.0, 0.2)


def test_without_such_gradients_or_backward_passes_there_is_nothing(tmp_path: Path) -> None:
    assert found(tmp_path) == {}


@pytest.mark.parametrize(
    ("torch", "reported"),
    [
        ({"memory": 1 << 30}, True),
        ({"memory": 150 << 20}, False),
        ({"memory": 1 << 30, "device": True}, False),
        ({}, False),
    ],
)
def test_activations_are_computed_again_for_nothing_where_memory_is_free(
    torch: dict[str, Any], reported: bool, tmp_path: Path
) -> None:
    findings = found(tmp_path, again=True, torch=torch)
    assert set(findings) == ({"MEM122"} if reported else set())
    if reported:
        frame, cost = findings["MEM122"].place.frame, findings["MEM122"].cost
        assert frame is not None
        assert cost is not None
        assert (frame.line, cost.share_low) == (3, pytest.approx(0.12, abs=0.02))

"""Lines that compute the same values again, out of numbered values and looks at the stack; a step takes 10 ms."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnose.runs.samples_builder import SamplesBuilder

from torchtriage.core.finding import Finding
from torchtriage.diagnose.runs.repeated_values import repeated_values

SOURCE = """\
for batch in loader:
    degrees = adjacency.sum(1)
    normal = degrees * adjacency
    loss = model(normal @ batch)
    loss.backward()
    optimizer.step()
"""
OPERATOR = ("torch/_tensor.py:Tensor.wrapped",)


def found(folder: Path, *, again: int = 100, within: int = 0, needs_grad: bool = False) -> list[Finding]:
    """A fifth of a step is in the first two lines, most of it in the second."""
    built = SamplesBuilder(folder, SOURCE)
    for _ in range(60):
        built.look("degrees = ", below=OPERATOR, ms=0.5)
        built.look("normal = ", below=OPERATOR, ms=1.5)
        built.look("loss = ", below=("torch/nn/modules/module.py:Module._call_impl",), ms=5)
        built.look("loss.backward", below=("torch/autograd/__init__.py:backward",), ms=3)
        built.step()
    built.samples()
    loop = built.loop(boundary="optimizer.step()", operators=1.0)
    assert loop is not None
    path = str(folder / "train.py")
    row = {"file": path, "function": "<module>", "ns": 100, "again_ns": again, "within_ns": within}
    noted = [{**row, "line": line, "needs_grad": needs_grad} for line in (2, 3)]
    return list(repeated_values(noted, [str(folder)], loop, 10.0))


def test_lines_of_a_function_are_one_finding(tmp_path: Path) -> None:
    (finding,) = found(tmp_path)
    frame, cost = finding.place.frame, finding.cost
    assert frame is not None
    assert cost is not None
    assert (finding.code, frame.line, frame.lines) == ("LCH105", 3, (3, 2))
    assert cost.naive_ms == pytest.approx(2.0, rel=0.02)
    assert 0.7 * cost.naive_ms < cost.low_ms < 0.9 * cost.naive_ms
    assert finding.message == (
        "all of the operators' work at train.py:2, 3 has results that the step before had computed already, and takes"
        " 2.00 ms of 10.0 ms per step (20 %)"
    )


def test_the_same_step_and_its_gradients(tmp_path: Path) -> None:
    (finding,), (with_grad,) = found(tmp_path, again=0, within=60), found(tmp_path, again=0, within=60, needs_grad=True)
    assert "60 % of the operators' work" in finding.message
    assert "the same step had computed already" in finding.message
    assert finding.cost is not None
    assert with_grad.cost is not None
    assert with_grad.cost.high_ms > finding.cost.high_ms + 0.5


def test_little(tmp_path: Path) -> None:
    assert not found(tmp_path, again=10)

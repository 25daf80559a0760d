"""What nobody reads, out of noted operators and looks at the stack; a step takes 10 ms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.runs.samples_builder import SamplesBuilder

from torchtriage.core.finding import Finding
from torchtriage.diagnose.runs.unread_results import unread_results

SOURCE = """\
for batch in loader:
    hidden = body(batch)
    logits = head(hidden)
    scores = logits.softmax(-1)
    last = scores[:, -1]
    loss.backward()
    optimizer.step()
"""
LINEAR = ("torch/nn/modules/module.py:Module._call_impl", "torch/nn/modules/linear.py:Linear.forward")
ENGINE = ("torch/_tensor.py:Tensor.backward", "torch/autograd/__init__.py:backward")


def found(folder: Path, *, needs_grad: bool = False, unread: float = 0.9, file: str = "train.py") -> list[Finding]:
    """Half of a step is in ``head``, 5 % in the softmax behind it; of both, ``unread`` is for nothing."""
    built = SamplesBuilder(folder, SOURCE)
    for _ in range(60):
        built.look("hidden = ", below=LINEAR, ms=1)
        built.look("logits = ", below=LINEAR, ms=5)
        built.look("scores = ", ms=0.5)
        built.look("loss.backward", below=ENGINE, ms=3.5)
        built.step()
    built.samples()
    loop = built.loop(boundary="optimizer.step()", operators=1.0)
    assert loop is not None
    path = str(folder / file)
    lines = [{"file": path, "line": line, "function": "f", "ns": 100, "unread_ns": unread * 100} for line in (4, 3)]
    noted: dict[str, Any] = {"file": path, "line": 5, "function": "f", "lines": lines, "needs_grad": needs_grad}
    noted |= {"operator": "addmm", "shape": [400, 5000]}
    return list(unread_results([noted], [str(folder)], loop, 10.0))


def test_the_share_of_the_lines_that_is_for_nothing(tmp_path: Path) -> None:
    (finding,) = found(tmp_path)
    frame, cost = finding.place.frame, finding.cost
    assert frame is not None
    assert cost is not None
    assert (frame.line, frame.lines) == (3, (3, 4))
    assert cost.naive_ms == pytest.approx(0.9 * 5.5, rel=0.02)
    assert 0.5 * cost.naive_ms < cost.low_ms < 0.65 * cost.naive_ms
    assert "90 % of the operators' work at train.py:3, 4 is never read" in finding.message
    assert finding.message.endswith("line 5 reads the rest")
    assert finding.evidence["read_at"] == "train.py:5"


def test_the_backward_pass_counts_at_the_high_end(tmp_path: Path) -> None:
    (without,), (with_grad,) = found(tmp_path), found(tmp_path, needs_grad=True)
    assert without.cost is not None
    assert with_grad.cost is not None
    assert with_grad.cost.high_ms > without.cost.high_ms + 1
    assert with_grad.cost.low_ms == without.cost.low_ms


@pytest.mark.parametrize("given", [{"unread": 0.01}, {"file": "another.py"}])
def test_little_and_lines_that_no_look_is_at(given: dict[str, Any], tmp_path: Path) -> None:
    assert not found(tmp_path, **given)

"""Logits of positions without a label; times in microseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builder import TraceBuilder
from tests.diagnose.runs.samples_builder import SamplesBuilder

from torchtriage.core.finding import Finding
from torchtriage.diagnose.runs.run_folder import Recording
from torchtriage.diagnose.runs.unlabelled import unlabelled_positions

SOURCE = """\
for batch in loader:
    logits = head(model(batch))
    loss = cross_entropy(logits, labels)
    loss.backward()
    optimizer.step()
"""
OP = ("torch/nn/modules/module.py:Module._call_impl",)


def found(
    folder: Path, *, share: float = 0.85, classes: int = 500, vendor: str = "cpu", width: int = 32
) -> list[Finding]:
    """Steps of 10 ms: a layer onto 500 classes, the loss, two products of the backward pass, and another layer."""
    trace = TraceBuilder(vendor=vendor)
    for step in range(4):
        at = 10_000 * step
        trace.step(step, at, 10_000)
        trace.op("aten::linear", at + 10, 1_000, dims=[[8, 64, 32], [500, 32], [500]])
        trace.op("aten::addmm", at + 20, 900, dims=[[500], [512, 32], [32, 500]])
        trace.op("aten::cross_entropy_loss", at + 1_100, 1_000, dims=[[512, 500], [512]])
        trace.op("aten::mm", at + 2_200, 1_000, dims=[[512, 500], [500, 32]])
        trace.op("aten::mm", at + 3_300, 1_000, dims=[[500, 512], [512, 32]])
        trace.op("aten::linear", at + 4_400, 2_000, dims=[[512, width], [width, width], []])
        if vendor != "cpu":
            trace.launch(at + 20, 5, at + 30, 100)
    built = SamplesBuilder(folder, SOURCE)
    for _ in range(20):
        built.look("loss = cross", below=OP, ms=10)
        built.step()
    built.samples()
    loop = built.loop(boundary="optimizer.step()", operators=1.0)
    assert loop is not None
    loss: dict[str, Any] = {"file": str(folder / "train.py"), "line": 3, "function": "f", "rows": 512}
    recording = Recording({}, {"unlabelled": [loss | {"share": share, "classes": classes}]}, None, None)
    return list(unlabelled_positions(recording, [trace.build()], loop, 10.0))


def test_what_has_as_many_rows_and_classes_is_for_nothing_where_there_is_no_label(tmp_path: Path) -> None:
    (finding,) = found(tmp_path)
    assert finding.place.frame is not None
    assert finding.place.frame.line == 3
    assert finding.cost is not None
    assert (finding.cost.share_low, finding.cost.share_high) == (pytest.approx(0.6 * 0.34), pytest.approx(0.34))


@pytest.mark.parametrize("given", [{"classes": 400}, {"vendor": "nvidia"}, {"share": 0.02}, {"width": 500}])
def test_other_shapes_a_device_and_little(given: dict[str, Any], tmp_path: Path) -> None:
    assert not found(tmp_path, **given)

"""The time of a backward pass, by the lines of the forward pass; times in microseconds."""

from __future__ import annotations

from pathlib import Path

import pytest
from builder import TraceBuilder

from torchtriage.core.source.locate import Locator
from torchtriage.diagnose.runs.backward_lines import backward_lines

SOURCE = """def hidden(x):
    return x.mm(W)


def output(x):
    x = x.mul(V)
    return x.mul(W)
"""


def recorded(vendor: str = "cpu") -> TraceBuilder:
    """Three steps: gradients of line 2 take 300 us, of lines 6 and 7 100 each, and those of weights 100."""
    builder = TraceBuilder(vendor=vendor)
    for step in range(3):
        at = 1_000 * step
        builder.step(step, at, 1_000)
        builder.frame("net.py(1): hidden", at + 10, 80)
        builder.frame("net.py(5): output", at + 110, 160)
        for call, (operator, start) in enumerate([("mm", 20), ("mul", 120), ("mul", 200)]):
            builder.frame(f"<built-in method {operator} of Tensor object at 0x1>", at + start, 60)
            builder.op(f"aten::{operator}", at + start + 10, 40, seq=4 * step + call)
        node = "autograd::engine::evaluate_function: "
        builder.op(f"{node}MulBackward0", at + 300, 100, seq=4 * step + 2, fwd=1)
        builder.op(f"{node}MulBackward0", at + 400, 100, seq=4 * step + 1, fwd=1)
        builder.op(f"{node}MmBackward0", at + 500, 300, seq=4 * step, fwd=1)
        builder.op(f"{node}MmBackward0", at + 550, 200, seq=4 * step, fwd=1)  # inside the one above
        builder.op(f"{node}torch::autograd::AccumulateGrad", at + 800, 100)
    return builder


def test_lines_get_the_time_of_their_gradients(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(SOURCE)
    lines = backward_lines(recorded().build(), Locator([tmp_path]), 0.5)
    assert sorted((line.file, line.line, line.function) for line in lines) == [
        ("net.py", 2, "hidden"),
        ("net.py", 6, "output"),
        ("net.py", 7, "output"),
    ]
    assert [line.share for line in lines] == pytest.approx([0.25, 1 / 12, 1 / 12], abs=1e-5)


def test_nothing_is_said_without_stacks(tmp_path: Path) -> None:
    bare = recorded()
    bare.events = [event for event in bare.events if event["cat"] != "python_function"]
    assert backward_lines(bare.build(), Locator([tmp_path]), 0.5) == ()


def test_nothing_is_said_of_work_for_a_device(tmp_path: Path) -> None:
    built = recorded("nvidia")
    built.launch(20, 5, 40, 500)
    assert backward_lines(built.build(), Locator([tmp_path]), 0.5) == ()

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
    return x.mul(V)
"""


def recorded(vendor: str = "cpu") -> TraceBuilder:
    """Three steps: gradients of line 2 take 300 us, of line 6 100, and those of inputs that are counted nowhere 100."""
    builder = TraceBuilder(vendor=vendor)
    for step in range(3):
        at = 1_000 * step
        builder.step(step, at, 1_000)
        for line, (function, operator, start) in enumerate([("hidden", "mm", 10), ("output", "mul", 110)]):
            number = 2 * step + line
            builder.frame(f"net.py({4 * line + 1}): {function}", at + start, 80)
            builder.frame(f"<built-in method {operator} of Tensor object at 0x1>", at + start + 10, 60)
            builder.op(f"aten::{operator}", at + start + 20, 40, seq=number)
        node = "autograd::engine::evaluate_function: "
        builder.op(f"{node}MulBackward0", at + 400, 100, seq=2 * step + 1, fwd=1)
        builder.op(f"{node}MmBackward0", at + 500, 300, seq=2 * step, fwd=1)
        builder.op(f"{node}MmBackward0", at + 550, 200, seq=2 * step, fwd=1)  # inside the one above
        builder.op(f"{node}torch::autograd::AccumulateGrad", at + 800, 100)
    return builder


def test_lines_get_the_time_of_their_gradients(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(SOURCE)
    lines = backward_lines(recorded().build(), Locator([tmp_path]), 0.5)
    assert [(line.file, line.line, line.function) for line in lines] == [
        ("net.py", 2, "hidden"),
        ("net.py", 6, "output"),
    ]
    assert [line.share for line in lines] == pytest.approx([0.3, 0.1])


def test_nothing_is_said_without_stacks(tmp_path: Path) -> None:
    bare = recorded()
    bare.events = [event for event in bare.events if event["cat"] != "python_function"]
    assert backward_lines(bare.build(), Locator([tmp_path]), 0.5) == ()


def test_nothing_is_said_of_work_for_a_device(tmp_path: Path) -> None:
    built = recorded("nvidia")
    built.launch(20, 5, 40, 500)
    assert backward_lines(built.build(), Locator([tmp_path]), 0.5) == ()

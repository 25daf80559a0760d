"""A log beside a trace: each break finds its seam, each recompilation its stall."""

from __future__ import annotations

import io
from pathlib import Path

import click.testing
import pytest
from builder import TraceBuilder
from compile.logs.log_builder import LogBuilder, break_text
from tests.report import forms

from torchtriage.cli.main import cli
from torchtriage.compile.logs.join import join
from torchtriage.compile.logs.judge import judge
from torchtriage.compile.logs.process_log import ProcessLog
from torchtriage.compile.logs.result import CompileResult
from torchtriage.compile.logs.structured_log import read_structured

GRAPH = "## Call CompiledFxGraph fabc ##"


def log() -> LogBuilder:
    """Return a function that breaks at line 7 and goes on as 1/0, and one compiled again."""
    found = LogBuilder().compiled("0/0", "step", 5)
    found.artifact("dynamo_graph_break_reason", break_text("Data-dependent branching", 7))
    found.compiled("1/0", "torch_dynamo_resume_in_step_at_7", 7)
    found.artifact("dynamo_graph_break_reason", break_text("Never again", 99, gb="gb0001"), "1/0")
    found.compiled("2/0", "other", 30)
    for number in (1, 2):
        reason = f"2/{number - 1}: tensor 'x' size mismatch at index 0. expected 4, actual {number}"
        found.again(f"2/{number}", "other", 30, reason)
    return found


def trace(vendor: str = "cuda", *, numbered: bool = True) -> TraceBuilder:
    """Return steps of 10 ms: a graph 0.1-0.5, the next 1.5-1.9, between them one eager op."""
    builder = TraceBuilder(vendor=vendor)
    for index in range(5):
        at = 10_000.0 * index
        builder.step(index, at, 10_000)
        first, second, third = (": 0/0", ": 1/0", f": 2/{index}") if numbered else ("", "", "")
        builder.op(f"Torch-Compiled Region{first}", at + 50, 2000)
        builder.annotation(GRAPH, at + 100, 400)
        builder.op("aten::item", at + 600, 100)
        builder.op(f"Torch-Compiled Region{second}", at + 1400, 600)
        builder.annotation(GRAPH, at + 1500, 400)
        if index in (1, 2):
            builder.op("dynamo", at + 3000, 2000)
        builder.op(f"Torch-Compiled Region{third}", at + 6000, 500)
        builder.annotation(GRAPH, at + 6100, 300)
        if vendor == "cuda":
            builder.launch(at + 150, 10, at + 200, 400, name="graph_kernel")
            builder.launch(at + 620, 10, at + 650, 50, name="between")
            builder.launch(at + 1550, 10, at + 1600, 400, name="graph_kernel")
            builder.launch(at + 6150, 10, at + 6200, 3000, name="graph_kernel")
    return builder


def judged() -> CompileResult:
    data = log().bytes()
    return judge([read_structured(ProcessLog("x.log"), io.BytesIO(data))])


def test_a_break_has_its_seam_on_the_device() -> None:
    result = join(judged(), trace().build(), "t.json")
    one = next(one for one in result.breaks if one.id == "GB0170")
    assert one.trace is not None
    assert one.trace.n_seams == 1
    assert one.trace.per == "per step"
    assert one.trace.of_ms == pytest.approx(10)
    # from the end of the first graph to the second function's start, without the operator
    assert one.trace.host_ms == pytest.approx(0.9 - 0.1)
    assert (one.trace.n_launches, one.trace.n_kernels) == (1, 1)
    assert one.trace.idle_ms is not None
    assert 0.5 < one.trace.idle_ms < 1
    assert result.breaks[0] is one


def test_where_graphs_cannot_be_seen_the_cost_is_a_bound() -> None:
    """A backend other than Inductor: its operators run in the region, without a call of a graph."""
    builder = TraceBuilder(vendor="cuda")
    for index in range(5):
        at = 10_000.0 * index
        builder.step(index, at, 10_000)
        builder.op("Torch-Compiled Region: 0/0", at + 50, 2000)
        builder.op("aten::sin", at + 100, 400)
        builder.launch(at + 150, 10, at + 200, 400, name="sin_kernel")
        builder.op("Torch-Compiled Region: 1/0", at + 1400, 600)
        builder.op("aten::cos", at + 1500, 400)
        builder.launch(at + 1550, 10, at + 1600, 400, name="cos_kernel")
    result = join(judged(), builder.build(), "t.json")
    one = next(one for one in result.breaks if one.id == "GB0170")
    assert one.trace is not None
    assert one.trace.at_most
    assert one.trace.host_ms == pytest.approx(1.35 - 0.4)  # from the region's begin
    assert (one.trace.n_launches, one.trace.n_kernels) == (None, None)
    shown = forms.terminal(result).plain
    assert "host at most 950 µs, device idle at most" in shown
    exact = join(judged(), trace().build(), "t.json")
    assert "at most" not in forms.terminal(exact).plain


def test_a_break_that_does_not_happen_there_has_none() -> None:
    result = join(judged(), trace().build(), "t.json")
    assert [one.trace is None for one in result.breaks] == [False, True]
    assert "breaks-not-in-trace" in {note.code for note in result.notes}


def test_recompilations_have_their_stall() -> None:
    result = join(judged(), trace("cpu").build(), "t.json")
    (one,) = result.recompiles
    assert one.trace is not None
    assert (one.trace.n_seams, one.trace.per) == (2, "in the window")
    assert one.trace.host_ms == pytest.approx(4)
    assert one.trace.idle_ms is None


def test_a_trace_without_numbers_says_so() -> None:
    result = join(judged(), trace(numbered=False).build(), "t.json")
    assert all(one.trace is None for one in result.breaks)
    assert result.notes[-1].code == "trace-without-ids"
    empty = join(judged(), TraceBuilder(vendor="cpu").op("aten::mm", 0, 5).build(), "t.json")
    assert empty.notes[-1].code == "trace-without-regions"


def test_pay_back_needs_a_trace_without_compile() -> None:
    compiled = trace().build()
    assert "as long as 250 steps of 10.0 ms" in join(judged(), compiled, "t.json").payback
    slow = TraceBuilder(vendor="cpu")
    for index in range(5):
        slow.step(index, 15_000.0 * index, 15_000).op("aten::mm", 15_000.0 * index + 5, 9000)
    result = join(judged(), compiled, "t.json", eager=slow.build())
    assert result.payback.startswith("after 500 steps: compiling took 2.50 s")
    result = join(judged(), slow.build(), "t.json", eager=compiled)
    assert result.payback.startswith("never: ")


def test_the_command_joins(tmp_path: Path) -> None:
    file = log().write(tmp_path / "x.log")
    (tmp_path / "t.json").write_bytes(trace().json())
    args = ["compile", str(file), "--trace", str(tmp_path / "t.json")]
    found = click.testing.CliRunner().invoke(cli, args)
    assert found.exit_code == 0
    assert "device idle" in found.output
    assert "pays back" in found.output
    found = click.testing.CliRunner().invoke(cli, ["compile", str(file), "--eager", "x.json"])
    assert found.exit_code == 2
    assert "--eager needs --trace" in found.output

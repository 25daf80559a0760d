"""What torch_xla writes is read as it is, and cut or broken as it comes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtriage.compile.xla.dumps import parse_amount, read_debug, read_metrics, read_module, read_saved

REPORT = """\
the program's own line
Metric: CompileTime
  TotalSamples: 3
  Accumulator: 29s996ms941.409us
  Percentiles: 1%=018ms636.571us; 50%=11s983ms003.171us; 95%=18s995ms301.667us;
  99%=18s995ms301.667us
Metric: InboundData
  TotalSamples: 36
  Accumulator: 468.00MB
Counter: aten::nonzero
  Value: 33
Counter: MarkStep
  Value: 2
"""

DEBUG = """\
Compilation Analysis: ================
Compilation Analysis: Compilation Cause
Compilation Analysis:   `torch_xla.sync()` in parallel loader at step end
Compilation Analysis: Graph Info:
Compilation Analysis:   Graph Name: mine
Compilation Analysis:   Graph Hash: c74c3b91
Compilation Analysis:   Number of Graph Inputs: 35
Compilation Analysis:   Number of Graph Outputs: 107
Compilation Analysis: Python Frame Triggered Execution:
Compilation Analysis:   sync (/x/torch_xla/core/xla_model.py:1055)
Compilation Analysis:   <module> (/home/me/train (1).py:73)
Compilation Analysis:   ..........
Compilation Analysis: ----------------
Compilation Analysis: ================
epoch 1, loss 3.2
Post Compilation Analysis: ================
Post Compilation Analysis: Graph input size: 1.548000 GB
Post Compilation Analysis: Aliased Input size: 1.547871 GB
Post Compilation Analysis: ----------------
Execution Analysis: ================
Execution Analysis: Execution Cause
Execution Analysis:   user torch_xla.sync
Execution Analysis: Graph Info:
Execution Analysis:   Graph Hash: c74c3b91
"""

SAVED = """\
[ScheduleSyncTensorsGraph]
TensorsGraphInfo:
  forward (/home/me/model.py:7)
  <module> (/home/me/train.py:3)

Root Hashes: (aa, bb)

## BEGIN_GRAPH
HloModule IrToHlo.5, entry_computation_layout={(f32[8]{0}, f32[4,8]{1,0})->(f32[4,8]{1,0}, f32[])}

%Add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  ROOT %add.3 = f32[] add(f32[] %x, f32[] %y)
}

ENTRY %IrToHlo.5 (p0: f32[8], p1: f32[4,8]) -> (f32[4,8], f32[]) {
  %p0 = f32[8]{0} parameter(0), metadata={op_name="add(("}
  ROOT %tuple.9 = (f32[4,8]{1,0}, f32[]) tuple(f32[4,8]{1,0} %p1, f32[] %r)
}

Graph Hash: 97a5

## END_GRAPH

[ScheduleSyncTensorsGraph]
TensorsGraphInfo:
  forward (/home/me/model.py:7)
## BEGIN_GRAPH
IR {
  %0 = f32[] prim::Constant(), value=1
  %1 = f32[] aten::add(%0, %0), ROOT=0
}
Graph Hash: 11

## END_GRAPH
[ScheduleSyncTensorsGraph]
TensorsGraphInfo:
cut here
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("06m09s401ms746.001us", (369401746001.0, "ns")),
        ("29s996ms941.409us", (29996941409.0, "ns")),
        ("001.957us", (1957.0, "ns")),
        ("1d02h", (936e11, "ns")),
        ("468.00MB", (468 * 2.0**20, "B")),
        ("1.00B", (1.0, "B")),
        ("1222.00", (1222.0, "")),
        ("fast", None),
        ("12ms fast", None),
        ("", None),
    ],
)
def test_amounts(text: str, found: tuple[float, str] | None) -> None:
    assert parse_amount(text) == (found if found is None else (pytest.approx(found[0]), found[1]))


def test_a_metrics_report() -> None:
    found = read_metrics(REPORT.split("\n"))
    compiled = found.metrics["CompileTime"]
    assert (compiled.n, compiled.unit) == (3, "ns")
    assert compiled.total == pytest.approx(29_996_941_409)
    assert found.metrics["InboundData"].unit == "B"
    assert found.counters == {"aten::nonzero": 33, "MarkStep": 2}
    assert (found.n_skipped, found.cut, found.repeated) == (0, False, set())


def test_a_report_that_is_cut_says_so_and_counts_what_there_is() -> None:
    found = read_metrics(["Counter: A", "  Value: 1", "Metric: CompileTime", "  Rate: 2"])
    assert found.cut
    assert found.counters == {"A": 1}
    assert not found.metrics


@pytest.mark.parametrize(
    ("before", "cut"),
    [
        (["iteration 1", "  Rate: 3.2 it/s"], False),
        (["  Value: 3", "iteration 1"], False),
        (["tor: 29s", "  Rate: 0.1 / second"], True),
        (["  Value: 3", ""], True),
    ],
)
def test_a_report_begins_in_the_middle_only_where_lines_of_a_metric_come_first(before: list[str], cut: bool) -> None:
    assert read_metrics([*before, "Counter: A", "  Value: 1"]).cut is cut


def test_of_several_reports_the_last_counts() -> None:
    found = read_metrics(["Counter: A", "  Value: 1", "Counter: A", "  Value: 5"])
    assert (found.counters, found.repeated) == ({"A": 5}, {"A"})


def test_debug_output_between_lines_of_the_program() -> None:
    compilation, execution = read_debug(DEBUG.split("\n"))
    assert compilation.kind == "compilation"
    assert compilation.cause == "torch_xla.sync in parallel loader at step end"
    assert compilation.hash == "c74c3b91"
    assert (compilation.n_inputs, compilation.n_outputs) == (35, 107)
    assert [(frame.function, frame.file, frame.line) for frame in compilation.frames] == [
        ("sync", "/x/torch_xla/core/xla_model.py", 1055),
        ("<module>", "/home/me/train (1).py", 73),
    ]
    assert (execution.kind, execution.hash, execution.frames) == ("execution", "c74c3b91", ())


def test_saved_graphs_as_hlo_and_as_text_and_a_cut_one_left_out() -> None:
    hlo, text = read_saved(SAVED.split("\n"))
    assert (hlo.hash, hlo.frames[0].line) == ("97a5", 7)
    module = hlo.module
    assert module is not None
    assert (module.inputs, module.outputs) == (("f32[8]", "f32[4,8]"), ("f32[4,8]", "f32[]"))
    assert dict(module.ops) == {"parameter": 2, "add": 1, "tuple": 1}
    assert (text.hash, text.module) == ("11", None)


def test_aliases_of_a_module() -> None:
    head = (
        "HloModule m, input_output_alias={ {0}: (1, {}, may-alias), {2}: (0, {}, must-alias) },"
        " entry_computation_layout={(f32[])->(f32[])}"
    )
    module = read_module(head)
    assert module is not None
    assert module.aliased == 2


@given(st.text())
def test_nothing_breaks_the_readers(text: str) -> None:
    lines = text.split("\n")
    read_metrics(lines)
    list(read_debug(lines))
    list(read_saved(lines))
    read_module(text)


@given(st.integers(0, len(DEBUG)), st.integers(0, len(SAVED)), st.integers(0, len(REPORT)))
def test_nor_does_a_cut_anywhere(debug: int, saved: int, report: int) -> None:
    assert len(list(read_debug(DEBUG[:debug].split("\n")))) <= 2
    assert len(list(read_saved(SAVED[:saved].split("\n")))) <= 2
    read_metrics(REPORT[:report].split("\n"))

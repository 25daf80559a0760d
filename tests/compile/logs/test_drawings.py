"""FX graphs in the page: every node has a box, edges join them, large graphs collapse."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from compile.logs.log_builder import LogBuilder, break_text
from tests.report import forms

from torchtriage.compile.logs import drawings as module
from torchtriage.compile.logs.drawings import MAX_BOXES, draw, with_drawings
from torchtriage.compile.logs.graphs import nodes_of
from torchtriage.compile.logs.judge import judge
from torchtriage.compile.logs.process_log import ProcessLog
from torchtriage.compile.logs.result import Drawing
from torchtriage.compile.logs.structured_log import read_structured

AOT = """class GraphModule(torch.nn.Module):
    def forward(
        self,
        primals_1: "f32[8, 4][4, 1]cpu",  # PlainAOTInput(idx=0)
        primals_2: "f32[8][1]cpu",  # PlainAOTInput(idx=1)
    ):
        # File: me/train.py:7 in step, code: h = torch.relu(x)
        relu: "f32[8, 4][4, 1]cpu" = torch.ops.aten.relu.default(primals_1);  primals_1 = None
        add: "f32[8, 4][4, 1]cpu" = torch.ops.aten.add.Tensor(relu, primals_2)
        return (
            add,  # PlainAOTOutput(idx=0)
            relu,  # SavedForBackwardsAOTOutput(idx=0)
        )
"""


def drawn(*graphs: str) -> tuple[Drawing, ...]:
    log = LogBuilder().compiled("0/0", "step", 5)
    log.artifact("dynamo_graph_break_reason", break_text("Data-dependent branching", 7))
    for graph in graphs:
        log.record("dynamo_output_graph", {}, graph, "0/0")
    found = read_structured(ProcessLog("x.log"), io.BytesIO(log.bytes()))
    result = judge([found])
    drawings, n_told = draw(result, [found])
    assert n_told == len(graphs)
    page = forms.page(replace(result, drawings=drawings))
    assert page.count("<details><summary>0/0 step") == len(graphs)
    assert page.count("graph break: GB0170") == len(graphs)
    whole = replace(result, drawings=drawings)
    assert forms.decode(forms.encode(whole), "compile") == whole
    return drawings


def long_graph(n_nodes: int, n_lines: int, n_functions: int) -> str:
    rows = ['    def forward(self, x0: "f32[4]"):']
    for place in range(n_nodes):
        line, function = place * n_lines // n_nodes, place * n_functions // n_nodes
        rows.append(f"        # File: me/f{function}.py:{line} in f{function}, code: x = relu(x)")
        rows.append(f"        x{place + 1} = torch.relu(x{place})")
    return "\n".join([*rows, f"        return (x{n_nodes},)\n"])


def test_inputs_and_outputs_over_several_lines_are_read() -> None:
    assert [(one.name, one.uses) for one in nodes_of(AOT)] == [
        ("primals_1", ()),
        ("primals_2", ()),
        ("relu", ("primals_1",)),
        ("add", ("relu", "primals_2")),
        ("output", ("add", "relu")),
    ]


def test_every_node_has_a_box_inside_the_drawing() -> None:
    (one,) = drawn(AOT)
    assert [(label, kind) for label, kind, *_ in one.nodes] == [
        ("primals_1", "input"),
        ("primals_2", "input"),
        ("relu", "op"),
        ("add", "op"),
        ("output", "output"),
    ]
    assert set(one.edges) == {(0, 2), (1, 3), (2, 3), (2, 4), (3, 4)}
    for _, _, _, x, y, width, height in one.nodes:
        assert 0 <= x - width / 2 < x + width / 2 <= one.width
        assert 0 <= y - height / 2 < y + height / 2 <= one.height
    assert one.nodes[0][4] < one.nodes[2][4] < one.nodes[3][4] < one.nodes[4][4]
    assert one.end.startswith("GB0170 Data-dependent branching, me/train.py:7")


def test_large_graphs_collapse_to_what_can_be_seen() -> None:
    by_line, by_function, by_share = drawn(
        long_graph(300, 60, 5), long_graph(900, 900, 30), long_graph(5000, 5000, 5000)
    )
    assert "one box for each line" in by_line.title
    assert len(by_line.nodes) == 62
    assert "one box for each function" in by_function.title
    assert len(by_function.nodes) == 32
    assert by_share.n_nodes == 5002
    assert len(by_share.nodes) <= MAX_BOXES
    assert by_line.nodes[1][0] == "f0"
    assert by_line.nodes[1][2].startswith("5 nodes\n5 relu")


def process(rank: int, *graphs: str) -> ProcessLog:
    log = LogBuilder(rank=rank).compiled("0/0", "step", 5)
    for graph in graphs:
        log.record("dynamo_output_graph", {}, graph, "0/0")
    return read_structured(ProcessLog(f"rank_{rank}.log", named_rank=rank), io.BytesIO(log.bytes()))


def test_graphs_of_several_processes_are_drawn_once_or_said_to_be_left_out() -> None:
    same = long_graph(3, 3, 1)
    logs = [
        process(0, same, same.replace("f32[4]", 'f32[4]cuda:0"')),
        process(1, same, same.replace("f32[4]", 'f32[4]cuda:1"'), long_graph(4, 4, 1)),
    ]
    whole = with_drawings(judge(logs), logs)
    of = [drawing.processes for drawing in whole.drawings]
    assert of == [("rank 0", "rank 1"), ("rank 0", "rank 1"), ("rank 1",)]
    assert "graphs-left-out" not in {one.code for one in whole.notes}
    page = forms.page(whole)
    assert page.count("· rank 0, rank 1</summary>") == 2
    many = [process(rank, *(long_graph(n, n, 1) for n in range(2, 22))) for rank in range(4)]
    for rank, log in enumerate(many):  # none is equal
        log.graphs = [(*graph[:2], graph[2].replace("relu", f"relu{rank}")) for graph in log.graphs]
    whole = with_drawings(judge(many), many)
    assert len(whole.drawings) == 48
    assert {name for drawing in whole.drawings for name in drawing.processes} == {f"rank {rank}" for rank in range(4)}
    (note,) = [one for one in whole.notes if one.code == "graphs-left-out"]
    assert note.message.startswith("32 graphs of 80 not drawn")


def test_what_draws_graphs_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    logs = [process(0, long_graph(3, 3, 1))]
    (note,) = [one for one in with_drawings(judge(logs), logs).notes if one.code == "graphs-not-drawn"]
    assert note.fix == "pip install 'torchtriage[draw]'"

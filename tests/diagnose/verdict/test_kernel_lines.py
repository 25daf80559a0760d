"""What compiled graphs run, at the lines they compute: by the graph's key, in the order of its code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from builder import TraceBuilder

import torchtriage as tt
from torchtriage.compile.logs.kernel_lines import GraphCode, KernelCall
from torchtriage.core.errors import LogError
from torchtriage.core.finding import Frame
from torchtriage.core.trace import Trace
from torchtriage.diagnose.runs.compile_events import lines_of
from torchtriage.diagnose.verdict.device_time import device_time
from torchtriage.diagnose.verdict.kernel_lines import KernelLines, find_kernel_lines
from torchtriage.diagnose.verdict.result import DeviceTime
from torchtriage.diagnose.verdict.verdict import diagnose

RELU, NORM, GELU = "triton_poi_fused_relu_0", "triton_per_fused_norm_1", "triton_poi_fused_gelu_0"


def call(name: str, *numbers: int, file: str = "/me/net.py") -> KernelCall:
    return KernelCall(name, tuple(Frame(file, number, "forward", exact=True) for number in numbers))


def code(key: str, *calls: KernelCall) -> GraphCode:
    return GraphCode(calls, key)


class Graphs:
    """Calls of compiled graphs, each 100 us long: what a graph launches begins 10 us apart and runs for 8."""

    def __init__(self) -> None:
        self.builder, self.at = TraceBuilder(), 0.0

    def call(self, key: str | None, *names: str, shift: float = 1000.0) -> Graphs:
        if key is not None:
            self.builder.annotation(f"## Call CompiledFxGraph {key} ##", self.at, 100)
        for index, name in enumerate(names):
            at = self.at + 5 + 10 * index
            if name.startswith("aten::"):
                self.builder.op(name, at, 6)
                name = "sgemm"
            self.builder.launch(at + 1, 2, at + shift, 8, name)
        self.at += 200
        return self

    def build(self) -> Trace:
        return self.builder.build()


def found(trace: Trace, *codes: GraphCode) -> list[list[int]]:
    """Return the lines of each device row, in the order in which they run."""
    lines = find_kernel_lines(trace, codes)
    rows = np.flatnonzero(trace.works)
    return [[line.line for line in lines.at(row)] for row in rows[np.argsort(trace.start_ns[rows])].tolist()]


def by_line(trace: Trace, *codes: GraphCode) -> DeviceTime:
    return device_time(trace, "line", compiled=find_kernel_lines(trace, codes))[-1]


def test_kernels_of_one_name_have_the_lines_of_their_calls_in_order() -> None:
    trace = Graphs().call("fa", "aten::mm", RELU, "aten::mm", RELU).call("fb", RELU).build()
    first = code("fa", call("aten::mm", 3), call(RELU, 4), call("aten::mm", 5), call(RELU, 6))
    assert found(trace, first, code("fb", call(RELU, 9))) == [[3], [4], [5], [6], [9]]


def test_a_name_of_two_lines_is_none_where_the_calls_are_others() -> None:
    trace = Graphs().call("fa", RELU, RELU, RELU, NORM).build()
    assert found(trace, code("fa", call(RELU, 4), call(NORM, 5), call(RELU, 6))) == [[], [], [], [5]]


def test_graphs_with_one_key_have_to_agree() -> None:
    trace = Graphs().call("fa", RELU, NORM).build()
    twice = code("fa", call(RELU, 4), call(NORM, 5)), code("fa", call(RELU, 14), call(NORM, 5))
    assert found(trace, *twice) == [[], [5]]
    # the code of another function came out of a cache, and whose lines it has is not known
    assert found(trace, twice[0], code("fa", call(RELU), call(NORM))) == [[], []]


def test_graphs_without_keys_are_told_apart_by_nothing() -> None:
    trace = Graphs().call("None", RELU, NORM).build()
    assert found(trace, code("", call(RELU, 4), call(NORM, 5)), code("", call(NORM, 6))) == [[4], []]


def test_without_a_recorded_launch_a_name_counts_if_it_has_one_line() -> None:
    graphs = Graphs().call("fa", RELU)
    for name in (RELU, NORM, "sgemm"):
        graphs.builder.kernel(name, graphs.at + 2000, 5, correlation=0)
        graphs.at += 10
    codes = [code("fa", call(RELU, 4), call(NORM, 5)), code("fb", call(NORM, 6))]
    assert found(graphs.build(), *codes) == [[4], [4], [5], []]  # fb is not called
    assert found(graphs.call("fc", GELU).build(), *codes)[1:4] == [[], [], []]  # fc is not in the log
    only_names = TraceBuilder()
    for index, name in enumerate((RELU, NORM)):
        only_names.kernel(name, 10 * index, 5, correlation=0)
    assert found(only_names.build(), *codes) == [[4], []]


def test_kernels_of_a_replayed_graph_are_in_the_order_of_the_code() -> None:
    builder = TraceBuilder().annotation("## Call CompiledFxGraph fa ##", 0, 100)
    builder.call("cudaGraphLaunch", 10, 5, correlation=77)
    for index, name in enumerate((RELU, "sgemm", RELU)):
        builder.kernel(name, 20 + 10 * index, 8, correlation=77)
    trace = builder.build()
    codes = [code("fa", call(RELU, 4), call("aten::mm", 5), call(RELU, 6))]
    assert found(trace, *codes) == [[4], [], [6]]
    launch = int(np.flatnonzero(trace.named("cudaGraphLaunch"))[0])
    assert find_kernel_lines(trace, codes).at(launch) == ()
    everything = find_kernel_lines(trace, [code("fa", call(RELU, 4), call("sgemm", 5), call(RELU, 6))])
    assert everything.at(launch) == ()


def test_all_kernels_of_an_operator_are_one_call() -> None:
    graphs = Graphs()
    graphs.builder.annotation("## Call CompiledFxGraph fa ##", 0, 100)
    for at in (10, 50):
        graphs.builder.op("aten::addmm", at, 30).op("aten::copy_", at + 1, 8)
        graphs.builder.launch(at + 2, 2, at + 100, 5, "copy")
        graphs.builder.launch(at + 12, 2, at + 110, 5, "splitK")
    trace = graphs.build()
    codes = [code("fa", call("aten::addmm", 3), call("aten::addmm", 7))]
    assert found(trace, *codes) == [[3], [3], [7], [7]]
    inner = int(np.flatnonzero(trace.named("aten::copy_"))[1])
    assert [line.line for line in find_kernel_lines(trace, codes).at(inner)] == [7]


def test_cpu_kernels_have_the_lines_of_their_rows() -> None:
    builder = TraceBuilder(vendor="cpu").annotation("## Call CompiledFxGraph fa ##", 0, 100)
    for at in (10, 40):
        builder.op("graph_0_cpp_fused_relu_0", at, 20)
    trace = builder.build()
    lines = find_kernel_lines(trace, [code("fa", call("cpp_fused_relu_0", 4), call("cpp_fused_relu_0", 6))])
    rows = np.flatnonzero(trace.named("graph_0_cpp_fused_relu_0")).tolist()
    assert [[line.line for line in lines.at(row)] for row in rows] == [[4], [6]]


def test_fused_kernels_count_once_at_the_first_line_and_name_the_others() -> None:
    graphs = Graphs()
    for _ in range(2):
        graphs.call("fa", "aten::mm", RELU, NORM, GELU, "copy")
    trace = graphs.build()
    shown = by_line(
        trace, code("fa", call("aten::mm", 3), call(RELU, 4, 5, 6), call(NORM, 4, 7), call(GELU, 4), call("x", 9))
    )
    rows = {row.name.replace("/me/", ""): (row.busy_ns, row.lines) for row in shown.rows}
    assert rows == {
        "net.py:3 in forward": (16_000, ("/me/net.py:3 in forward",)),
        "net.py:4 in forward and 3 more lines": (
            32_000,
            tuple(f"/me/net.py:{number} in forward" for number in (4, 5, 6, 7)),
        ),
        "net.py:4 in forward": (16_000, ("/me/net.py:4 in forward",)),
        "": (16_000, ()),
    }
    assert sum(busy_ns for busy_ns, _ in rows.values()) == shown.busy_ns == 80_000
    assert shown.captured == "80 % of the time of compiled graphs counts at the lines that they compute, by their log"
    assert not device_time(trace, "kernel", compiled=find_kernel_lines(trace, [code("fa")]))[-1].captured


def test_files_are_called_as_the_trace_calls_them() -> None:
    graphs = Graphs()
    graphs.builder.frame("models/net.py(3): run", 0, 500).frame("net.py(1): <module>", 1, 400)
    trace = graphs.call("fa", RELU, NORM, GELU).build()

    def files(*paths: str) -> list[str]:
        calls = [call(name, 7, file=path) for name, path in zip((RELU, NORM, GELU), paths, strict=False)]
        lines = find_kernel_lines(trace, [code("fa", *calls)])
        return [line.file for (line,) in lines.lines]

    assert files("/me/models/net.py", "/me/net.py", "/me/other.py") == ["models/net.py", "net.py", "/me/other.py"]
    assert files("/a/net.py", "/b/net.py") == ["/a/net.py", "/b/net.py"]  # one of them is another file


def test_the_log_of_another_program_is_refused() -> None:
    trace = Graphs().call("fa", RELU).build()
    with pytest.raises(LogError, match="found that of 1 graph, of which it calls none"):
        find_kernel_lines(trace, [code("fz", call(RELU, 4))])
    with pytest.raises(LogError, match="it calls none"):
        find_kernel_lines(Graphs().call(None, "sgemm").build(), [code("fz", call(RELU, 4))])
    assert lines_of(trace, [code("fz", call(RELU, 4))]) is None
    assert lines_of(trace, []) is None
    assert isinstance(lines_of(trace, [code("fa", call(RELU, 4))]), KernelLines)


def test_a_finding_about_a_kernel_names_its_line() -> None:
    builder = TraceBuilder()
    for index in range(4):
        at = 1000.0 * index
        builder.step(index, at, 1000).frame(f"train.py({index + 1}): main", at, 990)
        builder.annotation("## Call CompiledFxGraph fa ##", at + 5, 50)
        builder.launch(at + 10, 5, at + 100, 100, RELU, grid=[33, 1, 1])
        builder.launch(at + 20, 5, at + 500, 300, "big", grid=[999, 1, 1])
    trace = builder.build()
    (plain,) = (finding for finding in diagnose(trace).findings if finding.code == "KRN024")
    compiled = find_kernel_lines(trace, [code("fa", call(RELU, 12, 13))])
    (named,) = (finding for finding in diagnose(trace, compiled=compiled).findings if finding.code == "KRN024")
    assert named.place.frame == Frame("/me/net.py", 12, "forward", exact=True)
    assert named.place.stack == (named.place.frame, *plain.place.stack)
    assert named.evidence == {**plain.evidence, "compiled_lines": ["/me/net.py:12", "/me/net.py:13"]}


def test_the_log_is_read_beside_the_trace(tmp_path: Path) -> None:
    log = Path(__file__).parents[2] / "compile/logs/data/kernel_lines.log"
    key = next(text for text in log.read_text().split('"') if text.startswith("fscy2vfl"))
    graphs = Graphs().call(key, "aten::mm", "aten::mm", "aten::mm")
    (tmp_path / "trace.json").write_bytes(graphs.builder.json())
    shown = tt.analyze(tmp_path / "trace.json", by="line", compile_log=log).device_time[-1]
    assert [row.name for row in shown.rows] == [f"/me/twins.py:{line} in both" for line in (19, 20, 21)]

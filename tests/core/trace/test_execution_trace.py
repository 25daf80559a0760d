"""Inputs of operators from the execution trace that was recorded beside the profiler's file."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builder import TraceBuilder
from click.testing import CliRunner
from conftest import DATA

import torchtriage as tt
from torchtriage.cli.main import cli
from torchtriage.core.errors import TraceFormatError
from torchtriage.core.trace import Trace
from torchtriage.core.trace.execution_trace import join_inputs
from torchtriage.core.trace.schema import Kind

FIELDS = ("dims", "types", "concrete", "strides")
MM = ([[1, 2, 0, 6, 4, "cpu"], [3, 4, 0, 6, 4, "cpu"]], [[2, 3], [3, 2]], ["Tensor(float)", "Tensor(float)"])
RELU = ([[5, 6, 0, 4, 2, "cuda:0"]], [[2, 2]], ["Tensor(c10::Half)"])


def recorded(*names: str, first_id: int | None = None, tid: int = 1) -> TraceBuilder:
    builder = TraceBuilder(vendor="cpu")
    for index, name in enumerate(names):
        ids = {} if first_id is None else {"Record function id": first_id + index}
        builder.event(name, "cpu_op", 10.0 * index, 8.0, tid=tid, **ids)
    return builder


def node(name: str, number: int, given: tuple[Any, Any, Any] = ([], [], []), *, new: bool = True, tid: int = 1) -> Any:
    values, shapes, types = given
    ids = {"rf_id": number, "tid": tid}
    if not new:
        return {"name": name, "id": number, **ids, "inputs": values, "input_shapes": shapes, "input_types": types}
    inputs = {"values": values, "shapes": shapes, "types": types}
    attrs = [{"name": key, "type": "uint64", "value": value} for key, value in ids.items()]
    return {"name": name, "id": number, "ctrl_deps": 0, "inputs": inputs, "attrs": attrs}


def written(folder: Path, *nodes: Any) -> Path:
    path = folder / "et.json"
    path.write_text(json.dumps({"schema": "1.1.0-chakra.0.0.4", "nodes": nodes}))
    return path


def inputs(trace: Trace, field: str = "dims") -> list[Any]:
    return trace.details_of(field, np.flatnonzero(trace.kind == Kind.OP))


@pytest.mark.parametrize("new", [True, False])
def test_operators_get_their_inputs_in_order(tmp_path: Path, new: bool) -> None:
    trace = recorded("aten::mm", "aten::relu", "aten::mm").build()
    process = node("[pytorch|profiler|execution_trace|process]", 0, new=new, tid=0)
    nodes = [
        node(name, 7 + index, given, new=new)
        for index, (name, given) in enumerate([("aten::mm", MM), ("aten::relu", RELU), ("aten::mm", ([], [], []))])
    ]
    joined = join_inputs(trace, written(tmp_path, process, *reversed(nodes)))  # written when they end
    assert inputs(joined)[:2] == [[[2, 3], [3, 2]], [[2, 2]]]
    assert inputs(joined, "types")[:2] == [["float", "float"], ["c10::Half"]]
    assert not inputs(joined)[2]
    assert "3 of 3 operators" in joined.report.inputs
    assert not any(inputs(trace))  # the trace itself is as it was


def test_values_are_written_as_the_profiler_writes_them(tmp_path: Path) -> None:
    trace = recorded("aten::f").build()
    tensors = "GenericList[Tensor(float),Tensor(float)]"
    values = [True, 3, [1, -1], [[1, 2, 0, 1, 4, "cpu"]] * 2, "cuda:0", "<None>", [1, 2, 0, 1, 4, "cpu"], [False]]
    kinds = ["Bool", "Int", "GenericList[Int,Int]", tensors, "Device", "None",
             "Tensor(nullptr (uninitialized))", "GenericList[Bool]"]  # fmt: skip
    shapes = [[], [], [[], []], [[2], [3]], [], [], [0], [[]]]
    joined = join_inputs(trace, written(tmp_path, node("aten::f", 1, (values, shapes, kinds))))
    assert inputs(joined, "concrete") == [["True", "3", "[1, -1]", "", "", "", "", "[False]"]]
    assert inputs(joined, "types") == [["Scalar", "Scalar", "ScalarList", "TensorList", "", "", "", "ScalarList"]]
    assert inputs(joined) == [[[], [], [], [[2], [3]], [], [], [0], []]]


def test_what_the_profiler_recorded_stays(tmp_path: Path) -> None:
    trace = TraceBuilder(vendor="cpu").op("aten::mm", 0, 5, dims=[[9, 9], [9, 9]], types=["float", "float"]).build()
    assert inputs(join_inputs(trace, written(tmp_path, node("aten::mm", 1, MM)))) == [[[9, 9], [9, 9]]]


def test_threads_are_told_apart_by_their_operators(tmp_path: Path) -> None:
    builder = recorded("aten::mm", "aten::relu")
    builder.event("aten::relu", "cpu_op", 0.0, 5.0, tid=2).event("aten::mm", "cpu_op", 6.0, 5.0, tid=2)
    nodes = [node("aten::relu", 3, RELU, tid=1), node("aten::mm", 4, MM, tid=1)]
    joined = join_inputs(builder.build(), written(tmp_path, *nodes))
    assert [bool(each) for each in inputs(joined)] == [False, False, True, True]


def test_equal_iterations_are_told_apart_by_ids_alone(tmp_path: Path) -> None:
    path = written(tmp_path, node("aten::mm", 3, MM), node("aten::relu", 4, RELU))
    names = ("aten::mm", "aten::relu") * 3
    with pytest.raises(TraceFormatError, match="in 3 places"):
        join_inputs(recorded(*names).build(), path)
    joined = join_inputs(recorded(*names, first_id=1).build(), path)
    assert [bool(each) for each in inputs(joined)] == [False, False, True, True, False, False]


@pytest.mark.parametrize("first_id", [None, 1])
def test_another_order_and_another_run_are_refused(tmp_path: Path, first_id: int | None) -> None:
    trace = recorded("aten::mm", "aten::relu", first_id=first_id).build()
    swapped = written(tmp_path, node("aten::relu", 1, RELU), node("aten::mm", 2, MM))
    with pytest.raises(TraceFormatError, match="another order"):
        join_inputs(trace, swapped)
    if first_id is not None:
        with pytest.raises(TraceFormatError, match="another order"):
            join_inputs(trace, written(tmp_path, node("aten::mm", 91, MM), node("aten::relu", 92, RELU)))


def test_another_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "et.json"
    for pid, fits in ((100, True), (101, False)):
        path.write_text(json.dumps({"pid": pid, "nodes": [node("aten::mm", 1, MM)]}))
        if fits:
            join_inputs(recorded("aten::mm").build(), path)
        else:
            with pytest.raises(TraceFormatError, match="of process 100, found one of 101"):
                join_inputs(recorded("aten::mm").build(), path)


def test_the_search_is_linear_in_operators_of_one_name(tmp_path: Path) -> None:
    nodes = [node("aten::mm", number, MM) for number in range(1, 20_001)]
    with pytest.raises(TraceFormatError, match="in 1,000 places"):
        join_inputs(recorded(*["aten::mm"] * 40_000).build(), written(tmp_path, *nodes))


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{}", b"[]", b"null", b'{"nodes": 3}', b'{"nodes": [3]}', b'{"nodes": [{"id": "x", "name": "aten::mm"}]}',
        b'{"nodes": [{"id": 1, "name": "aten::mm", "inputs": 7}]}', b'{"nodes": [' + b"[" * 100_000,
        b'{"nodes": [{"id": 1, "name": "aten::mm", "inputs": [1], "input_shapes": 2, "input_types": [3]}]}',
        b'{"nodes": [{"id": 1, "name": "aten::mm\xff", "inputs": []}]}', b"\x00\x01\x02", b'{"nodes": []}',
    ],
)  # fmt: skip
def test_another_file_is_refused_in_a_line(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "et.json"
    path.write_bytes(text)
    with pytest.raises(TraceFormatError) as error:
        join_inputs(recorded("aten::mm").build(), path)
    assert str(path) in str(error.value)


def test_the_command_joins_and_says_so(tmp_path: Path) -> None:
    trace, path = tmp_path / "trace.json", written(tmp_path, node("aten::mm", 1, MM))
    builder = recorded("aten::mm", "aten::add", "aten::sub")
    trace.write_text(json.dumps({**builder.meta, "traceEvents": builder.events}))
    result = CliRunner().invoke(cli, ["analyze", str(trace), "--execution-trace", str(path), "--json"])
    notes = {note["code"]: note for note in json.loads(result.stdout)["results"][0]["notes"]}
    assert "1 of 3 operators have their inputs from et.json" in notes["joined-inputs"]["message"]
    assert "no-shapes" not in notes


PAIRS = (
    *(
        (f"astra-sim__astra-sim__my_test_inputs_workload_megatron-tp8_megatron_et_{rank}.json.gz",
         f"gpu2/jobs/astra-sim__astra-sim__megatron-tp8/rank{rank}.json.gz") for rank in (0, 6)
    ),
    ("facebookresearch__param__et_replay_tests_inputs_dlrm_pytorch_et.tar.gz_dlrm_pytorch_et_dlrm_eg_0.json.gz",
     "traces/distributed/dlrm_v100_8ranks/worker0_step_12.1694128201545.pt.trace.json.gz"),
    ("sarchlab__triosim__tracer_data_graph_graph_vgg13-iter41.json.gz",
     "gpu2/traces/sarchlab__triosim__tracer_data_profiler_profiler_vgg13-iter41.json.gz"),
)  # fmt: skip


@pytest.mark.data
@pytest.mark.parametrize(("execution_trace", "path"), PAIRS)
def test_of_public_pairs_every_tensor_is_as_the_profiler_recorded_it(execution_trace: str, path: str) -> None:
    compare_tensors(tt.load(DATA / path), DATA / "gpu2/execution_traces" / execution_trace)


@pytest.mark.data
def test_one_of_many_equal_iterations_is_refused() -> None:
    trace = DATA / "traces/batch_sweep/linear_rtx2080ti_train.json.gz"
    linear = "gpu2/execution_traces/facebookresearch__param__et_replay_tests_inputs_linear_et.json.gz"
    with pytest.raises(TraceFormatError, match="in 39 places"):
        tt.load(trace, execution_trace=DATA / linear)


SCRIPT = """
import sys, torch
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 5))
optimizer = torch.optim.Adam(model.parameters())
with profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=schedule(wait=1, warmup=1, active=3),
             execution_trace_observer=ExecutionTraceObserver().register_callback(sys.argv[2]),
             on_trace_ready=lambda p: p.export_chrome_trace(sys.argv[1])) as prof:
    for size in range(4, 10):
        torch.nn.functional.mse_loss(model(torch.randn(size, 3, 8, 8)), torch.randn(size, 5)).backward()
        optimizer.step(), optimizer.zero_grad(), prof.step()
"""


@pytest.mark.torch
def test_pytorch_itself_writes_pairs_that_join(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("trace.json", "et.json")]
    subprocess.run([sys.executable, "-c", SCRIPT, *paths], check=True, capture_output=True, timeout=300)
    compare_tensors(tt.load(paths[0]), Path(paths[1]))


def compare_tensors(trace: Trace, execution_trace: Path) -> None:
    """Join a pair whose profiler recorded inputs, too, with and without these; compare."""
    bare = replace(trace, details=tuple(entry._replace(**dict.fromkeys(FIELDS, b"")) for entry in trace.details))
    joined = join_inputs(bare, execution_trace)
    n_ops = np.count_nonzero(trace.kind == Kind.OP)
    assert joined.report.inputs.startswith(f"{n_ops:,} of {n_ops:,} operators")
    n_tensors = 0
    for field in ("dims", "types"):
        kinds = inputs(trace, "types")
        for kind, expected, found in zip(kinds, inputs(trace, field), inputs(joined, field), strict=True):
            for index, name in enumerate(kind or ()):
                if name not in ("", "Scalar", "ScalarList", "TensorList"):  # lists were shortened by PyTorch 2.0
                    assert expected[index] == found[index]
                    n_tensors += 1
    assert n_tensors > 200

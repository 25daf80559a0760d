"""Tables of traces: exact rows, what is null, and the same as a slow reading of the file."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.api.tables import TABLES
from torchtriage.core.errors import TraceFormatError, UsageError
from torchtriage.core.table import Table
from torchtriage.core.trace import Trace, read_trace


def records(table: Table) -> list[dict[str, Any]]:
    rows = [row for batch in table.batches() for row in zip(*batch, strict=True)]
    return [dict(zip(table.columns, row, strict=True)) for row in rows]


def some_trace() -> Trace:
    builder = TraceBuilder(distributedInfo={"rank": 3, "world_size": 4}).step(7, 0, 100).step(8, 100, 100)
    builder.op("aten::mm", 10, 20, dims=[[2, 3], [3, 4]])
    builder.launch(12, 4, 20, 30, "gemm", grid=[1, 2, 3])
    builder.launch(60, 4, 70, 10, "add")
    builder.copy(110, 5, 120, 8, size=4096)
    builder.kernel("orphan", 150, 5, correlation=99)
    builder.event(
        "[memory]",
        "cpu_instant_event",
        130,
        0,
        ph="i",
        **{"Bytes": -64, "Addr": 5, "Device Type": 1, "Device Id": 0, "Total Allocated": 128},
    )
    return builder.build()


def test_kernels() -> None:
    gemm, add, orphan = records(some_trace().table("kernels"))
    assert {**gemm, "row": 0, "correlation": 0} == {
        "row": 0,
        "rank": 3,
        "device": 0,
        "stream": 7,
        "name": "gemm",
        "category": "GEMM",
        "op": "aten::mm",
        "step": 0,
        "start_ns": 20_000,
        "dur_ns": 30_000,
        "launch_ns": 12_000,
        "correlation": 0,
        "grid": "[1, 2, 3]",
        "block": None,
    }
    assert (add["op"], add["step"], add["launch_ns"]) == (None, 0, 60_000)
    assert (orphan["op"], orphan["launch_ns"], orphan["step"]) == (None, None, 1)


def test_ops() -> None:
    trace = some_trace()
    ops = {row["name"]: row for row in records(trace.table("ops"))}
    assert set(ops) == {"ProfilerStep#7", "ProfilerStep#8", "aten::mm", "cudaLaunchKernel", "cudaMemcpyAsync"}
    mm = ops["aten::mm"]
    assert (mm["kind"], mm["dur_ns"], mm["self_ns"], mm["device_ns"]) == ("op", 20_000, 16_000, 30_000)
    assert mm["input_dims"] == "[[2, 3], [3, 4]]"
    assert trace.name_of(mm["parent"]) == "ProfilerStep#7"
    step = ops["ProfilerStep#7"]
    assert (step["kind"], step["parent"], step["input_dims"]) == ("annotation", None, None)
    assert ops["cudaMemcpyAsync"]["device_ns"] == 8_000


def test_copies_and_memory() -> None:
    (copy,) = records(some_trace().table("copies"))
    assert (copy["kind"], copy["bytes"], copy["dur_ns"], copy["step"]) == ("copy", 4096, 8_000, 1)
    (record,) = records(some_trace().table("memory"))
    assert record == {
        "rank": 3,
        "at_ns": 130_000,
        "bytes": -64,
        "address": 5,
        "allocated_bytes": 128,
        "reserved_bytes": None,
        "device_type": 1,
        "device": 0,
        "step": 1,
    }


def test_steps_and_ranks() -> None:
    first, second = records(some_trace().table("steps"))
    assert (first["name"], first["step"], first["start_ns"], first["dur_ns"]) == ("ProfilerStep#7", 0, 0, 100_000)
    assert (first["judged"], first["left_out"], first["compute_ns"]) == (True, None, 40_000)
    assert (second["judged"], second["left_out"], second["copy_only_ns"]) == (False, "as empty", 8_000)
    (rank,) = records(some_trace().table("ranks"))
    assert (rank["rank"], rank["world_size"], rank["n_steps"], rank["step_ns"]) == (3, 4, 2, 100_000)
    assert (rank["n_judged"], rank["wall_ns"], rank["compute_ns"]) == (1, 100_000, 40_000)


def test_what_analyze_refuses_or_does_not_know_is_not_told() -> None:
    refused = TraceBuilder().step(0, 0, 100).step(1, 100, 100).op("aten::mm", 10, 20)
    for at in (10, 20, 110):
        refused.call("cudaLaunchKernel", at, 4)
    trace = refused.build()
    assert [row["judged"] for row in records(trace.table("steps"))] == [False, False]
    (rank,) = records(trace.table("ranks"))
    assert (rank["n_judged"], rank["step_ns"], rank["wall_ns"]) == (0, None, None)
    with pytest.raises(TraceFormatError, match="cannot be analysed: 3 launches and copies, but no GPU row"):
        trace.table("findings")

    cut = TraceBuilder().step(0, 0, 100).call("cudaLaunchKernel", 90, 4)
    cut.launch(10, 4, 20, 30, "gemm")
    (step,) = records(cut.build().table("steps"))
    assert (step["judged"], step["dur_ns"]) == (True, 100_000)
    (rank,) = records(cut.build().table("ranks"))
    for row in (step, rank):
        assert (row["compute_ns"], row["idle_unknown_ns"]) == (None, None)


def test_a_collective() -> None:
    builder = TraceBuilder().step(0, 0, 100).op("c10d::allreduce_", 5, 6)
    arguments = {
        "Collective name": "allreduce",
        "In msg nelems": 1000,
        "dtype": "Float",
        "Process Group Name": "tp",
        "Seq": 4,
    }
    builder.launch(6, 4, 20, 30, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", **arguments)
    builder.launch(12, 4, 40, 20, "gemm", stream=8)
    (row,) = records(builder.build().table("collectives"))
    assert (row["collective"], row["bytes"], row["dur_ns"], row["exposed_ns"]) == ("allreduce", 4000, 30_000, 20_000)
    assert (row["group"], row["step"]) == ('"tp"', 0)


def test_a_loaded_trace_has_the_table_of_findings() -> None:
    code = (
        "import torchtriage as tt; from torchtriage.api.traces import sample_path;"
        "assert len(tt.load(sample_path()).table('findings'))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_findings_are_those_of_analyze() -> None:
    from torchtriage import analyze
    from torchtriage.api.traces import sample_path

    trace = read_trace(sample_path())
    found = records(trace.table("findings"))
    assert [row["code"] for row in found] == [finding.code for finding in analyze(trace).findings]
    assert found[0]["saves_low_ms"] > 0
    assert found[0]["file"].endswith("record_sample.py")


@pytest.mark.parametrize("name", TABLES)
def test_columns_are_as_they_say(name: str) -> None:
    on_cpu = TraceBuilder(vendor="cpu").op("aten::mm", 0, 10).op("aten::mm", 10, 10).op("aten::mm", 20, 10)
    for trace in (some_trace(), on_cpu.build()):
        table = trace.table(name)
        assert table.columns == tuple(column.name for column in TABLES[name].columns)
        for column in table.columns:
            values = table.values(column)
            assert len(values.data) == len(table)
            kind = "int32" if values.texts is not None else table.kinds[column]
            assert values.data.dtype == np.dtype(kind)
            assert values.valid is None or len(values.valid) == len(table)


def test_no_such_table_and_column() -> None:
    with pytest.raises(UsageError, match="expected one of the tables kernels, ops"):
        some_trace().table("kernel")
    with pytest.raises(UsageError, match="expected one of the columns row, rank"):
        some_trace().table("kernels")["dur"]


SLOW = (
    "traces/cv/resnet50_v100_train_workers0.json.gz",
    "traces/cv/vit_nsfw_mi300x_infer.json.gz",
    "traces/llm/qwen1.5-0.5b_h100.json.gz",
    "traces/llm/b200_eager.json.gz",
    "traces/cpu/cpu_only_rank34.json.gz",
    "traces/distributed/torchrec_a100_rank0_of_16.json.gz",
    "traces/batch_sweep/particle_transformer_a100_bs32.json.gz",
    "gpu2/traces/CentML__DeepView.Profile__raw_trace_file.json.gz",
    "gpu2/traces/deepseek-ai__profile-data__train.json.gz",
    "gpu2/traces/pytorch-labs__segment-anything-fast__ab0d4f_amg_example_amg_example_trace.json.gz",
)
CATEGORIES = {
    "kernels": {"kernel"},
    "copies": {"gpu_memcpy", "gpu_memset"},
    "ops": {"cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "hip_runtime"},
}
OLD = {
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Operator": "cpu_op",
    "Runtime": "cuda_runtime",
}


@pytest.mark.data
@pytest.mark.parametrize("name", SLOW)
def test_tables_hold_what_a_slow_reading_finds(recordings: Path, name: str) -> None:
    path = recordings.parent / name
    if not path.exists():
        pytest.skip("not among the recordings here")
    with gzip.open(path) as file:
        document = json.load(file, parse_float=Decimal)
    events = document if isinstance(document, list) else document["traceEvents"]
    rows = [event for event in events if event.get("ph") == "X"]
    trace = read_trace(path)
    for table, categories in CATEGORIES.items():
        slow = [event for event in rows if OLD.get(event.get("cat"), event.get("cat")) in categories]
        found = records(trace.table(table))
        assert Counter(
            (event["name"], int(Decimal(event["ts"]) * 1000), int(Decimal(event["dur"]) * 1000)) for event in slow
        ) == Counter((row["name"], row["start_ns"], row["dur_ns"]) for row in found)
        if table == "ops":
            continue
        assert Counter((event["args"].get("device"), event["args"].get("stream")) for event in slow) == Counter(
            (row["device"], row["stream"]) for row in found
        )
        calls = {
            event["args"].get("correlation"): event
            for event in rows
            if "runtime" in event.get("cat", "").lower() or event.get("cat") == "cuda_driver"
        }
        for event, row in zip(slow, found, strict=True):
            call = calls.get(event["args"].get("correlation"))
            expected = None if call is None else int(Decimal(call["ts"]) * 1000)
            assert row["launch_ns"] == expected
            if table == "copies":
                assert row["bytes"] == event["args"].get("bytes")
    marks = [
        event
        for event in rows
        if event["name"].startswith("ProfilerStep#") and event.get("cat") != "gpu_user_annotation"
    ]
    if marks and trace.serving is None:
        steps = records(trace.table("steps"))
        assert {row["name"] for row in steps} <= {event["name"] for event in marks}
        assert {row["host_start_ns"] for row in steps} <= {int(Decimal(event["ts"]) * 1000) for event in marks}

"""Devices other than NVIDIA's and AMD's: what their recordings allow is judged, and nothing is advised for a GPU."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from builder import TraceBuilder
from invariants import check_trace
from tests.conftest import DATA

import torchtriage as tt
from torchtriage.core.trace import Kind, Trace, read_trace

PYTHON, QUEUE = 40, 42
"""Threads of the Python process: its own, and the one that calls CANN."""
SHARED = DATA / "traces" / "other_devices"


def label(pid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}


def ascend(*, late_us: float = 300.0) -> list[dict[str, Any]]:
    """Return steps of 1 ms as Ascend's profiler writes them: no categories, times as text.

    In each, one operator is enqueued, another thread calls CANN for it after ``late_us``, and the device works 400 us.
    """
    events: list[dict[str, Any]] = [label(4, "Python"), label(402, "CANN"), label(800, "Ascend Hardware")]

    def row(name: str, pid: int, tid: int, start: float, dur: float, **more: Any) -> None:
        events.append(
            {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": f"{1_700_000_000_000_000 + start:.3f}", "dur": dur}
            | more
        )

    def arrow(step: int, phase: str, pid: int, tid: int, at: float) -> None:
        ts = f"{1_700_000_000_000_000 + at:.3f}"
        events.append(
            {"ph": phase, "cat": "HostToDevice", "name": "a", "id": str(step), "pid": pid, "tid": tid, "ts": ts}
        )

    for step in range(4):
        at = step * 1000.0
        row(f"ProfilerStep#{step}", 4, PYTHON, at, 1000, cat="cpu_op")
        row("aten::mm", 4, PYTHON, at + 10, 50, cat="cpu_op")
        row("Enqueue", 4, PYTHON, at + 20, 5, cat="enqueue", args={"correlation_id": step})
        called = at + late_us
        row("Dequeue@aclnnMm", 4, QUEUE, called, 60, cat="dequeue", args={"correlation_id": step})
        row("AscendCL@aclnnMm", 402, QUEUE, called + 5, 50)
        row("AscendCL@inner", 402, QUEUE, called + 10, 20)
        arrow(step, "s", 402, QUEUE, called + 40)
        row("aclnnMm_MatMul", 800, 3, called + 60, 400, args={"Task Type": "AI_CORE"})
        arrow(step, "f", 800, 3, called + 60)
        row("EVENT_WAIT", 800, 3, called + 470, 30)
        row("MEMCPY_ASYNC", 800, 4, called + 500, 10)
    return events


def read(events: list[dict[str, Any]], **options: Any) -> Trace:
    trace = read_trace(io.BytesIO(json.dumps(events).encode()), **options)
    check_trace(trace)
    return trace


def named(trace: Trace, name: str) -> np.ndarray[Any, Any]:
    return np.flatnonzero(trace.named(name))


def test_ascend_work_lies_on_streams_and_waiting_is_no_work() -> None:
    trace = read(ascend())
    (device,) = trace.devices
    assert (trace.origin.vendor, device.name, device.index) == ("npu", "NPU", 0)
    assert device.streams.tolist() == [3, 4]
    assert set(trace.kind[named(trace, "aclnnMm_MatMul")].tolist()) == {Kind.KERNEL}
    assert set(trace.kind[named(trace, "MEMCPY_ASYNC")].tolist()) == {Kind.MEMCPY}
    assert not trace.works[named(trace, "EVENT_WAIT")].any()
    assert (device.busy[:, 1] - device.busy[:, 0]).sum() == 4 * 410_000
    assert trace.lane_label(int(trace.lane[named(trace, "MEMCPY_ASYNC")[0]])) == "NPU 0 stream 4"


@pytest.mark.parametrize("chunk_bytes", [300, 1 << 20])
def test_ascend_work_belongs_to_the_innermost_call_around_its_arrow(chunk_bytes: int) -> None:
    trace = read(ascend(), chunk_bytes=chunk_bytes)
    kernels = named(trace, "aclnnMm_MatMul")
    assert trace.links.call[kernels].tolist() == named(trace, "AscendCL@aclnnMm").tolist()
    # calls lie on the threads of the program
    call = named(trace, "AscendCL@aclnnMm")[0]
    assert trace.tree.parent[call] == named(trace, "Dequeue@aclnnMm")[0]
    assert trace.links.orphans[named(trace, "MEMCPY_ASYNC")].all()


def test_ascend_waits_for_the_host_that_calls_late() -> None:
    late = read(ascend(late_us=500.0)).devices[0].classes(np.array([[0, 1 << 62]]))[0]
    assert late.idle_host_late_ns > 1_500_000
    assert late.compute_ns == 4 * 400_000


def test_mtia_rows_are_kernels_copies_or_no_work() -> None:
    builder = TraceBuilder(vendor="cpu")
    for name in ("fc-dtype_Float", "dma_request", "event_wait", "event_record"):
        builder.event(name, "mtia_ccp_events", 10, 5, pid=9, tid=4, stream=1)
    trace = builder.build()
    assert trace.kind.tolist() == [Kind.KERNEL, Kind.MEMCPY, Kind.DEVICE_SYNC, Kind.DEVICE_SYNC]
    assert trace.devices[0].name == "MTIA"


def mtia() -> Trace:
    builder = TraceBuilder(vendor="cpu")
    for step in range(5):
        at = step * 1000
        builder.step(step, at, 1000).op("aten::mm", at + 10, 980)
        builder.event("runFunction", "mtia_runtime", at + 20, 5, correlation=step + 1)
        builder.event("fc", "mtia_ccp_events", at + 30, 990, pid=9, tid=4, correlation=step + 1)
    return builder.build()


def xpu(*, device: bool = True) -> Trace:
    builder = TraceBuilder(vendor="cpu")
    for step in range(5):
        builder.step(step, step * 1000, 1000).op("aten::mm", step * 1000 + 10, 980)
        builder.event("urEnqueueKernelLaunch", "xpu_runtime", step * 1000 + 20, 5, correlation=step + 1)
        if device:
            builder.kernel("gemm", step * 1000 + 30, 990, correlation=step + 1)
    return builder.build()


@pytest.mark.parametrize(
    ("recording", "first"),
    [
        (lambda: read(ascend()), "NPU is busy"),
        (mtia, "MTIA is busy"),
        (xpu, "XPU is busy"),
        (lambda: xpu(device=False), "No XPU rows"),
    ],
    ids=["ascend", "mtia", "xpu", "xpu without device"],
)
def test_what_is_not_judged_is_named_and_nothing_is_advised_for_cuda(recording: Any, first: str) -> None:
    trace = recording()
    result = tt.analyze(trace)
    assert not result.healthy
    (note,) = (note for note in result.notes if note.code == "other-device")
    assert note.level == "warn"
    assert trace.origin.accelerator in note.message
    assert "SYN001" in {entry.code for entry in result.not_checked}
    assert b"CUDA" not in result.to_json()
    assert result.verdict[0].startswith(first)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "busy"),
    [("ascend_npu_trace_view", 0.127), ("mtia_train_rank0_large", 0.577), ("mtia_inference_rank0", 0.93)],
)
def test_busy_time_of_the_shared_recordings(name: str, busy: float) -> None:
    result = tt.analyze(SHARED / f"{name}.json.gz")
    assert result.summary is not None
    (device,) = result.summary.devices
    classes = device.classes
    found = (classes.compute_ns + classes.comm_only_ns + classes.copy_only_ns) / classes.wall_ns
    assert found == pytest.approx(busy, abs=0.02)
    assert not result.healthy
    assert b"ProfilerActivity.CUDA" not in result.to_json()

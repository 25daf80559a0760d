"""XPlanes of JAX and TensorFlow in the columns of a trace, against a reading of our own that is slow and plain."""

from __future__ import annotations

import gzip
import io
import random
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builder import rows
from fuzz.fuzz_reader import check_reading
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import DATA
from tests.core.trace.formats.xspace import Event, Line, Read, chunk, number, plane, read, varint

from torchtriage import analyze
from torchtriage.core import intervals
from torchtriage.core.errors import TraceFormatError
from torchtriage.core.trace import Kind, Trace, read_trace
from torchtriage.core.trace.formats.protobuf import scan
from torchtriage.core.trace.recorders import XPLANE

FOLDER = DATA / "gpu2" / "xplane"
LARGE = 1_000_000
GPU = {"device_vendor": "Nvidia", "compute_cap_major": 9, "compute_cap_minor": 0, "core_count": 132}


def of(*planes: bytes) -> Trace:
    return read_trace(io.BytesIO(b"".join(planes)))


def gpu_space() -> bytes:
    """Return a step of a GPU: a call, its kernel, a copy, and lines that are derived from them."""
    kernel = {"correlation_id": 7, "kernel_details": "regs:38 shm:0 grid:160,2,1 block:1024,1,1"}
    copy = {"correlation_id": 8, "memcpy_details": "kind_src:pageable kind_dst:device size:4096 dest:0 async:1"}
    host = Line(
        "python",
        [
            Event("train", 0, 9_000_000, {"step_num": 3, "_r": 1}),
            Event("$train.py:12 step", 100_000, 8_000_000),
            Event("cuLaunchKernel", 1_000_000, 500_000, {"correlation_id": 7}),
            Event("cuMemcpyHtoDAsync_v2", 2_000_000, 500_000, {"correlation_id": 8}),
            Event("MemoryAllocation", 2_600_000, 0),
            Event("PjitFunction(step)", 2_700_000, 10_000),
        ],
        id=-5,
        at_ns=1000,
    )
    device = plane(
        "/device:GPU:0",
        Line("Stream #13(Compute)", [Event("gemm", 2_000_999, 1_000_001, kernel, referred=True)], id=13, at_ns=1000),
        Line("Stream #14(MemcpyH2D)", [Event("MemcpyH2D", 4_000_000, 2_000_000, copy)], id=14, at_ns=1000),
        Line("XLA Modules", [Event("jit_step", 2_000_000, 4_000_000)], id=0xDEADBEF1, at_ns=1000),
        stats=GPU,
    )
    return plane("/host:CPU", host) + device


def test_kernels_copies_calls_and_marks_of_a_gpu() -> None:
    trace = of(gpu_space())
    assert rows(trace, Kind.KERNEL) == [("gemm", 3000, 1001)]
    assert rows(trace, Kind.MEMCPY) == [("Memcpy HtoD (Pageable -> Device)", 5000, 2000)]
    assert rows(trace, Kind.RUNTIME) == [("cuLaunchKernel", 2000, 500), ("cuMemcpyHtoDAsync_v2", 3000, 500)]
    assert rows(trace, Kind.PYTHON) == [("train.py(12): step", 1100, 8000)]
    assert rows(trace, Kind.ANNOTATION) == [("ProfilerStep#3", 1000, 9000), ("PjitFunction(step)", 3700, 10)]
    assert rows(trace, Kind.INSTANT) == [("MemoryAllocation", 3600, 0)]
    assert rows(trace, Kind.GPU_ANNOTATION) == [("jit_step", 3000, 4000)]
    (kernel,) = np.flatnonzero(trace.kind == Kind.KERNEL)
    assert trace.details_of("grid", [kernel]) == [[160, 2, 1]]
    assert trace.details_of("block", [kernel]) == [[1024, 1, 1]]
    assert trace.name_of(trace.links.call[kernel]) == "cuLaunchKernel"
    (copy,) = np.flatnonzero(trace.kind == Kind.MEMCPY)
    assert trace.value[copy] == 4096
    assert trace.lanes[trace.lane[copy]][:] == ("stream", "0", "14", 0, 14)
    assert trace.lane_label(trace.lane[trace.links.call[copy]]) == "python"
    assert trace.origin.vendor == "cuda"
    assert trace.origin.capability == (9, 0)
    assert trace.window.basis == "1 StepTraceAnnotation mark"
    assert trace.args(0) == {}


def test_what_waits_for_the_gpu_is_not_known() -> None:
    replay = analyze(io.BytesIO(gpu_space())).replay
    assert replay.reason == "which calls wait for the GPU is not known"


def test_gzip_and_a_file(tmp_path: Path) -> None:
    path = tmp_path / "any.name"
    path.write_bytes(gzip.compress(gpu_space()))
    trace = read_trace(path, cache=True)
    assert len(trace) == 9
    again = read_trace(path, cache=True)
    assert again.report.recorder == XPLANE
    assert rows(again, Kind.KERNEL) == rows(trace, Kind.KERNEL)


def test_amd_and_several_devices() -> None:
    kernel = Line("Stream #1(Kernel)", [Event("k.kd", 0, 1000)])
    planes = [plane(f"/device:GPU:{i}", kernel, stats={"device_vendor": "AMD"}) for i in (0, 2)]
    trace = of(*planes)
    assert trace.origin.vendor == "rocm"
    assert sorted(device.index for device in trace.devices) == [0, 2]


def tpu_space(n_steps: int = 5, *, with_steps_line: bool = False) -> bytes:
    """Return a loop of a TPU: each program has a fusion, a wait for a copy, and an all-reduce in a loop."""
    starts = [(10 + 10 * i) * LARGE for i in range(n_steps)]
    run = {"queue_id": 0, "core_type": 0}
    programs = [Event("jit_f(12)", at, 8 * LARGE, {"_ct": 12, "_c": at - 999, **run, "run_id": at}) for at in starts]
    ops = [
        event
        for at in starts
        for event in (
            Event("%fusion.3 = bf16[8,128]{1,0} fusion(%p)", at, 3 * LARGE),
            Event("%copy-done.1 = f32[8] copy-done(%c)", at + 3 * LARGE, LARGE),
            Event("%while.1 = (s32[]) while(%t)", at + 4 * LARGE, 4 * LARGE),
            Event("%all-reduce.2 = f32[8] all-reduce(%x)", at + 5 * LARGE, 2 * LARGE),
        )
    ]
    of_names = {
        "%fusion.3 = bf16[8,128]{1,0} fusion(%p)": {"hlo_category": "convolution fusion", "flops": 5},
        "%copy-done.1 = f32[8] copy-done(%c)": {"hlo_category": "copy-done"},
        "%while.1 = (s32[]) while(%t)": {"hlo_category": "while"},
        "%all-reduce.2 = f32[8] all-reduce(%x)": {"hlo_category": "all-reduce"},
    }
    lines = [
        Line("XLA Modules", programs, id=2),
        Line("XLA Ops", ops, id=3),
        Line("Async XLA Ops", [Event("%copy-start.1 = f32[8] copy-start(%c)", starts[0], 50 * LARGE)], id=4),
    ]
    if with_steps_line:
        lines.append(Line("Steps", [Event(str(40 + i), at, 9 * LARGE) for i, at in enumerate(starts)], id=1))
    run |= {"_pt": 12, "device_ordinal": 0}
    calls = [Event("DoEnqueueProgram", at - LARGE, LARGE // 2, {**run, "_p": at - 999, "run_id": at}) for at in starts]
    device = plane("/device:TPU:0", *lines, stats={"device_type_string": "TPU v6 Lite"}, of_names=of_names)
    return device + plane("/host:CPU", Line("queue", calls, id=77))


def test_operations_programs_and_links_of_a_tpu() -> None:
    trace = of(tpu_space(1))
    assert rows(trace, Kind.KERNEL) == [("fusion.3", 10_000, 3000), ("all-reduce.2", 15_000, 2000)]
    assert rows(trace, Kind.MEMCPY) == [("copy-done.1", 13_000, 1000)]
    assert {name for name, *_ in rows(trace, Kind.GPU_ANNOTATION)} == {"jit_f(12)", "while.1", "copy-start.1"}
    assert rows(trace, Kind.RUNTIME) == [("DoEnqueueProgram", 9000, 500)]
    assert (trace.links.call[trace.works] >= 0).all()
    (device,) = trace.devices
    assert device.name == "TPU v6 Lite"
    assert intervals.length(device.busy) == 6000
    assert intervals.length(device.communication) == 2000
    assert intervals.length(device.copy_only) == 1000


def test_a_loop_without_rows_of_its_body_is_work() -> None:
    loop = "%while.1 = (s32[]) while(%t)"
    device = plane("/device:TPU:0", Line("XLA Ops", [Event(loop, 0, 5000)]), of_names={loop: {"hlo_category": "while"}})
    assert rows(of(device), Kind.KERNEL) == [("while.1", 0, 5)]


@pytest.mark.parametrize(("with_steps_line", "name"), [(False, "jit_f(12) 0"), (True, "step 40")])
def test_steps_of_a_tpu(with_steps_line: bool, name: str) -> None:
    steps = of(tpu_space(with_steps_line=with_steps_line)).steps
    assert len(steps) == 5
    assert steps.names[0] == name
    assert steps.start_ns.tolist() == [10_000, 20_000, 30_000, 40_000, 50_000]
    assert steps.end_ns[:-1].tolist() == steps.start_ns[1:].tolist()


def test_programs_stand_for_operations_that_were_not_recorded() -> None:
    trace = of(plane("/device:TPU:0", Line("XLA Modules", [Event("jit_f", 0, 5000)]), Line("XLA TraceMe", [])))
    assert rows(trace, Kind.KERNEL) == [("jit_f", 0, 5)]


def test_what_has_no_time_and_no_name() -> None:
    counted = chunk(4, number(1, 1) + number(5, 9))
    nameless = chunk(4, number(1, 99) + number(2, 1000) + number(3, 1000))
    far = chunk(4, number(1, 1) + number(2, -(1 << 63)) + number(3, 5))
    body = chunk(2, "/host:CPU") + chunk(3, chunk(2, "main") + counted + nameless + far)
    body += chunk(4, number(1, 1) + chunk(2, number(1, 1) + chunk(2, "a\0b")))
    trace = of(chunk(1, body))
    assert [trace.name_of(row) for row in range(len(trace))] == ["", "ab"]
    assert trace.report.n_no_time == 1


def test_the_doctor_says_what_an_xplane_cannot_show() -> None:
    notes = {note.code: note for note in analyze(io.BytesIO(gpu_space())).notes}
    assert "no operators of PyTorch" in notes["other-recorder"].message
    assert not any("torch.profiler" in note.fix or "activities=" in note.fix for note in notes.values())
    report = analyze(io.BytesIO(tpu_space()))
    assert {"SYN001", "LCH014", "HST020", "KRN025"} <= {item.code for item in report.not_checked}
    assert not report.crashes
    assert all("activities=" not in item.how_to_record for item in report.not_checked)


# -- against another reading -----------------------------------------------------------------------


def work_of(events: list[Read]) -> Mapping[str, list[Read]]:
    """Return what keeps each device busy: its streams, or a TPU's operations but for loops around others."""
    out: dict[str, list[Read]] = {}
    for event in events:
        is_work = event.line == "XLA Ops" if "TPU" in event.plane else event.line.startswith("Stream #")
        if event.plane.startswith("/device:") and is_work:
            out.setdefault(event.plane, []).append(event)
    return out


def busy_ns(events: list[Read]) -> int:
    total, until = 0, -1
    for event in sorted(events, key=lambda event: event.start_ns):
        total += max(event.end_ns - max(event.start_ns, until), 0)
        until = max(until, event.end_ns)
    return total


@pytest.mark.data
@pytest.mark.parametrize("name", ["AMD-AGI", "openxla", "tensorflow"])
def test_real_files_against_the_slow_reading(name: str) -> None:
    (path,) = FOLDER.glob(f"{name}*")
    expected = read(gzip.decompress(path.read_bytes()))
    trace = read_trace(path)
    assert trace.report.tier == "strict"
    work = work_of(expected)
    assert {f"{device.index}" for device in trace.devices} == {device.rpartition(":")[2] for device in work}
    for device in trace.devices:
        (events,) = (events for plane, events in work.items() if plane.endswith(f":{device.index}"))
        assert len(device.rows) == len(events)
        assert intervals.length(device.busy) == busy_ns(events)
        times = Counter((event.start_ns, event.end_ns) for event in events)
        rows = device.rows
        assert Counter(zip(trace.start_ns[rows].tolist(), trace.end_ns[rows].tolist(), strict=True)) == times
        longest: Counter[str] = Counter()
        for event in events:
            longest[event.name.partition(" = ")[0].removeprefix("%")] += event.end_ns - event.start_ns
        ours: Counter[str] = Counter()
        for row in rows.tolist():
            ours[trace.name_of(row).replace("Memcpy HtoD", "MemcpyH2D").replace("Memcpy DtoH", "MemcpyD2H")] += int(
                trace.dur_ns[row]
            )
        assert ours == longest
    host = [event for event in expected if event.plane.startswith("/host:")]
    on_host = np.flatnonzero(np.array([lane.kind == "thread" for lane in trace.lanes])[trace.lane])
    assert len(on_host) == len(host)
    assert int(trace.dur_ns[on_host].sum()) == sum(event.end_ns - event.start_ns for event in host)
    ids = Counter(
        event.stats["correlation_id"]
        for events in work.values()
        for event in events
        if event.stats.get("correlation_id")
    )
    assert Counter(trace.key[trace.works & (trace.origin.vendor != "tpu")].tolist()) == ids


@pytest.mark.data
def test_steps_of_the_real_tpu() -> None:
    (path,) = FOLDER.glob("openxla*")
    (program,) = (
        [
            event
            for event in read(gzip.decompress(path.read_bytes()))
            if event.plane == "/device:TPU:1" and event.name.startswith("jit_f(")
        ],
    )
    steps = read_trace(path).steps
    assert len(steps) == len(program) == 100
    assert steps.start_ns.tolist() == [event.start_ns for event in program]
    assert steps.n_steady == 99


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "busy", "n_steps"), [("AMD-AGI", 0.114, 0), ("openxla", 1.0, 100), ("tensorflow", 0.016, 0)]
)
def test_verdicts_on_real_files(name: str, busy: float, n_steps: int) -> None:
    """What was read from the rows beforehand: shares of time, no steps where none are marked, nothing false."""
    (path,) = FOLDER.glob(f"{name}*")
    report = analyze(path)
    assert not report.refused
    assert not report.crashes
    assert not report.findings
    assert report.summary is not None
    assert len(report.summary.steps) == n_steps
    (device, *_) = report.summary.devices
    classes = device.classes
    assert (classes.compute_ns + classes.comm_only_ns + classes.copy_only_ns) / classes.wall_ns == pytest.approx(
        busy, abs=2e-3
    )
    if name == "openxla":  # 98 % of the time the core waits for copies to and from the host's memory
        assert classes.copy_only_ns / classes.wall_ns == pytest.approx(0.97, abs=5e-3)


# -- damage ----------------------------------------------------------------------------------------

SPACES = (gpu_space(), tpu_space(3, with_steps_line=True))


@pytest.mark.parametrize("space", SPACES)
def test_every_cut_of_a_small_file(space: bytes) -> None:
    whole = [stop for *_, stop in scan(space, 0, len(space))]
    n_read = 0
    for size in range(len(space)):
        trace = check_reading(space[:size])
        if trace is not None:
            n_read += 1
            # a cut between two planes leaves whole ones; what is missing of others is no number of events
            assert bool(trace.report.loss) == (size not in whole), size
            assert trace.report.n_lost == 0
    assert n_read > len(space) / 2


@pytest.mark.data
@pytest.mark.parametrize("name", ["AMD-AGI", "tensorflow"])
def test_real_files_cut_anywhere(name: str) -> None:
    (path,) = FOLDER.glob(f"{name}*")
    raw = gzip.decompress(path.read_bytes())
    rng = random.Random(name)
    for _ in range(20):
        trace = check_reading(raw[: rng.randrange(len(raw))])
        assert trace is None or trace.report.loss


@settings(max_examples=300, deadline=2000)
@given(
    st.sampled_from(SPACES), st.lists(st.tuples(st.integers(0, 5000), st.binary(max_size=4)), min_size=1, max_size=6)
)
def test_mutated_files(space: bytes, changes: list[tuple[int, bytes]]) -> None:
    raw = bytearray(space)
    for at, new in changes:
        at %= len(raw)
        raw[at : at + len(new)] = new
    check_reading(bytes(raw))


def event_of(raw: bytes) -> bytes:
    return chunk(1, chunk(2, "/host:CPU") + chunk(3, chunk(2, "t") + raw))


HOSTILE: dict[str, Any] = {
    "an event of very many fields": event_of(chunk(4, number(1, 1) * 200_000)),
    "many empty events": event_of(chunk(4, b"") * 200_000),
    "many statistics": event_of(chunk(4, chunk(4, b"") * 200_000)),
    "many lines": chunk(1, chunk(2, "/host:CPU") + chunk(3, chunk(4, number(1, 1))) * 50_000),
    "many planes": chunk(1, chunk(2, "/device:GPU:0") + chunk(3, chunk(4, number(1, 1)))) * 30_000,
    "endless numbers": event_of(chunk(4, b"\x08" + b"\xff" * 200_000)),
    "a size beyond all": chunk(1, chunk(2, "/host:CPU") + b"\x1a" + varint(1 << 62) + bytes(1000)),
    "a device of a large number": chunk(
        1, chunk(2, "/device:GPU:" + "9" * 50) + chunk(3, chunk(2, "Stream #1") + chunk(4, number(1, 1)))
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_files_made_to_hurt(kind: str) -> None:
    began = time.process_time()
    check_reading(HOSTILE[kind])
    assert time.process_time() - began < 8


@pytest.mark.parametrize("raw", [chunk(1, chunk(2, "/host:CPU")), plane("/device:TPU:0", Line("XLA Ops", []))])
def test_without_events(raw: bytes) -> None:
    with pytest.raises(TraceFormatError) as caught:
        read_trace(io.BytesIO(raw))
    assert "expected profiler events" in str(caught.value)
    assert "jax.profiler" in str(caught.value)


def test_a_cut_file_says_so() -> None:
    space = gpu_space()
    trace = read_trace(io.BytesIO(space[: space.rindex(b"/device:GPU") + 400]))
    assert trace.report.tier == "salvaged"
    assert trace.report.loss == ("the file ends early: the rest is missing",)
    notes = {note.code: note for note in analyze(trace).notes}
    assert notes["salvaged"].level == "warn"
    assert notes["salvaged"].message == "damaged file: the file ends early: the rest is missing"
    assert "cut short" in notes["missing-kernels"].message


def test_a_plane_that_is_cut_before_its_names() -> None:
    events = chunk(4, number(1, 1) + number(2, 1000) + number(3, 1000)) * 5
    body = chunk(2, "/host:CPU") + chunk(3, chunk(2, "main") + events)
    names = chunk(4, number(1, 1) + chunk(2, number(1, 1) + chunk(2, "step")))
    notes = {note.code: note for note in analyze(io.BytesIO(chunk(1, body + names)[: -len(names)])).notes}
    assert "5 of 5 timed events have no name" in notes["no-name"].message
    assert "let the export finish" in notes["no-name"].fix

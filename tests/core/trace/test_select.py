"""A selected part: what is judged, what stays whole, and what is refused with what there is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.core import intervals
from torchtriage.core.errors import UsageError
from torchtriage.core.selection import Selection
from torchtriage.core.trace import Trace, read_trace
from torchtriage.core.trace.schema import Kind
from torchtriage.core.trace.select import select, step_numbers, steps_there
from torchtriage.diagnose.verdict.options import Options
from torchtriage.diagnose.verdict.verdict import diagnose


def loop(n: int = 6, **meta: Any) -> Trace:
    """Return steps 10, 11, ... of 100 us; each launches a kernel, of 30 us plus ten times its place."""
    builder = TraceBuilder(**meta)
    for i in range(n):
        at = 100.0 * i
        builder.step(10 + i, at, 100).annotation("forward", at + 10, 50).op("aten::mm", at + 10, 10)
        builder.launch(at + 12, 4, at + 20, 30 + 10 * i, "gemm")
    return builder.build()


def busy(trace: Trace) -> int:
    return intervals.length(intervals.intersect(trace.devices[0].busy, trace.steps.judged))


def names(trace: Trace) -> list[str]:
    steps = trace.steps
    return [name for name, one in zip(steps.names, steps.steady.tolist(), strict=True) if one]


def test_steps_by_their_numbers() -> None:
    trace = select(loop(), Selection(steps="12-13"))
    assert names(trace) == ["ProfilerStep#12", "ProfilerStep#13"]
    assert trace.steps.wall_ns == 100_000
    assert (trace.window.start_ns, trace.window.end_ns) == (200_000, 400_000)
    assert busy(trace) == 50_000 + 60_000


def test_the_first_step_is_judged_when_it_is_chosen() -> None:
    assert names(loop())[0] == "ProfilerStep#11"
    assert names(select(loop(), Selection(steps="10"))) == ["ProfilerStep#10"]


def test_numbers_beyond_64_bits_are_places() -> None:
    builder = TraceBuilder()
    for i in range(4):
        builder.step(10**20 + i, 100.0 * i, 100).op("aten::mm", 100.0 * i + 10, 10)
    assert names(select(builder.build(), Selection(steps="3"))) == [f"ProfilerStep#{10**20 + 3}"]


def test_a_window_is_its_own_denominator() -> None:
    trace = select(loop(), Selection(window="230us-330us"))
    assert trace.steps.wall_ns == trace.window.wall_ns == 100_000
    assert busy(trace) == 40_000 + 10_000
    classes = trace.devices[0].classes(np.array([trace.window[:2]]))[0]
    assert classes.wall_ns == 100_000


def test_a_window_holds_what_starts_in_it_on_host_and_device() -> None:
    builder = TraceBuilder().op("aten::mm", 0, 90).op("aten::add", 210, 20)
    for i in range(8):
        builder.launch(10.0 * i, 4, 100 + 50 * i, 50, f"gemm{i}")
    trace = select(builder.build(), Selection(window="200us-300us"))
    rows = np.flatnonzero(trace.works)
    judged = rows[trace.steps.in_steady(trace.steps.of_work(rows))]
    assert [trace.name_of(row) for row in judged.tolist()] == ["gemm2", "gemm3"]
    assert trace.table("ops")["name"].tolist() == ["aten::add"]


def test_an_occurrence_lasts_as_long_as_the_host_is_in_it() -> None:
    builder = TraceBuilder().op("aten::mm", 0, 20).annotation("update", 100, 100).annotation("update", 500, 100)
    builder.launch(5, 4, 20, 170, "backward")
    for at in (110, 510):
        builder.op("aten::add", at, 20)
        builder.launch(at + 2, 4, max(at + 4, 190), 20, "add")
    trace = select(builder.build(), Selection(annotation="update"))
    walls = np.stack([trace.steps.start_ns, trace.steps.end_ns], axis=1)[trace.steps.steady].tolist()
    # the device is still at work on what came before
    assert walls == [[100_000, 210_000], [500_000, 600_000]]


def test_each_occurrence_of_an_annotation() -> None:
    trace = select(loop(), Selection(annotation="forward"))
    assert trace.steps.n_steady == 6
    assert names(trace)[0] == "forward 0"
    walls = (trace.steps.end_ns - trace.steps.start_ns)[trace.steps.steady]
    # from the host's begin until the device has done what was enqueued in it
    assert walls.tolist() == [50_000, 50_000, 60_000, 70_000, 80_000, 90_000]
    assert busy(trace) == 30_000 + 40_000 + 50_000 + 60_000 + 70_000 + 80_000


def test_occurrences_are_numbered_alone_and_what_lies_between_is_in_none() -> None:
    builder = TraceBuilder()
    for i in range(3):
        builder.annotation("update", 100.0 * i, 40).op("aten::mm", 100.0 * i + 5, 10).op(
            "aten::add", 100.0 * i + 60, 10
        )
        builder.launch(100.0 * i + 6, 4, 100.0 * i + 10, 20, "gemm")
    trace = select(builder.build(), Selection(annotation="update"))
    assert len(trace.steps) == trace.steps.n_steady == 3
    assert trace.table("steps")["step"].tolist() == trace.table("kernels")["step"].tolist() == [0, 1, 2]
    assert set(trace.table("ops")["name"].tolist()) == {"update", "aten::mm", "cudaLaunchKernel"}


def test_an_annotation_inside_itself_counts_once() -> None:
    builder = TraceBuilder().annotation("f", 0, 100).annotation("f", 10, 50).op("aten::mm", 20, 10)
    trace = select(builder.annotation("f", 200, 100).op("aten::mm", 220, 10).build(), Selection(annotation="f"))
    assert trace.steps.n_steady == 2


def test_one_device() -> None:
    builder = TraceBuilder().op("aten::mm", 0, 90)
    builder.launch(10, 4, 20, 30, "a")
    for index in range(2):
        builder.kernel("b", 30 + 10 * index, 50, correlation=50 + index, device=1)
        builder.call("cudaLaunchKernel", 20 + index, 1, correlation=50 + index)
    whole = builder.build()
    assert [device.index for device in whole.devices] == [1, 0]
    trace = select(whole, Selection(device=0))
    assert [device.index for device in trace.devices] == [0]
    assert len(trace.table("kernels")) == 1
    assert [row for row in trace.table("ops")["name"] if row == "cudaLaunchKernel"] == ["cudaLaunchKernel"]
    assert len(select(whole, Selection(device=1)).table("kernels")) == 2


def test_one_device_leaves_out_processes_that_work_on_others() -> None:
    builder = TraceBuilder()
    for process, device in ((100, 0), (200, 1), (300, None)):
        builder.event(f"aten::of_{process}", "cpu_op", 0, 90, pid=process)
        builder.event("cudaMalloc", "cuda_runtime", 5, 2, pid=process, correlation=process)
        builder.event("frame", "python_function", 0, 90, pid=process)
        if device is not None:
            builder.event("cudaLaunchKernel", "cuda_runtime", 10, 4, pid=process, correlation=process + 1)
            builder.kernel("gemm", 20, 30, correlation=process + 1, device=device)
    trace = select(builder.build(), Selection(device=0))
    # a worker of the data loader works for any device
    assert sorted(name for name in trace.table("ops")["name"] if "of_" in name) == ["aten::of_100", "aten::of_300"]
    assert (np.flatnonzero(trace.kind == Kind.PYTHON).size, len(trace.table("ops"))) == (2, 5)


def test_one_device_has_its_own_memory_and_that_of_the_host() -> None:
    builder = TraceBuilder().op("aten::mm", 0, 90)
    builder.launch(10, 4, 20, 30, "a")
    for device in (-1, 0, 1):
        record = {"Bytes": 64, "Addr": 5, "Device Type": int(device >= 0), "Device Id": device}
        builder.event("[memory]", "cpu_instant_event", 30, 0, ph="i", **record)
    memory = select(builder.build(), Selection(device=0)).table("memory")
    assert memory["device"].tolist() == [None, 0]


@pytest.mark.data
def test_one_device_and_its_rank_are_as_many_launches(recordings: Path) -> None:
    whole = read_trace(recordings.parent / "nsys" / "h100_2gpu_1s.sqlite")
    found = [select(whole, one).is_kind(Kind.RUNTIME).sum() for one in (Selection(device=0), Selection(rank=0))]
    assert found[0] == found[1] > 0


def test_a_rank_is_what_the_recording_says() -> None:
    trace = loop(distributedInfo={"rank": 2, "world_size": 4})
    assert select(trace, Selection(rank=2)).origin.rank == 2
    with pytest.raises(UsageError, match="expected rank 1, found ranks 2"):
        select(trace, Selection(rank=1))


def test_tables_hold_the_selected_part() -> None:
    trace = select(loop(), Selection(steps="12-13"))
    assert trace.table("kernels")["dur_ns"].tolist() == [50_000, 60_000]
    assert trace.table("steps")["name"].tolist() == ["ProfilerStep#12", "ProfilerStep#13"]
    assert set(trace.table("ops")["step"].tolist()) == {2, 3}


def test_nothing_selected_is_the_trace_itself() -> None:
    trace = loop()
    assert select(trace, None) is trace
    assert select(trace, Selection()) is trace


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(steps="3"), "expected steps 3, found steps 10-15"),
        (Selection(steps="14-16"), "expected steps 14-16, found steps 10-15"),
        (Selection(window="1s-2s"), r"expected a window within it, found 1s-2s: the recording lasts 600 µs"),
        (Selection(annotation="forwards"), r"found 7 other names\n  try: one of 'forward'"),
        (Selection(device=1), "expected work on device 1, found work on 0"),
        (Selection(rank=0), "found recordings that name no rank"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(selection: Selection, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        select(loop(), selection)


def test_steps_where_there_are_none() -> None:
    builder = TraceBuilder().op("aten::mm", 0, 90)
    builder.launch(10, 4, 20, 30, "a")
    with pytest.raises(UsageError, match="found a recording without steps"):
        select(builder.build(), Selection(steps="1"))


def test_an_empty_window() -> None:
    builder = TraceBuilder().op("a", 0, 10).op("b", 20, 5).op("c", 900, 10)
    with pytest.raises(UsageError, match="expected work in the window 100us-200us, found none"):
        select(builder.build(), Selection(window="100us-200us"))


@pytest.mark.parametrize(
    "given",
    [
        {"steps": "5-3"},
        {"steps": "a"},
        {"steps": ""},
        {"window": "2s-1s"},
        {"window": "1-2"},
        {"window": "1s"},
        {"steps": "1", "window": "1s-2s"},
        {"annotation": "x", "steps": "1"},
        {"steps": "9" * 5000},
        {"window": f"0s-{'9' * 320}s"},
    ],
)
def test_what_cannot_be_read_is_refused_before_the_recording_is(given: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="expected"):
        Selection(**given)


# -- real recordings -----------------------------------------------------------------------------

STEPPED = (
    "cv/resnet50_v100_train_workers0.json.gz",
    "cv/resnet50_v100_train_workers4.json.gz",
    "cv/convnet_a100_ddp_rank0_of_2.json.gz",
    "cv/resnet18_mi300x_ddp_train.json.gz",
    "cpu/cpu_only_rank34.json.gz",
    "batch_sweep/particle_transformer_a100_bs32.json.gz",
)


@pytest.mark.data
@pytest.mark.parametrize("name", STEPPED)
def test_to_select_what_is_judged_anyway_changes_no_finding(recordings: Path, name: str) -> None:
    trace = read_trace(recordings / name)
    steady = np.flatnonzero(trace.steps.steady)
    if not len(steady) or (np.diff(steady) != 1).any():
        pytest.skip("its steady steps are no stretch")
    numbers = [int(trace.steps.names[step].rpartition("#")[2].split()[-1]) for step in steady[[0, -1]].tolist()]
    whole = diagnose(trace)
    chosen = diagnose(select(trace, Selection(steps="{}-{}".format(*numbers))))
    assert [(one.code, one.cost and one.cost.of_ms) for one in chosen.findings if one.cost] == [
        (one.code, one.cost and one.cost.of_ms) for one in whole.findings if one.cost
    ]
    for one, other in zip(chosen.findings, whole.findings, strict=False):
        if one.cost and other.cost:
            assert (one.cost.low_ms, one.cost.high_ms) == pytest.approx(
                (other.cost.low_ms, other.cost.high_ms), rel=0.02
            )


def headline(trace: Trace) -> str:
    """Return what the verdict says first, without the words for what was chosen."""
    assert trace.selection is not None
    return diagnose(trace).verdict[0].replace(trace.selection.label, "")


@pytest.mark.data
@pytest.mark.parametrize("name", STEPPED)
def test_a_window_and_the_same_steps_give_the_same_headline(recordings: Path, name: str) -> None:
    trace = read_trace(recordings / name)
    zero = int(trace.start_ns.min())
    for index in np.flatnonzero(trace.steps.steady)[:3].tolist():
        start, end = int(trace.steps.start_ns[index]) - zero, int(trace.steps.end_ns[index]) - zero
        window = select(trace, Selection(window=f"{start}ns-{end}ns"))
        assert window.steps.wall_ns == end - start
        step = select(trace, Selection(steps=str(step_numbers(trace.steps.names)[index])))
        assert headline(window) == headline(step)
        if trace.devices:
            share = busy(window) / (end - start)
            spans = intervals.clip(trace.devices[0].busy, start + zero, end + zero)
            assert share == pytest.approx(intervals.length(spans) / (end - start), abs=1e-9)
        # an edge in the middle of operators: nothing in it may cost more than the window
        middle = select(trace, Selection(window=f"{(start + end) // 2}ns-{end}ns"))
        result = diagnose(middle, Options(min_share=0.0))
        assert not result.crashes
        for finding in result.findings:
            assert finding.cost is None or finding.cost.high_ms <= middle.steps.wall_ns / 1e6 + 1e-6
        assert replace(result.trace, selection="") == diagnose(trace).trace


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([], "a recording without steps"),
        ([6], "step 6"),
        ([3, 4, 5], "steps 3-5"),
        ([10, 15, 20], "steps 10, 15, 20"),
        (range(0, 70, 7), "steps 0, 7, 14, 21, 28, 35, …, 63"),
    ],
)
def test_what_steps_there_are_is_said(numbers: Any, words: str) -> None:
    assert steps_there(np.array(list(numbers), np.int64)) == words

"""What is said about a recording: each note is quiet first, then loud."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from builder import TraceBuilder

from torchtriage.core.finding import Note
from torchtriage.core.selection import Selection
from torchtriage.core.trace import Trace, read_trace
from torchtriage.core.trace.select import select
from torchtriage.diagnose.verdict.doctor import examine
from torchtriage.diagnose.verdict.verdict import diagnose


def notes(trace: Trace) -> dict[str, Note]:
    return {note.code: note for note in examine(trace)}


def level(trace: Trace, code: str) -> str | None:
    note = notes(trace).get(code)
    return note.level if note else None


def good(n: int = 5, *, vendor: str = "cuda") -> TraceBuilder:
    """Return steps with shapes, stacks, nanoseconds, every launch with its work."""
    builder = TraceBuilder(vendor=vendor)
    for index in range(n):
        at = index * 1000.0
        builder.step(index + 3, at, 1000).frame("train.py(7): step", at + 1, 998)
        builder.op("aten::mm", at + 10.001, 980.5, dims=[[8, 8], [8, 8]], types=["float", "float"])
        if vendor != "cpu":
            for launch in range(5):
                builder.launch(at + 20 + launch * 10, 5, at + 100.001 + launch * 150, 140, "gemm")
    return builder


def test_a_good_recording_is_only_told_what_its_options_cost() -> None:
    assert list(notes(good().build())) == ["heavy-flags"]


def test_every_note_says_what_to_do_in_one_line() -> None:
    for trace in (good().build(), good(1, vendor="cpu").build(), TraceBuilder().op("a", 0, 1).build()):
        for note in examine(trace):
            assert "\n" not in note.message + note.fix
            assert not note.message.endswith(".")
            assert note.fix


def test_refusals_come_first() -> None:
    order = ["refuse", "warn", "info"]
    trace = TraceBuilder().step(0, 0, 10).call("cudaLaunchKernel", 1, 1).op("a", 2, 5).build()
    levels = [note.level for note in examine(trace)]
    assert levels == sorted(levels, key=order.index)
    assert levels[0] == "refuse"


# -- content -----------------------------------------------------------------------------------


def test_metadata_alone_is_empty() -> None:
    builder = TraceBuilder().event("process_name", "", 0, 0, ph="M", labels="python")
    assert level(builder.build(), "empty") == "refuse"


def test_three_events_can_be_judged_and_two_cannot() -> None:
    builder = TraceBuilder(vendor="cpu").op("a", 0, 10).op("b", 10, 10)
    assert level(builder.build(), "too-few-events") == "refuse"
    assert level(builder.op("c", 20, 10).build(), "too-few-events") is None


def test_a_trace_of_something_else_is_refused_by_its_categories() -> None:
    builder = TraceBuilder(vendor="cpu")
    for at in range(5):
        builder.event("PaintLayer", "devtools.timeline", at * 10, 9)
    note = notes(builder.build())["not-pytorch"]
    assert note.level == "refuse"
    assert "devtools.timeline" in note.message


def test_the_first_rocprofs_are_refused_by_name(tmp_path: Path) -> None:
    """As ``bin/sqlitedb.py`` of ROCm/rocprofiler 7fa8139 writes them; durations below 1 us become 1 there."""
    path = tmp_path / "results.json"
    calls = [
        f',{{"ph":"X","name":"hipLaunchKernel","ts":"{at}","dur":"1","pid":2,"tid":7,\n'
        '  "args":{\n    "BeginNs":"1000"\n  }\n}\n'
        for at in range(5)
    ]
    label = ',{"args":{"name":"CPU HIP API"},"ph":"M","pid":2,"name":"process_name","sort_index":0}\n'
    path.write_text('{ "traceEvents":[{}\n' + label + "".join(calls) + '],\n"otherData": {\n  }\n}')
    note = notes(read_trace(path))["not-pytorch"]
    assert note.level == "refuse"
    assert "rocprof (version 1 or 2)" in note.message
    assert "rocprofv3" in note.fix


# -- damage ------------------------------------------------------------------------------------


def read(data: bytes) -> Trace:
    return read_trace(BytesIO(data))


def test_whole_files_have_no_damage() -> None:
    assert not {"salvaged", "repaired"} & set(notes(read(good().json())))


def test_repaired_text_is_said_and_limits_nothing() -> None:
    data = good().json().replace(b'"dur": 980.5', b'"dur": NaN', 1)
    note = notes(read(data))["repaired"]
    assert note.level == "info"
    assert note.evidence["n_repaired"] >= 1


def test_lost_events_are_counted_and_warn() -> None:
    data = good().json()
    cut = data.index(b'"ts"', len(data) // 2)
    note = notes(read(data[:cut] + b'"broken": {{{ , ' + data[cut:]))["salvaged"]
    assert note.level == "warn"
    assert note.evidence["n_lost"] >= 1


def test_marks_without_a_partner_are_counted() -> None:
    assert level(good().build(), "unpaired") is None
    builder = good().event("open", "cpu_op", 5000, 0, ph="B")
    assert "1 begin or end" in notes(builder.build())["unpaired"].message


# -- rows of the device ------------------------------------------------------------------------


def test_cpu_only_is_a_fact_not_a_limit() -> None:
    assert level(good(vendor="cpu").build(), "no-gpu-rows") == "info"


def test_a_gpu_that_shows_no_row_is_a_limit() -> None:
    # a GPU is listed, and not one of its events is here
    builder = good(vendor="cpu")
    builder.meta["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100"}]
    note = notes(builder.build())["no-gpu-rows"]
    assert note.level == "warn"
    assert "ProfilerActivity.CUDA" in note.fix


def test_launches_without_any_gpu_row_are_refused() -> None:
    builder = good()
    builder.events = [event for event in builder.events if event["cat"] != "kernel"]
    trace = builder.build()
    assert level(trace, "missing-kernels") == "refuse"
    assert not diagnose(trace).healthy


def test_a_file_cut_before_its_gpu_rows_is_refused() -> None:
    # Kineto writes host rows first: a cut file may look like a recording of the CPU
    builder = good()
    host_first = sorted(builder.events, key=lambda event: event["cat"] in ("kernel", "cuda_runtime"))
    builder.events = host_first
    builder.meta.pop("deviceProperties")
    data = builder.json()
    result = diagnose(read(data[: data.index(b'"cuda_runtime"')]))
    assert "salvaged" in {note.code for note in result.notes}
    assert result.refused
    assert not result.healthy
    assert "cut short and holds no GPU row" in result.verdict[0]


def test_a_cut_file_that_lists_no_device_was_the_cpus() -> None:
    builder = good(vendor="cpu")
    builder.meta["deviceProperties"] = []
    trace = read(builder.json()[:-200])
    assert level(trace, "salvaged") == "warn"
    assert level(trace, "no-gpu-rows") == "info"
    assert not diagnose(trace).refused


def test_collectives_of_nccl_say_that_a_gpu_was_at_work() -> None:
    builder = good(vendor="cpu").annotation("nccl:all_reduce", 110, 2)
    assert level(builder.build(), "no-gpu-rows") == "warn"
    builder = good(vendor="cpu").annotation("gloo:all_reduce", 110, 2)
    assert level(builder.build(), "no-gpu-rows") == "info"


def test_gpu_work_outside_the_steps_alone_is_refused() -> None:
    builder = good(vendor="cpu")
    for index in range(5):
        builder.kernel("gemm", -9000 + index * 100, 50, correlation=0)
    trace = builder.build()
    assert level(trace, "missing-kernels") == "refuse"
    assert not diagnose(trace).healthy


def test_events_of_another_accelerator_are_not_judged() -> None:
    builder = good(vendor="cpu")
    for index in range(5):
        builder.event("fc", "mtia_ccp_events", index * 100, 50, pid=7, tid=1)
    assert level(builder.build(), "other-device") == "warn"
    assert not diagnose(builder.build()).healthy


def test_gpu_rows_without_operators_name_what_stays_unknown() -> None:
    builder = good()
    builder.events = [event for event in builder.events if event["cat"] != "cpu_op"]
    assert level(good().build(), "no-host-rows") is None
    assert level(builder.build(), "no-host-rows") == "warn"


# -- missing kernels (DQ-1) --------------------------------------------------------------------


def waiting(busy_us: float, *, stop: bool = False, vendor: str = "cuda") -> Trace:
    """Return steps with a wait of 20 ms over ``busy_us`` of GPU work."""
    builder = TraceBuilder(vendor=vendor)
    for index in range(3):
        at = index * 25_000
        builder.step(index, at, 25_000).op("aten::mm", at + 5, 30)
        builder.launch(at + 10, 5, at + 20, busy_us, "gemm")
        if not stop:
            builder.sync(at + 40, 20_000)
    if stop:
        builder.profiler_stop(75_000, 20_000)
    return builder.build()


def test_a_long_wait_over_a_busy_gpu_is_complete() -> None:
    assert level(waiting(20_000), "missing-kernels") is None


@pytest.mark.parametrize(("vendor", "said"), [("cuda", True), ("rocm", False)])
def test_advice_about_a_profiler_is_for_its_own_devices(vendor: str, said: bool) -> None:
    note = notes(waiting(100, vendor=vendor))["missing-kernels"]
    assert ("CUPTI" in note.fix) is said


def test_the_profilers_own_stop_says_nothing() -> None:
    assert level(waiting(100, stop=True), "missing-kernels") is None


def test_a_long_wait_over_an_idle_gpu_means_missing_rows() -> None:
    note = notes(waiting(100))["missing-kernels"]
    assert note.level == "warn"
    assert note.evidence["busy_share"] < 0.01
    assert note.evidence["wait_ns"] == 60_000_000
    assert "rows are missing, so" in note.message


def test_where_every_launch_has_its_row_none_is_missing() -> None:
    builder = TraceBuilder().step(0, 0, 25_000).op("aten::mm", 1, 30).sync(400, 20_000)
    for number in range(20):
        builder.launch(10 + 10 * number, 5, 20 + 10 * number, 5, "gemm")
    note = notes(builder.build())["missing-kernels"]
    assert "rows are missing" not in note.message
    assert "every launch has its row" in note.message
    assert "no other process" in note.fix


def test_among_ranks_the_gpu_may_wait_for_others() -> None:
    builder = TraceBuilder(distributedInfo={"rank": 0, "world_size": 8})
    builder.step(0, 0, 25_000).op("aten::mm", 1, 30).sync(40, 20_000)
    builder.launch(10, 5, 20, 100, "gemm")
    assert "or the GPU waits for other ranks" in notes(builder.build())["missing-kernels"].message


def test_a_file_of_communication_alone_was_filtered() -> None:
    def of(*names: str) -> TraceBuilder:
        builder = TraceBuilder(distributedInfo={"rank": 0, "world_size": 8})
        for index, name in enumerate(names):
            builder.kernel(name, 1_000 * index, 100, correlation=index + 1)
        return builder

    nccl = "ncclDevKernel_Generic(ncclDevComm*)"
    note = notes(of(nccl, nccl, nccl).build())["missing-kernels"]
    assert note.level == "warn"
    assert note.message.startswith("the file shows only communication")
    verdict = diagnose(of(nccl, nccl, nccl).build()).verdict[0]
    assert "is unknown in one window of 2.10 ms: the file shows only communication" in verdict
    assert level(of(nccl, "gemm", nccl).build(), "missing-kernels") is None
    assert level(of(nccl, nccl, nccl).op("aten::mm", 1, 30).build(), "missing-kernels") is None


# -- orphans -----------------------------------------------------------------------------------


def orphaned(n: int) -> Trace:
    builder = good()
    for index in range(n):
        builder.kernel("gemm", 900 + index * 10, 1, correlation=10_000 + index)
    return builder.build()


def test_no_orphans_no_note() -> None:
    assert level(orphaned(0), "orphans") is None


def test_few_orphans_are_counted() -> None:
    note = notes(orphaned(2))["orphans"]
    assert note.level == "info"
    assert note.evidence["n_orphans"] == 2
    assert note.message.startswith("2 of 27 pieces of GPU work")


def test_work_that_runs_between_linked_work_was_not_enqueued_before() -> None:
    builder = good()
    builder.kernel("gemm", 1, 1, correlation=10_000)
    first = notes(builder.build())["orphans"]
    assert "they were enqueued before it" in first.message
    assert first.fix
    builder = good()
    for index in range(4):  # as an engine's own calls are
        builder.kernel("gemm", 1_500 + index * 10, 1, correlation=10_000 + index)
    later = notes(builder.build())["orphans"]
    assert "the profiler does not see what launches them" in later.message
    assert later.message.endswith("so no code is held responsible for them, nor for idle time just before them")
    assert not later.fix


def test_many_orphans_warn() -> None:
    note = notes(orphaned(15))["orphans"]
    assert (note.level, note.evidence["n_orphans"], note.evidence["share"]) == ("warn", 15, 0.375)


# -- cut windows -------------------------------------------------------------------------------


def test_launches_without_work_mean_that_the_window_was_cut() -> None:
    builder = good()
    builder.call("cudaLaunchKernel", 2020, 1)
    assert level(builder.build(), "cut-window") is None  # 1 of 26
    builder.call("cudaLaunchKernel", 2022, 1)
    assert level(builder.build(), "cut-window") == "warn"


@pytest.mark.parametrize(("end", "expected"), [(4_850, None), (5_000, "warn")])
def test_the_last_launch_without_work_hides_what_the_device_did_at_the_end(end: float, expected: str | None) -> None:
    builder = good()
    builder.events = [event for event in builder.events if event["ts"] + event.get("dur", 0) <= end]
    builder.call("cudaLaunchKernel", end - 5, 1)
    assert level(builder.build(), "cut-window") == expected


def ending_early() -> TraceBuilder:
    builder = good()
    builder.events = [event for event in builder.events if event["cat"] != "kernel" or event["ts"] < 3_400]
    return builder


def test_what_comes_before_the_end_of_the_device_rows_is_judged_without_steps() -> None:
    builder = ending_early()
    assert level(builder.build(), "cut-window") == "warn"
    assert level(builder.build(), "early-end") is None
    builder.events = [event for event in builder.events if not event["name"].startswith("ProfilerStep")]
    trace = builder.build()
    note = notes(trace)["early-end"]
    assert note.message == (
        "8 of 25 launches, those from 3.04 ms on, have no GPU work in the file: what comes after its last GPU row, at"
        " 3.39 ms, is not judged"
    )
    result = diagnose(trace)
    assert result.summary is not None
    assert result.summary.devices[0].classes is not None
    assert not result.healthy
    assert level(trace, "cut-window") is None


def test_a_part_after_the_device_rows_is_not_known() -> None:
    trace = select(ending_early().build(), Selection(window="1ms-5ms"))
    assert level(trace, "cut-window") == "warn"


def test_captured_launches_are_not_lost() -> None:
    builder = good().call("cudaStreamBeginCapture", 4900, 1)
    for index in range(10):
        builder.call("cudaLaunchKernel", 4910 + index * 2, 1)
    trace = builder.build()
    assert level(trace, "cut-window") is None
    assert level(trace, "graph-capture") == "info"


@pytest.mark.parametrize(("start", "expected"), [(600, None), (3000, "warn")])
def test_work_that_waits_over_an_idle_device_was_not_first(start: float, expected: str | None) -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 100).op("aten::mm", 100, 3900)
    builder.launch(10, 5, start, 700, "gemm")
    trace = builder.build()
    assert level(trace, "backlog") == expected
    # busy then, though with what is not in the file
    assert trace.window.start_ns == (3_000_000 if expected else 0)
    assert trace.window.host_start_ns == 0


def test_another_stream_may_be_the_one_that_waited() -> None:
    builder = TraceBuilder().op("aten::mm", 0, 100).op("aten::mm", 100, 6900)
    builder.launch(10, 5, 20, 4, "first", stream=8)
    builder.launch(30, 5, 5_000, 1_900, "gemm", stream=7)
    trace = builder.build()
    assert level(trace, "backlog") == "warn"
    assert trace.window[:2] == (5_000_000, 7_000_000)


def test_work_that_waits_for_recorded_work_ends_no_backlog() -> None:
    builder = TraceBuilder().op("aten::mm", 0, 100).op("aten::mm", 100, 6900)
    builder.launch(10, 5, 20, 4_970, "long", stream=8)
    builder.launch(30, 5, 5_000, 1_900, "gemm", stream=7)
    assert level(builder.build(), "backlog") is None


@pytest.mark.parametrize("text", [slice(0, -400), slice(None)])
def test_a_file_cut_short_does_not_show_how_busy_the_gpu_was(text: slice) -> None:
    builder = good()
    found = {note.code for note in examine(read_trace(BytesIO(builder.json()[text])))}
    assert ("missing-kernels" in found) == (text.stop is not None)


def test_a_slice_with_nothing_in_it_is_refused() -> None:
    builder = TraceBuilder(vendor="cpu").step(1, 0, 1_000_000)
    for at in range(5):
        builder.op("aten::mm", at * 10, 9)
    trace = builder.build()
    assert level(trace, "cut-window") == "refuse"
    assert not diagnose(trace).healthy
    # the same rows in a step of their size can be judged
    builder.events[0]["dur"] = 60
    assert level(builder.build(), "cut-window") is None


def test_little_in_a_window_is_no_slice_where_the_host_has_no_rows() -> None:
    builder = TraceBuilder()
    for at in range(3):
        builder.launch(at * 1_000_000, 10, at * 1_000_000 + 20, 40, "gemm")
    assert level(builder.build(), "cut-window") is None
    builder.annotation("train", 0, 2_000_100)  # what a slice may keep
    assert level(builder.build(), "cut-window") == "refuse"


# -- start-up ----------------------------------------------------------------------------------


def starting(dur: float, step_us: float = 100_000, name: str = "cudaMalloc") -> Trace:
    builder = TraceBuilder()
    for index in range(4):
        at = index * step_us
        builder.step(index, at, step_us).op("aten::mm", at + 1, step_us - 2)
        builder.launch(at + 10, 5, at + 20, 100, "gemm")
        if index == 0:
            builder.call(name, at + 200, dur)
    return builder.build()


def test_an_allocation_of_ordinary_length_is_no_start_up() -> None:
    assert level(starting(300), "cold-start") is None


def test_start_up_that_is_a_small_part_of_the_window_is_left_alone() -> None:
    assert level(starting(30_000), "cold-start") is None  # 7.5 % of 400 ms


def test_first_use_inside_the_window_warns_with_its_share() -> None:
    note = notes(starting(80_000))["cold-start"]
    assert note.level == "warn"
    assert note.evidence == {"cold_ns": 80_000_000, "call": "cudaMalloc"}


def test_a_launch_that_loads_its_module_is_first_use() -> None:
    assert level(starting(90, 1_000, "hipLaunchKernel"), "cold-start") is None
    assert level(starting(6_500, 8_000, "hipLaunchKernel"), "cold-start") == "warn"


def compiling(dur: float) -> Trace:
    builder = good(vendor="cpu")
    builder.annotation("_compile.compile_inner", 20, dur)
    return builder.build()


def test_a_guard_check_is_no_compilation() -> None:
    assert level(compiling(100), "compiling") is None


def test_compilation_inside_the_window_warns() -> None:
    assert notes(compiling(900))["compiling"].evidence == {"compile_ns": 900_000}


# -- steps, inputs, clock ----------------------------------------------------------------------


def test_steps() -> None:
    assert not {"no-steps", "one-step"} & set(notes(good(2).build()))
    assert level(good(1).build(), "one-step") == "info"
    builder = good()
    builder.events = [event for event in builder.events if event["cat"] != "user_annotation"]
    assert level(builder.build(), "no-steps") == "info"


def test_shapes_and_stacks() -> None:
    plain = TraceBuilder(vendor="cpu").step(0, 0, 50)
    for at in range(5):
        plain.op("aten::mm", at * 10, 9)
    assert {"no-shapes", "no-stacks"} <= set(notes(plain.build()))
    assert not {"no-shapes", "no-stacks"} & set(notes(good().build()))
    # both at once cost host time, and the doctor says how much
    assert notes(good().build())["heavy-flags"].evidence == {"profiler_inflation": 2.2}
    assert "heavy-flags" not in notes(plain.build())


def loop(n: int = 5, *, first: int = 4, wall: float = 1_000, **meta: Any) -> TraceBuilder:
    builder = TraceBuilder(**meta)
    for index in range(n):
        builder.step(first + index, wall * index, wall).op("aten::mm", wall * index + 1, wall / 2 + 0.5)
    return builder


def heavy(builder: TraceBuilder) -> dict[str, Any]:
    note = notes(builder.build()).get("heavy-recording")
    return {"level": note.level, **note.evidence} if note else {}


@pytest.mark.parametrize("flag", ["record_shapes", "with_stack", "profile_memory"])
def test_one_option_on_a_short_schedule_is_not_heavy(flag: str) -> None:
    assert not heavy(loop())
    assert not heavy(loop(**{flag: 1}))
    assert not heavy(loop(1, first=0))


def test_a_little_of_the_profilers_own_work_is_not_heavy_nor_is_any_outside_the_judged_steps() -> None:
    assert not heavy(loop().event("Buffer Flush", "overhead", 1_500, 30, pid=-1, tid=0))
    assert not heavy(loop().event("Activity Buffer Request", "overhead", 100, 800, pid=-1, tid=0))


def test_monitoring_now_and_then_is_not_heavy() -> None:
    assert not heavy(loop().frame("torch/cuda/memory.py(200): memory_stats", 3_600, 50))


def test_what_makes_a_recording_heavier_than_needed() -> None:
    assert heavy(loop(21))["n_recorded_steps"] == 21
    assert heavy(loop(first=0))["first_recorded_step"] == 0
    assert heavy(loop(wall=13_000_000))["window_ms"] == 65_000
    assert "a window of 65.0 s" in notes(loop(wall=13_000_000).build())["heavy-recording"].message
    assert heavy(loop(record_shapes=1, with_stack=1, profile_memory=1)) == {"level": "info", "profiler_inflation": 2.2}
    own = loop().event("Buffer Flush", "overhead", 1_500, 200, pid=-1, tid=0)
    assert heavy(own)["profiler_overhead_ms_per_step"] == 0.05  # 0.2 ms over four steady steps
    assert heavy(own)["level"] == "warn"
    monitored = loop()
    for index in range(5):
        monitored.frame("torch/cuda/memory.py(200): memory_stats", 1_000 * index + 600, 50)
    assert heavy(monitored)["n_monitor_calls_per_step"] == 1


def test_a_clock_of_whole_microseconds_is_said() -> None:
    builder = TraceBuilder(vendor="cpu").step(0, 0, 100)
    for at in range(9):
        builder.op("aten::mm", at * 10, 0 if at < 3 else 9)
    note = notes(builder.build())["coarse-clock"]
    assert note.evidence == {"zero_duration_share": 0.3}
    builder.op("aten::mm", 95.5, 1)
    assert "coarse-clock" not in notes(builder.build())


def test_a_device_clock_that_is_ahead_is_said() -> None:
    builder = TraceBuilder().step(0, 0, 5_000)
    for index in range(20):
        builder.launch(200 * index + 100, 8, 200 * index + 70, 50)
    assert notes(builder.build())["early-clock"].evidence == {"early_ns": 30_000, "device": 0}
    builder = TraceBuilder().step(0, 0, 5_000)
    for index in range(20):
        builder.launch(200 * index + 100, 8, 200 * index + 104, 50)
    assert "early-clock" not in notes(builder.build())


def test_a_window_that_the_loader_fills_is_no_slice() -> None:
    def steps(loader: str) -> TraceBuilder:
        builder = TraceBuilder()
        for index in range(3):
            at = index * 100_000
            builder.step(index, at, 100_000).annotation(loader, at + 10, 99_000)
            builder.op("aten::mm", at + 99_100, 20)
            builder.launch(at + 99_105, 5, at + 99_150, 40, "gemm")
        return builder

    assert level(steps("some part of the loop").build(), "cut-window") == "refuse"
    loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    assert level(steps(loader).build(), "cut-window") is None


def test_ranks_pasted_into_one_file_are_refused() -> None:
    first, other = TraceBuilder(), TraceBuilder()
    for index in range(5):
        for builder in (first, other):
            at = index * 1000
            builder.step(index, at, 1000).op("aten::mm", at + 10, 900)
            builder.launch(at + 20, 5, at + 100, 400, "gemm")
    assert "merged" not in notes(first.build())
    for event in other.events:
        if event["cat"] != "kernel":
            event["pid"] = 4711
    first.events += other.events
    note = notes(first.build())["merged"]
    assert note.level == "refuse"
    assert note.evidence == {"n_shared": 5, "n_processes": 2}


def test_events_without_a_duration_are_told() -> None:
    builder = loop()
    assert "no-duration" not in notes(builder.build())
    del builder.events[1]["dur"]
    builder.events[3]["dur"] = -5
    note = notes(builder.build())["no-duration"]
    assert note.level == "warn"
    assert note.evidence == {"n_no_dur": 1, "n_negative_dur": 1}


def test_events_without_a_name_are_told() -> None:
    builder = loop()
    del builder.events[1]["name"]
    note = notes(builder.build())["no-name"]
    assert note.evidence == {"n_nameless": 1}


@pytest.mark.parametrize("ts", [None, "soon", 1e18, -9e15, [1], float("nan")])
def test_events_without_a_time_are_told_and_left_out(ts: object) -> None:
    builder = TraceBuilder()
    for index in range(5):
        builder.step(index, index * 1000 + 5e9, 1000).op("aten::mm", index * 1000 + 5e9 + 10, 900)
    window = builder.build().window
    builder.op("aten::add", 0, 10)
    builder.events[-1]["ts"] = ts
    trace = builder.build()
    assert trace.window == window
    note = notes(trace)["no-time"]
    assert note.level == "warn"
    assert note.evidence == {"n_no_time": 1}

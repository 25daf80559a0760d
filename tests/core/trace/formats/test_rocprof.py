"""rocprofv3's JSON and CSV in the columns of a trace: the same rows from both, and a real file against plain JSON."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builder import rows
from core.trace.formats.rocprof_files import Run, csv_of, json_of, process_of, write_csv
from fuzz.fuzz_reader import check_reading
from tests.conftest import DATA

from torchtriage import analyze
from torchtriage.api.traces import find_traces
from torchtriage.core import intervals
from torchtriage.core.errors import TraceFormatError, TriageError
from torchtriage.core.folders import once_each
from torchtriage.core.trace import Kind, Trace, read_trace

GEMM = "void gemm<float, 4>(float*, float const*)"
MM = "aten::mm, seq = 12, op_id = 5, sizes = [[2, 3], [3, 4]]"
RUN = Run(
    kernels=[
        (GEMM, 3, 1, 5, 51, 2000, 2500, (1000, 4, 1), (256, 1, 1)),
        ("copy", 2, 2, 7, 55, 2100, 2200, (64, 1, 1), (64, 1, 1)),
        ("replayed", 3, 1, 5, 51, 2500, 2600, (64, 1, 1), (64, 1, 1)),
    ],
    copies=[
        ("MEMORY_COPY_HOST_TO_DEVICE", 0, 3, 5, 53, 3000, 3200, 4096),
        ("MEMORY_COPY_DEVICE_TO_HOST", 3, 1, 5, 54, 3300, 3400, 512),
    ],
    calls=[
        ("HIP_RUNTIME_API", "hipLaunchKernel", 4243, 51, 1000, 1100, ""),
        ("HIP_RUNTIME_API", "hipMemcpyAsync", 4243, 53, 1200, 1300, ""),
        ("HIP_RUNTIME_API", "hipMemcpyAsync", 4243, 54, 1400, 1450, ""),
        ("MARKER_CORE_RANGE_API", "roctxThreadRangeA", 4243, 60, 500, 9000, "ProfilerStep#4"),
        ("MARKER_CORE_RANGE_API", "roctxThreadRangeA", 4243, 61, 950, 1150, MM),
        ("MARKER_CORE_RANGE_API", "roctxMarkA", 4243, 62, 1500, 1500, 'epoch "1", begins'),
        ("MARKER_CONTROL_API", "roctxProfilerResume", 4243, 63, 10, 20, ""),
        ("RCCL_API", "ncclAllReduce", 4243, 64, 1600, 1700, ""),
    ],
    allocations=[(3, 4096, 70, 100, 200), (3, 4096, 71, 100, 200)],
)


@pytest.fixture(params=["json", "csv"])
def recording(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "csv":
        return write_csv(tmp_path / "host", RUN)["kernel_trace.csv"]
    path = tmp_path / "4242_results.json"
    path.write_text(json_of(RUN))
    return path


def call_of(trace: Trace, kind: Kind) -> list[tuple[str, int]]:
    calls = trace.links.call[trace.kind == kind].tolist()
    return [(trace.name_of(row), int(trace.start_ns[row])) if row >= 0 else ("", -1) for row in calls]


def refusal(path: Any) -> str:
    with pytest.raises(TraceFormatError) as caught:
        read_trace(path)
    message = str(caught.value)
    assert "\n" not in message.split("\n  ")[0]
    return message


def test_both_formats_say_the_same(recording: Path) -> None:
    trace = read_trace(recording)
    assert rows(trace, Kind.KERNEL) == [(GEMM, 2000, 500), ("copy", 2100, 100), ("replayed", 2500, 100)]
    assert rows(trace, Kind.MEMCPY) == [("Memcpy HtoD", 3000, 200), ("Memcpy DtoH", 3300, 100)]
    assert rows(trace, Kind.RUNTIME) == [
        ("hipLaunchKernel", 1000, 100),
        ("hipMemcpyAsync", 1200, 100),
        ("hipMemcpyAsync", 1400, 50),
        ("ncclAllReduce", 1600, 100),
    ]
    assert rows(trace, Kind.OP) == [("aten::mm", 950, 200)]
    assert rows(trace, Kind.ANNOTATION) == [("ProfilerStep#4", 500, 8500)]
    assert rows(trace, Kind.INSTANT) == [('epoch "1", begins', 1500, 0)]
    assert rows(trace, Kind.OVERHEAD) == [("roctxProfilerResume", 10, 10)]
    assert call_of(trace, Kind.KERNEL) == [("hipLaunchKernel", 1000), ("", -1), ("hipLaunchKernel", 1000)]
    assert call_of(trace, Kind.MEMCPY) == [("hipMemcpyAsync", 1200), ("hipMemcpyAsync", 1400)]
    (gemm, *_) = np.flatnonzero(trace.kind == Kind.KERNEL)
    assert trace.details_of("grid", [gemm]) == [[4, 4, 1]]
    assert trace.details_of("block", [gemm]) == [[256, 1, 1]]
    assert trace.name_of(trace.links.op[gemm]) == "aten::mm"
    assert trace.details_of("dims", np.flatnonzero(trace.kind == Kind.OP)) == [[[2, 3], [3, 4]]]
    assert {(lane.pid, lane.tid) for lane in trace.lanes if lane.kind == "thread"} == {("4242", "4243")}
    streams = {(lane.device, lane.tid) for lane in trace.lanes if lane.kind == "stream"}
    assert streams == {(1, "5"), (0, "7")}
    assert sorted((device.index, device.name) for device in trace.devices) == [
        (0, "AMD Instinct MI300X"),
        (1, "AMD Instinct MI300X"),
    ]
    assert trace.origin.vendor == "rocm"
    assert trace.steps.names == ("ProfilerStep#4",)
    assert trace.meta["unread"] == {"allocations of memory": 2}
    assert trace.report.tier == "strict"
    assert trace.args(0) == {}


def test_what_the_doctor_says(recording: Path) -> None:
    report = analyze(recording)
    assert not report.crashes
    (note,) = (note for note in report.notes if note.code == "other-recorder")
    assert "rocprofv3" in note.message
    assert "2 allocations of memory" in note.message
    assert ("no sizes of copies" in note.message) == (recording.suffix == ".csv")
    assert not any("activities=" in item.how_to_record for item in report.not_checked)
    assert not any("activities=" in note.fix for note in report.notes)


def test_bytes_of_copies_are_in_json_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json_of(RUN))
    trace = read_trace(path)
    assert trace.value[trace.kind == Kind.MEMCPY].tolist() == [4096, 512]
    trace = read_trace(write_csv(tmp_path, RUN)["memory_copy_trace.csv"])
    assert trace.value[trace.kind == Kind.MEMCPY].tolist() == [-1, -1]


def test_processes_in_one_json_do_not_share_ids() -> None:
    trace = read_trace(io.BytesIO(json_of(RUN, Run(**{**vars(RUN), "pid": 77})).encode()))
    assert len(np.unique(trace.key[trace.works])) == 2 * 4
    assert {lane.pid for lane in trace.lanes if lane.kind == "thread"} == {"4242", "77"}


def test_processes_in_one_csv_do_not_share_ids(tmp_path: Path) -> None:
    """Rows of rocpd2csv begin with the process's Guid."""
    other = csv_of(Run(**{**vars(RUN), "pid": 77}))
    for name, text in csv_of(RUN).items():
        (head, *own), others = text.splitlines(), other[name].splitlines()[1:]
        rows = [f'"Guid",{head}', *(f'"a-1",{row}' for row in own), *(f'"b-2",{row}' for row in others), ""]
        (tmp_path / f"out_{name}").write_text("\n".join(rows))
    trace = read_trace(tmp_path / "out_kernel_trace.csv")
    alone = read_trace(write_csv(tmp_path, RUN)["kernel_trace.csv"])
    assert len(np.unique(trace.key[trace.works])) == 2 * 4
    assert {lane.pid for lane in trace.lanes if lane.kind == "thread"} == {"4242", "77"}
    assert [device.index for device in trace.devices] == [device.index for device in alone.devices]
    assert trace.meta["deviceProperties"] == alone.meta["deviceProperties"]


@pytest.mark.parametrize("given", list(csv_of(RUN)))
def test_any_table_brings_the_others(given: str, tmp_path: Path) -> None:
    paths = write_csv(tmp_path, RUN)
    write_csv(tmp_path, Run(pid=7, kernels=[("other", 3, 1, 1, 1, 1, 2, (1, 1, 1), (1, 1, 1))]))
    trace = read_trace(paths[given])
    assert len(trace) == len(read_trace(paths["kernel_trace.csv"])) == 13
    assert trace.report.size_bytes == sum(path.stat().st_size for path in paths.values())
    assert trace.report.path == str(paths[given])


def test_a_folder_has_each_recording_once(tmp_path: Path) -> None:
    write_csv(tmp_path / "host", RUN)
    assert [Path(path).name for path in find_traces([tmp_path])] == ["4242_kernel_trace.csv"]
    names = ["1_results.json.gz", "1_results.db", "1_kernel_trace.csv", "2_hip_api_trace.csv", "2_kernel_trace.csv"]
    names += ["2_kernel_trace.csv.gz", "a/1_kernel_trace.csv", "results.json", "other_results.json"]
    left = ["1_results.db", "2_kernel_trace.csv", "2_kernel_trace.csv.gz", "a/1_kernel_trace.csv"]
    assert once_each(names) == [*left, "results.json", "other_results.json"]


def test_packed_tables_and_a_pipe(tmp_path: Path) -> None:
    paths = write_csv(tmp_path, RUN)
    n = len(read_trace(paths["kernel_trace.csv"]))
    for name in ("kernel_trace.csv", "hip_api_trace.csv"):
        packed = Path(f"{paths[name]}.gz")
        packed.write_bytes(gzip.compress(paths[name].read_bytes()))
        paths[name].unlink()
        paths[name] = packed
    assert len(read_trace(paths["kernel_trace.csv"])) == n
    alone = read_trace(io.BytesIO(paths["kernel_trace.csv"].read_bytes()))
    assert len(alone) == 3
    assert read_trace(io.BytesIO(gzip.compress(json_of(RUN).encode()))).report.n_events == n


@pytest.mark.parametrize("missing", [name for name in csv_of(RUN) if name != "kernel_trace.csv"])
def test_a_table_that_is_missing(missing: str, tmp_path: Path) -> None:
    paths = write_csv(tmp_path, RUN)
    paths[missing].unlink()
    report = analyze(paths["kernel_trace.csv"])
    assert not report.crashes
    trace = read_trace(paths["kernel_trace.csv"])
    assert rows(trace, Kind.KERNEL)[0] == (GEMM, 2000, 500)
    if missing == "agent_info.csv":
        assert sorted(device.index for device in trace.devices) == [2, 3]  # as the table's agents are numbered
    if missing == "hip_api_trace.csv":
        assert trace.links.orphans[trace.works].all()


def test_a_changed_table_beside_it_is_seen_with_a_cache(tmp_path: Path) -> None:
    paths = write_csv(tmp_path, RUN)
    assert len(read_trace(paths["kernel_trace.csv"], cache=True)) == 13
    paths["rccl_api_trace.csv"].unlink()
    assert len(read_trace(paths["kernel_trace.csv"], cache=True)) == 12


# as the documentation of ROCm shows them (MIT; ROCm/rocm-systems 1b1610f and rocprofiler-sdk 8ab1ed7, source/docs/data,
# amd/HPCTrainingExamples aaaa72d for the last)
TODAY = """\
"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",\
"Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count",\
"Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"
"KERNEL_DISPATCH","Agent 4",1,1,834304,1,10,"void addition_kernel<float>(float*, float const*, float const*, int, int)"\
,1,1550151853029637,1550151853042437,0,0,8,0,16,64,1,1,1024,1024,1
"KERNEL_DISPATCH","Agent 4",1,1,834304,4,11,"divide_kernel(float*, float const*, float const*, int, int)",4,\
1550151853064037,1550151853075237,0,0,12,4,16,64,1,1,1024,1024,1
"""
OLDER = """\
"Kind","Agent_Id","Queue_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id","Start_Timestamp",\
"End_Timestamp","Private_Segment_Size","Group_Segment_Size","Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z",\
"Grid_Size_X","Grid_Size_Y","Grid_Size_Z"
"KERNEL_DISPATCH",4,1,834304,1,10,"void addition_kernel<float>(float*, float const*, float const*, int, int)",1,\
1550151853029637,1550151853042437,0,0,64,1,1,1024,1024,1
"KERNEL_DISPATCH",4,1,834304,4,11,"divide_kernel(float*, float const*, float const*, int, int)",4,1550151853064037,\
1550151853075237,0,0,64,1,1,1024,1024,1
"""
CONVERTED = "\n".join(
    f'"{head}",{line}'
    for head, line in zip(("Guid", "0-1", "0-1"), TODAY.replace("LDS_Block", "Lds_Block").splitlines(), strict=True)
)
COPIES = """\
"Kind","Direction","Stream_Id","Source_Agent_Id","Destination_Agent_Id","Correlation_Id","Start_Timestamp",\
"End_Timestamp"
"MEMORY_COPY","MEMORY_COPY_HOST_TO_DEVICE",0,"Agent 0","Agent 4",1,1057963336487172,1057963336564212
"MEMORY_COPY","MEMORY_COPY_DEVICE_TO_HOST",0,"Agent 4","Agent 0",23,1057963497396292,1057963497471732
"""
MARKERS = """\
"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"
"MARKER_CORE_API","before hipLaunchKernel",717,717,1,1520113899312225,1520113899312225
"MARKER_CORE_API","hipLaunchKernel range",717,0,2,1520113899682208,1520113901495882"""


@pytest.mark.parametrize("text", [TODAY, OLDER, CONVERTED], ids=["today", "older", "converted"])
def test_kernels_as_the_documentation_shows_them(text: str) -> None:
    trace = read_trace(io.BytesIO(text.encode()))
    assert rows(trace, Kind.KERNEL) == [
        ("void addition_kernel<float>(float*, float const*, float const*, int, int)", 1550151853029637, 12800),
        ("divide_kernel(float*, float const*, float const*, int, int)", 1550151853064037, 11200),
    ]
    assert trace.details_of("grid", [0, 1]) == [[16, 1024, 1], [16, 1024, 1]]
    assert {lane[1:3] for lane in trace.lanes} == {("4", "1")}


def test_copies_and_markers_as_the_documentation_shows_them() -> None:
    trace = read_trace(io.BytesIO(COPIES.encode()))
    assert rows(trace, Kind.MEMCPY) == [
        ("Memcpy HtoD", 1057963336487172, 77040),
        ("Memcpy DtoH", 1057963497396292, 75440),
    ]
    assert [device.index for device in trace.devices] == [4]
    trace = read_trace(io.BytesIO(MARKERS.encode()))
    assert rows(trace, Kind.INSTANT) == [("before hipLaunchKernel", 1520113899312225, 0)]
    assert rows(trace, Kind.ANNOTATION) == [("hipLaunchKernel range", 1520113899682208, 1813674)]


def test_every_field_in_quotes(tmp_path: Path) -> None:
    """Rows of a real decode on a Ryzen AI (MIT; jimw567/rocprof-unified-viewer b384fc2), written again by Python."""
    (tmp_path / "1_kernel_trace.csv").write_text(
        f'{TODAY.splitlines()[0]}\n"KERNEL_DISPATCH","Agent 1","2","2","3985093","4674","33",'
        '"scale_f32(float const*, float*, float, float, long)","57328","90754858099371","90754858101375",'
        '"0","0","8","0","128","256","1","1","24576","1","1"\n'
    )
    (tmp_path / "1_hip_api_trace.csv").write_text(
        MARKERS.splitlines()[0]
        + '\n"HIP_RUNTIME_API_EXT","hipGraphLaunch","3985093","3985093","57328","90754858074746","90754858564462"\n'
    )
    trace = read_trace(tmp_path / "1_kernel_trace.csv")
    assert rows(trace, Kind.KERNEL) == [("scale_f32(float const*, float*, float, float, long)", 90754858099371, 2004)]
    assert call_of(trace, Kind.KERNEL) == [("hipGraphLaunch", 90754858074746)]
    assert {lane.tid for lane in trace.lanes} == {"2", "3985093"}


@pytest.mark.parametrize("odd", ["-5", "1_000", "\u0663\u0664", "+7", " 7", ""])
def test_a_start_that_rocprofv3_does_not_write_costs_its_row(odd: str) -> None:
    text = TODAY.replace("1550151853029637", odd)
    assert [start for _, start, _ in rows(read_trace(io.BytesIO(text.encode())), Kind.KERNEL)] == [1550151853064037]


# -- real files -----------------------------------------------------------------------------------


def shared(name: str) -> Path:
    own = Path(__file__).parent / "rocprofv3" / f"{name}.gz"
    path = own if own.exists() else DATA / "gpu2" / "rocprofv3" / name
    if not path.exists():
        pytest.skip(f"{name} is not among the shared recordings")
    return path


def plain(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


@pytest.mark.parametrize(
    ("run", "n_kernels", "busy_ns", "n_linked", "calls"),
    [("decode", 144, 1_857_381, 27, (920, 4_449_331)), ("prefill", 1128, 66_066_571, 1124, (5, 1_411_305))],
)
def test_real_tables_against_plain_csv(
    run: str, n_kernels: int, busy_ns: int, n_linked: int, calls: tuple[int, int]
) -> None:
    """jimw567/rocprof-unified-viewer b384fc2, tests/fixtures (MIT): llama.cpp on a Ryzen AI, thinned by its owner."""
    paths = [shared(f"jimw567__rocprof-unified-viewer__{run}_{what}_trace.csv") for what in ("kernel", "hip_api")]
    kernels, called = (list(csv.DictReader(io.StringIO(plain(path).decode()))) for path in paths)
    spent: dict[str, int] = {}
    for row in kernels:
        took = int(row["End_Timestamp"]) - int(row["Start_Timestamp"])
        spent[row["Kernel_Name"]] = spent.get(row["Kernel_Name"], 0) + took
    known = {row["Correlation_Id"] for row in called}
    trace = read_trace(paths[1])
    (device,) = trace.devices
    assert len(device.rows) == len(kernels) == n_kernels
    # one stream at a time
    assert intervals.length(device.busy) == sum(spent.values()) == busy_ns
    ours = dict.fromkeys(spent, 0)
    for at in device.rows.tolist():
        ours[trace.name_of(at)] += int(trace.dur_ns[at])
    assert ours == spent
    assert int((trace.links.call[device.rows] >= 0).sum()) == sum(row["Correlation_Id"] in known for row in kernels)
    assert int((trace.links.call[device.rows] >= 0).sum()) == n_linked
    host = trace.kind == Kind.RUNTIME
    assert (int(host.sum()), int(trace.dur_ns[host].sum())) == calls


@pytest.mark.data
def test_a_real_file_against_plain_json() -> None:
    """AMD-AGI/TraceLens fba8e03, tests/rocprof/908_results.json.gz (MIT): a rank of eight MI350X, kernels alone."""
    path = shared("AMD-AGI__TraceLens__908_results.json.gz")
    (process,) = json.loads(gzip.decompress(path.read_bytes()))["rocprofiler-sdk-tool"]
    kernels = process["buffer_records"]["kernel_dispatch"]
    names = [symbol["formatted_kernel_name"] for symbol in process["kernel_symbols"]]
    spent: dict[str, int] = {}
    for kernel in kernels:
        name = names[kernel["dispatch_info"]["kernel_id"]]
        spent[name] = spent.get(name, 0) + kernel["end_timestamp"] - kernel["start_timestamp"]
    busy, until = 0, 0
    for start, end in sorted((kernel["start_timestamp"], kernel["end_timestamp"]) for kernel in kernels):
        busy += max(end - max(start, until), 0)
        until = max(until, end)
    trace = read_trace(path)
    (device,) = trace.devices
    assert (device.index, device.name) == (0, "AMD Instinct MI350X")
    assert len(trace) == len(device.rows) == len(kernels) == 43_915
    assert intervals.length(device.busy) == busy == 4_233_112_334
    assert int(trace.dur_ns.sum()) == sum(spent.values()) == 4_441_741_378
    ours = dict.fromkeys(spent, 0)
    for row in range(len(trace)):
        ours[trace.name_of(row)] += int(trace.dur_ns[row])
    assert ours == spent
    streams = {(kernel["stream_id"]["handle"]) for kernel in kernels}
    assert {lane.stream for lane in trace.lanes} == streams


# -- damage ----------------------------------------------------------------------------------------


def test_a_json_that_is_cut_short_keeps_what_is_before() -> None:
    text = json_of(RUN).encode()
    records = text.index(b'"buffer_records": {')
    seen = set()
    for end in range(records, len(text) - 1, 7):
        trace = check_reading(text[:end])
        if trace is not None:
            assert trace.report.tier == "salvaged"
            assert "cut short" in trace.report.loss[0]
            seen.add(len(trace))
    assert max(seen) == 13
    assert len(seen) > 5
    assert "damaged JSON" in refusal(io.BytesIO(text[: records - 100]))


def change_records(key: str, **values: Any) -> Callable[[dict[str, Any]], None]:
    def change(process: dict[str, Any]) -> None:
        for record in process["buffer_records"][key]:
            record.update(values)

    return change


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], Any], int]] = {
    "negative durations": (change_records("kernel_dispatch", start_timestamp=5000, end_timestamp=10), 0),
    "huge numbers": (change_records("kernel_dispatch", start_timestamp=1 << 70, thread_id=1 << 63), 0),
    "texts for times": (change_records("kernel_dispatch", start_timestamp="now"), 3),
    "an unknown kind": (change_records("hip_api", kind=99, operation=-1), 0),
    "no correlation": (change_records("hip_api", correlation_id=None), 3),
    "a list for a record": (lambda process: process["buffer_records"]["hip_api"].append([1]), 1),
    "no list of records": (lambda process: process["buffer_records"].update(hip_api={"a": 1}), 1),
    "no texts": (lambda process: process.update(strings=None), 1),
    "no agents": (lambda process: process.pop("agents"), 0),
    "symbols of another kind": (lambda process: process.update(kernel_symbols={"a": 1}), 1),
    "agents of another kind": (lambda process: process.update(agents=[{"id": 5}]), 1),
    "a NUL in a name": (lambda process: process["kernel_symbols"][0].update(formatted_kernel_name="a\0b"), 0),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_values_that_mean_nothing_in_json(kind: str) -> None:
    change, n_lost = CHANGES[kind]
    process = process_of(RUN)
    change(process)
    trace = check_reading(json.dumps({"rocprofiler-sdk-tool": [process]}).encode())
    assert trace is not None
    assert trace.report.n_lost == n_lost
    assert int((trace.kind == Kind.MEMCPY).sum()) == 2


def test_texts_that_are_no_utf8() -> None:
    text = json_of(RUN).encode().replace(b"gemm<", b"ge\xff<").replace(b"ProfilerStep", b"Profiler\xffStep")
    trace = check_reading(text)
    assert trace is not None
    assert trace.report.tier == "repaired"
    assert rows(trace, Kind.KERNEL)[0] == (GEMM.replace("gemm", "ge\N{REPLACEMENT CHARACTER}"), 2000, 500)


@pytest.mark.parametrize(
    "text",
    [
        '{"rocprofiler-sdk-tool": []}',
        '{"rocprofiler-sdk-tool": [{}]}',
        '{"rocprofiler-sdk-tool": {}}',
        '{"rocprofiler-sdk-tool": [5]}',
        '{"rocprofiler-sdk-tool": [{"buffer_records": 5}]}',
        '{"rocprofiler-sdk-tool": ',
        '{"rocprofiler-sdk-tool": [' + "{}," * 100_000 + "{}]}",
        '{"rocprofiler-sdk-tool": [{"buffer_records": {"hip_api": [' + "0," * 100_000 + "0]}}]}",
        '{"rocprofiler-sdk-tool": [{"buffer_records": {"hip_api": [' + "{    }  ,  " * 100_000 + "0]}}]}",
        '{"rocprofiler-sdk-tool": [{"buffer_records": {"hip_api": [' + '{"kind":  12},' * 100_000 + "{}]}}]}",
        '"Node_Id","Logical_Node_Id","Agent_Type"\n' + '"' * 1_000_000,
        '"Kind","Agent_Id","Kernel_Name","Start_Timestamp","End_Timestamp"\n' + ",,,,\n" * 100_000,
        '{"rocprofiler-sdk-tool": [{"buffer_records": {"kernel_dispatch": [' + "[" * 100_000,
    ],
)
def test_files_without_records_are_refused(text: str) -> None:
    assert "rocprofv3" in refusal(io.BytesIO(text.encode()))


LINES: dict[str, tuple[Callable[[str], str], int]] = {
    "a row cut short": (lambda text: text + '"KERNEL_DISPATCH","Agent 3",1', 1),
    "a row too long for any": (lambda text: text + "a" * 3_000_000, 1),
    "rows without numbers": (lambda text: text.replace(",2000,", ",,").replace(",1,5,", ",x,y,"), 0),
    "huge and negative numbers": (lambda text: text.replace(",2000,", f",{1 << 70},").replace(",2500,", ",-7,"), 0),
    "blank lines, other ends": (lambda text: text.replace("\n", "\r\n\r\n"), 0),
    "NULs": (lambda text: text.replace("copy", "co\0py"), 0),
    "an unknown agent": (lambda text: text.replace("Agent 3", "Agent 9"), 0),
    "an agent of its own words": (lambda text: text.replace("Agent 3", "GPU-" + "9" * 5000), 0),
    "the first line alone": (lambda text: text.split("\n")[0], 0),
    "another table's column missing": (lambda text: text.replace('"Correlation_Id"', '"Other_Id"'), 0),
}


@pytest.mark.parametrize("kind", LINES)
def test_values_that_mean_nothing_in_csv(kind: str, tmp_path: Path) -> None:
    change, n_lost = LINES[kind]
    path = write_csv(tmp_path, RUN)["kernel_trace.csv"]
    path.write_text(change(path.read_text()))
    trace = read_trace(path)
    assert trace.report.n_lost == n_lost
    assert int((trace.kind == Kind.MEMCPY).sum()) == 2
    check_reading(path.read_bytes())


def test_sums_and_empty_tables_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "1_kernel_stats.csv"
    path.write_text('"Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs","MaxNs","StdDev"\n')
    assert "kernel_trace.csv" in refusal(path)
    path = tmp_path / "2_kernel_trace.csv"
    path.write_text(csv_of(RUN)["kernel_trace.csv"].split("\n")[0] + "\n")
    assert "rocprofv3 --hip-trace" in refusal(path)
    path.write_text("")
    assert "an empty file" in refusal(path)
    # one that is not this run's
    path.write_text(csv_of(RUN)["kernel_trace.csv"])
    (tmp_path / "2_hip_api_trace.csv").write_text("time,value\n1,2\n")
    (tmp_path / "2_marker_api_trace.csv").write_text("")
    (tmp_path / "2_memory_copy_trace.csv").mkdir()
    assert len(read_trace(path)) == 3


@pytest.mark.parametrize("cut", [True, False])
def test_damaged_files(cut: bool, tmp_path: Path) -> None:
    rng = random.Random(cut)
    whole = json_of(RUN).encode()
    paths = write_csv(tmp_path / "host", RUN)
    tables = {path: path.read_bytes() for path in paths.values()}

    def damaged(data: bytes) -> bytes:
        raw = bytearray(data)
        for _ in range(rng.randrange(1, 12)):
            at = rng.randrange(len(raw))
            raw[at : at + rng.randrange(1, 8)] = rng.randbytes(rng.randrange(1, 8))
        return bytes(raw[: rng.randrange(len(raw))] if cut else raw)

    for _ in range(150):
        check_reading(damaged(whole))
        for path, data in tables.items():
            path.write_bytes(damaged(data) if rng.random() < 0.5 else data)
        with contextlib.suppress(TriageError):
            read_trace(rng.choice(list(tables)))
        check_reading(rng.choice(list(tables)).read_bytes())
    shutil.rmtree(tmp_path / "host")

"""Exports of Nsight Systems: the columns of Kineto's JSON, and figures equal to plain SQL."""

from __future__ import annotations

import gzip
import io
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from invariants import check_trace
from tests.core.trace.formats.nsys_files import OTHER_PROCESS, PROCESS, NsysFile, process_id, thread_id

import torchtriage as tt
from torchtriage.core import intervals
from torchtriage.core.errors import TraceFormatError
from torchtriage.core.trace import Kind, Trace, read_trace
from torchtriage.core.trace.merged_ranks import split_ranks

US = 1000


def read(file: NsysFile, folder: Path, *, without: tuple[str, ...] = ()) -> Trace:
    trace = read_trace(file.write(folder / "report.sqlite", without=without))
    check_trace(trace)
    return trace


def rows_of(trace: Trace, kind: Kind) -> list[int]:
    return np.flatnonzero(trace.kind == kind).tolist()


def small() -> NsysFile:
    file = NsysFile()
    file.range("aten::mm, seq = 3, op_id = 12, sizes = [[64, 32], [32, 8]], input_op_ids = [(4,0)]", 1000, 9000)
    file.kernel("void gemm<(int)128, (bool)1>(float *, int)", 10_000, 14_000, launch=(2000, 3000))
    file.copy(1, 20_000, 21_500, 4096, (1, 2))
    file.add("CUPTI_ACTIVITY_KIND_MEMSET", **file.place(30_000, 30_100, PROCESS, 0, 7, 99), bytes=512, memKind=2)
    return file


def test_work_calls_and_ranges(tmp_path: Path) -> None:
    trace = read(small(), tmp_path)
    (kernel,), (copy,), (memset,), (op,) = (
        rows_of(trace, kind) for kind in (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.OP)
    )
    assert trace.name_of(kernel) == "void gemm<128, true>(float*, int)"
    assert (int(trace.start_ns[kernel]), int(trace.dur_ns[kernel])) == (10_000, 4000)
    assert trace.details_of("grid", [kernel]) == [[4, 2, 1]]
    assert trace.details_of("block", [kernel]) == [[128, 1, 1]]
    assert trace.lane_label(trace.lane[kernel]) == "GPU 0 stream 7"
    assert trace.name_of(copy) == "Memcpy HtoD (Pinned -> Device)"
    assert trace.value[copy] == 4096
    assert trace.name_of(memset) == "Memset (Device)"
    assert trace.value[memset] == 512
    assert trace.name_of(op) == "aten::mm"
    assert trace.key[op] == 3
    assert trace.details_of("dims", [op]) == [[[64, 32], [32, 8]]]
    call = int(trace.links.call[kernel])
    assert trace.name_of(call) == "cudaLaunchKernel"
    assert trace.links.op[kernel] == op
    assert trace.links.call[memset] == -1
    assert trace.args(kernel)["registersPerThread"] == 32
    assert trace.args(op)["text"].startswith("aten::mm, seq = 3")
    assert trace.origin.vendor == "cuda"
    assert trace.report.recorder == "Nsight Systems"


@pytest.mark.parametrize("as_stream", [False, True])
def test_packed_files_and_streams(tmp_path: Path, as_stream: bool) -> None:
    plain = small().write(tmp_path / "report.sqlite")
    packed = tmp_path / "any.name"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    expected = read_trace(plain)
    for path in (plain, packed):
        trace = read_trace(io.BytesIO(path.read_bytes()) if as_stream else path)
        assert trace.names == expected.names
        assert np.array_equal(trace.start_ns, expected.start_ns)
        assert trace.args(0) == expected.args(0)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["any.name", "report.sqlite"]
    with pytest.raises(TraceFormatError, match="at most"):
        read_trace(packed, max_bytes=10_000)


def test_a_packed_file_that_ends_early(tmp_path: Path) -> None:
    packed = tmp_path / "report.sqlite.gz"
    packed.write_bytes(gzip.compress(small().write(tmp_path / "x").read_bytes())[:-300])
    with pytest.raises(TraceFormatError, match="expected a database that can be read"):
        read_trace(packed)


# -- texts of ranges -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "kind", "sequence", "dims"),
    [
        ("aten::view, op_id = 314290", "aten::view", Kind.OP, -1, None),
        ("aten::empty", "aten::empty", Kind.OP, -1, None),
        ("aten::mm, seq = 12, sizes = [[2, 3], []]", "aten::mm", Kind.OP, 12, [[2, 3], []]),
        ("AddmmBackward0, seq = 12, op_id = 5", "AddmmBackward0", Kind.OP, 12, None),
        ("AddmmBackward, stashed seq = 12", "AddmmBackward", Kind.OP, 12, None),
        ("AddmmBackward0, op_id = 5", "AddmmBackward0", Kind.OP, -1, None),
        ("MyFunction, seq = 1, op_id = 5", "MyFunction", Kind.OP, 1, None),
        ("my_lib::fused, op_id = 5", "my_lib::fused", Kind.OP, -1, None),
        ("forward (a, b), op_id = 5", "forward (a, b)", Kind.ANNOTATION, -1, None),
        ("FSDP::pre_forward (a.14), op_id = 5", "FSDP::pre_forward (a.14)", Kind.ANNOTATION, -1, None),
        ("ProfilerStep#7, op_id = 3", "ProfilerStep#7", Kind.ANNOTATION, -1, None),
        ("Optimizer.step#Adam.step, op_id = 3", "Optimizer.step#Adam.step", Kind.ANNOTATION, -1, None),
        ("step", "step", Kind.ANNOTATION, -1, None),
        ("DeviceReduce::Sum", "DeviceReduce::Sum", Kind.ANNOTATION, -1, None),
        ("aten::cat, op_id = 1, sizes = [oops\0]", "aten::cat", Kind.OP, -1, None),
        ("", "", Kind.ANNOTATION, -1, None),
    ],
)  # fmt: skip
def test_texts_of_ranges(tmp_path: Path, text: str, name: str, kind: Kind, sequence: int, dims: object) -> None:
    trace = read(NsysFile().range(text, 1000, 2000), tmp_path)
    assert trace.name_of(0) == name
    assert trace.kind[0] == kind
    assert trace.key[0] == sequence
    assert trace.details_of("dims", [0]) == [dims]


def test_registered_texts_domains_marks_and_open_ranges(tmp_path: Path) -> None:
    file = NsysFile()
    file.range("NCCL", 0, None, kind=75, domainId=3)
    file.range("", 1000, 2000, textId=file.text("registered"), domainId=0)
    file.range("", 3000, 4000, textId=file.text("ncclAllReduce"), domainId=3)
    file.range("begins and never ends", 5000, None)
    file.range("start and end", 6000, 7000, kind=60)
    file.range("a moment", 6500, None, kind=34)
    file.range("a category", 6500, None, kind=33)
    file.kernel("k", 20_000, 30_000)
    trace = read(file, tmp_path)
    names = {trace.name_of(row): row for row in range(len(trace))}
    assert {"registered", "NCCL:ncclAllReduce", "begins and never ends", "start and end", "a moment"} < set(names)
    assert not {"a category", "NCCL"} & set(names)
    assert trace.end_ns[names["begins and never ends"]] == 30_000
    assert trace.kind[names["a moment"]] == Kind.INSTANT
    assert trace.dur_ns[names["a moment"]] == 0


# -- several processes and devices ---------------------------------------------------------------


def two_processes(*, device: int = 1) -> NsysFile:
    file = NsysFile()
    for pid, own in ((PROCESS, 0), (OTHER_PROCESS, device)):
        for at in range(3):
            file.range(f"aten::mm, op_id = {at}", 100 * US * at, 100 * US * at + 9000, pid=pid)
            launch = 100 * US * at + 2000, 100 * US * at + 3000
            file.kernel(f"k{pid}", 100 * US * at + 10_000, 100 * US * at + 60_000, pid=pid, device=own, launch=launch)
    return file


def test_correlations_count_within_a_process(tmp_path: Path) -> None:
    trace = read(two_processes(), tmp_path)
    for kernel in rows_of(trace, Kind.KERNEL):
        pid = trace.name_of(kernel)[1:]
        call = int(trace.links.call[kernel])
        assert trace.lanes[trace.lane[call]].pid == pid
        assert trace.start_ns[call] == trace.start_ns[kernel] - 8000
        assert trace.lanes[trace.lane[int(trace.links.op[kernel])]].pid == pid


def test_processes_with_devices_of_their_own_are_ranks(tmp_path: Path) -> None:
    whole = read(two_processes(), tmp_path)
    first, second = split_ranks(whole)
    assert [rank.origin.rank for rank in (first, second)] == [0, 1]
    for rank, pid in ((first, PROCESS), (second, OTHER_PROCESS)):
        assert {lane.pid for lane in (rank.lanes[at] for at in set(rank.lane.tolist())) if lane.kind == "thread"} == {
            str(pid)
        }
        assert (rank.kind == Kind.KERNEL).sum() == 3
        assert rank.args(0)["globalPid"] == process_id(pid)


def test_processes_that_share_a_device_are_judged_together(tmp_path: Path) -> None:
    whole = read(two_processes(device=0), tmp_path)
    assert split_ranks(whole) == (whole,)
    assert len({int(lane) for lane in whole.lane[whole.kind == Kind.KERNEL]}) == 2
    (device,) = whole.devices
    assert intervals.length(device.busy) == 3 * 50_000


def test_each_process_counts_the_devices_that_it_sees(tmp_path: Path) -> None:
    """With CUDA_VISIBLE_DEVICES every rank works on its device 0."""
    file = two_processes(device=0)
    file.add("TARGET_INFO_CUDA_DEVICE", gpuId=4, cudaId=0, pid=PROCESS)
    file.add("TARGET_INFO_CUDA_DEVICE", gpuId=5, cudaId=0, pid=OTHER_PROCESS)
    trace = read(file, tmp_path)
    assert sorted(device.index for device in trace.devices) == [4, 5]
    assert len(split_ranks(trace)) == 2


def test_synchronisations_are_of_their_context(tmp_path: Path) -> None:
    file = two_processes()
    place = file.place(1000, 2000, OTHER_PROCESS, 1, 7, 3)
    file.add("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", **{**place, "deviceId": 0}, syncType=3)
    file.add("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", **{**place, "streamId": 0xFFFFFFFF}, syncType=4)
    trace = read(file, tmp_path)
    stream, context = rows_of(trace, Kind.DEVICE_SYNC)
    assert [trace.name_of(row) for row in (stream, context)] == ["Stream Sync", "Context Sync"]
    assert trace.lane_label(trace.lane[stream]) == "GPU 1 stream 7"
    assert trace.lanes[trace.lane[context]].stream == -1


# -- graphs, versions, what else is there --------------------------------------------------------


def test_graphs_recorded_as_a_whole_keep_the_device_busy(tmp_path: Path) -> None:
    file = NsysFile()
    correlation = file.call("cudaGraphLaunch_v10000", 1000, 2000)
    file.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", **file.place(5000, 25_000, PROCESS, 0, 7, correlation), graphId=12)
    trace = read(file, tmp_path)
    (row,) = rows_of(trace, Kind.KERNEL)
    assert trace.name_of(row) == "CUDA graph 12"
    assert trace.name_of(int(trace.links.call[row])) == "cudaGraphLaunch"
    assert intervals.length(trace.devices[0].busy) == 20_000


def test_kernels_of_a_graph_belong_to_the_call_that_launched_it(tmp_path: Path) -> None:
    file = NsysFile()
    correlation = file.call("cudaGraphLaunch_v10000", 1000, 2000)
    file.kernel("a", 5000, 6000, correlation=correlation).kernel("b", 7000, 8000, correlation=correlation)
    trace = read(file, tmp_path)
    assert trace.links.call[rows_of(trace, Kind.KERNEL)].tolist() == rows_of(trace, Kind.RUNTIME) * 2


OLD = ("srcKind", "dstKind", "mangledName", "memKind", "contextId", "graphNodeId", "textId", "domainId", "eventClass")


def test_columns_that_a_version_lacks(tmp_path: Path) -> None:
    trace = read(small(), tmp_path, without=OLD)
    assert trace.name_of(rows_of(trace, Kind.MEMCPY)[0]) == "Memcpy HtoD"
    assert trace.name_of(rows_of(trace, Kind.OP)[0]) == "aten::mm"
    assert (trace.links.call[rows_of(trace, Kind.KERNEL)] >= 0).all()
    bare = read_trace(
        small().write(tmp_path / "bare", without=(*OLD, "globalPid", "globalTid", "correlationId", "gridX"))
    )
    check_trace(bare)
    assert (bare.links.call < 0).all()
    assert bare.details_of("grid", rows_of(bare, Kind.KERNEL)) == [None]


def test_machine_and_threads(tmp_path: Path) -> None:
    file = small()
    gpu = {
        "id": 0,
        "name": "NVIDIA H100",
        "smCount": 132,
        "totalMemory": 80 << 30,
        "computeMajor": 9,
        "computeMinor": 0,
    }
    file.add("TARGET_INFO_GPU", **gpu)
    file.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000_000_000_000)
    file.add("ThreadNames", nameId=file.text("autograd"), globalTid=thread_id(PROCESS))
    file.add("PROCESSES", globalPid=process_id(PROCESS), pid=PROCESS, name="train.py")
    file.add("OSRT_API", start=1, end=2, globalTid=thread_id(PROCESS), nameId=file.text("poll"))
    file.add("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value="2026.2.1")
    trace = read(file, tmp_path)
    assert trace.origin.device_names == ("NVIDIA H100",)
    assert trace.origin.capability == (9, 0)
    assert trace.origin.n_multiprocessors == 132
    assert trace.origin.base_time_ns == 1_700_000_000_000_000_000
    assert trace.lane_label(trace.lane[rows_of(trace, Kind.OP)[0]]) == "autograd"
    assert trace.labels["process_name", str(PROCESS), "0"] == "train.py"
    assert trace.meta["unread"] == {"calls of the operating system": 1}
    assert trace.meta["recorderVersion"] == "2026.2.1"


def test_steps_by_ranges(tmp_path: Path) -> None:
    file = NsysFile()
    for at in range(6):
        start = at * 1000 * US
        file.range("iteration", start, start + 990 * US)
        file.range("aten::mm, op_id = 1", start + US, start + 10 * US)
        file.kernel("k", start + 20 * US, start + 900 * US, launch=(start + 2 * US, start + 3 * US))
    trace = read(file, tmp_path)
    assert len(trace.steps) == 6
    assert "annotation 'iteration'" in trace.window.basis


def test_kept_columns_are_read_again(tmp_path: Path) -> None:
    path = small().write(tmp_path / "report.sqlite")
    first, second = read_trace(path, cache=True), read_trace(path, cache=True)
    assert (tmp_path / "report.sqlite.torchtriage-cache").exists()
    assert second.report.recorder == "Nsight Systems"
    assert second.args(0) == first.args(0)


# -- real files ----------------------------------------------------------------------------------

H100 = "nsys/h100_2gpu_1s.sqlite"
TENSORRT = "gpu2/nsys_rocpd/LeiWang1999__memfusion_artifact__report1.sqlite.gz"
_WORK = ("KERNEL", "MEMCPY", "MEMSET")


@pytest.mark.data
@pytest.mark.parametrize("name", [H100, "nsys/rtx3080_mock.sqlite", TENSORRT])
def test_real_files_give_what_sql_gives(recordings: Path, name: str, tmp_path: Path) -> None:
    path = recordings.parent / name
    trace = read_trace(path)
    if path.suffix == ".gz":
        plain = tmp_path / "plain"
        plain.write_bytes(gzip.decompress(path.read_bytes()))
        path = plain
    check_trace(trace)
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        for kind, table in zip((Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET), _WORK, strict=True):
            if not trace.cats or not (trace.kind == kind).any():
                continue
            counted = f"SELECT count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_{table}"
            assert connection.execute(counted).fetchone() == (
                int((trace.kind == kind).sum()),
                int(trace.dur_ns[trace.kind == kind].sum()),
            )
        sized = connection.execute("SELECT sum(bytes) FROM CUPTI_ACTIVITY_KIND_MEMCPY").fetchone()[0]
        assert int(trace.value[trace.kind == Kind.MEMCPY].sum()) == sized
        assert trace.devices
        for device in trace.devices:
            spans = [
                span
                for table in _WORK
                if connection.execute(
                    "SELECT 1 FROM sqlite_master WHERE name=?", (f"CUPTI_ACTIVITY_KIND_{table}",)
                ).fetchone()
                for span in connection.execute(
                    f"SELECT start, end FROM CUPTI_ACTIVITY_KIND_{table} WHERE deviceId=?", (device.index,)
                )
            ]
            assert intervals.length(device.busy) == _covered(sorted(spans))
        linked = sum(
            connection.execute(
                f"SELECT count(*) FROM CUPTI_ACTIVITY_KIND_{table} w WHERE EXISTS (SELECT 1 FROM"
                " CUPTI_ACTIVITY_KIND_RUNTIME r WHERE r.correlationId = w.correlationId"
                " AND (r.globalTid & ~16777215) = w.globalPid)"
            ).fetchone()[0]
            for table in ("KERNEL", "MEMCPY")
        )
        works = trace.is_kind(Kind.KERNEL, Kind.MEMCPY)
        assert int((trace.links.call[works] >= 0).sum()) == linked


@pytest.mark.data
def test_weights_that_travel_to_two_gpus(recordings: Path) -> None:
    """FSDP with an offload: 921 of 969 ms are uploads, and 48.5 ms is all that a prefetch could hide them behind."""
    (job,) = tt.analyze_ranks(recordings.parent / H100).jobs
    (finding,) = job.findings
    assert finding.code == "CPY008"
    assert finding.cost is not None
    assert finding.cost.low_ms == pytest.approx(48.5, abs=0.2)
    assert "Copy less" in finding.fix.text


@pytest.mark.data
def test_an_inference_and_the_end_of_its_process(recordings: Path) -> None:
    """TensorRT: 6.46 ms of work without a gap, then half a second of cuModuleUnload."""
    result = tt.analyze(recordings.parent / TENSORRT)
    assert not result.findings
    assert not {"cold-start", "heavy-recording"} & {note.code for note in result.notes}
    window = read_trace(recordings.parent / TENSORRT).window
    assert window.end_ns == 25_834_711
    assert "freeing what it held" in window.basis


def _covered(spans: list[tuple[int, int]]) -> int:
    """Return the union's length: the sweep of an SQL query, independent of ours."""
    total, reach = 0, spans[0][0]
    for start, end in spans:
        total += max(end - max(start, reach), 0)
        reach = max(reach, end)
    return total

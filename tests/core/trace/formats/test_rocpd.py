"""ROCm's databases in the columns of a trace, against plain SQL; rocprofv3's tables as its own schema makes them."""

from __future__ import annotations

import gzip
import io
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from builder import rows
from fuzz.fuzz_reader import check_reading
from tests.conftest import DATA

from torchtriage import analyze
from torchtriage.core import intervals
from torchtriage.core.errors import TraceFormatError
from torchtriage.core.trace import Kind, Trace, read_trace

OLD = """
CREATE TABLE rocpd_string (id INTEGER PRIMARY KEY, string TEXT);
CREATE TABLE rocpd_api (id INTEGER PRIMARY KEY, pid INTEGER, tid INTEGER, start INTEGER, end INTEGER,
    apiName_id INTEGER, args_id INTEGER);
CREATE TABLE rocpd_op (id INTEGER PRIMARY KEY, gpuId INTEGER, queueId INTEGER, sequenceId INTEGER,
    completionSignal TEXT, start INTEGER, end INTEGER, description_id INTEGER, opType_id INTEGER);
CREATE TABLE rocpd_api_ops (id INTEGER PRIMARY KEY, api_id INTEGER, op_id INTEGER);
CREATE TABLE rocpd_copyapi (api_ptr_id INTEGER PRIMARY KEY, stream TEXT, size INTEGER, kind INTEGER);
CREATE TABLE rocpd_kernelapi (api_ptr_id INTEGER PRIMARY KEY, stream TEXT, gridX INTEGER, gridY INTEGER, gridZ INTEGER,
    workgroupX INTEGER, workgroupY INTEGER, workgroupZ INTEGER, kernelName_id INTEGER);
CREATE TABLE ext_autogradapi (api_ptr_id INTEGER PRIMARY KEY, autogradName_id INTEGER, seq INTEGER, op_id INTEGER,
    sizes TEXT, input_op_ids TEXT);
INSERT INTO rocpd_string VALUES (1, ''), (2, 'hipLaunchKernel'), (3, 'gemm'), (4, 'KernelExecution'), (5, 'UserMarker'),
    (6, 'aten::mm, seq = 12, op_id = 5, sizes = [[2, 3], [3, 4]]'), (7, 'ProfilerStep#4'), (8, 'CopyHostToDevice'),
    (9, 'hipMemcpyAsync'), (10, 'ApiTable::writeRows'), (11, '_C::rope'), (12, 'Task'), (13, 'BarrierPacket');
INSERT INTO rocpd_api VALUES (101, 7, 8, 1000, 1100, 2, 1), (102, 7, 8, 900, 1200, 5, 6), (103, 7, 8, 100, 9000, 5, 7),
    (104, 7, 8, 2000, 2100, 9, 1), (105, 7, 9, 2000, 2100, 10, 1), (106, 7, 8, 3000, 3100, 5, 11);
INSERT INTO rocpd_op VALUES (201, 2, 0, 0, '', 1300, 1500, 3, 4), (202, 2, 0, 0, '', 2300, 2400, 1, 8),
    (203, 2, 1, 0, '', 2350, 2500, 3, 12), (204, 2, 1, 0, '', 2600, 2700, 1, 13);
INSERT INTO rocpd_api_ops VALUES (1, 101, 201), (2, 104, 202), (3, 101, 203);
INSERT INTO rocpd_copyapi VALUES (104, '0x0', 4096, 1);
INSERT INTO rocpd_kernelapi VALUES (101, '0x0', 16, 2, 1, 256, 1, 1, 3);
INSERT INTO ext_autogradapi VALUES (106, 11, 33, 6, '[[5]]', '');
"""
SUFFIX = "_0000abcd_1234_5678_9abc_def012345678"
# as rocprofiler-sdk's rocpd_tables.sql has them, without its keys to other tables
NEW = """
CREATE TABLE rocpd_string{s} (id INTEGER PRIMARY KEY, guid TEXT, string TEXT);
CREATE TABLE rocpd_info_process{s} (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER);
CREATE TABLE rocpd_info_thread{s} (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER, tid INTEGER, name TEXT);
CREATE TABLE rocpd_info_agent{s} (id INTEGER PRIMARY KEY, guid TEXT, type TEXT, absolute_index INTEGER,
    logical_index INTEGER, type_index INTEGER, name TEXT, product_name TEXT);
CREATE TABLE rocpd_info_kernel_symbol{s} (id INTEGER PRIMARY KEY, guid TEXT, kernel_name TEXT, display_name TEXT);
CREATE TABLE rocpd_event{s} (id INTEGER PRIMARY KEY, guid TEXT, category_id INTEGER, stack_id INTEGER,
    parent_stack_id INTEGER, correlation_id INTEGER, extdata JSONB DEFAULT "{{}}");
CREATE TABLE rocpd_region{s} (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER, tid INTEGER, start BIGINT,
    end BIGINT, name_id INTEGER, event_id INTEGER);
CREATE TABLE rocpd_kernel_dispatch{s} (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER, tid INTEGER,
    agent_id INTEGER, kernel_id INTEGER, dispatch_id INTEGER, queue_id INTEGER, stream_id INTEGER, start BIGINT,
    end BIGINT, workgroup_size_x INTEGER, workgroup_size_y INTEGER, workgroup_size_z INTEGER, grid_size_x INTEGER,
    grid_size_y INTEGER, grid_size_z INTEGER, region_name_id INTEGER, event_id INTEGER);
CREATE TABLE rocpd_memory_copy{s} (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER, tid INTEGER,
    start BIGINT, end BIGINT, name_id INTEGER, dst_agent_id INTEGER, src_agent_id INTEGER, size INTEGER,
    queue_id INTEGER, stream_id INTEGER, region_name_id INTEGER, event_id INTEGER);
INSERT INTO rocpd_string{s} VALUES (1, '', 'HIP_RUNTIME_API'), (2, '', 'hipLaunchKernel'), (3, '', 'KERNEL_DISPATCH'),
    (4, '', 'MARKER_CORE_RANGE_API'), (5, '', 'roctxThreadRangeA'), (6, '', 'MEMORY_COPY'),
    (7, '', 'MEMORY_COPY_HOST_TO_DEVICE'), (8, '', 'hipMemcpyAsync');
INSERT INTO rocpd_info_process{s} VALUES (1, '', 1, 4242);
INSERT INTO rocpd_info_thread{s} VALUES (11, '', 1, 1, 4243, 'main');
INSERT INTO rocpd_info_agent{s} VALUES (1, '', 'CPU', 0, 0, 0, 'EPYC', ''), (4, '', 'GPU', 4, 4, 1, 'gfx942',
    'AMD Instinct MI300X');
INSERT INTO rocpd_info_kernel_symbol{s} VALUES (10, '', '_Z4gemm.kd', 'gemm(float*)');
INSERT INTO rocpd_event{s} VALUES (1, '', 1, 51, 51, 0, '{{}}'), (2, '', 3, 51, 51, 0, '{{}}'),
    (3, '', 4, 52, 0, 0, '{{"message": "ProfilerStep#4"}}'), (4, '', 1, 53, 0, 0, '{{}}'), (5, '', 6, 53, 0, 0, '{{}}'),
    (6, '', 4, 54, 0, 0, '{{"message": "aten::mm, seq = 12, op_id = 5, sizes = [[2, 3], [3, 4]]"}}');
INSERT INTO rocpd_region{s} VALUES (51, '', 1, 1, 11, 1000, 1100, 2, 1), (52, '', 1, 1, 11, 500, 9000, 5, 3),
    (53, '', 1, 1, 11, 1200, 1300, 8, 4), (54, '', 1, 1, 11, 950, 1150, 5, 6);
INSERT INTO rocpd_kernel_dispatch{s} VALUES (1, '', 1, 1, 11, 4, 10, 1, 1, 3, 2000, 2500, 256, 1, 1, 1000, 4, 1, NULL,
    2);
INSERT INTO rocpd_memory_copy{s} VALUES (1, '', 1, 1, 11, 3000, 3200, 7, 4, 1, 4096, NULL, 3, NULL, 5);
"""

# what version 4 changed (ROCm/rocm-systems, rocprofiler-sdk-rocpd/versions/4.1.0/rocpd_tables.sql of a195360): places
# are those of tracks, categories have a table
FOUR = """
CREATE TABLE rocpd_info_category{s} (id INTEGER PRIMARY KEY, guid TEXT, name TEXT, extdata JSONB DEFAULT "{{}}");
CREATE TABLE rocpd_track{s} (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, ppid INTEGER, pid INTEGER, tid INTEGER,
    agent_id INTEGER, queue_id INTEGER, stream_id INTEGER, name_id INTEGER);
INSERT INTO rocpd_info_category{s} (id, name) SELECT id + 100, string FROM rocpd_string{s} WHERE id IN (1, 3, 4, 6);
UPDATE rocpd_event{s} SET category_id = category_id + 100;
INSERT INTO rocpd_track{s} VALUES (7, '', 1, NULL, 1, 11, NULL, NULL, NULL, NULL),
    (8, '', 1, NULL, 1, 11, 4, 1, 3, NULL), (9, '', 1, NULL, 1, 11, 4, NULL, 3, NULL);
DELETE FROM rocpd_string{s} WHERE id IN (1, 3, 4, 6);
ALTER TABLE rocpd_region{s} ADD track_id INTEGER;
ALTER TABLE rocpd_kernel_dispatch{s} ADD track_id INTEGER;
ALTER TABLE rocpd_memory_copy{s} ADD track_id INTEGER;
UPDATE rocpd_region{s} SET track_id = 7;
UPDATE rocpd_kernel_dispatch{s} SET track_id = 8;
UPDATE rocpd_memory_copy{s} SET track_id = 9;
ALTER TABLE rocpd_region{s} DROP pid;
ALTER TABLE rocpd_region{s} DROP tid;
ALTER TABLE rocpd_kernel_dispatch{s} DROP pid;
ALTER TABLE rocpd_kernel_dispatch{s} DROP tid;
ALTER TABLE rocpd_kernel_dispatch{s} DROP agent_id;
ALTER TABLE rocpd_kernel_dispatch{s} DROP queue_id;
ALTER TABLE rocpd_kernel_dispatch{s} DROP stream_id;
ALTER TABLE rocpd_memory_copy{s} DROP pid;
ALTER TABLE rocpd_memory_copy{s} DROP tid;
ALTER TABLE rocpd_memory_copy{s} DROP queue_id;
ALTER TABLE rocpd_memory_copy{s} DROP stream_id;
"""
# drafts of version 4 (rocpdsna before 5b7706e) have times in a table
_DATED = "\n".join(
    f"""
ALTER TABLE {table}{{s}} ADD start_id INTEGER;
ALTER TABLE {table}{{s}} ADD end_id INTEGER;
INSERT INTO rocpd_timestamp{{s}} SELECT NULL, '', start, 1, track_id FROM {table}{{s}} UNION ALL
    SELECT NULL, '', end, 2, track_id FROM {table}{{s}};
UPDATE {table}{{s}} SET start_id = (SELECT id FROM rocpd_timestamp{{s}} WHERE value = start LIMIT 1),
    end_id = (SELECT id FROM rocpd_timestamp{{s}} WHERE value = end LIMIT 1);
ALTER TABLE {table}{{s}} DROP start;
ALTER TABLE {table}{{s}} DROP end;"""
    for table in ("rocpd_region", "rocpd_kernel_dispatch", "rocpd_memory_copy")
)
DRAFT = f"""{FOUR}
CREATE TABLE rocpd_timestamp{{s}} (id INTEGER PRIMARY KEY, guid TEXT, value BIGINT, phase INTEGER, track_id INTEGER);
{_DATED}"""


def database(path: Path, *scripts: str) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        for script in scripts:
            connection.executescript(script)
    return path


def call_of(trace: Trace, kind: Kind) -> list[str]:
    return [trace.name_of(row) for row in trace.links.call[trace.kind == kind].tolist()]


def test_the_tables_of_rocm_profile_data(tmp_path: Path) -> None:
    trace = read_trace(database(tmp_path / "x.rpd", OLD))
    assert rows(trace, Kind.KERNEL) == [("gemm", 1300, 200), ("gemm", 2350, 150)]
    assert rows(trace, Kind.MEMCPY) == [("Memcpy HtoD", 2300, 100)]
    assert rows(trace, Kind.RUNTIME) == [("hipLaunchKernel", 1000, 100), ("hipMemcpyAsync", 2000, 100)]
    assert rows(trace, Kind.OP) == [("aten::mm", 900, 300), ("_C::rope", 3000, 100)]
    assert rows(trace, Kind.ANNOTATION) == [("ProfilerStep#4", 100, 8900)]
    assert rows(trace, Kind.OVERHEAD) == [("ApiTable::writeRows", 2000, 100)]
    assert rows(trace, Kind.GPU_ANNOTATION) == [("BarrierPacket", 2600, 100)]
    assert call_of(trace, Kind.KERNEL) == ["hipLaunchKernel", "hipLaunchKernel"]
    assert call_of(trace, Kind.MEMCPY) == ["hipMemcpyAsync"]
    assert trace.value[trace.kind == Kind.MEMCPY].tolist() == [4096]
    (kernel, _) = np.flatnonzero(trace.kind == Kind.KERNEL)
    assert trace.details_of("grid", [kernel]) == [[16, 2, 1]]
    assert trace.name_of(trace.links.op[kernel]) == "aten::mm"
    ops = np.flatnonzero(trace.kind == Kind.OP)
    assert trace.details_of("dims", ops) == [[[2, 3], [3, 4]], [[5]]]
    assert trace.key[ops].tolist() == [12, 33]
    assert trace.origin.vendor == "rocm"
    assert [device.index for device in trace.devices] == [2]
    assert trace.steps.names == ("ProfilerStep#4",)
    assert trace.args(0) == {}


@pytest.mark.parametrize("version", ["", FOUR, DRAFT], ids=["3", "4", "4 draft"])
@pytest.mark.parametrize("suffix", ["", SUFFIX])
def test_the_tables_of_rocprofv3(tmp_path: Path, suffix: str, version: str) -> None:
    trace = read_trace(database(tmp_path / "x.db", (NEW + version).format(s=suffix)))
    assert rows(trace, Kind.KERNEL) == [("gemm(float*)", 2000, 500)]
    assert rows(trace, Kind.MEMCPY) == [("Memcpy HtoD", 3000, 200)]
    assert rows(trace, Kind.RUNTIME) == [("hipLaunchKernel", 1000, 100), ("hipMemcpyAsync", 1200, 100)]
    assert rows(trace, Kind.OP) == [("aten::mm", 950, 200)]
    assert rows(trace, Kind.ANNOTATION) == [("ProfilerStep#4", 500, 8500)]
    assert call_of(trace, Kind.KERNEL) == ["hipLaunchKernel"]
    assert call_of(trace, Kind.MEMCPY) == ["hipMemcpyAsync"]
    (kernel,) = np.flatnonzero(trace.kind == Kind.KERNEL)
    assert trace.details_of("grid", [kernel]) == [[4, 4, 1]]
    assert trace.details_of("block", [kernel]) == [[256, 1, 1]]
    assert trace.name_of(trace.links.op[kernel]) == "aten::mm"
    assert {(lane.pid, lane.tid) for lane in trace.lanes if lane.kind == "thread"} == {("4242", "4243")}
    (device,) = trace.devices
    assert (device.index, device.name) == (1, "AMD Instinct MI300X")
    assert {(lane.device, lane.tid) for lane in trace.lanes if lane.kind == "stream"} == {(1, "3")}


def test_processes_in_one_file_do_not_share_ids(tmp_path: Path) -> None:
    other = SUFFIX.replace("abcd", "abce")
    trace = read_trace(database(tmp_path / "x.db", NEW.format(s=SUFFIX), NEW.format(s=other)))
    assert len(np.unique(trace.key[trace.works])) == 4
    assert (trace.links.call[trace.works] >= 0).all()


def test_without_launches_no_call_is_held_responsible(tmp_path: Path) -> None:
    trace = read_trace(database(tmp_path / "x.rpd", OLD, "DROP TABLE rocpd_api_ops", "DROP TABLE rocpd_kernelapi"))
    assert rows(trace, Kind.KERNEL) == [("gemm", 1300, 200), ("gemm", 2350, 150)]
    assert trace.links.orphans[trace.works].all()


def test_the_doctor_says_what_it_cannot_show(tmp_path: Path) -> None:
    path = database(tmp_path / "x.db", NEW.format(s=SUFFIX))
    notes = {note.code: note for note in analyze(path).notes}
    assert "no Python stacks" in notes["other-recorder"].message
    assert not any("activities=" in note.fix for note in notes.values())
    report = analyze(path)
    assert not report.crashes
    assert {"HST021", "MEM029"} <= {item.code for item in report.not_checked}
    assert not any("activities=" in item.how_to_record for item in report.not_checked)


def test_a_database_without_rows_is_refused_in_its_own_words(tmp_path: Path) -> None:
    path = database(tmp_path / "x.db", "CREATE TABLE rocpd_op (start INTEGER, end INTEGER)")
    with pytest.raises(TraceFormatError) as caught:
        read_trace(path)
    assert "rocprofv3 --hip-trace" in str(caught.value)


# -- against plain SQL -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (packed,) = (DATA / "gpu2" / "nsys_rocpd").glob("ROCm*.rpd.gz")
    path = tmp_path_factory.mktemp("rpd") / "real.rpd"
    path.write_bytes(gzip.decompress(packed.read_bytes()))
    return path


@contextmanager
def sql(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        yield connection


@pytest.mark.data
def test_a_real_file_against_sql(real: Path) -> None:
    trace = read_trace(real)
    with sql(real) as connection:
        work = connection.execute('SELECT start, "end", gpuId FROM rocpd_op ORDER BY start').fetchall()
        kinds = dict(
            connection.execute(
                "SELECT s.string, count(*) FROM rocpd_op o JOIN rocpd_string s ON s.id = o.opType_id GROUP BY s.string"
            ).fetchall()
        )
        longest = dict(
            connection.execute(
                'SELECT s.string, sum(o."end" - o.start) FROM rocpd_op o JOIN rocpd_string s ON s.id = o.description_id'
                " WHERE s.string != '' GROUP BY s.string"
            ).fetchall()
        )
        sizes = connection.execute(
            "SELECT sum(c.size), count(*) FROM rocpd_api_ops p JOIN rocpd_copyapi c ON c.api_ptr_id = p.api_id"
        ).fetchone()
        (n_linked,) = connection.execute(
            "SELECT count(*) FROM rocpd_api_ops p JOIN rocpd_api a ON a.id = p.api_id JOIN rocpd_op o ON o.id = p.op_id"
        ).fetchone()
        calls = connection.execute('SELECT count(*), sum("end" - start) FROM rocpd_api').fetchone()
        grids = connection.execute(
            "SELECT k.gridX, k.gridY, k.gridZ, count(*) FROM rocpd_api_ops p JOIN rocpd_kernelapi k"
            " ON k.api_ptr_id = p.api_id GROUP BY 1, 2, 3"
        ).fetchall()
    busy, until = 0, 0
    for start, end, _ in work:
        busy += max(end - max(start, until), 0)
        until = max(until, end)
    (device,) = trace.devices
    assert {gpu for *_, gpu in work} == {device.index}
    assert len(device.rows) == len(work) == 10_124
    assert intervals.length(device.busy) == busy == 416_623_418
    copies = trace.kind == Kind.MEMCPY
    assert int(copies.sum()) == sum(n for kind, n in kinds.items() if kind.startswith("Copy")) == 1176
    assert int((trace.kind == Kind.KERNEL).sum()) == kinds["KernelExecution"] + kinds["Task"]
    ours: dict[str, int] = {}
    for row in np.flatnonzero(trace.kind == Kind.KERNEL).tolist():
        ours[trace.name_of(row)] = ours.get(trace.name_of(row), 0) + int(trace.dur_ns[row])
    assert ours == longest
    known = copies & (trace.value >= 0)
    assert (int(trace.value[known].sum()), int(known.sum())) == sizes
    assert int((trace.links.call[device.rows] >= 0).sum()) == n_linked
    on_host = np.array([lane.kind == "thread" for lane in trace.lanes])[trace.lane]
    assert (int(on_host.sum()), int(trace.dur_ns[on_host].sum())) == calls
    found: dict[tuple[int, ...], int] = {}
    for grid in trace.details_of("grid", np.flatnonzero(trace.kind == Kind.KERNEL)):
        if grid is not None:
            found[tuple(grid)] = found.get(tuple(grid), 0) + 1
    assert found == {(x, y, z): n for x, y, z, n in grids}


@pytest.mark.data
def test_the_verdict_on_a_real_file(real: Path) -> None:
    """Read from the rows beforehand: 92 % busy, half of it one product, and a gap behind each of 20 readbacks."""
    report = analyze(real)
    assert report.summary is not None
    (device,) = report.summary.devices
    assert (device.classes.compute_ns + device.classes.copy_only_ns) / device.classes.wall_ns == pytest.approx(
        0.919, abs=0.002
    )
    assert [(finding.code, finding.evidence["n_copies_per_window"]) for finding in report.findings] == [("CPY006", 20)]


# -- damage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", [OLD, NEW.format(s=SUFFIX), (NEW + FOUR).format(s="")], ids=["rpd", "3", "4"])
def test_damaged_files(tmp_path: Path, script: str) -> None:
    good = database(tmp_path / "x.db", script).read_bytes()
    rng = random.Random(script)
    for _ in range(60):
        raw = bytearray(good)
        for _ in range(rng.randrange(1, 20)):
            at = rng.randrange(100, len(raw))
            raw[at : at + rng.randrange(1, 8)] = rng.randbytes(rng.randrange(1, 8))
        check_reading(bytes(raw[: rng.choice([len(raw), rng.randrange(len(raw))])]))


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE rocpd_op SET start = 9223372036854775807, end = -9223372036854775808",
        "UPDATE rocpd_op SET gpuId = 1 << 60, queueId = -1 << 60, description_id = NULL, opType_id = 'text'",
        "UPDATE rocpd_api SET pid = NULL, tid = x'00', apiName_id = -5, start = 'x', end = NULL",
        "UPDATE rocpd_api_ops SET api_id = NULL, op_id = 201",
        "UPDATE rocpd_kernelapi SET gridX = -1",
        "UPDATE ext_autogradapi SET sizes = x'00', seq = 1 << 62",
        "UPDATE rocpd_string SET string = printf('%.*c', 1000000, 'a') || char(0) || id",
        "DELETE FROM rocpd_string",
    ],
)
def test_values_that_mean_nothing(tmp_path: Path, change: str) -> None:
    assert check_reading(database(tmp_path / "x.rpd", OLD, change).read_bytes()) is not None


@pytest.mark.parametrize(
    ("version", "change"),
    [
        ("", "UPDATE rocpd_event SET stack_id = -1, extdata = '{\"message\": 5}'"),
        ("", "UPDATE rocpd_event SET stack_id = 1 << 61, extdata = '['"),
        ("", "UPDATE rocpd_kernel_dispatch SET agent_id = 99, kernel_id = NULL, stream_id = NULL, grid_size_x = 0"),
        ("", "UPDATE rocpd_info_agent SET type_index = 1 << 50"),
        ("", "DROP TABLE rocpd_event"),
        ("", "DROP TABLE rocpd_info_kernel_symbol"),
        (FOUR, "UPDATE rocpd_track SET agent_id = NULL, stream_id = 1 << 61, tid = 'x'"),
        (FOUR, "UPDATE rocpd_kernel_dispatch SET track_id = 5"),
        (FOUR, "DROP TABLE rocpd_track"),
        (FOUR, "DROP TABLE rocpd_info_category"),
    ],
)
def test_values_that_mean_nothing_to_rocprofv3(tmp_path: Path, version: str, change: str) -> None:
    path = database(tmp_path / "x.db", (NEW + version).format(s=""), change)
    trace = check_reading(path.read_bytes())
    assert trace is not None
    assert trace.works.any()


def test_standard_input_is_as_good_as_a_file(tmp_path: Path) -> None:
    path = database(tmp_path / "x.rpd", OLD)
    packed = io.BytesIO(gzip.compress(path.read_bytes()))
    assert len(read_trace(packed)) == len(read_trace(path))

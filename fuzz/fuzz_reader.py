"""Fuzz the trace reader: ``make fuzz``, or ``python fuzz/fuzz_reader.py CORPUS``.

Any bytes must give an error of ours or a trace whose columns are consistent.
"""

from __future__ import annotations

import contextlib
import io
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

watched: Any = contextlib.nullcontext()
if __name__ == "__main__":
    import atheris

    watched = atheris.instrument_imports(include=["torchtriage"])
with watched:
    from torchtriage.core.errors import TriageError
    from torchtriage.core.trace import Trace, read_trace
    from torchtriage.core.trace.arguments import read_args


def small_database(*statements: str) -> bytes:
    """Return a database with pages of 512 bytes: mutations hit what matters."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        with contextlib.closing(sqlite3.connect(path)) as connection:
            for statement in ("PRAGMA page_size=512", *statements):
                connection.execute(statement)
            connection.commit()
        return path.read_bytes()


NSYS = small_database(
    "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)",
    "INSERT INTO StringIds VALUES (1, 'void k<(int)4>(float *)'), (2, 'cudaLaunchKernel_v7000'), (3, 'step')",
    "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,"
    " streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, gridX INTEGER, gridY INTEGER,"
    " gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER)",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 40) INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL"
    " SELECT 100*i, 100*i+50, 0, 1, 7, i, 281474976710656+16777216*100, 1, i, 1, 1, 128, 1, 1 FROM n",
    "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER,"
    " correlationId INTEGER, nameId INTEGER)",
    "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME SELECT start-50, start-40, 0, globalPid+100, correlationId, 2"
    " FROM CUPTI_ACTIVITY_KIND_KERNEL",
    "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,"
    " correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER)",
    "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (5000, 6000, 0, 7, 3, 281476654465024, 4096, 1, 0, 2)",
    "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER,"
    " textId INTEGER, domainId INTEGER)",
    "INSERT INTO NVTX_EVENTS VALUES (10, 4000, 59, NULL, 281476654465124, 3, 0),"
    " (20, 90, 59, 'aten::mm, seq = 3, op_id = 1, sizes = [[2, 3], [3, 4]]', 281476654465124, NULL, 0),"
    " (1, NULL, 75, 'NCCL', 281476654465124, NULL, 2), (30, NULL, 59, 'ncclAllReduce', 281476654465124, NULL, 2)",
)
"""An export of Nsight Systems."""

SEEDS = (
    NSYS,
    b'[{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": "x", "ts": 1.5, "dur": 2}]',
    b'{"schemaVersion": 1, "traceEvents": [\n  {\n    "ph": "X", "cat": "kernel", "name": "k",'
    b' "pid": 0, "tid": 7, "ts": 1712170298123456.789, "dur": 1,\n    "args": {"correlation": 3,'
    b' "stream": 7, "grid": [1, 1, 1], "l": [{"a": 1}, {"b": "}, {"}]}\n  },\n  {"ph": "i",'
    b' "cat": "cpu_instant_event", "name": "[memory]", "ts": 2, "args": {"Bytes": -4}},\n'
    b' {"ph": "M", "name": "thread_name", "pid": 1, "args": {"name": "main"}},'
    b' {"ph": "B", "ts": 1}, {"ph": "E", "ts": 2}, {"ph": "s", "cat": "ac2g"}], "deviceProperties":'
    b' [{"id": 0, "name": "GPU"}]}',
    b"\nN\x12\t/host:CPU\x1a\x17\x08\x01\x12\x01t\x18\x00"
    b'"\x0e\x08\x01\x10\xe8\x07\x18\xd0\x0f"\x04\x08\x01\x18\x03"\x10\x08\x01\x12\x0c'
    b"\x08\x01\x12\x08cuLaunch*\x16\x08\x01\x12\x12\x08\x01\x12\x0e"
    b"correlation_id\nS\x12\r/dev"
    b"ice:GPU:0\x1a\x1f\x08\x01\x12\tStream "
    b'#1\x18\x00"\x0e\x08\x01\x10\x88\'\x18\xd0\x0f"\x04\x08\x01\x18\x03"\t'
    b"\x08\x01\x12\x05\x08\x01\x12\x01k*\x16\x08\x01\x12\x12\x08\x01\x12\x0ecor"
    b"relation_id",
    b'{"displayTimeUnit":"ns","traceEvents":[{"ph":"M","pid":1,"name":"process_name","args":{"name":"/device:TPU:0"}},'
    b'{"ph":"M","pid":1,"tid":2,"name":"thread_name","args":{"name":"XLA Modules"}},{"ph":"M","pid":9,"name":'
    b'"process_name","args":{"name":"/host:CPU"}},{"ph":"X","pid":1,"tid":2,"ts":3.5,"dur":1e-06,"name":"jit_f","args":'
    b'{"run_id":"5"}},{"ph":"X","pid":9,"tid":7,"ts":1,"dur":1,"name":"e","args":{"run_id":"5","device_ordinal":"0",'
    b'"correlation_id":"3","memcpy_details":"size:4","long_name":"%a = b"}},{}]}',
    b'{"rocprofiler-sdk-tool": [{"metadata": {"pid": 7}, "agents": [{"id": {"handle": 9}, "type": 2}], "strings":'
    b' {"buffer_records": [{"kind": "HIP_RUNTIME_API", "operations": ["hipFree"]}, {"kind": "MARKER_CORE_API",'
    b' "operations": ["roctxMarkA"]}], "marker_api": [{"key": 2, "value": "aten::mm, seq = 3, sizes = [[2]]"}]},'
    b' "kernel_symbols": [{"kernel_id": 1, "formatted_kernel_name": "k"}], "buffer_records": {"kernel_dispatch":'
    b' [{"kind": 0, "operation": 0, "correlation_id": {"internal": 1}, "start_timestamp": 5, "end_timestamp": 9,'
    b' "dispatch_info": {"agent_id": {"handle": 9}, "kernel_id": 1, "workgroup_size": {"x": 1, "y": 1, "z": 1}}}],'
    b' "marker_api": [{"kind": 1, "operation": 0, "correlation_id": {"internal": 2}, "start_timestamp": 1,'
    b' "end_timestamp": 4}, {"kind": 0}]}}]}',
    b'"Kind","Agent_Id","Queue_Id","Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp"\n'
    b'"KERNEL_DISPATCH","Agent 2",1,"k<int, 2>("a")",3,1000,2000\n"KERNEL_DISPATCH",3,1,"k",4,3000,2000\n',
    b'"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"\n'
    b'"MARKER_CORE_API","aten::mm, seq = 3, sizes = [[2]]",7,7,1,100,200\n"HIP_RUNTIME_API","hipFree",7,7,2,150,160',
    b'{"traceEvents": [{"ph": "X", "name": "a"b", "ts": NaN, "dur": inf, "x": "\x01\\q\xff"}, {"ph',
)


def check_reading(data: bytes, chunk_bytes: int = 64) -> Trace | None:
    """Read the bytes; raise unless that ends as it should."""
    try:
        trace = read_trace(io.BytesIO(data), max_bytes=64 << 20, processes=1, chunk_bytes=chunk_bytes)
    except TriageError:
        return None
    n = len(trace)
    for codes, table in ((trace.name, trace.names), (trace.cat, trace.cats), (trace.lane, trace.lanes)):
        assert len(codes) == n
        assert not n or (codes.min() >= 0 and codes.max() < len(table))
    assert not n or (trace.detail.min() >= -1 and trace.detail.max() < len(trace.details))
    assert (trace.dur_ns >= 0).all()
    report = trace.report
    assert report.n_events == sum(report.phases.values())
    assert n <= report.n_events
    assert report.tier in ("strict", "repaired", "salvaged")
    assert report.tier == "salvaged" or not report.n_lost
    assert report.tier != "salvaged" or report.n_lost or report.loss
    first = report.chunks[:, 0]
    assert (np.diff(first) >= 0).all()
    assert (report.chunks[:, 2] >= 0).all()
    for row in {0, n - 1} if n else ():
        assert isinstance(read_args(trace, row), dict)
    return trace


def main() -> None:
    """Run under atheris; the first folder named becomes the corpus."""
    folders = [Path(argument) for argument in sys.argv[1:] if not argument.startswith("-")]
    for folder in folders[:1]:
        folder.mkdir(parents=True, exist_ok=True)
        for index, seed in enumerate(SEEDS):
            (folder / f"seed-{index}").write_bytes(seed)

    def check_one(data: bytes) -> None:
        check_reading(data)

    atheris.Setup(sys.argv, check_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

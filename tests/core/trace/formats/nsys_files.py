"""Exports of Nsight Systems, made in tests: the tables and columns that real ones have. Times in ns."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

PROCESS, OTHER_PROCESS = 100, 200
PLACE = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
COLUMNS: dict[str, Sequence[str]] = {
    "StringIds": ("id", "value"),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        *(*PLACE, "demangledName", "shortName", "mangledName", "registersPerThread"),
        *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "graphNodeId"),
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (*PLACE, "bytes", "copyKind", "srcKind", "dstKind"),
    "CUPTI_ACTIVITY_KIND_MEMSET": (*PLACE, "bytes", "memKind"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (*PLACE, "graphId"),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (*PLACE, "syncType"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "eventClass", "globalTid", "correlationId", "nameId"),
    "CUPTI_ACTIVITY_KIND_OVERHEAD": ("start", "end", "globalTid", "correlationId", "nameId"),
    "NVTX_EVENTS": ("start", "end", "eventType", "text", "globalTid", "textId", "domainId"),
    "OSRT_API": ("start", "end", "globalTid", "nameId"),
    "ThreadNames": ("nameId", "priority", "globalTid"),
    "PROCESSES": ("globalPid", "pid", "name"),
    "TARGET_INFO_GPU": ("id", "name", "smCount", "totalMemory", "computeMajor", "computeMinor"),
    "TARGET_INFO_CUDA_DEVICE": ("gpuId", "cudaId", "pid"),
    "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs",),
    "META_DATA_EXPORT": ("name", "value"),
}


def process_id(pid: int) -> int:
    return 1 << 48 | pid << 24


def thread_id(pid: int, tid: int = 0) -> int:
    return process_id(pid) | (tid or pid)


class NsysFile:
    """Collects rows; ``write`` makes a database of them with the tables in use."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {"StringIds": []}
        self._texts: dict[str, int] = {}
        self._correlations: dict[int, int] = {}

    def add(self, table: str, **values: Any) -> NsysFile:
        self.rows.setdefault(table, []).append(values)
        return self

    def text(self, value: str) -> int:
        if value not in self._texts:
            self._texts[value] = len(self._texts) + 1
            self.add("StringIds", id=self._texts[value], value=value)
        return self._texts[value]

    def call(self, name: str, start: int, end: int, *, pid: int = PROCESS, tid: int = 0, driver: bool = False) -> int:
        """Add a call; returns its correlation, which counts within the process."""
        number = self._correlations[pid] = self._correlations.get(pid, 0) + 1
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=start,
            end=end,
            eventClass=int(driver),
            globalTid=thread_id(pid, tid),
            correlationId=number,
            nameId=self.text(name),
        )
        return number

    def kernel(
        self, name: str, start: int, end: int, *, pid: int = PROCESS, device: int = 0, stream: int = 7,
        launch: tuple[int, int] | None = None, correlation: int = 0,
    ) -> NsysFile:  # fmt: skip
        """Add a kernel, with its launch unless its correlation is given."""
        if not correlation:
            correlation = self.call("cudaLaunchKernel_v7000", *(launch or (start - 2000, start - 1000)), pid=pid)
        return self.add(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            **self.place(start, end, pid, device, stream, correlation),
            demangledName=self.text(name),
            shortName=self.text(name.partition("<")[0]),
            registersPerThread=32,
            **dict(zip(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), (4, 2, 1, 128, 1, 1), strict=True)),
        )

    def copy(self, way: int, start: int, end: int, size: int, kinds: tuple[int, int], **place: Any) -> NsysFile:
        pid = place.get("pid", PROCESS)
        correlation = self.call("cudaMemcpyAsync_v3020", start - 2000, start - 1000, pid=pid)
        return self.add(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            **self.place(start, end, pid, place.get("device", 0), place.get("stream", 7), correlation),
            bytes=size,
            copyKind=way,
            srcKind=kinds[0],
            dstKind=kinds[1],
        )

    def range(
        self, text: str, start: int, end: int | None, *, pid: int = PROCESS, tid: int = 0, kind: int = 59, **more: Any
    ) -> NsysFile:
        return self.add(
            "NVTX_EVENTS",
            **{"start": start, "end": end, "eventType": kind, "text": text, "globalTid": thread_id(pid, tid), **more},
        )

    def place(self, start: int, end: int, pid: int, device: int, stream: int, correlation: int) -> dict[str, int]:
        return dict(zip(PLACE, (start, end, device, device + 1, stream, correlation, process_id(pid)), strict=True))

    def write(self, path: Path, *, without: Sequence[str] = ()) -> Path:
        """Write the database; ``without`` these columns, as other versions are."""
        with closing(sqlite3.connect(path)) as connection:
            for table, rows in self.rows.items():
                columns = [column for column in COLUMNS[table] if column not in without]
                typed = ", ".join(
                    f"{column} {'TEXT' if column in ('text', 'value', 'name') else 'INTEGER'}" for column in columns
                )
                connection.execute(f"CREATE TABLE {table} ({typed})")
                marks = ", ".join("?" * len(columns))
                values = [[row.get(column) for column in columns] for row in rows]
                connection.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
            connection.commit()
        return path

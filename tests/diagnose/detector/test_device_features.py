"""What windows look like on a device: equal to a slow reading, and zero where there is no device."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from builder import TraceBuilder
from diagnose.detector.test_features import cpu, told, windows

from torchtriage.core.trace import Kind, Trace
from torchtriage.diagnose.detector.device_features import DEVICE, device_columns
from torchtriage.diagnose.detector.features import NAMES, window_features
from torchtriage.diagnose.detector.windows import Windows

CAUSES = {
    "sync": ("cudaStreamSynchronize",),
    "copy call": ("cudaMemcpyAsync",),
    "allocator": ("cudaMalloc", "cudaFree"),
    "launch": ("cudaLaunchKernel",),
    "other call": ("cudaEventRecord",),
    "loader": ("enumerate(DataLoader)#_Single.__next__",),
    "read": ("aten::item",),
    "operator": ("aten::mm", "aten::item"),
}
LENGTH = 100
COUNT = 12


def program(seed: int) -> Trace:
    """Return a program of whole microseconds that does something of everything."""
    chance = Random(seed)
    builder = TraceBuilder().step(0, 0, LENGTH * COUNT)
    now, free = 0, 0
    while now < LENGTH * COUNT - 80:
        now += chance.randrange(1, 9)
        length = chance.randrange(3, 20)
        kind = chance.choice(["launch", "launch", "launch", "copy", "sync", "malloc", "record", "loader", "read"])
        if kind in ("launch", "copy"):
            start = max(now + length + chance.randrange(2, 9), free)
            took = chance.choice([1, 4, 12, 120])
            builder.op("aten::mm", now - 1, length + 2)
            if kind == "launch":
                name = chance.choice(["ampere_sgemm_64", "cutlass_tf32_s1688gemm_align1", "vectorized_elementwise"])
                builder.launch(now, length, start, took, name, grid=[chance.choice([1, 63, 64, 900]), 1, 1])
            else:
                way = chance.choice(["HtoD (Pageable -> Device)", "DtoH (Device -> Pinned)"])
                builder.copy(now, length, start, took, kind=way, size=chance.choice([8, 4095, 4096, 1 << 20]))
            free = start + took
        elif kind == "sync":
            builder.sync(now, length)
        elif kind in ("malloc", "record"):
            builder.call(
                chance.choice(["cudaMalloc", "cudaFree"]) if kind == "malloc" else "cudaEventRecord", now, length
            )
        elif kind == "loader":
            builder.annotation("enumerate(DataLoader)#_Single.__next__", now, length)
        else:
            builder.op("aten::item", now, length)
        now += length
    return builder.build()


def slowly(trace: Trace, begin: int, end: int) -> dict[str, float]:
    """Return what a window looks like, looking at each of its microseconds and each row."""
    rows = [
        (
            trace.name_of(row),
            Kind(int(trace.kind[row])),
            *(int(time[row]) // 1000 for time in (trace.start_ns, trace.end_ns)),
            row,
        )
        for row in range(len(trace))
    ]
    works = sorted((row for row in rows if trace.works[row[4]]), key=lambda row: row[2])
    busy = {at for _, _, start, stop, _ in works for at in range(start, stop)}
    idle = [at for at in range(LENGTH * COUNT) if at not in busy]
    short = set()  # the device's own turn-around
    for at in idle:
        first = last = at
        while first > 0 and first - 1 not in busy:
            first -= 1
        while last < LENGTH * COUNT - 1 and last + 1 not in busy:
            last += 1
        if last - first < 2:
            short.add(at)
    found = dict.fromkeys([f"idle in {cause}" for cause in CAUSES], 0.0)
    for at in idle:
        if at in short or not begin <= at < end:
            continue
        for cause, names in CAUSES.items():
            if any(name in names and start <= at < stop for name, _, start, stop, _ in rows):
                found[f"idle in {cause}"] += 1 / (end - begin)
                break
    begun = [row for row in works if begin <= row[2] < end]
    copies = [row for row in begun if row[1] == Kind.MEMCPY]
    inside = {row[4]: max(min(row[3], end) - max(row[2], begin), 0) for row in works}
    total = sum(inside.values())

    def of_time(test: object) -> float:
        return sum(inside[row[4]] for row in works if test(row)) / total if total else 0.0  # type: ignore[operator]

    def per_ms(rows: list[tuple[str, Kind, int, int, int]]) -> float:
        return float(np.log1p(len(rows) / (end - begin) * 1e3))

    calls = [row for row in rows if row[1] == Kind.RUNTIME and begin <= row[2] < end]
    grids = trace.details_of("grid", [row[4] for row in works])
    few = {row[4] for row, grid in zip(works, grids, strict=True) if grid and grid[0] < 64}
    return found | {
        "device busy": sum(begin <= at < end for at in busy) / (end - begin),
        "device short kernel time": of_time(lambda row: row[1] == Kind.KERNEL and row[3] - row[2] < 5),
        "device long kernel time": of_time(lambda row: row[1] == Kind.KERNEL and row[3] - row[2] >= 100),
        "device few blocks": of_time(lambda row: row[4] in few),
        "device pageable time": of_time(lambda row: "Pageable" in row[0]),
        "products fp32": of_time(lambda row: "sgemm" in row[0]),
        "products tf32": of_time(lambda row: "tf32" in row[0]),
        "products unaligned": of_time(lambda row: "align1" in row[0]),
        "device uploads per ms": per_ms([row for row in copies if "HtoD" in row[0]]),
        "device readbacks per ms": per_ms([row for row in copies if "DtoH" in row[0]]),
        "device small copies": sum(int(trace.value[row[4]]) < 4096 for row in copies) / max(len(begun), 1),
        "device distinct kernels": len({row[0] for row in begun}) / max(len(begun), 1),
        "device sync calls per ms": per_ms([row for row in calls if "Synchronize" in row[0]]),
        "device allocator calls per ms": per_ms([row for row in calls if row[0] in ("cudaMalloc", "cudaFree")]),
        "device launches per ms": per_ms([row for row in calls if row[0] in ("cudaLaunchKernel", "cudaMemcpyAsync")]),
    }


@pytest.mark.parametrize("seed", range(4))
def test_columns_are_those_of_a_slow_reading(seed: int) -> None:
    trace = program(seed)
    edges = windows(*range(0, LENGTH * COUNT + 1, LENGTH))
    found = device_columns(trace, Windows(edges))
    assert set(found) == set(DEVICE)
    for at, (begin, end) in enumerate((edges // 1000).tolist()):
        for name, value in slowly(trace, begin, end).items():
            assert found[name][at] == pytest.approx(value, abs=1e-9), (at, name)
    idle = sum(found[name] for name in DEVICE if name.startswith("idle in"))
    assert np.all(idle <= 1 - found["device busy"] + 1e-9)


def test_without_a_device_all_of_it_is_zero() -> None:
    trace = cpu().step(0, 0, 200).op("aten::mm", 0, 50).op("aten::item", 90, 40).build()
    found = window_features(trace, windows(0, 100, 200))
    assert not found[:, [NAMES.index(name) for name in DEVICE]].any()
    assert not found[:, NAMES.index("device launches recorded")].any()


def test_the_lead_of_the_host_is_what_waits_in_the_queue() -> None:
    builder = TraceBuilder().step(0, 0, 400)
    for at in range(10):  # ten launches at once, a kernel each 20 us
        builder.launch(4 * at, 3, 50 + 20 * at, 20)
    trace = builder.build()
    edges = windows(0, 100, 200, 300, 400)
    depth = told(trace, edges, "device log queue depth")
    assert depth[0] < depth[1] > depth[2] > depth[3] == 0
    assert told(trace, edges, "device log queue")[1] == pytest.approx(np.log1p(20_000 * 3.5 + 60_000), abs=0.5)


def test_idle_time_with_work_in_the_queue_is_not_the_hosts() -> None:
    builder = TraceBuilder().step(0, 0, 400)
    builder.launch(0, 5, 10, 40)
    builder.launch(6, 5, 150, 40)  # launched long before it begins
    builder.launch(350, 5, 360, 40)  # after a hole in which the host does nothing
    trace = builder.build()
    (queued,), (python,) = (told(trace, windows(0, 400), f"idle in {name}") for name in ("queued", "python"))
    assert queued == pytest.approx(0.25, abs=0.05)
    assert python == pytest.approx(0.4, abs=0.05)

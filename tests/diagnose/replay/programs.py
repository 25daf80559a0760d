"""Small recorded runs, one for each way in which one thing waits for another. Times in us."""

from __future__ import annotations

import numpy as np
from builder import MAIN, TraceBuilder

from torchtriage.core.trace import Trace

ENGINE = 2


def host_bound(steps: int = 4) -> Trace:
    """Every step: 10 launches 100 us apart, each kernel 20 us; 200 us of Python at the end."""
    b = TraceBuilder()
    for step in range(steps):
        at = 1_000 + step * 1_200
        b.step(step, at, 1_200)
        for i in range(10):
            b.op("aten::mul", at + i * 100, 60)
            b.launch(at + i * 100 + 30, 8, at + i * 100 + 40, 20)
    return b.build()


def device_bound(steps: int = 4) -> Trace:
    """Every step: 10 launches 10 us apart, each kernel 100 us; the host runs ahead."""
    b = TraceBuilder()
    free = 0.0
    for step in range(steps):
        at = 1_000 + step * 200
        b.step(step, at, 200)
        for i in range(10):
            start = at + i * 10
            b.op("aten::mm", start, 8)
            begin = max(start + 12, free + 1)
            b.launch(start + 2, 5, begin, 100)
            free = begin + 100
    return b.build()


def reads_back(steps: int = 4) -> Trace:
    """Every step: three kernels of 200 us, then ``.item()``, then 100 us of Python."""
    b = TraceBuilder()
    at = 1_000.0
    for step in range(steps):
        begin = at
        for i in range(3):
            b.op("aten::mm", at + i * 20, 15)
            b.launch(at + i * 20 + 5, 5, at + 15 + i * 201, 200, "gemm")
        done = at + 15 + 2 * 201 + 200
        b.op("aten::item", at + 70, done + 30 - at - 70)
        b.op("aten::_local_scalar_dense", at + 71, done + 28 - at - 71)
        b.copy(at + 75, 12, done + 2, 2, kind="DtoH (Device -> Pinned)", size=4)
        b.sync(at + 90, done + 12 - at - 90)
        at = done + 130
        b.step(step, begin, at - begin)
    return b.build()


def two_streams(steps: int = 4) -> Trace:
    """Every step: a kernel, recorded; stream 20 waits for it; recorded; stream 7 waits back.

    The device is fast: no wait leaves a trace in the times.
    """
    b = TraceBuilder()
    for step in range(steps):
        at = 1_000 + step * 1_000
        b.step(step, at, 1_000)
        b.launch(at + 10, 5, at + 20, 30, "gemm", stream=7)
        b.call("cudaEventRecord", at + 100, 2)
        b.call("cudaStreamWaitEvent", at + 104, 2)
        b.launch(at + 110, 5, at + 120, 50, "ncclDevKernel_AllReduce", stream=20)
        b.call("cudaEventRecord", at + 200, 2)
        b.call("cudaStreamWaitEvent", at + 300, 2)
        b.launch(at + 310, 5, at + 320, 40, "gemm", stream=7)
    return b.build()


def backward_on_engine(steps: int = 4) -> Trace:
    """Every step: 100 us of forward on the main thread, 300 us of backward on the engine's."""
    b = TraceBuilder()
    for step in range(steps):
        at = 1_000 + step * 1_000
        b.step(step, at, 900)
        b.op("aten::mm", at + 10, 90)
        b.launch(at + 20, 5, at + 30, 10)
        for i in range(3):
            name = "autograd::engine::evaluate_function: MmBackward0"
            b.op(name, at + 150 + i * 100, 95, tid=ENGINE)
            b.launch(at + 160 + i * 100, 5, at + 170 + i * 100, 10, tid=ENGINE)
        b.op("aten::add_", at + 500, 90)
        b.launch(at + 510, 5, at + 520, 10)
    return b.build()


def queue_limited(n: int = 2_400, limit: int = 1_000) -> Trace:
    """Launches every 5 us, kernels of 50 us: from ``limit`` pending on, launching waits."""
    b = TraceBuilder()
    host, free = 1_000.0, 0.0
    starts: list[float] = []
    for i in range(n):
        call = host
        room = starts[i - limit] if i >= limit else 0.0
        end = max(call + 4, room + 1)
        begin = max(call + 8, free + 1)
        b.launch(call, end - call, begin, 50)
        starts.append(begin)
        free = begin + 50
        host = end + 1
    b.op("aten::mm", 1_000, host - 1_000)
    return b.build()


def frees(steps: int = 4) -> Trace:
    """Every step: a kernel of 500 us, then ``cudaFree``, which waits for it and takes 40 us."""
    b = TraceBuilder()
    for step in range(steps):
        at = 1_000 + step * 800
        b.step(step, at, 800)
        b.op("aten::mm", at + 5, 20)
        b.launch(at + 10, 5, at + 20, 500)
        b.call("cudaFree", at + 50, 470 + 40)
    return b.build()


def loads_code(*, returns: float = 40, usual: float = 5) -> Trace:
    """A kernel of 15 ms, then a call that loads code, which waits for it, and a kernel behind it."""
    b = TraceBuilder().op("aten::mm", 4_000, 20)
    for i in range(2):
        b.call("cudaFuncSetAttribute", 100 + 1_500 * i, usual)
    b.launch(4_005, 5, 4_020, 15_000)
    b.call("cudaFuncSetAttribute", 4_050, 14_970 + returns)
    b.launch(19_030 + returns, 5, 19_040 + returns, 10)
    return b.build()


def loads_with_workers(steps: int = 6, period: float = 20_000) -> Trace:
    """Every step waits for a batch that two workers make every 20 ms; the rest takes 4 ms."""
    b = TraceBuilder()
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    for step in range(steps):
        at = 1_000 + step * period
        b.step(step, at, period)
        b.annotation(name, at + 10, period - 4_000)
        b.op("aten::mm", at + period - 3_900, 3_500)
        b.launch(at + period - 3_800, 5, at + period - 3_780, 2_000)
    return b.build()


def uploads_pageable(steps: int = 4) -> Trace:
    """Every step: an upload of 400 us that the host stages and waits for, a kernel of 300 us."""
    b = TraceBuilder()
    for step in range(steps):
        at = 1_000 + step * 1_000
        b.step(step, at, 1_000)
        b.op("aten::to", at + 10, 440)
        b.copy(at + 20, 410, at + 40, 400, size=4_000_000)
        b.sync(at + 432, 12)
        b.op("aten::mm", at + 460, 20)
        b.launch(at + 465, 5, at + 475, 300)
        b.op("aten::add", at + 490, 400)
    return b.build()


def blocking_launches(steps: int = 4) -> Trace:
    """CUDA_LAUNCH_BLOCKING: every launch returns after its kernel of 80 us."""
    b = TraceBuilder()
    for step in range(steps):
        at = 1_000 + step * 1_000
        b.step(step, at, 1_000)
        for i in range(8):
            b.op("aten::mm", at + i * 120, 110)
            b.launch(at + i * 120 + 5, 100, at + i * 120 + 15, 80)
    return b.build()


def device_sync_per_step(steps: int = 4) -> Trace:
    """Every step: kernels on two streams, then a device synchronise."""
    b = TraceBuilder()
    for step in range(steps):
        at = 1_000 + step * 1_000
        b.step(step, at, 1_000)
        b.launch(at + 10, 5, at + 20, 300, stream=7)
        b.launch(at + 20, 5, at + 30, 600, stream=20)
        b.sync(at + 40, 600, "cudaDeviceSynchronize")
        b.op("aten::add", at + 700, 200)
    b.profiler_stop(1_000 + steps * 1_000 + 10, 5)
    return b.build()


def graph_launches(steps: int = 4) -> Trace:
    """Every step: one graph launch that owns five kernels of 40 us."""
    b = TraceBuilder()
    for step in range(steps):
        at = 1_000 + step * 400
        b.step(step, at, 400)
        correlation = 100 + step
        b.call("cudaGraphLaunch", at + 10, 30, correlation=correlation)
        for i in range(5):
            b.kernel("gemm", at + 30 + i * 41, 40, correlation=correlation)
    return b.build()


def cpu_only(steps: int = 4) -> Trace:
    """No device: 10 operators of 80 us and 200 us of Python per step."""
    b = TraceBuilder(vendor="cpu")
    for step in range(steps):
        at = 1_000 + step * 1_200
        b.step(step, at, 1_200)
        for i in range(10):
            b.op("aten::mm", at + i * 100, 80)
    return b.build()


ALL = (
    host_bound,
    device_bound,
    reads_back,
    two_streams,
    backward_on_engine,
    queue_limited,
    frees,
    loads_with_workers,
    uploads_pageable,
    blocking_launches,
    device_sync_per_step,
    graph_launches,
    cpu_only,
)


def rows(trace: Trace, name: str) -> np.ndarray:
    """Return the rows of this name."""
    return np.flatnonzero(trace.named(name))


__all__ = ["ALL", "ENGINE", "MAIN", "rows", *(one.__name__ for one in ALL)]

"""What windows look like between ranks: times and sizes of collectives, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder
from diagnose.detector.test_features import cpu, told, windows

WORKER = 2
EDGES = windows(0, 1000, 2000, 3000, 4000)


def two_ranks(*lasts: float, engine: bool = False, elements: int = 100) -> TraceBuilder:
    """Return a rank that enqueues a collective in each window, which lasts as long as told; it computes meanwhile."""
    builder = cpu().step(0, 0, 4000)
    for at, last in enumerate(lasts):
        begin = 1000 * at
        if engine:
            builder.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", begin + 90, 25)
        builder.op("c10d::allreduce_", begin + 100, 10.5)
        builder.annotation("gloo:all_reduce", begin + 200, last, tid=WORKER)
        builder.events[-1]["args"] = {"Input Dims": [[elements]], "Input type": ["float"]}
        builder.op("aten::mm", begin + 150, 300)
    return builder


def test_without_collectives_all_is_zero() -> None:
    trace = cpu().step(0, 0, 4000).op("aten::mm", 0, 50).build()
    assert told(trace, EDGES, "collectives running") == [0, 0, 0, 0]


def test_they_run_wait_and_last_longer_than_the_fastest() -> None:
    trace = two_ranks(200, 500, 200, 700).build()
    assert told(trace, EDGES, "collectives running") == [0.2, 0.5, 0.2, 0.7]
    # in the second and the fourth window the host has computed its 300 us before they end
    assert told(trace, EDGES, "collectives exposed") == [0, 0.25, 0, 0.45]
    assert told(trace, EDGES, "collectives beyond fastest") == [0, 0.3, 0, 0.5]
    assert told(trace, EDGES, "collectives per ms") == [round(float(np.log(2)), 4)] * 4


@pytest.mark.parametrize(("elements", "small"), [(100, 1), (1 << 20, 0)])
def test_how_large_they_are(elements: int, small: float) -> None:
    trace = two_ranks(200, 200, 200, 200, elements=elements).build()
    assert told(trace, EDGES, "collectives small") == [small] * 4
    assert told(trace, EDGES, "collectives log size") == [round(float(np.log1p(4 * elements)), 4)] * 4


@pytest.mark.parametrize(("engine", "outside"), [(True, 0), (False, 1)])
def test_who_enqueues_them(engine: bool, outside: float) -> None:
    trace = two_ranks(200, 200, 200, 200, engine=engine).build()
    assert told(trace, EDGES, "collectives outside backward") == [outside] * 4
    assert told(trace, EDGES, "collectives reduce") == [1] * 4


def test_on_a_device_kernels_count() -> None:
    builder = TraceBuilder().step(0, 0, 4000)
    for at in range(4):
        builder.launch(1000 * at, 5, 1000 * at + 20, 400, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", stream=20)
        builder.launch(1000 * at + 6, 5, 1000 * at + 120, 600)
    trace = builder.build()
    assert told(trace, EDGES, "collectives running") == [0.4] * 4
    assert told(trace, EDGES, "collectives exposed") == [0.1] * 4

"""HST055 on built traces; times in microseconds."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.base import Fix
from torchtriage.diagnose.patterns.host.host_stalled import find as host_stalled
from torchtriage.diagnose.patterns.host.slow_host_operator import BUFFERS, CREATED, FIX, find
from torchtriage.diagnose.patterns.launch.launch_bound import find as launch_bound


def loop(op_us: float, *, name: str = "aten::randn", kernel_us: float = 500, marked: bool = True) -> TraceBuilder:
    """Return steps that make their input on the host, upload it and compute."""
    trace = TraceBuilder()
    for step in range(4):
        start = step * 5_000.0
        if marked:
            trace.step(step, start, 5_000)
        trace.op(name, start + 10, op_us).op("aten::normal_", start + 15, op_us - 8)
        trace.op("aten::mm", start + op_us + 20, 20)
        trace.launch(start + op_us + 30, 5, start + op_us + 38, kernel_us)
    return trace.profiler_stop(20_001, 5)


def test_quiet_on_short_operators() -> None:
    assert not list(find(loop(800).build()))


def test_quiet_where_the_device_works_meanwhile() -> None:
    assert not list(find(loop(3_000, kernel_us=4_900).build()))


@pytest.mark.parametrize("marked", [True, False])
def test_random_numbers_made_on_the_host(marked: bool) -> None:
    trace = loop(3_000, marked=marked).build()
    (claim,) = find(trace)
    assert "aten::randn" in claim.message
    assert claim.fix == CREATED
    assert claim.gain_low == pytest.approx(0.5 / trace.origin.inflation)
    assert claim.evidence["n_ops_per_step"] == pytest.approx(1 if marked else 4)
    assert claim.evidence["gpu_idle_ms_per_step"] == pytest.approx(3.0 if marked else 12.0, rel=0.02)
    assert not list(host_stalled(trace))
    assert not list(launch_bound(trace))


def test_an_operator_is_the_same_in_its_place_though_its_name_is_short_elsewhere() -> None:
    trace = TraceBuilder()
    for step in range(4):
        start = step * 5_000.0
        trace.step(step, start, 5_000)
        for place in range(5):
            trace.op("aten::split_with_sizes", start + 10 + 10 * place, 5)
        trace.op("aten::split_with_sizes", start + 100, 3_000)
        for view in range(10):
            trace.op("aten::as_strided", start + 110 + 290 * view, 280)
        trace.op("aten::mm", start + 3_120, 20)
        trace.launch(start + 3_130, 5, start + 3_138, 500)
    (claim,) = find(trace.profiler_stop(20_001, 5).build())
    assert claim.evidence["ops_gpu_idle_ms_per_step"] == {"aten::split_with_sizes": pytest.approx(3.0)}
    assert claim.fix == FIX


@pytest.mark.parametrize(
    ("owner", "fix"), [("DistributedDataParallel.forward", BUFFERS), ("MyOptimizer.gather", FIX)], ids=["ddp", "other"]
)
def test_buffers_that_ddp_sends_have_a_flag(owner: str, fix: Fix) -> None:
    trace = TraceBuilder()
    for step in range(4):
        start = step * 5_000.0
        trace.step(step, start, 5_000).op(owner, start + 5, 3_200)
        trace.op("aten::unflatten_dense_tensors", start + 10, 3_000)
        trace.op("aten::mm", start + 3_020, 20)
        trace.launch(start + 3_030, 5, start + 3_038, 500)
    (claim,) = find(trace.profiler_stop(20_001, 5).build())
    assert claim.fix == fix

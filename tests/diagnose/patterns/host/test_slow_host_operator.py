"""HST055 on built traces; times in microseconds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.api.traces import analyze
from torchtriage.diagnose.patterns.base import Fix
from torchtriage.diagnose.patterns.host.host_stalled import find as host_stalled
from torchtriage.diagnose.patterns.host.slow_host_operator import BUFFERS, COMPUTED, CREATED, FIX, PINNED, find
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


def features(
    op_us: float, *, name: str = "aten::log", view_us: float = 2, launches: bool = False, around: str = ""
) -> TraceBuilder:
    """Return steps in which 20 operators in a row, 30 us apart, come before what is launched."""
    trace = TraceBuilder()
    for step in range(4):
        start = step * 5_000.0
        trace.step(step, start, 5_000)
        if around:
            trace.annotation(around, start + 5, 3_400)
        trace.frame("train.py(7): features", start + 8, 3_400)
        for place in range(20):
            at = start + 10 + place * (op_us + 30)
            trace.op("aten::select", at, view_us + 1).op("aten::as_strided", at + 0.5, view_us)
            trace.op(name, at + 25, op_us)
            if launches:
                trace.launch(at + 26, 5, at + 33, 3)
        trace.frame("model.py(1): forward", start + 3_600, 60).op("aten::mm", start + 3_620, 20)
        trace.launch(start + 3_630, 5, start + 3_638, 500)
    return trace.profiler_stop(20_001, 5)


def test_many_short_operators_that_compute_on_the_host_add_up() -> None:
    trace = features(100).build()
    (claim,) = find(trace)
    assert claim.evidence["n_ops_per_step"] == 20
    assert claim.evidence["gpu_idle_ms_per_step"] == pytest.approx(2.0, rel=0.01)
    assert claim.evidence["ops_gpu_idle_ms_per_step"] == {"aten::log": pytest.approx(2.0, rel=0.01)}
    assert claim.fix == COMPUTED
    # what lies between them goes with them, at best
    low, high = (
        float((np.broadcast_to(gain, len(claim.spans)) * np.diff(claim.spans)[:, 0]).sum()) / 1e6 / trace.steps.n_steady
        for gain in (claim.gain_low, claim.gain_high)
    )
    assert low == pytest.approx(0.5 * 2.0, rel=0.01)
    assert high == pytest.approx(2.0 + 19 * 0.030, rel=0.01)


def test_the_place_is_where_most_of_it_is_computed() -> None:
    trace = features(100)
    trace.frame("other.py(3): augment", 3_420, 190).op("aten::flip", 3_430, 170)
    built = trace.build()
    (claim,) = find(built)
    assert built.name_of(claim.anchor) == "aten::log"


@pytest.mark.parametrize(
    ("op_us", "changes"),
    [
        (9, {}),
        (100, {"launches": True}),
        (100, {"name": "aten::as_strided"}),
        (100, {"name": "TorchDynamo Cache Lookup"}),
        (100, {"view_us": 20}),
        (100, {"around": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"}),
    ],
    ids=["dispatch", "launched", "view", "no operator", "slow host", "loader"],
)
def test_quiet_on_short_operators_that_do_not_compute(op_us: float, changes: dict[str, Any]) -> None:
    assert not features(op_us, **changes).claims(find)


def test_short_gaps_that_computing_held_are_no_matter_of_launching() -> None:
    trace = TraceBuilder()
    for step in range(4):
        start = step * 5_000.0
        trace.step(step, start, 5_000)
        for place in range(18):
            at = start + 10 + place * 270
            trace.op("aten::log", at, 200).op("aten::mm", at + 210, 20)
            trace.launch(at + 220, 5, at + 228, 20)
    findings = analyze(trace.profiler_stop(20_001, 5).build()).findings
    computed, launched = (next(one.cost for one in findings if one.code == code) for code in ("HST055", "LCH014"))
    assert computed is not None
    assert launched is not None
    assert computed.share_high == pytest.approx(0.72, abs=0.02)
    assert launched.share_high < 0.25  # what is left between: 50 of 270 us
    assert "LCH014" in findings[0].also_explains


def test_quiet_on_operators_in_one_step_of_several() -> None:
    trace = TraceBuilder()
    for step in range(4):
        start = step * 5_000.0
        trace.step(step, start, 5_000)
        for place in range(20 if step == 1 else 0):
            trace.op("aten::log", start + 10 + 150 * place, 120)
        trace.op("aten::mm", start + 3_620, 20)
        trace.launch(start + 3_630, 5, start + 3_638, 500)
    assert not trace.profiler_stop(20_001, 5).claims(find)


def test_quiet_on_less_than_a_twentieth_of_the_step() -> None:
    assert not loop(200).claims(find)


def test_quiet_where_the_device_works_meanwhile() -> None:
    assert not loop(3_000, kernel_us=4_900).claims(find)


@pytest.mark.parametrize("marked", [True, False])
def test_random_numbers_made_on_the_host(marked: bool) -> None:
    trace = loop(3_000, marked=marked).build()
    (claim,) = find(trace)
    assert "aten::randn" in claim.message
    assert claim.fix == CREATED
    assert claim.gain_low == pytest.approx(0.5)  # one operator of 3 ms: the profiler adds next to nothing
    assert claim.evidence["n_ops_per_step"] == pytest.approx(1 if marked else 3)  # the first is before the window
    assert claim.evidence["gpu_idle_ms_per_step"] == pytest.approx(3.0 if marked else 9.0, rel=0.02)
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


def test_memory_that_is_pinned_in_the_step_is_pinned_elsewhere() -> None:
    (claim,) = find(loop(3_000, name="aten::pin_memory").build())
    assert claim.fix == PINNED


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

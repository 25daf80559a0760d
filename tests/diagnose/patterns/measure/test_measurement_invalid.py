"""MSR034 measurement-invalid."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.measure.measurement_invalid import CLOCK_FIX, find

CLOCK = "<built-in function perf_counter>"


def loop(*walls: float) -> TraceBuilder:
    builder, at = TraceBuilder(), 0.0
    for i, wall in enumerate(walls):
        builder.step(i, at, wall).op("aten::mm", at + 1, wall - 2.5)
        at += wall
    return builder


def test_quiet_on_warm_steps() -> None:
    assert not loop(1_000, 1_000, 1_100, 1_000).claims(find)


def test_quiet_on_a_first_step_that_is_a_little_longer() -> None:
    assert not loop(4_000, 1_000, 1_000).claims(find)


def test_quiet_on_a_little_lazy_loading() -> None:
    builder = loop(1_000, 1_000, 1_000)
    builder.event("Lazy Function Loading", "overhead", 1_100, 100, pid=-1, tid=0)
    assert not builder.claims(find)


def test_quiet_on_buffers_of_the_profiler() -> None:
    builder = loop(1_000, 1_000, 1_000)
    builder.event("Activity Buffer Request", "overhead", 1_100, 900, pid=-1, tid=0)
    assert not builder.claims(find)


def test_quiet_on_a_long_wait() -> None:
    assert not loop(50_000, 50_000).sync(100, 40_000, "cudaDeviceSynchronize").claims(find)


def test_quiet_on_frees_without_a_caching_allocator() -> None:
    builder = loop(*[50_000] * 6)
    for i in range(12):
        builder.call("hipFree", 20_000 * i, 15_000)
    assert not builder.claims(find)


def test_from_a_quarter_of_the_judged_time_on_first_use_voids_the_rest() -> None:
    def window(first_use: float) -> TraceBuilder:
        builder = TraceBuilder().op("aten::mm", 0, 100_000)
        return builder.call("cudaFree", 100, first_use)

    assert [claim.voids for claim in window(26_000).claims(find)] == [True]
    assert [claim.voids for claim in window(24_000).claims(find)] == [False]
    # steps that hold it are left out of what is judged
    (claim,) = loop(50_000, 50_000, 50_000).call("cudaFree", 100, 40_000).claims(find)
    assert not claim.voids


def test_what_every_step_loads_again_is_no_start_up() -> None:
    builder = loop(*[1_000] * 6)
    for step in range(6):
        builder.call("cuModuleLoadData", 1_000 * step + 100, 400)
    assert [claim.voids for claim in builder.claims(find)] == [False]
    for step in range(6):
        builder.annotation("_compile.compile_inner (dynamo_timed)", 1_000 * step + 500, 300)
    assert [claim.voids for claim in builder.claims(find)] == [True]
    (claim,) = loop(1_000).call("cuModuleLoadData", 100, 400).claims(find)
    assert claim.voids  # one step is no habit


def test_first_use_claims_no_time() -> None:
    (claim,) = loop(50_000, 50_000, 50_000).call("cudaFree", 100, 40_000).claims(find)
    assert claim.time_class == "none"
    assert not len(claim.spans)
    assert claim.always
    assert claim.certainty == "certain"
    assert claim.evidence["first_use_ms"] == 40.0
    assert claim.evidence["share_of_window"] == pytest.approx(40 / 150, abs=1e-4)
    assert claim.evidence["first_use_in_judged_time_ms"] == 0.0  # its step is not judged
    assert claim.evidence["top_first_uses_ms"] == {"cudaFree": 40.0}


def test_first_use_stays_in_the_judged_time_without_steps() -> None:
    (claim,) = TraceBuilder().op("aten::mm", 0, 50_000.5).call("cudaFree", 100, 40_000).claims(find)
    assert claim.evidence["first_use_in_judged_time_ms"] == 40.0


def test_what_is_told_is_of_the_window_and_not_of_a_start_before_it() -> None:
    builder = TraceBuilder().call("cudaFree", 0, 80_000)
    builder.launch(100_000, 5, 100_010, 20, "fill")
    builder.launch(180_000, 5, 180_010, 19_990, "gemm")
    builder.call("cuLibraryLoadData", 110_000, 30_000)
    (claim,) = builder.claims(find)
    assert claim.message == "first use or compilation takes 30.0 ms of the 100 ms window (30 %)"
    assert claim.voids


def test_compilation_counts() -> None:
    builder = loop(1_000, 1_000, 1_000)
    builder.annotation("_compile.compile_inner (dynamo_timed)", 1_100, 300)
    (claim,) = builder.claims(find)
    assert claim.evidence["first_use_ms"] == 0.3


def unseen(*names: str, load: float = 7_000, pause: float = 50_000) -> TraceBuilder:
    """Return kernels after pauses of the host in a recording without operators; the second launch loads."""
    builder = TraceBuilder()
    for i, name in enumerate(names):
        dur = load if i == 1 else 10
        builder.launch(pause * i - dur, dur, pause * i, 5, name)
    return builder


def test_pauses_before_kernels_run_first_are_start_up_where_the_host_has_no_rows() -> None:
    (claim,) = unseen("fill", "triton_0", "triton_1", "gemm").claims(find)
    assert (claim.certainty, claim.voids) == ("hint", True)
    assert claim.message == (
        "the GPU stands idle for 150 ms of the 150 ms window (100 %) before kernels that run for the first time, and"
        " a launch takes 7.00 ms: loading or compilation, as far as a recording without operators can show"
    )


def test_quiet_on_pauses_without_signs_of_start_up() -> None:
    assert not unseen("fill", "gemm", "gemm", "gemm", "gemm", "gemm").claims(find)  # a slow loop
    assert not unseen("fill", "triton_0", "gemm", load=300).claims(find)
    assert not unseen("fill", "triton_0", "gemm").op("aten::mm", 20_000, 5).claims(find)
    # stages of host work, or steps whose first kernel is called by its shape, and one launch that was held up
    assert not unseen("fill", "shape_1", "shape_2", "shape_3", load=1_200).annotation("eval", 0, 150_000).claims(find)


def test_a_slow_first_step_is_a_warm_up() -> None:
    (claim,) = loop(6_000, 1_000, 1_000, 1_200).claims(find)
    assert claim.evidence == {"first_step_ms": 6.0, "median_other_step_ms": 1.0}


# -- clocks ------------------------------------------------------------------------------------


def timed(*, work: float = 500, sync: bool = False, owner: str = "bench.py(3): main") -> TraceBuilder:
    """A clock, one launch at 100, a clock at 200; the kernel ends ``work`` after 110."""
    builder = TraceBuilder().frame(owner, 0, 2_000).op("aten::mm", 95, 20.5)
    builder.frame(CLOCK, 50, 1).frame(CLOCK, 200, 1)
    builder.launch(100, 5, 110, work)
    if sync:
        builder.sync(120, 60)
    return builder


def test_a_clock_read_before_the_device_is_done() -> None:
    (claim,) = timed().claims(find)
    # from 51 to 200 by the clock; the device works until 610
    assert claim.evidence["n_clock_intervals"] == claim.evidence["n_early_intervals"] == 1
    assert claim.evidence["median_missed_ms"] == pytest.approx(0.41)
    assert claim.evidence["median_missed_share_of_interval"] == pytest.approx(410 / 149, abs=1e-3)
    assert claim.certainty == "hint"
    assert claim.fix is CLOCK_FIX
    assert claim.time_class == "none"


def test_quiet_when_the_clock_waits() -> None:
    assert not timed(sync=True).claims(find)


def test_quiet_when_the_device_is_done_in_time() -> None:
    assert not timed(work=95).claims(find)


def test_quiet_on_clocks_of_libraries() -> None:
    assert not timed(owner="tqdm/std.py(3): update").claims(find)


def test_quiet_on_clocks_around_host_work() -> None:
    builder = TraceBuilder().frame("bench.py(3): main", 0, 2_000).op("aten::mm", 5, 20.5)
    builder.launch(10, 5, 20, 5_000)
    assert not builder.frame(CLOCK, 50, 1).frame(CLOCK, 200, 1).claims(find)

"""CPY007 on built traces; times in microseconds."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

import torchtriage as tt
from torchtriage.diagnose.patterns.copy.h2d_pageable import find

MB = 1 << 20


def loop(
    *, steps: int = 4, size: int = 10_000_000, kind: str = "", call: str = "", vendor: str = "cuda"
) -> TraceBuilder:
    """Return steps that begin with a batch of 10 MB, copied at 10 GB/s while the host stands."""
    trace = TraceBuilder(vendor=vendor)
    label = kind or ("HtoD (Host -> Device)" if trace.rocm else "HtoD (Pageable -> Device)")
    for step in range(steps):
        start = step * 10_000.0
        trace.step(step, start, 10_000)
        trace.copy(start + 100, 1_100, start + 150, 1_000, size=size, kind=label, call=call)
        trace.launch(start + 1_300, 5, start + 1_310, 8_000)
    return trace.profiler_stop(steps * 10_000 + 1, 5)


def test_quiet_on_small_copies() -> None:
    assert not loop(size=MB - 1).claims(find)


def test_quiet_on_pinned_memory() -> None:
    assert not loop(kind="HtoD (Pinned -> Device)").claims(find)


def test_quiet_on_rocms_asynchronous_copies() -> None:
    assert not loop(vendor="rocm", call="hipMemcpyAsync").claims(find)


def test_quiet_on_loading_a_model() -> None:
    trace = TraceBuilder()
    for one in range(16):
        trace.copy(one * 2_000, 1_100, one * 2_000 + 50, 1_000, size=10 * MB)
    trace.launch(40_000, 5, 40_010, 500)
    assert not trace.profiler_stop(41_000, 5).claims(find)


def test_quiet_on_one_upload_in_many_steps() -> None:
    trace = loop(size=4096, steps=8)
    trace.copy(35_000, 1_100, 39_350, 100, size=10 * MB)
    assert not trace.claims(find)


def test_quiet_when_kernels_hide_it() -> None:
    trace = loop()
    trace.launch(0, 1, 5, 41_000, stream=9)
    assert not trace.claims(find)


def test_a_batch_in_every_step() -> None:
    (claim,) = find(loop().build())
    assert claim.certainty == "likely"
    assert claim.time_class == "copy"
    assert claim.evidence["copied_bytes_per_step"] == 10_000_000
    assert claim.evidence["pageable_gb_per_s"] == pytest.approx(10)
    assert claim.evidence["copy_ms_per_step"] == pytest.approx(1)
    assert "at 10 GB/s" in claim.message


def test_one_batch_without_steps() -> None:
    trace = TraceBuilder()
    trace.copy(100, 1_100, 150, 1_000, size=10_000_000)
    trace.launch(1_300, 5, 1_310, 8_000)
    (claim,) = find(trace.profiler_stop(9_400, 5).build())
    assert "in the window" in claim.message


def test_rocm_shows_it_by_the_blocking_call() -> None:
    (claim,) = find(loop(vendor="rocm").build())
    assert claim.evidence["n_copies_per_step"] == 1


def test_without_the_kind_of_memory_the_call_shows_it() -> None:
    assert len(loop(kind="HtoD").claims(find)) == 1
    assert not loop(kind="HtoD", size=40_000_000).claims(find)  # as fast as from pinned memory
    trace = TraceBuilder()
    for step in range(4):
        trace.step(step, step * 10_000.0, 10_000)
        trace.copy(step * 10_000.0 + 100, 5, step * 10_000.0 + 120, 1_000, size=10_000_000, kind="HtoD")
    assert not trace.claims(find)


def test_pinned_speed_is_the_low_end_and_overlap_the_high_one() -> None:
    (claim,) = find(loop().build())
    lengths = claim.spans[:, 1] - claim.spans[:, 0]
    # 10 MB take 0.2 ms at the 50 GB/s of an H100's link
    assert (lengths * claim.gain_low).sum() == pytest.approx(4 * 800_000)
    # the call: 50 us before the copy, and 1150-1310 behind it, which the host was in time for
    assert (lengths * claim.gain_high).sum() == pytest.approx(4 * (1_000_000 + 50_000 + 160_000))


def test_a_slower_link_saves_less() -> None:
    trace = loop()
    trace.meta["deviceProperties"][0]["computeMajor"] = 7
    (claim,) = find(trace.build())
    lengths = claim.spans[:, 1] - claim.spans[:, 0]
    assert (lengths * claim.gain_low).sum() == pytest.approx(4 * (1_000_000 - 10_000_000 / 12))


def priced(trace: TraceBuilder) -> tuple[float, float]:
    """Return the saving of the upload in us per step, low and high, as replay works it out."""
    (finding,) = tt.analyze(trace.build(), only=["CPY007"]).findings
    assert finding.cost is not None
    assert finding.cost.method.startswith("replay")
    replayed = finding.cost.calibration
    assert replayed is not None
    return finding.cost.of_ms * 1e3 * replayed.share_low, finding.cost.of_ms * 1e3 * replayed.share_high


def waiting(*, upload_stream: int = 7, readback_us: float = 0) -> TraceBuilder:
    """Return steps of nothing but an upload and what follows it: 20 MB at 20 GB/s, and pinned 50."""
    trace = TraceBuilder()
    for step in range(4):
        start = step * 3_000.0
        trace.step(step, start, 1_400 + readback_us)
        trace.copy(start + 100, 1_040, start + 150, 1_000, size=20_000_000, stream=upload_stream)
        trace.launch(start + 1_190, 5, start + 1_200, 100)
        trace.launch(start + 1_196, 5, start + 1_301, 50)
        if readback_us:
            kind = "DtoH (Device -> Pageable)"
            trace.copy(
                start + 1_390, readback_us, start + 1_400, readback_us - 20, kind=kind, size=20_000_000, stream=8
            )
    return trace.profiler_stop(12_001, 5)


def test_pinned_memory_saves_the_staging_too() -> None:
    low, high = priced(waiting())
    # 600 of the transfer, and most of the 50 before it; prefetched, 400 at pinned speed bound the step
    assert low == pytest.approx(600 + 42, abs=10)
    assert high > low + 100


def test_no_interval_without_a_width() -> None:
    # the readback on a stream of its own could hide all of the upload, pinned or not
    low, high = priced(waiting(upload_stream=9, readback_us=1_500))
    assert low == pytest.approx(600 + 42, abs=10)
    assert high > low + 100

"""MEM027: the allocator in steady steps."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.alloc.allocator_churn import find


def loop(builder, *, calls=(), steps=5, only=None, busy=100.0):
    """Add steps of 1 ms: a kernel, then allocator calls, then a kernel; the device waits for them.

    ``calls`` are (name, us). ``only`` restricts them to some steps.
    """
    for index in range(steps):
        at = 1000.0 * index
        builder.step(index, at, 1000)
        builder.launch(at + 10, 5, at + 20, busy)
        now = at + 130
        for name, dur in calls if only is None or index in only else ():
            builder.call(name, now, dur)
            now += dur
        builder.launch(now, 5, now + 10, busy)
    return builder


CHURN = (("cudaMalloc", 100), ("cudaFree", 200))


def test_quiet_without_calls():
    assert not loop(TraceBuilder()).claims(find)


def test_quiet_in_the_first_step():
    assert not loop(TraceBuilder(), calls=CHURN, only=[0]).claims(find)


def test_quiet_in_a_single_step():
    assert not loop(TraceBuilder(), calls=CHURN, steps=1).claims(find)


def test_quiet_on_one_late_allocation():
    # one of nine steady steps, however long it takes
    calls = (("cudaMalloc", 500),)
    assert not loop(TraceBuilder(), calls=calls, steps=10, only=[6]).claims(find)


def test_quiet_on_stream_ordered_allocation():
    calls = (("cudaMallocAsync", 100), ("cudaFreeAsync", 100))
    assert not loop(TraceBuilder(), calls=calls).claims(find)


def test_quiet_on_what_an_emptied_cache_has_to_take_again():
    builder = TraceBuilder()
    for index in range(5):
        at = 1000.0 * index
        builder.step(index, at, 1000)
        builder.call("cudaMalloc", at + 5, 90).call("cudaMalloc", at + 100, 90)
        builder.launch(at + 200, 5, at + 210, 100)
        builder.call("cudaFree", at + 700, 80).call("cudaFree", at + 790, 80)
    assert not builder.claims(find)  # MEM028's


def test_quiet_while_graphs_are_captured():
    builder = loop(TraceBuilder(), calls=CHURN)
    for index in range(5):
        builder.call("cudaStreamEndCapture", 1000 * index + 800, 1)
    assert not builder.claims(find)


def test_quiet_on_frees_of_empty_cache():
    builder = loop(TraceBuilder(), calls=(("cudaFree", 200),))
    for index in range(5):
        builder.frame("torch/cuda/memory.py(212): empty_cache", 1000 * index + 120, 250)
    assert not builder.claims(find)


@pytest.mark.parametrize(
    ("vendor", "calls"),
    [
        ("cuda", CHURN),
        ("cuda", (("cudaHostAlloc", 100), ("cudaFreeHost", 200))),
        ("cuda", (("cuMemMap", 100), ("cuMemUnmap", 200))),
        ("rocm", (("hipMalloc", 100), ("hipFree", 200))),
        ("rocm", (("hipHostMalloc", 100), ("hipHostFree", 200))),
    ],
)
def test_cost_is_the_idle_time_behind_the_calls(vendor, calls):
    trace = loop(TraceBuilder(vendor=vendor), calls=calls).build()
    (claim,) = find(trace)
    assert claim.time_class == "idle"
    assert claim.evidence["n_mallocs_per_step"] == 1
    assert claim.evidence["n_frees_per_step"] == 1
    assert claim.evidence["host_ms_per_step"] == pytest.approx(0.3)
    assert len(claim.rows) == 8  # the first step is not steady
    # kernel end at 120, next kernel at 440: 320 us idle, 300 us of them spent allocating
    lost = (claim.spans[:, 1] - claim.spans[:, 0]) * claim.gain_high
    assert lost.tolist() == pytest.approx([300_000] * 4)
    assert np.allclose(claim.gain_low, claim.gain_high / trace.origin.inflation)


def test_calls_hidden_by_the_device_cost_nothing():
    (claim,) = find(loop(TraceBuilder(), calls=CHURN, busy=500).build())
    assert not len(claim.spans)


def test_rare_calls_that_cost_over_1_percent_count():
    # two of nine steady steps: below 30 %, yet 600 of 9000 us
    trace = loop(TraceBuilder(), calls=CHURN, steps=10, only=[4, 7]).build()
    (claim,) = find(trace)
    assert claim.evidence["share_of_steady_steps"] == pytest.approx(2 / 9, abs=1e-3)


def test_retries_are_counted():
    builder = TraceBuilder()
    retry = (("cudaMalloc", 50), ("cudaFree", 50), ("cudaFree", 50), ("cudaMalloc", 50))
    loop(builder, calls=retry)
    for index in range(5):
        builder.op("aten::empty", 1000 * index + 125, 210)
    (claim,) = find(builder.build())
    assert claim.evidence["n_retries_per_step"] == 1
    assert "expandable_segments" in claim.fix.code


def test_a_missing_cache_is_named():
    builder = loop(TraceBuilder(vendor="rocm"), calls=(("hipMalloc", 1), ("hipFree", 5)) * 60)
    (claim,) = find(builder.build())
    assert claim.evidence["caching_allocator_off"] is True
    assert claim.evidence["n_retries_per_step"] == 0
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING" in claim.fix.code


def test_memory_records_become_evidence():
    builder = loop(TraceBuilder(), calls=CHURN)
    builder.memory(500, 1 << 20, allocated=3 << 20, reserved=5 << 20)
    builder.memory(600, 1 << 20, allocated=9 << 30, reserved=0, device_type=0)
    (claim,) = find(builder.build())
    assert claim.evidence["peak_allocated_bytes"] == 3 << 20
    assert claim.evidence["peak_reserved_bytes"] == 5 << 20

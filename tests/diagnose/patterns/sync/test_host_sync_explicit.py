"""SYN003 on built traces; times in microseconds."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

import torchtriage as tt
from torchtriage.diagnose.patterns.sync.host_sync_explicit import find


def loop(sync: str = "cudaDeviceSynchronize", *, steps: int = 4, op: str = "") -> TraceBuilder:
    """Return steps of 900 us of queued work, each with a sync at its end."""
    trace = TraceBuilder()
    for step in range(steps):
        start = step * 1000.0
        trace.step(step, start, 1000)
        trace.launch(start + 40, 5, start + 50, 900)
        if op:
            trace.op(op, start + 90, 870)
        if sync:
            trace.sync(start + 100, 855, sync)
    return trace.profiler_stop(steps * 1000 + 1, 5)


def test_quiet_on_the_profilers_stop() -> None:
    assert not loop("").claims(find)


def test_quiet_on_a_harness_that_syncs_before_and_after() -> None:
    trace = TraceBuilder().step(0, 0, 3000)
    trace.sync(10, 300, "cudaDeviceSynchronize")
    trace.launch(400, 5, 410, 500)
    trace.sync(450, 470, "cudaDeviceSynchronize")
    trace.launch(2000, 5, 2010, 100)
    assert not trace.profiler_stop(3001, 5).claims(find)


def test_quiet_on_short_event_waits() -> None:
    trace = loop("")
    for step in range(4):
        for at in (960, 970, 980):
            trace.sync(step * 1000 + at, 8, "cudaEventSynchronize")
    assert not trace.claims(find)


def test_quiet_on_the_sync_of_a_copy_and_inside_operators() -> None:
    trace = loop("")
    for step in range(4):
        trace.copy(step * 1000 + 100, 845, step * 1000 + 950, 2, kind="DtoH (Device -> Pageable)")
        trace.sync(step * 1000 + 948, 6)
    assert not trace.claims(find)
    assert not loop("cudaStreamSynchronize", op="custom::op").claims(find)


def test_quiet_until_the_last_graph_capture() -> None:
    trace = loop()
    trace.call("cudaStreamEndCapture", 3990, 5)
    assert not trace.claims(find)


def test_quiet_in_the_profilers_frames() -> None:
    trace = loop()
    for step in range(4):
        trace.frame("torch/profiler/profiler.py(700): step", step * 1000 + 98, 860)
    assert not trace.claims(find)


def test_quiet_when_more_work_is_queued() -> None:
    trace = TraceBuilder()
    for step in range(4):
        start = step * 1000.0
        trace.step(step, start, 1000)
        trace.launch(start + 10, 5, start + 50, 500)
        trace.launch(start + 20, 5, start + 550, 500)
        trace.sync(start + 30, 520, "cudaEventSynchronize")
    assert not trace.profiler_stop(4060, 5).claims(find)


def test_a_barrier_in_every_step() -> None:
    built = loop().build()
    (claim,) = find(built)
    assert claim.certainty == "likely"
    assert claim.evidence["ops"] == ["cudaDeviceSynchronize"]
    assert claim.evidence["n_syncs_per_step"] == 1
    assert len(claim.rows) == 4
    # dry from 950 to the next step's kernel at 1050; the last sync has nothing behind it
    lengths = claim.spans[:, 1] - claim.spans[:, 0]
    assert lengths.tolist() == [100_000] * 3
    assert claim.gain_low[0] == pytest.approx(1 / built.origin.inflation)


def test_a_recording_without_steps_needs_three() -> None:
    def window(times: int) -> TraceBuilder:
        trace = TraceBuilder()
        for at in range(times):
            trace.launch(at * 1000, 5, at * 1000 + 10, 900)
            trace.sync(at * 1000 + 100, 815, "hipStreamSynchronize")
        trace.launch(times * 1000, 5, times * 1000 + 10, 50)
        return trace.profiler_stop(times * 1000 + 70, 5)

    assert not window(2).claims(find)
    (claim,) = find(window(3).build())
    assert claim.certainty == "hint"
    assert "3 times in the window" in claim.message


def test_no_more_is_promised_than_the_idle_time_that_is_said() -> None:
    trace = TraceBuilder()
    for step in range(4):
        start = step * 2_000.0
        trace.step(step, start, 2_000)
        trace.launch(start + 10, 5, start + 20, 600)
        trace.sync(start + 20, 610)
        # the lead that the host lost: it launches late until the step ends
        for k in range(8):
            trace.op("aten::add", start + 650 + 150 * k, 145)
            trace.launch(start + 780 + 150 * k, 5, start + 790 + 150 * k, 40)
    (finding,) = tt.analyze(trace.profiler_stop(8_001, 5).build(), only=["SYN003"]).findings
    assert finding.cost is not None
    assert 0 < finding.cost.high_ms <= finding.evidence["gpu_idle_ms_per_step"]

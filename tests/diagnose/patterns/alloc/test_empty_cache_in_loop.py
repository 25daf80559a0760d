"""MEM028: empty_cache() in the loop, by its frame or by what it frees."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.alloc.empty_cache_in_loop import find

FRAME = "torch/cuda/memory.py(212): empty_cache"
BUILTIN = "<built-in function _cuda_emptyCache>"


def loop(builder, *, steps=12, only=None, frames=(FRAME,), in_op=False, apart=False):
    """Add steps of 1 ms: kernel, malloc, kernel, then two frees and the frames around them."""
    for index in range(steps):
        at = 1000.0 * index
        builder.step(index, at, 1000)
        builder.launch(at + 10, 5, at + 20, 100)
        if only is not None and index not in only:
            continue
        builder.call("cudaMalloc", at + 130, 50)
        builder.launch(at + 180, 5, at + 190, 100)
        for frame in frames:
            builder.frame(frame, at + 300, 300)
        builder.call("cudaFree", at + 310, 100)
        if apart:
            builder.launch(at + 415, 5, at + 425, 10)
        builder.call("cudaFree", at + 450, 100)
        if in_op:
            builder.op("aten::empty", at + 305, 280)
    return builder


def python(builder):
    """Make the recording one with stacks."""
    return builder.frame("train.py(1): main", 0, 20_000)


def test_quiet_without_calls():
    assert not python(loop(TraceBuilder(), only=[])).claims(find)


def test_quiet_once_per_phase():
    builder = python(TraceBuilder())
    assert not loop(builder, only=[5]).claims(find)


def test_quiet_in_a_single_step():
    assert not loop(python(TraceBuilder()), steps=1).claims(find)


def test_quiet_on_frees_without_the_frame():
    # stacks were recorded and show no empty_cache: the frees have another cause
    assert not loop(python(TraceBuilder()), frames=()).claims(find)


def test_quiet_without_stacks_on_frees_inside_ops():
    assert not loop(TraceBuilder(), frames=(), in_op=True).claims(find)


def test_quiet_without_stacks_on_frees_between_launches():
    assert not loop(TraceBuilder(), frames=(), apart=True).claims(find)


def test_quiet_without_stacks_on_irregular_bursts():
    assert not loop(TraceBuilder(), frames=(), only=[3, 6, 9]).claims(find)


def test_quiet_during_capture():
    builder = loop(python(TraceBuilder()))
    for index in range(12):
        builder.call("cudaStreamEndCapture", 1000 * index + 800, 1)
    assert not builder.claims(find)


@pytest.mark.parametrize("frames", [(FRAME,), (BUILTIN,), (FRAME, BUILTIN)])
def test_cost_and_count_with_stacks(frames):
    trace = loop(python(TraceBuilder()), frames=frames).build()
    (claim,) = find(trace)
    assert claim.certainty == "certain"
    assert claim.evidence["n_calls_per_step"] == 1
    assert claim.evidence["n_frees_per_step"] == 2
    assert claim.evidence["n_mallocs_per_step"] == 1
    assert claim.evidence["host_ms_per_step"] == pytest.approx(0.25)
    # 200 us of frees before the next step's first kernel, 50 us of malloc before its second
    lost = ((claim.spans[:, 1] - claim.spans[:, 0]) * claim.gain_high).round().tolist()
    assert sorted(set(lost)) == [50_000, 200_000]
    assert claim.time_class == "idle"
    assert trace.name_of(claim.anchor) == frames[0]


def test_every_tenth_step_counts():
    (claim,) = find(loop(python(TraceBuilder()), steps=21, only=[5, 15]).build())
    assert claim.evidence["share_of_steady_steps"] == pytest.approx(0.1)


def test_without_stacks_the_burst_is_seen():
    (claim,) = find(loop(TraceBuilder(), frames=()).build())
    assert claim.certainty == "likely"
    assert claim.evidence["share_of_steady_steps"] == 1
    assert claim.evidence["n_frees_per_step"] == 2

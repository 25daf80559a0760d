"""CMP033: CUDA graphs that are recorded anew, or not replayed."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.compile.cudagraph_skip import find

TREES = "torch/_inductor/cudagraph_trees.py(2008): run"


def job(*, launches=25, replay=False, frames=True, capture=False, late=True, steps=5):
    """Add steps of 1 ms with one compiled graph: launches 20 us apart, kernels of 5 us."""
    builder = TraceBuilder()
    for index in range(steps):
        at = 1000.0 * index
        builder.step(index, at, 1000)
        if frames:
            builder.frame(TREES, at + 10, 600)
        builder.op("Torch-Compiled Region: 0/0", at + 15, 590)
        builder.annotation("## Call CompiledFxGraph fabc ##", at + 20, 580)
        if replay:
            builder.launch(at + 30, 5, at + 40, 500, call="cudaGraphLaunch")
        if capture:
            builder.call("cudaStreamBeginCapture", at + 22, 2)
        for k in range(launches):
            begin = at + 60 + 20 * k
            start = begin + 8 if late else at + 600 + 6 * k
            builder.launch(begin, 5, start, 5)
    return builder


def recorded(step_numbers, steps=6):
    builder = TraceBuilder()
    for index in range(steps):
        at = 1000.0 * index
        builder.step(index, at, 1000)
        builder.launch(at + 10, 5, at + 20, 50)
        if index in step_numbers:
            builder.op("CUDAGraphNode.record (dynamo_timed)", at + 100, 800)
            builder.launch(at + 950, 5, at + 960, 20)
    return builder


def test_quiet_where_graphs_are_replayed():
    assert not job(launches=5, replay=True).claims(find)
    assert not job(launches=30, replay=True).claims(find)


def test_quiet_on_a_few_operators_between():
    assert not job(launches=19).claims(find)


def test_quiet_where_nobody_asked_for_graphs():
    assert not job(frames=False).claims(find)


def test_quiet_while_graphs_are_captured():
    assert not job(capture=True).claims(find)


def test_quiet_on_the_first_recording():
    assert not recorded({0, 2}).claims(find)


def test_launched_one_by_one():
    trace = job().build()
    (claim,) = find(trace)
    assert (claim.certainty, claim.time_class) == ("likely", "idle")
    assert claim.evidence["n_launches_per_step"] == 25
    # kernels of 5 us every 20: 24 gaps of 15, and the one before the first launch of each step
    per_step = (claim.spans[:, 1] - claim.spans[:, 0]).reshape(5, 25)
    assert (per_step[:, 1:] == 15_000).all()
    assert claim.gain_low == pytest.approx(1 / trace.origin.inflation)
    (edit,) = claim.edits
    assert (edit.kind, edit.hopeful, len(edit.rows)) == ("shrink", 0.0, 125)


def test_where_the_queue_is_full_only_the_first_launch_of_a_step_is_late():
    (claim,) = find(job(late=False).build())
    # the kernels end at 749 us of the step, the next launch returns at 65
    assert (claim.spans[:, 1] - claim.spans[:, 0]).tolist() == [65_000] + [316_000] * 4


def test_recorded_anew():
    trace = recorded({1, 2, 3, 4, 5}).build()
    (claim,) = find(trace)
    assert claim.always
    assert claim.evidence["n_steps_with_recording"] == 5
    assert claim.evidence["median_recording_ms"] == pytest.approx(0.8)
    assert (claim.spans[:, 1] - claim.spans[:, 0]).tolist() == [800_000] * 5
    assert claim.message.startswith("CUDA graphs are recorded again in 5 of 5 later steps")

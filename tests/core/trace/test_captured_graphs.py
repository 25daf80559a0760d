"""Kernels of a replayed graph, and the launches they were captured from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from builder import TraceBuilder

import torchtriage as tt
from torchtriage.core.errors import TraceFormatError, UsageError
from torchtriage.core.trace import Trace, read_trace
from torchtriage.core.trace.captured_graphs import find_captured
from torchtriage.diagnose.verdict.device_time import device_time


def capture(*graphs: list[str], named: bool = True) -> Trace:
    """Add a capture of each graph: an operator ``op G.K`` around the launch of its kernel K."""
    builder, at = TraceBuilder(vendor="rocm"), 0.0
    for number, kernels in enumerate(graphs):
        builder.call("hipStreamBeginCapture", at, 1)
        for index, kernel in enumerate(kernels):
            builder.op(f"op {number}.{index}", at + 10 * index + 2, 8)
            args = {"kernel": kernel} if named else {}
            builder.call("hipLaunchKernel", at + 10 * index + 4, 2, **args)
        at += 10 * len(kernels) + 5
        builder.call("hipStreamEndCapture", at, 1)
        at += 10
    return builder.op("aten::add", at, 1.5).build()


def replay(*graphs: list[str]) -> Trace:
    builder, at = TraceBuilder(vendor="rocm"), 0.0
    for kernels in graphs:
        correlation = builder._next()
        builder.frame("nn.Module: Net_0", at, 5).op("replay", at, 5)
        builder.call("hipGraphLaunch", at + 1, 2, correlation=correlation)
        builder.kernel("__amd_rocclr_fillBufferAligned", at + 5, 1, correlation=correlation)
        for index, kernel in enumerate(kernels):
            builder.kernel(kernel, at + 10 + 10 * index, 9.5, correlation=correlation)
        at += 10 * len(kernels) + 20
    builder.op("aten::add", at, 5)
    builder.launch(at + 1, 2, at + 4, 10, "eager")
    return builder.build()


def ops(trace: Trace, captured: Trace) -> list[str]:
    """Return the operator each kernel of the trace was captured in."""
    call = find_captured(trace, captured).call
    rows = np.flatnonzero(call >= 0)
    tree = captured.tree.nearest(call[rows], captured.matching("^op "))
    return [captured.name_of(row) for row in tree.tolist()]


def test_kernels_belong_to_the_launches_in_the_same_place() -> None:
    assert ops(replay(["a", "b", "a"]), capture(["a", "b", "a"])) == ["op 0.0", "op 0.1", "op 0.2"]


def test_of_graphs_with_the_same_kernels_each_replay_has_the_next() -> None:
    layers = capture(["a", "b"], ["c"], ["a", "b"])
    assert ops(replay(["a", "b"], ["c"], ["a", "b"], ["a", "b"]), layers) == [
        *("op 0.0", "op 0.1", "op 1.0", "op 2.0", "op 2.1"),
        *("op 0.0", "op 0.1"),
    ]


@pytest.mark.parametrize("graphs", [(["a"], ["a"], ["a"], ["b"]), (["b"], ["a"], ["a"], ["a"])])
def test_a_recording_may_begin_at_any_layer(graphs: tuple[list[str], ...]) -> None:
    step = [f"op {number}.0" for number in range(4)]
    for first in range(4):
        assert ops(replay(*(graphs * 2)[first:]), capture(*graphs)) == (step * 2)[first:]


def test_a_graph_that_was_not_captured_there_stays_as_it_was() -> None:
    found = find_captured(replay(["a"], ["a", "b"]), capture(["a"]))
    assert (found.n_replays, found.n_known, int((found.call >= 0).sum())) == (2, 1, 1)


def test_a_replay_may_lack_the_very_last_kernels_alone() -> None:
    kernels = [f"kernel {index}" for index in range(200)]
    assert len(ops(replay(kernels[:-1]), capture(kernels))) == 199
    with pytest.raises(TraceFormatError, match="none of the 1 captured graphs"):
        find_captured(replay(kernels[:-5]), capture(kernels))


@pytest.mark.parametrize(
    ("trace", "captured", "why"),
    [
        (replay(["a", "b"]), capture(["b", "a"]), "none of the 1 captured graphs has the kernels"),
        (replay(["a"]), replay(["a"]), "found no capture with launches"),
        (replay(["a"]), capture(["a"], named=False), "do not name their kernels"),
        (capture(["a"]), capture(["a"]), "found no graph launch with kernels"),
    ],
)
def test_what_does_not_fit_is_refused(trace: Trace, captured: Trace, why: str) -> None:
    with pytest.raises(TraceFormatError, match=why):
        find_captured(trace, captured)


def test_device_time_counts_where_the_kernels_were_captured() -> None:
    trace, captured = replay(["a", "b"]), capture(["a", "b"])
    time = device_time(trace, "operator", captured=find_captured(trace, captured))[-1]
    # the runtime's own fill belongs to the replay
    assert {row.name: row.busy_ns for row in time.rows} == {
        "op 0.0": 9_500,
        "op 0.1": 9_500,
        "aten::add": 10_000,
        "replay": 1_000,
    }
    assert time.captured == "kernels of 1 of 1 graph launch count where they were captured"
    plain = device_time(trace, "operator")[-1]
    assert plain.busy_ns == time.busy_ns
    assert plain.captured == ""


def test_a_capture_without_stacks_leaves_the_modules_of_the_replay() -> None:
    trace, captured = replay(["a"]), capture(["a"])
    time = device_time(trace, "module", captured=find_captured(trace, captured))[-1]
    assert {row.name for row in time.rows} == {"Net_0", ""}
    assert "count where these are launched: the capture was recorded without Python stacks" in time.captured


def test_a_capture_says_nothing_of_categories() -> None:
    with pytest.raises(UsageError, match="says nothing by category"):
        tt.analyze(replay(["a"]), capture=capture(["a"]))
    report = tt.analyze(replay(["a"]), by="operator", capture=capture(["a"]))
    assert report.device_time[-1].captured


@pytest.mark.data
def test_vllms_piecewise_graphs_are_those_it_captured(recordings: Path) -> None:
    trace = read_trace(recordings / "llm" / "vllm_prefilldecode_piecewise_graph.json.gz")
    captured = read_trace(recordings / "llm" / "vllm_piecewise_graph_capture.json.gz")
    found = find_captured(trace, captured)
    assert (found.n_replays, found.n_known, int((found.call >= 0).sum())) == (25, 25, 361)
    names = {row.name for row in device_time(trace, "operator", captured=found)[-1].rows}
    assert "vllm::moe_forward" in names
    with pytest.raises(TraceFormatError, match="none of the 25 captured graphs"):
        find_captured(read_trace(recordings / "llm" / "vllm_decode_full_graph.json.gz"), captured)

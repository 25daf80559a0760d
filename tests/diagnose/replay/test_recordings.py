"""Real recordings are told again from their causes alone; what cannot be is refused and named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from diagnose.replay.slow_engine import finish_times

import torchtriage as tt
from torchtriage.core.errors import TraceFormatError
from torchtriage.core.trace import Trace
from torchtriage.diagnose.replay import Edit, critical_path, model, parse_what_if

pytestmark = pytest.mark.data

REFUSED = {
    "distributed/torchrec_a100_rank0_of_16.json.gz": "no recorded cause",  # graphs not traced
    "other_devices/ascend_npu_trace_view.json.gz": "which calls wait for the NPU is not known",
    "other_devices/mtia_inference_rank0.json.gz": "which calls wait for the MTIA is not known",
    "other_devices/mtia_train_rank0_large.json.gz": "its causes alone give a total",
    "small/cupti_counters_a100.json.gz": "the device's work is not in it",
    "odd/no_distributed_info.json.gz": "the device's work is not in it",
    "odd/rank_missing_in_distributed_info.json.gz": "the device's work is not in it",
}
SMALL = 5_000
"""Nodes that the slow engine runs in a moment."""


@pytest.fixture(scope="module")
def traces(recordings: Path) -> dict[str, Trace]:
    found = {}
    for path in sorted(recordings.rglob("*.json*")):
        try:
            trace = tt.load(path)
        except TraceFormatError:
            continue
        if len(trace) >= 3:
            found[path.relative_to(recordings).as_posix()] = trace
    return found


@pytest.fixture(scope="module")
def accepted(traces: dict[str, Trace]) -> dict[str, Trace]:
    return {name: trace for name, trace in traces.items() if model(trace).quality.accepted}


def test_what_cannot_be_replayed_is_refused_and_nothing_else(traces) -> None:
    refused = {name: model(trace).quality.reason for name, trace in traces.items() if not model(trace).quality.accepted}
    assert set(refused) == set(REFUSED)
    for name, reason in REFUSED.items():
        assert reason in refused[name]


def test_causes_alone_give_the_total(accepted) -> None:
    with_device = [trace for trace in accepted.values() if trace.devices]
    errors = np.array([abs(model(trace).quality.strict_error) for trace in with_device])
    assert len(errors) >= 45
    assert (errors <= 0.01).mean() >= 0.95
    assert np.median(errors) <= 0.001


def test_nothing_holds_on_to_the_clock_where_there_are_several_steps(accepted) -> None:
    pinned = {name: model(trace).quality.pinned for name, trace in accepted.items() if len(trace.steps) > 1}
    assert len(pinned) >= 10
    assert max(pinned.values()) <= 0.05, pinned


def test_the_recorded_step_comes_out(accepted) -> None:
    for name, trace in accepted.items():
        graph = model(trace).graph
        total = np.diff(graph.bounds(graph.finish_ns))
        steady = trace.steps.steady if len(trace.steps) else np.ones(1, dtype=bool)
        assert model(trace).step_ns == total[steady].mean(), name
        assert model(trace).step_ns == pytest.approx(trace.steps.wall_ns, rel=0.015), name


def test_two_engines_agree_on_what_a_change_does(accepted) -> None:
    n_compared = 0
    for trace in accepted.values():
        one = model(trace)
        graph = one.graph
        if graph.n_nodes > SMALL:
            continue
        dur = graph.dur_ns.copy()
        dur[graph.kind == 5] = dur[graph.kind == 5] // 2  # device work
        slow = np.array(finish_times(graph, dur_ns=dur.tolist()))
        walls = np.diff(graph.bounds(slow))
        steady = trace.steps.steady if len(trace.steps) else np.ones(1, dtype=bool)
        edit = Edit("shrink", np.flatnonzero(trace.works), 0.5)
        assert one.after_ns([edit]) == pytest.approx(walls[steady].mean(), abs=2)
        n_compared += 1
    assert n_compared >= 20


def test_less_of_anything_never_makes_the_run_longer(accepted) -> None:
    for name, trace in accepted.items():
        one = model(trace)
        for question in ("gpu*0.5", "cpu*0.5", "comm=0", "launch=0", "no-sync"):
            edits = parse_what_if(question).edits(trace)
            if edits:
                found = one.predict(edits)
                # a mean over steady steps: what moves from step to step is within a percent
                assert found.saving_ns >= -0.01 * one.step_ns, (name, question)
                assert found.high_ns <= 1.01 * one.step_ns, (name, question)


def test_the_critical_path_tiles_a_step(accepted) -> None:
    for name, trace in accepted.items():
        path = critical_path(trace)
        length = sum(piece.end_ns - piece.start_ns for piece in path.pieces)
        assert length == path.end_ns - path.start_ns, name
        assert path.share("unexplained") <= 0.05, name


LOADER_PAIRS = [
    ("cv/resnet50_v100_train_workers0.json.gz", "cv/resnet50_v100_train_workers4.json.gz"),
    ("cv/resnet50_v100_train_workers0_2021-01.json.gz", "cv/resnet50_v100_train_workers4_2021-01.json.gz"),
]


@pytest.mark.parametrize(("before", "after"), LOADER_PAIRS)
def test_the_loader_fix_saved_what_was_promised(traces, before: str, after: str) -> None:
    trace = traces[before]
    truth = trace.steps.wall_ns - traces[after].steps.wall_ns
    fetches = np.flatnonzero(trace.matching(r"DataLoader\w*Iter\.__next__"))
    found = model(trace).predict([Edit("parallel", fetches, factor=0.25)])
    assert found.low_ns <= truth <= found.high_ns

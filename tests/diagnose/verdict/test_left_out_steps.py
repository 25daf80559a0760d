"""What the steps that no number is taken from say."""

from __future__ import annotations

from pathlib import Path

import pytest
from builder import TraceBuilder

from torchtriage.core.finding import Note
from torchtriage.core.trace import Trace, read_trace
from torchtriage.diagnose.verdict.doctor import examine
from torchtriage.diagnose.verdict.options import Options
from torchtriage.diagnose.verdict.verdict import diagnose


def loop(*frees_us: float, first: int = 0) -> Trace:
    """Steps of 100 us of work, numbered from ``first`` on, and one free of so many us each."""
    builder, at = TraceBuilder(), 0.0
    for index, free_us in enumerate(frees_us, first):
        builder.step(index, at, 100 + free_us).op("aten::mm", at + 1, 60).call("cudaFree", at + 70, free_us)
        builder.launch(at + 5, 5, at + 20, 40, "gemm")
        at += 100 + free_us
    return builder.build()


def notes(trace: Trace) -> dict[str, Note]:
    return {note.code: note for note in examine(trace)}


def test_a_first_step_that_is_faster_than_the_others_is_no_warm_up() -> None:
    note = notes(loop(20, 500, 500, 500))["slower-steps"]
    assert note.level == "warn"
    assert note.message == (
        "step 0 takes 120 µs and is left out as the first, the 3 steady steps take 600 µs, 5 times as long:"
        " cudaFree takes 480 µs more in the same 1 call"
    )


@pytest.mark.parametrize("frees_us", [(500, 20, 20, 20), (20, 20, 20, 20), (20, 90, 90, 90), (20, 500)])
def test_quiet_on_a_first_step_that_is_slower_or_alike(frees_us: tuple[float, ...]) -> None:
    assert "slower-steps" not in notes(loop(*frees_us))


def test_quiet_on_a_host_that_runs_ahead_in_the_first_step() -> None:
    builder = TraceBuilder()
    for index in range(4):
        builder.step(index, index * 100, 100).op("aten::mm", index * 100 + 1, 60)
        builder.launch(index * 100 + 5, 5, 20 + index * 400, 400, "gemm")
    assert "slower-steps" not in notes(builder.build())


def test_a_first_step_without_a_duration_is_not_a_fast_one() -> None:
    builder = TraceBuilder().step(0, 0, 0)
    for index in range(1, 4):
        builder.step(index, index * 100, 100).op("aten::mm", index * 100 + 1, 60)
        builder.launch(index * 100 + 5, 5, index * 100 + 20, 40, "gemm")
    assert "slower-steps" not in notes(builder.build())


def test_a_step_out_of_line_is_named() -> None:
    note = notes(loop(20, 20, 900, 20, 20))["left-out-steps"]
    assert note.level == "info"
    assert note.message == (
        "left out of every number per step: step 2 (1.00 ms) as over three medians long; the 3 steady steps take 120 µs"
    )


def test_a_long_first_step_is_named_and_can_be_judged_alone() -> None:
    note = notes(loop(900, 20, 20, 20))["left-out-steps"]
    assert note.message == (
        "left out of every number per step: step 0 (1.00 ms) as the first; the 3 steady steps take 120 µs"
    )
    assert note.fix.endswith("judge step 0 alone: torchtriage analyze TRACE --steps 0")
    assert "left-out-steps" not in notes(loop(200, 20, 20, 20))


def test_steps_are_called_by_their_numbers() -> None:
    note = notes(loop(900, 20, 20, 20, first=17))["left-out-steps"]
    assert "step 17 (1.00 ms) as the first" in note.message
    assert note.fix.endswith("judge step 17 alone: torchtriage analyze TRACE --steps 17")
    assert notes(loop(20, 500, 500, 500, first=17))["slower-steps"].message.startswith("step 17 takes")


def test_bar_headline_and_events_are_of_the_steady_steps() -> None:
    result = diagnose(loop(20, 500, 500, 500), Options(only=["MEM027"]))
    assert result.summary is not None
    classes = result.summary.devices[0].classes
    assert classes is not None
    assert (classes.wall_ns, classes.compute_ns) == (3 * 600_000, 3 * 40_000)
    assert result.verdict[0].startswith("NVIDIA H100 is busy 6.7 % of 3 steady steps of 600 µs")
    (finding,) = result.findings
    assert (finding.place.steps, finding.n_events) == ((1, 2, 3), 3)


@pytest.mark.data
def test_the_recorded_loop_that_became_slower_says_why(recordings: Path) -> None:
    trace = read_trace(recordings / "cv" / "resnet18_mi300x_ddp_train.json.gz")
    note = notes(trace)["slower-steps"]
    assert "9.1 times as long: hipFree takes 935 ms more in the same 272 calls" in note.message

"""Kernels and waits of recorded steps, counted and explained."""

from __future__ import annotations

from tests.builder import TraceBuilder

import torchtriage as tt
from torchtriage.integrations.pytest.recording import RecordedTest, count, judge_count, time_lines


def steps(*, reads: int = 0, kernels: int = 3, first: int | None = None) -> TraceBuilder:
    """Return four steps of 1 ms whose kernels an operator launches; some end with readbacks."""
    trace = TraceBuilder()
    for step in range(4):
        begin = step * 1000.0
        trace.step(step + 1, begin, 1000)
        for i in range(first if first is not None and step == 0 else kernels):
            at = begin + 10 + 50 * i
            trace.op("aten::mul", at, 20)
            trace.launch(at + 5, 5, at + 30, 20)
        for i in range(reads):
            at = begin + 700 + 100 * i
            trace.frame("train.py(12): train_step", at - 5, 80)
            trace.op("aten::_local_scalar_dense", at, 60)
            trace.copy(at + 1, 5, at + 20, 2, kind="DtoH (Device -> Pageable)")
            trace.sync(at + 7, 45)
    trace.profiler_stop(4010, 5)
    return trace


def recorded(builder: TraceBuilder, *, judged: bool = False) -> RecordedTest:
    trace = builder.build()
    return count(trace, tt.analyze(trace, min_share=0.0) if judged else None, on_device=True)


def test_kernels_are_counted_by_the_step_that_launched_them() -> None:
    found = recorded(steps())
    assert found.kernels == (3, 3, 3, 3)
    assert found.launches == (("aten::mul", 3.0),)


def test_the_profilers_own_wait_is_not_the_steps() -> None:
    assert recorded(steps()).syncs == (0, 0, 0, 0)


def test_a_readback_is_one_wait_with_its_place() -> None:
    found = recorded(steps(reads=2))
    assert found.syncs == (2, 2, 2, 2)
    ((name, n),) = found.waits
    assert n == 2
    assert name.startswith("aten::_local_scalar_dense, train.py:12 in train_step")


def test_within_a_budget_is_exact() -> None:
    found = judge_count(recorded(steps()), "kernels_per_step", 3)
    assert (found.verdict, found.sentence) == ("within", "3 a step, budget 3")
    assert judge_count(recorded(steps()), "syncs_per_step", 0).verdict == "within"


def test_over_a_budget_says_what_launches() -> None:
    found = judge_count(recorded(steps(first=5)), "kernels_per_step", 4)
    assert (found.verdict, found.sentence) == ("over", "3 to 5 a step, budget 4: 1 over")
    assert found.lines[0] == "launched by: aten::mul 3.5"


def test_waits_over_a_budget_are_the_finding() -> None:
    found = judge_count(recorded(steps(reads=2), judged=True), "syncs_per_step", 0)
    assert (found.verdict, found.sentence) == ("over", "2 a step, budget 0: 2 over")
    text = "\n".join(found.lines)
    assert "2 a step: aten::_local_scalar_dense, train.py:12 in train_step" in text
    assert "fix: " in text


def test_launches_without_kernels_are_not_no_kernels() -> None:
    trace = TraceBuilder()
    for step in range(3):
        trace.step(step + 1, step * 1000, 1000)
        trace.call("cudaLaunchKernel", step * 1000 + 10, 5)
    found = recorded(trace)
    check = judge_count(found, "kernels_per_step", 100)
    assert check.verdict == "not checked"
    assert "the profiler recorded none" in check.sentence


def test_without_an_accelerator_nothing_is_counted() -> None:
    found = count(TraceBuilder(vendor="cpu").op("aten::mm", 0, 5).build(), None, on_device=False)
    assert judge_count(found, "kernels_per_step", 100).verdict == "not checked"
    assert judge_count(found, "syncs_per_step", 100).verdict == "not checked"


def test_what_was_not_looked_at_is_said() -> None:
    assert time_lines(RecordedTest(unknown="another profiler runs in this process")) == (
        "where: not analysed, another profiler runs in this process",
    )


def test_how_the_recording_was_made_is_no_finding() -> None:
    lines = time_lines(recorded(steps(reads=1), judged=True))
    assert lines[0].startswith("kernels: kernel 100 %")
    assert not any("MSR" in line for line in lines)

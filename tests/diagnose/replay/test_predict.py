"""Predictions: intervals hold together, edits mean what they say, questions are understood."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder
from diagnose.replay import programs

from torchtriage.core.errors import PatternError, UsageError
from torchtriage.core.trace import Kind
from torchtriage.diagnose.replay import Edit, ReplayModel, critical_path, model, parse_what_if
from torchtriage.diagnose.replay.engine import schedule
from torchtriage.diagnose.replay.predict import INFERRED

US = 1_000
PROGRAMS = pytest.mark.parametrize("program", programs.ALL, ids=lambda one: one.__name__)
QUESTIONS = ("gpu*0.5", "cpu*0.5", "comm=0", "copy=0", "no-sync", "launch=0", "loader=0")


def edits_of(trace) -> list[list[Edit]]:
    return [edits for text in QUESTIONS if (edits := parse_what_if(text).edits(trace))]


@PROGRAMS
def test_a_saving_lies_in_its_interval_and_in_the_step(program) -> None:
    trace = program()
    one = model(trace)
    for found in one.predict_many(edits_of(trace)):
        assert 0 <= found.low_ns <= found.saving_ns <= found.high_ns <= one.step_ns
        assert found.naive_ns >= 0
        assert 0 <= found.inferred_share <= 1


@PROGRAMS
def test_many_at_once_are_what_each_is_alone(program) -> None:
    trace = program()
    sets = edits_of(trace)
    together = model(trace).predict_many(sets)
    assert together == [model(trace).predict(one) for one in sets]


@PROGRAMS
def test_savings_together_grow_and_never_exceed_the_step(program) -> None:
    trace = program()
    one = model(trace)
    grown = one.cumulative(edits_of(trace))
    assert grown == sorted(grown)
    assert grown[-1] <= one.step_ns
    assert one.after_ns(edits_of(trace)[0]) == pytest.approx(one.step_ns - grown[0])


@PROGRAMS
def test_no_edit_saves_nothing(program) -> None:
    found = model(program()).predict([])
    assert (found.saving_ns, found.low_ns, found.high_ns, found.naive_ns) == (0, 0, 0, 0)


@PROGRAMS
@pytest.mark.parametrize("kinds", [(Kind.KERNEL,), (Kind.OP,), (Kind.RUNTIME, Kind.MEMCPY)])
def test_the_less_remains_the_more_is_saved(program, kinds) -> None:
    trace = program()
    rows = np.flatnonzero(trace.is_kind(*kinds))
    sets = [[Edit("shrink", rows, factor)] for factor in (0.9, 0.6, 0.3, 0.0)]
    savings = [found.saving_ns for found in model(trace).predict_many(sets)]
    assert savings == sorted(savings)
    assert savings[0] >= 0


@PROGRAMS
def test_zeroing_everything_leaves_next_to_nothing(program) -> None:
    trace = program()
    one = model(trace)
    everything = [Edit("threads"), Edit("drop", np.flatnonzero(trace.works))]
    left = one.after_ns(everything) / one.step_ns
    if program is programs.loads_with_workers:
        assert left == pytest.approx(1)  # its workers are as slow as before
    else:
        assert left <= 0.2  # lags


# -- edits ---------------------------------------------------------------------------------------


def test_what_several_edits_take_is_taken_once() -> None:
    trace = programs.host_bound()
    ops = programs.rows(trace, "aten::mul")
    one = model(trace)
    assert one.after_ns([Edit("drop", ops)] * 2) == one.after_ns([Edit("drop", ops)])
    calls = programs.rows(trace, "cudaLaunchKernel")  # inside the ops
    assert one.after_ns([Edit("drop", ops), Edit("shrink", calls, 0.5)]) == one.after_ns([Edit("drop", ops)])


def test_a_factor_per_row() -> None:
    trace = programs.device_bound()
    kernels = np.flatnonzero(trace.works)
    half = np.where(np.arange(len(kernels)) % 2, 0.0, 1.0)
    found = model(trace).predict([Edit("shrink", kernels, half)])
    assert found.saving_ns == pytest.approx(500 * US, rel=0.02)


def test_the_hopeful_factor_widens_the_interval() -> None:
    trace = programs.device_bound()
    kernels = np.flatnonzero(trace.works)
    found = model(trace).predict([Edit("shrink", kernels, 0.8, best=0.5)])
    assert found.low_ns == pytest.approx(200 * US, rel=0.02)
    assert found.high_ns == pytest.approx(500 * US, rel=0.02)
    assert found.saving_ns == pytest.approx(350 * US, rel=0.02)


def test_threads_in_spans_only() -> None:
    trace = programs.host_bound()
    step = trace.steps
    first_half = np.stack([step.start_ns, step.start_ns + 600 * US], axis=1)
    one = model(trace)
    part = one.predict([Edit("threads", factor=0.5, spans=first_half)])
    assert part.saving_ns == pytest.approx(300 * US, rel=0.03)
    none = one.predict([Edit("threads", factor=0.5, spans=first_half[:0])])
    assert none.saving_ns == 0


def test_work_done_elsewhere_still_takes_its_time() -> None:
    trace = programs.cpu_only()
    ops = programs.rows(trace, "aten::mm")
    one = model(trace)
    # 800 of 1200 us leave the thread; done at full length elsewhere they bound the step
    assert one.predict([Edit("parallel", ops, factor=0.1)]).saving_ns == pytest.approx(800 * US, rel=0.02)
    assert one.after_ns([Edit("parallel", ops, factor=1.0)]) == pytest.approx(800 * US, rel=0.02)


def test_work_moved_to_other_processes_may_slow_the_rest() -> None:
    trace = programs.cpu_only()
    ops = programs.rows(trace, "aten::mm")
    found = model(trace).predict([Edit("parallel", ops, factor=0.25)])
    assert found.low_ns < 0.95 * found.saving_ns


def test_overlapped_work_of_a_stream_of_its_own_still_runs_there() -> None:
    trace = programs.two_streams()
    comm = np.flatnonzero(trace.matching("nccl"))
    one = model(trace)
    edits = [*parse_what_if("cpu*0").edits(trace), Edit("overlap", comm)]
    assert one.after_ns(edits) >= 50 * US


def test_overlapped_work_bounds_a_step_by_what_other_edits_leave_of_it() -> None:
    trace = programs.device_bound()
    kernels = np.flatnonzero(trace.works)
    moved = kernels[np.arange(len(kernels)) % 3 > 0]  # most of the stream, yet not all
    one = model(trace)
    everything = parse_what_if("cpu*0").edits(trace)
    whole = one.after_ns([*everything, Edit("overlap", moved)])
    halved = one.after_ns([*everything, Edit("shrink", moved, factor=0.5), Edit("overlap", moved)])
    assert halved == pytest.approx(whole / 2, rel=0.05)


def test_a_wait_goes_only_where_nothing_of_it_remains() -> None:
    trace = programs.reads_back()
    waits = trace.waits.row
    found = model(trace).predict([Edit("unblock", waits, factor=1.0, best=0.0)])
    assert found.low_ns == 0
    assert found.high_ns == pytest.approx(model(trace).predict([Edit("unblock", waits)]).high_ns)


def test_a_slower_device_costs() -> None:
    trace = programs.device_bound()
    found = model(trace).predict(parse_what_if("gpu*2").edits(trace))
    assert found.saving_ns == pytest.approx(-1000 * US, rel=0.02)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Edit("bend"), "expected a kind of edit"),
        (lambda: Edit("shrink", factor=-1.0), "expected factors of 0 or more"),
        (lambda: Edit("shrink", factor=float("nan")), "expected factors of 0 or more"),
        (lambda: Edit("shrink", np.arange(3), np.ones(2)), "expected one factor or 3"),
    ],
)
def test_odd_edits_are_refused(make, message: str) -> None:
    with pytest.raises(PatternError, match=message):
        make()


# -- the profiler's own cost ---------------------------------------------------------------------


def stacked_host_bound():
    b = TraceBuilder(with_stack=1)
    for step in range(4):
        at = 1_000 + step * 1_200
        b.step(step, at, 1_200)
        for i in range(100):
            b.frame(f"train.py({i}): f", at + i * 11, 9)
            b.op("aten::mul", at + i * 11 + 1, 7)
            b.launch(at + i * 11 + 2, 3, at + i * 11 + 9, 2)
    return b.build()


def test_without_the_profiler_less_can_be_saved_on_the_host() -> None:
    trace = stacked_host_bound()
    ops = programs.rows(trace, "aten::mul")
    found = model(trace).predict([Edit("drop", ops)])
    assert found.low_ns < 0.75 * found.saving_ns


def test_an_unprofiled_step_time_rescales_the_host() -> None:
    trace = stacked_host_bound()
    wall = model(trace).step_ns
    light = model(trace, step_ms=0.7 * wall / 1e6)
    assert light.step_ns == pytest.approx(0.7 * wall, rel=0.02)
    half = parse_what_if("cpu*0.5").edits(trace)
    assert light.after_ns(half) == pytest.approx(0.35 * wall, rel=0.05)


def test_the_device_s_work_bounds_what_a_given_step_time_can_be() -> None:
    trace = programs.device_bound()
    assert model(trace, step_ms=0.1).step_ns == pytest.approx(model(trace).step_ns, rel=0.05)


@pytest.mark.parametrize("odd", [0, -1.0])
def test_a_step_time_is_above_zero(odd: float) -> None:
    with pytest.raises(UsageError, match="expected a step time above 0 ms"):
        model(programs.host_bound(), step_ms=odd)


# -- questions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "target", "factor", "name"),
    [
        ("gpu*0.5", "gpu", 0.5, ""),
        ("GPU*.5", "gpu", 0.5, ""),
        ("gpu/2", "gpu", 0.5, ""),
        (" cpu * 0.25 ", "cpu", 0.25, ""),
        ("comm=0", "comm", 0.0, ""),
        ("no-sync", "sync", 0.0, ""),
        ("sync=0", "sync", 0.0, ""),
        ("no-loader", "loader", 0.0, ""),
        ("gpu*2", "gpu", 2.0, ""),
        ("op:aten::mm*0.5", "op", 0.5, "aten::mm"),
        ("kernel:a*b=c*0", "kernel", 0.0, "a*b=c"),
    ],
)
def test_questions(text: str, target: str, factor: float, name: str) -> None:
    found = parse_what_if(text)
    assert (found.target, found.factor, found.name) == (target, factor, name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a question"),
        ("gpu", "expected one factor"),
        ("gpx*0.5", "unknown what-if target 'gpx'"),
        ("gpu*", "expected a question"),
        ("gpu*-1", "expected a question"),
        ("gpu=0.5", "only =0 can be asked"),
        ("no-gpu*0.5", "expected one factor"),
        ("sync*0.5", "cannot be shortened by a factor"),
        ("gpu/0", "nothing can be divided by 0"),
        ("op:*0.5", "expected a question"),
        ("gpu:mm*0.5", "gpu takes no name"),
    ],
)
def test_odd_questions_say_what_can_be_asked(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        parse_what_if(text)
    assert "try:" in str(raised.value)


def test_a_question_by_name_takes_an_operator_and_its_kernels() -> None:
    trace = programs.device_bound()
    edits = parse_what_if("op:aten::mm*0.5").edits(trace)
    assert model(trace).predict(edits).saving_ns == pytest.approx(500 * US, rel=0.02)
    assert parse_what_if("op:nothing*0.5").edits(trace) == []


# -- the critical path ---------------------------------------------------------------------------


@PROGRAMS
def test_the_critical_path_tiles_its_step(program) -> None:
    trace = program()
    path = critical_path(trace)
    assert path.pieces[0].start_ns == path.start_ns
    assert path.pieces[-1].end_ns == path.end_ns
    for piece, two in zip(path.pieces, path.pieces[1:], strict=False):
        assert piece.end_ns == two.start_ns
    assert all(piece.end_ns > piece.start_ns for piece in path.pieces)


def test_the_critical_path_of_a_recording_in_which_nothing_waits_is_empty() -> None:
    path = critical_path(TraceBuilder().frame("main", 0, 10).build())
    assert (len(path), path.share("host")) == (0, 0)


def test_the_critical_path_says_who_bounds_the_step() -> None:
    assert critical_path(programs.host_bound()).share("host") > 0.95
    assert critical_path(programs.device_bound()).share("compute") > 0.95
    assert critical_path(programs.loads_with_workers()).share("loader") > 0.75
    reads = critical_path(programs.reads_back())
    assert reads.share("compute") == pytest.approx(600 / 747, abs=0.1)
    assert "the host waited for the stream" in {piece.why for piece in reads.pieces}


def test_a_launch_in_time_does_not_bind_work_that_the_busy_device_held_up() -> None:
    builder = TraceBuilder().op("aten::mm", 0, 100)
    builder.launch(10, 5, 30, 4_970, "first")
    builder.launch(20, 5, 5_002, 4_998, "second")
    # it got room in the middle of "second", 4 ms after its launch, and outlasts it
    builder.launch(4_000, 5, 8_000, 3_000, "aside", stream=8)
    builder.launch(30, 5, 8_300, 100, "small", stream=9)
    builder.op("aten::relu", 3_990, 20)
    path = critical_path(builder.build())
    assert path.share("compute") > 0.95
    assert path.share("host") < 0.01


def test_work_launched_before_the_recording_follows_the_work_before_it() -> None:
    builder = TraceBuilder().op("aten::mm", 0, 60)
    for index in range(4):
        builder.kernel("orphan", 1_000 * index, 999, correlation=900 + index)
    builder.launch(40, 5, 4_000, 1_000, "last")
    path = critical_path(builder.build())
    assert path.share("compute") > 0.95
    assert path.share("lag") < 0.01


def test_a_thread_that_polls_for_its_last_launch_waits_for_the_device() -> None:
    builder = TraceBuilder().op("aten::mm", 0, 40)
    for index in range(4):
        at = 10_000 * index
        builder.launch(at + 10, 5, at + 40, 9_000, "work")
        builder.launch(at + 20, 5, at + 9_042, 900, "count")
        builder.op("aten::empty", at + 9_930, 5)
    path = critical_path(builder.build())
    assert path.share("compute") > 0.95
    assert "the host waited, without a call that says so, for its last launch" in {piece.why for piece in path.pieces}


def test_a_step_that_is_not_there() -> None:
    trace = programs.host_bound()
    with pytest.raises(UsageError, match="expected a step from 0 to 3, found 9"):
        critical_path(trace, 9)
    assert critical_path(trace, 2).step == 2


def test_work_of_before_the_recording_does_not_hide_that_of_the_steps() -> None:
    builder = TraceBuilder()
    builder.kernel("earlier", 1500, 2000, correlation=99)
    for step in range(4):
        builder.step(step, 100 * step, 90).op("aten::mm", 100 * step + 10, 40)
        builder.launch(100 * step + 20, 10, 3500 + 1000 * step, 1000, "gemm")
    trace = builder.build()
    path = critical_path(trace)
    assert path.end_ns - path.start_ns == 1_000_000
    assert path.share("compute") == 1


def test_variants_leave_out_inferred_edges_only_where_there_are_any() -> None:
    plain = ReplayModel(programs.two_streams())
    assert plain._names[:2] == ["default", "strict"]
    assert "seen" not in plain._names
    assert 0 < INFERRED < 1
    assert schedule(plain.graph).n_runs == plain.schedule.n_runs

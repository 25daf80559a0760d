"""HST020 python-bound."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

import torchtriage as tt
from torchtriage.diagnose.patterns.base import missing_needs
from torchtriage.diagnose.patterns.host.python_bound import PATTERN, find

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def loop(*, python: float = 4_000, n: int = 4) -> TraceBuilder:
    """Steps of 10 ms: Python, then an op whose kernel keeps the device busy for the rest."""
    builder = TraceBuilder()
    for i in range(n):
        at = 10_000 * i
        builder.step(i, at, 10_000).op("aten::mm", at + python, 20.5)
        builder.launch(at + python + 5, 5, at + python + 10, 9_990 - python)
    return builder


def test_quiet_when_operators_fill_the_gap() -> None:
    builder = loop()
    for i in range(4):
        builder.op("aten::nms", 10_000 * i + 1, 3_000)
    assert not builder.claims(find)


def test_quiet_when_the_gap_is_a_waiting_call() -> None:
    builder = loop()
    for i in range(4):
        builder.sync(10_000 * i + 1, 3_900)
    assert not builder.claims(find)


def test_another_thread_that_sleeps_explains_nothing() -> None:
    builder = loop()
    builder.frame("watch.py(3): look", 0, 39_000, tid=99)
    for i in range(4):
        builder.frame("train.py(9): fit", 10_000 * i, 9_900)
        builder.frame("<built-in function sleep>", 10_000 * i + 10, 3_900, tid=99)
    assert builder.claims(find)


@pytest.mark.parametrize(
    "frame",
    [
        "torch/nn/modules/module.py(1783): _call_impl",
        "torch/nn/modules/batchnorm.py(150): forward",
        "torch/nn/functional.py(2811): batch_norm",
        "torch/optim/adagrad.py(244): adagrad",
    ],
)
def test_quiet_when_the_call_of_a_module_stalls(frame: str) -> None:
    builder = loop()
    for i in range(4):
        builder.frame("train.py(9): fit", 10_000 * i, 9_900)
        builder.frame(frame, 10_000 * i + 10, 3_900)
    assert not builder.claims(find)


def test_quiet_below_a_millisecond_a_stretch() -> None:
    assert not loop(python=900).claims(find)


def test_quiet_below_five_percent_of_the_step() -> None:
    builder = TraceBuilder()
    for i in range(4):
        at = 40_000 * i
        builder.step(i, at, 40_000).op("aten::mm", at + 1_500, 20.5)
        builder.launch(at + 1_505, 5, at + 1_510, 38_490)
    assert not builder.claims(find)


def test_quiet_when_the_loader_owns_the_time() -> None:
    builder = loop()
    for i in range(4):
        builder.annotation(LOADER, 10_000 * i, 3_990)
    assert not builder.claims(find)


def test_quiet_when_the_collector_owns_the_time() -> None:
    builder = loop()
    for i in range(4):
        builder.event("Python GC", "python_function", 10_000 * i, 3_990)
    assert not builder.claims(find)


def test_quiet_when_the_profiler_owns_the_time() -> None:
    builder = loop()
    for i in range(4):
        builder.frame("torch/profiler/profiler.py(700): step", 10_000 * i, 3_990)
    assert not builder.claims(find)


def test_quiet_when_work_is_queued() -> None:
    builder = TraceBuilder()
    for i in range(4):
        at = 10_000 * i
        builder.step(i, at, 10_000).op("aten::mm", at, 20.5)
        builder.launch(at + 5, 5, at + 10, 9_989)
        builder.frame("train.py(3): log", at + 30, 9_000)
    assert not builder.claims(find)


def test_quiet_when_a_gap_waits_for_what_was_not_recorded() -> None:
    builder = TraceBuilder().op("aten::mm", 0, 20.5)
    builder.launch(5, 5, 8_000, 2_000)  # enqueued at once, started late: the stream was occupied
    assert not builder.claims(find)


def test_without_stacks_it_is_a_hint() -> None:
    (claim,) = loop().claims(find)
    assert claim.certainty == "hint"
    assert claim.evidence["kind"] == "not known without stacks"
    assert claim.evidence["gpu_idle_ms_per_step"] == pytest.approx(4.0, abs=0.001)
    assert claim.evidence["n_stretches_per_step"] == 1
    assert claim.time_class == "idle"
    assert claim.gain_low == pytest.approx(0.5 / 1.5)
    assert "4.00 ms of 10.0 ms per step" in claim.message
    trace_rows = claim.rows.tolist()
    assert len(trace_rows) == 4  # the work that came late


def test_frames_say_where_it_goes() -> None:
    builder = loop()
    for i in range(4):
        at = 10_000 * i
        builder.frame("train.py(3): main", at, 9_999)
        builder.frame("video.py(8): preprocess", at + 100, 3_500)
        builder.frame("<built-in method resize of PIL.Image>", at + 200, 3_000)
    trace = builder.build()
    (claim,) = find(trace)
    assert claim.certainty == "likely"
    assert claim.evidence["kind"] == "preprocessing"
    assert claim.evidence["hot_frame"] == "video.py(8): preprocess"
    top = claim.evidence["top_frames_ms_per_step"]
    assert top == {"resize of PIL.Image": 3.0, "video.py(8): preprocess": 0.5, "train.py(3): main": 0.5}
    assert trace.name_of(claim.anchor) == "video.py(8): preprocess"
    assert "preprocess() of video.py" in claim.message


def test_frames_of_background_threads_are_not_blamed() -> None:
    builder = loop()
    for i in range(4):
        builder.frame("train.py(3): prepare", 10_000 * i, 3_900)
        builder.frame("tqdm/_monitor.py(9): run", 10_000 * i, 9_999, tid=9)
    (claim,) = builder.claims(find)
    assert "tqdm" not in str(claim.evidence)
    assert claim.evidence["hot_frame"] == "train.py(3): prepare"


@pytest.mark.parametrize(
    ("leaf", "kind"),
    [
        ("<built-in method acquire of _thread.lock object at 0x1>", "waiting"),
        ("<built-in function open>", "input and output"),
        ("train.py(9): combine", "python"),
    ],
)
def test_kinds(leaf: str, kind: str) -> None:
    builder = loop()
    for i in range(4):
        builder.frame(leaf, 10_000 * i, 3_900)
    (claim,) = builder.claims(find)
    assert claim.evidence["kind"] == kind


def test_the_part_inside_operators_is_not_claimed() -> None:
    builder = loop()
    for i in range(4):
        builder.op("aten::cpu_part", 10_000 * i + 1_000, 1_000.5)
    (claim,) = builder.claims(find)
    assert claim.evidence["gpu_idle_ms_per_step"] == pytest.approx(3.0, abs=0.001)


def cpu_loop() -> TraceBuilder:
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        at = 10_000 * i
        builder.step(i, at, 10_000).op("aten::mm", at + 4_000, 6_000)
    return builder


def test_on_a_cpu_frames_are_needed() -> None:
    assert not cpu_loop().claims(find)


def test_on_a_cpu_time_outside_operators_is_host_time() -> None:
    builder = cpu_loop()
    for i in range(4):
        builder.frame("train.py(3): prepare", 10_000 * i, 3_900)
    (claim,) = builder.claims(find)
    assert claim.time_class == "host"
    assert claim.evidence["host_ms_per_step"] == 4.0
    assert claim.evidence["hot_frame"] == "train.py(3): prepare"


def test_on_a_cpu_quiet_where_another_frame_is_late_each_time() -> None:
    # the thread lost its core: 4 ms in which nothing of its own ran
    builder = cpu_loop()
    for i in range(4):
        builder.frame("train.py(3): step", 10_000 * i, 9_999)
        builder.frame(f"<built-in function op_{i}>", 10_000 * i + 1, 3_990)
    assert not builder.claims(find)


def test_on_a_cpu_quiet_where_one_step_is_late() -> None:
    builder = TraceBuilder(vendor="cpu")
    for i in range(5):
        at = 10_000 * i
        free = 4_000 if i == 2 else 10
        builder.step(i, at, 10_000).op("aten::mm", at + free, 10_000 - free)
        builder.frame("train.py(3): step", at, 9_999)
    assert not builder.claims(find)


def test_on_a_cpu_quiet_where_half_of_the_steps_are_late() -> None:
    builder = TraceBuilder(vendor="cpu")
    for i in range(5):
        at = 10_000 * i
        free = 4_000 if i in (2, 3) else 10
        builder.step(i, at, 10_000).op("aten::mm", at + free, 10_000 - free)
        builder.frame("train.py(3): step", at, 9_999)
    assert not builder.claims(find)


def test_on_a_cpu_waits_of_the_backward_engine_are_not_python() -> None:
    builder, hooked = cpu_loop(), cpu_loop()
    name = "<built-in method run_backward of torch._C._EngineBase object at 0x1>"
    for i in range(4):
        builder.frame(name, 10_000 * i, 3_990)
        hooked.frame(name, 10_000 * i, 3_990).frame("train.py(9): hook", 10_000 * i + 10, 3_000)
    assert not builder.claims(find)
    (claim,) = hooked.claims(find)
    assert claim.evidence["host_ms_per_step"] == 3.0


@pytest.mark.parametrize(
    "frame",
    [
        "torch/distributed/distributed_c10d.py(5283): barrier",
        "<built-in method wait of PyCapsule object at 0x7f>",
        "<built-in method _broadcast_coalesced of pybind11_builtins.pybind11_detail_function_record_v1 object at 0x7f>",
    ],
)
def test_on_a_cpu_waits_for_other_ranks_are_not_python(frame: str) -> None:
    builder = cpu_loop()
    for i in range(4):
        builder.frame("train.py(3): step", 10_000 * i, 9_999).frame(frame, 10_000 * i + 10, 3_900)
    assert not builder.claims(find)


def test_on_a_cpu_operators_of_any_thread_count() -> None:
    builder = cpu_loop()
    for i in range(4):
        builder.frame("train.py(3): backward", 10_000 * i, 3_900)
        builder.op("autograd::engine::evaluate_function: X", 10_000 * i, 4_000, tid=2)
    assert not builder.claims(find)


def test_host_rows_of_a_gpu_machine_prove_nothing() -> None:
    builder = TraceBuilder().op("aten::mm", 0, 20.5).frame("train.py(3): wait", 30, 9_000)
    assert not builder.op("aten::mm", 9_100, 20).claims(find)


def busy(python: float, frame: str = "train.py(3): step") -> TraceBuilder:
    """Steps of 10 ms on a CPU that begin with so many microseconds of Python."""
    builder = TraceBuilder(vendor="cpu")
    for i in range(5):
        at = 10_000 * i
        builder.step(i, at, 10_000).op("aten::mm", at + python, 10_000 - python)
        if frame:
            builder.frame(frame, at, 9_999)
    return builder


def test_on_a_cpu_who_sleeps_meant_to() -> None:
    assert busy(4_000).claims(find)
    builder = busy(4_000)
    for i in range(5):
        builder.frame("<built-in function sleep>", 10_000 * i + 10, 3_980)
    assert not builder.claims(find)


@pytest.mark.parametrize(("python", "missing"), [(4_000, ["gaps"]), (400, []), (990, [])])
def test_on_a_cpu_without_stacks_long_gaps_are_not_called_clean(python: float, missing: list[str]) -> None:
    trace = busy(python, frame="").build()
    assert not list(find(trace))
    assert missing_needs(PATTERN, trace) == missing


def test_loaders_explain_a_gap_without_stacks() -> None:
    builder = busy(4_000, frame="")
    for i in range(5):
        builder.annotation(LOADER, 10_000 * i, 3_990)
    assert not missing_needs(PATTERN, builder.build())


def preempted(stacks: bool, n: int) -> TraceBuilder:
    """Steps of 10 ms on a CPU, of ten operators; 4 ms are lost between other ones each time."""
    builder = TraceBuilder(vendor="cpu")
    for i in range(n):
        start = at = 10_000 * i
        for k in range(10):
            at += 4_000 if k == (3 * i + 1) % 10 else 0
            builder.op(f"aten::op{k}", at, 590)
            at += 600
        builder.step(i, start, 10_000)
        if stacks:
            builder.frame("train.py(3): step", start, 9_999)
    return builder


@pytest.mark.parametrize("n", [3, 5])
def test_on_a_cpu_quiet_where_time_is_lost_between_other_operators_each_time(n: int) -> None:
    assert not preempted(stacks=True, n=n).claims(find)
    assert not missing_needs(PATTERN, preempted(stacks=False, n=n).build())


def test_on_a_cpu_work_at_the_top_of_the_loop_recurs() -> None:
    # the optimizer's last operator ends before the step does
    builder = TraceBuilder(vendor="cpu")
    for i in range(5):
        at = 10_000 * i
        builder.step(i, at, 10_000).op("aten::mm", at + 4_000, 5_900)
    assert missing_needs(PATTERN, builder.build()) == ["gaps"]
    for i in range(5):
        builder.frame("train.py(3): prepare", 10_000 * i, 3_990)
    (claim,) = builder.claims(find)
    assert claim.evidence["hot_frame"] == "train.py(3): prepare"


@pytest.mark.parametrize(
    ("frame", "kind", "advice"),
    [
        ("torch/nn/modules/module.py(2868): named_modules", "module walk", "Walk the modules once"),
        ("transformers/image_processing_utils.py(10): resize", "preprocessing", "DataLoader workers"),
        ("queue.py(154): get", "waiting", "before waiting"),
        ("json/__init__.py(120): dump", "input and output", "write behind"),
        ("train.py(7): plan", "python", "one operation on the whole array"),
        ("", "not known without stacks", "Python stacks"),
    ],
)
def test_the_fix_follows_what_runs_there(frame: str, kind: str, advice: str) -> None:
    builder = loop()
    for i in range(4) if frame else ():
        builder.frame(frame, 10_000 * i + 1, 3_990)
    (claim,) = builder.claims(find)
    assert claim.evidence["kind"] == kind
    assert claim.fix is not None
    assert advice in claim.fix.text


def paced(period: float = 20_000, *, fixed_wait: bool = False) -> TraceBuilder:
    """Return steps with 3 to 6 ms of work on a device, which wait for the next tick or for a fixed time."""
    builder, at = TraceBuilder(), 0.0
    for i in range(12):
        work = 3_000 + 1_000 * (i * 7 % 4)
        length = work + 8_000 if fixed_wait else period + i % 3
        builder.step(i, at, length).op("aten::mm", at, work)
        builder.launch(at + 50, 5, at + 60, work - 100)
        at += length
    return builder.profiler_stop(at, 5)


def test_quiet_on_the_waits_of_a_paced_loop() -> None:
    trace = paced().build()
    assert not list(find(trace))
    pace = trace.steps.pace
    assert pace is not None
    assert pace.period_ns == pytest.approx(20_001_000)
    assert pace.slack_ns == pytest.approx(14_000_000, abs=2_000)
    assert pace.jitter_ns <= 1_000


def test_a_wait_of_fixed_length_keeps_no_pace() -> None:
    trace = paced(fixed_wait=True).build()
    assert trace.steps.pace is None
    (claim,) = find(trace)
    assert claim.evidence["gpu_idle_ms_per_step"] == pytest.approx(8 * 10 / 11)


def test_a_pace_is_said_and_its_waits_are_no_lost_time() -> None:
    result = tt.analyze(paced().build())
    (note,) = [note for note in result.notes if note.code == "paced-loop"]
    assert "slack and jitter" in note.fix
    assert note.evidence["slack_ms"] == pytest.approx(14, abs=0.01)
    assert result.healthy

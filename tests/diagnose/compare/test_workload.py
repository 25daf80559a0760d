"""Unlike runs are refused with the true reason; what a fix changes is let through."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.builder import TraceBuilder
from tests.diagnose.compare.runs import Script

from torchtriage.core.finding import Note
from torchtriage.core.trace import Trace
from torchtriage.diagnose.compare.workload import limits, unlike, workload
from torchtriage.diagnose.verdict.doctor import examine

BASE = Script()


def codes(before: Trace, after: Trace) -> set[str]:
    sides = [workload(one, examine(one)) for one in (before, after)]
    return {reason.code for reason in unlike(*sides)}


def warned(before: Trace, after: Trace) -> set[str]:
    sides = [workload(one, examine(one)) for one in (before, after)]
    assert unlike(*sides) == ()
    return {note.code for note in limits(*sides)}


# -- let through -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "after",
    [
        BASE,
        replace(BASE, workers=4, loader=10),
        replace(BASE, foreach=True),
        replace(BASE, reads_loss=True),
        replace(BASE, kernel="other", linear=50),
        replace(BASE, n_steps=20),
        replace(BASE, mark="train"),
    ],
)
def test_what_a_fix_changes_is_no_other_workload(after):
    assert codes(BASE.build(), after.build()) == set()


def products(rows: list[tuple[str, list[list[int]]]]) -> Trace:
    trace = TraceBuilder(vendor="cpu")
    for i in range(5):
        at = i * 1000.0
        trace.step(i, at, 990)
        for j, (name, dims) in enumerate(rows):
            trace.op(name, at + 30 * j, 25, dims=dims, types=["float"] * len(dims))
    return trace.build()


def test_a_loop_over_samples_and_its_batch_are_the_same_work():
    weight = [[64, 128], [64]]
    loop = products([("aten::linear", [[128], *weight])] * 32)
    batch = products([("aten::linear", [[32, 128], *weight])])
    assert codes(loop, batch) == set()


def test_a_product_inside_another_counts_once():
    weight = [[64, 128], [64]]
    plain = products([("aten::linear", [[32, 128], *weight])])
    nested = TraceBuilder(vendor="cpu")
    for i in range(5):
        at = i * 1000.0
        nested.step(i, at, 990)
        nested.op("aten::linear", at, 40, dims=[[32, 128], *weight])
        nested.op("aten::addmm", at + 5, 20, dims=[[64], [32, 128], [128, 64]])
    assert codes(plain, nested.build()) == set()


def test_compiled_code_may_hide_products_but_not_add_any():
    layers = [("aten::linear", [[32, 128], [64, 128], [64]])]
    eager = products(layers * 4)
    compiled = products([*layers * 2, ("Torch-Compiled Region: 0/0", [])])
    assert codes(eager, compiled) == set()
    assert warned(eager, compiled) == {"sizes-unknown", "other-code"}
    assert codes(products(layers * 2), products(layers * 4)) == {"shapes"}


def test_a_program_that_is_compiled_whole_shows_no_operators_to_compare():
    eager = products([("aten::mul", [[1024], [1024]]), ("aten::tanh", [[1024]])])
    compiled = products([("Torch-Compiled Region: 0/0", []), ("TorchDynamo Cache Lookup", [])])
    assert codes(eager, compiled) == set()
    assert {"sizes-unknown", "other-code"} <= warned(eager, compiled)


def test_windows_without_operators_in_common_are_not_taken_on_trust():
    def window(*names: str) -> Trace:
        trace = TraceBuilder(vendor="cpu")
        for j, name in enumerate(names):
            trace.op(name, 50.0 * j, 40)
        return trace.build()

    eager = window("aten::mul", "aten::tanh", "aten::add")
    compiled = window("Torch-Compiled Region: 0/0", "TorchDynamo Cache Lookup", "aten::empty")
    assert codes(eager, compiled) == {"model"}


def window(*launched: tuple[str, list[list[int]], int], replay: int = 0) -> Trace:
    """Return a window of operators, with shapes and some kernels each, and of a graph with so many more."""
    trace = TraceBuilder()
    at = 0.0
    for name, dims, n in launched:
        trace.op(name, at, 20.0 * n + 10, dims=dims, types=["float"] * len(dims))
        for i in range(n):
            trace.launch(at + 20 * i + 1, 5, at + 20 * i + 8, 10, f"{name} kernel {n}")
        at += 20.0 * n + 20
    if replay:
        trace.op("Torch-Compiled Region: 0/0", at, 30)
        trace.call("cudaGraphLaunch", at + 2, 5, correlation=999)
        for i in range(replay):
            trace.kernel("hidden", at + 10 + 20 * i, 15, correlation=999)
    return trace.build()


LAYER, HEAD = [[32, 64], [64, 64]], [[32, 64], [64, 500]]


def test_one_operator_with_fewer_kernels_is_the_same_work():
    assert codes(window(("aten::mm", LAYER, 19)), window(("aten::mm", LAYER, 4))) == set()


def test_a_window_that_hides_more_of_the_same_work_is_let_through():
    layers = [("aten::mm", LAYER, 1)] * 12
    before = window(*layers, ("aten::mm", HEAD, 1), replay=2)
    after = window(*layers[:4], ("aten::mm", HEAD, 1), replay=10)
    assert codes(before, after) == set()


# -- refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (replace(BASE, device="NVIDIA A100"), "device"),
        (replace(BASE, batch=64), "shapes"),
        (replace(BASE, width=256), "model"),
        (replace(BASE, trains=False), "mode"),
    ],
)
def test_unlike_runs_are_refused_with_the_true_reason_both_ways(after, reason):
    first, second = BASE.build(), after.build()
    assert reason in codes(first, second)
    assert reason in codes(second, first)


def test_a_layer_in_plain_sight_with_more_rows_is_another_phase():
    prefill = window(("aten::mm", [[64, 64], [64, 500]], 1), replay=8)
    decode = window(("aten::mm", HEAD, 1), replay=20)
    assert codes(decode, prefill) == codes(prefill, decode) == {"shapes"}


def test_attention_over_another_length_is_another_size():
    def attention(length: int) -> Trace:
        return window(("aten::scaled_dot_product_attention", [[1, 8, length, 64]] * 3, 1))

    assert codes(attention(1024), attention(1024)) == set()
    assert codes(attention(1024), attention(128)) == {"shapes"}


def serves(*names: str) -> Trace:
    builder = TraceBuilder()
    for index, name in enumerate(names):
        at = 100.0 * index
        builder.annotation(name, at, 90).op("aten::linear", at + 2, 50)
        builder.launch(at + 5, 2, at + 10, 60.5)
    return builder.build()


@pytest.mark.parametrize(
    ("before", "after", "reasons"),
    [
        (["step[DECODE bs=32]"] * 4, ["step[DECODE bs=31]"] * 6, set()),
        (["step[DECODE bs=32]"] * 4, ["step[DECODE bs=64]"] * 4, {"shapes"}),
        (["step[DECODE bs=32]"] * 4, ["step[EXTEND bs=2 toks=32]"] * 4, {"shapes"}),
        (["step[DECODE bs=32]"] * 6, ["step[DECODE bs=32]", "step[EXTEND bs=2 toks=32]"] * 3, {"shapes"}),
        (["step[DECODE bs=32]"] * 4, ["execute_context_0(0)_generation_32(32)"] * 4, {"steps"}),
        (["step[DECODE bs=32]"] * 4, ["step[DRAFT_EXTEND bs=32]"] * 4, {"steps"}),
    ],
)
def test_steps_of_an_engine_hold_the_same_work(before: list[str], after: list[str], reasons: set[str]) -> None:
    assert codes(serves(*before), serves(*after)) == reasons
    assert codes(serves(*after), serves(*before)) == reasons


def test_only_what_was_recorded_is_said_to_have_changed() -> None:
    larger = [[48, 64], [64, 500]]
    before, after = (workload(window(("aten::mm", dims, 1), replay=9), ()) for dims in (HEAD, larger))
    (reason,) = unlike(before, after)
    assert reason.message == (
        "different sizes: the layers recorded as operators (64x500) compute 1.5 times what they did before per window;"
        " of the kernels, graphs or compiled code without sizes launch 90 % before, 90 % after"
    )


def test_a_run_without_layers_that_hides_nothing_is_another_model():
    model = window(("aten::mm", LAYER, 1), replay=8)
    assert codes(model, window(("aten::add", [[32, 64]] * 2, 1))) == {"model"}


def test_a_gpu_and_the_cpu_alone_are_different_devices():
    layers = [("aten::linear", [[32, 64], [64, 64], [64]])] * 4
    assert "device" in codes(replace(BASE, trains=False).build(), products(layers))


def test_jobs_of_different_size_are_refused():
    def job(size: int) -> Trace:
        builder = BASE.builder()
        builder.meta["distributedInfo"] = {"rank": 0, "world_size": size, "backend": "nccl"}
        return builder.build()

    assert codes(job(8), job(8)) == set()
    assert codes(job(1), job(8)) == {"ranks"}
    assert codes(BASE.build(), job(1)) == set()


def test_a_step_is_not_compared_with_a_window():
    window = BASE.builder()
    window.events = [event for event in window.events if "ProfilerStep" not in event["name"]]
    window.events = [event for event in window.events if "Optimizer" not in event["name"]]
    window.events = [event for event in window.events if "DataLoader" not in event["name"]]
    assert "steps" in codes(BASE.build(), window.build())


def test_other_operators_are_another_model_where_nobody_recorded_sizes():
    def plain(*names: str) -> Trace:
        trace = TraceBuilder(vendor="cpu")
        for i in range(5):
            trace.step(i, i * 1000.0, 900)
            for j, name in enumerate(names):
                trace.op(name, i * 1000.0 + 50 * j, 40)
        return trace.build()

    one = plain("aten::conv2d", "aten::batch_norm", "aten::relu_")
    assert codes(one, plain("aten::conv2d", "aten::batch_norm", "aten::relu")) == set()
    assert codes(one, plain("aten::linear", "aten::softmax", "aten::gelu")) == {"model"}
    assert "sizes-unknown" in warned(one, one)


def test_samples_made_on_the_main_thread_are_no_part_of_the_model():
    def run(fetch: str, made: int) -> Trace:
        trace = TraceBuilder(vendor="cpu")
        for i in range(5):
            at = i * 1000.0
            trace.step(i, at, 900)
            trace.annotation(f"enumerate(DataLoader)#{fetch}.__next__", at, 400)
            for j in range(made):
                trace.op("aten::rand", at + 10 + 3 * j, 2)
            trace.op("aten::conv2d", at + 500, 100)
            trace.op("aten::relu", at + 600, 40)
        return trace.build()

    assert codes(run("_SingleProcessDataLoaderIter", 100), run("_MultiProcessingDataLoaderIter", 0)) == set()


def test_on_a_cpu_other_profiler_options_are_refused_on_an_idle_free_gpu_they_do_not_matter():
    layers = [("aten::linear", [[32, 64], [64, 64], [64]])]
    plain = products(layers)
    stacks = TraceBuilder(vendor="cpu")
    for i in range(5):
        at = i * 1000.0
        stacks.step(i, at, 990)
        stacks.frame("train.py(1): step", at, 990)
        stacks.op("aten::linear", at, 40, dims=layers[0][1], types=["float"] * 3)
    assert codes(plain, stacks.build()) == {"profiler"}
    assert codes(BASE.build(), replace(BASE, stacks=True).build()) == set()


def test_a_recording_that_cannot_be_judged_is_refused_with_the_doctors_words():
    broken = TraceBuilder()
    broken.step(0, 0, 1000)
    for i in range(30):
        broken.call("cudaLaunchKernel", 10.0 * i, 5)
    assert "unusable" in codes(BASE.build(), broken.build())


def test_a_run_with_rows_missing_is_not_compared_with_a_whole_one():
    whole = BASE.build()
    sides = [workload(whole, examine(whole)), workload(whole, (*examine(whole), Note("cut-window", "warn", "cut", "")))]
    for before, after in (sides, sides[::-1]):
        assert {reason.code for reason in unlike(before, after)} == {"missing-rows"}
    assert unlike(sides[1], sides[1]) == ()  # cut in the same way: a limit


def test_a_run_that_is_judged_up_to_the_end_of_its_rows_is_not_compared() -> None:
    whole = BASE.build()
    sides = [workload(whole, (*examine(whole), *more)) for more in ((), (Note("early-end", "warn", "ends", ""),))]
    for before, after in (sides, sides[::-1], (sides[1], sides[1])):
        (reason,) = unlike(before, after)
        assert reason.code == "missing-rows"
        assert [reason.before, reason.after] == ["ends" if side is sides[1] else "" for side in (before, after)]


def test_first_use_in_every_step_is_a_cold_start():
    cold = BASE.builder()
    for event in list(cold.events):
        if event["name"].startswith("ProfilerStep"):
            start, dur = event["ts"] + 5, event["dur"] * 0.5
            cold.event("Lazy Function Loading", "overhead", start, dur)
    assert "cold-start" in codes(BASE.build(), cold.build())


# -- limits ------------------------------------------------------------------------------------


def test_other_options_are_a_limit_where_the_host_holds_the_gpu_up():
    found = warned(BASE.build(), replace(BASE, stacks=True).build())
    assert "profiler-options" in found


def test_one_step_is_a_limit():
    assert "no-noise" in warned(replace(BASE, n_steps=1).build(), replace(BASE, n_steps=1).build())


def test_two_ranks_of_a_job_are_noted():
    def rank(number: int) -> Trace:
        builder = BASE.builder()
        builder.meta["distributedInfo"] = {"rank": number, "world_size": 2}
        return builder.build()

    assert "other-rank" in warned(rank(0), rank(1))
    assert "other-rank" not in warned(rank(1), rank(1))

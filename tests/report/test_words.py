from __future__ import annotations

from dataclasses import replace

import pytest
from tests.report.sample_result import SYNC, healthy, partial, problems, refused, unmarked

from torchtriage.core.finding import Cost, Frame, NotChecked, Place
from torchtriage.diagnose.verdict.result import Answer
from torchtriage.report import words
from torchtriage.report.documents import device_time


def cost(low_ms, high_ms, of_ms=100.0):
    return Cost(low_ms, high_ms, "step", of_ms, low_ms / of_ms, high_ms / of_ms, high_ms, "measured", "bubble", "A")


@pytest.mark.parametrize(
    ("low_ms", "high_ms", "text"),
    [
        (10.0, 20.0, "10.0-20.0 ms of 100 ms per step (10-20 %)"),
        (0.2, 20.0, "200 µs-20.0 ms of 100 ms per step (0.2-20 %)"),
        (0.0, 20.0, "up to 20.0 ms of 100 ms per step (up to 20 %)"),
        (20.0, 20.0, "20.0 ms of 100 ms per step (20 %)"),
        (0.0, 0.0, "0 ns of 100 ms per step (0 %)"),
    ],
)
def test_a_saving_is_an_interval_with_its_denominator(low_ms, high_ms, text):
    assert words.saving(cost(low_ms, high_ms)) == text


@pytest.mark.parametrize(
    ("evidence", "text"),
    [
        ({"looks": 65, "looks_in_steps": 112}, "stack samples 65, stack samples in steps 112"),
        ({"n_reads_per_step": 2}, "reads 2 per step"),
        ({"wait_ms_per_step": 21.4}, "wait 21.4 ms per step"),
        ({"gap_ns": 2_500}, "gap 2.50 µs"),
        ({"mean_kernel_us": 6.1}, "mean kernel 6.10 µs"),
        ({"copied_bytes": 2**20}, "copied 1.00 MiB"),
        (
            {"copied_bytes_per_window": 19 << 20, "pinned_gb_per_s": 10.1},
            "copied 19.0 MiB in the window, pinned 10.1 GB/s",
        ),
        ({"bytes_median": 8, "peak_fp32_tflops": 15.7}, "median 8 B, peak fp32 15.7 TFLOP/s"),
        ({"idle_share_of_step": 0.27}, "idle 27 % of step"),
        ({"share_of_kernel_time": 0.5}, "50 % of kernel time"),
        ({"occupancy_ratio": 0.031}, "occupancy ratio 3.1 %"),
        ({"pinned": False}, "pinned no"),
        ({"mean_flops": 1.25e6}, "mean flops 1,250,000"),
        ({"op": "aten::mm"}, "op aten::mm"),
        ({"event_ids": [1, 2], "table": {"a": 1}, "undefined": float("nan")}, ""),
        ({f"n_{letter}": 1 for letter in "abcdefgh"}, "a 1, b 1, c 1, d 1, e 1, f 1, 2 more in the JSON"),
    ],
)
def test_evidence_reads_its_unit_from_its_name(evidence, text):
    assert words.evidence(replace(SYNC, evidence=evidence)) == text


@pytest.mark.parametrize(
    ("saving_ms", "low_ms", "high_ms", "text"),
    [
        (20.0, 10.0, 30.0, "saves 20.0 ms (10-30 %)"),
        (20.0, 0.0, 30.0, "saves 20.0 ms (up to 30 %)"),
        (0.887, -0.8, 1.8, "saves 887 µs (-0.8 % to 1.8 %)"),
        (0.0, -1.2, 1.2, "saves 0 ns (-1.2 % to 1.2 %)"),
        (-20.0, -30.0, -10.0, "costs 20.0 ms (10-30 %)"),
        (-0.5, -2.0, 1.0, "costs 500 µs (-1.0 % to 2.0 %)"),
    ],
)
def test_an_answer_that_may_go_either_way_says_so(saving_ms, low_ms, high_ms, text):
    rerun = Answer("gpu*0.5", "step", 100.0, 100 - saving_ms, saving_ms, low_ms, high_ms)
    assert words.answer(rerun).endswith(f"per step instead of 100 ms: {text}")


def test_evidence_names_the_window_once():
    facts = {"wait_ms_per_window": 2.0, "n_reads_per_window": 3, "n_copies_per_step": 4}
    assert words.evidence(replace(SYNC, evidence=facts)) == ("wait 2.00 ms in the window, reads 3, copies 4 per step")


@pytest.mark.parametrize(
    ("steps", "n_events", "text"),
    [
        ((), 0, ""),
        ((7,), 1, "step 7, 1 event"),
        ((3, 1, 2), 0, "steps 1-3"),
        ((1, 2, 5), 2_000, "steps 1-2, 5, 2,000 events"),
        (tuple(range(0, 20, 2)), 0, "steps 0, …, 18 (10)"),
    ],
)
def test_steps_are_runs(steps, n_events, text):
    assert words.steps(Place(steps=steps), n_events) == text


def test_steps_go_by_the_numbers_of_the_recording():
    summary = problems().summary
    named = replace(summary, steps=tuple(replace(one, index=i) for i, one in enumerate(summary.steps)))
    assert words.steps(Place(steps=(1, 2, 4)), 0, named) == "steps 11-12, 14"
    custom = replace(named, steps=tuple(replace(step, name="epoch") for step in named.steps))
    assert words.steps(Place(steps=(1, 2, 4)), 0, custom) == "steps 1-2, 4"


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (Frame("a.py", 3, "f"), "a.py:3 in f (the function's line, not the call's)"),
        (Frame("a.py", 3, "f", exact=True), "a.py:3 in f"),
        (Frame("a.py", 7, "f", exact=True, called="item", lines=(7,)), "a.py:7 in f"),
        (Frame("a.py", 3, "f", called="item", lines=(5, 7)), "a.py:3 in f (the call is on one of lines 5, 7)"),
        (Frame("a.py", 3, "f", called="item", lines=(5,)), "a.py:3 in f (the call is probably on line 5)"),
        (Frame("a.py", 0, "f"), "a.py in f"),
        (Frame("a.py", 3, ""), "a.py:3 (the function's line, not the call's)"),
    ],
)
def test_a_line_says_what_it_is(frame, text):
    assert words.frame(frame) == text


def test_source_lines_are_quoted_where_there_are_any():
    def quote(file: str, function: str, line: int) -> str:
        return {5: "  x.item()", 7: "  \x1b[31m"}.get(line, "")

    frame = Frame("a.py", 3, "f", called="item", lines=(5, 6, 7))
    assert words.quoted(frame, quote) == ["5 | x.item()", "7 | \\x1b[31m"]
    assert words.quoted(frame, None) == []
    assert words.quoted(Frame("a.py", 5, "f"), quote) == []


def test_patterns_are_grouped_by_what_they_miss():
    groups = words.missing(
        [
            NotChecked("AAA001", "a", ("shapes",), "record shapes"),
            NotChecked("BBB002", "b", ("stacks", "shapes"), "record both"),
            NotChecked("CCC003", "c", ("shapes",), "record shapes"),
            NotChecked("DDD004", "d", (), "without skip"),
        ]
    )
    assert [(group.what, group.patterns) for group in groups] == [
        ("no shapes", ("AAA001 a", "CCC003 c")),
        ("no stacks and shapes", ("BBB002 b",)),
        ("left out by --only, --skip or pyproject.toml", ("DDD004 d",)),
    ]


def test_a_long_kernel_is_shortened_and_a_short_op_is_not():
    kernel = problems().summary.top_kernels[1].name
    assert words.event_name(kernel) == "vectorized_elementwise_kernel<CUDAFunctor_add<float>>"
    assert words.event_name("aten::_local_scalar_dense") == "aten::_local_scalar_dense"


def test_equal_devices_are_counted():
    result = problems()
    trace = replace(result.trace, device_names=("H100", "H100", "A10"))
    assert words.recording(replace(result, trace=trace))[2].startswith("2 x H100, A10, rank 0 of 8")


def test_what_has_no_name_is_said_to_have_none():
    result = problems()
    trace = replace(result.trace, device_names=("", ""), categories={"": 1205, "kernel": 3})
    assert words.recording(replace(result, trace=trace))[2].startswith("2 devices without a name, rank 0 of 8")
    assert dict(words.contents(replace(result, trace=trace)))["holds"] == "without a category 1,205, kernel 3"


def test_the_device_time_is_of_the_device_that_there_is():
    (time, *_) = problems().device_time
    assert device_time.words(time, "npu").startswith(f"NPU {time.device} is busy for ")
    assert device_time.words(time, "rocm").startswith(f"GPU {time.device} is busy for ")


def test_a_long_group_of_patterns_is_listed_by_code():
    entries = [NotChecked(f"AAA{n:03}", "name", ("shapes",), "") for n in range(4)]
    few, many = words.missing(entries[:3]), words.missing(entries)
    assert few[0].brief == ("AAA000 name", "AAA001 name", "AAA002 name")
    assert many[0].brief == ("AAA000", "AAA001", "AAA002", "AAA003")
    assert many[0].patterns[3] == "AAA003 name"


def without_gpu(*missing, vendor="cpu"):
    result = unmarked()
    entries = tuple(NotChecked(f"AAA{n:03}", "name", (need,), "") for n, need in enumerate(missing))
    return replace(result, trace=replace(result.trace, vendor=vendor), not_checked=entries)


def test_only_a_recording_of_the_cpu_alone_takes_gpu_patterns_calmly():
    assert words.without_device(without_gpu("GPU rows", "shapes", "GPU rows")) == (
        "2 GPU patterns: need GPU rows; add ProfilerActivity.CUDA if the script uses a GPU"
    )
    assert words.without_device(without_gpu("shapes")) == ""
    assert words.without_device(without_gpu("GPU rows", vendor="cuda")) == ""
    with_gpu = replace(without_gpu("GPU rows"), summary=problems().summary)
    assert words.without_device(with_gpu) == ""


def test_an_outcome_never_calls_the_unknown_clean():
    assert words.outcome(healthy()) == "rank 0: nothing found"
    assert words.outcome(partial()) == ("nothing found by 23 of 28 patterns, not everything analysed")
    some = replace(healthy(), not_checked=partial().not_checked, checked=("SYN001",))
    assert words.outcome(some) == "rank 0: nothing found by 1 of 5 patterns"
    assert words.outcome(refused()) == "rank 0: no verdict"
    assert words.outcome(problems()) == ("rank 0: 5 findings, SYN001 first, 12.3-27.8 ms of 48.2 ms per step (26-58 %)")


def test_a_rank_alone_in_its_world_is_not_worth_a_word():
    result = problems()
    assert "rank 0 of 8" in words.recording(result)[2]
    alone = replace(result, trace=replace(result.trace, world_size=1))
    assert "rank" not in words.recording(alone)[2]

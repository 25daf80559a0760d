"""Python frames: names, whose code it is, and where the time went."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder, row

from torchtriage.core.finding import Frame
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.frames import (
    frame_label,
    hot_frame,
    is_user_frame,
    module_path,
    own_time_ns,
    parse_frame,
    top_frames,
    user_stack,
)

# -- names -------------------------------------------------------------------------------------


def test_a_frame_has_a_file_a_first_line_and_a_function() -> None:
    assert parse_frame("src/train (old).py(12): step") == Frame("src/train (old).py", 12, "step")
    assert parse_frame("<built-in method item of Tensor object at 0x7f>") is None
    assert parse_frame("nn.Module: Linear_3") is None


def test_a_resumed_function_knows_the_line_its_graph_broke_at() -> None:
    frame = parse_frame("model.py(80): torch_dynamo_resume_in_forward_at_93")
    assert frame == Frame("model.py", 93, "forward", exact=True)


@pytest.mark.parametrize(
    "name",
    [
        "train.py(12): main",
        "/home/me/torchy/model.py(3): forward",
        "project/torch_utils.py(1): f",
        "datasets/images.py(5): __getitem__",
        "project/http/server.py(5): serve",
        "dn/cdn.py(5): serve",
        "/home/me/torchinductor_bench/train.py(10): main",
        "/home/me/torchinductor_tests.py(3): step",
    ],
)
def test_code_of_the_user(name: str) -> None:
    assert is_user_frame(name)


@pytest.mark.parametrize(
    "name",
    [
        "torch/nn/modules/module.py(1): _call_impl",
        "/tmp/torchinductor_me/dn/cdniggnbpjo6ck7jj7d4oel3kskalexpxacrci3ow345jwe33wgw.py(165): call",
        "/data/cache/dn/cdniggnbpjo6ck7jj7d4oel3kskalexpxacrci3ow345jwe33wgw.py(165): call",
        "/opt/lib/python3.11/site-packages/anything/x.py(1): f",
        "transformers/models/bert/modeling_bert.py(1): forward",
        "<string>(1): <module>",
        "<frozen importlib._bootstrap>(1): _find",
        "threading.py(9): wait",
        "re/__init__.py(208): findall",
        "_weakrefset.py(1): add",
        "<built-in function print>",
        "nn.Module: Linear_0",
    ],
)
def test_code_of_others(name: str) -> None:
    assert not is_user_frame(name)


# -- stacks ------------------------------------------------------------------------------------


def stacked() -> TraceBuilder:
    return (
        TraceBuilder()
        .frame("train.py(1): main", 0, 100)
        .frame("train.py(9): step", 5, 90)
        .frame("nn.Module: Net_0", 10, 80)
        .frame("torch/nn/functional.py(3): linear", 20, 20)
        .frame("nn.Module: Linear_2", 15, 60)
        .op("aten::linear", 25, 10.5)
        .op("aten::outside", 200, 10)
        .op("aten::elsewhere", 25, 10, tid=2)
    )


def test_the_stack_starts_at_the_innermost_frame_of_the_user() -> None:
    trace = stacked().build()
    stack = user_stack(trace, row(trace, "aten::linear"))
    assert stack == (Frame("train.py", 9, "step", called="Net"), Frame("train.py", 1, "main", called="step"))
    assert user_stack(trace, row(trace, "aten::linear"), limit=1) == stack[:1]


def test_a_frame_stands_for_itself() -> None:
    trace = stacked().build()
    assert user_stack(trace, row(trace, "train.py(9): step"))[0].line == 9


def test_no_stack_outside_frames_on_other_threads_or_without_recording() -> None:
    trace = stacked().build()
    assert user_stack(trace, row(trace, "aten::outside")) == ()
    assert user_stack(trace, row(trace, "aten::elsewhere")) == ()
    plain = TraceBuilder().op("aten::linear", 0, 10.5).build()
    assert user_stack(plain, 0) == ()
    assert module_path(plain, 0) == ""


def test_library_frames_are_better_than_none() -> None:
    builder = TraceBuilder().frame("torch/nn/functional.py(3): linear", 0, 50)
    trace = builder.op("aten::linear", 25, 10.5).build()
    assert user_stack(trace, row(trace, "aten::linear"))[0].function == "linear"


def test_modules_make_a_path() -> None:
    trace = (
        TraceBuilder()
        .frame("nn.Module: Net_0", 0, 80)
        .frame("torch/nn/modules/module.py(1): _call_impl", 5, 70)
        .frame("nn.Module: Linear_2", 10, 60)
        .op("aten::linear", 25, 10.5)
        .build()
    )
    assert module_path(trace, row(trace, "aten::linear")) == "Net_0.Linear_2"


# -- time --------------------------------------------------------------------------------------


def timed() -> tuple[Trace, int]:
    trace = (
        TraceBuilder()
        .frame("train.py(1): main", 0, 100)
        .frame("data.py(5): load", 10, 60)
        .frame("<built-in function open>", 20, 10)
        .frame("data.py(7): parse", 40, 20)
        .frame("other.py(1): sleep", 0, 100, tid=2)
        .op("aten::add", 95, 1.5)
        .build()
    )
    return trace, int(trace.lane[row(trace, "train.py(1): main")])


def test_own_time_is_what_called_frames_do_not_cover() -> None:
    trace, lane = timed()
    total, own = own_time_ns(trace, lane, np.array([[0, 100_000]]))
    names = ["train.py(1): main", "data.py(5): load", "<built-in function open>"]
    assert [int(total[row(trace, name)]) for name in names] == [100_000, 60_000, 10_000]
    assert [int(own[row(trace, name)]) for name in names] == [40_000, 30_000, 10_000]
    assert own.sum() == 100_000
    assert own[row(trace, "other.py(1): sleep")] == 0


def test_own_time_counts_only_inside_the_given_time() -> None:
    trace, lane = timed()
    _, own = own_time_ns(trace, lane, np.array([[25_000, 45_000]]))
    assert own[row(trace, "<built-in function open>")] == 5_000
    assert own[row(trace, "data.py(7): parse")] == 5_000
    assert own[row(trace, "data.py(5): load")] == 10_000
    assert own[row(trace, "train.py(1): main")] == 0


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("<built-in method decode of ImagingDecoder object at 0x7f49e8>", "decode of ImagingDecoder"),
        (
            "<built-in method run_backward of torch._C._EngineBase object at 0x7F>",
            "run_backward of torch._C._EngineBase",
        ),
        ("<method 'append' of 'list' objects>", "append of 'list' objects"),
        ("<built-in function print>", "<built-in function print>"),
        ("train.py(3): <lambda at 0x7f01>", "train.py(3): <lambda>"),
        ("train.py(3): step", "train.py(3): step"),
    ],
)
def test_labels_hold_no_memory_address(name: str, label: str) -> None:
    assert frame_label(name) == label


def test_top_frames_are_sorted_and_limited() -> None:
    trace, lane = timed()
    _, own = own_time_ns(trace, lane, np.array([[0, 100_000]]))
    assert top_frames(trace, own, 2) == [("train.py(1): main", 40_000), ("data.py(5): load", 30_000)]
    assert top_frames(trace, np.zeros(len(trace), np.int64)) == []


def test_a_method_of_several_objects_is_one_top_frame() -> None:
    builder = TraceBuilder()
    for index in range(2):
        name = f"<built-in method decode of Decoder object at 0x7f{index}>"
        builder.frame(name, 100 * index, 50)
    trace = builder.build()
    assert top_frames(trace, trace.dur_ns * (trace.kind == Kind.PYTHON)) == [("decode of Decoder", 100_000)]


def test_the_hot_frame_is_the_deepest_that_was_open_for_half() -> None:
    trace, lane = timed()
    total, _ = own_time_ns(trace, lane, np.array([[0, 100_000]]))
    assert hot_frame(trace, total, 100_000) == row(trace, "data.py(5): load")
    assert hot_frame(trace, total, 1_000_000) == -1
    assert hot_frame(trace, np.zeros(len(trace), np.int64), 0) == -1

"""Device time by rows: every busy instant counted once, so that the rows add up to the busy time."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from builder import TraceBuilder

import torchtriage as tt
from torchtriage.core import intervals
from torchtriage.core.errors import TraceFormatError, UsageError
from torchtriage.core.names import word_list
from torchtriage.core.trace import Trace
from torchtriage.diagnose.verdict.device_time import device_time
from torchtriage.diagnose.verdict.options import BYS, By, Options
from torchtriage.diagnose.verdict.result import DeviceTime
from torchtriage.report.documents.device_time import words

GEMM = "ampere_sgemm_128x64_tn"
SUM = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, sum_functor>>"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"
MOST_OTHER = 0.1
"""Share of the busy time that may have no category."""


def table(trace: Trace, by: By = "category") -> DeviceTime:
    shown = device_time(trace, by)[-1]
    assert shown.by == by
    assert sum(row.busy_ns for row in shown.rows) + shown.rest_ns == shown.busy_ns
    return shown


def us(trace: Trace, by: By = "category") -> dict[str, float]:
    return {row.name: row.busy_ns / 1000 for row in table(trace, by).rows}


def test_rows_that_run_at_once_share_the_time_equally() -> None:
    builder = TraceBuilder()
    builder.launch(0, 1, 10, 20, GEMM, stream=7)
    builder.launch(2, 1, 20, 30, SUM, stream=8)
    trace = builder.build()
    # 10 alone, 10 together, 20 alone
    assert us(trace) == {"reduction and sort": 25, "GEMM": 15}
    gemm = next(row for row in table(trace).rows if row.name == "GEMM")
    assert (gemm.n_launches, gemm.mean_ns, gemm.share) == (1, 20_000, 0.375)


def test_communication_and_copies_count_where_nothing_hides_them() -> None:
    builder = TraceBuilder()
    builder.launch(0, 1, 10, 20, GEMM, stream=7)
    builder.launch(2, 1, 15, 25, NCCL, stream=8)
    builder.copy(4, 1, 25, 35, stream=9)
    assert us(builder.build()) == {"GEMM": 20, "copy and layout": 20, "communication": 10}


def test_only_steady_steps_count_and_launches_are_those_that_begin_in_them() -> None:
    builder = TraceBuilder()
    for index in range(4):
        builder.step(index, 100 * index, 100).op("aten::mm", 100 * index + 1, 50)
        builder.launch(100 * index + 5, 2, 100 * index + 10, 40, GEMM)
    shown = table(builder.build())
    assert (shown.n_steps, shown.per, shown.busy_ns) == (3, "step", 120_000)
    (row,) = shown.rows
    assert (row.n_launches, row.mean_ns) == (3, 40_000)


def test_overlaps_of_any_shape_add_up_to_the_union() -> None:
    chance = random.Random(5)
    builder = TraceBuilder()
    for index in range(300):
        name = chance.choice([GEMM, SUM, NCCL, "mine"])
        builder.launch(index, 0.2, 5 + index + chance.randrange(20), chance.randrange(30), name, stream=index % 5)
    trace = builder.build()
    device = trace.devices[0]
    for by in BYS:
        shown = table(trace, by)
        assert shown.busy_ns == intervals.length(intervals.intersect(device.busy, trace.steps.judged))


def test_more_rows_than_a_table_holds_are_in_the_rest() -> None:
    builder = TraceBuilder()
    for index in range(80):
        builder.launch(10 * index, 1, 10 * index + 2, 5, f"mine_{index}")
    shown = table(builder.build(), "kernel")
    assert (len(shown.rows), shown.n_rows, shown.rest_ns) == (50, 80, 30 * 5000)


def test_kernels_of_one_readable_name_are_one_row() -> None:
    builder = TraceBuilder()
    for threads in (128, 512):
        name = f"void at::native::elementwise_kernel<{threads}, 4, at::native::CUDAFunctor_add<float>>(int)"
        builder.launch(threads, 1, threads + 2, 5, name)
    assert us(builder.build(), "kernel") == {"elementwise_kernel<CUDAFunctor_add<float>>": 10}


def in_modules(backward: int = 9) -> TraceBuilder:
    """Return two linear layers, their backward pass on another thread, and a line of the user's around each."""
    builder = TraceBuilder(device="NVIDIA H100")
    builder.frame("train.py(3): step", 0, 190)
    builder.frame("nn.Module: Net_0", 10, 100)
    builder.frame("model.py(8): forward", 11, 98)
    builder.annotation("layers", 12, 90)
    for index, at in enumerate((20, 60)):
        builder.frame(f"nn.Module: Linear_{index}", at, 30)
        builder.op("aten::addmm", at + 1, 20, seq=10 + index)
        builder.launch(at + 2, 2, at + 6, 10, GEMM)
    for index, at in enumerate((140, 120)):
        builder.op("AddmmBackward0", at, 15, tid=backward, seq=10 + index, fwd=1)
        builder.launch(at + 2, 2, at + 6, 5, SUM, tid=backward)
    builder.op("aten::sum", 175, 10)
    builder.launch(176, 2, 180, 7, SUM)
    return builder


def test_operator_annotation_and_what_is_outside() -> None:
    trace = in_modules().build()
    assert us(trace, "operator") == {"aten::addmm": 20, "AddmmBackward0": 10, "aten::sum": 7}
    assert us(trace, "annotation") == {"layers": 20, "": 17}


def test_a_module_has_its_backward_pass_too() -> None:
    trace = in_modules().build()
    assert us(trace, "module") == {"Net_0.Linear_0": 15, "Net_0.Linear_1": 15, "": 7}


@pytest.mark.parametrize("backward", [1, 9], ids=["in the same thread", "in a thread of its own"])
def test_a_line_is_the_innermost_of_the_users_of_a_gradient_that_of_its_operator(backward: int) -> None:
    trace = in_modules(backward).build()
    assert us(trace, "line") == {"model.py:8 in forward": 30, "train.py:3 in step": 7}


def test_nothing_without_a_device_and_no_frames_is_one_row_without_a_name() -> None:
    assert device_time(TraceBuilder(vendor="cpu").op("aten::mm", 0, 10).build()) == ()
    builder = TraceBuilder()
    builder.launch(0, 1, 10, 20, GEMM)
    assert us(builder.build(), "module") == us(builder.build(), "line") == {"": 20}


def test_what_cannot_be_asked_is_refused_before_reading() -> None:
    with pytest.raises(UsageError, match="category, kernel, operator, module, annotation, line"):
        Options(by="thread")  # type: ignore[arg-type]


@pytest.mark.data
def test_rows_add_up_to_the_busy_time_on_every_recording(recordings: Path) -> None:
    files = [
        path
        for folder in (recordings, recordings.parent / "gpu2" / "traces", recordings.parent / "gpu2" / "jobs")
        for path in folder.rglob("*.json.gz")
    ]
    assert files
    for path in files:
        try:
            trace = tt.load(path)
        except TraceFormatError:
            continue
        for shown in device_time(trace)[:1]:
            device = trace.devices[0]
            begins, ends = trace.start_ns[device.rows].tolist(), trace.end_ns[device.rows].tolist()
            busy_ns = 0
            for judged_begin, judged_end in trace.steps.judged.tolist():
                reach = judged_begin
                for begin, end in zip(begins, ends, strict=True):
                    busy_ns += max(min(end, judged_end) - max(begin, reach), 0)
                    reach = max(reach, end)
            total_ns = sum(row.busy_ns for row in shown.rows) + shown.rest_ns
            assert total_ns == pytest.approx(busy_ns, rel=1e-3), path.name


NAMED = word_list("""
    llm/bert_small_h100.json.gz llm/b200_eager.json.gz llm/qwen1.5-0.5b_mi300x.json.gz
    llm/sglang_qwen3-8b_decode.json.gz diffusion/flux1_mi300x_compiled.json.gz cv/resnet50_v100_train_workers4.json.gz
    cv/sam_amg_a100_eager_fp32_2023-11-28.json.gz cv/vit_train_rtxa4000_cuda_only.json.gz
    batch_sweep/linear_rtx2080ti_train.json.gz other_devices/mi210_gpu_events_only.json.gz
    distributed/torchrec_a100_rank0_of_16.json.gz small/gpu_user_annotation_gp100.json.gz
""")
"""Of nine architectures, with and without host rows: training, serving, diffusion, recommendation."""


@pytest.mark.data
@pytest.mark.parametrize("name", NAMED)
def test_hardly_anything_is_other(recordings: Path, name: str) -> None:
    (shown,) = device_time(tt.load(recordings / name))
    assert sum(row.share for row in shown.rows if row.name == "other") < MOST_OTHER


def test_kernel_time_is_the_part_of_busy_time_that_computes() -> None:
    builder = TraceBuilder()
    builder.launch(0, 5, 10, 30, "gemm")
    builder.copy(6, 5, 40, 20)
    (table,) = device_time(builder.build(), "category")
    assert (table.busy_ns, table.kernel_ns) == (50_000, 30_000)
    assert "busy for 50.0 µs of the window, 30.0 µs of it kernel time" in words(table)

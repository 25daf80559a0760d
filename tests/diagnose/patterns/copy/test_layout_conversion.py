"""CPY011 layout-conversion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.copy.layout_conversion import find

IMAGE = [8, 32, 56, 56]
NCHW = [100352, 3136, 56, 1]
NHWC = [100352, 1, 1792, 32]
TO_NHWC = "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true>(int)"


def on_device(*, name: str = TO_NHWC, dur: float = 50, rest: float = 950) -> TraceBuilder:
    """Convolutions of 1 ms, launched far ahead; ``dur`` us of each in another kernel."""
    builder = TraceBuilder()
    for i in range(4):
        builder.step(i, 1_000 * i, 1_000)
        builder.op("aten::cudnn_convolution", 1_000 * i + 100, 20)
        builder.launch(1_000 * i + 101, 5, 1_000 * i + 200, dur, name)
        builder.launch(1_000 * i + 110, 5, 1_000 * i + 200 + dur, rest, "implicit_gemm")
    return builder


def copy(builder: TraceBuilder, at: float, dur: float, strides: list[int], to: str) -> None:
    """A ``contiguous`` that copies."""
    builder.op("aten::contiguous", at, dur, dims=[IMAGE, []], concrete=["", to], strides=[strides])
    builder.op("aten::clone", at + 1, dur - 2, dims=[IMAGE, []])
    builder.op("aten::copy_", at + 2, dur - 4, dims=[IMAGE, IMAGE])


def on_cpu(*, inside: bool = True, strides: list[int] = NCHW, to: str = "2") -> TraceBuilder:
    """Convolutions of 800 us on a CPU, with a copy of 100 us in or before each."""
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        at = 1_000 * i
        builder.step(i, at, 1_000)
        copy(builder, at + (150 if inside else 10), 100, strides, to)
        builder.op("aten::conv2d", at + 120, 800, dims=[IMAGE])
    return builder


def test_quiet_without_any() -> None:
    assert not on_device(name="relu").claims(find)


def test_quiet_below_three_percent_of_the_kernel_time() -> None:
    assert not on_device(dur=29, rest=971).claims(find)


@pytest.mark.parametrize(
    "name",
    [
        # zeroes a workspace, permutes an embedding, moves a tile inside a product
        "SubTensorOpWithScalar1d",
        "void fbgemm_gpu::permute_2D_data_kernel<false, int>(int)",
        "cutlass_cudnn::ImplicitGemm_nhwc",
    ],
)
def test_quiet_on_kernels_that_convert_nothing(name: str) -> None:
    assert not on_device(name=name).claims(find)


def test_quiet_on_the_copy_into_channels_last_before_the_model() -> None:
    # x.contiguous(memory_format=torch.channels_last) is the fix itself
    assert not on_cpu(inside=False, strides=NCHW, to="2").claims(find)


def test_quiet_on_copies_for_other_reasons() -> None:
    # a transposed view made dense again, without any convolution
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        builder.step(i, 1_000 * i, 1_000)
        copy(builder, 1_000 * i + 10, 100, NHWC, "0")
    assert not builder.claims(find)


def test_quiet_on_contiguous_that_copies_nothing() -> None:
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        builder.step(i, 1_000 * i, 1_000).op("aten::conv2d", 1_000 * i + 10, 900, dims=[IMAGE])
        builder.op("aten::contiguous", 1_000 * i + 20, 500, dims=[IMAGE], strides=[NCHW])
    assert not builder.claims(find)


@pytest.mark.parametrize("name", [TO_NHWC, "batched_transpose_32x32_half", "void nhwcToNchwKernel<float>(int)"])
def test_loud_on_conversion_kernels(name: str) -> None:
    (claim,) = on_device(name=name).claims(find)
    assert claim.certainty == "likely"
    assert claim.evidence["conversion_ms_per_step"] == pytest.approx(0.05)
    assert claim.evidence["share_of_kernel_time"] == pytest.approx(0.05)
    assert claim.evidence["n_conversions_per_step"] == 1
    assert claim.message.startswith("transposing between NCHW and NHWC takes 50.0 µs per step in 1 kernel")


def test_loud_on_kernels_whose_launch_is_not_in_the_file() -> None:
    builder = TraceBuilder()
    for i in range(4):
        builder.kernel("batched_transpose_32x32_half", 100 * i, 50, correlation=900 + 2 * i)
        builder.kernel("conv", 100 * i + 50, 50, correlation=901 + 2 * i)
    (claim,) = builder.claims(find)
    assert claim.evidence["share_of_kernel_time"] == pytest.approx(0.5)


def test_loud_on_a_half_converted_model_on_a_cpu() -> None:
    (claim,) = on_cpu().claims(find)
    assert claim.time_class == "host"
    assert claim.evidence["conversion_ms_per_step"] == pytest.approx(0.1)
    assert claim.evidence["share_of_step"] == pytest.approx(0.1)
    assert claim.evidence["largest_shape"] == IMAGE


def test_loud_on_a_layer_that_goes_back_to_nchw() -> None:
    (claim,) = on_cpu(inside=False, strides=NHWC, to="0").claims(find)
    assert claim.evidence["conversion_ms_per_step"] == pytest.approx(0.1)


def test_the_cost_is_the_conversion_where_the_queue_is_full() -> None:
    (claim,) = on_device().claims(find)
    # the next launch returned before the conversion began: all of it is won
    np.testing.assert_allclose(claim.gain_low, 1.0)
    assert (claim.spans[:, 1] - claim.spans[:, 0] == 50_000).all()
    assert claim.gain_high == 1.0


def test_the_cost_is_nothing_for_sure_where_the_host_is_late() -> None:
    builder = TraceBuilder()
    for i in range(4):
        builder.step(i, 1_000 * i, 1_000)
        builder.launch(1_000 * i + 100, 5, 1_000 * i + 110, 50, TO_NHWC)
        builder.launch(1_000 * i + 300, 5, 1_000 * i + 310, 450, "implicit_gemm")
    (claim,) = builder.claims(find)
    assert not np.asarray(claim.gain_low).any()
    assert claim.gain_high == 1.0


def test_the_fix_drops_the_conversions_and_their_operators() -> None:
    trace = on_cpu(inside=False, strides=NHWC, to="0").build()
    (claim,) = find(trace)
    (edit,) = claim.edits
    assert edit.kind == "drop"
    assert {trace.name_of(row) for row in edit.rows.tolist()} == {"aten::contiguous"}
    assert len(edit.rows) == 4


def test_on_a_device_the_fix_drops_kernels_and_launches_not_the_convolution() -> None:
    trace = on_device().build()
    (claim,) = find(trace)
    names = {trace.name_of(row) for row in claim.edits[0].rows.tolist()}
    assert names == {TO_NHWC, "cudaLaunchKernel"}
    assert len(claim.edits[0].rows) == 8


def test_on_a_cpu_only_what_undoes_nhwc_is_sure_to_go() -> None:
    [inside] = on_cpu(inside=True).claims(find)
    assert np.max(inside.gain_low) == 0
    [undone] = on_cpu(inside=False, strides=NHWC, to="0").claims(find)
    assert np.max(undone.gain_low) > 0


@pytest.mark.parametrize(("name", "code"), [("aten::conv2d", "model.to(memory"), ("aten::conv1d", "nn.Conv2d(")])
def test_convolutions_over_one_axis_have_no_channels_last(name: str, code: str) -> None:
    builder = on_device()
    for i in range(4):
        builder.op(name, 1_000 * i + 90, 40)
    (claim,) = builder.claims(find)
    assert claim.fix is not None
    assert code in claim.fix.code


@pytest.mark.parametrize(("weight", "one_axis"), [([64, 64, 3], True), ([64, 64, 3, 3], False), (5, False)])
def test_the_gradients_of_convolutions_over_one_axis_have_no_channels_last(weight: Any, one_axis: bool) -> None:
    builder = on_device()
    for i in range(4):
        builder.op("aten::convolution_backward", 1_000 * i + 90, 40, dims=[[8, 64, 100], [8, 64, 100], weight])
    (claim,) = builder.claims(find)
    assert claim.fix is not None
    assert ("nn.Conv2d(" in claim.fix.code) == one_axis

"""Shares of peak and roof: exact where shapes, type and device are known, not checked elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builder import TraceBuilder

import torchtriage as tt
from torchtriage.core.errors import TraceFormatError
from torchtriage.core.trace import Trace
from torchtriage.diagnose.verdict.device_time import device_time
from torchtriage.diagnose.verdict.options import By
from torchtriage.diagnose.verdict.result import DeviceTime

HALF = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
BF16 = ["c10::BFloat16", "c10::BFloat16"]
SIDE = [[4096, 4096], [4096, 4096]]
FLOP = 2 * 4096**3
SDPA = "aten::_scaled_dot_product_flash_attention"
QKV = [[8, 16, 1024, 64]] * 3


def table(trace: Trace, by: By = "operator") -> DeviceTime:
    return device_time(trace, by)[-1]


def share(trace: Trace) -> float | None:
    return max((row.of_peak for row in table(trace).rows if row.of_peak is not None), default=None)


def product(kernel: str, types: Any, dur_us: float, *, device: str = "NVIDIA H100", name: str = "aten::mm") -> Trace:
    builder = TraceBuilder(device=device).op(name, 0, 50, dims=SIDE, types=types)
    builder.launch(5, 2, 10, dur_us, kernel)
    return builder.build()


@pytest.mark.parametrize(
    ("kernel", "types", "peak_tflops"),
    [
        (HALF, BF16, 989),
        ("cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4", ["float", "float"], 495),
        ("ampere_sgemm_128x64_tn", ["float", "float"], 67),
    ],
)
def test_operations_over_the_peak_of_the_type(kernel: str, types: list[str], peak_tflops: int) -> None:
    dur_us = 4000
    assert share(product(kernel, types, dur_us)) == pytest.approx(FLOP / (peak_tflops * 1e6 * dur_us), abs=1e-4)


@pytest.mark.parametrize(
    ("kernel", "types", "device"),
    [
        (HALF, BF16, "Some Future Device"),
        (HALF, ["signed char", "signed char"], "NVIDIA H100"),
        ("mine", ["float", "float"], "NVIDIA H100"),
        (HALF, None, "NVIDIA H100"),
    ],
)
def test_an_unknown_device_or_type_is_not_checked(kernel: str, types: Any, device: str) -> None:
    assert share(product(kernel, types, 4000, device=device)) is None


def test_rates_that_the_user_states_are_those_of_the_device() -> None:
    trace = product(HALF, BF16, 4000, device="Some Future Device")
    (_, table) = tt.analyze(trace, by="operator", peak="fp32=100,half=2000,memory=8").device_time
    assert (table.rows[0].of_peak, table.peak_unchecked) == (pytest.approx(FLOP / (2000e6 * 4000), abs=1e-4), "")
    assert "--peak" in tt.analyze(trace, by="operator").device_time[1].peak_unchecked


def test_nothing_is_above_its_peak() -> None:
    assert share(product(HALF, BF16, 130)) is None


def test_why_nothing_is_checked_is_said() -> None:
    assert "Some Future Device" in table(product(HALF, BF16, 4000, device="Some Future Device")).peak_unchecked
    builder = TraceBuilder().op("aten::mm", 0, 50)
    builder.launch(5, 2, 10, 100, HALF)
    assert "record_shapes=True" in table(builder.build()).peak_unchecked


def test_the_kernels_of_one_operator_share_its_operations() -> None:
    builder = TraceBuilder().op("aten::mm", 0, 50, dims=SIDE, types=BF16)
    builder.launch(5, 2, 10, 3000, HALF)
    builder.launch(8, 2, 3010, 1000, "void splitKreduce_kernel<32, 16, int, float>(float)")
    builder.copy(20, 2, 4010, 500)  # no product: its time does not count
    trace = builder.build()
    expected = pytest.approx(FLOP / (989e6 * 4000), abs=1e-4)
    assert [row.of_peak for row in table(trace).rows] == [expected]
    assert [row.of_peak for row in table(trace, "kernel").rows if row.category == "GEMM"] == [expected, expected]


def test_what_prepares_a_convolution_computes_none_of_it() -> None:
    dims = [[64, 64, 56, 56], [256, 64, 1, 1], [], [], [], []]
    concrete = ["", "", "", "[0, 0]", "[1, 1]", "[1, 1]"]
    builder = TraceBuilder().op("aten::miopen_convolution", 0, 50, dims=dims, types=BF16, concrete=concrete)
    builder.launch(5, 2, 10, 300, "SubTensorOpWithScalar1d")
    builder.launch(8, 2, 310, 100, "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt256x64x8")
    builder.launch(12, 2, 410, 200, "SubTensorOpWithCastTensor1d")
    rows = {row.category: row.of_peak for row in table(builder.build(), "kernel").rows}
    flop = 2 * 64 * 56 * 56 * 256 * 64
    assert rows == {"convolution": pytest.approx(flop / (989e6 * 100), abs=1e-4), "copy and layout": None}


def test_a_row_of_which_too_little_is_known_is_not_checked() -> None:
    builder = TraceBuilder()
    for at, dims in ((0, SIDE), (5000, None)):
        builder.op("aten::mm", at, 50, dims=dims, types=BF16)
        builder.launch(at + 5, 2, at + 10, 4000, HALF)
    assert share(builder.build()) is None


@pytest.mark.parametrize(("causal", "pairs"), [("False", 1024 * 1024), ("True", 1024 * 1025 // 2)])
def test_attention_counts_what_its_mask_leaves(causal: str, pairs: int) -> None:
    builder = TraceBuilder()
    concrete = ["", "", "", "0.", causal, "False", "0.125"]
    builder.op(SDPA, 0, 50, dims=[*QKV, [], [], [], []], types=["c10::Half"] * 3, concrete=concrete)
    builder.op("aten::_flash_attention_forward", 2, 40)
    builder.launch(5, 2, 10, 1000, "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>")
    flop = 4 * 8 * 16 * pairs * 64
    assert share(builder.build()) == pytest.approx(flop / (989e6 * 1000), abs=1e-4)


@pytest.mark.parametrize(
    ("mask", "n"), [("[True, True, False]", 2), ("[False, True, True]", 1), ("[False, False, True]", None), ("", None)]
)
def test_gradients_of_a_convolution_count_those_that_are_wanted(mask: str, n: int | None) -> None:
    image = [64, 64, 56, 56]
    builder = TraceBuilder()
    concrete = ["", "", "", "[0]", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", mask]
    builder.op(
        "aten::convolution_backward",
        *(0, 50),
        dims=[image, image, [64, 64, 3, 3], *[[]] * 8],
        types=["c10::Half"] * 3,
        concrete=concrete,
    )
    builder.launch(5, 2, 10, 1000, "sm80_xmma_wgrad_implicit_gemm_indexed_f16f16")
    flop = 2 * 64 * 56 * 56 * 64 * 64 * 9 * (n or 0)
    assert share(builder.build()) == (None if n is None else pytest.approx(flop / (989e6 * 1000), abs=1e-4))


@pytest.mark.parametrize("other", ["sm80_xmma_wgrad_implicit_gemm_f16f16", "miopenSp3AsmConv_v30_3_1_gfx9_fp16"])
def test_the_two_gradients_of_a_convolution_are_half_of_it_each(other: str) -> None:
    image = [64, 64, 56, 56]
    builder = TraceBuilder()
    concrete = ["", "", "", "[0]", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "[True, True, False]"]
    dims = [image, image, [64, 64, 3, 3], *[[]] * 8]
    builder.op("aten::convolution_backward", 0, 50, dims=dims, types=["c10::Half"] * 3, concrete=concrete)
    builder.launch(5, 2, 10, 1000, "sm80_xmma_dgrad_implicit_gemm_f16f16")
    builder.launch(8, 2, 1010, 250, other)
    rows = {row.name: row.of_peak for row in table(builder.build(), "kernel").rows}
    flop = 2 * 64 * 56 * 56 * 64 * 64 * 9
    assert list(rows.values()) == [pytest.approx(flop / (989e6 * us), abs=1e-4) for us in (1000, 250)]


def pointwise(dur_us: float, name: str = "aten::add") -> DeviceTime:
    dims = [[1 << 14, 1 << 14], [1 << 14, 1 << 14], []]
    builder = TraceBuilder().op(name, 0, 50, dims=dims, types=["float", "float", "Scalar"])
    builder.launch(5, 2, 10, dur_us, "vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>")
    return table(builder.build())


def test_what_multiplies_nothing_has_the_memory_for_a_roof() -> None:
    (row,) = pointwise(2000).rows
    assert row.of_roof == pytest.approx(3 * 4 * (1 << 28) / 3.35e12 / 2000e-6, abs=1e-4)
    assert (row.roof, row.of_peak, row.flop_per_byte) == ("memory", None, None)


def test_what_a_cache_holds_and_what_is_not_known_is_not_checked() -> None:
    assert [(row.of_roof, row.roof) for row in pointwise(900).rows] == [(None, "")]
    assert [(row.of_roof, row.roof) for row in pointwise(2000, "aten::some_operator").rows] == [(None, "")]


def test_a_narrow_product_is_bound_by_memory() -> None:
    builder = TraceBuilder().op("aten::mm", 0, 50, dims=[[1 << 20, 32], [32, 32]], types=BF16)
    builder.launch(5, 2, 10, 100, HALF)
    (row,) = table(builder.build()).rows
    n_bytes, flop = 2 * (2 * (1 << 25) + 1024), 2 * (1 << 20) * 32 * 32
    assert row.roof == "memory"
    assert row.of_roof == pytest.approx(n_bytes / 3.35e12 / 100e-6, abs=1e-4)
    assert row.of_peak == pytest.approx(flop / 989e12 / 100e-6, abs=1e-4)
    assert row.flop_per_byte == pytest.approx(flop / n_bytes, abs=1e-3)
    assert row.tflops == pytest.approx(flop / 100e-6 / 1e12, abs=1e-3)


def test_the_roofs_of_a_table_are_the_memory_and_the_peaks_that_apply() -> None:
    roofs = table(product(HALF, BF16, 4000)).roofs
    assert roofs is not None
    assert (roofs.memory_tbps, roofs.peak_tflops) == (3.35, (989.0,))
    assert table(product(HALF, BF16, 4000, device="Some Future Device")).roofs is None
    assert device_time(product(HALF, BF16, 4000))[0].roofs is None


@pytest.mark.parametrize(("kind", "of_roof"), [("DtoD", 0.5), ("HtoD (Pinned -> Device)", None)])
def test_copies_on_the_device_move_their_bytes_twice(kind: str, of_roof: float | None) -> None:
    builder = TraceBuilder().op("aten::copy_", 0, 50, dims=[[1], [1], []], types=["float", "float", "Scalar"])
    builder.copy(5, 2, 10, 1000, kind=kind, size=round(3.35e12 * 1e-3 / 4))
    assert [row.of_roof for row in table(builder.build()).rows] == [of_roof]


def test_a_device_that_is_not_named_is_known_by_its_kernels_and_not_checked() -> None:
    builder = TraceBuilder(vendor="rocm", device="").op("aten::mm", 0, 50, dims=SIDE, types=BF16)
    builder.launch(5, 2, 10, 1000, "Cijk_Ailk_Bljk_BBS_BH_MT256x128x64_MI16x16x16x1_GSU1_ISA942_IU1")
    time = table(builder.build())
    assert "MI300A, MI300X, MI325X" in time.peak_unchecked
    assert [row.of_roof for row in time.rows] == [None]


@pytest.mark.data
def test_shares_of_the_peak_on_every_recording_are_shares(recordings: Path) -> None:
    n_known = 0
    for path in recordings.rglob("*.json.gz"):
        try:
            trace = tt.load(path)
        except TraceFormatError:
            continue
        for time in device_time(trace, "kernel")[1:]:
            shares = [share for row in time.rows for share in (row.of_peak, row.of_roof) if share is not None]
            assert all(0 <= share <= 1 for share in shares), path.name
            assert not (shares and time.peak_unchecked), path.name
            n_known += len(shares)
    assert n_known > 100

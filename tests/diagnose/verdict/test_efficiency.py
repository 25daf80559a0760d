"""Share of the dense peak: exact where shapes, type and device are known, not checked elsewhere."""

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


@pytest.mark.data
def test_shares_of_the_peak_on_every_recording_are_shares(recordings: Path) -> None:
    n_known = 0
    for path in recordings.rglob("*.json.gz"):
        try:
            trace = tt.load(path)
        except TraceFormatError:
            continue
        for time in device_time(trace, "kernel")[1:]:
            shares = [row.of_peak for row in time.rows if row.of_peak is not None]
            assert all(0 <= share <= 1 for share in shares), path.name
            assert not (shares and time.peak_unchecked), path.name
            n_known += len(shares)
    assert n_known > 100

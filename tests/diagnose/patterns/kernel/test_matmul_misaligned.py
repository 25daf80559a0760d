"""KRN023: odd sides that make kernels slow."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.kernel.matmul_misaligned import find

HALF = ["c10::BFloat16", "c10::BFloat16"]
ODD, EVEN = [[4096, 1024], [1024, 50257]], [[4096, 1024], [1024, 50304]]
ALIGN1 = "cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_nn_align1"
ALIGN8 = "cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_nn_align8"
H100 = "NVIDIA H100 80GB HBM3"


def gemm(builder, index, dims, kernel, dur, *, types=HALF, at=None):
    start = 20 * index
    builder.op("aten::mm", start, 10, dims=dims, types=types)
    builder.launch(start + 2, 3, 500 + 10_000 * index if at is None else at, dur, name=kernel)
    return builder


def odd(builder, *, dims=ODD, kernel=ALIGN1, dur=5000.0, types=HALF):
    return gemm(builder, 0, dims, kernel, dur, types=types)


def test_quiet_on_aligned_sides():
    assert not odd(TraceBuilder(device=H100), dims=EVEN).claims(find)


def test_quiet_when_the_kernel_loads_whole_lines():
    assert not odd(TraceBuilder(device=H100), kernel=ALIGN8).claims(find)


def test_quiet_on_align16():
    assert not odd(TraceBuilder(device=H100), kernel=ALIGN1 + "6").claims(find)


def test_quiet_on_products_bound_by_memory():
    dims = [[16, 1024], [1024, 50257]]
    assert not odd(TraceBuilder(device=H100), dims=dims).claims(find)


def test_quiet_on_fp32_products():
    trace = odd(TraceBuilder(device=H100), kernel="ampere_sgemm_align1", types=["float"] * 2)
    assert not trace.claims(find)


def test_quiet_when_it_is_fast_anyway():
    # 421 GFLOP in 1 ms: 421 of 989 TFLOP/s
    assert not odd(TraceBuilder(device=H100), dur=1000).claims(find)


def test_quiet_below_5_percent():
    builder = odd(TraceBuilder(device=H100))
    builder.launch(100, 3, 6000, 200_000, name="elementwise")
    assert not builder.claims(find)


def test_quiet_without_a_peak_or_anything_to_compare():
    assert not odd(TraceBuilder(device="Unheard of")).claims(find)


def test_cost_is_the_time_above_the_aligned_rate():
    builder = odd(TraceBuilder(device="Unheard of"), dur=5000)
    gemm(builder, 1, EVEN, ALIGN8, 2000)
    (claim,) = find(builder.build())
    flop = np.array([50257, 50304]) * 2.0 * 4096 * 1024
    left = (flop[0] / 5000) / (flop[1] / 2000)
    assert claim.gain_high == pytest.approx([1 - left])
    assert claim.gain_low == pytest.approx([(1 - left) / 2])
    assert claim.evidence["longest_batch_m_n_k"] == [1, 4096, 50257, 1024]
    assert claim.rows.tolist() == [2]
    assert claim.time_class == "compute"


def test_cost_without_aligned_products_is_taken_from_the_peak():
    (claim,) = find(odd(TraceBuilder(device=H100), dur=5000).build())
    flop = 2.0 * 4096 * 1024 * 50257
    assert claim.gain_high == pytest.approx([1 - flop / 5e6 / (0.5 * 989_000)])


def test_an_older_generation_counts_as_confirmation():
    kernel = "cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn"
    assert odd(TraceBuilder(device=H100), kernel=kernel).claims(find)


def test_rocm_goes_by_the_inner_sides():
    kernel = "Cijk_Alik_Bljk_BBS_BH_MT128x224x64_MI16x16x1_SN"
    device = "AMD Instinct MI300X"
    assert odd(TraceBuilder(vendor="rocm", device=device), kernel=kernel).claims(find)
    rows = [[4095, 1024], [1024, 50304]]
    trace = odd(TraceBuilder(vendor="rocm", device=device), kernel=kernel, dims=rows)
    assert not trace.claims(find)


def test_tf32_asks_for_multiples_of_four():
    kernel = "cutlass_80_tensorop_s1688gemm_256x128_32x3_nt_align1"
    float2 = ["float", "float"]
    dims = [[4096, 1024], [1024, 50258]]
    device = "NVIDIA A100-SXM4-40GB"
    trace = odd(TraceBuilder(device=device), kernel=kernel, dims=dims, types=float2, dur=20_000)
    assert trace.claims(find)
    trace = odd(
        TraceBuilder(device=device), kernel=kernel, types=float2, dur=20_000, dims=[[4096, 1024], [1024, 50260]]
    )
    assert not trace.claims(find)


def test_a_device_that_is_not_named_is_judged_by_those_its_kernels_are_built_for():
    def claims(isa):
        kernel = f"Cijk_Alik_Bljk_BBS_BH_MT128x64x64_MI16x16x16x1_SN_GSU1_ISA{isa}_IU1"
        return odd(TraceBuilder(vendor="rocm", device=""), kernel=kernel).claims(find)

    assert not claims("1100")
    (claim,) = claims("942")
    rate = 2 * 4096 * 1024 * 50257 / 5000 / 1e6
    assert claim.edits[0].factor == pytest.approx(1 - (1 - rate / (0.5 * 981)) / 2)
    assert claim.edits[0].best == pytest.approx(rate / (0.5 * 1307))
    assert claim.evidence["device_is_one_of"] == ["MI300A", "MI300X", "MI325X"]

"""KRN022: fp32 kernels on devices that could do better, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.kernel.matmul_fp32 import find

SGEMM = "ampere_sgemm_128x64_tn"
FLOAT = ["float", "float"]
SQUARE = [[1024, 1024], [1024, 1024]]


def gemms(builder, *, kernel=SGEMM, types=FLOAT, dims=SQUARE, dur=200.0, count=5, host=20.0):
    """Add products launched well ahead of the device."""
    for index in range(count):
        at = 100 + host * index
        builder.op("aten::mm", at, 10, dims=dims, types=types)
        builder.launch(at + 2, 3, 200 + dur * index, dur, name=kernel)
    return builder


@pytest.mark.parametrize(
    "kernel",
    [
        "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x64x32",
        "cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4",
        "ampere_fp16_sgemm_fp16_32x128_tn",
        "ampere_bf16_s16816gemm_bf16_128x256_ldg8_relu_f2f_stages_64x3_tn",
        "void at::native::vectorized_elementwise_kernel<4, float>",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN",
    ],
)
def test_quiet_on_tensor_core_and_other_kernels(kernel):
    assert not gemms(TraceBuilder(), kernel=kernel).claims(find)


def test_quiet_on_half_inputs_that_accumulate_in_fp32():
    types = ["c10::Half", "c10::Half"]
    assert not gemms(TraceBuilder(), types=types).claims(find)


def test_quiet_on_tiny_products():
    assert not gemms(TraceBuilder(), dur=19).claims(find)


def test_quiet_below_a_tenth_of_the_kernel_time():
    builder = gemms(TraceBuilder(), count=1)
    builder.launch(130, 3, 400, 2000, name="elementwise")
    assert not builder.claims(find)


@pytest.mark.parametrize(("major", "minor", "name"), [(6, 0, "Quadro GP100"), (7, 5, "GTX 1660")])
def test_quiet_without_tensor_cores(major, minor, name):
    builder = gemms(TraceBuilder(device=name))
    builder.meta["deviceProperties"][0].update(computeMajor=major, computeMinor=minor)
    assert not builder.claims(find)


def test_quiet_when_the_capability_is_unknown():
    builder = gemms(TraceBuilder())
    del builder.meta["deviceProperties"]
    assert not builder.claims(find)


def test_quiet_on_rocm_vector_kernels():
    # no matrix instruction in the name: the device may have none
    builder = gemms(TraceBuilder(vendor="rocm"), kernel="Cijk_Alik_Bljk_SB_MT64x16x32_SN_K1")
    assert not builder.claims(find)


def test_cost_on_a_known_device():
    (claim,) = find(gemms(TraceBuilder(device="NVIDIA H100 80GB HBM3")).build())
    assert claim.time_class == "compute"
    assert claim.certainty == "likely"
    assert (claim.spans[:, 1] - claim.spans[:, 0]).tolist() == [200_000] * 5
    assert np.allclose(claim.gain_low, 1 - 1 / 2)
    assert np.allclose(claim.gain_high, 1 - 1 / 8)
    assert claim.evidence["share_of_kernel_time"] == 1.0
    assert claim.evidence["fp32_ms_per_step"] == 1.0
    assert claim.evidence["achieved_tflops"] == pytest.approx(2 * 1024**3 / 200e3 / 1e3, abs=0.1)
    assert "set_float32_matmul_precision" in claim.fix.code


def test_high_is_bounded_by_memory_traffic():
    # 8192 x 8192 by 8192 x 16: a matrix-vector product in all but name
    dims = [[8192, 8192], [8192, 16]]
    (claim,) = find(gemms(TraceBuilder(device="NVIDIA A100-SXM4-40GB"), dims=dims).build())
    elements = 8192 * 8192 + 2 * 8192 * 16
    assert np.allclose(claim.gain_high, 1 - elements * 2 / 1600 / 200e3)
    assert np.allclose(claim.gain_low, min(0.5, 1 - elements * 4 / 1600 / 200e3))


def test_weak_tensor_cores_promise_less():
    # a 4090's half rate is twice its fp32 rate
    (claim,) = find(gemms(TraceBuilder(device="NVIDIA GeForce RTX 4090")).build())
    assert np.allclose(claim.gain_high, 1 - 83 / 165)
    assert np.all(np.asarray(claim.gain_low) < 0.01)


def test_low_is_nothing_where_the_host_is_late():
    (claim,) = find(gemms(TraceBuilder(), dur=200, host=500).build())
    # each kernel has ended before the next is launched; the last has no successor
    assert np.asarray(claim.gain_low).tolist()[:-1] == [0.0] * 4


def test_low_is_bounded_by_the_queue():
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 10, dims=SQUARE, types=FLOAT).launch(2, 3, 10, 200, name=SGEMM)
    # the second launch returns 20 us before the first kernel ends
    builder.op("aten::mm", 180, 15, dims=SQUARE, types=FLOAT).launch(187, 3, 210, 200, name=SGEMM)
    (claim,) = find(builder.build())
    assert claim.gain_low[0] == pytest.approx(20 / 200)


def test_loud_without_operators_and_without_types():
    builder = TraceBuilder(device="NVIDIA RTX A400")
    builder.meta["deviceProperties"][0].update(computeMajor=8, computeMinor=6)
    for index in range(5):
        builder.launch(10 * index, 3, 100 + 200 * index, 200, name=SGEMM)
    (claim,) = find(builder.build())
    assert claim.evidence["input_types_recorded"] is False
    assert "achieved_tflops" not in claim.evidence
    assert np.allclose(claim.gain_high, 1 - 1 / 4)


def test_the_fix_follows_the_hardware():
    volta = gemms(TraceBuilder(device="Tesla V100-SXM2-32GB"), kernel="volta_sgemm_64x64_nt")
    volta.meta["deviceProperties"][0].update(computeMajor=7, computeMinor=0)
    (claim,) = find(volta.build())
    assert "float16" in claim.fix.code
    assert "GradScaler" in claim.fix.code
    name = "Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1_SN_LDSB0"
    (claim,) = find(gemms(TraceBuilder(vendor="rocm", device="MI300X"), kernel=name).build())
    assert "bfloat16" in claim.fix.code
    assert "tf32" not in claim.fix.code


def convolutions(builder, benchmark="False"):
    dims = [[64, 64, 56, 56], [64, 64, 3, 3], [], [], [], [], [], [], []]
    concrete = ["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1", benchmark, "False", "True"]
    for index in range(3):
        builder.op("aten::cudnn_convolution", 20 * index, 10, dims=dims, types=FLOAT, concrete=concrete)
        builder.launch(20 * index + 2, 3, 200 + 900 * index, 900, name="cudnn_ampere_scudnn_128x32_relu_small_nn_v1")
    return builder


def test_tf32_is_not_in_force_where_there_is_none():
    volta = convolutions(TraceBuilder(device="Tesla V100-SXM2-32GB"), "True")
    volta.meta["deviceProperties"][0].update(computeMajor=7, computeMinor=0)
    (claim,) = find(volta.build())
    assert "float16" in claim.fix.code
    assert "TF32" not in claim.message
    assert np.any(claim.gain_low)


@pytest.mark.parametrize("benchmark", ["False", "True"])
def test_what_is_in_force_already_is_not_advised(benchmark):
    (claim,) = find(convolutions(TraceBuilder(device="NVIDIA H100 80GB HBM3"), benchmark).build())
    assert "allow_tf32" not in claim.fix.code
    assert "autocast" in claim.fix.code
    assert ("cudnn.benchmark" in claim.fix.code) == (benchmark == "False")
    assert claim.message.endswith("though TF32 is allowed for most of them")
    assert not np.any(claim.gain_low)
    assert np.all(np.asarray(claim.gain_high) > 0.5)


def test_high_is_bounded_by_what_other_kernels_of_the_recording_reach():
    builder = gemms(TraceBuilder(device="NVIDIA RTX A400"))
    builder.meta["deviceProperties"][0].update(computeMajor=8, computeMinor=6)
    # 8 MiB a kernel: one reaches 42 bytes per ns, others less
    for index, dur in enumerate([200.0, 300, 400, 500, 600]):
        at = 300 + 20 * index
        builder.op("aten::clamp_min", at, 10, dims=[[1024, 1024], []], types=["float", "Scalar"])
        builder.launch(at + 2, 3, 2000 + 1000 * index, dur, name="vectorized_elementwise_kernel")
    (claim,) = find(builder.build())
    # a product moves 12 MiB, more than any of these
    assert np.allclose(claim.gain_high, 1 - 1 / 4)
    for index, dur in enumerate([200.0, 300, 400, 500, 600]):
        at = 400 + 20 * index
        builder.op("aten::add", at, 10, dims=[[1024, 1024], [1024, 1024], []], types=["float", "float", "Scalar"])
        builder.launch(at + 2, 3, 8000 + 1000 * index, dur, name="vectorized_elementwise_kernel")
    (claim,) = find(builder.build())
    assert np.allclose(claim.gain_high, 1 - 1 / 2, atol=0.01)  # as long as the fastest, with half the bytes
    assert np.allclose(claim.gain_most, claim.gain_high)


def test_slow_kernels_prove_nothing_of_a_memory_whose_rate_is_known():
    def steps(n_slow):
        builder = gemms(TraceBuilder(device="NVIDIA H100 80GB HBM3"), dur=600.0, host=20.0)
        for index in range(n_slow):
            at = 5000 + 4000 * index
            builder.op("aten::add", at, 10, dims=[[4096, 4096], [4096, 4096], []], types=["float", "float", "Scalar"])
            builder.launch(at + 2, 3, at + 20, 3000, name="elementwise_kernel_strided")
        (claim,) = find(builder.build())
        return claim

    assert np.max(steps(5).gain_high) == pytest.approx(np.max(steps(0).gain_high))
    assert np.max(steps(5).gain_most) == pytest.approx(np.max(steps(0).gain_most))

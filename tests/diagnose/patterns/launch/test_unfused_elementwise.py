"""LCH015 unfused-elementwise."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.launch.unfused_elementwise import find

POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::{}>"
MUL = ("aten::mul", POINTWISE.format("mul"), [[1024, 64], [1024, 64]])
EXP = ("aten::exp", POINTWISE.format("exp"), [[1024, 64]])
ADD = ("aten::add", POINTWISE.format("add"), [[1024, 64], [1024, 64]])
LOG = ("aten::log", POINTWISE.format("log"), [[1024, 64]])
CAST = ("aten::copy_", "direct_copy_kernel", [[1024, 64], [1024, 64], []])
COPY = ("aten::copy_", "direct_copy_kernel", [[1024, 64], [1024, 64]])
SMALL = ("aten::exp", POINTWISE.format("exp"), [[8, 64]])
GEMM = ("aten::mm", "ampere_sgemm", [[1024, 64], [64, 64]])

NORM = (
    "aten::native_layer_norm",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>",
    [[1024, 64]],
)
BACKWARD = ("aten::native_layer_norm_backward", "void at::native::layer_norm_grad_input_kernel<float>", [[1024, 64]])

Op = tuple[str, str, Sequence[object]]


def run(*ops: Op, late: bool = False, mark: str = "", streams: Sequence[int] = (7,)) -> TraceBuilder:
    """Kernels of 100 us, back to back or each launched late, four times over."""
    builder = TraceBuilder().op("aten::empty", 0, 1.5)
    host, device = 10.0, 2_000.0
    for index, (op, kernel, dims) in enumerate(list(ops) * 4):
        if late:
            host = device = device + 50
        builder.op(op, host, 8, dims=list(dims))
        builder.launch(host + 1, 4, device + 10 * late, 100, kernel, stream=streams[index % len(streams)])
        host, device = host + 10, device + 100 + 10 * late
    if mark:
        builder.annotation(mark, 5, host)
    return builder


def test_quiet_on_two_in_a_row() -> None:
    assert not run(MUL, EXP, GEMM).claims(find)


def test_quiet_when_sizes_differ() -> None:
    assert not run(MUL, SMALL, EXP, GEMM).claims(find)


@pytest.mark.parametrize("kinds", [(ADD,) * 10, (COPY, COPY, COPY, COPY, ADD)])
def test_quiet_on_one_operator_again_and_again(kinds: tuple[Op, ...]) -> None:
    """A benchmark's loop, or the same copy of many tensors: nothing shows that one reads what another wrote."""
    assert not run(*kinds, GEMM).claims(find)


def test_quiet_on_the_kernels_of_one_operator() -> None:
    builder = TraceBuilder().op("aten::empty", 0, 1.5).op("aten::add_", 10, 50, dims=[[1024, 64]])
    for k in range(4):
        builder.launch(12 + 10 * k, 4, 2_000 + 100 * k, 100, ADD[1])
    assert not builder.claims(find)


def test_a_factor_applied_twice_is_part_of_a_chain() -> None:
    (claim,) = run(MUL, MUL, EXP, GEMM).claims(find)
    assert claim.evidence["n_kernels_of_longest_chain"] == 3


def test_a_norm_belongs_to_what_is_pointwise_around_it() -> None:
    (claim,) = run(GEMM, MUL, NORM, EXP).claims(find)
    assert claim.evidence["costliest_chain_ops"] == ["aten::mul", "aten::native_layer_norm", "aten::exp"]
    assert not run(GEMM, MUL, BACKWARD, EXP).claims(find)


def test_copies_of_weights_and_biases_are_no_chain() -> None:
    bias = ("aten::copy_", "direct_copy_kernel", [[64], [64], []])
    other = ("aten::copy_", "direct_copy_kernel", [[64, 1024], [64, 1024], []])
    assert not run(CAST, bias, other, bias).claims(find)


def test_the_largest_tensors_have_their_size() -> None:
    large = [[1 << 12, 1 << 12, 1 << 8]]
    (claim,) = run(GEMM, *((op, kernel, large * len(dims)) for op, kernel, dims in (MUL, EXP, LOG))).claims(find)
    assert claim.evidence["n_kernels_of_longest_chain"] == 3


def test_quiet_when_products_come_between() -> None:
    assert not run(MUL, GEMM, EXP, GEMM).claims(find)


def test_quiet_when_the_third_is_on_another_stream() -> None:
    builder = TraceBuilder().op("aten::empty", 0, 1.5)
    for k, ((op, kernel, dims), stream) in enumerate(((GEMM, 7), (EXP, 7), (EXP, 7), (EXP, 8), (GEMM, 8))):
        builder.op(op, 10 * k + 2, 8, dims=list(dims))
        builder.launch(10 * k + 3, 4, 2_000 + 100 * k, 100, kernel, stream=stream)
    assert not builder.claims(find)


@pytest.mark.parametrize(
    "kernel",
    [
        "triton_poi_fused_elementwise_kernel",
        "multi_tensor_apply_kernel<CUDAFunctor>",
        "index_elementwise_kernel",
        "reduce_kernel<CUDAFunctor>",
    ],
)
def test_quiet_on_kernels_that_are_fused_or_not_pointwise(kernel: str) -> None:
    one: Op = ("aten::exp", kernel, [[1024, 64]])
    assert not run(one, one, one, GEMM).claims(find)


def test_quiet_in_the_optimizer() -> None:
    assert not run(MUL, EXP, MUL, GEMM, mark="Optimizer.step#SGD.step").claims(find)


def test_quiet_when_the_host_paces_the_chain() -> None:
    assert not run(MUL, EXP, MUL, GEMM, late=True).claims(find)


def test_quiet_below_five_percent_of_the_kernel_time() -> None:
    assert not run(MUL, EXP, MUL, *[GEMM] * 60).claims(find)


def test_traffic_of_the_chain_is_the_model() -> None:
    (claim,) = run(EXP, LOG, EXP, GEMM).claims(find)
    # three kernels read and write 6 tensors; fused 2: two thirds are saved
    assert claim.gain_high == pytest.approx([2 / 3] * 12)
    assert claim.gain_low == pytest.approx([1 / 3] * 12)
    assert claim.evidence["n_chains_per_step"] == 4
    assert claim.evidence["n_kernels_per_step"] == 12
    assert claim.evidence["chain_ms_per_step"] == 1.2
    assert claim.evidence["share_of_kernel_time"] == 0.75
    assert claim.evidence["n_kernels_of_longest_chain"] == 3
    assert claim.evidence["costliest_chain_ops"] == ["aten::exp", "aten::log", "aten::exp"]
    assert claim.time_class == "compute"
    assert claim.certainty == "likely"


def test_second_inputs_have_to_be_read_all_the_same() -> None:
    (claim,) = run(MUL, ADD, MUL, ADD, GEMM).claims(find)
    # four kernels move 12 tensors, fused 8 - 4 + 2 = 6
    assert claim.gain_high == pytest.approx([0.5] * 16)


def test_a_copy_reads_one_and_writes_one() -> None:
    (claim,) = run(COPY, CAST, COPY, GEMM).claims(find)
    assert claim.gain_high == pytest.approx([2 / 3] * 12)


def test_what_the_next_launch_does_not_follow_has_no_low_end() -> None:
    builder = run(EXP, LOG, EXP, GEMM)
    builder.op("aten::exp", 9_000, 8, dims=[[1024, 64]])
    for k, (op, kernel, dims) in enumerate((EXP, LOG, EXP)):
        builder.op(op, 9_000 + 200 * k, 8, dims=list(dims))
        builder.launch(9_001 + 200 * k, 4, 9_010 + 200 * k, 100, kernel)
    (claim,) = builder.claims(find)
    assert claim.gain_low.tolist().count(0.0) == 2  # nothing follows the last one late
    assert len(claim.spans) == 15


def test_batch_norm_with_stored_statistics_is_pointwise() -> None:
    norm: Op = ("aten::cudnn_batch_norm", "cudnn::bn_fw_inf_1C11_kernel_NCHW", [[1024, 64], [64]])
    (claim,) = run(EXP, norm, EXP, GEMM).claims(find)
    assert claim.evidence["n_kernels_per_step"] == 12


def test_without_shapes_grids_say_what_belongs_together() -> None:
    builder = TraceBuilder().op("aten::empty", 0, 1.5)
    for k in range(8):
        grid = [512, 1, 1] if k < 4 else [k, 1, 1]
        builder.launch(10 * k + 2, 4, 2_000 + 100 * k, 100, (EXP, LOG)[k % 2][1], grid=grid, block=[128, 1, 1])
    (claim,) = builder.claims(find)
    assert claim.certainty == "hint"
    assert claim.evidence["n_kernels_per_step"] == 4


def test_interleaved_streams_keep_their_own_chains() -> None:
    builder = TraceBuilder().op("aten::empty", 0, 1.5)
    for k in range(4):
        for stream, (op, kernel, dims) in ((7, (EXP, LOG)[k % 2]), (8, GEMM)):
            at = 20 * k + 10 * (stream - 7) + 2
            builder.op(op, at, 8, dims=list(dims))
            builder.launch(at + 1, 4, 2_000 + 100 * k, 100, kernel, stream=stream)
    (claim,) = builder.claims(find)
    assert claim.evidence["n_kernels_of_longest_chain"] == 4


def on_cpu(*names: str, dims: Sequence[object] = ([1024, 64],), dur: float = 100, end: bool = True) -> TraceBuilder:
    """Steps of 1 ms on a CPU: operators of 100 us in a row, and a product at the end."""
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        at = 1_000 * i
        builder.step(i, at, 1_000)
        for k, name in enumerate(names):
            builder.op(name, at + 10 + (dur + 5) * k, dur, dims=list(dims))
        if end:
            builder.op("aten::mm", at + 900, 50, dims=[[1024, 64], [64, 64]])
    return builder


def test_quiet_on_two_operators_on_a_cpu() -> None:
    assert not on_cpu("aten::mul", "aten::tanh").claims(find)


def test_quiet_on_other_operators_between_them_on_a_cpu() -> None:
    assert not on_cpu("aten::mul", "aten::tanh", "aten::layer_norm", "aten::mul").claims(find)


def test_quiet_on_one_operator_again_and_again_on_a_cpu() -> None:
    assert not on_cpu(*["aten::add"] * 5).claims(find)


def test_quiet_on_single_numbers_on_a_cpu() -> None:
    assert not on_cpu("aten::mul", "aten::tanh", "aten::add", dims=[[]]).claims(find)


def test_quiet_on_one_operator_in_every_step_of_a_cpu() -> None:
    # the end of a step ends a chain
    assert not on_cpu("aten::gelu", end=False).claims(find)


def test_quiet_below_five_percent_of_the_step_on_a_cpu() -> None:
    assert not on_cpu("aten::mul", "aten::tanh", "aten::add", dur=16).claims(find)


def test_loud_on_chains_of_a_cpu() -> None:
    (claim,) = on_cpu("aten::mul", "aten::tanh", "aten::add").claims(find)
    assert claim.time_class == "host"
    assert claim.evidence["chain_ms_per_step"] == pytest.approx(0.3)
    assert claim.evidence["share_of_step"] == pytest.approx(0.3)
    assert claim.evidence["n_ops_per_step"] == 3
    # three reads and three writes become one of each
    assert claim.gain_high == pytest.approx(4 / 6)
    assert claim.gain_low == pytest.approx(2 / 6)


def test_short_operators_of_a_cpu_win_less_for_sure() -> None:
    (claim,) = on_cpu("aten::mul", "aten::tanh", "aten::add", dur=40).claims(find)
    assert claim.gain_low == pytest.approx(2 / 6 / 2.0)

"""KRN026 conv-bn-unfolded."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.base import missing_needs
from torchtriage.diagnose.patterns.kernel.conv_bn_unfolded import PATTERN, find

IMAGE = [8, 32, 56, 56]
CHANNELS = [32]


def layers(
    *, training: str = "False", between: str = "", norm: float = 100, after: str = "aten::relu", backward: bool = False
) -> TraceBuilder:
    """Steps of 1 ms on a CPU: a convolution, a batch norm and an activation of 100 us."""
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        at = 1_000 * i
        builder.step(i, at, 1_000)
        builder.op("aten::conv2d", at + 10, 500, dims=[IMAGE, [32, 32, 3, 3], []])
        builder.op("aten::convolution", at + 12, 496, dims=[IMAGE, [32, 32, 3, 3], []])
        if between:
            builder.op(between, at + 515, 10, dims=[IMAGE])
        batch_norm(builder, at + 530, norm, training)
        builder.op(after, at + 700, 100, dims=[IMAGE])
        if backward:
            builder.op("autograd::engine::evaluate_function: ConvolutionBackward0", at + 850, 50)
    return builder


def batch_norm(builder: TraceBuilder, at: float, dur: float, training: str) -> None:
    builder.op(
        "aten::batch_norm",
        at,
        dur,
        dims=[IMAGE, CHANNELS, CHANNELS, CHANNELS, CHANNELS, []],
        concrete=["", "", "", "", "", training],
    )


def test_quiet_on_statistics_of_the_batch() -> None:
    assert not layers(training="True").claims(find)


def test_quiet_when_the_inputs_do_not_say() -> None:
    assert not layers(training="").claims(find)


def test_quiet_with_an_operator_between() -> None:
    assert not layers(between="aten::add").claims(find)


def test_quiet_in_training() -> None:
    # evaluation statistics in a step that trains: a frozen backbone
    assert not layers(backward=True).claims(find)


def test_quiet_below_five_percent() -> None:
    assert not layers(norm=49, after="aten::add").claims(find)


def test_quiet_where_a_cpu_adds_the_bias_on_the_way() -> None:
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        builder.step(i, 1_000 * i, 1_000)
        builder.op("aten::conv2d", 1_000 * i + 10, 500, dims=[IMAGE, [32, 32, 3, 3], CHANNELS])
        batch_norm(builder, 1_000 * i + 600, 200, "True")
        builder.op("autograd::engine::evaluate_function: X", 1_000 * i + 850, 50)
    assert not builder.claims(find)


def test_loud_on_batch_norm_after_a_convolution() -> None:
    (claim,) = layers().claims(find)
    assert claim.certainty == "likely"
    assert claim.evidence["n_batch_norms_per_step"] == 1
    assert claim.evidence["batch_norm_ms_per_step"] == pytest.approx(0.1)
    assert claim.evidence["share_of_step"] == pytest.approx(0.1)
    assert claim.evidence["with_activations_ms_per_step"] == pytest.approx(0.2)
    assert claim.evidence["largest_shape"] == IMAGE


def test_on_a_cpu_folding_may_save_all_or_nothing() -> None:
    builder = layers()
    trace = builder.build()
    (claim,) = find(trace)
    assert not np.any(claim.gain_low)
    assert claim.gain_high == 1.0
    (edit,) = claim.edits
    assert {trace.name_of(row) for row in edit.rows.tolist()} == {"aten::batch_norm", "aten::relu"}
    assert (edit.kind, edit.factor, edit.best) == ("shrink", 1.0, 0.0)


def test_on_a_device_the_batch_norm_is_saved_for_sure_and_the_activation_at_best() -> None:
    builder = TraceBuilder()
    for i in range(4):
        at = 1_000 * i
        builder.step(i, at, 1_000)
        for name, shift, dims in (("aten::conv2d", 10, [IMAGE, [32, 32, 3, 3]]), ("aten::relu", 150, [IMAGE])):
            builder.op(name, at + shift, 60, dims=dims)
            builder.launch(at + shift + 2, 5, at + shift + 180, 50)
        batch_norm(builder, at + 80, 60, "False")
        builder.launch(at + 82, 5, at + 240, 50)
    trace = builder.build()
    (claim,) = find(trace)
    norms, activations = claim.edits
    assert (norms.kind, activations.kind) == ("drop", "shrink")
    assert len(norms.rows) == 8  # operators and launches
    assert np.count_nonzero(claim.gain_low) == len(activations.rows) == 4


def without_shapes(kernel: str) -> TraceBuilder:
    builder = TraceBuilder()
    for index, (name, inner) in enumerate(
        [("aten::conv2d", "aten::cudnn_convolution"), ("aten::batch_norm", "aten::cudnn_batch_norm")]
    ):
        at = 100 * index
        builder.op(name, at, 60)
        builder.op(inner, at + 5, 50)
        builder.launch(at + 10, 5, at + 200, 50, name=kernel if index else "conv")
    return builder


def test_without_shapes_the_kernel_says_whose_statistics() -> None:
    (claim,) = without_shapes("void cudnn::bn_fw_inf_1C11_kernel_NCHW<float, float, true, 1>").claims(find)
    assert claim.evidence["batch_norm_ms_per_step"] == pytest.approx(0.05)
    assert "largest_shape" not in claim.evidence
    training = without_shapes("void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>")
    assert not missing_needs(PATTERN, training.build())
    assert not training.claims(find)
    training.op("autograd::engine::evaluate_function: ConvolutionBackward0", 300, 10)
    assert missing_needs(PATTERN, training.build()) == ["statistics"]


def on_device(*, bias: list[int], training: str = "True") -> TraceBuilder:
    """Training steps whose convolution enqueues a product of 900 us and adds a bias in 50 us."""
    builder = TraceBuilder()
    for i in range(4):
        at = 1_000 * i
        builder.step(i, at, 1_000)
        builder.op("aten::conv2d", at + 10, 60, dims=[IMAGE, [32, 32, 3, 3], bias])
        builder.launch(at + 12, 5, at + 80, 800)
        builder.op("aten::add_", at + 40, 20, dims=[IMAGE, [1, 32, 1, 1]])
        builder.launch(at + 42, 5, at + 880, 50)
        batch_norm(builder, at + 80, 20, training)
        builder.launch(at + 82, 5, at + 930, 50)
        builder.op("autograd::engine::evaluate_function: ConvolutionBackward0", at + 120, 10)
    return builder


def test_quiet_on_convolutions_without_a_bias() -> None:
    assert not on_device(bias=[]).claims(find)


def test_quiet_on_a_bias_before_stored_statistics() -> None:
    assert not on_device(bias=CHANNELS, training="False").claims(find)


def test_loud_on_a_bias_that_the_batch_norm_takes_away() -> None:
    (claim,) = on_device(bias=CHANNELS).claims(find)
    assert claim.certainty == "certain"
    assert claim.evidence["bias_ms_per_step"] == pytest.approx(0.05)
    assert claim.evidence["share_of_kernel_time"] == pytest.approx(50 / 900, abs=1e-6)
    assert claim.fix is not None
    assert "bias=False" in claim.fix.code
    np.testing.assert_allclose(claim.gain_low, 1.0)
    assert (claim.spans[:, 1] - claim.spans[:, 0] == 50_000).all()
    # four additions, each an operator and its kernel
    assert len(claim.edits[0].rows) == 8

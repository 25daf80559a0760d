"""CFG042: quiet where training or nothing is meant, loud where eval() was forgotten."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.config.train_mode_in_inference import FIX, find

STATS = [[8, 4], [4], [4], [4], [4], [], [], [], []]
NO_STATS = [[8, 4], [4], [4], [], [], [], [], [], []]


def norm(builder, start, *, training, dims=STATS):
    concrete = ["", "", "", "", "", training, "0.1", "1e-05", "True"]
    return builder.op("aten::batch_norm", start, 5, dims=dims, concrete=concrete)


def dropout(builder, start, *, p="0.10000000000000001", training="True"):
    return builder.op("aten::dropout", start, 5, dims=[[8, 4], [], []], concrete=["", p, training])


def test_quiet_in_evaluation_mode():
    builder = TraceBuilder(vendor="cpu")
    norm(builder, 0, training="False")
    dropout(builder, 10, training="False")
    assert not builder.claims(find)


def test_quiet_on_dropout_that_drops_nothing():
    assert not dropout(TraceBuilder(vendor="cpu"), 0, p="0.").claims(find)


def test_quiet_on_norms_that_have_no_running_statistics():
    trace = norm(TraceBuilder(vendor="cpu"), 0, training="True", dims=NO_STATS).build()
    assert not list(find(trace))


def test_quiet_on_instance_norm():
    builder = TraceBuilder(vendor="cpu").op("aten::instance_norm", 0, 20, dims=[[8, 4]])
    assert not norm(builder, 5, training="True").claims(find)


@pytest.mark.parametrize(
    "name",
    [
        "autograd::engine::evaluate_function: AddmmBackward0",
        "AddmmBackward0",
        "NllLossBackward",
        "Optimizer.step#SGD.step",
        "DistributedDataParallel.forward",
    ],
)
def test_quiet_in_training(name):
    builder = dropout(TraceBuilder(vendor="cpu"), 0)
    assert not builder.op(name, 20, 5).claims(find)


def test_quiet_on_one_forward_pass_up_to_a_loss():
    builder = dropout(TraceBuilder(vendor="cpu"), 0).op("aten::cross_entropy_loss", 20, 5)
    assert not builder.claims(find)


def test_quiet_without_shapes_when_dropout_calls_nothing():
    trace = TraceBuilder(vendor="cpu").op("aten::dropout", 0, 5).op("aten::relu", 6, 1).build()
    assert not list(find(trace))


def test_quiet_on_validation_steps_in_evaluation_mode():
    builder = TraceBuilder(vendor="cpu")
    for index, backward in enumerate((True, False, True)):
        at = 100 * index
        dropout(builder.step(index, at, 90), at + 5, training=str(backward))
        if backward:
            builder.op("AddmmBackward0", at + 50, 5)
    assert not builder.claims(find)


def test_counts_each_module_once():
    builder = norm(TraceBuilder(vendor="cpu"), 0, training="True")
    dropout(builder, 10).op("aten::native_dropout", 11, 2, concrete=["", "0.1", "True"])
    (claim,) = find(builder.build())
    assert claim.always
    assert claim.certainty == "certain"
    assert claim.rows.tolist() == [0, 1]
    assert claim.evidence["n_batch_norms"] == 1
    assert claim.evidence["n_dropouts"] == 1
    assert claim.message.startswith("results may be wrong: 1 batch norm and 1 dropout run in train mode")
    assert "batch norm takes its statistics from each batch" in claim.message
    assert "dropout makes outputs random" in claim.message
    assert "results change" in FIX.text


@pytest.mark.parametrize("inner", ["aten::native_dropout", "aten::bernoulli_"])
def test_sees_dropout_without_shapes_by_what_it_calls(inner):
    (claim,) = find(TraceBuilder(vendor="cpu").op("aten::dropout", 0, 5).op(inner, 1, 2).build())
    assert claim.evidence["n_dropouts"] == 1


def test_sees_a_norm_without_shapes_by_its_kernel():
    builder = TraceBuilder().op("aten::batch_norm", 0, 20).op("aten::cudnn_batch_norm", 1, 15)
    builder.launch(3, 2, 10, 5, name="void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float>(float)")
    builder.op("aten::batch_norm", 30, 20)
    builder.launch(33, 2, 40, 5, name="void cudnn::bn_fw_inf_1C11_kernel_NCHW<float, float>()")
    (claim,) = find(builder.build())
    assert claim.rows.tolist() == [0]


def test_loud_on_validation_steps_left_in_train_mode():
    builder = TraceBuilder(vendor="cpu")
    for index, backward in enumerate((True, False, False, True)):
        at = 100 * index
        dropout(builder.step(index, at, 90), at + 5)
        builder.op("aten::cross_entropy_loss", at + 30, 5)
        if backward:
            builder.op("AddmmBackward0", at + 50, 5)
    (claim,) = find(builder.build())
    assert claim.certainty == "likely"
    assert claim.evidence["n_dropouts"] == 2
    assert claim.evidence["n_steps"] == 2


def test_the_time_of_dropouts_is_counted_and_that_of_norms_is_not():
    builder = norm(TraceBuilder(vendor="cpu"), 0, training="True")
    dropout(builder, 10).op("aten::native_dropout", 11, 2, concrete=["", "0.1", "True"])
    (claim,) = find(builder.build())
    assert claim.time_class == "host"
    assert claim.spans.tolist() == [[10_000, 15_000]]
    assert claim.evidence["dropout_ms_per_step"] == pytest.approx(0.005)
    (edit,) = claim.edits
    assert (edit.kind, edit.rows.tolist()) == ("drop", [1])

    (claim,) = find(norm(TraceBuilder(vendor="cpu"), 0, training="True").build())
    assert claim.time_class == "none"
    assert not claim.edits

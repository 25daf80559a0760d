"""OPT047 dense-embedding-grad."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.launch.optimizer_per_tensor import find as fused
from torchtriage.diagnose.patterns.optim.dense_embedding_grad import find

STEP = "Optimizer.step#SGD.step"


def steps(*, rows: int = 20_000, backward: float = 300, wall: float = 1_000) -> TraceBuilder:
    """Steps on a CPU: the gradient of a table for 512 indices, and an update of 200 us."""
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        at = wall * i
        builder.step(i, at, wall)
        builder.op(
            "aten::embedding_dense_backward",
            at + 100,
            backward,
            dims=[[16, 32, 64], [16, 32], [], [], []],
            concrete=["", "", str(rows), "-1", "False"],
        )
        builder.op("aten::zeros", at + 101, backward - 10, dims=[[]])
        builder.annotation(STEP, at + 600, 300)
        builder.op("aten::add_", at + 610, 200, dims=[[rows, 64], [rows, 64], []])
        builder.op("aten::add_", at + 820, 50, dims=[[64, 64], [64, 64], []])
    return builder


def test_quiet_where_a_step_touches_a_tenth_of_the_rows() -> None:
    assert not steps(rows=5_119).claims(find)


def test_quiet_below_five_percent() -> None:
    assert not steps(wall=12_000).claims(find)


def test_quiet_without_the_number_of_rows() -> None:
    builder = steps()
    for event in builder.events:
        event.get("args", {}).pop("Concrete Inputs", None)
    assert not builder.claims(find)


def test_quiet_once_in_a_while() -> None:
    builder = steps()
    dense = [one for one in builder.events if "embedding" in one["name"]]
    for event in dense[1:]:
        builder.events.remove(event)
    assert not builder.claims(find)


def test_loud_on_few_indices_into_a_large_table() -> None:
    (claim,) = steps().claims(find)
    assert claim.certainty == "likely"
    assert claim.evidence["dense_gradient_ms_per_step"] == pytest.approx(0.5)
    assert claim.evidence["share_of_step"] == pytest.approx(0.5)
    assert claim.evidence["table_shape"] == [20_000, 64]
    assert claim.evidence["n_indices"] == 512
    assert claim.message.startswith("a gradient of 20,000 x 64 is filled for 512 indices")


def bags(
    *, optimizer: str = "Adagrad", updates: tuple[str, ...] = ("addcmul_", "sqrt", "add_", "mul", "addcdiv_")
) -> TraceBuilder:
    """Steps on a device: the backward of an EmbeddingBag, and an optimizer's passes over table and a layer."""
    builder = TraceBuilder()
    bag = [[8192, 64], [8192], [8192], [8192], [0], [], [], [], [], []]
    for i in range(4):
        at = 1_000 * i
        builder.step(i, at, 1_000)
        builder.op(
            "aten::_embedding_bag_dense_backward",
            at + 100,
            50,
            dims=bag,
            concrete=["", "", "", "", "", "1500000", "False", "1", "", "-1"],
        )
        builder.launch(at + 110, 5, at + 120, 180)
        builder.annotation(f"Optimizer.step#{optimizer}.step", at + 200, 20 * len(updates))
        for k, name in enumerate(updates):
            tables = [[[1_500_000, 64], [500_000, 64]]]
            builder.op(f"aten::_foreach_{name}", at + 200 + 20 * k, 18, dims=tables)
            builder.launch(at + 205 + 20 * k, 5, at + 320 + 120 * k, 100)
    return builder


def test_loud_on_the_bags_of_a_recommender() -> None:
    (claim,) = bags().claims(find)
    assert claim.evidence["table_shape"] == [1_500_000, 64]
    assert claim.evidence["n_indices"] == 8192
    # the fill, and of each pass the part of the table
    assert claim.evidence["dense_gradient_ms_per_step"] == pytest.approx(0.18 + 5 * 0.1 * 0.75)
    # rows without a gradient do not move under Adagrad: the result is the same
    assert claim.certainty == "likely"
    assert claim.fix is not None
    assert "EmbeddingBag" in claim.fix.code
    assert "SparseAdam" not in claim.fix.code


@pytest.mark.parametrize(
    ("optimizer", "updates", "certainty"),
    [
        ("SGD", ("add_",), "likely"),
        ("SGD", ("mul_", "add_", "add_"), "hint"),  # momentum moves every row
        ("Adagrad", ("add", "addcmul_", "sqrt", "add_", "mul_", "addcdiv_"), "hint"),  # so does weight decay
        ("RMSprop", ("mul_", "addcmul_", "sqrt", "add_", "addcdiv_"), "hint"),
        ("Adam", ("lerp_", "mul_", "addcmul_", "sqrt", "div_", "add_", "addcdiv_"), "hint"),
    ],
)
def test_a_hint_where_the_optimizer_moves_every_row(optimizer: str, updates: tuple[str, ...], certainty: str) -> None:
    (claim,) = bags(optimizer=optimizer, updates=updates).claims(find)
    assert claim.certainty == certainty


@pytest.mark.parametrize("fused", ["aten::_fused_sgd_", "aten::_fused_adagrad_", "aten::_fused_adamw_"])
def test_a_hint_where_the_fused_form_hides_what_moves(fused: str) -> None:
    builder = bags(updates=("add_",))
    for event in builder.events:
        event["name"] = event["name"].replace("aten::_foreach_add_", fused)
    (claim,) = builder.claims(find)
    assert claim.certainty == "hint"
    assert claim.evidence["dense_gradient_ms_per_step"] == pytest.approx(0.18 + 0.1 * 0.75)


def test_the_gradient_that_is_added_up_belongs_to_it() -> None:
    builder = bags(updates=("add_",))
    for i in range(4):
        at = 1_000 * i
        builder.op("torch::autograd::AccumulateGrad", at + 160, 20)
        builder.op("aten::detach", at + 161, 1, dims=[[1_500_000, 64]])
        builder.op("aten::add_", at + 162, 15, dims=[[1_500_000, 64], [1_500_000, 64], []])
        builder.launch(at + 165, 5, at + 440, 90)
    (claim,) = builder.claims(find)
    assert claim.evidence["dense_gradient_ms_per_step"] == pytest.approx(0.18 + 0.1 * 0.75 + 0.09)
    assert claim.certainty == "likely"


def test_a_hint_where_the_table_is_also_the_output_layer() -> None:
    builder = bags()
    for i in range(4):
        builder.op("aten::linear", 1_000 * i + 20, 10, dims=[[8192, 64], [1_500_000, 64], []])
    (claim,) = builder.claims(find)
    assert claim.certainty == "hint"


def test_the_place_is_the_lookup() -> None:
    builder = bags()
    for i in range(4):
        builder.op("aten::embedding_bag", 1_000 * i + 5, 10, dims=[[500, 64], [8192], [8192]])
        builder.op("aten::embedding_bag", 1_000 * i + 20, 10, dims=[[1_500_000, 64], [8192], [8192]])
    trace = builder.build()
    (claim,) = find(trace)
    assert trace.details_of("dims", np.array([claim.anchor]))[0][0] == [1_500_000, 64]


@pytest.mark.parametrize(("optimizer", "n_fused"), [("Adagrad", 0), ("Adam", 1)])
def test_a_fused_form_is_proposed_where_every_row_moves(optimizer: str, n_fused: int) -> None:
    updates = ("lerp_", "mul_", "addcdiv_") if optimizer == "Adam" else ("addcmul_", "sqrt", "addcdiv_")
    assert len(list(fused(bags(optimizer=optimizer, updates=updates).build()))) == n_fused


def test_the_cost_is_the_share_of_rows_that_were_not_touched() -> None:
    (claim,) = steps().claims(find)
    untouched = 1 - 512 / 20_000
    np.testing.assert_allclose(claim.gain_high, untouched)
    np.testing.assert_allclose(claim.gain_low, untouched / 2)
    (edit,) = claim.edits
    assert edit.kind == "shrink"
    np.testing.assert_allclose(edit.best, 1 - untouched)


def test_of_a_fused_update_the_part_of_the_table_counts() -> None:
    builder = steps()
    for event in builder.events:
        if event["name"] == "aten::add_" and event["dur"] == 200:
            event["name"] = "aten::_fused_adam_"
            # as many elements in the other tensor: half of the update is the table's
            event["args"]["Input Dims"] = [[[20_000, 64], [1_280_000]], [[20_000, 64]]]
    (claim,) = builder.claims(find)
    assert claim.evidence["dense_gradient_ms_per_step"] == pytest.approx(0.3 + 0.2 / 2)
    untouched = 1 - 512 / 20_000
    high = np.asarray(claim.gain_high)
    assert sorted(set(high.round(6))) == pytest.approx([untouched / 2, untouched])


def test_fills_are_counted_and_many_of_them_named() -> None:
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        at = 1_000 * i
        builder.step(i, at, 1_000)
        for k in range(10):
            builder.op(
                "aten::embedding_dense_backward",
                at + 50 * k,
                40,
                dims=[[1, 64], [1], [], [], []],
                concrete=["", "", "20000", "-1", "False"],
            )
    (claim,) = builder.claims(find)
    assert claim.evidence["n_fills_per_step"] == 10
    assert "is filled 10 times per step for 1 index" in claim.message

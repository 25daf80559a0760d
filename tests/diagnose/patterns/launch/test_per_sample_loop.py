"""LCH017 per-sample-loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.launch.per_sample_loop import find

Body = Callable[[int], Sequence[str]]


def loop(
    n: int = 20,
    body: Body = lambda i: ["aten::mul", "aten::sum"],
    *,
    shape: Sequence[int] = (20, 64),
    indices: Sequence[int] | None = None,
    selects: int = 1,
    parent: str = "",
    vendor: str = "cuda",
) -> TraceBuilder:
    """Four steps that run through the rows of a tensor; every op takes 20 us and a 2 us kernel."""
    builder = TraceBuilder(vendor=vendor)
    at = 0.0
    for step in range(4):
        start = at
        for i in range(n):
            index = i if indices is None else indices[i]
            for _ in range(selects):
                builder.op("aten::select", at, 10.5, dims=[list(shape), [], []], concrete=["", "0", str(index)])
                at += 20
            for name in body(i):
                builder.op(name, at, 18, dims=[[64]])
                if vendor != "cpu":
                    builder.launch(at + 5, 5, at + 12, 2)
                at += 20
        if parent:
            builder.op(parent, start, at - start)
        builder.step(step, start, at - start)
    return builder


def test_quiet_on_a_loader_that_reads_item_by_item() -> None:
    for vendor in ("cuda", "cpu"):
        builder = loop(vendor=vendor)
        for step in [one for one in builder.events if "ProfilerStep" in one["name"]]:
            name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
            builder.annotation(name, step["ts"], step["dur"])
        assert not builder.claims(find)


def test_quiet_when_the_index_is_the_number_of_the_step() -> None:
    builder = TraceBuilder(vendor="cpu")
    for i in range(12):
        at = 100.0 * i
        builder.step(i, at, 100)
        dims, concrete = [[12, 64], [], []], ["", "0", str(i)]
        builder.op("aten::select", at, 10, dims=dims, concrete=concrete)
        builder.op("aten::mul", at + 20, 60, dims=[[64]])
    assert not builder.claims(find)


def test_quiet_on_micro_batches_that_are_sent_to_another_rank() -> None:
    assert loop(body=lambda i: ["aten::mul", "aten::sum", "aten::relu"], vendor="cpu").claims(find)
    assert not loop(body=lambda i: ["aten::mul", "c10d::send", "aten::relu"], vendor="cpu").claims(find)


def test_quiet_on_seven_rounds() -> None:
    assert not loop(7).claims(find)


def test_quiet_when_the_index_does_not_run() -> None:
    assert not loop(indices=[0] * 20).claims(find)
    assert not loop(indices=[(7 * i) % 20 for i in range(20)]).claims(find)


def test_quiet_inside_an_operator() -> None:
    assert not loop(parent="aten::unbind").claims(find)


def test_quiet_when_nothing_follows_the_selects() -> None:
    assert not loop(body=lambda i: [], vendor="cpu").claims(find)


def test_quiet_when_every_round_does_something_else() -> None:
    assert not loop(body=lambda i: [f"aten::op{i}", "aten::sum"]).claims(find)


def test_quiet_on_recurrences() -> None:
    assert not loop(body=lambda i: ["aten::lstm_cell", "aten::add"]).claims(find)


def test_quiet_when_the_loop_is_spread_over_steps() -> None:
    builder = TraceBuilder()
    for step in range(20):
        at = 40_000 * step
        builder.step(step, at, 40_000)
        builder.op("aten::select", at, 10.5, dims=[[20, 64], [], []], concrete=["", "0", str(step)])
        for k in range(1100):
            builder.op("aten::mul", at + 20 + 20 * k, 18, dims=[[64]])
            builder.launch(at + 25 + 20 * k, 5, at + 32 + 20 * k, 2)
    assert not builder.claims(find)


def test_quiet_when_queued_work_hides_the_loop() -> None:
    builder = loop()
    builder.launch(0, 1, 2, 5_000, "gemm", stream=8)
    assert not builder.claims(find)


def test_idle_time_inside_the_loop_is_at_stake() -> None:
    trace = loop().build()
    (claim,) = find(trace)
    assert claim.evidence["n_rounds_of_longest_loop"] == 20
    assert claim.evidence["n_rounds_per_step"] == 20
    assert claim.evidence["n_ops_per_round"] == 3
    assert claim.evidence["first_ops_of_round"] == ["aten::select", "aten::mul", "aten::sum"]
    assert claim.evidence["tensor_shape"] == [20, 64]
    # 20 rounds of 60 us, two kernels of 2 us each; what follows the last kernel is the next step's
    assert claim.evidence["host_ms_per_step"] == pytest.approx(1.2, abs=0.01)
    assert claim.evidence["gpu_idle_ms_per_step"] == pytest.approx(1.12, abs=0.02)
    assert claim.time_class == "idle"
    assert claim.certainty == "likely"
    assert claim.gain_high == 1 - 1 / 16
    assert claim.gain_low == pytest.approx(0.5 * (1 - 1 / 16) / 2.0)


def test_few_rounds_gain_less() -> None:
    (claim,) = loop(8).claims(find)
    assert claim.gain_high == 1 - 1 / 8


def test_an_element_may_be_taken_twice_in_a_round() -> None:
    (claim,) = loop(selects=2).claims(find)
    assert claim.evidence["n_rounds_per_step"] == 20
    assert claim.evidence["n_ops_per_round"] == 4


def test_loops_over_tensors_of_other_shapes_in_one_body_are_one_loop() -> None:
    builder = TraceBuilder()
    for i in range(20):
        at = 100 * i
        for k, shape in enumerate(([20, 64], [20])):
            builder.op("aten::select", at + 20 * k, 10.5, dims=[shape, [], []], concrete=["", "0", str(i)])
        builder.op("aten::mul", at + 40, 18, dims=[[64]])
        builder.launch(at + 45, 5, at + 52, 2)
    (claim,) = builder.claims(find)
    assert claim.evidence["n_rounds_per_step"] == 20


def test_a_branch_may_differ_now_and_then() -> None:
    (claim,) = loop(40, lambda i: ["aten::mul", "aten::cat"] if i % 8 == 7 else ["aten::mul"]).claims(find)
    assert claim.evidence["n_rounds_per_step"] == 40


@pytest.mark.parametrize("product", ["aten::linear", "aten::scaled_dot_product_attention"])
def test_products_may_carry_a_state(product: str) -> None:
    # recurrent cells, and tokens that are generated one after the other
    (claim,) = loop(body=lambda i: [product, "aten::tanh"]).claims(find)
    assert claim.certainty == "hint"


def test_on_a_cpu_the_loop_is_host_time() -> None:
    (claim,) = loop(vendor="cpu").claims(find)
    assert claim.time_class == "host"
    assert claim.evidence["host_ms_per_step"] == pytest.approx(1.2, abs=0.01)


def test_without_concrete_inputs_nothing_is_said() -> None:
    builder = loop()
    for one in builder.events:
        one.get("args", {}).pop("Concrete Inputs", None)
    assert not builder.claims(find)


def test_on_a_cpu_convolutions_are_not_at_stake_and_products_promise_nothing() -> None:
    builder = loop(10, lambda i: ["aten::conv2d", "aten::relu"], vendor="cpu")
    (claim,) = builder.claims(find)
    # rounds of 60 us, 18 of them in the convolution; the last operator ends 2 us early
    assert claim.evidence["host_without_convolutions_ms_per_step"] == pytest.approx(10 * 0.042 - 0.002, abs=0.001)
    assert claim.evidence["host_ms_per_step"] == pytest.approx(0.598, abs=0.001)
    assert "they take 598 µs of" in claim.message
    assert claim.gain_low == 0.0


def unbound(
    n: int = 20,
    body: Sequence[str] = ("aten::mul", "aten::sum"),
    *,
    shape: Sequence[int] = (20, 64),
    other: str = "",
    axis: str = "0",
    fills: int = 0,
) -> TraceBuilder:
    """Four steps on a CPU: ``for row in x`` with operators of 18 us, one every 20 us.

    Then so many fills of the gradient of a table, of 90 us each.
    """
    builder = TraceBuilder(vendor="cpu")
    at = 0.0
    for step in range(4):
        start = at
        dims, concrete = [list(shape), []], ["", axis]
        builder.op("aten::unbind", at, 18, dims=dims, concrete=concrete)
        builder.op("aten::select", at + 1, 2, dims=[list(shape)], concrete=["", "0", "0"])
        at += 20
        for i in range(n):
            for name in (other,) if other and i % 2 else body:
                builder.op(name, at, 18, dims=[[64]])
                at += 20
        builder.op("aten::stack", at, 18)
        at += 20
        for _ in range(fills):
            dims, concrete = [[1, 64], [1], [], [], []], ["", "", "20000", "-1", "False"]
            builder.op("aten::embedding_dense_backward", at, 90, dims=dims, concrete=concrete)
            at += 100
        builder.step(step, start, at - start)
    return builder


def test_quiet_on_what_is_split_in_a_few() -> None:
    # queries, keys and values; heads
    assert not unbound(7, shape=[7, 64]).claims(find)


def test_quiet_when_what_follows_does_not_repeat() -> None:
    assert not unbound(1).claims(find)


def test_quiet_when_fewer_rounds_follow_than_rows() -> None:
    assert not unbound(19).claims(find)


def test_loud_on_the_rows_of_a_tensor() -> None:
    (claim,) = unbound().claims(find)
    assert claim.evidence["n_rounds_per_step"] == 20
    assert claim.evidence["n_ops_per_round"] == 2
    assert claim.evidence["tensor_shape"] == [20, 64]
    assert claim.evidence["first_ops_of_round"] == ["aten::mul", "aten::sum"]
    assert claim.evidence["host_ms_per_step"] == pytest.approx((20 + 40 * 20 - 2) / 1000)
    assert claim.gain_high == pytest.approx(15 / 16)


def test_loud_on_one_operator_per_row() -> None:
    (claim,) = unbound(body=("aten::sum",), axis="-2").claims(find)
    assert claim.evidence["n_ops_per_round"] == 1


def test_loud_on_rounds_that_hold_a_loop_of_their_own() -> None:
    inner = ["aten::unsqueeze", "aten::sub", "aten::sum"] * 40
    (claim,) = unbound(n=9, shape=[9, 64], body=["aten::unsqueeze", "aten::full", *inner]).claims(find)
    assert claim.evidence["n_ops_per_round"] == 122
    assert claim.evidence["n_rounds_per_step"] == 9


LOOK_UP = ("aten::embedding", "aten::linear")


def test_a_table_looked_up_row_by_row_is_filled_row_by_row() -> None:
    (claim,) = unbound(body=LOOK_UP, fills=20).claims(find)
    assert claim.certainty == "likely"
    assert claim.evidence["gradient_fills_ms_per_step"] == pytest.approx(20 * 0.09)
    assert "the gradient of the embedding is filled 20 times: 1.80 ms" in claim.message
    low = np.asarray(claim.gain_low)
    # the linear may carry a state from round to round; the rows are known before
    assert sorted(set(low.tolist())) == pytest.approx([0.0, 15 / 32])
    assert [edit.kind for edit in claim.edits] == ["threads", "shrink"]


@pytest.mark.parametrize(("body", "fills"), [(("aten::mul", "aten::sum"), 20), (LOOK_UP, 7)])
def test_fills_that_are_not_the_loop_s_do_not_count(body: Sequence[str], fills: int) -> None:
    (claim,) = unbound(body=body, fills=fills).claims(find)
    assert "gradient_fills_ms_per_step" not in claim.evidence
    assert np.isscalar(claim.gain_low)

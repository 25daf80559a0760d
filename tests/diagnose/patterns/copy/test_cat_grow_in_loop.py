"""CPY013 cat-grow-in-loop."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.copy.cat_grow_in_loop import find

WIDTH = 64


def cat(builder: TraceBuilder, at: float, dur: float, old: int, new: int, *, axis: int = 0) -> None:
    """``torch.cat([tensor of length old, tensor of length new])``."""
    shapes = [[old, WIDTH], [new, WIDTH]]
    if axis:
        shapes = [[WIDTH, *shape[:1]] for shape in shapes]
    builder.op("aten::cat", at, dur, dims=[shapes, []], concrete=["", str(axis)])


def loop(lengths: list[int], *, new: int = 4, dur: float = 60) -> TraceBuilder:
    """Four steps of 1 ms, each with one ``cat`` per length."""
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        builder.step(i, 1_000 * i, 1_000)
        for k, old in enumerate(lengths):
            cat(builder, 1_000 * i + 10 + 80 * k, dur, old, new)
    return builder


def test_quiet_on_one_call_on_a_list() -> None:
    assert not loop([60]).claims(find)


def test_quiet_on_equal_halves() -> None:
    # rotary embeddings join two halves in every layer
    assert not loop([4] * 10).claims(find)


def test_quiet_on_short_loops() -> None:
    assert not loop([4 * k for k in range(1, 9)]).claims(find)


def test_quiet_on_lengths_that_do_not_follow() -> None:
    assert not loop([4, 12, 8, 40, 16, 4, 28, 64, 12, 8, 4]).claims(find)


def test_quiet_on_lists_that_were_not_recorded() -> None:
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        builder.step(i, 1_000 * i, 1_000)
        for k in range(10):
            builder.op("aten::cat", 1_000 * i + 80 * k, 60, dims=[[[]], []], concrete=["", "0"])
    assert not builder.claims(find)


def test_quiet_on_dense_connections() -> None:
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        builder.step(i, 1_000 * i, 1_000)
        for k in range(10):
            at, old = 1_000 * i + 90 * k, 16 + 8 * k
            image = [4, old + 8, 32, 32]
            builder.op("aten::cat", at, 60, dims=[[[4, old, 32, 32], [4, 8, 32, 32]], []], concrete=["", "1"])
            builder.op("aten::conv2d", at + 65, 20, dims=[image])
    assert not builder.claims(find)


def test_loud_on_a_loop_in_the_step() -> None:
    (claim,) = loop([4 * k for k in range(1, 11)]).claims(find)
    assert claim.certainty == "likely"
    assert claim.evidence["n_calls_per_step"] == 10
    assert claim.evidence["new_elements_per_step"] == 10 * 4 * WIDTH
    assert claim.evidence["written_elements_per_step"] == 4 * WIDTH * sum(range(2, 12))
    assert claim.evidence["final_shape"] == [44, WIDTH]
    assert claim.evidence["cat_ms_per_step"] == pytest.approx(0.6)
    assert "10 calls per step write 6.5 times the new data" in claim.message


def test_loud_on_a_tensor_that_grows_from_step_to_step() -> None:
    builder = TraceBuilder(vendor="cpu")
    for i in range(6):
        builder.step(i, 1_000 * i, 1_000)
        cat(builder, 1_000 * i + 10, 500, 100 * (i + 1), 100)
    (claim,) = builder.claims(find)
    assert claim.evidence["n_calls_per_step"] == 1
    assert claim.evidence["final_shape"] == [700, WIDTH]


def test_loud_on_the_caches_of_several_layers_at_once() -> None:
    # keys and values of two layers grow side by side, along the second dimension
    builder = TraceBuilder(vendor="cpu")
    builder.step(0, 0, 5_000)
    for token in range(10):
        for layer in range(4):
            cat(builder, 10 + 400 * token + 90 * layer, 60, 5 + token, 1, axis=1)
    (claim,) = builder.claims(find)
    assert claim.evidence["n_calls_per_step"] == 40
    assert claim.evidence["final_shape"] == [WIDTH, 15]


def test_the_cost_is_what_is_copied_again() -> None:
    (claim,) = loop([4 * k for k in range(1, 11)]).claims(find)
    expected = np.tile([k / (k + 1) for k in range(1, 11)], 4)
    np.testing.assert_allclose(claim.gain_high, expected)
    # writing a piece to its place would take 20 of the 60 us
    np.testing.assert_allclose(claim.gain_low, expected - 1 / 3)
    (edit,) = claim.edits
    assert edit.kind == "shrink"
    np.testing.assert_allclose(np.asarray(edit.factor), 1 - expected + 1 / 3)
    np.testing.assert_allclose(np.asarray(edit.best), 1 - expected)


def test_calls_that_take_no_longer_than_a_write_win_nothing_for_sure() -> None:
    (claim,) = loop([4 * k for k in range(1, 11)], dur=20).claims(find)
    assert not np.asarray(claim.gain_low).any()


def test_on_a_device_only_what_the_queue_makes_up_for_is_sure() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 3_000)
    for k in range(10):
        cat(builder, 100 * k, 20, k + 1, 1)
        # each kernel of 60 us is launched while the device rests
        builder.launch(100 * k + 5, 5, 100 * k + 15, 60)
    (claim,) = builder.claims(find)
    assert claim.time_class == "compute"
    assert claim.evidence["share_of_kernel_time"] == pytest.approx(1.0)
    assert not np.asarray(claim.gain_low)[:-1].any()
    np.testing.assert_allclose(claim.gain_high, [k / (k + 1) for k in range(1, 11)])

"""CPY012 redundant-dtype-cast."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.copy.redundant_dtype_cast import find

BF16, FLOAT, DOUBLE = "c10::BFloat16", "float", "double"
CODE = {BF16: "15", FLOAT: "6", DOUBLE: "7", "long int": "4"}
SHAPE = [512, 256]


def cast(builder: TraceBuilder, at: float, dur: float, source: str, target: str, shape: list[int] = SHAPE) -> None:
    """``x.to(target)``."""
    inputs = {"dims": [shape, []], "types": [source, "Scalar"], "concrete": ["", CODE[target]]}
    builder.op("aten::to", at, dur, **inputs)
    builder.op("aten::_to_copy", at + 0.5, dur - 1, **inputs)


def work(builder: TraceBuilder, at: float, dur: float, name: str = "aten::mm") -> None:
    builder.op(name, at, dur, dims=[SHAPE], types=[BF16])


def casting(
    *, source: str = BF16, middle: str = FLOAT, back: str = BF16, between: str = "", shape: list[int] = SHAPE
) -> TraceBuilder:
    """Steps of 1 ms on a CPU: two casts of 60 us, and a product of 700 us."""
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        at = 1_000 * i
        builder.step(i, at, 1_000)
        cast(builder, at + 10, 60, source, middle, shape)
        if between:
            work(builder, at + 75, 10, between)
        cast(builder, at + 90, 60, middle, back, shape)
        work(builder, at + 200, 700)
    return builder


def doubles(*, types: list[str], dims: list[list[int]]) -> TraceBuilder:
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        builder.step(i, 1_000 * i, 1_000)
        builder.op("aten::mul", 1_000 * i + 10, 100, dims=dims, types=types)
        work(builder, 1_000 * i + 200, 700)
    return builder


def test_quiet_on_one_way_casts() -> None:
    assert not casting(back=DOUBLE, source=FLOAT, middle=BF16).claims(find)


def test_quiet_on_islands_of_float32() -> None:
    # the norm between them is what the casts are for
    assert not casting(between="aten::native_layer_norm").claims(find)


def test_quiet_on_integers_and_masks() -> None:
    assert not casting(source="long int", back="long int").claims(find)


@pytest.mark.parametrize("shape", [[], [1]])
def test_quiet_on_single_numbers(shape: list[int]) -> None:
    # every operator with a Python scalar casts one on a CPU
    assert not casting(shape=shape).claims(find)


def test_quiet_on_casts_of_other_tensors() -> None:
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        builder.step(i, 1_000 * i, 1_000)
        cast(builder, 1_000 * i + 10, 60, BF16, FLOAT, [512, 256])
        cast(builder, 1_000 * i + 90, 60, FLOAT, BF16, [512, 128])
    assert not builder.claims(find)


def test_quiet_below_two_percent() -> None:
    builder = casting()
    builder.step(4, 4_000, 7_000).step(5, 11_000, 7_000).step(6, 18_000, 7_000)
    builder.op("aten::mm", 4_010, 20_000, dims=[SHAPE], types=[BF16])
    assert not builder.claims(find)


def test_quiet_on_numbers_that_python_made_double() -> None:
    assert not doubles(types=[FLOAT, DOUBLE], dims=[SHAPE, []]).claims(find)


def test_quiet_on_the_weights_that_training_casts() -> None:
    builder = autocast()
    for i in range(4):
        builder.op("autograd::engine::evaluate_function: MmBackward0", 1_000 * i + 900, 50)
    assert not builder.claims(find)


def test_quiet_where_a_device_shows_no_rows() -> None:
    builder = casting()
    builder.meta["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100"}]
    assert not builder.claims(find)


def test_loud_on_a_cast_and_straight_back() -> None:
    (claim,) = casting().claims(find)
    assert claim.certainty == "likely"
    assert claim.time_class == "host"
    assert claim.evidence["n_round_trips_per_step"] == 1
    assert claim.evidence["from_type"] == BF16
    assert claim.evidence["cast_ms_per_step"] == pytest.approx(2 * 0.059)
    assert claim.message.startswith("1 tensor per step is cast from bfloat16 to float32 and straig")


def test_loud_with_only_views_between() -> None:
    assert len(casting(between="aten::view").claims(find)) == 1


def test_loud_on_a_float64_constant() -> None:
    (claim,) = doubles(types=[FLOAT, DOUBLE], dims=[SHAPE, [256]]).claims(find)
    assert claim.certainty == "likely"
    assert claim.evidence["float64_ms_per_step"] == pytest.approx(0.1)
    assert claim.evidence["top_ops"] == ["aten::mul"]
    assert claim.fix is not None
    assert "float32" in claim.fix.code


def everything_double(name: str = "aten::mm", *more: str) -> TraceBuilder:
    """A device whose kernels are all in float64: 600 us of ``name``, 200 us of a multiplication."""
    builder = TraceBuilder()
    for i in range(4):
        at = 1_000 * i
        builder.step(i, at, 1_000)
        for k, one in enumerate(more):
            builder.op(one, at + 2 * k, 1, dims=[[512, 512]], types=[DOUBLE])
        builder.op(name, at + 10, 10, dims=[SHAPE, SHAPE], types=[DOUBLE, DOUBLE])
        builder.launch(at + 11, 5, at + 100, 600)
        builder.op("aten::mul", at + 30, 10, dims=[SHAPE, SHAPE], types=[DOUBLE, DOUBLE])
        builder.launch(at + 31, 5, at + 700, 200)
    return builder


@pytest.mark.parametrize(
    "more",
    [
        ("aten::convolution", "autograd::engine::evaluate_function: ConvolutionBackward0"),
        ("aten::linear",),
        ("aten::linear", "autograd::engine::evaluate_function: AddmmBackward0", "aten::linalg_vector_norm"),
    ],
)
def test_a_network_in_float64_is_likely_to_be_so_by_accident(more: tuple[str, ...]) -> None:
    (claim,) = everything_double("aten::mm", *more).claims(find)
    assert claim.certainty == "likely"
    assert claim.evidence["float64_everywhere"] is True
    # where a step ends, the kernels of the next one are not launched yet
    np.testing.assert_allclose(claim.gain_low, [*3 * [0.4, 0.0], 0.4, 0.4])
    assert claim.fix is not None
    assert "double()" in claim.fix.code


@pytest.mark.parametrize(
    "more",
    [
        (),  # no layers of a network
        ("aten::linear", "aten::linalg_cholesky_ex"),
        ("aten::linear", "aten::linalg_solve_triangular"),
        ("aten::linear", "autograd::engine::evaluate_function: TanhBackwardBackward0"),
    ],
)
def test_float64_that_may_be_wanted_gets_a_hint_that_promises_nothing_for_sure(more: tuple[str, ...]) -> None:
    (claim,) = everything_double("aten::mm", *more).claims(find)
    assert claim.certainty == "hint"
    assert claim.evidence["float64_everywhere"] is True
    assert np.max(claim.gain_low) == 0
    (edit,) = claim.edits
    assert np.min(edit.factor) == 1.0
    assert "may need it" in claim.message


@pytest.mark.parametrize(
    "library", ["torchdiffeq/_impl/odeint.py(30): odeint", "gpytorch/models/exact_gp.py(9): __call__"]
)
def test_float64_under_a_library_of_such_methods_gets_a_hint(library: str) -> None:
    builder = everything_double("aten::mm", "aten::linear")
    for i in range(4):
        builder.frame(f"/venv/lib/python3.12/site-packages/{library}", 1_000 * i + 1, 900)
    (claim,) = builder.claims(find)
    assert claim.certainty == "hint"


def test_convolutions_gain_the_tensor_cores_too() -> None:
    (claim,) = everything_double("aten::cudnn_convolution", "aten::convolution").claims(find)
    # 1/8 is left of the convolution, which runs in TF32 by default; of the bytes a half and less
    assert sorted(set(np.asarray(claim.gain_high).round(4))) == [0.6, 0.875]


def autocast(*, weight: list[int] | None = None) -> TraceBuilder:
    """Inference steps whose layer casts its input and its weight, 60 us each."""
    weight = weight or [256, 256]
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        at = 1_000 * i
        builder.step(i, at, 1_000)
        builder.op("aten::linear", at + 10, 800, dims=[SHAPE, weight, [256]], types=[FLOAT, FLOAT, FLOAT])
        cast(builder, at + 20, 60, FLOAT, BF16, weight)
        cast(builder, at + 90, 60, FLOAT, BF16, SHAPE)
    return builder


def test_loud_on_weights_that_inference_casts_in_every_step() -> None:
    (claim,) = autocast().claims(find)
    assert claim.evidence["n_weight_casts_per_step"] == 1
    # the input has to be cast in any case
    assert claim.evidence["cast_ms_per_step"] == pytest.approx(0.059)


def test_quiet_where_weight_and_input_have_one_shape() -> None:
    assert not autocast(weight=SHAPE).claims(find)


def test_the_cost_on_a_cpu() -> None:
    (claim,) = casting().claims(find)
    assert claim.gain_high == 1.0
    # both casts take more than the profiler adds to them
    np.testing.assert_allclose(claim.gain_low, 1.0)
    (edit,) = claim.edits
    assert edit.kind == "drop"
    assert len(edit.rows) == 8


def test_the_cost_on_a_device() -> None:
    builder = TraceBuilder()
    for i in range(4):
        at = 1_000 * i
        builder.step(i, at, 1_000)
        builder.op("aten::mul", at + 10, 10, dims=[SHAPE, SHAPE], types=[DOUBLE, DOUBLE])
        builder.launch(at + 11, 5, at + 100, 200)
        builder.op("aten::mm", at + 30, 10, dims=[SHAPE, SHAPE], types=[FLOAT, FLOAT])
        builder.launch(at + 31, 5, at + 300, 600)
    (claim,) = builder.claims(find)
    assert claim.evidence["share_of_kernel_time"] == pytest.approx(0.25)
    # half the bytes; the next kernel was in the queue all along
    np.testing.assert_allclose(claim.gain_low, 0.4)
    np.testing.assert_allclose(claim.gain_high, 0.6)
    np.testing.assert_allclose(claim.edits[0].factor, 0.6)
    np.testing.assert_allclose(claim.edits[0].hopeful, 0.4)


def test_products_gain_more_on_consumer_devices() -> None:
    builder = TraceBuilder(device="NVIDIA GeForce RTX 4090")
    builder.meta["deviceProperties"][0].update(computeMajor=8, computeMinor=9)
    for i in range(4):
        at = 1_000 * i
        builder.step(i, at, 1_000)
        builder.op("aten::mm", at + 10, 10, dims=[SHAPE, SHAPE], types=[DOUBLE, DOUBLE])
        builder.launch(at + 11, 5, at + 100, 200)
        builder.op("aten::mm", at + 30, 10, dims=[SHAPE, SHAPE], types=[FLOAT, FLOAT])
        builder.launch(at + 31, 5, at + 300, 600)
    (claim,) = builder.claims(find)
    np.testing.assert_allclose(claim.gain_high, 31 / 32)

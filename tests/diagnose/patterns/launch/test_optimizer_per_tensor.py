"""LCH016 optimizer-per-tensor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.base import Claim, missing_needs
from torchtriage.diagnose.patterns.launch.optimizer_per_tensor import FIX, PATTERN, find
from torchtriage.diagnose.verdict.verdict import diagnose

STEP = "Optimizer.step#AdamW.step"
ZERO = "Optimizer.zero_grad#AdamW.zero_grad"


def loop(
    *,
    n: int = 120,
    op: str = "aten::add_",
    mark: str = STEP,
    wall: float = 10_000,
    kernel: str = "vectorized_elementwise_kernel",
) -> TraceBuilder:
    """Four steps that end in an optimizer of ``n`` operators of 20 us, one 2 us kernel each."""
    builder = TraceBuilder()
    for i in range(4):
        at = wall * i
        builder.step(i, at, wall).annotation(mark, at + 1_000, 20 * n)
        for k in range(n):
            builder.op(op, at + 1_000 + 20 * k, 18)
            builder.launch(at + 1_005 + 20 * k, 5, at + 1_012 + 20 * k, 2, kernel)
    return builder


def cpu_loop(
    *, n: int = 120, dims: list[list[int]] | None = None, wall: float = 10_000, shapes: bool = True, plain: bool = False
) -> TraceBuilder:
    builder = TraceBuilder(vendor="cpu")
    sizes = (dims or [[64, 64], []]) if shapes else None
    for i in range(4):
        at = wall * i
        builder.step(i, at, wall).annotation(STEP, at + 1_000, 20 * n)
        for k in range(n):
            name = "aten::add_" if plain or k % 2 else "aten::mul_"
            builder.op(name, at + 1_000 + 20 * k, 18.5, dims=sizes)
    return builder


def test_quiet_on_toys() -> None:
    assert not loop(n=64).claims(find)


@pytest.mark.parametrize("op", ["_foreach_add_", "_fused_adamw_", "coalesce", "mm", "linalg_eigh"])
def test_quiet_on_grouped_forms_sparse_gradients_and_matrix_optimizers(op: str) -> None:
    builder = loop()
    for i in range(4):
        builder.op(f"aten::{op}", 10_000 * i + 3_395, 4)
    assert not builder.claims(find)


def test_a_range_that_is_open_when_the_recording_stops_counts_in_its_step() -> None:
    builder = cpu_loop()
    whole = builder.claims(find)[0].evidence
    builder.events = [
        event | {"dur": 30_000} if event["name"] == STEP and event["ts"] > 30_000 else event for event in builder.events
    ]
    cut = builder.claims(find)[0].evidence
    # three steady steps of 2.4 ms; the last one's range seems to fill the 9 ms to the end of its step
    assert whole["host_ms_per_step"] == pytest.approx(2.4)
    assert cut["host_ms_per_step"] == pytest.approx((2.4 + 2.4 + 9) / 3)


@pytest.mark.parametrize(("rows", "n_kinds", "found"), [(512, 5, True), (16, 5, False), (512, 2, False)])
def test_a_few_large_tensors_are_told_with_nothing_sure(rows: int, n_kinds: int, found: bool) -> None:
    builder = TraceBuilder(vendor="cpu")
    kinds = ["add", "lerp_", "addcmul_", "sqrt", "addcdiv_"][:n_kinds]
    for i in range(4):
        builder.step(i, 10_000 * i, 10_000).annotation(STEP, 10_000 * i + 1_000, 2_000)
        for k in range(20):
            name = f"aten::{kinds[k % n_kinds]}"
            builder.op(name, 10_000 * i + 1_000 + 100 * k, 98, dims=[[rows, 512], [rows, 512]])
    claims = builder.claims(find)
    assert bool(claims) == found
    assert all(claim.gain_low == 0 for claim in claims)


def closure_loop(n_own: int) -> TraceBuilder:
    """Four steps on a CPU inside ``step(closure)``: 4 ms of both passes, then ``n_own`` updates of 20 us."""
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        at = 10_000 * i
        builder.step(i, at, 10_000).annotation(STEP, at + 1_000, 4_100 + 20 * n_own)
        builder.annotation(ZERO, at + 1_001, 50)
        for k in range(100):
            builder.op("aten::mul" if k % 2 else "aten::add", at + 1_100 + 20 * k, 18, dims=[[64, 64], []])
        builder.op("autograd::engine::evaluate_function: MulBackward0", at + 3_200, 1_800)
        builder.op("aten::mm", at + 3_300, 1_600, dims=[[64, 64], [64, 64]])
        for k in range(n_own):
            builder.op("aten::mul_" if k % 2 else "aten::add_", at + 5_050 + 20 * k, 18.5, dims=[[64, 64], []])
    return builder


def test_what_a_closure_does_is_not_the_optimizers() -> None:
    assert not closure_loop(0).claims(find)
    assert not closure_loop(40).claims(find)
    (claim,) = closure_loop(100).claims(find)
    assert claim.evidence["n_operators_per_call"] == 100
    assert claim.evidence["host_ms_per_step"] == pytest.approx(2.05, abs=0.1)


def test_quiet_on_multi_tensor_kernels() -> None:
    assert not loop(kernel="multi_tensor_apply_kernel<AdamFunctor>").claims(find)


def test_quiet_below_two_percent_of_the_step() -> None:
    assert not loop(wall=130_000).claims(find)


def test_files_with_many_optimizer_names_take_no_longer() -> None:
    # twenty thousand names, each looked at over the whole trace, take a minute
    builder = loop()
    for i in range(20_000):
        builder.annotation(f"Optimizer.step#A{i}.step", 50_000 + i, 0.5)
    assert len(builder.claims(find)) == 1


def test_quiet_when_queued_work_hides_it() -> None:
    builder = loop()
    for i in range(4):
        builder.launch(10_000 * i + 10, 5, 10_000 * i + 20, 9_000, "gemm", stream=8)
    assert not builder.claims(find)


def test_no_optimizer_is_blamed_outside_annotations() -> None:
    (claim,) = loop(mark="update").claims(find)
    assert "optimizer" not in claim.evidence
    assert claim.message.startswith("tensors are updated in place one by one outside the optimizer")
    assert not loop(mark="update", op="aten::mul").claims(find)


def test_idle_time_inside_the_optimizer_is_at_stake() -> None:
    (claim,) = loop().claims(find)
    assert claim.evidence["optimizer"] == "AdamW"
    assert claim.evidence["n_launches_per_call"] == 120
    assert claim.evidence["n_calls_per_step"] == 1
    assert claim.evidence["host_ms_per_step"] == 2.4
    # the device works 2 of 20 us; nothing follows the last kernel of all, 6 us before the end
    assert claim.evidence["gpu_idle_ms_per_step"] == round(2.4 - 120 * 0.002 - 0.006 / 3, 3)
    assert claim.time_class == "idle"
    assert claim.certainty == "likely"
    assert claim.gain_low == pytest.approx(0.5 / 1.5)
    assert claim.fix == FIX


def test_quiet_on_gradients_filled_with_zeros() -> None:
    # OPT040 knows what to do about those
    assert not loop(mark=ZERO, op="aten::zero_").claims(find)


def foreach(*, name: str = "AdamW", n: int = 8, dur: float = 100, wall: float = 10_000) -> Claim:
    """Steps whose optimizer makes ``n`` foreach calls on a CPU."""
    found = foreach_steps(name=name, n=n, dur=dur, wall=wall).claims(find)
    assert len(found) == 1
    return found[0]


def foreach_steps(*, name: str = "AdamW", n: int = 8, dur: float = 100, wall: float = 10_000) -> TraceBuilder:
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        at = wall * i
        builder.step(i, at, wall).annotation(f"Optimizer.step#{name}.step", at + 100, dur * n + 10)
        for k in range(n):
            builder.op("aten::_foreach_add_", at + 105 + dur * k, dur - 10)
    return builder


def test_a_foreach_form_does_not_go_one_by_one() -> None:
    (finding,) = diagnose(foreach_steps().build()).findings
    assert (finding.code, finding.title) == ("LCH016", "The optimizer has a fused form, which is not used")


@pytest.mark.parametrize("name", ["RMSprop", "Adadelta", "MyAdam"])
def test_quiet_on_foreach_without_a_fused_form(name: str) -> None:
    assert not foreach_steps(name=name).claims(find)


def test_quiet_on_a_single_foreach_call() -> None:
    # plain SGD reads and writes no more than its fused form
    assert not foreach_steps(name="SGD", n=1, dur=900).claims(find)


def test_quiet_on_foreach_below_five_percent() -> None:
    assert not foreach_steps(wall=20_000).claims(find)


def test_loud_on_foreach_that_could_be_fused() -> None:
    claim = foreach()
    assert claim.evidence["n_foreach_calls_per_step"] == 8
    assert claim.evidence["host_ms_per_step"] == pytest.approx(0.81)
    assert claim.time_class == "host"
    assert claim.gain_low == pytest.approx(0.25 / 1.5)
    assert claim.gain_high == 1.0
    assert claim.message.startswith("AdamW.step works through its tensors in 8 foreach calls")


def test_the_fix_keeps_the_optimizer() -> None:
    assert foreach(name="SGD").fix == replace(
        FIX,
        text="Use the fused form of the optimizer.",
        code="optimizer = torch.optim.SGD(model.parameters(), lr=lr, fused=True)",
    )
    (claim,) = loop(mark="Optimizer.step#Adam.step").claims(find)
    assert claim.fix == replace(FIX, code="optimizer = torch.optim.Adam(model.parameters(), lr=lr, fused=True)")
    (claim,) = loop(mark="Optimizer.step#RMSprop.step").claims(find)
    assert claim.fix is not None
    assert claim.fix.text == "Use the foreach form of the optimizer."
    assert claim.fix.code == "optimizer = torch.optim.RMSprop(model.parameters(), lr=lr, foreach=True)"
    (claim,) = loop(mark="Optimizer.step#MyOwn.step").claims(find)
    assert claim.fix is None


def test_foreach_on_a_busy_device_is_about_its_kernels() -> None:
    builder = TraceBuilder()
    for i in range(4):
        at = 10_000 * i
        builder.step(i, at, 10_000).annotation(STEP, at + 100, 600)
        for k in range(2):
            builder.op("aten::_foreach_add_", at + 110 + 50 * k, 40)
            builder.launch(at + 120 + 50 * k, 5, at + 1_000 + 2_000 * k, 2_000, "multi_tensor_x")
        builder.launch(at + 800, 5, at + 5_000, 4_000, "next")
    (claim,) = builder.claims(find)
    assert claim.time_class == "compute"
    assert claim.evidence["kernel_ms_per_step"] == pytest.approx(4.0)
    np.testing.assert_allclose(claim.gain_low, 0.25)
    assert claim.gain_high == 0.6


def averaging(
    *, n: int = 120, names: tuple[str, ...] = ("aten::mul_", "aten::add_"), wall: float = 10_000
) -> TraceBuilder:
    """Steps with a loop of ``n`` in-place operators, 20 us each, on a CPU."""
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        at = wall * i
        builder.step(i, at, wall)
        for k in range(n):
            builder.op(names[k % len(names)], at + 1_000 + 20 * k, 18, dims=[[64, 64]])
    return builder


@pytest.mark.parametrize("names", [("aten::mul_", "aten::mul"), ("aten::copy_",)])
def test_quiet_on_other_operators_between(names: tuple[str, ...]) -> None:
    assert not averaging(names=names).claims(find)


def test_quiet_on_short_loops_of_updates() -> None:
    assert not averaging(n=99).claims(find)


def test_quiet_on_updates_below_two_percent_of_the_step() -> None:
    assert not averaging(wall=130_000).claims(find)


@pytest.mark.parametrize("names", [("aten::mul_", "aten::add_"), ("aten::lerp_",)])
def test_loud_on_an_average_of_the_weights(names: tuple[str, ...]) -> None:
    (claim,) = averaging(names=names).claims(find)
    assert claim.evidence["n_operators_per_step"] == 120
    assert claim.evidence["host_ms_per_step"] == pytest.approx(119 * 0.02 + 0.018)
    assert claim.gain_low == pytest.approx(0.25 / 2.0)
    assert claim.fix is not None
    assert "AveragedModel" in claim.fix.code


def test_two_optimizers_are_two_claims() -> None:
    builder = loop(wall=20_000)
    for i in range(4):
        at = 20_000 * i + 8_000
        builder.annotation("Optimizer.step#SGD.step", at, 2_400)
        for k in range(120):
            builder.op("aten::add_", at + 20 * k, 18)
            builder.launch(at + 5 + 20 * k, 5, at + 12 + 20 * k, 2)
    assert sorted(one.evidence["optimizer"] for one in builder.claims(find)) == ["AdamW", "SGD"]


def test_on_a_cpu_operators_on_tensors_count() -> None:
    (claim,) = cpu_loop().claims(find)
    assert claim.time_class == "host"
    assert claim.evidence["n_operators_per_call"] == 120
    assert claim.evidence["host_ms_per_step"] == 2.4
    assert claim.gain_low == pytest.approx(0.5 / 2.0)


def test_on_a_cpu_a_single_operator_per_parameter_promises_nothing() -> None:
    (claim,) = cpu_loop(plain=True).claims(find)
    assert claim.gain_low == 0.0


def test_on_a_cpu_step_counters_do_not_count() -> None:
    assert not cpu_loop(dims=[[], []]).claims(find)
    assert not cpu_loop(dims=[[1], []]).claims(find)


def test_on_a_cpu_two_percent_of_the_step_count() -> None:
    assert not cpu_loop(wall=130_000).claims(find)
    (claim,) = cpu_loop(wall=110_000).claims(find)
    assert claim.certainty == "likely"


def test_on_a_cpu_fifty_operators_count() -> None:
    assert not cpu_loop(n=49).claims(find)
    assert cpu_loop(n=50).claims(find)


def test_without_shapes_a_cpu_loop_is_a_hint() -> None:
    (claim,) = cpu_loop(shapes=False).claims(find)
    assert claim.certainty == "hint"


def test_without_shapes_a_cpu_loop_needs_five_percent_and_hundred_operators() -> None:
    assert not cpu_loop(shapes=False, wall=50_000).claims(find)
    assert not cpu_loop(shapes=False, n=99).claims(find)


def test_host_rows_of_a_gpu_machine_prove_nothing() -> None:
    builder = TraceBuilder()
    builder.events = cpu_loop().events
    assert missing_needs(PATTERN, builder.build()) == ["work"]

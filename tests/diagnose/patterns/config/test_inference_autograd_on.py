"""CFG043: a graph nobody uses, and everything that only looks like one."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

import torchtriage as tt
from torchtriage.diagnose.patterns.config.inference_autograd_on import find


def forward(builder, start, *, seq, count=12, step=1):
    """Add linear layers whose inner product carries the same number, as in real traces."""
    for index in range(count):
        at = start + 10 * index
        number = None if seq is None else seq + step * index
        builder.op("aten::linear", at, 8, seq=number)
        builder.op("aten::addmm", at + 1, 6, seq=number)
    return builder


def cpu():
    return TraceBuilder(vendor="cpu")


def test_quiet_without_numbers():
    assert not forward(cpu(), 0, seq=None).claims(find)


def test_quiet_when_the_numbers_stand_still():
    # grad mode is on, but no tensor requires gradients: nothing is recorded
    assert not forward(cpu(), 0, seq=7, step=0).claims(find)


def test_quiet_on_a_handful_of_ops():
    assert not forward(cpu(), 0, seq=0, count=9).claims(find)


def test_quiet_when_most_of_the_model_records_nothing():
    builder = forward(cpu(), 0, seq=0, count=12)
    assert not forward(builder, 500, seq=None, count=12).claims(find)


@pytest.mark.parametrize(
    "name",
    [
        "autograd::engine::evaluate_function: AddmmBackward0",
        "AddmmBackward",
        "Optimizer.step#Adam.step",
        "Optimizer.zero_grad#Adam.zero_grad",
        "DistributedDataParallel.forward",
    ],
)
def test_quiet_in_training(name):
    assert not forward(cpu(), 0, seq=0).op(name, 900, 5).claims(find)


def test_quiet_on_one_pass_cut_after_its_loss():
    builder = forward(cpu(), 0, seq=0).op("aten::nll_loss_forward", 900, 5)
    assert not builder.claims(find)


def test_quiet_on_a_recording_that_lost_its_tail():
    import io

    from torchtriage.core.trace import read_trace

    text = forward(cpu(), 0, seq=0, count=30).json()
    trace = read_trace(io.BytesIO(text[: int(len(text) * 0.9)]))
    assert trace.report.loss
    assert not list(find(trace))


def steps(builder, kinds, *, used=()):
    """Add one step per letter: t trains, v only runs forward with autograd on."""
    for index, kind in enumerate(kinds):
        at, number = 1000 * index, 100 * index
        builder.step(index, at, 900)
        forward(builder, at + 10, seq=number)
        if kind == "t":
            for layer in range(12):
                builder.op("AddmmBackward0", at + 500 + 10 * layer, 5, seq=number + layer)
    for number in used:
        builder.op("AddmmBackward0", 1000 * len(kinds) - 130, 2, seq=number)
    return builder.build()


def test_quiet_when_every_step_trains():
    assert not list(find(steps(cpu(), "tttt")))


def test_quiet_on_a_last_step_that_may_be_cut():
    assert not list(find(steps(cpu(), "tttv")))


def test_quiet_on_rollouts_whose_graph_is_used_later():
    assert not list(find(steps(cpu(), "vvt", used=[*range(12), *range(100, 112)])))


def test_quiet_on_validation_without_numbers():
    builder = cpu()
    for index, number in enumerate((0, None, 200)):
        at = 1000 * index
        forward(builder.step(index, at, 900), at + 10, seq=number)
        if number is not None:
            builder.op("AddmmBackward0", at + 500, 5, seq=number)
    assert not builder.claims(find)


def test_loud_on_one_forward_pass():
    (claim,) = find(forward(cpu(), 0, seq=40).build())
    assert claim.always
    assert claim.certainty == "likely"
    assert claim.evidence["n_core_ops"] == 12  # outermost only
    assert claim.evidence["n_graph_nodes"] == 12
    assert "12 of 12" in claim.message


def test_recording_takes_microseconds_per_operator_on_a_cpu():
    (finding,) = tt.analyze(forward(cpu(), 0, seq=40).build(), only=["CFG043"]).findings
    # at the low end of operators that are shorter without the profiler
    calibration = finding.cost.calibration
    low_ms, high_ms = (share * finding.cost.of_ms for share in (calibration.share_low, calibration.share_high))
    assert 0.5 * 12 * 1.5e-3 < low_ms <= 12 * 1.5e-3
    assert high_ms == pytest.approx(12 * 8e-3, rel=1e-4)
    assert finding.cost.low_ms <= low_ms < high_ms <= finding.cost.high_ms
    assert "the cost of the memory it keeps is not estimated" in finding.message


def test_beside_a_device_the_reason_stands_for_the_price():
    builder = forward(TraceBuilder(), 0, seq=40)
    builder.launch(120, 5, 130, 500)
    (finding,) = tt.analyze(builder.build(), only=["CFG043"]).findings
    assert finding.cost is None
    assert "not estimated where a device is used" in finding.message


def test_certain_on_repeated_inference_even_with_a_loss():
    builder = cpu()
    for index in range(3):
        at = 1000 * index
        forward(builder.step(index, at, 900), at + 10, seq=100 * index)
        builder.op("aten::cross_entropy_loss", at + 800, 5)
    (claim,) = find(builder.build())
    assert claim.certainty == "certain"
    assert claim.evidence["n_steps"] == 3


def test_loud_on_validation_steps():
    (claim,) = find(steps(cpu(), "tvvt"))
    assert claim.certainty == "likely"
    assert claim.evidence["n_recording_ops"] == 24
    assert "2 steps without a backward pass" in claim.message

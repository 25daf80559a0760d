"""SYN001 on built traces; times in microseconds."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

from torchtriage.core.trace import Trace
from torchtriage.diagnose.patterns.sync.host_sync_scalar import find

READBACK = "DtoH (Device -> Pageable)"


def one_read(trace: TraceBuilder, at: float, name: str = "aten::item") -> None:
    """Add a read of 30 us around a call of 16 us on an empty queue, and the next kernel."""
    trace.op(name, at, 30).op("aten::_local_scalar_dense", at + 5, 23)
    if trace.rocm:
        trace.copy(at + 8, 16, at + 15, 1, kind="DtoD (Device -> Device)", size=1)
    else:
        trace.copy(at + 8, 10, at + 15, 1, kind=READBACK)
        trace.sync(at + 20, 4)
    trace.launch(at + 100, 5, at + 110, 50)


def loop(reads: int = 2, steps: int = 4, *, name: str = "aten::item", vendor: str = "cuda") -> TraceBuilder:
    trace = TraceBuilder(vendor=vendor)
    for step in range(steps):
        start = step * 1000.0
        trace.step(step, start, 1000)
        trace.launch(start + 2, 5, start + 10, 50)
        for read in range(reads):
            one_read(trace, start + 200 + read * 200, name)
    trace.profiler_stop(steps * 1000 + 1, 5)
    return trace


def us(trace: Trace, low: bool = False) -> float:
    (claim,) = find(trace)
    gain = claim.gain_low if low else claim.gain_high
    return float(((claim.spans[:, 1] - claim.spans[:, 0]) * gain).sum()) / 1000


# -- quiet ---------------------------------------------------------------------------------


def test_quiet_on_cpu_tensors_that_never_wait() -> None:
    trace = loop(0)
    for at in range(200, 3900, 4):
        trace.op("aten::item", at, 3).op("aten::_local_scalar_dense", at + 1, 1)
    assert not trace.claims(find)


def test_quiet_while_the_gpu_stays_busy() -> None:
    trace = TraceBuilder()
    for step in range(4):
        start = step * 1000.0
        trace.step(step, start, 1000)
        # the side stream works on through the read, and more is queued behind it
        trace.launch(start, 5, start + 5, 995, stream=9)
        trace.op("aten::item", start + 200, 300).op("aten::_local_scalar_dense", start + 201, 298)
        trace.copy(start + 205, 280, start + 480, 1, kind=READBACK)
        trace.sync(start + 490, 4)
        trace.launch(start + 600, 5, start + 610, 50)
    trace.launch(3999, 1, 4000, 10)
    assert not trace.profiler_stop(4020, 5).claims(find)


def test_quiet_on_one_read_in_one_step() -> None:
    assert not loop(reads=1, steps=1).claims(find)


def test_quiet_on_reads_at_a_logging_interval() -> None:
    trace = loop(0, steps=10)
    for step in (3, 6, 9):
        one_read(trace, step * 1000 + 300)
    assert not trace.claims(find)


def test_quiet_on_the_gradient_scalers_read() -> None:
    trace = loop(0)
    for step in range(4):
        trace.op("aten::_amp_foreach_non_finite_check_and_unscale_", step * 1000 + 250, 20)
        one_read(trace, step * 1000 + 300)
    assert not trace.claims(find)


def test_quiet_on_the_gradient_scalers_read_by_its_frame() -> None:
    trace = loop(0)
    for step in range(4):
        at = step * 1000 + 300
        trace.frame("torch/amp/grad_scaler.py(340): _maybe_opt_step", at - 5, 40)
        one_read(trace, at)
    assert not trace.claims(find)


def test_quiet_on_what_other_patterns_explain() -> None:
    trace = loop(0)
    for step in range(4):
        at = step * 1000 + 300
        trace.op("aten::repeat_interleave", at - 5, 50)
        one_read(trace, at)
        trace.frame("<built-in function print>", at + 295, 60)
        one_read(trace, at + 300)
    assert not trace.claims(find)


# -- loud ----------------------------------------------------------------------------------


@pytest.mark.parametrize("vendor", ["cuda", "rocm"])
@pytest.mark.parametrize("name", ["aten::item", "aten::is_nonzero", "aten::equal"])
def test_reads_in_every_step(name: str, vendor: str) -> None:
    (claim,) = loop(2, name=name, vendor=vendor).claims(find)
    assert claim.certainty == "likely"
    assert claim.evidence["n_reads_per_step"] == 2
    assert claim.evidence["ops"] == [name]
    assert claim.evidence["wait_ms_per_step"] == pytest.approx(0.032)
    # all that is at stake, the code around each read included
    assert claim.evidence["gpu_idle_ms_per_step"] == pytest.approx(0.06)
    assert len(claim.rows) == 8
    assert "2 times per step" in claim.message


@pytest.mark.parametrize(("size", "n_claims"), [(16, 1), (64, 0)])
def test_a_value_or_two_may_be_read_by_a_copy(size: int, n_claims: int) -> None:
    trace = loop(0)
    for step in range(4):
        at = step * 1000 + 20
        trace.op("aten::to", at, 200).op("aten::copy_", at + 5, 190)
        trace.copy(at + 8, 180, at + 40, 1, kind=READBACK, size=size)
        trace.launch(at + 300, 5, at + 310, 50)
    assert len(trace.claims(find)) == n_claims


def test_the_users_line_is_named() -> None:
    trace = loop(0)
    for step in range(4):
        at = step * 1000 + 300
        trace.frame("train.py(12): train_step", at - 20, 100)
        trace.frame("<built-in method item of Tensor object at 0x7f00>", at - 5, 45)
        one_read(trace, at)
    (claim,) = trace.claims(find)
    assert claim.evidence["call_sites"] == ["train.py(12): train_step"]


def test_a_second_read_beside_the_gradient_scalers_counts() -> None:
    trace = loop(1)
    for step in range(4):
        trace.op("aten::_amp_foreach_non_finite_check_and_unscale_", step * 1000 + 450, 20)
        one_read(trace, step * 1000 + 500)
    (claim,) = trace.claims(find)
    assert claim.evidence["n_reads_per_step"] == 1


# -- cost ----------------------------------------------------------------------------------


def test_an_empty_queue_gives_back_the_read_and_no_more() -> None:
    trace = loop(2).build()
    # 8 reads of 30 us, of which 1 us is the copy itself, yet as much idle time lies behind
    assert us(trace) == pytest.approx(8 * 30)
    assert us(trace, low=True) == pytest.approx(8 * 16 / trace.origin.inflation)


def test_a_deep_queue_gives_back_the_gap_behind_the_read() -> None:
    trace = TraceBuilder()
    for step in range(4):
        start = step * 1000.0
        trace.step(step, start, 1000)
        trace.launch(start + 2, 5, start + 10, 890)
        trace.op("aten::item", start + 20, 890).op("aten::_local_scalar_dense", start + 21, 888)
        trace.copy(start + 22, 880, start + 900, 1, kind=READBACK)
        trace.sync(start + 904, 4)
        trace.launch(start + 950, 5, start + 960, 20)
    built = trace.profiler_stop(4001, 5).build()
    # dry at 901, next kernel at 960
    assert us(built) == pytest.approx(4 * 59)
    assert us(built, low=True) == pytest.approx(4 * 59 / built.origin.inflation)

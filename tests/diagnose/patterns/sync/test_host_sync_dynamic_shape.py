"""SYN002 on built traces; times in microseconds."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.sync.host_sync_dynamic_shape import find
from torchtriage.diagnose.patterns.sync.host_sync_scalar import find as find_scalar

READBACK = "DtoH (Device -> Pageable)"


def loop(name: str = "aten::nonzero", *, device: bool = True, steps: int = 4) -> TraceBuilder:
    trace = TraceBuilder()
    for step in range(steps):
        start = step * 1000.0
        trace.step(step, start, 1000)
        trace.launch(start + 2, 5, start + 10, 50)
        trace.op("aten::index", start + 190, 70).op(name, start + 195, 60)
        if device:
            # it counts first
            trace.launch(start + 200, 5, start + 206, 10)
            trace.copy(start + 210, 20, start + 216, 1, kind=READBACK, size=8)
            trace.sync(start + 232, 4)
        trace.launch(start + 300, 5, start + 310, 50)
    return trace.profiler_stop(steps * 1000 + 1, 5)


def test_quiet_on_cpu_tensors() -> None:
    assert not loop(device=False).claims(find)


def test_quiet_on_an_index_that_only_uploads_its_indices() -> None:
    assert not loop("aten::to").claims(find)


def test_quiet_on_one_step() -> None:
    assert not loop(steps=1).claims(find)


def test_quiet_on_what_printing_selects() -> None:
    trace = loop("aten::masked_select")
    for step in range(4):
        trace.frame("torch/_tensor_str.py(130): __init__", step * 1000 + 180, 100)
    assert not trace.claims(find)


def test_quiet_when_queued_work_hides_the_wait() -> None:
    trace = TraceBuilder()
    for step in range(4):
        start = step * 1000.0
        trace.step(step, start, 1000)
        trace.launch(start, 5, start + 5, 995, stream=9)
        trace.op("aten::nonzero", start + 100, 300)
        trace.copy(start + 105, 280, start + 380, 1, kind=READBACK, size=8)
        trace.sync(start + 390, 4)
        trace.launch(start + 600, 5, start + 610, 50)
    trace.launch(3999, 1, 4000, 10)
    assert not trace.profiler_stop(4020, 5).claims(find)


@pytest.mark.parametrize("name", ["aten::nonzero", "aten::masked_select", "aten::_unique2"])
def test_a_result_whose_size_is_read_back(name: str) -> None:
    built = loop(name).build()
    (claim,) = find(built)
    assert claim.evidence["ops"] == [name]
    assert claim.evidence["n_waits_per_step"] == 1
    assert claim.certainty == "likely"
    assert not list(find_scalar(built))


def test_it_costs_what_the_host_lost_waiting() -> None:
    built = loop().build()
    (claim,) = find(built)
    lengths = claim.spans[:, 1] - claim.spans[:, 0]
    # 26 us in the call, of which the device counts 6 us and copies 1 us; idle behind: enough
    assert lengths.sum() == 4 * 26_000
    assert (lengths * claim.gain_low).sum() == pytest.approx(4 * 26_000 / built.origin.inflation)

"""SYN005 on built traces; times in microseconds."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.sync.host_const_h2d import find

PINNED = "HtoD (Pinned -> Device)"
PAGEABLE = "HtoD (Pageable -> Device)"


def upload(trace: TraceBuilder, at: float, *, size: int = 12, kind: str = PAGEABLE) -> None:
    trace.op("aten::to", at, 40).op("aten::_to_copy", at + 2, 36).op("aten::copy_", at + 8, 28)
    trace.copy(at + 10, 10, at + 16, 1, size=size, kind=kind)
    if kind == PAGEABLE:
        trace.sync(at + 24, 6)


def loop(*before: str, steps: int = 4, after: str = "", **kwargs: object) -> TraceBuilder:
    trace = TraceBuilder()
    for step in range(steps):
        start = step * 1000.0
        trace.step(step, start, 1000)
        trace.launch(start + 2, 5, start + 10, 50)
        for back, name in enumerate(reversed(before)):
            trace.op(name, start + 290 - 10 * back, 5)
        upload(trace, start + 300, **kwargs)  # type: ignore[arg-type]
        if after:
            trace.op(after, start + 345, 2)
        trace.launch(start + 500, 5, start + 510, 50)
    return trace.profiler_stop(steps * 1000 + 1, 5)


def test_quiet_on_the_input_of_the_step() -> None:
    assert not loop().claims(find)
    assert not loop("aten::stack", "aten::empty").claims(find)


def test_quiet_on_large_copies() -> None:
    assert not loop("aten::zeros", size=1 << 20).claims(find)


def test_quiet_on_a_factory_further_away() -> None:
    assert not loop("aten::zeros", *["aten::add"] * 5).claims(find)


def test_quiet_on_a_factory_on_the_device() -> None:
    trace = loop()
    for step in range(4):
        trace.op("aten::zeros", step * 1000 + 280, 12)
        trace.launch(step * 1000 + 282, 5, step * 1000 + 290, 2)
    assert not trace.claims(find)


def test_quiet_on_the_tensor_that_opens_an_annotation() -> None:
    trace = loop()
    for step in range(4):
        # torch 1.8 makes one before every record_function
        trace.op("aten::zeros", step * 1000 + 250, 5)
        trace.annotation("enumerate(DataLoader)#__next__", step * 1000 + 260, 30)
    assert not trace.claims(find)


def test_quiet_on_asynchronous_pinned_metadata() -> None:
    assert not loop("aten::lift_fresh", "aten::detach_", kind=PINNED).claims(find)


def test_quiet_on_one_step() -> None:
    assert not loop("aten::zeros", steps=1).claims(find)


@pytest.mark.parametrize("before", [["aten::lift_fresh", "aten::detach_"], ["aten::arange"]])
def test_a_constant_made_and_copied_in_every_step(before: list[str]) -> None:
    (claim,) = find(loop(*before).build())
    assert claim.certainty == "likely"
    assert claim.evidence["n_copies_per_step"] == 1
    assert claim.evidence["median_copy_bytes"] == 12


def test_what_nobody_writes_as_a_list_is_data_of_the_step() -> None:
    assert not loop("aten::lift_fresh", "aten::detach_", size=8 << 10).claims(find)
    assert not loop(after="aten::lift_fresh", size=8 << 10).claims(find)
    assert loop("aten::arange", size=8 << 10).claims(find)


def test_a_list_made_a_tensor_on_the_device() -> None:
    (claim,) = find(loop(after="aten::lift_fresh").build())
    assert claim.evidence["n_copies_per_step"] == 1


def test_a_module_that_moves_its_bias_in_every_step() -> None:
    trace = loop()
    for step in range(4):
        trace.frame("nn.Module: Owlv2_0", step * 1000 + 290, 100)
    (claim,) = find(trace.build())
    assert claim.evidence["n_copies_per_step"] == 1


def test_the_copying_operator_counts_at_the_high_end() -> None:
    built = loop("aten::zeros").build()
    (claim,) = find(built)
    lengths = claim.spans[:, 1] - claim.spans[:, 0]
    assert (lengths * claim.gain_high).sum() == pytest.approx(4 * 40_000)
    assert (lengths * claim.gain_low).sum() == pytest.approx(4 * 20_000 / built.origin.inflation)

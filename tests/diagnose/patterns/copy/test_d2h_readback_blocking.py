"""CPY006 on built traces; times in microseconds."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

from torchtriage.core.trace.host_syncs import LEAD_LOW
from torchtriage.diagnose.patterns.copy.d2h_readback_blocking import find

READBACK = "DtoH (Device -> Pageable)"


def loop(
    *,
    steps: int = 4,
    size: int = 120_000,
    kind: str = READBACK,
    blocks: bool = True,
    op: str = "aten::to",
    **kwargs: str,
) -> TraceBuilder:
    """Return steps of 500 us of work whose result is copied to the host for 20 us."""
    trace = TraceBuilder(**kwargs)
    for step in range(steps):
        start = step * 1000.0
        trace.step(step, start, 1000)
        trace.launch(start + 2, 5, start + 10, 500)
        wait = 530 if blocks else 8
        trace.op(op, start + 15, wait).op("aten::copy_", start + 17, wait - 4)
        if "Pinned" in kind and blocks:
            trace.copy(start + 18, 8, start + 510, 20, kind=kind, size=size)
            trace.sync(start + 30, wait - 18)
        else:
            trace.copy(start + 18, wait - 6, start + 510, 20, kind=kind, size=size)
        trace.launch(start + 700, 5, start + 710, 100)
    return trace.profiler_stop(steps * 1000 + 1, 5)


def test_quiet_on_the_answer_of_one_request() -> None:
    assert not loop(steps=1).claims(find)


def test_quiet_when_it_does_not_block() -> None:
    trace = loop(kind="DtoH (Device -> Pinned)", blocks=False)
    assert not trace.claims(find)


def test_quiet_on_scalars() -> None:
    assert not loop(size=8).claims(find)
    assert not loop(op="aten::item").claims(find)


def test_quiet_when_other_work_hides_it() -> None:
    trace = loop()
    trace.launch(0, 1, 5, 4100, stream=9)
    assert not trace.claims(find)


def test_quiet_in_a_few_steps_only() -> None:
    trace = loop(size=8, steps=10)
    trace.op("aten::to", 5015, 530).op("aten::copy_", 5017, 526)
    trace.copy(5018, 524, 5530, 20, kind=READBACK, size=120_000)
    assert not trace.claims(find)


def test_a_result_copied_in_every_step() -> None:
    built = loop().build()
    (claim,) = find(built)
    assert claim.certainty == "likely"
    assert claim.evidence["n_copies_per_step"] == 1
    assert claim.evidence["copied_bytes_per_step"] == 120_000
    assert claim.evidence["transfer_ms_per_step"] == pytest.approx(0.02)
    assert claim.evidence["wait_ms_per_step"] == pytest.approx(0.524)


def test_the_gap_behind_it_and_the_slow_transfer() -> None:
    built = loop().build()
    (claim,) = find(built)
    lengths = claim.spans[:, 1] - claim.spans[:, 0]
    # dry from 530 to 710; the copy of 120 kB in 20 us takes 2.4 us at 50 GB/s
    # and from 810 to the next step's kernel at 1010, for the lead that the host lost
    low = (4 * 180_000 + 3 * 200_000 * LEAD_LOW) / built.origin.inflation
    assert (lengths * claim.gain_low).sum() == pytest.approx(low)
    high = 4 * (180_000 + 17_600) + 3 * 200_000
    assert (lengths * claim.gain_high).sum() == pytest.approx(high)


def test_pinned_memory_saves_nothing_of_the_transfer() -> None:
    built = loop(kind="DtoH (Device -> Pinned)").build()
    (claim,) = find(built)
    lengths = claim.spans[:, 1] - claim.spans[:, 0]
    assert (lengths * claim.gain_high).sum() == pytest.approx(4 * 180_000 + 3 * 200_000)


def test_rocm_blocks_in_its_own_call() -> None:
    (claim,) = find(loop(vendor="rocm", kind="DtoH (Device -> Host)").build())
    assert claim.evidence["n_copies_per_step"] == 1


def test_quiet_when_the_call_takes_no_longer_than_its_transfer() -> None:
    trace = TraceBuilder()
    for step in range(4):
        start = step * 1000.0
        trace.step(step, start, 1000)
        trace.launch(start + 2, 5, start + 10, 50)
        trace.op("aten::to", start + 200, 140).op("aten::copy_", start + 202, 136)
        trace.copy(start + 204, 120, start + 212, 100, kind=READBACK, size=120_000)
        trace.launch(start + 700, 5, start + 710, 100)
    assert not trace.profiler_stop(4001, 5).claims(find)


def test_a_long_transfer_behind_an_empty_queue() -> None:
    trace = TraceBuilder()
    for step in range(4):
        start = step * 10_000.0
        trace.step(step, start, 10_000)
        trace.launch(start + 2, 5, start + 10, 50)
        trace.op("aten::to", start + 200, 4_040).op("aten::copy_", start + 202, 4_036)
        trace.copy(start + 204, 4_010, start + 212, 4_000, kind=READBACK, size=20_000_000)
        trace.launch(start + 7_000, 5, start + 7_010, 100)
    (claim,) = find(trace.profiler_stop(40_001, 5).build())
    assert claim.evidence["n_copies_per_step"] == 1


def test_quiet_on_what_is_printed() -> None:
    trace = loop()
    for step in range(4):
        trace.frame("torch/_tensor_str.py(700): _str", step * 1000 + 12, 540)
    assert not trace.claims(find)

"""CPY009 on built traces; times in microseconds."""

from __future__ import annotations

from typing import Any

import pytest
from builder import TraceBuilder

from torchtriage.api.traces import analyze
from torchtriage.diagnose.patterns.copy.copy_ping_pong import WEIGHTS, find

READBACK = "DtoH (Device -> Pageable)"
MB = 1 << 20


def loop(
    *, size: int = 1 << 20, back: int | None = None, steps: int = 4, tid: int = 1, late: float = 0
) -> TraceBuilder:
    trace = TraceBuilder()
    for step in range(steps):
        start = step * 2000.0
        trace.step(step, start, 2000)
        trace.launch(start + 2, 5, start + 10, 300)
        trace.op("aten::to", start + 20, 330).op("aten::copy_", start + 22, 326)
        trace.copy(start + 24, 320, start + 310, 20, kind=READBACK, size=size)
        at = start + 800 + late
        trace.op("aten::to", at, 60, tid=tid).op("aten::copy_", at + 2, 56, tid=tid)
        trace.copy(at + 4, 40, at + 20, 20, size=size if back is None else back, tid=tid)
        trace.sync(at + 48, 6, tid=tid)
        trace.launch(start + 1000 + late, 5, start + 1010 + late, 300)
    return trace.profiler_stop(steps * 2000 + 1 + late, 5)


def test_quiet_on_other_sizes() -> None:
    assert not loop(back=(1 << 20) - 4).claims(find)


def test_quiet_on_sizes_that_say_nothing() -> None:
    assert not loop(size=4095).claims(find)


def test_quiet_across_threads() -> None:
    assert not loop(tid=2).claims(find)


def test_quiet_on_one_pair() -> None:
    assert not loop(steps=1).claims(find)


def test_quiet_on_offloading_that_does_not_block() -> None:
    trace = TraceBuilder()
    for step in range(4):
        start = step * 2000.0
        trace.step(step, start, 2000)
        trace.launch(start + 2, 5, start + 10, 300)
        trace.op("aten::to", start + 20, 20).op("aten::copy_", start + 22, 16)
        trace.copy(start + 24, 8, start + 310, 20, kind="DtoH (Device -> Pinned)", size=MB, stream=9)
        trace.op("aten::to", start + 800, 20).op("aten::copy_", start + 802, 16)
        trace.copy(start + 804, 8, start + 820, 20, kind="HtoD (Pinned -> Device)", size=MB, stream=9)
        trace.launch(start + 1000, 5, start + 1010, 300)
    assert not trace.profiler_stop(8001, 5).claims(find)


def test_a_round_trip_in_every_step() -> None:
    built = loop().build()
    (claim,) = find(built)
    assert claim.certainty == "likely"
    assert claim.evidence["n_round_trips_per_step"] == 1
    assert claim.evidence["median_tensor_bytes"] == MB
    assert claim.evidence["round_trip_ms_per_step"] == pytest.approx(0.83)


def test_small_round_trips_are_a_hint() -> None:
    (claim,) = find(loop(size=8192).build())
    assert claim.certainty == "hint"


def test_it_costs_the_idle_time_of_the_round_trip() -> None:
    built = loop().build()
    (claim,) = find(built)
    lengths = claim.spans[:, 1] - claim.spans[:, 0]
    # dry 330-820 and 840-1010: 660 us, of the 830 us the host spent; and two copies of 20 us
    assert (lengths * claim.gain_high).sum() == pytest.approx(4 * (660_000 + 40_000))
    # surely lost: the first call's 320 us up to the upload, and the second's own 50 us
    low = 4 * (370_000 / built.origin.inflation + 40_000)
    assert (lengths * claim.gain_low).sum() == pytest.approx(low)


def test_quiet_on_what_comes_back_in_another_step() -> None:
    # the upload belongs to the next step's input
    assert not loop(late=1300).claims(find)


def test_quiet_on_what_comes_back_much_later() -> None:
    trace = TraceBuilder()
    for step in range(4):
        start = step * 200_000.0
        trace.step(step, start, 200_000)
        trace.launch(start + 2, 5, start + 10, 300)
        trace.op("aten::to", start + 20, 330).op("aten::copy_", start + 22, 326)
        trace.copy(start + 24, 320, start + 310, 20, kind=READBACK, size=MB)
        trace.copy(start + 150_000, 40, start + 150_020, 20, size=MB)
        trace.launch(start + 151_000, 5, start + 151_010, 300)
    assert not trace.profiler_stop(800_001, 5).claims(find)


SIZES = [1000 * size for size in range(1, 13)]


def moved(
    *,
    stacks: bool = True,
    steps: int = 4,
    back: bool = True,
    sizes: list[int] = SIZES,
    first: str = "to",
    second: str = "to",
    file: str = "torch/nn/modules/module.py",
) -> TraceBuilder:
    """Return steps that move a module up, compute for 500 us and move it down: 12 copies of 40 and of 100 us."""
    trace = TraceBuilder()
    for step in range(steps):
        start = step * 3450.0
        trace.step(step, start, 3450)
        ways = [(first, "HtoD (Pageable -> Device)", 40.0, start + 10)]
        ways += [(second, READBACK, 100.0, start + 1500)] if back else []
        for name, kind, took, begin in ways:
            if stacks:
                trace.frame("serve.py(7): answer", begin, len(sizes) * (took + 60) + 10)
                trace.frame(f"{file}(12): {name}", begin + 2, len(sizes) * (took + 60) + 4)
            for place, size in enumerate(sizes):
                at = begin + 5 + place * (took + 60)
                trace.op("aten::to", at, took + 40).op("aten::copy_", at + 2, took + 36)
                trace.copy(at + 4, took + 10, at + 6, took, kind=kind, size=size)
                trace.sync(at + took + 16, 10)
            if kind != READBACK:
                trace.op("aten::mm", start + 1300, 20)
                trace.launch(start + 1310, 5, start + 1318, 150, "gemm")
    return trace.profiler_stop(steps * 3450 + 1, 5)


@pytest.mark.parametrize("stacks", [True, False], ids=["stacks", "sizes"])
def test_weights_that_travel_in_every_step(stacks: bool) -> None:
    built = moved(stacks=stacks).build()
    (claim,) = find(built)
    assert claim.evidence["kind"] == "weights"
    assert claim.fix == WEIGHTS
    assert claim.certainty == ("certain" if stacks else "likely")
    assert claim.evidence["n_copies_per_step"] == 24
    # up 12 x 100 us, down 12 x 160 us, but for the pause behind the last
    assert claim.evidence["moves_ms_per_step"] == pytest.approx(12 * 0.1 + 12 * 0.16, rel=0.03)
    assert claim.evidence["exposed_copy_ms_per_step"] == pytest.approx(12 * 0.04 + 12 * 0.1)
    lengths = claim.spans[:, 1] - claim.spans[:, 0]
    copied, whole = 1.68, claim.evidence["moves_ms_per_step"]
    n = 4 * 1e6
    assert (lengths * claim.gain_high).sum() / n == pytest.approx(whole, rel=0.01)
    assert (lengths * claim.gain_low).sum() / n == pytest.approx(
        copied + (whole - copied) / built.origin.inflation, rel=0.01
    )


def test_what_else_is_said_of_these_copies_is_explained_by_it() -> None:
    sizes = [size << 12 for size in SIZES]  # up to 48 MiB
    findings = analyze(moved(sizes=sizes).build()).findings
    assert findings[0].code == "CPY009"
    assert findings[0].place.frame is not None
    assert findings[0].place.frame.function == "answer"
    assert {"CPY006", "CPY007"} <= set(findings[0].also_explains)
    assert not {"CPY006", "CPY007", "CPY010"} & {finding.code for finding in findings}
    assert findings[0].cost is not None
    # 3.1 of 3.45 ms, half of it surely: the copies alone take 1.7
    assert findings[0].cost.share_low > 0.5
    assert findings[0].cost.share_high > 0.8


def test_few_weights_are_seen_by_their_frames_alone() -> None:
    assert [claim.fix for claim in find(moved(sizes=SIZES[:3], first="cuda", second="cpu").build())] == [WEIGHTS]


@pytest.mark.parametrize(
    "changes",
    [{"steps": 1}, {"back": False}, {"stacks": False, "sizes": SIZES[:7]}, {"stacks": False, "back": False}],
    ids=["once", "one way", "few", "one way without stacks"],
)
def test_quiet_on_weights_that_do_not_travel(changes: dict[str, Any]) -> None:
    assert all(claim.fix is not WEIGHTS for claim in find(moved(**changes).build()))


def test_tensors_that_return_are_no_weights() -> None:
    claims = moved(file="serve/tensors.py").claims(find)
    assert all(claim.fix is not WEIGHTS for claim in claims)


def test_quiet_without_stacks_on_activations_kept_on_the_host() -> None:
    # down in the forward pass, up again in the backward pass
    trace = TraceBuilder()
    for step in range(4):
        start = step * 5000.0
        trace.step(step, start, 5000)
        for kind, begin in ((READBACK, start + 10), ("HtoD (Pageable -> Device)", start + 1500)):
            for place, size in enumerate(SIZES):
                at = begin + place * 100
                trace.op("aten::to", at, 80).op("aten::copy_", at + 2, 76)
                trace.copy(at + 4, 50, at + 6, 40, kind=kind, size=size)
                trace.sync(at + 56, 10)
            trace.launch(begin + 1310, 5, begin + 1318, 150, "gemm")
    assert all(claim.fix is not WEIGHTS for claim in find(trace.profiler_stop(20_001, 5).build()))

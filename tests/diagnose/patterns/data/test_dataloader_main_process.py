"""DAT018 dataloader-main-process."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.data.dataloader_main_process import find

SINGLE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
MULTI = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def loop(*, fetch: float = 4_000, launch: float = 5_000, n: int = 4, name: str = SINGLE) -> TraceBuilder:
    """Steps of 10 ms: a fetch, then one kernel of 5 ms launched at ``launch``."""
    builder = TraceBuilder()
    for i in range(n):
        at = 10_000 * i
        builder.step(i, at, 10_000).annotation(name, at + 10, fetch)
        builder.op("aten::mm", at + launch - 5, 20.5)
        builder.launch(at + launch, 5, at + launch + 5, 5_000 - 5)
    return builder


def test_the_fetch_behind_the_last_work_is_waited_for_too() -> None:
    builder = TraceBuilder()
    for step in range(3):  # the first is left out, and of the other two fetches the last has no work behind it
        at = 10_000 * step
        builder.step(step, at, 10_000).op("aten::mm", at + 5, 20.5)
        builder.launch(at + 10, 5, at + 15, 5_000)
        builder.annotation(SINGLE, at + 5_100, 4_890)
    (claim,) = builder.claims(find)
    assert claim.evidence["gpu_idle_ms_per_step"] == pytest.approx(4.89, abs=0.15)


def test_quiet_without_a_loader() -> None:
    assert not loop(name="forward").claims(find)


def test_quiet_with_workers() -> None:
    assert not loop(name=MULTI).claims(find)


def test_quiet_when_a_fetch_takes_less_than_a_millisecond() -> None:
    assert not loop(fetch=900).claims(find)


def test_quiet_below_five_percent_of_the_step() -> None:
    builder = TraceBuilder()
    for i in range(4):
        at = 40_000 * i
        builder.step(i, at, 40_000).annotation(SINGLE, at + 10, 1_900)
        builder.launch(at + 2_000, 5, at + 2_005, 37_995)
    assert not builder.op("aten::mm", 1_950, 20.5).claims(find)


def test_quiet_when_queued_work_hides_the_fetch() -> None:
    builder = TraceBuilder()
    for i in range(4):
        at = 10_000 * i
        builder.step(i, at, 10_000).op("aten::mm", at, 20.5)
        builder.launch(at + 5, 5, at + 12, 9_000)
        builder.annotation(SINGLE, at + 100, 4_000)
    assert not builder.claims(find)


def test_quiet_when_one_step_in_three_fetches() -> None:
    builder = loop(name="other")
    assert not builder.annotation(SINGLE, 10_010, 4_000).claims(find)


def test_quiet_on_an_accelerator_whose_rows_are_not_there() -> None:
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        builder.step(i, 10_000 * i, 10_000).annotation(SINGLE, 10_000 * i, 4_000)
        builder.event("Enqueue", "enqueue", 10_000 * i, 5)
    assert not builder.op("aten::mm", 5_000, 20.5).claims(find)


def test_idle_time_inside_the_fetches_is_at_stake() -> None:
    (claim,) = loop().claims(find)
    # steady: steps 1-3; the device runs dry at 10 ms of each step and the fetch begins at 10 us
    assert claim.time_class == "idle"
    assert claim.certainty == "certain"
    assert claim.evidence["n_fetches_per_step"] == 1
    assert claim.evidence["fetch_ms_per_step"] == 4.0
    assert claim.evidence["gpu_idle_ms_per_step"] == 4.0
    assert claim.evidence["share_of_step"] == 0.4
    assert claim.spans.tolist()[1] == [20_010_000, 24_010_000]
    assert claim.gain_high == 1.0
    assert claim.gain_low == pytest.approx(0.8 / 1.5)
    assert "4.00 ms of 10.0 ms per step" in claim.message


def test_only_the_idle_part_of_a_fetch_counts() -> None:
    builder = TraceBuilder()
    for i in range(4):
        at = 10_000 * i
        builder.step(i, at, 10_000).op("aten::mm", at, 20.5)
        builder.launch(at + 5, 5, at + 12, 2_000)
        builder.annotation(SINGLE, at + 1_012, 5_000)
        builder.op("aten::mm", at + 6_100, 20.5)
        builder.launch(at + 6_110, 5, at + 6_120, 3_800)
    (claim,) = builder.claims(find)
    assert claim.evidence["fetch_ms_per_step"] == 5.0
    assert claim.evidence["gpu_idle_ms_per_step"] == 4.0


def test_on_a_cpu_the_fetches_themselves_are_at_stake() -> None:
    builder = TraceBuilder(vendor="cpu")
    for i in range(4):
        builder.step(i, 10_000 * i, 10_000).annotation(SINGLE, 10_000 * i + 10, 4_000)
        builder.op("aten::mm", 10_000 * i + 5_000, 20.5)
    (claim,) = builder.claims(find)
    assert claim.time_class == "host"
    assert claim.gain_low == pytest.approx(0.5 / 1.5)
    assert claim.spans.tolist()[0] == [10_010_000, 14_010_000]


def test_host_rows_of_a_gpu_machine_are_a_hint_without_a_low_end() -> None:
    builder = TraceBuilder()
    for i in range(4):
        builder.step(i, 10_000 * i, 10_000).annotation(SINGLE, 10_000 * i + 10, 4_000)
        builder.op("aten::mm", 10_000 * i + 5_000, 20.5)
    (claim,) = builder.claims(find)
    assert claim.certainty == "hint"
    assert claim.gain_low == 0.0


def test_an_annotation_written_twice_counts_once() -> None:
    builder = loop()
    for i in range(4):
        builder.annotation(SINGLE, 10_000 * i + 10, 4_000)
    (claim,) = builder.claims(find)
    assert claim.evidence["n_fetches_per_step"] == 1


def test_frames_name_what_the_fetch_does() -> None:
    builder = loop()
    for i in range(4):
        builder.frame("data.py(5): decode", 10_000 * i + 20, 3_000)
    (claim,) = builder.claims(find)
    assert claim.evidence["top_frames_ms_per_step"] == {"data.py(5): decode": 3.0}

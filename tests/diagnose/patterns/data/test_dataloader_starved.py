"""DAT019 dataloader-starved."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.data.dataloader_starved import RESPAWN_FIX, find

MULTI = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
NEW = "torch/utils/data/dataloader.py(380): _get_iterator"


def loop(waits: list[float], *, vendor: str = "cuda") -> TraceBuilder:
    """Steps of 10 ms: a wait for the workers, then the device is busy for the rest of the step."""
    builder = TraceBuilder(vendor=vendor)
    for i, wait in enumerate(waits):
        at = 10_000 * i
        builder.step(i, at, 10_000).annotation(MULTI, at + 10, wait)
        builder.op("aten::mm", at + wait + 10, 20.5)
        if vendor != "cpu":
            builder.launch(at + wait + 20, 5, at + wait + 25, 9_975 - wait)
    return builder


def test_quiet_when_the_workers_keep_up() -> None:
    assert not loop([150] * 8).claims(find)


def test_quiet_when_one_step_in_five_waits() -> None:
    assert not loop([150, 150, 150, 150, 3_000, 150]).claims(find)


def test_quiet_while_the_queue_fills_at_the_start() -> None:
    assert not loop([3_000, 3_000, 3_000, 3_000, 150, 150, 150, 150, 150, 150]).claims(find)


def test_quiet_when_queued_work_hides_the_waits() -> None:
    builder = TraceBuilder()
    for i in range(6):
        at = 10_000 * i
        builder.step(i, at, 10_000).op("aten::mm", at, 20.5)
        builder.launch(at + 5, 5, at + 12, 9_900)
        builder.annotation(MULTI, at + 100, 4_000)
    assert not builder.claims(find)


def test_quiet_without_workers() -> None:
    builder = loop([3_000] * 6)
    for one in builder.events:
        one["name"] = one["name"].replace("MultiProcessing", "SingleProcess")
    assert not builder.claims(find)


def test_waits_with_an_idle_device_are_at_stake() -> None:
    (claim,) = loop([3_000] * 6).claims(find)
    assert claim.evidence["kind"] == "workers too slow"
    assert claim.evidence["n_waiting_steps"] == claim.evidence["n_steady_steps"] == 5
    assert claim.evidence["gpu_idle_ms_per_step"] == 3.0
    assert claim.time_class == "idle"
    assert (claim.gain_low, claim.gain_high) == (0.5, 1.0)
    assert claim.spans.tolist()[0] == [10_010_000, 13_010_000]


def test_on_a_cpu_the_waits_are_host_time() -> None:
    (claim,) = loop([3_000] * 6, vendor="cpu").claims(find)
    assert claim.time_class == "host"
    assert claim.evidence["wait_ms_per_step"] == 3.0


def on_cpu(waits: list[float], rest: list[float]) -> TraceBuilder:
    """Steps of a program without a device: a wait for the workers, then operators."""
    builder, at = TraceBuilder(vendor="cpu"), 0.0
    for i, (wait, work) in enumerate(zip(waits, rest, strict=True)):
        builder.step(i, at, wait + work).annotation(MULTI, at, wait).op("aten::mm", at + wait, work - 1)
        at += wait + work
    return builder


def test_on_a_cpu_what_every_answer_takes_is_no_wait() -> None:
    assert not on_cpu([1_400, 1_200, 1_300, 1_250, 1_400, 1_300], [12_000] * 6).claims(find)


def test_quiet_on_a_cpu_that_holds_up_the_rest_of_the_steps_as_much() -> None:
    waits, rest = [5_000, 5_000, 1_300, 6_000, 4_300, 1_300], [45_000, 52_000, 44_000, 57_000, 56_000, 43_000]
    assert not on_cpu(waits, rest).claims(find)
    (claim,) = on_cpu(waits, [45_000] * 6).claims(find)  # the same waits of steps that are alike
    assert claim.evidence["n_waiting_steps"] == 3


def test_workers_started_again_have_their_own_fix() -> None:
    builder = loop([150, 150, 4_000, 150, 4_000, 150])
    for i in (2, 4):
        # the loop is left and entered again: the new iterator is made before the first fetch
        builder.frame(NEW, 10_000 * i + 1, 8)
    (claim,) = builder.claims(find)
    assert claim.evidence["kind"] == "workers started again"
    assert claim.evidence["n_worker_starts"] == 2
    assert claim.fix is RESPAWN_FIX
    assert claim.evidence["gpu_idle_ms_per_step"] == pytest.approx((2 * 4_008) / 5 / 1000, abs=0.001)


def test_stopping_the_workers_of_an_epoch_counts_with_starting_them() -> None:
    builder = loop([150, 150, 4_000, 150, 150, 150], vendor="cpu")
    builder.frame(NEW, 20_001, 8)
    builder.frame("torch/utils/data/dataloader.py(1606): _shutdown_workers", 39_000, 900)
    (claim,) = builder.claims(find)
    assert claim.evidence["n_worker_starts"] == 1
    lost_ms = claim.evidence["wait_ms_per_step"]
    assert lost_ms == pytest.approx((4_008 + 900) / 5 / 1000, abs=0.001)


def test_quiet_when_starting_workers_costs_little() -> None:
    builder = loop([150] * 6)
    builder.frame(NEW, 20_001, 8)
    assert not builder.claims(find)


def epochs(stop: float, n: int = 2) -> TraceBuilder:
    """Steps of 10 ms without stacks; ``n`` of them end an epoch and begin the next."""
    builder = loop([150] * 8, vendor="cpu")
    for i in range(2, 2 + 2 * n, 2):
        at = 10_000 * i + 1_000
        builder.annotation(MULTI, at, stop)
        builder.op("aten::randperm", at + stop + 100, 20)  # the sampler's new order
        builder.annotation(MULTI, at + stop + 3_000, 2_000)
        builder.op("aten::mm", at + stop + 5_000, 20.5)
    return builder


def test_workers_started_again_are_seen_without_stacks() -> None:
    (claim,) = epochs(stop=1_500).claims(find)
    assert claim.evidence["kind"] == "workers started again"
    assert claim.evidence["n_worker_starts"] == 2
    lost_ms = (1_500 + 3_000 + 2_000) * 2 / 7 / 1000
    assert claim.evidence["wait_ms_per_step"] == pytest.approx(lost_ms, abs=0.001)
    # the script's own work may lie between two epochs
    assert claim.gain_low == pytest.approx(0.5 * 3_500 / 6_500)
    assert claim.gain_high == 1.0


def test_one_new_epoch_in_a_recording_is_a_hint() -> None:
    (once,), (twice,) = epochs(stop=1_500, n=1).claims(find), epochs(stop=1_500).claims(find)
    assert (once.certainty, twice.certainty) == ("hint", "likely")


def test_workers_that_live_on_are_not_started_again() -> None:
    assert not epochs(stop=20).claims(find)


def test_work_between_two_fetches_is_no_new_epoch() -> None:
    builder = epochs(stop=1_500)
    for i in (2, 4):
        builder.op("aten::add", 10_000 * i + 3_000, 20)
    assert all(one.evidence["kind"] != "workers started again" for one in builder.claims(find))

"""Bandwidths are those of NCCL's tests, of the fastest kernel of a row; what is not recorded is not guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builder import TraceBuilder

import torchtriage as tt
from torchtriage.diagnose.verdict.bus_bandwidth import bus_bandwidth
from torchtriage.diagnose.verdict.result import BusBandwidth, CollectiveRow

MIB = 1 << 20
KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def reached(*kernels: tuple[float, dict[str, Any]], marked: bool = True) -> BusBandwidth | None:
    """Return what is said of three steps with some kernels one after the other, each for so many µs."""
    builder = TraceBuilder()
    for step in range(3):
        begin = step * 10_000
        if marked:
            builder.step(step, begin, 10_000)
        for index, (dur_us, changed) in enumerate(kernels):
            said = {
                "Collective name": "allreduce",
                "In msg nelems": 4 * MIB,
                "dtype": "Float",
                "Process Group Name": "0",
                "Process Group Ranks": "[0, 1, 2, 3]",
                **changed,
            }
            said = {key: value for key, value in said.items() if value is not None}
            builder.launch(begin + 10 + index * 1000, 5, begin + 20 + index * 1000, dur_us, KERNEL, stream=20, **said)
    return bus_bandwidth(builder.build().devices[0])


def test_one_row_for_an_operation_a_group_and_sizes_alike() -> None:
    found = reached((400, {}), (200, {}), (100, {"In msg nelems": 5 * MIB}), (500, {"In msg nelems": 64}))
    assert found is not None
    large, small = found.rows
    assert large == CollectiveRow(
        name="allreduce",
        group="0",
        n_ranks=4,
        least_bytes=16 * MIB,
        most_bytes=20 * MIB,
        n_per_step=3.0,
        mean_ns=round(700_000 / 3),
        # the fastest: 20 MiB in 100 µs
        algorithm_gbps=round(20 * MIB / 100e3, 3),
        bus_gbps=round(20 * MIB / 100e3 * 1.5, 3),
    )
    assert (small.least_bytes, small.bus_gbps) == (256, round(256 / 500e3 * 1.5, 3))
    assert (found.n_collectives, found.n_unchecked, found.unchecked) == (8, 0, "")


def test_operations_and_groups_are_rows_of_their_own() -> None:
    other = {"Process Group Name": "1", "Process Group Ranks": "[0, 1]"}
    found = reached((100, {}), (100, {"Collective name": "broadcast"}), (100, other))
    assert found is not None
    assert {(row.name, row.group, row.n_ranks) for row in found.rows} == {
        ("allreduce", "0", 4),
        ("broadcast", "0", 4),
        ("allreduce", "1", 2),
    }


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"In msg nelems": None}, "their sizes"),
        ({"dtype": None}, "their sizes"),
        ({"Process Group Ranks": None}, "size of their process group"),
        ({"Process Group Ranks": None, "Collective name": "all_gather"}, "size of their process group"),
        ({"Collective name": "send"}, "not computed for their operations"),
        ({"Collective name": "gather"}, "not computed for their operations"),
    ],
)
def test_what_is_not_recorded_is_not_checked(changed: dict[str, Any], reason: str) -> None:
    found = reached((100, changed))
    assert found is not None
    assert found.rows == ()
    assert (found.n_collectives, found.n_unchecked) == (2, 2)
    assert reason in found.unchecked


def test_a_rank_alone_in_its_group_exchanges_nothing() -> None:
    assert reached((100, {"Process Group Ranks": "[0]"})) is None
    assert reached((100, {}), marked=False) is not None
    builder = TraceBuilder()
    builder.launch(0, 5, 10, 100, "gemm")
    assert bus_bandwidth(builder.build().devices[0]) is None


@pytest.mark.data
def test_a_recording_with_the_sizes_on_its_kernels(recordings: Path) -> None:
    """As counted by hand from the rows of the two steady steps."""
    found = bus_bandwidth(tt.load(recordings / "cv/convnet_a100_ddp_rank0_of_2.json.gz").devices[0])
    assert found is not None
    assert [(row.name, row.most_bytes, row.n_per_step, row.bus_gbps) for row in found.rows] == [
        ("allreduce", 31_502_336, 3.0, 11.781),
        ("allreduce", 9_724_160, 2.0, 4.794),
        ("broadcast", 212_480, 1.0, 7.281),
        ("broadcast", 424, 1.0, 0.055),
    ]
    assert (found.n_collectives, found.n_unchecked) == (14, 0)

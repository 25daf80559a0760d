"""COM058: the same parameters gathered again within a step."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.comm.all_gather_repeated import find

NCCL = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SIZED = {"Collective name": "_allgather_base", "In msg nelems": 1 << 20, "dtype": "Float"}


def job(order, *, rounds=1, early=0, world=8, sized=True, period=20_000.0):
    """Add four steps; ``order`` : units gathered per micro-batch, each exposed for 200 us, then 400 us of computation.

    ``early`` : how long before the computation of the unit before ends each gather begins.
    """
    builder = TraceBuilder(distributedInfo={"rank": 0, "world_size": world, "backend": "nccl"})
    for index in range(4):
        at = period * index
        builder.step(index, at, period - 10)
        builder.op("AddmmBackward0", at + 1, 1)
        done, host = at + 100, at + 10
        for _ in range(rounds):
            builder.annotation("FSDP::root_pre_forward", host, 5)
            for place, unit in enumerate(order):
                host += 100
                builder.annotation(f"FSDP::all_gather (layers.{unit})", host, 40)
                builder.op("c10d::_allgather_base_", host + 5, 20)
                begin = done - (early if place else 0)
                builder.launch(host + 10, 5, begin, 200 + early, name=NCCL, stream=20, **(SIZED if sized else {}))
                builder.launch(host + 60, 5, begin + 200 + early, 400)
                done = begin + 600 + early
            host += 50
    return builder


def test_quiet_when_each_unit_is_gathered_once():
    assert not job([0, 1, 2, 3]).claims(find)


def test_quiet_at_world_size_1():
    assert not job([0, 1, 2, 2, 1, 0], rounds=2, world=1).claims(find)


def test_gathers_that_are_only_late_are_left_to_prefetching():
    (claim,) = find(job([0, 1, 2, 3, 3, 2, 1, 0], period=6000.0).build())
    # layer 3 is gathered twice in a row
    assert claim.evidence["repeated_gathers_per_step"] == 1
    assert claim.certainty == "hint"


def test_gathers_that_begin_in_time_and_are_exposed_all_the_same():
    (claim,) = find(job([0, 1, 2, 3, 2, 1, 0], early=390).build())
    assert claim.evidence["repeated_gathers_per_step"] == 3
    assert not np.any(claim.gain_low)
    assert claim.certainty == "hint"


def test_every_further_micro_batch_is_claimed():
    (claim,) = find(job([0, 1, 2], rounds=3).build())
    assert claim.certainty == "likely"
    assert claim.evidence["repeated_gathers_per_step"] == 6
    assert claim.evidence["micro_batches_per_step"] == 3
    assert claim.evidence["exposed_ms_per_step"] == pytest.approx(1.2)
    assert claim.evidence["bytes_to_keep"] == 3 * 8 * (4 << 20)
    assert "96.0 MiB" in claim.message or "96 MiB" in claim.message
    assert np.allclose(claim.gain_low, 1)
    assert "set_reshard_after_backward" in claim.fix.code
    (edit,) = claim.edits
    assert edit.kind == "shrink"
    assert set(edit.remains(hopeful=True).tolist()) == {0.0}


def test_without_sizes_no_memory_is_said():
    (claim,) = find(job([0, 1, 2], rounds=3, sized=False).build())
    assert "bytes_to_keep" not in claim.evidence
    assert not np.any(claim.gain_low)


def test_on_the_host_the_copies_around_a_gather_go_as_well():
    builder = TraceBuilder(vendor="cpu", distributedInfo={"rank": 0, "world_size": 2, "backend": "gloo"})
    for index in range(4):
        now = 60_000.0 * index
        builder.step(index, now, 59_000)
        builder.op("AddmmBackward0", now + 1, 1)
        now += 100
        for _ in range(2):
            builder.annotation("FSDP::root_pre_forward", now, 5)
            for unit in range(3):
                now += 20
                builder.annotation(f"FSDP::all_gather (layers.{unit})", now, 3000)
                builder.op("c10d::_allgather_base_", now + 500, 50, dims=[[2048], [1024]], types=["float", "float"])
                sized = {"Input Dims": [[1024]], "Input type": ["float"]}
                builder.event("gloo:all_gather", "user_annotation", now + 560, 2000, tid=77, **sized)
                builder.op("aten::addmm", now + 3010, 4000)
                now += 7020
    (claim,) = find(builder.build())
    assert claim.evidence["repeated_gathers_per_step"] == 3
    assert claim.evidence["bytes_to_keep"] == 3 * 2 * 4096
    assert (claim.spans[:, 1] - claim.spans[:, 0]).tolist() == [3_000_000] * 12
    assert np.allclose(claim.gain_low, 2 / 3)

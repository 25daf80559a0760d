"""COM061: DDP's buckets wait for one that is ready late."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.comm.ddp_bucket_order import find

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
NODE = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


def job(together, *, world=8, map_of_used=False, layers=4, comm=200):
    """Add four steps of 10 ms: four layers of 500 us, a bucket of ``comm`` us each.

    ``together`` : how many buckets are enqueued in each layer's hook.
    """
    builder = TraceBuilder(distributedInfo={"rank": 0, "world_size": world, "backend": "nccl"})
    for index in range(4):
        at = 10_000.0 * index
        builder.step(index, at, 9990)
        builder.annotation("DistributedDataParallel.forward", at + 5, 20)
        device, sent = at + 200, 0.0
        for layer in range(layers):
            host = at + 100 + 300 * layer
            builder.op("autograd::engine::evaluate_function: MmBackward0", host, 20)
            builder.launch(host + 5, 5, device, 500)
            device += 500
            builder.op(NODE, host + 30, 250)
            builder.launch(host + 31, 2, device, 1)
            sizes = [1 << 20] * together[layer]
            if map_of_used and layer == layers - 1:
                sizes.append(40)
            for place, size in enumerate(sizes):
                builder.op("c10d::allreduce_", host + 40 + 40 * place, 30)
                begin = max(device + 1, sent)
                extra = {"Collective name": "allreduce", "In msg nelems": size, "dtype": "Float"}
                builder.launch(host + 45 + 40 * place, 5, begin, comm, name=NCCL, stream=20, **extra)
                sent = begin + comm
    return builder


def test_quiet_in_order():
    assert not job([1, 1, 1, 1]).claims(find)


def test_quiet_on_the_map_of_used_parameters():
    assert not job([1, 1, 1, 1], map_of_used=True).claims(find)


def test_quiet_at_world_size_1():
    assert not job([0, 0, 0, 4], world=1).claims(find)


def test_buckets_behind_the_late_one_are_claimed():
    (claim,) = find(job([0, 0, 0, 4]).build())
    assert claim.evidence["waiting_buckets_per_step"] == 3
    assert claim.evidence["exposed_ms_per_step"] == pytest.approx(0.6)
    assert claim.evidence["could_hide_ms_per_step"] == pytest.approx(0.6)


def test_they_share_the_computation_before():
    # three times 700 us wait, and 1.5 ms were computed since the first gradient
    (claim,) = find(job([0, 0, 0, 4], comm=700).build())
    assert claim.evidence["exposed_ms_per_step"] == pytest.approx(2.1)
    assert claim.evidence["could_hide_ms_per_step"] == pytest.approx(1.5, abs=0.01)

"""COM059: most gradients are reduced when nothing is left to compute."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.comm.reduce_scatter_exposed_at_end import find

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
NODE = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


def job(
    buckets, *, at_end=False, world=8, sizes=True, forward="DistributedDataParallel.forward", op="c10d::allreduce_"
):
    """Add four steps of 10 ms whose backward pass has eight layers of 500 us each.

    ``buckets`` : layers per bucket in order; a layer has 4 Mi elements and is reduced in 100 us. ``at_end`` : gradients
    are there only when the last layer is done.
    """
    builder = TraceBuilder(distributedInfo={"rank": 0, "world_size": world, "backend": "nccl"})
    last = np.cumsum(buckets) - 1
    for index in range(4):
        at = 10_000.0 * index
        builder.step(index, at, 9990)
        builder.annotation(forward, at + 5, 20)
        builder.launch(at + 10, 2, at + 50, 100)
        device, comm = at + 200, 0.0
        hooks = []
        for layer in range(8):
            host = at + 100 + 100 * layer
            builder.op("autograd::engine::evaluate_function: MmBackward0", host, 20)
            builder.launch(host + 5, 5, device, 500)
            device += 500
            hooks.append((host + 30, device))
        for layer, (host, ready) in enumerate(hooks):
            if at_end:
                host, ready = at + 900 + 40 * layer, hooks[-1][1]
            builder.op(NODE, host, 38)
            builder.op("torch::autograd::AccumulateGrad", host + 1, 5, dims=[[4 << 20]])
            builder.launch(host + 2, 2, ready, 1)
            if layer in last:
                n = int(buckets[list(last).index(layer)])
                builder.op(op, host + 10, 20)
                begin = max(ready + 1, comm)
                extra = {"Collective name": "allreduce", "In msg nelems": n * (4 << 20), "dtype": "Float"}
                builder.launch(host + 12, 5, begin, 100 * n, name=NCCL, stream=20, **(extra if sizes else {}))
                comm = begin + 100 * n
    return builder


def test_quiet_with_a_bucket_per_layer():
    assert not job([1] * 8).claims(find)


def test_quiet_when_gradients_come_at_the_end():
    assert not job([8], at_end=True).claims(find)


def test_quiet_at_world_size_1_and_without_a_wrapper():
    assert not job([8], world=1).claims(find)
    assert not job([8], forward="forward").claims(find)


def test_one_bucket_of_everything():
    (claim,) = find(job([8]).build())
    assert claim.certainty == "likely"
    assert claim.evidence["share_of_gradients"] == 1.0
    assert claim.evidence["exposed_ms_per_step"] == pytest.approx(0.8)
    # all but the last layer's, 100 us, could be sent before
    assert claim.evidence["could_hide_ms_per_step"] == pytest.approx(0.7, abs=0.01)
    assert "bucket_cap_mb" in claim.fix.code
    (edit,) = claim.edits
    assert edit.kind == "overlap"
    assert edit.remains(hopeful=True) == pytest.approx(0.125, abs=0.01)


def test_a_small_first_bucket_changes_little():
    (claim,) = find(job([1, 7]).build())
    assert claim.evidence["share_of_gradients"] == pytest.approx(7 / 8)


def test_sizes_may_be_missing():
    (claim,) = find(job([8], sizes=False).build())
    assert "bytes_of_last" not in claim.evidence
    assert not np.any(claim.gain_low)


def test_a_unit_that_is_the_whole_model():
    (claim,) = find(job([8], forward="FSDP::root_pre_forward", op="c10d::_reduce_scatter_base_").build())
    assert "fully_shard" in claim.fix.code

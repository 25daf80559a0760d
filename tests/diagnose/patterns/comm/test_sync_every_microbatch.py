"""COM038: gradients reduced after every micro-batch."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.comm import many_small_collectives, sync_every_microbatch
from torchtriage.diagnose.patterns.comm.sync_every_microbatch import find

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
DDP = "DistributedDataParallel.forward"


def job(*, rounds=4, reduced=None, forward=DDP, backward=True, ops=None, sizes=None, world=2):
    """Add 4 steps of 4 ms; each round: forward, backward, one all-reduce of 100 us, exposed.

    ``reduced`` : which rounds reduce (all). ``ops`` : operators inside the forward of each round.
    """
    builder = TraceBuilder(distributedInfo={"rank": 0, "world_size": world, "backend": "nccl"})
    for index in range(4):
        at = 4000.0 * index
        builder.step(index, at, 3990)
        for k in range(rounds):
            begin = at + 20 + 800 * k
            builder.annotation(forward, begin, 100)
            for one in range((ops or [3] * rounds)[k]):
                builder.op("aten::linear", begin + 5 + 10 * one, 8)
            builder.launch(begin + 10, 2, begin + 20, 100)
            node = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
            if backward:
                builder.op(node, begin + 200, 100)
            if reduced is None or k in reduced:
                builder.op("c10d::allreduce_", begin + 220, 20)
                builder.launch(
                    begin + 222,
                    2,
                    begin + 300,
                    100,
                    name=NCCL,
                    stream=20,
                    **{
                        "Collective name": "allreduce",
                        "In msg nelems": (sizes or [1024] * rounds)[k],
                        "dtype": "Float",
                    },
                )
        builder.annotation("Optimizer.step#SGD.step", at + 3500, 100)
    return builder


def test_quiet_with_no_sync():
    assert not job(reduced={3}).claims(find)


def test_quiet_with_one_round():
    assert not job(rounds=1).claims(find)


def test_quiet_on_several_forwards_before_one_backward():
    assert not job(rounds=2, reduced={1}).claims(find)
    assert not job(rounds=2, backward=False).claims(find)


def test_quiet_on_models_that_take_turns():
    assert not job(rounds=2, ops=[3, 5]).claims(find)
    assert not job(rounds=2, sizes=[1024, 2048]).claims(find)


def test_quiet_at_world_size_1():
    assert not job(world=1).claims(find)


def test_quiet_on_the_projection_of_a_forward_on_the_device():
    builder = job(rounds=1)
    for index in range(4):
        builder.event(DDP, "gpu_user_annotation", 4000 * index + 30, 100, pid=0, tid=7)
    assert not builder.claims(find)


def test_all_rounds_but_the_last_are_claimed():
    trace = job().build()
    (claim,) = find(trace)
    assert claim.certainty == "likely"
    # the window before the first optimizer step may be cut: three whole ones
    assert (claim.spans[:, 1] - claim.spans[:, 0]).tolist() == [100_000] * 9
    assert (claim.gain_low, claim.gain_high) == (0.5, 1.0)
    assert claim.evidence["backward_passes_per_optimizer_step"] == 4
    assert claim.evidence["n_collectives_per_backward_pass"] == 1
    assert claim.evidence["bytes_per_backward_pass"] == 4096
    assert claim.evidence["exposed_ms_per_step"] == pytest.approx(0.3)
    kernels, calls = claim.edits
    assert len(kernels.rows) == len(calls.rows) == 9
    assert set(kernels.remains(hopeful=False).tolist()) == {0.5}
    assert set(kernels.remains(hopeful=True).tolist()) == {0.0}
    assert {trace.name_of(row) for row in calls.rows.tolist()} == {"c10d::allreduce_"}


@pytest.mark.parametrize("forward", ["FullyShardedDataParallel.forward", "FSDP::root_pre_forward"])
def test_sharded_is_a_hint_because_of_memory(forward):
    (claim,) = find(job(forward=forward).build())
    assert claim.certainty == "hint"
    assert claim.gain_low == 0.0
    assert "FSDP" in claim.fix.code


def test_small_messages_of_every_micro_batch_are_first_those_of_every_micro_batch():
    assert sync_every_microbatch.PATTERN.order < many_small_collectives.PATTERN.order

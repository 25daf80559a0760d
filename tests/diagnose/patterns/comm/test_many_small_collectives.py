"""COM037: many small collectives, barriers and object collectives in every step."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.comm.many_small_collectives import BUCKET_BYTES, find

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
GLOO = 900


def job(*, n=25, nelems=1024, dur=20.0, training=True, between=1, world=2, steps=5):
    """Add steps of 2 ms: 100 us of computation, then ``n`` collectives of ``dur`` each."""
    builder = TraceBuilder(distributedInfo={"rank": 0, "world_size": world, "backend": "nccl"})
    extra = {} if nelems is None else {"Collective name": "allreduce", "In msg nelems": nelems, "dtype": "Float"}
    for index in range(5):
        at = 2000.0 * index
        builder.step(index, at, 1990)
        builder.op("AddmmBackward0" if training else "aten::mm", at + 5, 10)
        builder.launch(at + 8, 2, at + 20, 100)
        for k in range(n):
            enqueue = at + 130 + 20 * k
            builder.op("c10d::allreduce_", enqueue, 8)
            builder.launch(enqueue + 2, 2, at + 200 + 50 * k, dur, name=NCCL, stream=20, **extra)
            for one in range(between):
                builder.op("aten::div_", enqueue + 10 + one, 0.5)
    return builder


def cpu_job(*, n=25, shape=(256,), waits=True):
    """Add CPU-only steps: ``n`` gloo collectives of 30 us, one after the other."""
    builder = TraceBuilder(vendor="cpu", distributedInfo={"rank": 0, "world_size": 2, "backend": "gloo"})
    for index in range(5):
        at = 2000.0 * index
        builder.step(index, at, 1990)
        builder.op("AddmmBackward0", at + 5, 100)
        for k in range(n):
            begin = at + 150 + 50 * k
            builder.op("c10d::allreduce_", begin, 5)
            args = {"Input Dims": [list(shape)], "Input type": ["float"]} if shape else {}
            builder.event("gloo:all_reduce", "user_annotation", begin + 2, 30, tid=GLOO, **args)
            builder.op("aten::div_", begin + (35 if waits else 5), 5 if waits else 40)
    return builder


def test_quiet_on_few():
    assert not job(n=19).claims(find)


def test_quiet_on_large_messages():
    assert not job(nelems=1 << 18).claims(find)


def test_quiet_on_long_kernels_of_unknown_size():
    assert not job(nelems=None, dur=25).claims(find)


def test_quiet_in_inference():
    assert not job(training=False).claims(find)


@pytest.mark.parametrize("label", ["send", "coalesced", ""])
def test_quiet_on_what_stages_send_each_other(label):
    builder = job()
    for event in builder.events:
        if event["name"] == "c10d::allreduce_":
            event["name"] = "c10d::send" if event["ts"] % 40 < 20 else "c10d::recv_"
        if event.get("args", {}).get("Collective name"):
            event["args"]["Collective name"] = label
    assert not builder.claims(find)


def test_quiet_on_what_fsdp_gathers_for_each_unit():
    builder = job()
    for event in [event for event in builder.events if event["name"] == "c10d::allreduce_"]:
        event["name"] = "c10d::_allgather_base_"
        builder.annotation(f"FSDP::all_gather (layers.{event['ts'] % 2000:.0f})", event["ts"] - 1, 10)
    assert not builder.claims(find)


def test_quiet_at_world_size_1():
    assert not job(world=1).claims(find)


def test_where_computation_hides_them_nothing_is_promised():
    (claim,) = find(cpu_job(waits=False).build())
    assert not len(claim.spans)
    assert claim.certainty == "hint"


def test_where_computation_hides_most_of_them_low_is_nothing():
    builder = job()
    for index in range(5):
        builder.launch(2000 * index + 125, 2, 2000 * index + 190, 850, name="gemm")
    (claim,) = find(builder.build())
    # 17 of 25 have a computation beside them
    assert (claim.spans[:, 1] - claim.spans[:, 0]).sum() == 5 * 8 * 20_000
    assert claim.certainty == "hint"
    assert not np.any(claim.gain_low)


def test_collectives_that_layers_need_are_a_hint_without_a_promise():
    (claim,) = find(job(between=4).build())
    assert claim.certainty == "hint"
    assert not np.any(claim.gain_low)


def test_one_bucket_instead():
    (claim,) = find(job().build())
    assert claim.certainty == "likely"
    assert claim.time_class == "comm"
    assert (claim.spans[:, 1] - claim.spans[:, 0]).tolist() == [20_000] * 125
    # all alike: each of them is as short as the shortest, and one of 25 stays
    assert np.allclose(claim.gain_high, 1 - 1 / 25)
    assert np.allclose(claim.gain_low, (1 - 1 / 25) ** 2)
    assert claim.evidence["n_small_per_step"] == 25
    assert claim.evidence["median_bytes"] == 4096
    assert claim.evidence["bytes_per_step"] == 25 * 4096
    assert claim.evidence["share_back_to_back"] == 1.0


def test_a_large_message_shows_what_the_wire_can_do():
    builder = job()
    for index in range(5):
        at = 2000.0 * index
        builder.op("c10d::allreduce_", at + 800, 8)
        builder.launch(
            at + 802,
            2,
            at + 1500,
            100,
            name=NCCL,
            stream=20,
            **{"Collective name": "allreduce", "In msg nelems": 1 << 20, "dtype": "Float"},
        )
    (claim,) = find(builder.build())
    # 4 MiB in 100 us: 4 KiB takes 0.098 us of the 20
    assert np.allclose(claim.gain_high, 1 - 4096 / ((4 << 20) / 100) / 20)
    assert np.allclose(claim.gain_low, claim.gain_high * (1 - 1 / 25))
    assert claim.evidence["n_collectives_per_step"] == 26
    assert claim.evidence["bytes_per_step"] < BUCKET_BYTES


def test_unknown_sizes_are_judged_by_duration():
    (claim,) = find(job(nelems=None, dur=15).build())
    assert np.allclose(claim.gain_high, 1 - 1 / 25)
    assert np.allclose(claim.gain_low, (1 - 1 / 25) ** 2)
    assert "median_bytes" not in claim.evidence


@pytest.mark.parametrize("nelems", [10**30, -5, "many"])
def test_sizes_nobody_can_have_sent_are_unknown(nelems):
    (claim,) = find(job(nelems=nelems, dur=15).build())
    assert "median_bytes" not in claim.evidence


def test_on_the_host_only_what_it_waits_for():
    (claim,) = find(cpu_job().build())
    assert claim.time_class == "host"
    assert (claim.spans[:, 1] - claim.spans[:, 0]).tolist() == [30_000] * 125
    assert claim.evidence["exposed_ms_per_step"] == pytest.approx(0.75)
    (edit,) = claim.edits
    # the wait of the main thread goes, not the work of the thread that sends
    assert (edit.kind, edit.hopeful) == ("threads", pytest.approx(1 / 25))
    assert np.array_equal(edit.spans, claim.spans)


def barrier_job(*, every=1):
    builder = cpu_job(n=1, shape=None)
    for index in range(0, 5, every):
        at = 2000.0 * index + 1000
        builder.op("c10d::barrier", at, 5)
        builder.event("gloo:barrier", "user_annotation", at + 2, 100.0, tid=GLOO)
    return builder


def test_quiet_on_a_barrier_now_and_then():
    assert not barrier_job(every=3).claims(find)


def test_a_barrier_in_every_step():
    (claim,) = find(barrier_job().build())
    assert claim.evidence["n_barriers_per_step"] == 1
    assert (claim.spans[:, 1] - claim.spans[:, 0]).tolist() == [100_000] * 5
    assert not claim.gain_low.any()
    assert "barrier" in claim.fix.code


def broadcast_job(*, long=200.0, every=1):
    builder = cpu_job(n=1, shape=None)
    for index in range(0, 5, every):
        at = 2000.0 * index + 1000
        builder.annotation("DistributedDataParallel.forward", at - 5, 700)
        builder.op("c10d::broadcast_", at, 5)
        builder.event("gloo:broadcast", "user_annotation", at + 2, long, tid=GLOO)
    return builder


def test_quiet_on_broadcasts_that_are_short_or_rare():
    assert not broadcast_job(long=90.0).claims(find)
    assert not broadcast_job(every=3).claims(find)


def test_a_broadcast_in_every_step():
    (claim,) = find(broadcast_job().build())
    assert claim.message.startswith("1 broadcast per step: 200 µs")
    assert not claim.gain_low.any()
    assert "broadcast_buffers=False" in claim.fix.code


def test_of_buffers_the_transfer_goes_for_sure():
    builder = cpu_job(n=1, shape=None)
    args = {"Input Dims": [[1 << 20]], "Input type": ["float"]}
    for index, long in enumerate((200.0, 150.0, 300.0, 200.0, 150.0)):
        at = 2000.0 * index + 1000
        builder.annotation("DistributedDataParallel.forward", at - 5, 700)
        builder.op("c10d::broadcast_", at, 5)
        builder.event("gloo:broadcast", "user_annotation", at + 2, long, tid=GLOO, **args)
    (claim,) = find(builder.build())
    assert claim.gain_low.tolist() == pytest.approx([150 / 200, 1.0, 0.5, 150 / 200, 1.0], rel=0.01)


def objects_job(*, read=True, forward=False):
    builder = cpu_job(n=1, shape=None)
    for index in range(5):
        at = 2000.0 * index + 1000
        if forward:
            builder.annotation("DistributedDataParallel.forward", at - 5, 500)
        for k in range(2):
            builder.op("c10d::allgather_", at + 100 * k, 5)
            builder.event("gloo:all_gather", "user_annotation", at + 100 * k + 2, 50, tid=GLOO)
        if read:
            builder.op("aten::item", at + 60, 2)
    return builder


def test_quiet_on_two_collectives_without_a_read_between():
    assert not objects_job(read=False).claims(find)


def test_quiet_on_what_ddp_does_before_its_forward():
    assert not objects_job(forward=True).claims(find)


def test_an_object_collective_in_every_step():
    (claim,) = find(objects_job().build())
    assert claim.evidence["n_object_collectives_per_step"] == 1
    assert claim.evidence["exposed_ms_per_step"] == pytest.approx(0.1)
    assert claim.message.startswith("1 object collective per step")

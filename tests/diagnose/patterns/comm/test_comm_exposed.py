"""COM035: communication without computation beside it."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.comm.comm_exposed import find

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def job(
    *,
    world=8,
    exposed=200.0,
    hidden=0.0,
    comm=NCCL,
    stream=20,
    training=True,
    late=False,
    size=1 << 20,
    steps=5,
    durs=None,
    vendor="cuda",
):
    """Add steps of 1 ms: 500 us of computation, then a collective, then 100 us of computation."""
    builder = TraceBuilder(vendor=vendor, distributedInfo={"rank": 0, "world_size": world, "backend": "nccl"})
    extra = {} if size is None else {"Collective name": "allreduce", "In msg nelems": size, "dtype": "Float"}
    for index in range(steps):
        at = 1000.0 * index
        dur = (exposed + hidden) if durs is None else durs[index]
        builder.step(index, at, 990)
        if training:
            builder.op("AddmmBackward0", at + 1, 5)
        builder.launch(at + 10, 5, at + 50, 500)
        end = at + 550 - hidden + dur
        builder.launch(at + 20, 5, at + 550 - hidden, dur, name=comm, stream=stream, **extra)
        # late: the host launches the next computation only after the collective has ended
        builder.launch(end + 5 if late else at + 30, 5, end + 20, 100)
    return builder


def test_quiet_below_a_tenth():
    assert not job(exposed=80).claims(find)


def test_quiet_when_hidden():
    assert not job(exposed=0, hidden=400).claims(find)


def test_quiet_at_world_size_1():
    assert not job(world=1).claims(find)


def test_quiet_on_other_kernels():
    assert not job(comm="void elementwise_kernel<float>", size=None).claims(find)


def test_quiet_without_any_computation():
    builder = TraceBuilder()
    builder.launch(0, 5, 10, 200, name=NCCL)
    builder.launch(20, 5, 250, 200, name=NCCL)
    assert not builder.claims(find)


@pytest.mark.parametrize("size", [[1, 2], {"a": 1}, "many", 10**30, -5])
def test_sizes_of_any_type_are_compared(size):
    (claim,) = find(job(size=size, durs=[200, 250, 300, 350, 400]).build())
    shares = [200 / dur for dur in (200, 250, 300, 350, 400)]
    assert claim.gain_low.tolist() == pytest.approx(shares, abs=0.01)


def test_high_is_all_that_is_exposed():
    trace = job().build()
    (claim,) = find(trace)
    assert claim.time_class == "comm"
    assert claim.certainty == "likely"
    assert claim.gain_high == 1.0
    assert (claim.spans[:, 1] - claim.spans[:, 0]).tolist() == [200_000] * 5
    assert claim.evidence["exposed_ms_per_step"] == pytest.approx(0.2)
    assert claim.evidence["n_collectives_per_step"] == 1
    assert claim.evidence["top_exposed_ms_per_step"] == {"allreduce": pytest.approx(0.2)}
    assert "torchtriage analyze FOLDER" in claim.fix.text
    assert "beyond" not in claim.message


def test_what_is_beyond_the_fastest_of_equal_messages_is_said():
    (claim,) = find(job(durs=[200, 300, 400, 300, 200]).build())
    assert "beyond" not in claim.message
    (claim,) = find(job(durs=[100, 300, 300, 300, 300]).build())
    assert claim.message.endswith("; 200 µs of it is more than the fastest equal message took")
    assert claim.evidence["beyond_fastest_ms_per_step"] == pytest.approx(0.2)


def test_only_the_exposed_part_is_claimed():
    (claim,) = find(job(exposed=150, hidden=250).build())
    assert (claim.spans[:, 1] - claim.spans[:, 0]).tolist() == [150_000] * 5


def test_low_is_what_the_fastest_equal_message_took():
    (claim,) = find(job(durs=[200, 300, 400, 300, 200]).build())
    assert np.allclose(claim.gain_low, [1, 2 / 3, 1 / 2, 2 / 3, 1])


def test_low_is_nothing_without_sizes():
    (claim,) = find(job(size=None).build())
    assert not np.any(claim.gain_low)


def test_low_is_nothing_where_the_host_was_late_anyway():
    (claim,) = find(job(late=True).build())
    assert not np.any(claim.gain_low)


def test_inference_is_a_hint_without_a_promise():
    (claim,) = find(job(training=False).build())
    assert claim.certainty == "hint"
    assert not np.any(claim.gain_low)


@pytest.mark.parametrize(
    "name",
    [
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>",
        "ncclDevKernel_Generic(ncclDevKernelArgs)",
    ],
)
def test_custom_kernels_on_the_compute_stream_count(name):
    assert job(comm=name, size=None, stream=7, training=False).claims(find)


def test_overlapping_collectives_are_counted_once():
    builder = job()
    for index in range(5):
        builder.launch(1000 * index + 25, 3, 1000 * index + 600, 250, name=NCCL, stream=21)
    (claim,) = find(builder.build())
    starts, ends = claim.spans[:, 0], claim.spans[:, 1]
    assert (starts[1:] >= ends[:-1]).all()
    # 550-850 of each step, less the computation at 770-870
    assert (ends - starts).sum() == 5 * 220_000


GLOO = 900


def cpu_job(*, waits=300.0, hidden=False, elsewhere=0.0, training=True, ends=True, dims=None):
    """Add CPU-only steps of 1 ms: 500 us of computation, then nothing until a collective ends."""
    builder = TraceBuilder(vendor="cpu", distributedInfo={"rank": 0, "world_size": 2, "backend": "gloo"})
    args = {"Input Dims": dims, "Input type": ["float"]} if dims else {}
    for index in range(5):
        at = 1000.0 * index
        builder.step(index, at, 990)
        builder.op("aten::mm" if not training else "AddmmBackward0", at + 10, 435)
        builder.op("c10d::allreduce_", at + 445, 5)
        builder.op("aten::mm", at + 450, 50)
        end = at + 500 + (waits if ends else 480)
        builder.event("gloo:all_reduce", "user_annotation", at + 460, end - at - 460, tid=GLOO, **args)
        if hidden:
            builder.op("aten::mm", at + 500, waits)
        builder.op("aten::add_", at + 500 + waits + elsewhere, 100)
    return builder


def test_on_the_host_quiet_when_hidden():
    assert not cpu_job(hidden=True).claims(find)


def test_on_the_host_quiet_where_the_host_goes_on_before_the_collective_ends():
    assert not cpu_job(ends=False).claims(find)


def test_on_the_host_quiet_below_a_tenth():
    assert not cpu_job(waits=90).claims(find)


def test_on_the_host_quiet_where_nothing_trains():
    assert not cpu_job(training=False).claims(find)


def test_on_the_host_only_the_wait_is_claimed():
    (claim,) = find(cpu_job(elsewhere=50).build())
    assert claim.time_class == "host"
    assert claim.certainty == "likely"
    assert (claim.spans[:, 1] - claim.spans[:, 0]).tolist() == [300_000] * 5
    # steady steps last 1000 us but for the last, which ends with its annotation
    assert claim.evidence["exposed_ms_per_step"] == pytest.approx(0.3)
    assert claim.evidence["exposed_share_of_communication"] == pytest.approx(300 / 340, abs=1e-6)
    assert not np.any(claim.gain_low)


def test_on_the_host_low_is_what_the_fastest_equal_message_took():
    (claim,) = find(cpu_job(dims=[[1024]]).build())
    assert np.allclose(claim.gain_low, 1.0)


def test_on_the_host_time_in_an_op_that_enqueues_is_waiting_too():
    builder = cpu_job()
    for index in range(5):
        builder.op("_AllReduceBackward", 1000 * index + 445, 355)
    (claim,) = find(builder.build())
    assert (claim.spans[:, 1] - claim.spans[:, 0]).tolist() == [300_000] * 5


def test_a_wait_belongs_to_the_collective_that_ends_it():
    builder = cpu_job()
    for index in range(5):
        builder.event("gloo:all_gather", "user_annotation", 1000 * index + 480, 120, tid=GLOO + 1)
    (claim,) = find(builder.build())
    assert (claim.spans[:2, 1] - claim.spans[:2, 0]).tolist() == [100_000, 200_000]
    assert claim.evidence["top_exposed_ms_per_step"] == {
        "all_reduce": pytest.approx(0.2),
        "all_gather": pytest.approx(0.1),
    }


def test_low_is_no_more_than_there_is_to_hide_behind():
    builder = TraceBuilder(vendor="cpu")
    for index in range(5):
        at = 1000.0 * index
        builder.step(index, at, 1000)
        builder.op("AddmmBackward0", at + 10, 100)
        builder.op("c10d::allreduce_", at + 115, 5)
        args = {"Input Dims": [[1024]], "Input type": ["float"]}
        builder.event("gloo:all_reduce", "user_annotation", at + 120, 700, tid=GLOO, **args)
        builder.op("aten::add_", at + 820, 50)
    (claim,) = find(builder.build())
    # each is as fast as the fastest, but only 150 us of computation per step are without it
    assert (claim.spans[:, 1] - claim.spans[:, 0]).tolist() == [700_000] * 5
    assert np.allclose(claim.gain_low, 150 / 700)


@pytest.mark.parametrize(("others", "least", "most"), [(False, 40, 60), (True, 100, 160)])
def test_gradients_hide_behind_what_follows_the_first_of_them_alone(others, least, most):
    builder = TraceBuilder(vendor="cpu")
    node = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    for index in range(5):
        at = 1000.0 * index
        builder.step(index, at, 1000)
        builder.op("DistributedDataParallel.forward", at + 5, 95)
        builder.op("aten::mm", at + 10, 80)
        builder.op(node, at + 110, 2)
        builder.op("aten::mm", at + 115, 40)
        builder.op(node, at + 160, 12)
        builder.op("c10d::allreduce_", at + 162, 5)
        args = {"Input Dims": [[1024]], "Input type": ["float"]}
        builder.event("gloo:all_reduce", "user_annotation", at + 170, 600, tid=GLOO, **args)
        builder.op("aten::add_", at + 775, 5)
        if others:  # hide behind all that is computed, and no time is given twice
            builder.op("c10d::allreduce_", at + 785, 5)
            builder.event("gloo:all_reduce", "user_annotation", at + 791, 190, tid=GLOO, **args)
            builder.op("aten::add_", at + 988, 5)
    (claim,) = find(builder.build())
    waits = claim.spans[:, 1] - claim.spans[:, 0]
    # behind the first gradient: the other product and the ends of both nodes
    hidden_us = float((claim.gain_low * waits).sum()) / 5000
    assert least <= hidden_us <= most


def layers(builder: TraceBuilder, product: str, around: str = "") -> TraceBuilder:
    """Add four steps of a CPU job, each of six layers: 100 us of ``product``, then 50 us until an all-reduce ends."""
    for index in range(4):
        at = 1000.0 * index
        builder.step(index, at, 1000)
        builder.op("AddmmBackward0", at + 1, 9)
        for layer in range(6):
            begin = at + 10 + 160 * layer
            builder.op(product, begin, 100)
            if around:
                builder.annotation(around, begin + 100, 55)
            builder.op("c10d::allreduce_", begin + 101, 3)
            builder.event("gloo:all_reduce", "user_annotation", begin + 104, 46, tid=GLOO)
    return builder


def test_what_other_patterns_judge_is_left_to_them():
    assert layers(TraceBuilder(vendor="cpu"), "aten::cumsum").claims(find)
    assert not layers(TraceBuilder(vendor="cpu"), "aten::mm").claims(find)
    reduces = "FSDP::post_backward_reduce"
    assert not layers(TraceBuilder(vendor="cpu"), "aten::cumsum", reduces).claims(find)


def test_gradients_that_are_reduced_one_by_one_are_not_tensor_parallel():
    builder = TraceBuilder(vendor="cpu")
    for index in range(4):
        at = 1000.0 * index
        builder.step(index, at, 1000)
        builder.op("autograd::engine::evaluate_function: AddmmBackward0", at + 1, 500)
        builder.op("aten::mm", at + 5, 400)
        for place in range(8):
            begin = at + 510 + 50 * place
            builder.op("c10d::allreduce_", begin, 3)
            builder.event("gloo:all_reduce", "user_annotation", begin + 3, 45, tid=GLOO)
    (claim,) = find(builder.build())
    assert claim.evidence["n_collectives_per_step"] == 8
    assert claim.evidence["exposed_share_of_communication"] == pytest.approx(1.0, abs=0.01)

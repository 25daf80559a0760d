"""COM077: float32 messages of layers that compute in half precision; times in microseconds."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.comm.float32_messages import find

HOOK = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
SIDE = 1024
SHARD = SIDE * SIDE // 8


def cast_weight(builder, at, *, target="15", side=SIDE, shapes=True):
    """Add a linear layer under autocast: its weight and its input are cast in front of the product."""
    if not shapes:
        builder.op("aten::linear", at, 20).op("aten::_to_copy", at + 2, 5).op("aten::linear", at + 8, 5)
        return
    types = ["float", "float", ""]
    builder.op("aten::linear", at, 20, dims=[[4, side], [side, side], []], types=types, concrete=["", "", ""])
    for place, shape in enumerate(([side, side], [4, side])):
        builder.op(
            "aten::_to_copy", at + 2 + 6 * place, 5, dims=[shape, []], types=["float", "Scalar"], concrete=["", target]
        )


def sharded_layer(builder, at, **how):
    """Add the forward of a module that FSDP2 gathers parameters for."""
    builder.annotation("FSDP::pre_forward (layers.0)", at - 3, 2)
    cast_weight(builder, at, **how)
    builder.annotation("FSDP::post_forward (layers.0)", at + 21, 2)


def sharded(
    *, shapes=True, dtype="Float", casts=True, layers=3, shard=SHARD, world=8, root=False, period=20_000.0, side=SIDE
):
    """Add four steps of FSDP2 on a GPU: gathers of 400 us and reductions of 600 us, all exposed, then computation."""
    builder = TraceBuilder(distributedInfo={"rank": 0, "world_size": world, "backend": "nccl"})
    for index in range(4):
        at = period * index
        builder.step(index, at, period - 10)
        builder.op("AddmmBackward0", at + 1, 1)
        host, done = at + 10, at + 200
        builder.annotation("FSDP::root_pre_forward", host, 5)
        # small parameters of the root unit show what a message takes at least
        for unit, size, us in [(9, shard // 64, 100)] * root + [(unit, shard, 400) for unit in range(layers)]:
            builder.annotation(f"FSDP::all_gather (layers.{unit})", host + 10, 40)
            builder.op("c10d::_allgather_base_", host + 15, 20)
            sized = {"Collective name": "_allgather_base", "In msg nelems": size, "dtype": dtype}
            builder.launch(host + 20, 5, done, us, name="ncclDevKernel_AllGather_RING_LL", stream=20, **sized)
            if casts:
                sharded_layer(builder, host + 55, side=side, shapes=shapes)
            builder.launch(host + 90, 5, done + us, 200)
            host, done = host + 100, done + us + 200
        for unit in range(layers):
            builder.annotation(f"FSDP::post_backward_reduce (layers.{unit})", host + 10, 40)
            builder.op("c10d::_reduce_scatter_base_", host + 15, 20)
            sized = {"Collective name": "_reduce_scatter_base", "In msg nelems": 8 * shard, "dtype": dtype}
            builder.launch(host + 20, 5, done, 600, name="ncclDevKernel_ReduceScatter_Sum_f32", stream=21, **sized)
            host, done = host + 100, done + 600
        builder.launch(host, 5, done, 100)
    return builder


def test_quiet_in_float32_throughout():
    assert not sharded(casts=False).claims(find)


def test_quiet_where_parameters_travel_in_half_precision():
    assert not sharded(dtype="BFloat16").claims(find)


def test_quiet_where_gradients_alone_stay_in_float32():
    builder = sharded()
    for event in builder.events:
        if event.get("args", {}).get("Collective name") == "_allgather_base":
            event["args"]["dtype"] = "BFloat16"
    assert not builder.claims(find)


def test_quiet_where_other_layers_compute_in_half_precision():
    # what is cast is a sixteenth of what is gathered
    assert not sharded(side=SIDE // 4).claims(find)


@pytest.mark.parametrize("shapes", [True, False])
def test_quiet_where_a_model_that_does_not_communicate_is_cast(shapes):
    for builder, period in ((sharded(casts=False), 20_000.0), (replicated(casts=False), 8_000.0)):
        for index in range(4):
            for layer in range(3):
                cast_weight(builder, period * index + 1_000 + 30 * layer, shapes=shapes)
        assert not builder.claims(find)


def test_another_model_s_type_is_not_the_one_of_the_layers():
    builder = replicated(target="5")
    for index in range(4):
        cast_weight(builder, 8_000.0 * index + 1_000, side=2 * SIDE)
    (claim,) = builder.claims(find)
    assert claim.evidence["computes_in"] == "float16"


def test_quiet_where_the_factors_of_attention_are_cast():
    builder = sharded(casts=False)
    query, key = [8, 16, SIDE, 64], [8, 16, 64, SIDE]
    for index in range(4):
        at = 20_000.0 * index + 1_000
        builder.annotation("FSDP::pre_forward (layers.0)", at - 10, 5)
        builder.annotation("FSDP::post_forward (layers.0)", at + 30, 5)
        builder.op("aten::matmul", at, 20, dims=[query, key], types=["float", "float"], concrete=["", ""])
        for place, shape in enumerate((query, key)):
            cast = {"dims": [shape, []], "types": ["float", "Scalar"], "concrete": ["", "15"]}
            builder.op("aten::_to_copy", at + 2 + 6 * place, 5, **cast)
    assert not builder.claims(find)


def test_quiet_where_micro_batches_cast_a_quarter_each():
    builder = sharded(side=SIDE // 2)
    for index in range(4):
        for turn in range(1, 4):
            at = 20_000.0 * index + 1_000 * turn
            builder.annotation("FSDP::root_pre_forward", at, 5)
            for layer in range(3):
                sharded_layer(builder, at + 10 + 30 * layer, side=SIDE // 2)
    assert not builder.claims(find)


def test_quiet_where_the_backward_pass_casts_a_quarter_again():
    builder = sharded(side=SIDE // 2)
    for index in range(4):
        for layer in range(3):
            at = 20_000.0 * index + 1_000 + 50 * layer
            builder.op("autograd::engine::evaluate_function: CheckpointFunctionBackward", at, 40)
            sharded_layer(builder, at + 10, side=SIDE // 2)
    assert not builder.claims(find)


def test_quiet_where_nobody_knows_how_much_is_gathered():
    builder = sharded()
    for event in builder.events:
        event.get("args", {}).pop("In msg nelems", None)
    assert not builder.claims(find)


def test_quiet_where_the_gathers_take_little():
    assert not sharded(period=60_000.0).claims(find)


def test_quiet_at_world_size_1():
    assert not sharded(world=1).claims(find)


def test_half_of_the_exposed_transfer_may_go():
    trace = sharded().build()
    (claim,) = find(trace)
    assert (claim.certainty, claim.time_class) == ("likely", "comm")
    assert claim.evidence["float32_gathers_per_step"] == 3
    assert claim.evidence["exposed_ms_per_step"] == pytest.approx(1.2)
    assert claim.evidence["exposed_reductions_ms_per_step"] == pytest.approx(1.8)
    assert claim.evidence["computes_in"] == "bfloat16"
    assert (claim.spans[:, 1] - claim.spans[:, 0]).tolist() == ([200_000] * 3 + [300_000] * 3) * 4
    assert "AllGather" in trace.name_of(claim.anchor)
    (edit,) = claim.edits
    assert edit.kind == "shrink"
    assert set(edit.remains(hopeful=True).tolist()) == {0.5}
    assert "param_dtype=torch.bfloat16" in claim.fix.code


def test_the_ranges_of_fsdp1_are_known_too():
    builder = sharded()
    builder.events = [event for event in builder.events if not event["name"].endswith("_forward (layers.0)")]
    for index in range(4):
        builder.annotation("FullyShardedDataParallel.forward", 20_000.0 * index + 5, 305)
    for event in builder.events:
        if event["name"].startswith("FSDP::"):
            what = "_pre_forward" if "all_gather" in event["name"] else "_post_backward_hook"
            what = "_root_pre_forward" if "root" in event["name"] else what
            event["name"] = f"FullyShardedDataParallel.{what}"
    (claim,) = builder.claims(find)
    assert claim.evidence["exposed_ms_per_step"] == pytest.approx(1.2)
    assert claim.evidence["exposed_reductions_ms_per_step"] == pytest.approx(1.8)


def test_sure_is_what_grows_with_the_bytes_of_the_gathers():
    (claim,) = sharded(root=True).claims(find)
    # 300 us more for 63/64 of the bytes: 304.8 of 400 us; nothing for reductions, which are an option
    gain = np.asarray(claim.gain_low).reshape(4, 7)
    assert gain[:, 0] == pytest.approx(0)
    assert gain[:, 1:4] == pytest.approx(300 / 400 * 64 / 63)
    assert gain[:, 4:] == pytest.approx(0)


def test_nothing_is_sure_where_all_messages_are_as_large():
    builder = sharded()
    for event in builder.events:
        if "In msg nelems" in event.get("args", {}):
            event["args"]["In msg nelems"] = SHARD
    (claim,) = builder.claims(find)
    assert not np.any(claim.gain_low)


def test_without_shapes_layers_that_cast_are_a_hint():
    (claim,) = sharded(shapes=False).claims(find)
    assert (claim.certainty, claim.evidence["computes_in"]) == ("hint", "half-precision")
    builder = sharded(shapes=False)
    for index in range(4):
        builder.annotation("FSDP::pre_forward (layers.0)", 20_000.0 * index + 1_990, 5)
        builder.annotation("FSDP::post_forward (layers.0)", 20_000.0 * index + 2_090, 5)
        for layer in range(4):
            builder.op("aten::linear", 20_000.0 * index + 2_000 + 20 * layer, 10)
    assert not builder.claims(find)


def on_the_host(*, dtype="float"):
    """Add four steps of FSDP2 over gloo, three gathers of 2 ms each."""
    builder = TraceBuilder(vendor="cpu", distributedInfo={"rank": 0, "world_size": 2, "backend": "gloo"})
    for index in range(4):
        at = 20_000.0 * index
        builder.step(index, at, 19_900)
        builder.op("AddmmBackward0", at + 1, 1)
        builder.annotation("FSDP::root_pre_forward", at + 10, 5)
        at += 100
        for unit in range(3):
            builder.annotation(f"FSDP::all_gather (layers.{unit})", at, 3000)
            builder.op("c10d::_allgather_base_", at + 500, 50, dims=[[8192], [4096]], types=[dtype, dtype])
            sized = {"Input Dims": [[4096]], "Input type": [dtype]}
            builder.event("gloo:all_gather", "user_annotation", at + 560, 2000, tid=77, **sized)
            sharded_layer(builder, at + 3050, target="5", side=90)
            at += 4000
    return builder


def test_on_the_host_the_wait_halves():
    (claim,) = on_the_host().claims(find)
    assert (claim.time_class, claim.evidence["computes_in"]) == ("host", "float16")
    assert (claim.spans[:, 1] - claim.spans[:, 0]).tolist() == [1_000_000] * 12
    (edit,) = claim.edits
    assert (edit.kind, edit.best) == ("threads", 0.5)
    assert not on_the_host(dtype="c10::BFloat16").claims(find)


def test_the_fix_names_the_type_the_layers_compute_in():
    (claim,) = on_the_host().claims(find)
    assert "bfloat16" not in claim.fix.text + claim.fix.code
    assert "param_dtype=torch.float16, reduce_dtype=torch.float32" in claim.fix.code
    (claim,) = replicated(target="5").claims(find)
    assert "float16" in claim.fix.text
    assert "fp16_compress_hook" in claim.fix.code


def replicated(*, dtype="Float", casts=True, target="15", compute=300.0, passes=1):
    """Add four steps of DDP on a GPU: two all-reduces of 1 ms in a step, exposed, and some computation before them."""
    builder = TraceBuilder(distributedInfo={"rank": 0, "world_size": 8, "backend": "nccl"})
    for index in range(4):
        at = 8_000.0 * index
        builder.step(index, at, 7_990)
        for place in range(passes):
            builder.annotation("DistributedDataParallel.forward", at + 10 + 280 * place, 100)
        if casts:
            cast_weight(builder, at + 20, target=target)
        builder.launch(at + 60, 5, at + 70, compute)
        for bucket in range(2):
            host, begin = at + 200 + 100 * bucket, at + 100 + compute + 1000 * bucket
            builder.op(HOOK, host, 60)
            builder.op("c10d::allreduce_", host + 10, 40)
            sized = {"Collective name": "allreduce", "In msg nelems": SIDE * SIDE // 2, "dtype": dtype}
            builder.launch(host + 20, 5, begin, 1000, name="ncclDevKernel_AllReduce_Sum_f32", stream=20, **sized)
    return builder


def test_gradients_of_replicas_are_an_option():
    (claim,) = replicated().claims(find)
    assert claim.certainty == "hint"
    assert claim.evidence["float32_reductions_per_step"] == 2
    assert claim.evidence["exposed_reductions_ms_per_step"] == pytest.approx(2)
    assert not np.any(claim.gain_low)
    assert "bf16_compress_hook" in claim.fix.code


def test_gradients_of_replicas_are_quiet_where_computation_could_hide_them():
    assert not replicated(compute=2_500).claims(find)


def test_gradients_of_replicas_are_quiet_in_one_precision():
    assert not replicated(casts=False).claims(find)
    assert not replicated(dtype="BFloat16").claims(find)


def test_gradients_of_replicas_are_quiet_where_each_micro_batch_reduces():
    assert not replicated(passes=2).claims(find)


def test_gradients_of_replicas_are_quiet_where_micro_batches_cast_a_quarter_each():
    builder = replicated(casts=False)
    for index in range(4):
        for at in (20, 112, 137, 162):
            if at > 100:
                builder.annotation("DistributedDataParallel.forward", 8_000.0 * index + at - 1, 23)
            cast_weight(builder, 8_000.0 * index + at, side=SIDE // 2)
    assert not builder.claims(find)


def test_gradients_of_replicas_are_quiet_where_a_step_that_casts_a_third_does_not_reduce():
    builder = replicated(casts=False)
    builder.events = [
        event
        for event in builder.events
        if event["ts"] // 8_000 % 2 or not ("allreduce" in event["name"].lower() or event["name"] == HOOK)
    ]
    for index in range(4):
        cast_weight(builder, 8_000.0 * index + 20, side=SIDE * 3 // 5)
    assert not builder.claims(find)

"""COM060: collectives between the products of tensor-parallel layers."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.comm.tp_collective_not_overlapped import find

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def job(*, layers=6, world=4, between=0, around=None, comm=200, hidden=False, group=None, products=2, other=None):
    """Add four steps; each layer: a product of 300 us, then an all-reduce of its result.

    ``between`` : element-wise operators between them. ``around`` : a range around the collective. ``hidden`` : another
    stream computes meanwhile. ``other`` : an operator that launches a kernel of its own before each product.
    """
    builder = TraceBuilder(distributedInfo={"rank": 0, "world_size": world, "backend": "nccl"})
    for index in range(4):
        at = 10_000.0 * index
        builder.step(index, at, 9990)
        done = at + 200
        for layer in range(layers):
            host = at + 10 + 150 * layer
            for one in range(products):
                builder.op("aten::mm", host + 10 * one, 9)
            builder.launch(host + 5, 5, done, 300)
            if other:
                builder.op(other, host + 1, 3)
                builder.launch(host + 2, 1, done - 30, 25, other.rpartition(":")[2])
            for one in range(between):
                builder.op("aten::add", host + 22 + 5 * one, 4)
            if around:
                builder.annotation(around, host + 58, 60)
            builder.op("_c10d_functional::all_reduce", host + 60, 40)
            extra = {"Collective name": "allreduce", "In msg nelems": 1 << 20, "dtype": "Float"}
            extra |= {"Process Group Name": group, "Process Group Description": group} if group else {}
            builder.launch(host + 70, 5, done + 300, comm, name=NCCL, stream=20, **extra)
            if hidden:
                builder.launch(host + 120, 5, done + 300, comm, stream=8)
            done += 300 + comm
    return builder


def test_quiet_when_something_is_computed_beside_them():
    assert not job(hidden=True).claims(find)


def test_quiet_below_a_tenth():
    assert not job(comm=30).claims(find)


def test_quiet_far_from_a_product():
    assert not job(between=5).claims(find)


@pytest.mark.parametrize(
    "around", ["FSDP::all_gather (layers.0)", "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"]
)
def test_quiet_on_what_data_parallelism_exchanges(around):
    assert not job(around=around).claims(find)


def test_quiet_on_few_and_at_world_size_1():
    assert not job(layers=3, comm=800).claims(find)
    assert not job(world=1).claims(find)


def test_collectives_behind_products_are_claimed():
    (claim,) = find(job().build())
    assert claim.certainty == "hint"
    assert claim.gain_low == 0.0
    assert claim.evidence["n_collectives_per_step"] == 6
    assert claim.evidence["exposed_ms_per_step"] == pytest.approx(1.2)
    # three of four parts of a product of 300 us: more than the collective
    assert claim.evidence["could_hide_ms_per_step"] == pytest.approx(1.2)
    (edit,) = claim.edits
    assert edit.kind == "overlap"
    assert set(edit.remains(hopeful=False).tolist()) == {1.0}
    assert set(edit.remains(hopeful=True).tolist()) == {0.0}


def test_no_more_than_the_product_is_hidden():
    (claim,) = find(job(comm=500).build())
    assert claim.evidence["could_hide_ms_per_step"] == pytest.approx(6 * 0.225)


def test_a_group_of_that_name_needs_no_product():
    assert job(between=5, group="mesh_tp").claims(find)


def test_an_all_reduce_after_each_product_is_one_too_many():
    (claim,) = find(job(products=1).build())
    assert claim.certainty == "likely"
    assert claim.evidence["unpaired_per_step"] == 5
    assert claim.evidence["exposed_ms_per_step"] == pytest.approx(1.2)
    assert claim.gain_high == 0.5
    assert set(claim.gain_low.tolist()) == {0.5}
    assert "RowwiseParallel" in claim.fix.code


@pytest.mark.parametrize("other", ["vllm::moe_forward", "_C::cutlass_scaled_mm", "aqlm::code1x16_matvec"])
def test_an_operator_of_others_may_hold_the_second_product(other):
    (claim,) = find(job(products=1, other=other).build())
    assert "unpaired_per_step" not in claim.evidence


@pytest.mark.parametrize("other", ["aten::add", "_C::silu_and_mul", "_C::fused_add_rms_norm", "triton_poi_fused_0"])
def test_one_that_holds_no_product_is_none(other):
    (claim,) = find(job(products=1, other=other).build())
    assert claim.evidence["unpaired_per_step"] == 5

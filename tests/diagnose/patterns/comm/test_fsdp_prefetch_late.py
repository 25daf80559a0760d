"""COM057: FSDP gathers a unit's parameters when they are needed."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.comm.fsdp_prefetch_late import find

NCCL = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SIZED = {"Collective name": "_allgather_base", "In msg nelems": 1 << 20, "dtype": "Float"}


def job(*, late=True, units=4, world=8, gather=200, compute=400, first=range(4), ranges=True):
    """Add four steps; each unit: a gather of 200 us on its own stream, then 400 us of computation.

    ``late`` : each gather begins when the unit before has computed; else with it. ``ranges`` : FSDP says what it does.
    """
    builder = TraceBuilder(distributedInfo={"rank": 0, "world_size": world, "backend": "nccl"})
    for index in first:
        at = 10_000.0 * index
        builder.step(index, at, 9990)
        builder.op("AddmmBackward0", at + 1, 1)
        done = at + 100
        for unit in range(units):
            host = at + 10 + 100 * unit
            name = f" (layers.{unit})" if unit else ""
            if ranges:
                builder.annotation(f"FSDP::all_gather{name}", host, 40)
            builder.op("c10d::_allgather_base_", host + 5, 20)
            early = 0 if late or not unit else compute
            builder.launch(host + 10, 5, done - early, gather, name=NCCL, stream=20, **SIZED)
            ready = max(done, done - early + gather)
            builder.launch(host + 60, 5, ready, compute)
            done = ready + compute
    return builder


def gloo(*, early):
    """Add four steps of four units on the host: gloo gathers for 2 ms, then the unit computes for 4 ms."""
    builder = TraceBuilder(vendor="cpu", distributedInfo={"rank": 0, "world_size": 2, "backend": "gloo"})
    for index in range(4):
        at = 30_000.0 * index
        builder.step(index, at, 29_000)
        builder.op("AddmmBackward0", at + 1, 1)
        now = at + 100
        for unit in range(4):
            name = f" (layers.{unit})" if unit else ""
            builder.annotation(f"FSDP::all_gather{name}", now, 100 if early else 2100)
            builder.op("c10d::_allgather_base_", now + 10, 50, dims=[[2048], [1024]], types=["float", "float"])
            builder.event(
                "gloo:all_gather",
                "user_annotation",
                now + 60,
                2000,
                tid=77,
                **{"Input Dims": [[1024]], "Input type": ["float"]},
            )
            now += 150 if early else 2150
            builder.op("aten::addmm", now, 4000)
            now += 4050
    return builder


def test_quiet_when_each_gather_begins_a_unit_earlier():
    assert not job(late=False).claims(find)
    assert not gloo(early=True).claims(find)


def test_quiet_with_one_unit_beside_the_root():
    assert not job(units=2).claims(find)


def test_quiet_where_the_network_is_the_limit():
    # the next gather begins with the computation and outlasts it
    assert not job(late=False, gather=1000, compute=100).claims(find)


def test_quiet_without_the_ranges_of_fsdp_and_at_world_size_1():
    assert not job(ranges=False).claims(find)
    assert not job(world=1).claims(find)


def test_quiet_without_computation_before():
    assert not job(compute=5).claims(find)


def test_late_gathers_are_claimed_but_the_first_of_a_step():
    trace = job().build()
    (claim,) = find(trace)
    assert claim.certainty == "likely"
    assert claim.time_class == "comm"
    assert (claim.spans[:, 1] - claim.spans[:, 0]).tolist() == [200_000] * 12
    assert np.allclose(claim.gain_high, 1)
    assert np.allclose(claim.gain_low, 1)
    assert claim.evidence["late_gathers_per_step"] == 3
    assert claim.evidence["could_hide_ms_per_step"] == pytest.approx(0.6)
    (edit,) = claim.edits
    assert edit.kind == "overlap"
    assert len(edit.rows) == 12
    assert set(edit.remains(hopeful=True).tolist()) == {0.0}


def test_no_more_is_hidden_than_was_computed():
    (claim,) = find(job(gather=400, compute=300).build())
    assert claim.evidence["exposed_ms_per_step"] == pytest.approx(1.2)
    assert claim.evidence["could_hide_ms_per_step"] == pytest.approx(0.9)
    assert np.allclose(claim.gain_high, 0.75)


def test_on_the_host_the_low_end_is_nothing():
    (claim,) = find(gloo(early=False).build())
    assert claim.time_class == "host"
    assert claim.certainty == "hint"
    assert not np.any(claim.gain_low)
    assert claim.evidence["could_hide_ms_per_step"] == pytest.approx(6.0, rel=0.1)
    assert "unshard(async_op=True)" in claim.fix.code
    (edit,) = claim.edits
    assert (edit.kind, edit.factor) == ("threads", 1.0)

"""COM036: equal collectives that take very different times, as one rank sees them."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.comm.rank_straggler import find

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"


def job(durs, *, name=NCCL, sizes=(1024,), world=8, collective="allreduce"):
    """Add steps of 1 ms with a computation of 100 us and one collective that lasts ``durs[i]``."""
    builder = TraceBuilder(distributedInfo={"rank": 0, "world_size": world, "backend": "nccl"})
    for index, dur in enumerate([durs[0], *durs]):  # the first step is not steady
        at = 1000.0 * index
        builder.step(index, at, 990)
        builder.launch(at + 10, 2, at + 20, 100)
        size = sizes[index % len(sizes)]
        args = {"In msg nelems": size, "dtype": "Float"} if size else {}
        if collective:
            args["Collective name"] = collective
        builder.launch(at + 15, 2, at + 200, dur, name=name, stream=20, **args)
    return builder


def test_quiet_on_equal_times():
    assert not job([100, 110, 105, 120, 100, 250]).claims(find)


def test_quiet_on_few():
    assert not job([100, 100, 100, 700]).claims(find)


def test_quiet_on_different_sizes():
    assert not job([100, 600] * 4, sizes=(1024, 4096)).claims(find)


def test_quiet_where_sizes_are_unknown():
    assert not job([100, 100, 100, 100, 100, 700], sizes=(0,)).claims(find)


def test_quiet_on_exchanges_between_two():
    kernel = "ncclDevKernel_SendRecv(ncclDevComm*, unsigned long, ncclWork*)"
    durs = [100, 100, 100, 100, 100, 700]
    assert not job(durs, name=kernel, collective="").claims(find)


def test_quiet_at_world_size_1():
    assert not job([100, 100, 100, 100, 100, 700], world=1).claims(find)


def test_the_wait_is_what_goes_beyond_the_fastest():
    durs = [100, 100, 100, 100, 100, 700, 700]
    trace = job(durs).build()
    (claim,) = find(trace)
    assert claim.certainty == "hint"
    assert claim.gain_low == 0.0
    assert claim.time_class == "comm"
    assert (claim.spans[:, 1] - claim.spans[:, 0]).tolist() == [0] * 6 + [600_000] * 2
    assert claim.evidence["median_ms"] == pytest.approx(0.1)
    assert claim.evidence["shortest_ms"] == pytest.approx(0.1)
    assert claim.evidence["p95_ms"] == pytest.approx(0.7)
    assert claim.evidence["waiting_ms_per_step"] == pytest.approx(2 * 0.6 / 7, abs=1e-6)
    (edit,) = claim.edits
    assert np.array_equal(edit.rows, claim.rows)
    assert np.array_equal(edit.remains(hopeful=False), np.ones(8))
    assert np.allclose(edit.remains(hopeful=True), [1] * 6 + [1 / 7] * 2)

"""COM039: what DDP does that a flag would spare."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.comm.ddp_suboptimal_flags import find

SEARCH = "torch.distributed.ddp.reducer::search_unused_parameters"
COPY = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
HOOK = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


def job(*, vendor="cpu", search=True, unused=False, copies=0, steps=5):
    builder = TraceBuilder(vendor=vendor)
    for index in range(steps):
        at = 1000.0 * index
        builder.step(index, at, 1000)
        builder.op("aten::linear", at + 10, 50)
        if search:
            builder.op(SEARCH, at + 70, 20)
            builder.op("_DDPSink", at + 95, 5)
        builder.op(HOOK, at + 200, 50)
        if unused:
            builder.op("aten::zero_", at + 210, 5)
        for k in range(copies):
            builder.op(COPY, at + 300 + 10 * k, 8)
    return builder


def test_quiet_without_any_of_them():
    assert not job(search=False).claims(find)


def test_quiet_where_parameters_are_unused():
    assert not job(unused=True).claims(find)


def test_quiet_where_the_search_ran_once():
    # static_graph=True searches in the first step only
    builder = job(search=False)
    builder.op(SEARCH, 70, 20)
    assert not builder.claims(find)


def test_quiet_on_data_parallel_with_one_device():
    builder = job(search=False, vendor="cuda")
    for index in range(5):
        builder.annotation("DataParallel.forward", 1000 * index + 10, 100)
        builder.launch(1000 * index + 20, 2, 1000 * index + 30, 50)
    assert not builder.claims(find)


def test_the_search_without_a_device():
    trace = job().build()
    (claim,) = find(trace)
    assert (claim.certainty, claim.always, claim.time_class) == ("certain", True, "host")
    # the search and the node it needs: 25 us, as if no profiler had slowed them
    assert (claim.spans[:, 1] - claim.spans[:, 0]).sum() == 5 * 25_000
    assert claim.gain_low == pytest.approx(1 / trace.origin.inflation)
    assert claim.evidence["host_ms_per_step"] == pytest.approx(0.025)
    assert "find_unused_parameters=False" in claim.fix.code


def test_the_copies_without_a_device():
    (claim,) = find(job(search=False, copies=10).build())
    assert (claim.certainty, claim.always) == ("certain", False)
    assert claim.evidence["n_copies_per_step"] == 10
    assert claim.evidence["host_ms_per_step"] == pytest.approx(0.08)
    assert (claim.spans[:, 1] - claim.spans[:, 0]).tolist() == [8_000] * 50


def test_the_copies_on_a_device_cost_what_nothing_hides():
    builder = job(search=False, copies=1, vendor="cuda")
    for index in range(5):
        at = 1000.0 * index
        builder.copy(at + 301, 3, at + 305, 10, kind="DtoD", size=1 << 20)
        builder.launch(at + 310, 2, at + 315, 600)
    trace = builder.build()
    (claim,) = find(trace)
    assert claim.time_class == "copy"
    assert claim.evidence["bytes_per_step"] == 1 << 20
    assert claim.evidence["device_ms_per_step"] == pytest.approx(0.01)
    copied = claim.spans[np.asarray(claim.gain_low) == 1.0]
    assert (copied[:, 1] - copied[:, 0]).tolist() == [10_000] * 5
    ops, copies = claim.edits
    assert (ops.kind, len(ops.rows)) == ("shrink", 5)
    assert (copies.kind, len(copies.rows)) == ("drop", 5)


def test_data_parallel_over_several_devices_is_a_hint():
    builder = job(search=False, vendor="cuda")
    for index in range(5):
        builder.annotation("DataParallel.forward", 1000 * index + 10, 100)
        for device in (0, 1):
            builder.launch(1000 * index + 20 + device, 1, 1000 * index + 30, 50, device=device, stream=7)
    for one in builder.events:
        if one["cat"] == "kernel":
            one["pid"] = one["args"]["device"]
    (claim,) = find(builder.build())
    assert (claim.certainty, claim.always, claim.time_class) == ("hint", True, "none")
    assert claim.evidence["n_devices"] == 2
    assert "init_process_group" in claim.fix.code

"""CMP032: guards and wrappers dominate small compiled graphs."""

from __future__ import annotations

import numpy as np
import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.compile.compile_overhead import find


def job(*, calls=12, lookup=10.0, region=50.0, graph=10.0, gap=20.0, wall=1000.0, stacks=False):
    """Add steps of ``wall`` us with ``calls`` calls: look-up, region with a graph, a pause."""
    builder = TraceBuilder(vendor="cpu")
    for index in range(5):
        at = wall * index
        builder.step(index, at, wall)
        if stacks:
            builder.frame("train.py(1): step", at + 1, wall - 2)
        for k in range(calls):
            begin = at + 10 + (lookup + region + gap) * k
            builder.op("TorchDynamo Cache Lookup", begin, lookup)
            builder.op("Torch-Compiled Region: 0/0", begin + lookup, region)
            if graph:
                builder.annotation("## Call CompiledFxGraph fabc ##", begin + lookup + 20, graph)
    return builder


def lengths(claim):
    return claim.spans[:, 1] - claim.spans[:, 0]


def test_quiet_on_large_graphs():
    assert not job(region=700, graph=690, wall=10_000).claims(find)


def test_quiet_on_few_calls():
    assert not job(calls=9).claims(find)


def test_quiet_without_compiled_code():
    assert not TraceBuilder(vendor="cpu").op("aten::mm", 0, 5).claims(find)


def test_quiet_on_slow_guards_seen_with_stacks():
    assert not job(calls=1, lookup=200, region=500, graph=490, stacks=True).claims(find)


def test_quiet_where_the_device_is_busy():
    builder = job()
    builder.meta["deviceProperties"] = [{"id": 0, "name": "GPU"}]
    builder.launch(1, 2, 4, 4990)
    claims = builder.claims(find)
    assert all(not len(claim.spans) for claim in claims)


def test_outside_the_graphs():
    trace = job().build()
    (claim,) = find(trace)
    low, high = np.asarray(claim.gain_low), claim.gain_high
    assert (claim.time_class, high) == ("host", 1.0)
    # 10 us of look-up and 40 of the region around a graph of 10
    assert lengths(claim)[low > 0].sum() == 5 * 12 * 50_000
    assert low.max() == pytest.approx((1 - 1 / 12) / trace.origin.inflation)
    # and 11 pauses of 20 us and 12 graphs of 10, perhaps
    assert lengths(claim)[low == 0].sum() == 5 * (11 * 20_000 + 12 * 10_000)
    assert claim.evidence["overhead_ms_per_step"] == pytest.approx(0.6)
    assert claim.evidence["compiled_code_ms_per_step"] == pytest.approx(0.72)
    edit, pauses = claim.edits
    assert (pauses.kind, pauses.factor, pauses.hopeful) == ("threads", 1.0, 0.0)
    assert edit.hopeful == 0.0
    assert edit.factor == pytest.approx(1 - 0.6 / 0.72 / trace.origin.inflation)
    assert "once" in claim.fix.code


def test_graphs_that_do_something_stay():
    (claim,) = find(job(region=120, graph=60, wall=2000).build())
    low = np.asarray(claim.gain_low)
    assert lengths(claim)[low == 0].sum() == 5 * 11 * 20_000
    assert claim.edits[0].hopeful == pytest.approx(1 - 70 / 130)


def test_operators_are_work_whoever_calls_them():
    builder = job(graph=0)
    for index in range(5):
        for k in range(12):
            builder.op("aten::tanh", 1000 * index + 20 + 80 * k + 5, 40)
    (claim,) = find(builder.build())
    assert claim.evidence["overhead_ms_per_step"] == pytest.approx(12 * 0.02)


def test_of_regions_that_show_no_work_only_the_look_up_counts():
    (claim,) = find(job(graph=0, lookup=20, wall=2000).build())
    assert claim.evidence["overhead_ms_per_step"] == pytest.approx(12 * 0.02)


def test_guards_of_one_large_call():
    trace = job(calls=1, lookup=200, region=500, graph=490).build()
    (claim,) = find(trace)
    assert lengths(claim).tolist() == [200_000] * 5
    assert np.allclose(claim.gain_low, 0.5 / trace.origin.inflation)
    assert "guard_filter_fn" in claim.fix.code

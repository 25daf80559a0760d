"""Which operator enqueued a collective."""

from __future__ import annotations

from builder import TraceBuilder

from torchtriage.core.trace.collective_time import find_collectives


def test_the_wrapper_around_a_result_enqueues_nothing():
    builder = TraceBuilder(vendor="cpu")
    for k in range(2):
        at = 1000.0 * k
        builder.op("_c10d_functional::all_reduce", at, 30)
        builder.op("c10d::allreduce_", at + 5, 20)
        builder.op("_c10d_functional::_wrap_tensor_autograd", at + 40, 5)
        # the worker comes late: the wrapper has begun
        builder.event("gloo:all_reduce", "user_annotation", at + 60, 100, tid=77)
    trace = builder.build()
    found = find_collectives(trace)
    assert found is not None
    assert [trace.name_of(row) for row in found.enqueued_by.tolist()] == ["_c10d_functional::all_reduce"] * 2

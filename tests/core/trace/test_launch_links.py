"""Launch links: which call and which op enqueued each piece of device work."""

from __future__ import annotations

import time

import numpy as np
from builder import TraceBuilder, row
from hypothesis import given
from hypothesis import strategies as st

from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.launch_links import link


def test_work_belongs_to_the_call_of_its_correlation_and_the_innermost_op() -> None:
    builder = TraceBuilder().op("aten::linear", 0, 40).op("aten::addmm", 5, 20)
    builder.launch(10, 5, 30, 8, "gemm")
    trace = builder.build()
    gemm = row(trace, "gemm")
    assert trace.links.call[gemm] == row(trace, "cudaLaunchKernel")
    assert trace.links.op[gemm] == row(trace, "aten::addmm")
    assert trace.links.launched_ns(gemm) == 10_000
    assert trace.links.launches[row(trace, "cudaLaunchKernel")]
    assert trace.links.device_end_ns(row(trace, "cudaLaunchKernel")) == 38_000


def test_annotations_are_not_ops() -> None:
    builder = TraceBuilder().annotation("forward", 0, 40)
    builder.launch(10, 5, 30, 8, "gemm")
    trace = builder.build()
    assert trace.links.op[row(trace, "gemm")] == -1


def test_one_graph_launch_owns_many_kernels() -> None:
    builder = TraceBuilder().op("replay", 0, 20)
    builder.call("cudaGraphLaunch", 5, 10, correlation=77)
    for i in range(4):
        builder.kernel("k", 20 + 10 * i, 8, correlation=77)
    trace = builder.build()
    call = row(trace, "cudaGraphLaunch")
    assert trace.links.n_enqueued[call] == 4
    assert trace.links.device_end_ns(call) == 58_000
    assert trace.links.work_of(np.array([call])).tolist() == np.flatnonzero(trace.named("k")).tolist()


def test_calls_that_share_an_id_are_linked_at_once() -> None:
    builder = TraceBuilder()
    builder.kernel("early", 0, 1, correlation=1)
    n = 10_000
    for i in range(n):
        builder.call("cudaLaunchKernel", 10 + 20 * i, 5, correlation=1)
        builder.kernel("k", 20 + 20 * i, 5, correlation=1)
    trace = builder.build()
    begun = time.process_time()
    call = link(trace).call
    assert time.process_time() - begun < 0.3  # 0.01 s on a quiet machine, 0.9 s one call at a time
    calls = np.flatnonzero(trace.kind == Kind.RUNTIME)
    assert call[trace.named("k")].tolist() == calls.tolist()
    assert call[row(trace, "early")] == calls[0]


def test_work_without_a_recorded_call_is_an_orphan() -> None:
    builder = TraceBuilder().op("aten::add", 0, 10)
    builder.kernel("early", 2, 3, correlation=99)
    builder.launch(4, 2, 10, 5, "late")
    trace = builder.build()
    early = row(trace, "early")
    assert trace.links.orphans[early]
    assert not trace.links.orphans[row(trace, "late")]
    assert trace.links.launched_ns(early) == 2_000
    assert trace.links.op[early] == -1


def test_correlation_zero_links_nothing() -> None:
    builder = TraceBuilder(vendor="rocm").call("hipLaunchKernel", 0, 5, correlation=0)
    builder.kernel("rccl", 10, 5, correlation=0)
    trace = builder.build()
    assert trace.links.orphans[row(trace, "rccl")]


def by_external_id(*calls: int) -> TraceBuilder:
    """As some ROCm profilers write it: calls and their work share an External id, and nothing has a correlation."""
    builder = TraceBuilder(vendor="rocm").op("aten::mm", 0, 100)
    for i, external in enumerate(calls):
        builder.event("hipExtModuleLaunchKernel", "cuda_runtime", 5 + 10 * i, 4, **{"External id": external})
        builder.event("gemm", "kernel", 50 + 10 * i, 9, pid=2, tid=0, **{"External id": external})
    return builder


def test_external_ids_link_where_a_file_has_no_correlation() -> None:
    trace = by_external_id(7, 8).build()
    assert trace.links.call[trace.works].tolist() == np.flatnonzero(trace.kind == Kind.RUNTIME).tolist()
    assert trace.links.op[row(trace, "gemm")] == row(trace, "aten::mm")


def test_the_external_id_of_an_operator_links_nothing() -> None:
    """Elsewhere it is the operator's: on several of its calls, or beside correlations."""
    shared = by_external_id(7, 7).build()
    assert shared.links.orphans[shared.works].all()
    assert (shared.key[shared.works] == -1).all()
    builder = by_external_id(7)
    builder.launch(120, 5, 130, 5, "linked")
    beside = builder.build()
    assert beside.links.orphans[row(beside, "gemm")]
    assert not beside.links.orphans[row(beside, "linked")]


def test_negative_correlations_stay_as_they_are() -> None:
    builder = by_external_id(7, 8)
    builder.events[1]["args"]["correlation"] = -2
    assert builder.build().key[1] == -2


def test_a_repeated_correlation_goes_to_the_last_call_before_the_work() -> None:
    builder = TraceBuilder().op("aten::add", 0, 200.5)
    builder.call("cudaLaunchKernel", 10, 2, correlation=5)
    builder.kernel("first", 15, 5, correlation=5)
    builder.call("cudaLaunchKernel", 100, 2, correlation=5)
    builder.kernel("second", 110, 5, correlation=5)
    trace = builder.build()
    calls = np.flatnonzero(trace.named("cudaLaunchKernel"))
    assert trace.links.call[row(trace, "first")] == calls[0]
    assert trace.links.call[row(trace, "second")] == calls[1]


def test_work_under_takes_the_row_itself_and_everything_inside() -> None:
    builder = TraceBuilder().annotation("Optimizer.step#SGD.step", 0, 50).op("aten::add_", 5, 10)
    builder.launch(6, 2, 20, 3, "inside")
    builder.launch(60, 2, 70, 3, "outside")
    trace = builder.build()
    under = trace.links.work_under(trace.named("Optimizer.step#SGD.step"))
    assert [trace.name_of(one) for one in under.tolist()] == ["inside"]
    itself = trace.links.work_under(trace.named("cudaLaunchKernel"))
    assert len(itself) == 2


def test_without_device_rows_everything_is_empty() -> None:
    trace = TraceBuilder(vendor="cpu").op("aten::add", 0, 10.5).build()
    assert not trace.links.launches.any()
    assert (trace.links.call == -1).all()
    assert not len(trace.links.work_under(trace.named("aten::add")))


launches = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 5), st.integers(1, 20)), min_size=1, max_size=15)


@given(launches, st.integers(0, 10**9), st.integers(1, 10**6), st.randoms(use_true_random=False))
def test_shifting_renumbering_and_shuffling_change_no_link(
    rows: list[tuple[int, int, int]], shift: int, renumber: int, random: object
) -> None:
    def build(*, at: int, add: int, shuffled: bool) -> Trace:
        builder = TraceBuilder()
        host = 0.0
        for gap, dur, work in rows:
            host += gap + 1
            builder.op("aten::op", at + host, dur + 2.5)
            builder.launch(at + host + 1, dur, at + host + gap + 3, work)
            host += dur + 3
        for event in builder.events:
            if "correlation" in event.get("args", {}):
                event["args"]["correlation"] += add
        if shuffled:
            random.shuffle(builder.events)  # type: ignore[attr-defined]
        return builder.build()

    def facts(trace: Trace, at: int) -> list[tuple[int, int, int]]:
        work = np.flatnonzero(trace.works)
        call, op = trace.links.call[work], trace.links.op[work]
        base = at * 1000
        return sorted(
            zip(
                (trace.start_ns[work] - base).tolist(),
                (trace.start_ns[call] - base).tolist(),
                (trace.start_ns[op] - base).tolist(),
                strict=True,
            )
        )

    plain = facts(build(at=0, add=0, shuffled=False), 0)
    assert facts(build(at=shift, add=renumber, shuffled=True), shift) == plain

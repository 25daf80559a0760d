"""CPY010 on built traces; times in microseconds."""

from __future__ import annotations

import pytest
from builder import TraceBuilder

from torchtriage.diagnose.patterns.copy.many_tiny_copies import find


def loop(
    copies: int = 60,
    *,
    kind: str = "HtoD (Pinned -> Device)",
    size: int = 512,
    around: str = "",
    steps: int = 4,
    kernels: int = 0,
    waits: bool = False,
) -> TraceBuilder:
    """Return steps of copies of 2 us, one every 20 us, of which the host spends 10 us in each."""
    trace = TraceBuilder()
    for step in range(steps):
        start = step * 5000.0
        trace.step(step, start, 5000)
        trace.launch(start + 2, 5, start + 10, 50)
        if around:
            trace.op(around, start + 90, 20 * copies + 20)
        for one in range(copies):
            at = start + 100 + 20 * one
            trace.op("aten::copy_", at, 17 if waits else 10)
            trace.copy(at + 2, 6, at + 12, 2, kind=kind, size=size)
            if waits:
                trace.sync(at + 8.5, 8)
        for one in range(kernels):
            trace.launch(start + 2000 + one, 1, start + 2100 + 2 * one, 2)
    return trace.profiler_stop(steps * 5000 + 1, 5)


def test_quiet_on_a_few() -> None:
    assert not loop(19).claims(find)


def test_quiet_on_some_among_much_work() -> None:
    assert not loop(40, kernels=200).claims(find)


def test_quiet_on_large_ones() -> None:
    assert not loop(size=64 * 1024).claims(find)


@pytest.mark.parametrize(
    "around", ["torch.distributed.ddp.reducer::copy_bucket_to_grad", "vllm::all_reduce", "c10d::allgather_"]
)
def test_quiet_on_copies_of_collectives(around: str) -> None:
    assert not loop(around=around).claims(find)


def test_quiet_on_readbacks() -> None:
    assert not loop(kind="DtoH (Device -> Pageable)", waits=True).claims(find)


def test_quiet_on_graph_replays() -> None:
    trace = TraceBuilder()
    for step in range(4):
        start = step * 5000.0
        trace.step(step, start, 5000)
        correlation = trace.copy(start + 2, 20, start + 30, 2, call="cudaGraphLaunch")
        for one in range(80):
            trace.event(
                "Memcpy DtoD (Device -> Device)",
                "gpu_memcpy",
                start + 40 + 5 * one,
                2,
                pid=0,
                tid=7,
                device=0,
                stream=7,
                correlation=correlation,
                bytes=64,
            )
    assert not trace.profiler_stop(20_001, 5).claims(find)


def test_quiet_while_the_gpu_is_busy() -> None:
    trace = loop()
    trace.launch(0, 1, 1, 20_500, stream=9)
    assert not trace.claims(find)


def test_many_in_every_step() -> None:
    (claim,) = find(loop().build())
    assert claim.certainty == "likely"
    assert claim.evidence["n_copies_per_step"] == 60
    assert claim.evidence["max_copy_bytes"] == 512
    assert claim.evidence["ops"] == ["aten::copy_"]
    assert claim.evidence["host_ms_per_step"] == pytest.approx(0.6)


def test_some_that_are_most_of_the_work_are_a_hint() -> None:
    (claim,) = find(loop(30).build())
    assert claim.certainty == "hint"
    assert claim.evidence["share_of_gpu_events"] == pytest.approx(30 / 31, abs=1e-3)


def test_they_cost_the_time_of_their_operators() -> None:
    built = loop().build()
    (claim,) = find(built)
    lengths = claim.spans[:, 1] - claim.spans[:, 0]
    # 10 us of host time each; the last of all has nothing behind it
    assert lengths.sum() == (4 * 60 - 1) * 10_000
    assert claim.gain_low == pytest.approx(1 / built.origin.inflation)

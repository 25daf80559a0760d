"""Inputs on which other tools fail, and what this one has to answer."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builder import TraceBuilder, syncing

import torchtriage as tt
from torchtriage.core.trace import Kind
from torchtriage.diagnose.verdict.summary import N_KERNELS
from torchtriage.diagnose.verdict.verdict import diagnose


def codes(result: tt.Result) -> set[str]:
    return {finding.code for finding in result.findings}


# -- a valid H100 trace without rank or steps --------------------------------------------------


def test_neither_rank_nor_steps_are_needed() -> None:
    builder = syncing(TraceBuilder(device="NVIDIA H100 80GB HBM3"), steps=False)
    assert "distributedInfo" not in builder.meta
    result = diagnose(builder.build())
    assert not result.refused
    assert not result.crashes
    assert result.trace.rank is None
    assert "SYN001" in codes(result)
    assert {finding.cost.per for finding in result.findings if finding.cost} == {"window"}
    assert {note.code: note.level for note in result.notes}["no-steps"] == "info"
    assert result.verdict[0].startswith("NVIDIA H100 80GB HBM3 is busy ")
    assert "one window of" in result.verdict[0]


# -- kernels without flow arrows, or with legacy arrows ----------------------------------------


@pytest.mark.parametrize("arrows", ["none", "ac2g", "async_cpu_to_gpu", "misleading"])
def test_launches_are_joined_on_correlation_whatever_the_arrows_say(arrows: str) -> None:
    builder = syncing(TraceBuilder())
    rows = [event for event in builder.events if "correlation" in event.get("args", {})]
    if arrows != "none":
        for row in rows:
            number = row["args"]["correlation"]
            if arrows == "misleading":
                number = 1  # every arrow leads to the first launch
            on_device = row["cat"] in ("kernel", "gpu_memcpy")
            arrow: dict[str, Any] = {
                "ph": "f" if on_device else "s",
                "id": number,
                "cat": "ac2g" if arrows == "misleading" else arrows,
                "name": "ac2g" if arrows == "misleading" else arrows,
                **{key: row[key] for key in ("pid", "tid", "ts")},
            }
            builder.events.append(arrow)
    trace = builder.build()
    assert not trace.links.orphans.any()
    kernels = np.flatnonzero(trace.kind == Kind.KERNEL)
    assert (trace.key[trace.links.call[kernels]] == trace.key[kernels]).all()
    assert diagnose(trace).findings == diagnose(syncing(TraceBuilder()).build()).findings


# -- CPU only ----------------------------------------------------------------------------------


def test_a_cpu_only_trace_is_judged_and_gpu_patterns_are_named_as_not_checked() -> None:
    builder = TraceBuilder(vendor="cpu")
    for index in range(4):
        builder.step(index + 3, index * 1000, 1000).op("aten::mm", index * 1000 + 10.5, 980)
    result = diagnose(builder.build())
    assert not result.refused
    assert not result.crashes
    assert result.verdict[0] == "CPU only, 3 steady steps of 1.00 ms."
    assert result.checked
    missing = {one.code: one.missing for one in result.not_checked}
    assert "GPU rows" in missing["SYN001"]
    assert not codes(result) & set(missing)


# -- nanoseconds -------------------------------------------------------------------------------


def test_nanoseconds_are_kept() -> None:
    base = 1_700_000_000_000_000  # microseconds of an epoch: a double has no nanosecond left
    rows = ",".join(
        f'{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":{base}.{i:03d},'
        f'"dur":0.{i + 1:03d},"args":{{"device":0,"stream":7,"correlation":{i}}}}}'
        for i in range(0, 900, 7)
    )
    trace = tt.load(BytesIO(f'{{"traceEvents": [{rows}]}}'.encode()))
    expected = np.arange(0, 900, 7)
    assert (trace.start_ns - base * 1000 == expected).all()
    assert (trace.dur_ns == expected + 1).all()


def test_a_microsecond_is_not_a_floor() -> None:
    builder = TraceBuilder()
    for index in range(100):
        builder.launch(index * 10, 1, index * 10 + 2.25, 0.937, "tiny")
    (one,) = diagnose(builder.build()).summary.top_kernels  # type: ignore[union-attr]
    assert (one.mean_ns, one.max_ns, one.total_ns) == (937, 937, 93_700)


# -- exact statistics beyond the table ---------------------------------------------------------


def test_kernel_statistics_are_exact_beyond_the_table() -> None:
    builder = TraceBuilder()
    n = 4 * N_KERNELS
    for index in range(n):
        for repeat in range(2):
            at = (2 * index + repeat) * 10
            builder.launch(at, 1, at + 2, (index + 1) * (1 + 2 * repeat) / 1000, f"kernel_{index}")
    summary = diagnose(builder.build()).summary
    assert summary is not None
    assert summary.n_kernel_names == n
    for one in summary.top_kernels:
        unit = int(one.name.split("_")[1]) + 1
        assert (one.mean_ns, one.max_ns, one.count) == (2 * unit, 3 * unit, 2)
    shown = sum(kernel.share_of_kernel_sum for kernel in summary.top_kernels)
    exact = sum(range(n - N_KERNELS + 1, n + 1)) / sum(range(1, n + 1))
    assert shown == pytest.approx(exact, abs=1e-4)


# -- GPU work without a launch -----------------------------------------------------------------


def test_work_without_a_launch_is_counted_not_dropped() -> None:
    builder = TraceBuilder()
    for index in range(100):
        at = index * 10.0
        if index % 10 < 3:
            builder.kernel("gemm", at + 2.5, 5, correlation=100_000 + index)
        else:
            builder.launch(at, 1, at + 2.5, 5, "gemm")
    result = diagnose(builder.build())
    assert not result.refused
    summary = result.summary
    assert summary is not None
    (device,) = summary.devices
    assert (device.n_kernels, device.n_orphans) == (100, 30)
    assert device.classes.compute_ns == 500_000
    assert summary.top_kernels[0].count == 100
    (note,) = (note for note in result.notes if note.code == "orphans")
    assert note.evidence["n_orphans"] == 30
    assert note.message.startswith("30 of 100 pieces of GPU work (150 µs) have no launch")


# -- communication -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "multimem_all_reduce_kernel<c10::BFloat16>",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(...)",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_Generic",
        "rccl_main_kernel",
        "one_shot_all_reduce_kernel",
        "nvshmemi_put_nbi",
        "deep_ep::intranode::dispatch",
    ],
)
def test_communication_is_more_than_nccl(name: str) -> None:
    builder = TraceBuilder()
    for index in range(5):
        at = index * 1000.0
        builder.step(index + 3, at, 1000)
        builder.launch(at + 10, 5, at + 20, 400, "gemm")
        builder.launch(at + 20, 5, at + 420, 500.5, name)
    result = diagnose(builder.build())
    assert result.summary is not None
    (device,) = result.summary.devices
    assert device.classes.comm_only_ns == 4 * 500_500
    assert "COM035" in codes(result)


def test_block_level_reductions_are_computation() -> None:
    builder = TraceBuilder()
    builder.launch(10, 5, 20, 400, "void block_all_reduce<float>(float*)")
    builder.launch(30, 5, 430, 400, "triton_red_fused_all_reduce_3")
    summary = diagnose(builder.op("a", 0, 5).build()).summary
    assert summary is not None
    assert summary.devices[0].comm_ns == 0


# -- an unknown device -------------------------------------------------------------------------


def products(device: str) -> tt.Result:
    """Return the verdict on a loop of large fp32 products."""
    builder = TraceBuilder(device=device)
    side = 4096
    for index in range(5):
        at = index * 20_000.0
        builder.step(index + 3, at, 20_000)
        builder.op("aten::mm", at + 10, 40, dims=[[side, side], [side, side]], types=["float", "float"])
        builder.launch(at + 15, 5, at + 50.5, 19_000, "ampere_sgemm_128x128_nn")
    return diagnose(builder.build())


def efficiency_claims(result: tt.Result) -> list[str]:
    return [
        key
        for finding in result.findings
        for key in finding.evidence
        if "peak" in key or "efficiency" in key or "utilisation" in key
    ]


@pytest.mark.parametrize("device", ["Contoso X9000", "", "NVIDIA"])
def test_an_unknown_device_gives_no_efficiency_claim(device: str) -> None:
    result = products(device)
    assert not result.crashes
    assert "KRN022" in codes(result)
    assert efficiency_claims(result) == []


def test_a_known_device_does() -> None:
    assert efficiency_claims(products("NVIDIA A100-SXM4-80GB"))


# -- an empty GPU window -----------------------------------------------------------------------


def _launches_alone(builder: TraceBuilder) -> None:
    builder.events = [event for event in builder.events if event["cat"] not in ("kernel", "gpu_memcpy")]


def _operators_alone(builder: TraceBuilder) -> None:
    builder.events = [event for event in builder.events if event["cat"] in ("cpu_op", "user_annotation")]


def _annotations_alone(builder: TraceBuilder) -> None:
    _operators_alone(builder)
    for index in range(5):
        builder.event(f"ProfilerStep#{index}", "gpu_user_annotation", index * 1000, 900, pid=0, tid=7)


def _work_elsewhere(builder: TraceBuilder) -> None:
    for event in builder.events:
        if event["cat"] in ("kernel", "gpu_memcpy"):
            event["ts"] -= 1e6
            event["args"]["correlation"] = 0


@pytest.mark.parametrize("empty", [_launches_alone, _operators_alone, _annotations_alone, _work_elsewhere])
def test_an_empty_gpu_window_is_never_healthy(empty: Callable[[TraceBuilder], None]) -> None:
    builder = TraceBuilder()
    for index in range(5):
        at = index * 1000.0
        builder.step(index + 3, at, 1000).op("aten::mm", at + 1.5, 990)
        builder.launch(at + 10, 5, at + 20, 980, "gemm")
    assert diagnose(builder.build()).healthy
    empty(builder)
    result = diagnose(builder.build())
    assert not result.healthy
    assert {note.level for note in result.notes} & {"refuse", "warn"}


@pytest.mark.data
def test_a_real_trace_without_rank_or_steps(recordings: Path, judge: Callable[[Path], tt.Report]) -> None:
    result = judge(recordings / "llm" / "b200_eager.json.gz")
    assert not result.refused
    assert "LCH014" in codes(result)

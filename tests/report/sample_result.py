"""Hand-made results for the report tests: what an analysis says, without analysing anything.

``problems()`` is a training run with five findings, one of them under hostile names;
``healthy()`` has nothing to say, ``refused()`` cannot be judged, ``partial()`` lost events, a
crashed pattern and half of its inputs; ``unmarked()`` has no steps and no GPU. The figures fit
together: the classes of a step add up to its wall time, the steps to the window.
"""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Any

from tests.report.sample_findings import (
    ADAM,
    ADD,
    FP32,
    GEMM,
    HOSTILE,
    MS,
    NASTY,
    NOT_CHECKED,
    OF_MS,
    OPTIMIZER,
    PAGEABLE,
    START_NS,
    STEP_MS,
    SYNC,
    cost,
)

from torchtriage.core.finding import Crash, Finding, Fix, Note, Phase, Place, TimeClasses
from torchtriage.diagnose.verdict.options import By
from torchtriage.diagnose.verdict.result import (
    SCHEMA,
    BusBandwidth,
    CollectiveRow,
    DeviceSummary,
    DeviceTime,
    DeviceTimeRow,
    GraphUse,
    KernelSummary,
    ModelFlops,
    OpSummary,
    PeakShare,
    PhaseTime,
    Result,
    ServingTime,
    StepSummary,
    Summary,
    TimelineLane,
    TraceFacts,
)

__all__ = ["HOSTILE", "SERVING", "all_results", "healthy", "partial", "problems", "refused", "unmarked"]

BUSY = (90, 6, 2, 1, 0)
MIXED = (58, 6, 5, 24, 1)


def _classes(wall_ns: int, percent: tuple[int, int, int, int, int]) -> TimeClasses:
    """Split a wall time in fixed proportions; what rounding leaves is queued idle."""
    compute, comm, copy, late, unknown = (wall_ns * part // 100 for part in percent)
    queued = wall_ns - compute - comm - copy - late - unknown
    return TimeClasses(wall_ns, compute, comm, copy, late, queued, unknown)


def _steps(percent: tuple[int, int, int, int, int]) -> tuple[StepSummary, ...]:
    steps = []
    start = START_NS
    for index, wall_ms in enumerate(STEP_MS):
        wall = round(wall_ms * MS)
        steps.append(
            StepSummary(
                index=index + 10,
                name=f"ProfilerStep#{index + 10}",
                start_ns=start,
                end_ns=start + wall,
                steady=index > 0,
                classes=_classes(wall, percent),
            )
        )
        start += wall
    return tuple(steps)


def _timeline(steps: tuple[StepSummary, ...], hostile: bool) -> tuple[TimelineLane, ...]:
    marks = tuple((step.start_ns, step.end_ns, "step", step.name) for step in steps)
    device: list[tuple[int, int, str, str]] = []
    host: list[tuple[int, int, str, str]] = []
    loader: list[tuple[int, int, str, str]] = []
    for step in steps:
        wall = step.end_ns - step.start_ns

        def at(ratio: float, step: StepSummary = step, wall: int = wall) -> int:
            return step.start_ns + int(wall * ratio)

        device += [
            (at(0.06), at(0.11), "copy", "Memcpy HtoD (Pageable -> Device)"),
            (at(0.12), at(0.45), "compute", GEMM),
            (at(0.50), at(0.56), "comm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"),
            (at(0.66), at(0.91), "compute", HOSTILE if hostile else ADD),
        ]
        host += [
            (at(0.00), at(0.04), "op", "aten::to"),
            (at(0.04), at(0.11), "wait", "cudaMemcpyAsync"),
            (at(0.11), at(0.40), "op", HOSTILE if hostile else "aten::linear"),
            (at(0.40), at(0.62), "wait", "cudaStreamSynchronize"),
            (at(0.62), at(0.95), "python", "train.py(31): train_step"),
        ]
        loader.append((at(0.95), at(1.0), "loader", "enumerate(DataLoader)"))
    return (
        TimelineLane("steps", "steps", marks),
        TimelineLane("GPU 0 stream 7", "device", tuple(device)),
        TimelineLane("thread 4242 (main)" + (HOSTILE if hostile else ""), "thread", tuple(host)),
        TimelineLane("thread 4243", "thread", tuple(loader)),
    )


def _summary(percent: tuple[int, int, int, int, int] = MIXED, hostile: bool = False) -> Summary:
    steps = _steps(percent)
    window_ns = steps[-1].end_ns - START_NS
    judged = [step.classes for step in steps if step.classes and step.steady]
    device = TimeClasses(*map(sum, zip(*map(astuple, judged), strict=True)))
    kernels = [
        (GEMM, "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8", 960, 98_400_000, 310_000),
        (ADD, "vectorized_elementwise_kernel<CUDAFunctor_add<float>>", 5200, 41_600_000, 21_000),
        (
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)",
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
            40,
            20_046_000,
            990_000,
        ),
        (ADAM, "multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>", 320, 12_100_000, 61_000),
    ]
    if hostile:
        kernels.append((HOSTILE, HOSTILE, 20, 900_000, 45_000))
    total = sum(kernel[3] for kernel in kernels)
    return Summary(
        window_start_ns=START_NS,
        window_end_ns=START_NS + window_ns,
        window_basis="5 profiler steps",
        step_ms=OF_MS,
        n_steady_steps=4,
        steps=steps,
        devices=(
            DeviceSummary(
                device="0",
                name="NVIDIA H100 80GB HBM3",
                classes=device,
                n_kernels=13_420,
                n_copies=210,
                n_orphans=12,
                n_streams=3,
                comm_ns=21_300_000,
            ),
        ),
        top_kernels=tuple(
            KernelSummary(name, short, count, ns, ns / count, max_ns, round(ns / total, 6))
            for name, short, count, ns, max_ns in kernels
        ),
        n_kernel_names=61,
        top_ops=(
            OpSummary("aten::linear", 960, 18_300_000, 52_000_000, 98_400_000),
            OpSummary("aten::_local_scalar_dense", 10, 71_200_000, 71_300_000, 20_000),
            OpSummary(HOSTILE if hostile else "aten::add_", 5200, 31_000_000, 44_000_000, 41_600_000),
        ),
        n_op_names=44,
        judged_idle_ns=sum(c.idle_host_late_ns + c.idle_queued_ns + c.idle_unknown_ns for c in judged),
        timeline=_timeline(steps, hostile),
    )


def _facts(path: str = "runs/2024-11/worker0.1731500000.pt.trace.json.gz") -> TraceFacts:
    return TraceFacts(
        path=path,
        size_bytes=18_734_112,
        n_events=412_908,
        n_rows=398_114,
        tier="strict",
        n_lost=0,
        n_repaired=0,
        loss=(),
        vendor="cuda",
        device_names=("NVIDIA H100 80GB HBM3",),
        torch_flags=("record_shapes", "with_stack"),
        rank=0,
        world_size=8,
        base_time_ns=1_731_000_000_000_000_000,
        resolution_ns=1,
        phases={"X": 398_114, "M": 66, "s": 7_364, "f": 7_364},
        categories={"cpu_op": 201_340, "kernel": 13_420, "cuda_runtime": 29_870},
    )


CODES = """
SYN001 SYN002 SYN003 SYN004 SYN005 CPY006 CPY007 CPY008 CPY009 CPY010 LCH014 LCH015 LCH016 LCH017
DAT018 DAT019 HST020 HST021 KRN022 KRN023 KRN025 MEM027 MEM028 MSR034 COM035 CFG042 CFG043 CFG044
"""


def _checked(*others: str) -> tuple[str, ...]:
    return tuple(code for code in CODES.split() if code not in others)


JOINT = cost(12.3, 27.8, 60.4, basis="bounded", grade="C", method="union of owned time")


def _device_time(by: By, *rows: tuple[str, str, float, int], mfu: ModelFlops | None = None) -> DeviceTime:
    """Return a table over four steady steps; rows are name, category, ms per step and launches per step."""
    busy_ns = round(sum(4 * ms * MS for _, _, ms, _ in rows))
    return DeviceTime(
        by=by,
        device="0",
        per="step",
        n_steps=4,
        busy_ns=busy_ns,
        rows=tuple(
            DeviceTimeRow(name, category, round(4 * ms * MS), 4 * ms * MS / busy_ns, 4 * count, ms * MS / count)
            for name, category, ms, count in rows
        ),
        n_rows=len(rows),
        rest_ns=0,
        kernel_ns=busy_ns,
        mfu=mfu,
    )


def _phase(
    phase: Phase,
    n: int,
    context: tuple[int | None, int | None],
    generation: tuple[int | None, int | None],
    wall_ms: float,
    graphs: dict[GraphUse, int],
) -> PhaseTime:
    """Return a phase of ``n`` steady steps; requests and tokens of each kind in all, three quarters of it busy."""
    wall_ns = round(wall_ms * MS)
    tokens = None if context[1] is None or generation[1] is None else context[1] + generation[1]
    return PhaseTime(
        phase=phase,
        n_steps=n,
        n_steady=n,
        n_context=context[0],
        context_tokens=context[1],
        n_generation=generation[0],
        generation_tokens=generation[1],
        kv_tokens=None,
        wall_ns=wall_ns,
        busy_ns=3 * wall_ns // 4,
        between_ns=wall_ns // 8,
        n_work=400 * n,
        n_launches=12 * n,
        tokens_per_s=None if tokens is None else tokens / wall_ns * 1e9,
        graphs=graphs,
    )


DEVICE_TIME = (
    _device_time(
        "category",
        ("GEMM", "GEMM", 15.0, 96),
        ("elementwise", "elementwise", 6.0, 400),
        ("optimizer", "optimizer", 4.0, 1288),
        ("norm and softmax", "norm and softmax", 3.0, 48),
        ("communication", "communication", 2.0, 12),
        ("copy and layout", "copy and layout", 1.5, 90),
        ("attention", "attention", 1.0, 12),
        ("embedding", "embedding", 0.5, 3),
        ("other", "other", 0.25, 2),
        mfu=ModelFlops(0.181, 8_640_000_000_000, 48_200_000, (PeakShare(989.0, 0.97), PeakShare(495.0, 0.03))),
    ),
    _device_time(
        "operator",
        ("aten::mm", "GEMM", 15.0, 96),
        (HOSTILE, "elementwise", 12.25, 1750),
        ("", "copy and layout", 6.0, 105),
    ),
)

BUS_BANDWIDTH = BusBandwidth(
    rows=(
        CollectiveRow("allreduce", "default_pg", 8, 13_107_200, 26_214_400, 8.0, 210_000, 162.4, 284.2),
        CollectiveRow("all_to_allv", "mesh_ep", 4, 65_536, 65_536, 4.0, 80_000, 2.048, 1.536),
    ),
    n_rows=2,
    n_collectives=56,
    n_unchecked=8,
    unchecked="their sizes are not recorded",
)


SERVING = ServingTime(
    "vLLM",
    "ranges",
    (),
    (
        _phase("prefill", 2, (3, 1536), (0, 0), 60.0, {"piecewise": 1, "eager": 1}),
        _phase("decode", 10, (0, 0), (320, 320), 100.0, {"full": 10}),
        _phase("unknown", 1, (None, None), (None, None), 9.0, {"unknown": 1}),
    ),
)


def _result(*verdict: str, trace: TraceFacts, **other: Any) -> Result:
    """Return what was judged and found nothing, but for what is named."""
    nothing: dict[str, Any] = {
        "healthy": False,
        "refused": False,
        "notes": (),
        "summary": None,
        "findings": (),
        "not_checked": (),
        "crashes": (),
        "joint_cost": None,
    }
    return Result(schema=SCHEMA, version="0.1.0", verdict=verdict, trace=trace, **{**nothing, **other})


def problems() -> Result:
    """Return a training run with five findings, worst first, the last under hostile names."""
    return _result(
        "12.3 to 27.8 ms of 48.2 ms per step can be won (26 to 58 %).",
        "The GPU is idle 31 % of the window: 24 % because the host launches late.",
        "Start with SYN001: the host waits for the GPU to read a scalar (train.py:31).",
        trace=_facts(),
        notes=(
            Note("DQ007", "info", "The first step is 2.9 times the median and is not counted."),
            Note(
                "DQ010",
                "warn",
                "Python stacks and shapes make host time about 2.2 times longer than unprofiled.",
                "Record a second trace without with_stack and record_shapes for the cost.",
                {"profiler_inflation": 2.2},
            ),
        ),
        summary=_summary(hostile=True),
        findings=(SYNC, PAGEABLE, OPTIMIZER, FP32, NASTY),
        not_checked=NOT_CHECKED[2:],
        joint_cost=JOINT,
        checked=_checked("MEM027", "MEM028"),
        device_time=DEVICE_TIME,
        bus_bandwidth=BUS_BANDWIDTH,
    )


def healthy() -> Result:
    """Return a run that was judged and in which nothing was found."""
    return _result(
        "Nothing to win was found.",
        "The GPU is busy 98 % of the window; the median step takes 48.2 ms.",
        "28 of 28 patterns were checked.",
        healthy=True,
        trace=_facts("runs/good/worker0.pt.trace.json"),
        summary=_summary(BUSY),
        checked=_checked(),
    )


def refused() -> Result:
    """Return a recording without any GPU row that cannot be judged."""
    return _result(
        "No verdict: the recording holds kernel launches and no kernels.",
        "3,412 launches were recorded, 0 GPU rows.",
        "Record again with ProfilerActivity.CUDA.",
        refused=True,
        trace=_facts("cut.json"),
        notes=(
            Note(
                "DQ001",
                "refuse",
                "3,412 kernel launches were recorded, but not one kernel.",
                "profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])",
                {"n_launches": 3412, "n_gpu_rows": 0},
            ),
        ),
        not_checked=NOT_CHECKED,
    )


def partial() -> Result:
    """Return a salvaged file: lost events, a crashed pattern, patterns without their inputs."""
    return _result(
        "Nothing was found in what could be read; this is not a clean bill.",
        "1,204 of 414,112 events were lost: the file ends in the middle of an event.",
        "4 patterns were not checked and 1 failed.",
        trace=replace(
            _facts("truncated.json.gz"),
            tier="salvaged",
            n_lost=1204,
            n_repaired=3,
            loss=("1,204 events after byte 18,700,112: the file ends inside a string", "3 values repaired: inf"),
            torch_flags=(),
            rank=None,
            world_size=None,
        ),
        notes=(
            Note(
                "DQ003",
                "warn",
                "9 % of the GPU rows have no launch in the file.",
                "Use schedule(wait=1, warmup=1, active=3).",
            ),
        ),
        summary=_summary(),
        not_checked=NOT_CHECKED,
        crashes=(Crash("HST021", f"IndexError: {HOSTILE}"),),
        checked=_checked("KRN023", "KRN025", "MEM027", "MEM028", "HST021"),
    )


def unmarked() -> Result:
    """Return a CPU-only window without steps, with one finding costed per window."""
    start, end = START_NS, START_NS + 479_500_000
    finding = Finding(
        code="DAT018",
        name="dataloader-main-process",
        family="data",
        title="Batches are loaded in the training process",
        severity="high",
        certainty="certain",
        message="the main thread loads data for 120 ms of the window",
        place=Place(intervals_ns=((start, start + 120 * MS),), lane="thread 1"),
        cost=cost(90.0, 120.0, 120.0, per="window", of_ms=479.5),
        evidence={"loads": 12},
        fix=Fix("Load in worker processes.", "DataLoader(..., num_workers=8)"),
        n_events=12,
    )
    return _result(
        "90.0 to 120 ms of 480 ms in the window can be won (19 to 25 %).",
        "No GPU was recorded: only host work is judged.",
        "Start with DAT018.",
        trace=_facts("cpu.json"),
        notes=(Note("DQ005", "info", "The recording has no steps; costs are per window."),),
        summary=Summary(
            window_start_ns=start,
            window_end_ns=end,
            window_basis="first to last event",
            step_ms=None,
            n_steady_steps=0,
            steps=(),
            devices=(),
            top_kernels=(),
            n_kernel_names=0,
            top_ops=(OpSummary("aten::conv2d", 20, 2_000_000, 310_000_000, 0),),
            n_op_names=1,
            judged_idle_ns=0,
            timeline=(TimelineLane("thread 1", "thread", ((start, end, "op", "aten::conv2d"),)),),
        ),
        findings=(finding,),
        not_checked=NOT_CHECKED[:2],
        joint_cost=finding.cost,
        checked=("DAT018", "HST021"),
    )


def all_results() -> tuple[Result, ...]:
    """Return every sample, in a fixed order."""
    return (problems(), healthy(), refused(), partial(), unmarked())

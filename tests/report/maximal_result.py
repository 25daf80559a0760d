"""The largest result an analysis hands to a report: what 5 M events leave behind."""

from __future__ import annotations

import dataclasses

from tests.report.sample_result import problems

from torchtriage.core.finding import Example, Frame, Place
from torchtriage.diagnose.verdict.result import KernelSummary, OpSummary, Result, StepSummary, TimelineLane

N_LANES, N_SPANS, N_INTERVALS, N_FINDINGS = 12, 1500, 200, 50
START_NS = 1_731_500_000_000_000_000
STEP_NS = 48_123_457
N_STEPS = 800
KERNEL = "void at::native::elementwise_kernel<{}, at::native::CUDAFunctor<float>>" + "<int, 4>" * 90


def maximal() -> Result:
    """Return a result at every limit of the contract, with long and mostly distinct names."""
    base = problems()
    assert base.summary is not None
    end_ns = START_NS + N_STEPS * STEP_NS
    pitch = (end_ns - START_NS) // N_SPANS
    lanes = tuple(
        TimelineLane(
            label=f"GPU 0 stream {lane}" if lane < 4 else f"thread {lane} (pt_main_thread)",
            kind="device" if lane < 4 else "thread",
            spans=tuple(
                (
                    START_NS + i * pitch,
                    START_NS + i * pitch + pitch * (5 + lane) // 20,
                    ("compute", "comm", "copy", "compute")[i % 4] if lane < 4 else "op",
                    KERNEL.format(i % 400) if lane < 4 else f"aten::op_{lane}_{i}" * 3,
                )
                for i in range(N_SPANS)
            ),
        )
        for lane in range(N_LANES)
    )
    finding = base.findings[0]
    findings = tuple(
        dataclasses.replace(
            finding,
            title=f"{finding.title} ({number})",
            place=Place(
                steps=tuple(range(N_STEPS)),
                intervals_ns=tuple(
                    (START_NS + i * 7 * pitch + number * 1013, START_NS + (i * 7 + 3) * pitch)
                    for i in range(N_INTERVALS)
                ),
                lane="thread 4 (pt_main_thread)",
                ops=tuple(f"aten::op_{i}" for i in range(12)),
                frame=Frame("/srv/training/projects/some/long/folder/train.py", 31, "train_step"),
                stack=tuple(Frame(f"/srv/training/lib/part_{i}.py", i, "call") for i in range(30)),
                examples=tuple(
                    Example(i, KERNEL.format(i), START_NS + i * pitch, 10_000, "4242", "4242") for i in range(3)
                ),
            ),
            evidence={f"n_things_{i}": list(range(200)) for i in range(20)},
        )
        for number in range(N_FINDINGS)
    )
    step = base.summary.steps[1]
    summary = dataclasses.replace(
        base.summary,
        window_start_ns=START_NS,
        window_end_ns=end_ns,
        steps=tuple(
            StepSummary(
                index=i,
                name=f"ProfilerStep#{i}",
                start_ns=START_NS + i * STEP_NS,
                end_ns=START_NS + (i + 1) * STEP_NS,
                steady=i > 0,
                classes=step.classes,
            )
            for i in range(N_STEPS)
        ),
        top_kernels=tuple(
            KernelSummary(KERNEL.format(i), f"elementwise_kernel<{i}>", 10, 9_000, 900.0, 950, 0.01) for i in range(200)
        ),
        n_kernel_names=812,
        n_op_names=430,
        top_ops=tuple(OpSummary(f"aten::op_{i}", 10, 9_000, 12_000, 7_000) for i in range(200)),
        timeline=lanes,
    )
    trace = dataclasses.replace(base.trace, rank=0, world_size=64, n_events=5_000_000)
    return dataclasses.replace(base, summary=summary, findings=findings, trace=trace)

"""Memory that grows with every step, by the resident set as the sampler read it; what a needless graph costs."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from itertools import groupby, pairwise

from torchtriage.core.finding import Cost, Finding, Fix, Place
from torchtriage.core.units import format_bytes, format_count
from torchtriage.diagnose.runs.samples import Samples

__all__ = ["CODE", "growing_memory", "growth_per_step", "with_graph_cost"]

CODE = "MEM029"
MIN_STEPS, MIN_TOTAL, MIN_PER_STEP = 12, 32 << 20, 256 << 10
STEADILY = 0.9
"""Of the quarters between looks, so many at least grow."""
GRAPH = "CFG043"
NODE_US = (1.5, 8.0)
"""What recording one core operator and the views around it takes, at least and at most; on CPU, torch 2.13."""
PAGE_MS_PER_MB = (0.3, 0.7)
"""What new memory takes the system and the caches."""


def growth_per_step(samples: Samples) -> float:
    """Return by how many bytes the resident set grows per step; 0.0 where it does not do so steadily."""
    # a recording takes memory of its own
    stretches = [
        list(steps) for recorded, steps in groupby(samples.steps, key=lambda step: step.recorded) if not recorded
    ]
    steps = max(stretches, key=len, default=[])
    if len(steps) < MIN_STEPS or len(samples.rss) < MIN_STEPS:
        return 0.0
    times = [at_ns for at_ns, _ in samples.rss]
    some = steps[len(steps) // 4 :]
    at = [samples.rss[max(bisect_right(times, step.end_ns) - 1, 0)][1] for step in some]
    points = [at[round(number * (len(at) - 1) / 8)] for number in range(9)]
    rises = [later - earlier for earlier, later in pairwise(points)]
    total = points[-1] - points[0]
    per_step = total / max(len(some) - 1, 1)
    # caches and allocators fill up at first
    steadily = sum(rise > 0 for rise in rises) >= STEADILY * len(rises) and points[-1] - points[5] >= total / 5
    return per_step if steadily and total >= MIN_TOTAL and per_step >= MIN_PER_STEP else 0.0


def growing_memory(samples: Samples) -> tuple[Finding, ...]:
    """Return a finding where the resident set grows with every step."""
    per_step = growth_per_step(samples)
    if not per_step:
        return ()
    first, last, most = samples.rss[0][1], samples.rss[-1][1], max(value for _, value in samples.rss)
    steps = format_count(len(samples.steps), "step")
    return (
        Finding(
            code=CODE,
            name="memory-growth",
            family="alloc",
            title="Memory grows from step to step",
            severity="medium",
            certainty="likely",
            message=f"the process grows by {format_bytes(round(per_step))} per step, over"
            f" {steps}: {format_bytes(first)} at first, {format_bytes(most)} at most",
            place=Place(),
            cost=None,
            evidence={"bytes_per_step": round(per_step), "first_bytes": first, "last_bytes": last, "most_bytes": most},
            fix=Fix(
                "Keep numbers instead of tensors with their graph: detach(), item(), or no_grad around what is kept.",
                "losses.append(loss.detach())",
            ),
        ),
    )


def with_graph_cost(finding: Finding, n_ops_per_step: float, per_step_bytes: float, step_ms: float) -> Finding:
    """Return the finding of a needless autograd graph with what recording and keeping it takes of a step."""
    if finding.code != GRAPH or (finding.cost is not None and finding.cost.high_ms > 0) or not n_ops_per_step:
        return finding
    grown_mb = per_step_bytes / (1 << 20)
    low, high = (
        min(0.9 * step_ms, n_ops_per_step * node_us / 1e3 + grown_mb * page_ms)
        for node_us, page_ms in zip(NODE_US, PAGE_MS_PER_MB, strict=True)
    )
    cost = Cost(
        low_ms=round(low, 6),
        high_ms=round(high, 6),
        per="step",
        of_ms=round(step_ms, 6),
        share_low=round(low / step_ms, 6),
        share_high=round(high / step_ms, 6),
        naive_ms=round(high, 6),
        basis="modelled",
        method="1.5-8 µs for each core operator that is recorded, 0.3-0.7 ms for each MB that is kept",
        grade="C",
    )
    return replace(finding, cost=cost)

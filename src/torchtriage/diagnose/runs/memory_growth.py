"""Memory that grows with every step, by the resident set as the sampler read it; what a needless graph costs."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from torchtriage.core.finding import Cost, Finding, Fix, Place
from torchtriage.core.units import format_bytes, format_count
from torchtriage.diagnose.patterns.config.inference_autograd_on import NODE_US
from torchtriage.diagnose.runs.samples import Samples

CODE = "MEM029"
MIN_STEPS, MIN_TOTAL, MIN_PER_STEP = 12, 32 << 20, 256 << 10
STEADILY = 0.9
"""Of the quarters between looks, so many at least grow."""
GRAPH = "CFG043"
SYSTEM_PART = 0.5, 1.0
"""Of the system time that new pages took, what is surely and what is possibly saved where memory does not grow."""
PAGE = 4096


@dataclass(frozen=True)
class Growth:
    """How the resident set grows over ``n_steps``, and what the system takes per step to hand out these pages."""

    first: int
    last: int
    n_steps: int
    system_ms: float

    @property
    def per_step(self) -> float:
        """By how many bytes it grows."""
        return (self.last - self.first) / self.n_steps

    def saved_ms(self, step_ms: float) -> tuple[float, float]:
        """Return what a step surely and possibly saves without the growth."""
        low, high = (min(part * self.system_ms, 0.9 * step_ms) for part in SYSTEM_PART)
        return low, high


def growth_per_step(samples: Samples) -> Growth | None:
    """Return how the resident set grows; None where it does not do so steadily."""
    # a recording takes memory of its own
    stretches = [
        list(steps) for recorded, steps in groupby(samples.steps, key=lambda step: step.recorded) if not recorded
    ]
    steps = max(stretches, key=len, default=[])
    if len(steps) < MIN_STEPS or len(samples.memory) < MIN_STEPS:
        return None
    times = [look.at_ns for look in samples.memory]
    some = steps[len(steps) // 4 :]
    at = [samples.memory[max(bisect_right(times, step.end_ns) - 1, 0)] for step in some]
    points = [at[round(number * (len(at) - 1) / 8)].resident for number in range(9)]
    rises = [later - earlier for earlier, later in pairwise(points)]
    total, n_steps = points[-1] - points[0], max(len(some) - 1, 1)
    # caches and allocators fill up at first
    steadily = sum(rise > 0 for rise in rises) >= STEADILY * len(rises) and points[-1] - points[5] >= total / 5
    if not steadily or total < MIN_TOTAL or total / n_steps < MIN_PER_STEP:
        return None
    # pages that are handed out and given back again in the same step are not the growth's
    faulted = (at[-1].faults - at[0].faults) * PAGE
    part = min(1.0, total / faulted) if faulted > 0 else 1.0
    return Growth(points[0], points[-1], n_steps, (at[-1].system_ns - at[0].system_ns) * part / n_steps / 1e6)


def growing_memory(samples: Samples, growth: Growth | None, step_ms: float) -> tuple[Finding, ...]:
    """Return a finding where the resident set grows with every step of ``step_ms``."""
    if growth is None:
        return ()
    most = max(look.resident for look in samples.memory)
    first, last = format_bytes(growth.first), format_bytes(growth.last)
    return (
        Finding(
            code=CODE,
            name="memory-growth",
            family="alloc",
            title="Memory grows from step to step",
            severity="medium",
            certainty="likely",
            message=f"the process grows by {format_bytes(round(growth.per_step))} per step: from {first}"
            f" to {last} over {format_count(growth.n_steps, 'step')}",
            place=Place(),
            cost=_cost(growth, step_ms) if step_ms else None,
            evidence={
                "bytes_per_step": round(growth.per_step),
                "first_bytes": growth.first,
                "last_bytes": growth.last,
                "steps": growth.n_steps,
                "most_bytes": most,
            },
            fix=Fix(
                "Keep numbers instead of tensors with their graph: detach(), item(), or no_grad around what is kept.",
                "losses.append(loss.detach())",
            ),
        ),
    )


def _cost(growth: Growth, step_ms: float) -> Cost:
    low, high = growth.saved_ms(step_ms)
    return Cost.of(
        low,
        high,
        step_ms,
        high,
        basis="measured",
        method="the process's system time, as far as its new pages are this growth",
        grade="B",
    )


def with_graph_cost(finding: Finding, n_ops_per_step: float, growth: Growth | None, step_ms: float) -> Finding:
    """Return the finding of a needless autograd graph with what recording and keeping it takes of a step."""
    if finding.code != GRAPH or not n_ops_per_step:
        return finding
    saved = growth.saved_ms(step_ms) if growth is not None else (0.0, 0.0)
    low, high = (
        min(0.9 * step_ms, n_ops_per_step * node_us / 1e3 + saved_ms)
        for node_us, saved_ms in zip(NODE_US, saved, strict=True)
    )
    cost = Cost.of(
        low,
        high,
        step_ms,
        high,
        basis="modelled",
        method="1.5-8 µs for each core operator that is recorded, and the system time of the pages that are held",
        grade="C",
    )
    return replace(finding, cost=cost)

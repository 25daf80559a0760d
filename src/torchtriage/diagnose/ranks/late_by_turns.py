"""COM069: ranks that are late by turns, as their batches are of unequal size."""

from __future__ import annotations

import numpy as np

from torchtriage.core.finding import Finding
from torchtriage.core.units import format_ns, format_share
from torchtriage.diagnose.ranks.job_patterns import MIN_SHARE, RanksTogether, job_finding
from torchtriage.diagnose.ranks.straggler import own_ns

MIN_STEPS = 3
MIN_SPREAD = 0.10
"""Of inputs: the largest of a step over the mean, in the median."""
MIN_LARGEST = 0.6
"""Of the steps: the rank with the largest inputs has the longest time of its own."""
MIN_CORRELATION = 0.6
CERTAIN_CORRELATION = 0.9
LOW = 0.8
"""Of what is surely saved: whole samples are never shared out evenly."""


def late_by_turns(job: RanksTogether) -> Finding | None:
    """Return the waiting for whichever rank has the largest inputs, None where one rank is late or sizes are equal."""
    steps, step_ns = job.steady, job.waits.step_ns
    if job.late is not None or len(steps) < MIN_STEPS or len(job.ranks) < 2:
        return None
    if any(rank.n_point_to_point or not len(rank.work.sizes) for rank in job.ranks):
        return None
    sizes, own = job.of_steps("sizes", steps), own_ns(job.ranks, job.waits).astype(np.float64)
    if not sizes.min() or float(np.median(sizes.max(axis=0) / sizes.mean(axis=0))) < 1 + MIN_SPREAD:
        return None
    last = own.argmax(axis=0)
    is_largest = sizes[last, np.arange(len(steps))] == sizes.max(axis=0)
    if len(set(last.tolist())) < 2 or is_largest.mean() < MIN_LARGEST:
        return None
    # within each step: what all ranks share, such as a long batch for everybody, makes nobody wait
    more, longer = (sizes - sizes.mean(axis=0)).ravel(), (own - own.mean(axis=0)).ravel()
    correlation = float(np.corrcoef(more, longer)[0, 1]) if longer.any() else 0.0
    if not correlation >= MIN_CORRELATION:
        return None
    waited = float(job.waits.wait_ns[:, job.waits.steady].mean())
    high = min(float((own.max(axis=0) - own.mean(axis=0)).mean()), waited)
    if high < MIN_SHARE * step_ns:
        return None
    low = LOW * high * correlation**2  # of the part of the differences that sizes explain
    spread = format_share(float(np.median(sizes.max(axis=0) / sizes.mean(axis=0))) - 1)
    return job_finding(
        job,
        "COM069",
        f"ranks take turns being late: the one with the largest inputs, {spread} above the mean in the median step, is"
        f" the last, and the others wait for {format_ns(waited)} of {format_ns(step_ns)} per step on average,"
        f" {format_share(waited / step_ns)}",
        {
            "steps_the_largest_is_last": int(is_largest.sum()),
            "steps": len(steps),
            "correlation": round(correlation, 3),
            "last_rank_by_step": [job.numbers[at] for at in last[:64].tolist()],
        },
        range(len(job.ranks)),
        ns=(low, high),
        method="time of the last rank's own less the mean, no more than is waited; low end: 80 % of what sizes explain",
        certainty="likely" if correlation >= CERTAIN_CORRELATION else "hint",
    )

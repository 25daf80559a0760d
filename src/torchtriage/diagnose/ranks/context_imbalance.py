"""COM067: causal attention split by whole stretches of the sequence."""

from __future__ import annotations

import numpy as np

from torchtriage.core.finding import Finding
from torchtriage.core.units import format_ns, format_share
from torchtriage.diagnose.ranks.job_patterns import MIN_SHARE, RanksTogether, job_finding

MIN_RATIO = 1.25
"""Attention of the fullest rank over the mean; two ranks of a plain ring have 1.5, many nearly 2."""
MAX_OTHER = 0.10
"""How much everything else may differ from its median: a rank with a longer sequence has more of all."""
RISES = 0.8
"""Of the pairs of neighbours in rank order have to rise."""


def context_imbalance(job: RanksTogether) -> Finding | None:
    """Return the imbalance of attention, None where there is none."""
    steps = job.steady
    attention, other = (np.median(job.of_steps(name, steps), axis=1) for name in ("attention_step_ns", "other_step_ns"))
    step_ns = job.waits.step_ns
    if len(attention) < 2 or not attention.min() or attention.max() < MIN_RATIO * attention.mean():
        return None
    excess = float(attention.max() - attention.mean())
    usual = np.median(other)
    if excess < MIN_SHARE * step_ns or np.abs(other - usual).max() > MAX_OTHER * usual:
        return None
    # the n-th stretch attends to n of them; more than one ring: the ranks of each follow each other
    rises = np.diff(attention)
    ring = int(np.argmax(rises < 0)) + 1 if (rises < 0).any() else len(attention)
    if ring < 2 or len(attention) % ring:
        return None
    inside = np.arange(1, len(attention)) % ring != 0
    if (rises[inside] > 0).mean() < RISES:
        return None
    waits = _held(job)
    fullest = int(attention.argmax())
    others = np.arange(len(attention)) != fullest
    waited = float(np.maximum(waits[others] - waits[fullest], 0).mean())
    high = min(excess, waited)
    if high < MIN_SHARE * step_ns:
        return None
    by_rank = ", ".join(format_ns(value) for value in attention[:ring][:8].tolist())
    return job_finding(
        job,
        "COM067",
        f"attention takes longer from rank to rank ({by_rank}) while everything else is alike, as when a causal mask is"
        f" split into contiguous chunks; the ranks with less of it wait: {format_ns(high)} of {format_ns(step_ns)} per"
        f" step, {format_share(high / step_ns)}",
        {
            "attention_ms_by_rank": [round(float(value) / 1e6, 6) for value in attention[:64].tolist()],
            "ranks_of_a_ring": ring,
            "fullest_rank": job.numbers[fullest],
        },
        [at for at in range(len(attention)) if at % ring == ring - 1],
        ns=(high / 2, high),
        method="attention of the fullest rank less the mean, no more than the others wait; low end: half of it",
        certainty="likely" if len(steps) > 2 and ring > 2 else "hint",
    )


def _held(job: RanksTogether) -> np.ndarray:
    """Return float64[ranks], ns: what each rank waits or does nothing but communicate per step, in the median."""
    out = []
    for position, rank in enumerate(job.ranks):
        at = np.searchsorted(rank.steps.number, job.steady)
        exposed = rank.steps.parts_ns[at, 1]
        waits = job.waits.wait_ns[position, job.waits.steady]
        out.append(float(np.median(np.maximum(exposed, waits))))
    return np.array(out)

"""COM065: a checkpoint or an evaluation of one rank, for which the others wait, in every step or in few."""

from __future__ import annotations

import numpy as np

from torchtriage.core.finding import Finding
from torchtriage.core.names import visible
from torchtriage.core.units import format_count, format_ns, format_share
from torchtriage.diagnose.ranks.job_patterns import MIN_SHARE, RanksTogether, job_finding

MOSTLY = 0.5
"""Of what a step waits for a rank has to be there as saving or evaluating that others do not do."""
SURE = 0.4
"""Of it is surely saved: two ranks that share an evaluation still need half of its time, and more to agree."""
MANY_MORE = 1.3
"""Times the operators of the forward pass that the other ranks, or its own other steps, have."""
MANY_FORWARD = 5
"""Operators more, at least."""


def one_rank_alone(job: RanksTogether) -> Finding | None:
    """Return the work of one rank alone that costs most, None where there is none."""
    waits, n_steps = job.waits, len(job.waits.step)
    if not n_steps or len(job.ranks) < 2:
        return None
    usual_ns = float(np.median(waits.wall_ns))
    parts = {name: job.of_steps(name, waits.step) for name in ("saves_ns", "evaluates_ns", "forwards", "backwards")}
    found = []
    for position in range(len(job.ranks)):
        others = np.arange(len(job.ranks)) != position
        blame = waits.blame_ns[position].astype(np.float64)
        late = blame >= 2 * MIN_SHARE * usual_ns
        for kind, hit in _kinds(parts, position, others, blame).items():
            steps = np.flatnonzero(late & hit)
            cost_ns = float(blame[steps].sum()) / n_steps
            if len(steps) and cost_ns >= MIN_SHARE * usual_ns:
                found.append((cost_ns, position, kind, steps))
    if not found:
        return None
    cost_ns, position, kind, steps = max(found, key=lambda candidate: candidate[0])
    rank, work = job.numbers[position], job.ranks[position].work
    names = work.saves if kind == "saves" else work.evaluates
    how = f" ({visible(names[0])})" if names else ""
    what = {
        "saves": f"rank {rank} saves{how}",
        "evaluates": f"rank {rank} evaluates{how}",
        "forward": f"rank {rank} runs operators of the forward pass that the others do not, with no backward pass",
    }[kind]
    blame_ns = float(np.median(waits.blame_ns[position, steps]))
    return job_finding(
        job,
        "COM065",
        f"in {len(steps)} of {format_count(n_steps, 'recorded step')} {what} while the others wait for it:"
        f" {format_ns(blame_ns)} in the median of these, {format_share(cost_ns / max(waits.step_ns, 1))} of a step over"
        " all recorded ones",
        {
            "rank": rank,
            "kind": kind,
            "steps": waits.step[steps].tolist(),
            "names": list(names),
            "waited_ms_in_these_steps": round(blame_ns / 1e6, 6),
        },
        [position],
        ns=(SURE * cost_ns, cost_ns),
        method="what the others wait for it in these steps, over all recorded steps; low end: shared out, not removed",
        certainty="likely" if kind != "forward" else "hint",
    )


def _kinds(parts: dict[str, np.ndarray], position: int, others: np.ndarray, blame: np.ndarray) -> dict[str, np.ndarray]:
    """Return bool[steps] for each kind of work that explains why this rank is waited for."""
    out = {}
    for kind, name in (("saves", "saves_ns"), ("evaluates", "evaluates_ns")):
        more = parts[name][position] - np.median(parts[name][others], axis=0)
        out[kind] = np.maximum(more, _before(more)) >= MOSTLY * blame
    forwards, backwards = parts["forwards"], parts["backwards"]
    theirs = np.median(forwards[others], axis=0)
    extra = forwards[position] - theirs
    trains = (backwards[position] > 0) & (backwards[position] <= np.median(backwards[others], axis=0) * 1.05)
    rare = forwards[position] >= MANY_MORE * np.median(forwards[position])
    everywhere = (forwards[position] >= MANY_MORE * theirs).mean() > MOSTLY
    alone = (extra >= MANY_FORWARD) & (forwards[position] >= MANY_MORE * theirs) & trains & (rare | everywhere)
    out["forward"] = alone | (_before(alone.astype(np.float64)) > 0)
    return out


def _before(values: np.ndarray) -> np.ndarray:
    """Return each step's value of the step before: what follows a step's last collective is waited for in the next."""
    return np.append(0.0, values[:-1])

"""What only several ranks show, beside a late rank: experts, work of one rank alone, other programs, causal attention.

Whoever explains the waiting for a late rank takes it over: no time is claimed twice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints
from torchtriage.core.finding import Certainty, Cost, Finding, Place, RankSpread
from torchtriage.diagnose.patterns import lookup
from torchtriage.diagnose.ranks.match import Matches
from torchtriage.diagnose.ranks.merge import STRAGGLER
from torchtriage.diagnose.ranks.rank_record import RankRecord
from torchtriage.diagnose.ranks.straggler import Waiting
from torchtriage.diagnose.verdict.verdict import of_window, severity_of

MIN_SHARE = 0.05
"""Of the step, as for a late rank."""
_PER_STEP = re.compile(r"per step( on average)?")


@dataclass(frozen=True, eq=False)
class RanksTogether:
    """The ranks of a job, what they exchange, how long they wait for each other, and who is late, if one is."""

    ranks: Sequence[RankRecord]
    numbers: Sequence[int]
    matches: Matches
    waits: Waiting
    late: int | None
    """Position of the rank that the others wait for."""
    scale: float = 1.0
    """Of times without the profiler to recorded ones."""
    has_steps: bool = True
    """Else each rank's window stands for one."""

    @property
    def steady(self) -> Ints:
        """Numbers of the steady steps that all ranks recorded."""
        return self.waits.step[self.waits.steady]

    def of_steps(self, name: str, steps: Ints) -> NDArray[np.float64]:
        """Return float64[ranks, steps]: something that each rank's work tells of its steps."""
        return np.array(
            [getattr(rank.work, name)[np.searchsorted(rank.steps.number, steps)] for rank in self.ranks], np.float64
        )


def job_finding(
    job: RanksTogether,
    code: str,
    message: str,
    evidence: dict[str, object],
    positions: Sequence[int],
    *,
    ns: tuple[float, float] | None = None,
    naive_ns: float | None = None,
    method: str = "",
    certainty: Certainty = "likely",
) -> Finding:
    """Return a finding of the job on some of its ranks; ``ns`` : what it saves per step, from and to.

    ``naive_ns`` : what looks to be at stake, if it is not the high end.
    """
    entry = lookup(code)
    step_ns = job.waits.step_ns
    cost = None
    if ns is not None and step_ns:
        low, high = (min(max(end, 0.0), step_ns) for end in ns)
        cost = Cost.of(
            *(end / 1e6 for end in (low, high, step_ns, high if naive_ns is None else naive_ns)),
            basis="bounded" if certainty == "hint" else "measured",
            method=method,
            grade="C" if certainty == "hint" else "B",
            per="step" if job.has_steps else "window",
        )
    if not job.has_steps:
        message, evidence = _PER_STEP.sub("in the window", message), of_window(evidence)
    middle = (cost.low_ms + cost.high_ms) / 2 if cost is not None else 0.0
    named = tuple(sorted(job.numbers[at] for at in positions))
    return Finding(
        code=code,
        name=entry.pattern.name,
        family=entry.pattern.family,
        title=entry.pattern.title,
        severity=severity_of(cost, certainty) if cost is not None else "note",
        certainty=certainty,
        message=message,
        place=Place(lane=", ".join(f"rank {number}" for number in named[:4])),
        cost=cost,
        evidence=dict(evidence),
        fix=entry.fix,
        n_events=job.waits.n_judged,
        ranks=RankSpread(len(named), len(job.numbers), middle, middle, named[:64]),
    )


def without_straggler(findings: Sequence[Finding], found: Sequence[Finding], rank: int) -> list[Finding]:
    """Return the findings and what was found, without the late rank where one of these explains that it is late."""
    taking = [
        finding
        for finding in found
        if finding.cost is not None and (finding.ranks is None or rank in finding.ranks.ranks)
    ]
    late = next((finding for finding in findings if finding.code == STRAGGLER), None)
    if late is None or not taking:
        return [*findings, *found]
    first = max(taking, key=lambda finding: finding.cost.high_ms if finding.cost else 0.0)
    also = tuple(dict.fromkeys((*first.also_explains, STRAGGLER, *late.also_explains)))
    return [
        *(finding for finding in findings if finding is not late),
        *(replace(finding, also_explains=also) if finding is first else finding for finding in found),
    ]

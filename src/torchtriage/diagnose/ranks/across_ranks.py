"""Asks the patterns of several ranks together, and settles who has the time that the others wait."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from torchtriage.core.finding import Finding
from torchtriage.diagnose.ranks.context_imbalance import context_imbalance
from torchtriage.diagnose.ranks.expert_skew import expert_skew
from torchtriage.diagnose.ranks.job_patterns import RanksTogether, without_straggler
from torchtriage.diagnose.ranks.late_by_turns import late_by_turns
from torchtriage.diagnose.ranks.merge import STRAGGLER, scaled
from torchtriage.diagnose.ranks.metric_exchange import EXCHANGES, metric_exchange
from torchtriage.diagnose.ranks.one_rank_alone import one_rank_alone
from torchtriage.diagnose.ranks.ranks_differ import ranks_differ

FINDERS: dict[str, Callable[[RanksTogether], Finding | None]] = {
    "COM064": expert_skew,
    "COM065": one_rank_alone,
    "COM066": ranks_differ,
    "COM067": context_imbalance,
    "COM069": late_by_turns,
    EXCHANGES: metric_exchange,
}
BY_TURNS = "COM069"


def across_ranks(job: RanksTogether, codes: Collection[str], findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings of a job with those that only its ranks together show."""
    asked = (finder(job) for code, finder in FINDERS.items() if code in codes)
    found = [scaled(finding, job.scale) for finding in asked if finding is not None]
    # what evens out over a step is none of what its ranks differ by
    if any(finding.code not in (BY_TURNS, EXCHANGES) and finding.cost is not None for finding in found):
        found = [finding for finding in found if finding.code != BY_TURNS]  # the others say why
    if job.late is None:
        return [*findings, *found]
    rank = job.numbers[job.late]
    # another program is why a rank is late, and costs nothing on top
    found = [
        replace(finding, severity="low", message=f"{finding.message}; the others wait for rank {rank} ({STRAGGLER})")
        if finding.cost is None and finding.ranks is not None and rank in finding.ranks.ranks
        else finding
        for finding in found
    ]
    return without_straggler(findings, found, rank)

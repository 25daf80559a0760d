"""Which rank a job of several process groups waits for.

Waiting is handed on there: the peers of a late rank in one group are themselves late in the next. But a rank that waits
has that time in its communication, and the one that all wait for has it in its own work: of the ranks that run the
same program it is the one that communicates least.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchtriage.core.arrays import Floats, Ints
from torchtriage.core.finding import Finding, Fix
from torchtriage.core.units import format_count, format_ns, format_share
from torchtriage.diagnose.ranks.host_activity import CELLS
from torchtriage.diagnose.ranks.job_patterns import RanksTogether, job_finding
from torchtriage.diagnose.ranks.merge import STRAGGLER
from torchtriage.diagnose.ranks.rank_record import RankRecord
from torchtriage.diagnose.ranks.straggler import spared_ns

MIN_SHARE = 0.04
"""Of the step, in the median over steps: the own time of ranks that run the same program differs by 1-2 %."""
MOSTLY = 0.6
"""Of the steps it is that rank."""
ALONE = 0.6
"""The next rank has at most so much of its excess: two that are late alike are not one that is."""
EXPLAINED = 0.3
"""Of the excess lies in one activity, else no cause is said."""
SURE_PEERS = 3
DOUBT = 0.05
"""Share of the saving: some of a rank's own time passes beside its communication in one way or another."""
ABSORBED = 0.5
"""Of it at most, in a pipeline: a stage that is late has a shorter bubble first."""

_DOES = {"op": "operators", "python": "Python", "gc": "garbage collection", "device": "computation of the device"}
_WHERE = {"loader": "of the loader", "forward": "of the forward pass", "backward": "of the backward pass"}
_WHERE |= {"optimizer": "of the optimizer", "between": "between the phases"}
_STACKS = "profile(with_stack=True)  # on this rank: names the lines"
_ADVICE = {
    "loader": ("Give this rank's loader the same share of data, workers and cores as the others.", _STACKS),
    "device": (
        "Compare the sizes of this rank's batches with the others'; where they are equal, the clock, the power and the"
        " temperature of its device.",
        "# on its host\n# nvidia-smi -q -d CLOCK,POWER,TEMPERATURE,PERFORMANCE",
    ),
    "host": ("Move what only this rank does on its host out of the step, or let all ranks share it.", _STACKS),
}


@dataclass(frozen=True)
class _Late:
    position: int
    peers: list[int]
    own_ns: Floats
    """[1 + peers, steps], the late rank first: time that is not communication alone."""


def late_among_groups(job: RanksTogether) -> Finding | None:
    """Return the finding, None where one group holds all, or no rank stands out."""
    members = {tuple(group.members.tolist()) for group in job.matches.groups if not group.fault and len(group)}
    if not len(job.steady) or not job.waits.step_ns or len(members) < 2:
        return None
    sends = all(rank.n_point_to_point for rank in job.ranks)
    if not sends and not _connected(len(job.ranks), members):
        return None  # ranks that exchange nothing wait for nobody
    late = _find(job.ranks, job.steady, job.waits.step_ns)
    return None if late is None else _finding(job, late)


def _connected(n_ranks: int, members: set[tuple[int, ...]]) -> bool:
    """Return whether waiting can come from any rank to any other, from group to group."""
    reached, left = set(next(iter(members))), members
    while near := {some for some in left if not reached.isdisjoint(some)}:
        reached.update(*near)
        left = left - near
    return len(reached) == n_ranks


def agreed(one_group: Sequence[Finding], through: Finding) -> Finding:
    """Return the finding of a job that has one from its largest group, too: of the same rank that says more.

    ``through`` : what :func:`late_among_groups` found, which knows what the job saves.
    """
    for found in one_group:
        if found.evidence.get("late_rank") == through.evidence["late_rank"]:
            severity, certainty = through.severity, through.certainty
            return replace(found, cost=through.cost, severity=severity, certainty=certainty, ranks=through.ranks)
    return through


def _find(ranks: Sequence[RankRecord], steps: Ints, step_ns: float) -> _Late | None:
    own = np.stack([_own(rank, steps) for rank in ranks])
    same: dict[Hashable, list[int]] = {}
    for position, rank in enumerate(ranks):
        same.setdefault(_program(rank, steps), []).append(position)
    best: _Late | None = None
    most = MIN_SHARE * step_ns
    for some in same.values():
        if len(some) < 2:
            continue
        mine = own[some]
        middle = np.median(mine, axis=0) if len(some) > 2 else mine.min(axis=0)
        excess = np.median(mine - middle, axis=1)
        order = np.argsort(-excess, kind="stable")
        first, second = order[0], order[1]
        often = float((mine.argmax(axis=0) == first).mean())
        if excess[first] > most and excess[second] <= ALONE * excess[first] and often >= MOSTLY:
            most = float(excess[first])
            peers = [some[at] for at in order[1:].tolist()]
            best = _Late(some[first], peers, own[[some[first], *peers]])
    return best


def _own(rank: RankRecord, steps: Ints) -> Floats:
    at = np.searchsorted(rank.steps.number, steps)
    return (rank.steps.end_ns - rank.steps.start_ns - rank.steps.parts_ns[:, 1])[at].astype(np.float64)


def _program(rank: RankRecord, steps: Ints) -> Hashable:
    """Return what ranks of one program share: how often they send what in these steps."""
    table = rank.collectives
    use = np.flatnonzero(np.isin(table.step, steps))
    names = [table.names[code] for code in table.name[use].tolist()]
    uneven = [text for text in table.names if "alltoall" in text or "all_to_all" in text]
    sizes = table.nelems[use].tolist()
    sent = Counter((name, -1 if name in uneven else size) for name, size in zip(names, sizes, strict=True))
    return rank.n_point_to_point, frozenset(sent.items())


def _finding(job: RanksTogether, late: _Late) -> Finding:
    ranks, steps = job.ranks, job.steady
    mine, others = late.own_ns[0], late.own_ns[1:]
    middle = np.median(others, axis=0)
    more_ns = float((mine - middle).mean())
    high = float(np.quantile(mine - middle, 0.9)) * (1 + DOUBT)
    least = float(np.quantile(mine - others.max(axis=0), 0.1))
    if any(rank.n_point_to_point for rank in ranks):
        # what would be bubble anyway nobody waits for
        spared = np.median(spared_ns(ranks, job.matches, job.waits, late.position)[:, job.waits.steady], axis=1)
        felt = spared[spared >= MIN_SHARE * job.waits.step_ns]
        if len(felt):
            least, high = min(least, float(felt.min())), min(high, float(felt.min()) * (1 + DOUBT))
        low = least * ABSORBED
    else:
        low = least * (1 - DOUBT)
    cause, explained = _cause(ranks, late, steps, more_ns)
    number = job.numbers[late.position]
    waited = ranks[late.position].steps.parts_ns[:, 1].mean() / np.mean(
        [max(ranks[at].steps.parts_ns[:, 1].mean(), 1.0) for at in late.peers]
    )
    phase, _, activity = cause.rpartition(" ")
    does = f"{_DOES.get(activity, activity)} {_WHERE.get(phase, '')}".strip()
    why = f"; {format_share(explained)} of it is {does}" if cause else ""
    text, code = _ADVICE[phase if phase == "loader" else activity if activity == "device" else "host"]
    found = job_finding(
        job,
        STRAGGLER,
        f"rank {number} works {format_ns(more_ns)} per step longer than the median of"
        f" {format_count(len(late.peers), 'rank')} with the same program, and communicates"
        f" {format_share(1 - min(float(waited), 1.0))} less: they wait for it, directly or through other groups{why}",
        {
            "late_rank": number,
            "cause": cause or "not recorded",
            "same_program": len(late.peers) + 1,
            "explained": round(explained, 3),
        },
        [late.position],
        ns=(min(low, high), high),
        naive_ns=more_ns,
        method="own time beyond that of the ranks with the same program: of all of them, and of their median; in a"
        " pipeline no more than others wait for it",
        certainty="likely" if cause and len(late.peers) >= SURE_PEERS and len(steps) > 1 else "hint",
    )
    place = replace(found.place, steps=tuple(steps.tolist()) if job.has_steps else ())
    return replace(found, title=f"Rank {number} makes the others wait", place=place, fix=Fix(text, code))


def _cause(ranks: Sequence[RankRecord], late: _Late, steps: Ints, excess_ns: float) -> tuple[str, float]:
    """Return what the late rank does longer than its peers, phase and activity, and which share of the excess."""
    mine = _spent(ranks[late.position], steps)
    usual = np.median([_spent(ranks[at], steps) for at in late.peers], axis=0)
    more = np.where([activity == "sync" for _, activity in CELLS], 0.0, mine - usual)
    at = int(more.argmax())
    share = float(more[at] / max(excess_ns, 1.0))
    return (" ".join(CELLS[at]).strip(), min(share, 1.0)) if share >= EXPLAINED else ("", 0.0)


def _spent(rank: RankRecord, steps: Ints) -> Floats:
    """Return ns per step in each cell, between the last collectives before and in these steps."""
    table = rank.collectives
    before, inside = np.flatnonzero(table.step == steps[0] - 1), np.flatnonzero(np.isin(table.step, steps))
    if not len(inside):
        return np.zeros(len(CELLS))
    until = table.spent_ns[inside].max(axis=0)
    since = table.spent_ns[before].max(axis=0) if len(before) else table.spent_ns[inside].min(axis=0)
    return (until - since) / len(steps)

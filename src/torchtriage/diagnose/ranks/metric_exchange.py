"""COM101: exchanges of a few numbers in the middle of a step, at which all ranks wait for whoever is last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.core.arrays import Ints
from torchtriage.core.finding import Finding, Frame, Place
from torchtriage.core.units import format_count, format_ns, format_share
from torchtriage.diagnose.ranks.job_patterns import MIN_SHARE, RanksTogether, job_finding
from torchtriage.diagnose.ranks.match import GroupMatch
from torchtriage.diagnose.ranks.merge import EXPOSED, only_waits
from torchtriage.diagnose.verdict.result import Result

EXCHANGES = "COM101"
FEWEST = 2
"""Exchanges in a step: one may be what the step needs, such as the number of tokens of all ranks."""
OFF = 0.8
"""Of the gain, at the low end, and its inverse at the high one: how long ranks compute is in part chance (measured:
four ranks gained 1.2 times as much)."""
END_NS = 1_000
"""A rank that computes so shortly before a collective ends did not wait for its end."""


@dataclass(frozen=True, eq=False)
class _Meetings:
    """The collectives of one group, and of each rank in them, int64 or bool[matches, members].

    ``small`` : bool[matches], exchanges of a few numbers. ``counted`` : those of steady steps, of several in a row the
    first. ``wait_ns`` : with nothing beside it, until the last has come. ``held`` : the end was waited for.
    """

    group: GroupMatch
    small: NDArray[np.bool_]
    counted: NDArray[np.bool_]
    wait_ns: Ints
    held: NDArray[np.bool_]


def metric_exchange(job: RanksTogether) -> Finding | None:
    """Return what the job loses as all wait at small exchanges; None where one rank is late, or little evens out."""
    step_ns, n_steps = job.waits.step_ns, len(job.steady)
    if job.late is not None or not n_steps or any(rank.n_point_to_point for rank in job.ranks):
        return None
    if not any(len(rank.exchanges.rows) for rank in job.ranks):
        return None
    meetings = [_meetings(job, group) for group in job.matches.groups if not group.fault and len(group)]
    # several groups exchange at the same time: each rank has its own sum
    counts, transfers = np.zeros(len(job.ranks)), np.zeros(len(job.ranks))
    for meeting in meetings:
        counts[meeting.group.members] += meeting.counted.sum() / n_steps
        transfers[meeting.group.members] += np.maximum(meeting.group.transfer_ns[meeting.counted], 0).sum() / n_steps
    if counts.max() < FEWEST:
        return None
    gain = _gain_ns(job, meetings)
    if gain < MIN_SHARE * step_ns:
        return None
    waited = sum(int(meeting.wait_ns[meeting.counted].sum()) for meeting in meetings) / n_steps / len(job.ranks)
    sent = float(transfers.max())
    last = np.bincount(
        np.concatenate([meeting.group.members[meeting.group.late[meeting.counted]] for meeting in meetings])
    )
    names = tuple(
        sorted({meeting.group.name[at] for meeting in meetings for at in np.flatnonzero(meeting.counted).tolist()})[:3]
    )
    found = job_finding(
        job,
        EXCHANGES,
        f"{format_count(float(counts.max()), 'exchange')} of a few numbers ({', '.join(names)}) in the middle of the"
        f" step: at each, all ranks wait for whichever is last, for {format_ns(waited)} of"
        f" {format_ns(step_ns)} per step on average, {format_share(waited / step_ns)}; without them, most of it evens"
        " out over the step",
        {
            "n_exchanges_per_step": round(float(counts.max()), 3),
            "exchanges_share_of_step": round(waited / step_ns, 6),
            "transfer_share_of_step": round(sent / step_ns, 6),
            "times_last": {f"rank {job.numbers[at]}": int(last[at]) for at in np.argsort(-last)[:4] if last[at]},
        },
        range(len(job.ranks)),
        ns=(OFF * gain, (gain + sent) / OFF),
        method="80 % of what the ranks gain by their recorded arrivals when nobody waits at these exchanges; high end:"
        " 125 % of it and of the transfer",
    )
    stack = _longest(job, meetings)
    place = Place(lane=found.place.lane, ops=names, frame=stack[0] if stack else None, stack=stack)
    return replace(found, place=place, n_events=sum(int(meeting.counted.sum()) for meeting in meetings))


def with_exposed(
    findings: Sequence[Finding], results: Sequence[Result], wait_ms: Sequence[float], step_ms: float
) -> list[Finding]:
    """Return the findings without exposed communication that is little beyond waiting and these exchanges."""
    found = next((finding for finding in findings if finding.code == EXCHANGES), None)
    if found is None or found.certainty == "hint" or all(finding.code != EXPOSED for finding in findings):
        return list(findings)
    sent_ms = found.evidence["transfer_share_of_step"] * step_ms
    if not only_waits(results, [wait + sent_ms for wait in wait_ms], step_ms):
        return list(findings)
    explains = replace(found, also_explains=(EXPOSED,))
    return [explains if finding is found else finding for finding in findings if finding.code != EXPOSED]


def _meetings(job: RanksTogether, group: GroupMatch) -> _Meetings:
    ranks = [job.ranks[position] for position in group.members.tolist()]
    rows = [rank.collectives.row[group.index[:, column]] for column, rank in enumerate(ranks)]
    rows_of = list(zip(rows, [rank.exchanges for rank in ranks], strict=True))
    small = np.all([np.isin(row, own.rows) for row, own in rows_of], axis=0) & ~group.begins
    # what is behind another exchange takes its latency (COM037): nothing is computed there that could be late
    first = small & np.any([np.isin(row, own.first) for row, own in rows_of], axis=0)
    wait, held = np.empty_like(group.start_ns), np.empty(group.start_ns.shape, bool)
    for column, (rank, position) in enumerate(zip(ranks, group.members.tolist(), strict=True)):
        exposed = rank.exposed + job.matches.offset_ns[position]
        start, end = group.start_ns[:, column], group.end_ns[:, column]
        wait[:, column] = intervals.covered(intervals.spans(start, group.last_two_ns[:, 1]), exposed)
        held[:, column] = intervals.covered(intervals.spans(end - END_NS, end), exposed) > 0
    wait[small & ~first] = 0
    return _Meetings(group, small, first & np.isin(group.step, job.steady), wait, held)


def _longest(job: RanksTogether, meetings: Sequence[_Meetings]) -> tuple[Frame, ...]:
    """Return the user's calls around the exchanges at which the ranks wait longest."""
    waited: dict[tuple[Frame, ...], int] = {}
    for meeting in meetings:
        index, wait = meeting.group.index[meeting.counted], meeting.wait_ns[meeting.counted]
        for column, position in enumerate(meeting.group.members.tolist()):
            rank = job.ranks[position]
            for stack, rows in rank.exchanges.stacks.items():
                its = np.isin(rank.collectives.row[index[:, column]], rows)
                waited[stack] = waited.get(stack, 0) + int(wait[its, column].sum())
    return max(waited, key=waited.__getitem__, default=())


def _gain_ns(job: RanksTogether, meetings: Sequence[_Meetings]) -> float:
    """Return what a steady step gains in the mean when nobody waits at the exchanges.

    The meetings are gone through in their order: behind an exchange each rank goes on earlier by what it waited there;
    behind any other, by how much earlier the last has come.
    """
    earlier = np.zeros(len(job.ranks), np.int64)
    reached: dict[int, int] = {}
    last = [meeting.group.last_two_ns[:, 1].tolist() for meeting in meetings]
    order = sorted((when, place, at) for place, ends in enumerate(last) for at, when in enumerate(ends))
    for last_ns, place, at in order:
        meeting = meetings[place]
        members, wait = meeting.group.members, meeting.wait_ns[at]
        before = earlier[members]
        if meeting.small[at]:
            earlier[members] = before + wait
        else:
            leave = last_ns - int((meeting.group.start_ns[at] - before).max())
            earlier[members] = np.where(meeting.held[at], np.minimum(leave, before + wait), before)
        reached[int(meeting.group.step[at])] = int(earlier.min())
    steps = sorted(step for step in reached if step >= 0)
    gain = dict(zip(steps, np.diff([0, *(reached[step] for step in steps)]).tolist(), strict=True))
    return sum(gain.get(step, 0) for step in job.steady.tolist()) / len(job.steady)

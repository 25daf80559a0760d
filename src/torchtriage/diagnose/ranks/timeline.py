"""The ranks of a job on one clock: what to add to each one's times, and which rows are one collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchtriage.diagnose.ranks.job_detection import Job
from torchtriage.diagnose.ranks.match import match
from torchtriage.diagnose.ranks.rank_record import RankRecord


@dataclass(frozen=True)
class RankTimeline:
    """One rank: ``shift_ns`` brings its recorded times to the job's, which begins at 0.

    ``flows`` : a matched collective's row, and its number and place among the ranks in the order in which they came:
    ``s`` for the first, ``f`` for the last, ``t`` between them.
    """

    number: int
    path: str
    shift_ns: int
    flows: dict[int, tuple[int, str]]


def rank_timelines(records: Sequence[RankRecord], job: Job) -> tuple[RankTimeline, ...]:
    """Return the ranks of a job on its clock."""
    ranks = [records[at] for at in job.positions]
    matches = match(ranks, job.numbers)
    offsets = matches.offset_ns.tolist()
    begin_ns = min(rank.start_ns + offset for rank, offset in zip(ranks, offsets, strict=True))
    flows: list[dict[int, tuple[int, str]]] = [{} for _ in ranks]
    number = 0
    for group in matches.groups:
        if group.fault:
            continue
        order = group.start_ns.argsort(axis=1, kind="stable").tolist()
        members = group.members.tolist()
        rows = [ranks[at].collectives.row[group.index[:, column]].tolist() for column, at in enumerate(members)]
        for at, came in enumerate(order):
            number += 1
            for place, column in enumerate(came):
                phase = "s" if place == 0 else "f" if place == len(came) - 1 else "t"
                flows[members[column]][rows[column][at]] = (number, phase)
    return tuple(
        RankTimeline(number, rank.path, rank.base_ns + offset - begin_ns, mine)
        for number, rank, offset, mine in zip(job.numbers, ranks, offsets, flows, strict=True)
    )

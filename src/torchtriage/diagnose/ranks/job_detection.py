"""Which files are ranks of one job: said by the files, assumed from names, or not at all."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np

from torchtriage.core.finding import Note
from torchtriage.core.names import visible
from torchtriage.diagnose.ranks.match import match
from torchtriage.diagnose.ranks.rank_record import RankRecord

_NAMED = re.compile(r"(?:rank|worker|(?<![a-z])r)[-_.]?(\d+)(?!\d)", re.IGNORECASE)
MIN_COLLECTIVES = 3
"""Matched, before files that say nothing of a rank are taken for one job."""
MIN_MATCHED = 0.9
"""Of each such file's collectives."""
NOT_JUDGED = ("rank-missing", "rank-duplicate", "rank-skewed")
"""Codes of notes that name ranks of the job that are not judged with the others: the late one may be among them."""


@dataclass(frozen=True)
class Job:
    """Files that are ranks of one job: positions in the list given, and their rank numbers.

    ``basis`` : why they are taken for one job. ``notes`` : what is missing, double or skewed.
    """

    positions: tuple[int, ...]
    numbers: tuple[int, ...]
    basis: str
    world_size: int | None
    notes: tuple[Note, ...] = ()


def rank_in_name(name: str) -> int | None:
    """Return the rank that a file's name says, None where it says none or several."""
    found = _NAMED.findall(name)
    return int(found[0]) if len(found) == 1 else None


def detect_jobs(records: Sequence[RankRecord]) -> list[Job]:
    """Return the jobs among the files; a file in none of them stands for itself."""
    jobs = []
    said: dict[tuple[int, str], list[int]] = {}
    silent: list[int] = []
    for position, record in enumerate(records):
        facts = record.result.trace
        if facts.rank is not None and facts.world_size is not None and facts.world_size > 1:
            said.setdefault((facts.world_size, facts.vendor), []).append(position)
        elif facts.world_size in (None, 0):
            silent.append(position)
    for (world_size, _), positions in said.items():
        ranks = {at: int(records[at].result.trace.rank or 0) for at in positions}
        # another profiler's file says which processes there are, and we which rank each is
        counted = any(note.code == "other-recorder" for at in positions for note in records[at].result.notes)
        basis = "all ranks are in one file" if counted else f"the files say rank and world size ({world_size})"
        for some in _recordings(records, positions, ranks):
            job = _job(records, some, ranks, basis, world_size, ())
            if job is not None:
                jobs.append(job)
    jobs += _assumed(records, silent)
    return sorted(jobs, key=lambda job: job.positions)


def _recordings(records: Sequence[RankRecord], positions: list[int], ranks: dict[int, int]) -> list[list[int]]:
    """Split files with equal rank numbers into recordings: by folder, else by time."""
    if len({ranks[at] for at in positions}) == len(positions):
        return [positions]
    folders: dict[str, list[int]] = {}
    for at in positions:
        folders.setdefault(str(PurePath(records[at].path).parent), []).append(at)
    by_folder = list(folders.values())
    if all(len({ranks[at] for at in some}) == len(some) for some in by_folder):
        return by_folder
    # a profiler that records again and again: one recording after the other
    out: list[list[int]] = []
    reach = None
    for at in sorted(positions, key=lambda position: (records[position].start_ns, position)):
        if reach is None or records[at].start_ns > reach:
            out.append([])
        out[-1].append(at)
        reach = max(records[at].end_ns, reach if reach is not None else records[at].end_ns)
    return out


def _assumed(records: Sequence[RankRecord], positions: list[int]) -> list[Job]:
    """Return a job of files that name no rank inside: by file name, or by what they exchange."""
    able = [at for at in positions if len(records[at].collectives)]
    if len(able) < 2 or min(records[at].end_ns for at in able) <= max(records[at].start_ns for at in able):
        return []
    found = {at: rank_in_name(PurePath(records[at].path).name) for at in able}
    named = {at: rank for at, rank in found.items() if rank is not None}
    if len(named) == len(able) and len(set(named.values())) == len(able):
        ranks, basis = named, "assumed: file names count ranks and the recordings overlap"
    else:
        ranks = {at: number for number, at in enumerate(able)}
        basis = "assumed: the recordings overlap and their collectives match"
        trial = match([records[at] for at in able], list(ranks.values()))
        matched = np.bincount(trial.rank, minlength=len(able))
        whole = np.array([len(records[at].collectives) for at in able])
        if (
            any(group.fault for group in trial.groups)
            or (matched < MIN_COLLECTIVES).any()
            or (matched < MIN_MATCHED * whole).any()
        ):
            return []
    note = Note(
        "ranks-assumed",
        "info",
        f"nothing in the files shows that they are ranks of one job; {basis}",
        "call torch.distributed.init_process_group before the profiler starts: it writes rank and"
        " world size into the trace",
    )
    job = _job(records, able, ranks, basis, None, (note,))
    return [job] if job is not None else []


def _job(
    records: Sequence[RankRecord],
    positions: list[int],
    ranks: dict[int, int],
    basis: str,
    world_size: int | None,
    notes: tuple[Note, ...],
) -> Job | None:
    found = [*notes]
    count = Counter(ranks[at] for at in positions)
    double = sorted(rank for rank, n in count.items() if n > 1)
    if double:
        names = [PurePath(records[at].path).name for at in positions if count[ranks[at]] > 1]
        found.append(
            Note(
                "rank-duplicate",
                "warn",
                f"rank{'s' * (len(double) > 1)} {_list(double)} recorded more than once at the same"
                " time: which file belongs to this job is not known, so none of them is judged"
                f" with it ({', '.join(visible(name) for name in names[:4])}"
                f"{', …' if len(names) > 4 else ''})",
                "pass one file for each rank",
                {"ranks": double},
            )
        )
    kept = [at for at in positions if count[ranks[at]] == 1]
    skewed = _skewed(records, kept) if kept else []
    if skewed:
        found.append(
            Note(
                "rank-skewed",
                "warn",
                f"rank{'s' * (len(skewed) > 1)} {_list([ranks[at] for at in skewed])} recorded"
                " other steps, or at another time, than most: not judged with them",
                "start the profiler at the same step on every rank",
                {"ranks": [ranks[at] for at in skewed]},
            )
        )
        kept = [at for at in kept if at not in skewed]
    if len(kept) < 2:
        return None
    kept.sort(key=lambda at: ranks[at])
    if world_size is not None:
        there = {ranks[at] for at in positions}
        gone = [rank for rank in range(world_size) if rank not in there]
        if gone:
            found.append(
                Note(
                    "rank-missing",
                    "warn",
                    f"{len(gone)} of {world_size} ranks were not given ({_list(gone)}): who makes"
                    " the others wait may be one of them",
                    "pass the traces of all ranks",
                    {"ranks": gone[:64]},
                )
            )
    return Job(tuple(kept), tuple(ranks[at] for at in kept), basis, world_size, tuple(found))


def _skewed(records: Sequence[RankRecord], positions: list[int]) -> list[int]:
    marked = [at for at in positions if len(records[at].steps.number) > 1]
    if 2 * len(marked) > len(positions):
        # a file that was cut off may hold no whole step
        seen = Counter(n for at in marked for n in records[at].steps.number.tolist())
        usual = {n for n, count in seen.items() if 2 * count > len(marked)}
        if usual:
            return [at for at in positions if at not in marked or not usual & set(records[at].steps.number.tolist())]
    start = np.array([records[at].start_ns for at in positions])
    end = np.array([records[at].end_ns for at in positions])
    middle = int(np.median(np.concatenate([start, end])))
    usual_start = int(np.median(start))
    usual_end = int(np.median(end))
    if usual_start > usual_end:
        usual_start = usual_end = middle
    away = (end < usual_start) | (start > usual_end)
    return [at for at, far in zip(positions, away.tolist(), strict=True) if far]


def _list(numbers: Sequence[int]) -> str:
    if len(numbers) <= 8:
        return ", ".join(map(str, numbers))
    return f"{', '.join(map(str, numbers[:6]))}, … {numbers[-1]}"

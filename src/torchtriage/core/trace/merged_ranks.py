"""Ranks in one file: merged by a tool that wrote the ``rank`` into every event, or recorded together.

Merged files offset process ids, so that ranks stay apart; what a device's events name is the device, which ranks of
several machines may share. Where a recorder follows all processes of a machine, those with devices of their own are
ranks, numbered as their devices are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from torchtriage.core.arrays import Ints
from torchtriage.core.trace.columns import STREAM_PROCESS, MemoryEvents, Trace
from torchtriage.core.trace.event_types import RANK
from torchtriage.core.trace.schema import HOST_KINDS, WORK_KINDS, Kind

_DATED = (*HOST_KINDS, *WORK_KINDS, Kind.PYTHON, Kind.GPU_ANNOTATION)


@dataclass(frozen=True, eq=False)
class MergedRanks:
    """The ranks in a file: their numbers, and int64[lanes], the rank of each lane, -1 where no row says.

    ``shared`` : devices whose rows belong to several ranks, which cannot be separated.
    """

    numbers: tuple[int, ...]
    of_lane: Ints
    shared: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class RankTrace(Trace):
    """One rank of a merged file; ``rows`` are its rows in the ``whole``."""

    whole: Trace = field(kw_only=True, repr=False)
    rows: Ints = field(kw_only=True, repr=False)

    def args(self, row: int) -> dict[str, Any]:
        """Return all arguments of one row as written, read again from the file."""
        return self.whole.args(int(self.rows[row]))

    @property
    def file_start_ns(self) -> int:
        """When the first row of the whole file starts: merged ranks have one clock."""
        return self.whole.file_start_ns

    def rows_in_file(self, rows: Ints) -> Ints:
        """Return the rows of the whole file's trace that these are."""
        return self.rows[rows]


def find_merged_ranks(trace: Trace) -> MergedRanks | None:
    """Return the ranks in the file; None where its events name no rank, or all the same.

    Reads the arguments of two events for each process and device, where there is more than one.

    Raises TraceFormatError: the file is gone, or is no longer the one that was read.
    """
    if trace.report.recorder:
        return _by_process(trace)
    dated = trace.is_kind(*_DATED)
    seen = np.zeros(len(trace.lanes), bool)
    seen[trace.lane[dated]] = True
    owners = {trace.lanes[lane][:2] for lane in np.flatnonzero(seen).tolist()}
    n_processes = sum(kind == "thread" for kind, _ in owners)
    if n_processes < 2 and (n_processes or len(owners) < 2):
        return None
    rows = np.flatnonzero(dated)
    first, last = np.full((2, len(trace.lanes)), -1)
    # the last assignment stays
    last[trace.lane[rows]] = rows
    first[trace.lane[rows[::-1]]] = rows[::-1]
    ends: dict[tuple[str, str], list[int]] = {}
    for lane in np.flatnonzero(last >= 0).tolist():
        ends.setdefault(trace.lanes[lane][:2], []).extend((int(first[lane]), int(last[lane])))
    asked = {row: owner for owner, of_owner in ends.items() for row in (min(of_owner), max(of_owner))}
    found: dict[tuple[str, str], set[int]] = {}
    for row, owner in sorted(asked.items()):
        rank = trace.args(row).get(RANK)
        if not isinstance(rank, int):
            return None
        found.setdefault(owner, set()).add(rank)
    numbers = tuple(sorted(set().union(*found.values())))
    if len(numbers) < 2:
        return None
    alone = {owner: min(ranks) for owner, ranks in found.items() if len(ranks) == 1}
    of_lane = np.array([alone.get(lane[:2], -1) for lane in trace.lanes], np.int64)
    return MergedRanks(numbers, of_lane, tuple(owner[1] for owner in found if owner not in alone))


def _by_process(trace: Trace) -> MergedRanks | None:
    """Return processes as ranks, where several work and each on devices of its own."""
    at_work = np.zeros(len(trace.lanes), bool)
    at_work[trace.lane[trace.works]] = True
    owner = [
        trace.labels.get((STREAM_PROCESS, *lane[1:3]), "") if lane.kind == "stream" else lane.pid
        for lane in trace.lanes
    ]
    first: dict[str, int] = {}
    users: dict[str, set[str]] = {}
    for lane in sorted(np.flatnonzero(at_work).tolist(), key=lambda lane: trace.lanes[lane].device):
        first.setdefault(owner[lane], len(first))
        users.setdefault(trace.lanes[lane].pid, set()).add(owner[lane])
    if len(first) < 2 or any(len(processes) > 1 for processes in users.values()):
        return None
    of_lane = np.array([first.get(process, -1) for process in owner], np.int64)
    return MergedRanks(tuple(range(len(first))), of_lane, ())


def split_ranks(trace: Trace) -> tuple[Trace, ...]:
    """Return a trace for each rank that was merged into the file; the trace itself where that cannot be done."""
    ranks = find_merged_ranks(trace)
    if ranks is None or ranks.shared:
        return (trace,)
    # process groups list ranks that may not be in the file
    listed = (int(number) for detail in trace.details for number in re.findall(rb"\d+", detail.ranks))
    size = 1 + max((*ranks.numbers, *listed))
    return tuple(_rank(trace, ranks, number, size) for number in ranks.numbers)


def _rank(trace: Trace, ranks: MergedRanks, number: int, world_size: int) -> RankTrace:
    rows = np.flatnonzero(ranks.of_lane[trace.lane] == number)
    report = msgspec.structs.replace(
        trace.report,
        path=f"{trace.report.path} (rank {number})",
        size_bytes=trace.report.size_bytes // len(ranks.numbers),
        n_events=len(rows),
        phases={"X": len(rows)},
    )
    return RankTrace(
        start_ns=trace.start_ns[rows],
        dur_ns=trace.dur_ns[rows],
        name=trace.name[rows],
        cat=trace.cat[rows],
        kind=trace.kind[rows],
        lane=trace.lane[rows],
        key=trace.key[rows],
        value=trace.value[rows],
        detail=trace.detail[rows],
        names=trace.names,
        cats=trace.cats,
        lanes=trace.lanes,
        details=trace.details,
        # its records name no process
        memory=MemoryEvents(*(column[:0] for column in trace.memory)),
        labels=trace.labels,
        meta={**trace.meta, "distributedInfo": {"rank": number, "world_size": world_size}},
        report=report,
        source=trace.source,
        whole=trace,
        rows=rows,
    )

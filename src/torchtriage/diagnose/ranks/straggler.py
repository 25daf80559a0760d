"""Who makes the others wait, in which steps, by how much, and what it did before.

A rank waits in a collective from its own start to the start of the last one; what counts is the
part in which it has nothing else to do. A straggler costs what would go if it came with the second
to last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.core.arrays import Floats, Ints, distinct, joined
from torchtriage.core.intervals import Spans
from torchtriage.core.stats.median import median_interval
from torchtriage.diagnose.ranks.host_activity import CELLS, PHASES
from torchtriage.diagnose.ranks.match import GroupMatch, Matches
from torchtriage.diagnose.ranks.rank_record import Moment, RankRecord

MIN_OWN = 0.3
"""Of what the others wait: else it is late by what it exchanges, such as a broadcast whose root goes on at once."""
MIN_SHARE = 0.05
"""Of the step, in the median (catalogue 36)."""
ENOUGH = 8
"""Steps of which a low end above nothing says that the rank is late by more than chance."""
MIN_BLAME = 0.60
"""Of the steps, and of all waiting (catalogue 36)."""
MIN_EXPLAINED = 0.3
"""Of the gain, before a difference between ranks is called the cause."""
MOST = 0.5
"""Of a difference: one stretch that explains so much is a stall, more calls that explain it are more work."""
MIN_SLOWER = 1.02
"""Times as long as on the other ranks, in the median over kinds of calls, before a rank is called slower."""


@dataclass(frozen=True, eq=False)
class Waiting:
    """How long each rank waited for the others, step by step.

    ``step`` : numbers of the steps all ranks recorded. ``steady`` : bool[steps], steady on every
    rank. ``wall_ns`` : int64[ranks, steps]. ``wait_ns`` : int64[ranks, steps], with nothing beside
    it. ``blame_ns`` : int64[ranks, steps], mean wait that each rank caused the other members of all
    its groups.
    """

    step: Ints
    steady: NDArray[np.bool_]
    wall_ns: Ints
    wait_ns: Ints
    blame_ns: Ints
    n_judged: int
    """Matches that count: in steady steps, and not the first after the profiler started."""

    @property
    def step_ns(self) -> float:
        """Mean wall time of the steady steps over all ranks; the denominator."""
        return float(self.wall_ns[:, self.steady].mean()) if self.steady.any() else 0.0


@dataclass(frozen=True)
class StragglerCause:
    """What the late rank did more of: a cell of ``CELLS``, and how much, per step.

    ``kind`` : ``stall`` (one stretch of it, which the others do not have), ``work`` (more calls, or kernels) or
    ``slower`` (the same calls, each longer). ``pace`` : how many times as long a call takes as on the other ranks, the
    median over kinds, ``device_pace`` the same of kernels. ``moment`` : the longest stretch of a step in the middle,
    None where none was recorded. ``everywhere`` : the cause is there in every step.
    """

    phase: str
    activity: str
    excess_ns: float
    n_more_ops: float
    kind: Literal["stall", "work", "slower"]
    pace: float
    device_pace: float
    moment: Moment | None
    everywhere: bool


@dataclass(frozen=True, eq=False)
class Straggler:
    """One rank that makes others wait; arrays have one element per steady step.

    ``gain_ns`` : what every waiting rank would be spared at least. ``beyond_ns`` : its own time, without communication
    alone, beyond the longest of the others'. ``mean_wait_ns`` : what they wait for it in the mean. ``n_late`` : steps
    in which it causes most waiting. ``blame_share`` : its share of all waiting. ``n_peers`` : recorded ranks in its
    groups beside it; ``reaches_all`` : those are all.
    """

    position: int
    gain_ns: Ints
    beyond_ns: Ints
    mean_wait_ns: Ints
    n_late: int
    blame_share: float
    n_peers: int
    reaches_all: bool
    group: GroupMatch
    cause: StragglerCause | None
    off_ns: tuple[float, float] | None = None
    """How far the gain may be off below and above, where it is by the joint replay of the ranks."""


def waiting(ranks: Sequence[RankRecord], matches: Matches) -> Waiting:
    """Return the waits of every rank in every step that all of them recorded."""
    step = reduce(np.intersect1d, [rank.steps.number for rank in ranks])
    places = [np.searchsorted(rank.steps.number, step) for rank in ranks]
    steady = np.ones(len(step), bool)
    wall = np.empty((len(ranks), len(step)), np.int64)
    for position, (rank, at) in enumerate(zip(ranks, places, strict=True)):
        steady &= rank.steps.steady[at]
        wall[position] = (rank.steps.end_ns - rank.steps.start_ns)[at]
    if not steady.any():
        steady[:] = True
    # where a rank's recording lacks collectives, who was late is not known
    lacking = [group.uneven_steps for group in matches.groups if not group.fault]
    whole = steady & ~np.isin(step, np.concatenate([step[:0], *lacking]))
    if whole.any():
        steady = whole
    wait = np.zeros((len(ranks), len(step)), np.int64)
    blame = np.zeros((len(ranks), len(step)))
    for position in range(len(ranks)):
        pieces, step_at, late = _held(matches, step, position)
        own = intervals.covered(pieces, ranks[position].exposed + matches.offset_ns[position])
        np.add.at(wait[position], step_at, own)
        np.add.at(blame, (late, step_at), own)
    for position in range(len(ranks)):
        blame[position] /= max(len(_peers(matches, position)), 1)
    judged = sum(int(_judged(group, step[steady]).sum()) for group in matches.groups if not group.fault)
    return Waiting(step, steady, wall, wait, blame.round().astype(np.int64), judged)


def find_straggler(ranks: Sequence[RankRecord], matches: Matches, waits: Waiting) -> Straggler | None:
    """Return the rank that makes others wait, None where no rank stands out."""
    if not waits.n_judged or not waits.steady.any():
        return None
    blame = waits.blame_ns[:, waits.steady]
    total = int(blame.sum())
    if not total:
        return None
    worst = int(blame.sum(axis=1).argmax())
    n_late = int(((blame.argmax(axis=0) == worst) & (blame[worst] > 0)).sum())
    share = float(blame[worst].sum() / total)
    if n_late < MIN_BLAME * blame.shape[1] or share < MIN_BLAME:
        return None
    gain = spared_ns(ranks, matches, waits, worst).min(axis=0)[waits.steady]
    mean = waits.blame_ns[worst, waits.steady]
    low, middle, _ = median_interval(gain)
    least = 0.0 if len(gain) >= ENOUGH else MIN_SHARE * waits.step_ns / 2
    if middle < MIN_SHARE * waits.step_ns or low <= least:
        return None
    own = own_ns(ranks, waits)
    others = np.delete(own, worst, axis=0)
    if float(np.median(own[worst] - np.median(others, axis=0))) < MIN_OWN * middle:
        return None
    mine = [group for group in matches.groups if not group.fault and worst in group.members]
    late = [int((item.members[item.late] == worst).sum()) for item in mine]
    group = mine[int(np.argmax(late))]
    peers = _peers(matches, worst)
    return Straggler(
        position=worst,
        gain_ns=gain,
        beyond_ns=own[worst] - others.max(axis=0),
        mean_wait_ns=mean,
        n_late=n_late,
        blame_share=share,
        n_peers=len(peers),
        reaches_all=len(peers) == len(ranks) - 1,
        group=group,
        cause=_cause(ranks, group, waits, worst, middle),
    )


def own_ns(ranks: Sequence[RankRecord], waits: Waiting) -> Ints:
    """Return int64[ranks, steps]: the steady steps of each rank without communication alone."""
    steps = waits.step[waits.steady]
    own = []
    for rank in ranks:
        at = np.searchsorted(rank.steps.number, steps)
        own.append((rank.steps.end_ns - rank.steps.start_ns - rank.steps.parts_ns[:, 1])[at])
    return np.array(own, np.int64)


def _judged(one: GroupMatch, steps: Ints) -> NDArray[np.bool_]:
    """Return bool[matches]: in these steps, and not the first after a profiler started."""
    return np.isin(one.step, steps) & ~one.begins


def _peers(matches: Matches, position: int) -> Ints:
    """Return the positions of the others in a rank's groups."""
    members = [group.members for group in matches.groups if not group.fault and position in group.members]
    others = distinct(np.concatenate([np.empty(0, np.int64), *members]))
    return others[others != position]


def _held(matches: Matches, step: Ints, position: int, *, late_only: int = -1) -> tuple[Spans, Ints, Ints]:
    """Return when a rank is held up in collectives, as disjoint spans in order of their start.

    And for each its index into ``step`` (numbers, ascending), and the position of the rank waited for. ``late_only`` :
    only what goes when this rank comes with the second to last.
    """
    spans, at, who = [intervals.EMPTY], [], []
    for group in matches.groups:
        column = np.flatnonzero(group.members == position)
        if group.fault or not len(column):
            continue
        late = group.late
        use = _judged(group, step) & (late != column[0])
        if late_only >= 0:
            use &= group.members[late] == late_only
        second_ns, last_ns = group.last_two_ns[use].T
        begin = group.start_ns[use, column[0]]
        if late_only >= 0:
            begin = np.maximum(begin, second_ns)
        spans.append(np.stack([begin, last_ns], axis=1))
        at.append(np.searchsorted(step, group.step[use]))
        who.append(group.members[late[use]])
    held, of = intervals.disjoint(np.concatenate(spans))
    return held, joined(at)[of], joined(who)[of]


def spared_ns(ranks: Sequence[RankRecord], matches: Matches, waits: Waiting, late: int) -> Ints:
    """Return int64[peers, steps]: how long each rank in a rank's groups waits for that one alone."""
    others = _peers(matches, late)
    spared = np.zeros((len(others), len(waits.step)), np.int64)
    for place, position in enumerate(others.tolist()):
        pieces, step_at, _ = _held(matches, waits.step, position, late_only=late)
        own = intervals.covered(pieces, ranks[position].exposed + matches.offset_ns[position])
        np.add.at(spared[place], step_at, own)
    return spared


def _cause(
    ranks: Sequence[RankRecord], group: GroupMatch, waits: Waiting, late: int, gain_ns: float
) -> StragglerCause | None:
    last = np.flatnonzero(np.append(group.step[1:] != group.step[:-1], True) & (group.step >= 0))
    if len(last) == 1:
        # one step: from the first collective, whose own start is the profiler's, to the last
        ends, begins = last, np.zeros(1, np.int64)
    else:
        ends, begins = last[1:], last[:-1]
    keep = np.isin(group.step[ends], waits.step[waits.steady])
    ends, begins = ends[keep], begins[keep]
    if not len(ends):
        return None

    members = [ranks[position].collectives for position in group.members.tolist()]

    def between(tables: list[Ints]) -> Ints:
        return np.stack([table[group.index[ends, i]] - table[group.index[begins, i]] for i, table in enumerate(tables)])

    mine = group.members == late

    def excess(tables: list[Ints]) -> Floats:
        """Return float64[steps, columns]: how much more than the others in the middle."""
        amount = between(tables)
        return amount[mine][0] - np.median(amount[~mine], axis=0)

    more = excess([member.spent_ns for member in members])
    middle = np.median(more, axis=0)
    # of several, the one with the longest stretch, part of which is hidden behind the device's work
    stalls = {cell: _stall(ranks, group, late, group.step[ends].tolist(), cell) for cell in range(len(CELLS))}
    cells = [cell for cell in stalls if middle[cell] >= MIN_EXPLAINED * gain_ns]
    if not cells:
        return None
    best = max(cells, key=lambda cell: max(stalls[cell][1], middle[cell]))
    phase, activity = CELLS[best]
    moment, stall_ns = stalls[best]
    excess_ns = float(middle[best])
    n_more = float(np.median(excess([member.n_ops for member in members])[:, PHASES.index(phase) if phase else -1]))
    pace, mean_ns = _pace(ranks, group, late, phase)
    kind: Literal["stall", "work", "slower"]
    if stall_ns >= MOST * excess_ns:
        kind, excess_ns = "stall", max(excess_ns, stall_ns)
    elif n_more * mean_ns >= MOST * excess_ns:
        kind = "work"
    elif pace >= MIN_SLOWER or activity not in ("op", "device"):
        kind = "slower"
    else:
        return None
    return StragglerCause(
        phase=phase,
        activity=activity,
        excess_ns=excess_ns,
        n_more_ops=n_more,
        kind=kind,
        pace=pace,
        device_pace=_pace(ranks, group, late, "")[0],
        moment=moment,
        everywhere=bool((more[:, best] >= MOST * middle[best]).all()),
    )


def _stall(
    ranks: Sequence[RankRecord], group: GroupMatch, late: int, steps: list[int], cell: int
) -> tuple[Moment | None, float]:
    """Return the late rank's longest stretch in a cell, of a step in the middle, and what others have less there."""
    moments = [ranks[late].moments[step, cell] for step in steps if (step, cell) in ranks[late].moments]
    if not moments:
        return None, 0.0
    moment = sorted(moments, key=lambda moment: moment.dur_ns)[len(moments) // 2]
    others = [ranks[position].stretches for position in group.members.tolist() if position != late]
    usual = float(np.median([stretches.get((CELLS[cell][0], moment.place), 0) for stretches in others]))
    return moment, moment.dur_ns - usual


def _pace(ranks: Sequence[RankRecord], group: GroupMatch, late: int, phase: str) -> tuple[float, float]:
    """Return how many times as long calls of a phase take on the late rank, and their mean own ns there.

    The median over kinds of calls that all ranks make equally often, each weighted by its time.
    """
    mine = {kind: values for kind, values in ranks[late].paces.items() if kind[0] == phase}
    others = [ranks[position].paces for position in group.members.tolist() if position != late]
    ratios, weights = [], []
    for kind, (n, own_ns) in mine.items():
        theirs = [paces[kind] for paces in others if kind in paces]
        usual = float(np.median([value for _, value in theirs])) if theirs else 0.0
        if usual > 0 and len(theirs) == len(others) and all(count == n for count, _ in theirs):
            ratios.append(own_ns / usual)
            weights.append(n * usual)
    total = sum(n for n, _ in mine.values())
    mean_ns = sum(n * own_ns for n, own_ns in mine.values()) / max(total, 1)
    if not ratios:
        return 1.0, mean_ns
    order = np.argsort(ratios)
    reach = np.cumsum(np.array(weights)[order])
    return ratios[int(order[int(np.searchsorted(reach, reach[-1] / 2))])], mean_ns

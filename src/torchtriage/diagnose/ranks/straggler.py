"""Who makes the others wait, in which steps, by how much, and what it did before.

A rank waits in a collective from its own start to the start of the last one; what counts is the
part in which it has nothing else to do. A straggler costs what would go if it came with the second
to last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.core.arrays import distinct
from torchtriage.core.intervals import Spans
from torchtriage.core.stats.median import median_interval
from torchtriage.diagnose.ranks.host_activity import CELLS, PHASES
from torchtriage.diagnose.ranks.match import GroupMatch, Matches
from torchtriage.diagnose.ranks.rank_record import RankRecord

__all__ = ["Straggler", "StragglerCause", "Waiting", "find_straggler", "waiting"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MIN_SHARE = 0.05
"""Of the step, in the median (catalogue 36)."""
MIN_BLAME = 0.60
"""Of the steps, and of all waiting (catalogue 36)."""
MIN_EXPLAINED = 0.3
"""Of the gain, before a difference between ranks is called the cause."""


@dataclass(frozen=True, eq=False)
class Waiting:
    """How long each rank waited for the others, step by step.

    ``step`` : numbers of the steps all ranks recorded. ``steady`` : bool[steps], steady on every
    rank. ``wall_ns`` : int64[ranks, steps]. ``wait_ns`` : int64[ranks, steps], with nothing beside
    it. ``blame_ns`` : int64[ranks, steps], mean wait that each rank caused the members of its
    groups.
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
    """What the late rank did more of: a cell of ``CELLS``, and how much, per step."""

    phase: str
    activity: str
    excess_ns: float
    n_more_ops: float


@dataclass(frozen=True, eq=False)
class Straggler:
    """One rank that makes others wait; arrays have one element per steady step.

    ``gain_ns`` : what every waiting rank would be spared at least. ``mean_wait_ns`` : what they
    wait for it in the mean. ``n_late`` : steps in which it causes most waiting. ``blame_share`` :
    its share of all waiting. ``reaches_all`` : whether its groups hold every recorded rank.
    """

    position: int
    gain_ns: Ints
    mean_wait_ns: Ints
    n_late: int
    blame_share: float
    reaches_all: bool
    group: GroupMatch
    cause: StragglerCause | None


def waiting(ranks: Sequence[RankRecord], matches: Matches) -> Waiting:
    """Return the waits of every rank in every step that all of them recorded."""
    step = ranks[0].steps.number
    for rank in ranks[1:]:
        step = np.intersect1d(step, rank.steps.number)
    places = [np.searchsorted(rank.steps.number, step) for rank in ranks]
    steady = np.ones(len(step), bool)
    wall = np.empty((len(ranks), len(step)), np.int64)
    for position, (rank, at) in enumerate(zip(ranks, places, strict=True)):
        steady &= rank.steps.steady[at]
        wall[position] = (rank.steps.end_ns - rank.steps.start_ns)[at]
    if not steady.any():
        steady[:] = True
    wait = np.zeros((len(ranks), len(step)), np.int64)
    blame = np.zeros((len(ranks), len(step)))
    for position in range(len(ranks)):
        pieces, step_at, late, weight = _held(matches, step, position)
        own = intervals.covered(pieces, ranks[position].exposed + matches.offset_ns[position])
        np.add.at(wait[position], step_at, own)
        np.add.at(blame, (late, step_at), own * weight)
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
    gains, means = _gains(ranks, matches, waits, worst)
    gain, mean = gains[waits.steady], means[waits.steady]
    low, middle, _ = median_interval(gain)
    if middle < MIN_SHARE * waits.step_ns or low < MIN_SHARE * waits.step_ns / 2:
        return None
    mine = [group for group in matches.groups if not group.fault and worst in group.members]
    late = [int((item.members[item.late] == worst).sum()) for item in mine]
    group = mine[int(np.argmax(late))]
    reached = distinct(np.concatenate([item.members for item in mine]))
    return Straggler(
        position=worst,
        gain_ns=gain,
        mean_wait_ns=mean,
        n_late=n_late,
        blame_share=share,
        reaches_all=len(reached) == len(ranks),
        group=group,
        cause=_cause(ranks, group, waits, worst, middle),
    )


def _judged(one: GroupMatch, steps: Ints) -> NDArray[np.bool_]:
    """Return bool[matches]: in these steps, and not the first after a profiler started."""
    return np.isin(one.step, steps) & ~one.begins


def _held(matches: Matches, step: Ints, position: int, *, late_only: int = -1) -> tuple[Spans, Ints, Ints, Floats]:
    """Return when a rank is held up in collectives, as disjoint spans in order of their start.

    And for each its index into ``step`` (numbers, ascending), the position of the rank waited for, and one over the
    number of ranks that wait with it. ``late_only`` : only what goes when this rank comes with the second to last.
    """
    spans, at, who, weight = [intervals.EMPTY], [], [], []
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
        weight.append(np.full(int(use.sum()), 1 / max(len(group.members) - 1, 1)))
    none = [np.empty(0, np.int64)]
    held = np.concatenate(spans)
    order = np.argsort(held[:, 0], kind="stable")
    held = held[order]
    reach = np.maximum.accumulate(np.append(held[:1, 0], held[:-1, 1]))
    held = np.stack([np.maximum(held[:, 0], reach), held[:, 1]], axis=1)
    held[:, 1] = np.maximum(held[:, 1], held[:, 0])
    return (
        held,
        np.concatenate(at or none)[order].astype(np.int64),
        np.concatenate(who or none)[order].astype(np.int64),
        np.concatenate(weight or [np.empty(0)])[order],
    )


def _gains(ranks: Sequence[RankRecord], matches: Matches, waits: Waiting, late: int) -> tuple[Ints, Ints]:
    """Return int64[steps] twice: what every waiting rank is spared, and the mean wait for it."""
    mine = [group for group in matches.groups if not group.fault and late in group.members]
    others = distinct(np.concatenate([item.members for item in mine]))
    others = others[others != late]
    gain = np.full((len(others), len(waits.step)), 0, np.int64)
    for place, position in enumerate(others.tolist()):
        pieces, step_at, _, _ = _held(matches, waits.step, position, late_only=late)
        own = intervals.covered(pieces, ranks[position].exposed + matches.offset_ns[position])
        np.add.at(gain[place], step_at, own)
    return gain.min(axis=0), waits.blame_ns[late]


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

    spent = between([member.spent_ns for member in members])
    mine = group.members == late
    more = np.median(spent[mine][0] - np.median(spent[~mine], axis=0), axis=0)
    best = int(more.argmax())
    if more[best] < MIN_EXPLAINED * gain_ns:
        return None
    phase, activity = CELLS[best]
    n_ops = between([member.n_ops for member in members])
    at = PHASES.index(phase) if phase else slice(None)
    counts = n_ops[:, :, at].reshape(*n_ops.shape[:2], -1).sum(axis=2)
    ops = float(np.median(counts[mine][0] - np.median(counts[~mine], axis=0)))
    return StragglerCause(phase, activity, float(more[best]), ops)

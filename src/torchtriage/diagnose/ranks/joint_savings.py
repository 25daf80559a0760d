"""The job's step with a finding fixed: all ranks replayed together, each reduced to its collectives.

A rank comes to a collective some time after the ends of those before it; all leave together when the last has come. A
fix changes the first on the ranks that have the finding, and the second follows. One pass over the collectives gives
the step of the job, so a thousand ranks are replayed in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Floats, Ints
from torchtriage.diagnose.ranks.match import Matches
from torchtriage.diagnose.ranks.rank_skeleton import RankSkeleton
from torchtriage.diagnose.replay.reduce import Reduced

MAX_ERROR = 0.03
"""Of the recorded step: a joint replay further off gives no numbers."""
MIN_WAIT, MIN_FREED = 0.02, 0.5
"""Waiting of so much of the step has to come back, at least by half, when all ranks go on alone: else the host waited,
too, in calls that tell nothing of it (of six real jobs 0.05 to 0.44 in three, 1.0 to 1.7 in the others)."""

Fixed = dict[int, list[tuple[int, tuple[float, ...]]]]
"""Position of a rank to which of its fixes are made, each at which strengths (1: as its own replay has it)."""


@dataclass(frozen=True, eq=False)
class _Wave:
    """Collectives that can be gone through at once; ``first`` : where each meeting begins in ``at``.

    ``at`` : places in the table of all ranks' collectives, those of a meeting together.
    """

    at: Ints
    first: Ints
    meeting: Ints
    """Of each place, the number of its meeting in this wave."""


class JointSavings:
    """The ranks of a job replayed together, each reduced to its collectives.

    ``steps`` : for each rank, the steps (indices into its own) that are averaged over; equal lengths. ``wait_ns`` : how
    long ranks were recorded to wait for each other with nothing beside it, per step in the mean.
    """

    def __init__(
        self,
        ranks: Sequence[RankSkeleton | None],
        matches: Matches,
        steps: Sequence[Ints],
        *,
        n_point_to_point: int,
        wait_ns: float = 0.0,
    ) -> None:
        """Join the skeletons, or say why they cannot be."""
        self.reason = _reason(ranks, matches, n_point_to_point)
        self._ranks = [rank for rank in ranks if rank is not None]
        self._steps = steps
        self.error = 0.0
        """Against the recorded step; signed share."""
        if self.reason:
            return
        sizes = [len(rank.row) for rank in self._ranks]
        self._first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        origins = np.array([rank.origin_ns for rank in self._ranks]) + matches.offset_ns
        self._late = origins - origins.min()
        began = np.concatenate([rank.start_ns + late for rank, late in zip(self._ranks, self._late, strict=True)])
        self._waves, meet_ns = self._meetings(matches, began)
        own = np.concatenate([rank.end_ns + late for rank, late in zip(self._ranks, self._late, strict=True)])
        self._transfer = np.clip(own - meet_ns, 0, own - began).astype(np.float64)
        self._recorded_end = own.astype(np.float64)
        recorded = np.array([np.diff(rank.bound_ns)[at] for rank, at in self._each()], np.float64)
        self._base = self._replayed({}, 1)[..., 0]
        self.step_ns = float(self._base.mean())
        self.error = float(self._base.mean() / recorded.mean() - 1) if recorded.mean() else 0.0
        if abs(self.error) > MAX_ERROR:
            self.reason = "the ranks replayed together do not give the recorded steps"
        elif wait_ns >= MIN_WAIT * self.step_ns:
            freed = float((self._base - self._replayed({}, 1, apart=True)[..., 0]).mean())
            if freed < MIN_FREED * wait_ns:
                self.reason = "a rank that goes on alone gets back little of its waiting: the host waited, too"

    # -- what it says ------------------------------------------------------------------------

    def fixes_of(self, position: int) -> tuple[int, ...]:
        """Return the fixes of a rank that can be replayed."""
        return tuple(self._ranks[position].fixes)

    def saving_of(self, position: int, fix: int) -> float | None:
        """Return what a fix saves in the rank's own replay, in ns per step; None where it cannot be replayed."""
        return self._ranks[position].saving_ns.get(fix)

    def savings_ns(self, fixed: Fixed, n_strengths: int, *, unawaited: int = -1) -> list[float]:
        """Return what the job's mean step saves with these fixes at each strength; nobody waits for ``unawaited``."""
        others = np.arange(len(self._ranks)) != unawaited
        after = self._replayed(fixed, n_strengths, unawaited=unawaited)[others]
        saved = self._base[others].mean() - after.mean(axis=(0, 1))
        return [float(value) for value in saved]

    def without_waiting_for(self, position: int) -> Floats:
        """Return float64[steps], ns: what each step of the others saves when nobody has to wait for this rank."""
        others = np.arange(len(self._ranks)) != position
        after = self._replayed({}, 1, unawaited=position)[..., 0]
        return (self._base[others] - after[others]).mean(axis=0)

    # -- how ---------------------------------------------------------------------------------

    def _each(self) -> list[tuple[RankSkeleton, Ints]]:
        return list(zip(self._ranks, self._steps, strict=True))

    def _meetings(self, matches: Matches, began_ns: Ints) -> tuple[list[_Wave], Ints]:
        """Return what meets, in an order in which it can be gone through, and of each place when all had come."""
        n = int(self._first[-1])
        rank_of = np.repeat(np.arange(len(self._ranks)), np.diff(self._first))
        place = np.full(len(matches.rank), -1, np.int64)
        for position, rank in enumerate(self._ranks):
            mine = np.flatnonzero(matches.rank == position)
            rows = rank.row
            order = np.argsort(rows)
            at = order[np.minimum(np.searchsorted(rows[order], matches.row[mine]), len(rows) - 1)]
            place[mine] = np.where(rows[at] == matches.row[mine], at + self._first[position], -1)
        # what was not matched meets nobody
        meeting = np.full(n, -1, np.int64)
        known = place >= 0
        meeting[place[known]] = matches.match_id[known]
        alone = meeting < 0
        meeting[alone] = int(matches.match_id.max(initial=-1)) + 1 + np.arange(int(alone.sum()))
        _, meeting = np.unique(meeting, return_inverse=True)
        meeting = meeting.reshape(-1)
        meet_ns = np.full(int(meeting.max()) + 1, np.iinfo(np.int64).min)
        np.maximum.at(meet_ns, meeting, began_ns)
        # a meeting comes one wave after the last of those that its members have been to
        by_meeting = np.argsort(meeting, kind="stable")
        bounds = np.searchsorted(meeting[by_meeting], np.arange(len(meet_ns) + 1))
        reached = [0] * len(self._ranks)
        wave = np.zeros(len(meet_ns), np.int64)
        for encounter in np.argsort(meet_ns, kind="stable").tolist():
            members = rank_of[by_meeting[bounds[encounter] : bounds[encounter + 1]]].tolist()
            level = max(reached[member] for member in members) + 1
            wave[encounter] = level
            for member in members:
                reached[member] = level
        order = np.lexsort((np.arange(n), meeting, wave[meeting]))
        waves = []
        levels = wave[meeting][order]
        for part in np.split(order, np.flatnonzero(np.diff(levels)) + 1):
            head = np.flatnonzero(np.append(True, np.diff(meeting[part]) != 0))
            waves.append(_Wave(part, head, np.repeat(np.arange(len(head)), np.diff(np.append(head, len(part))))))
        return waves, meet_ns[meeting]

    @cached_property
    def _source(self) -> Ints:
        """int64[targets, k]: where each target's sources are in the table of ends; all collectives, then all bounds."""
        n = int(self._first[-1])
        heads, tails = [], []
        for position, rank in enumerate(self._ranks):
            source = _reduced(rank).source.astype(np.int64)
            source = np.where(source > 0, source - 1 + self._first[position], n + position)
            heads.append(source[: len(rank.row)])
            tails.append(source[len(rank.row) :])
        return np.concatenate([*heads, *tails])

    def _changed(self, fixed: Fixed, width: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return lags float32[targets, k, strengths] and transfers float32[collectives, strengths], in ns."""
        heads, tails, transfers = [], [], []
        for position, rank in enumerate(self._ranks):
            reduced, n = _reduced(rank), len(rank.row)
            lag = np.repeat(reduced.lag_ns[0][:, :, None], width, axis=2)
            keep = np.ones((n, width), np.float32)
            for fix, strengths in fixed.get(position, ()):
                index = rank.fixes[fix]
                strength = np.array(strengths, np.float32)
                with np.errstate(invalid="ignore"):
                    less = (reduced.lag_ns[0] - reduced.lag_ns[index])[:, :, None] * strength
                lag -= np.where(np.isnan(less), 0, less)
                keep -= (1 - reduced.keep[index])[:, None] * strength
            heads.append(lag[:n])
            tails.append(lag[n:])
            own = self._transfer[self._first[position] : self._first[position + 1]]
            transfers.append(own[:, None] * np.maximum(keep, 0))
        return np.concatenate([*heads, *tails]), np.concatenate(transfers)

    def _replayed(self, fixed: Fixed, width: int, *, unawaited: int = -1, apart: bool = False) -> Floats:
        """Return float64[ranks, steps, strengths], ns: the walls of the steps; ``apart`` : nobody waits for anybody."""
        n, source = int(self._first[-1]), self._source
        lag, transfer = self._changed(fixed, width)
        end = np.empty((n + len(self._ranks), width))
        end[:n] = self._recorded_end[:, None]
        # where a rank's own recording begins
        end[n:] = self._late[:, None]
        rank_of = np.repeat(np.arange(len(self._ranks)), np.diff(self._first))
        for wave in self._waves:
            arrive = (end[source[wave.at]] + lag[wave.at]).max(axis=1)
            if unawaited >= 0:
                late = rank_of[wave.at] == unawaited
                counts = np.bincount(wave.meeting, weights=~late)
                arrive[late & (counts[wave.meeting] > 0)] = -np.inf
            if not apart:
                arrive = np.maximum.reduceat(arrive, wave.first, axis=0)[wave.meeting]
            end[wave.at] = arrive + transfer[wave.at]
        done = (end[source[n:]] + lag[n:]).max(axis=1)
        out = np.empty((len(self._ranks), len(self._steps[0]), width))
        at = 0
        for position, (rank, steps) in enumerate(self._each()):
            bounds = np.maximum.accumulate(done[at : at + len(rank.bound_ns)], axis=0)
            out[position] = np.diff(bounds, axis=0)[steps]
            at += len(rank.bound_ns)
        return out


def _reduced(rank: RankSkeleton) -> Reduced:
    assert rank.reduced is not None  # what has none is refused
    return rank.reduced


def _reason(ranks: Sequence[RankSkeleton | None], matches: Matches, n_point_to_point: int) -> str:
    """Return why the ranks cannot be replayed together, empty where they can."""
    if any(rank is None for rank in ranks):
        return "collectives of the host are not replayed"
    refused = [rank.reason for rank in ranks if rank is not None and rank.reason]
    if refused:
        return refused[0]
    if n_point_to_point:
        return "ranks also send to each other, which is not replayed"
    if any(group.fault for group in matches.groups):
        return "collectives of a process group could not be matched"
    return ""

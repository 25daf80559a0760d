"""Which rank is late, from the times that ranks tell of the same steps.

Ranks that train in step all take as long as the slowest: it is the one that works longest and waits least. A rank is
late where both hold, in several windows in a row, by more than the ranks and their steps differ anyway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from torchtriage.core.stats.median import medians_of_others
from torchtriage.core.units import format_ms
from torchtriage.operate.stragglers.summary import MAD, PHASE_NAMES, WindowTimes

N = len(PHASE_NAMES)
OWN, OWN_MEAN, OWN_ERROR, WAITED, WAITED_MEAN, STEP = range(6)
MEDIANS, MEANS, HOST = slice(6, 6 + N), slice(6 + N, 6 + 2 * N), slice(6 + 2 * N, 6 + 3 * N)
LEAST_SHARE, LEAST_MS = 0.03, 0.5
"""Of a step: below it, machines of one kind differ for good."""
ERRORS = 4.0
"""So many standard errors of a window's median are chance: one rank of a thousand, and more."""
SPREADS, SPREADS_OF_FEW, FEW = 4.0, 2.0, 8
"""So many times their spread ranks differ by chance; of few ranks the spread is uncertain, and the late one's, too."""
IN_A_ROW, MEANS_IN_A_ROW = 3, 6
"""Windows in which a rank has to be late at a stretch: in most steps, or only in some, which the mean shows."""
STEADY = 2.0
"""What only some steps are late by is told where it is so many times its own spread over the windows."""
GONE = 10
"""Windows without a rank after which a late one counts as compared no more."""
WAITS_LESS = 0.5
"""The others wait at least this share of what a late rank works longer: else nobody waits for it."""
EVERY_STEP = 0.5
"""Where the median step is late by this share of the mean, all are."""
EXPLAINED = 0.5
"""Where the phases' medians have less than this share of what is late, each step is late in another phase."""
NAMED = 0.5
"""A phase is named where it has more than this share of the first one's."""
STAYS = 0.5
"""A rank that was told stays late above this share of the limit: what lies at the limit is told once."""
MOST_TOLD = 8
Kind = Literal["late", "changed", "ended", "absent"]


@dataclass(frozen=True)
class Late:
    """A rank that makes the others wait, in ms per step.

    ``kind`` : ``late``, ``changed`` (its time goes elsewhere now), ``ended``, or ``absent`` (it tells of no more steps,
    so that it is not compared). ``late_ms`` : what it works longer than the median of the others. ``saved_ms`` : what
    the job would be spared if it did not. ``phases`` : where, the most first. ``every_step`` : False where means show
    it and medians do not: some steps are late, or each in another phase; the numbers are means then. ``side`` : host or
    device. ``since`` : the first step, ``until`` : the last one that was judged.
    """

    kind: Kind
    rank: int
    late_ms: float
    step_ms: float
    saved_ms: float
    phases: dict[str, float]
    every_step: bool
    side: Literal["host", "device"]
    since: int
    until: int

    def __str__(self) -> str:
        """Return the line for the log."""
        if self.kind == "ended":
            return f"rank {self.rank} is no longer late as of step {self.until}"
        if self.kind == "absent":
            return f"rank {self.rank} is no longer compared as of step {self.until}"
        often = "" if self.every_step else " on average"
        *others, last = self.phases
        where = ", ".join(others) + " and " * bool(others) + last + " (device)" * (self.side == "device")
        again = "now " * (self.kind == "changed")
        return (
            f"rank {self.rank} is {again}late by {format_ms(self.late_ms)} of {format_ms(self.step_ms)} a step{often}"
            f" from step {self.since} on: {where}"
        )


@dataclass
class _Streak:
    n: int = 0
    since: int = 0
    """The first window."""
    quiet: int = 0
    absent: int = 0
    told: Late | None = None
    other: int = 0
    """Windows at a stretch in which another phase was first."""


class Judge:
    """Takes windows in turn; says what began, changed and ended with each.

    ``every`` : steps of a window. ``late`` : the ranks that are late now.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._streaks: dict[int, _Streak] = {}
        self._means: deque[tuple[int, dict[int, float]]] = deque(maxlen=MEANS_IN_A_ROW)
        self.n_windows = 0
        self.step_ms = 0.0
        self.typical: list[int] = []
        """The ranks of the last window, the most usual one first."""

    @property
    def late(self) -> list[Late]:
        """The ranks that are late now."""
        return [streak.told for streak in self._streaks.values() if streak.told is not None]

    def update(self, number: int, ranks: Mapping[int, WindowTimes]) -> list[Late]:
        """Judge a window of all ranks that told of it."""
        if number == 0 or len(ranks) < 2:
            return []  # the first steps compile, allocate and connect
        self.n_windows += 1
        names = np.array(sorted(ranks))
        values = np.array([ranks[rank].values for rank in names])
        self.step_ms = float(np.median(values[:, STEP]))
        order = np.argsort(np.abs(values[:, OWN] - np.median(values[:, OWN])), kind="stable")
        self.typical = [int(rank) for rank in names[order]]
        self._note_means(number, names, values)
        found = self._recurring() | self._steady(names, values)
        return self._follow(number, names, values, found)

    # -- one window ------------------------------------------------------------------------------

    def _steady(self, names: Any, values: Any) -> dict[int, tuple[float, bool]]:
        own, wait = values[:, OWN], values[:, WAITED]
        excess, usual_wait = own - medians_of_others(own), medians_of_others(wait)
        error = np.hypot(values[:, OWN_ERROR], np.median(values[:, OWN_ERROR]))
        limit = np.maximum(_least(values), ERRORS * error)
        if len(own) > 2:
            spreads = SPREADS_OF_FEW if len(own) < FEW else SPREADS
            limit = np.maximum(limit, spreads * MAD * np.median(np.abs(own - np.median(own))))
        late_ranks = {late.rank for late in self.late}
        limit = np.where([rank in late_ranks for rank in names], STAYS * limit, limit)
        late = _apart(own, (excess > limit) & (usual_wait - wait > WAITS_LESS * excess), _least(values))
        return {int(names[at]): (float(excess[at]), True) for at in np.flatnonzero(late)}

    def _note_means(self, number: int, names: Any, values: Any) -> None:
        own, wait = values[:, OWN_MEAN], values[:, WAITED_MEAN]
        excess, spared = own - medians_of_others(own), medians_of_others(wait) - wait
        late = _apart(own, (excess > _least(values)) & (spared > WAITS_LESS * excess), _least(values))
        self._means.append((number, {int(names[at]): float(excess[at]) for at in np.flatnonzero(late)}))

    def _recurring(self) -> dict[int, tuple[float, bool]]:
        if len(self._means) < MEANS_IN_A_ROW:
            return {}
        found = {}
        for rank in set.intersection(*(set(window) for _, window in self._means)):
            past = np.array([window[rank] for _, window in self._means])
            if np.median(past) > STEADY * past.std(ddof=1):
                found[rank] = (float(np.median(past)), False)
        return found

    # -- windows in a row ------------------------------------------------------------------------

    def _follow(self, number: int, names: Any, values: Any, found: dict[int, tuple[float, bool]]) -> list[Late]:
        told: list[Late] = []
        last_step = (number + 1) * self._every
        for rank in [member for member in self._streaks if member not in found]:
            streak = self._streaks[rank]
            streak.absent = 0 if rank in names else streak.absent + 1
            if 0 < streak.absent < GONE:
                continue
            streak.n, streak.quiet = 0, streak.quiet + 1
            if streak.absent or streak.told is None or streak.quiet >= IN_A_ROW:
                del self._streaks[rank]
                if streak.told is not None:
                    kind: Kind = "absent" if streak.absent else "ended"
                    n_windows = streak.absent or streak.quiet
                    told.append(replace(streak.told, kind=kind, until=last_step - n_windows * self._every))
        for rank, (excess, every_step) in sorted(found.items(), key=lambda item: -item[1][0])[:MOST_TOLD]:
            streak = self._streaks.setdefault(rank, _Streak())
            if not streak.n and streak.told is None:
                streak.since = number if every_step else self._means[0][0]
            streak.n, streak.quiet, streak.absent = streak.n + 1, 0, 0
            if streak.n < IN_A_ROW and every_step:
                continue
            late = self._late(rank, excess, every_step, streak.since, last_step, names, values)
            if streak.told is None:
                streak.told = late
                told.append(late)
                continue
            streak.other = streak.other + 1 if next(iter(late.phases)) not in streak.told.phases else 0
            if streak.other >= IN_A_ROW:
                streak.other, streak.since = 0, number - IN_A_ROW + 1
                streak.told = self._late(rank, excess, every_step, streak.since, last_step, names, values, "changed")
                told.append(streak.told)
        return told

    def _late(
        self,
        rank: int,
        excess: float,
        every_step: bool,
        since: int,
        last_step: int,
        names: Any,
        values: Any,
        kind: Kind = "late",
    ) -> Late:
        at = int(np.searchsorted(names, rank))
        surplus = values[at] - np.median(np.delete(values, at, axis=0), axis=0)
        more = surplus[MEDIANS]
        every_step = every_step or bool(surplus[OWN] > EVERY_STEP * excess)
        every_step = every_step and bool(np.maximum(more, 0).sum() > EXPLAINED * excess)
        if not every_step:
            more = surplus[MEANS]
        own = values[:, OWN if every_step else OWN_MEAN]
        host = surplus[HOST][more.argmax()]
        order = [phase for phase in np.argsort(-more) if phase == more.argmax() or more[phase] >= NAMED * more.max()]
        return Late(
            kind,
            rank,
            round(excess, 3),
            round(float(np.median(values[:, STEP])), 3),
            round(max(0.0, float(own[at] - np.delete(own, at).max())), 3),
            {PHASE_NAMES[phase]: round(float(more[phase]), 3) for phase in order},
            every_step,
            "device" if every_step and host < 0.5 * more.max() else "host",
            since * self._every,
            last_step,
        )


def _least(values: Any) -> Any:
    return max(LEAST_MS, LEAST_SHARE * float(np.median(values[:, STEP])))


def _apart(own: Any, late: Any, least: float) -> Any:
    """Return who of the late works longer by ``least`` than everybody who is not; who works least is never late."""
    return late & (own - own[~late].max() > least)

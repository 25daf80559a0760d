"""Whether one program is slower than another, from processes that each measured it many times.

What repeats from iteration to iteration is the same process: its memory layout, its neighbours on the machine. The unit
of analysis is therefore the session, one fresh process, summed up by one number; thousands of iterations in one process
are one observation (Kalibera and Jones 2013).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np

from torchtriage.core.arrays import Floats
from torchtriage.core.stats.difference import student_quantile, student_tail
from torchtriage.core.stats.quantiles import check_enough, session_quantile
from torchtriage.core.stats.rank_tests import centre_and_interval, rank_sum_below, signed_rank_below, two_sided_p

Statistic = Literal["low", "median", "mean", "p95", "p99", "peak"]
Verdict = Literal["regression", "improvement", "same", "inconclusive"]

STATISTICS: tuple[Statistic, ...] = get_args(Statistic)
LOW = 0.1
"""The share of a session's values whose mean is its ``low``; see docs/statistics.md."""
QUANTILES = {"p95": 0.95, "p99": 0.99}
POWER = 0.8
"""The chance at which ``pairs_needed`` and ``pairs_to_tell`` aim."""
LEVEL_RISK = 0.003
"""How often a history without a change is cut in two."""
RESOLUTION = 1e-7
"""Shares below this are rounding, in histories without noise."""


@dataclass(frozen=True)
class Change:
    """After over before, with the interval that holds the true ratio at ``level``.

    ``ratio`` 1.04 : 4 % more. ``low``, ``high`` : NaN where there are too few sessions for that
    level. ``n_before``, ``n_after`` : sessions. ``p_value`` : two-sided; 1 within the floor.
    ``floor`` : the interval reaches at least this share to either side. ``spread`` : the deviation
    of the logarithm of one pair's ratio (unpaired: of one session against another) as far as the
    estimate feels it; NaN below 3 sessions.
    """

    ratio: float
    low: float
    high: float
    n_before: int
    n_after: int
    statistic: Statistic
    p_value: float
    floor: float
    level: float
    paired: bool
    spread: float


def compare_values(
    before: Floats,
    after: Floats,
    *,
    paired: bool,
    level: float = 0.98,
    floor: float = 0.0,
    statistic: Statistic = "low",
) -> Change:
    """Return by what factor ``after`` differs from ``before``.

    ``before``, ``after`` : float64[n], what :func:`session_value` says of each session, in the order they ran; warm-up
    left out. Positive, of any one unit. ``paired`` : session i of either ran in the same round, in turns: what a round
    shares cancels. ``level`` : how often the interval holds the true ratio. 0.98 leaves 1 % at either end: of equal
    programs at most one in a hundred is called slower. ``floor`` : what two runs of one program may differ by on this
    machine however many sessions they have, as a share (see :class:`RecordingNoise`): the interval is never narrower. 0
    for pairs. ``statistic`` : what sums up a session. ``low``: the mean of its lowest tenth; neighbours on the machine
    only ever add time, so the fast iterations carry the program (Chen and Revels 2016). ``peak``: its largest value,
    for memory.

    Paired: the Hodges-Lehmann estimate and the exact interval of Wilcoxon's signed ranks on the logarithms of the
    rounds' ratios. Equal programs that are run in random or alternating order make every sign a fair coin, so the error
    rate is exact whatever the noise: heavy tails, drift over rounds and rounds that resemble each other are all
    allowed. At most 1 % at either end needs 7 pairs. Unpaired: the two-sample form (Mann and Whitney; Moses), which
    assumes that sessions of both could be swapped. A machine that changed between two recordings breaks that and only
    ``floor`` covers it.

    Raises ValueError: fewer than 2 sessions on a side, unequal numbers of paired ones, or sessions that are all alike
    (a clock that stands still; allowed for ``peak``).
    """
    if not 0 < level < 1:
        raise ValueError(f"expected a level between 0 and 1, found {level}")
    if not (math.isfinite(floor) and floor >= 0):
        raise ValueError(f"expected a floor of 0 or more, found {floor}")
    if min(len(before), len(after)) < 2:
        raise ValueError(f"expected at least 2 sessions on each side, found {len(before)} and {len(after)}")
    if paired and len(before) != len(after):
        raise ValueError(f"expected as many sessions after as before in pairs, found {len(before)} and {len(after)}")
    from_, to = np.log(before), np.log(after)
    if statistic != "peak" and np.ptp(from_) == 0 == np.ptp(to):
        raise ValueError("expected sessions that vary, found the same value in all of them")
    if paired:
        differences = to - from_
        first, second = np.triu_indices(len(differences))
        shifts = (differences[first] + differences[second]) / 2  # Walsh averages
        below = signed_rank_below(len(differences))
        n_pairs = float(len(differences))
    else:
        shifts = (to[:, None] - from_[None, :]).ravel()
        below = rank_sum_below(len(from_), len(to))
        n_pairs = 2 / (1 / len(from_) + 1 / len(to))
    # an interval of one standard error to either side
    _, from_here, to_there = centre_and_interval(shifts, below, 0.6827)
    centre, low, high = centre_and_interval(shifts, below, level)
    allowed = math.log1p(floor)
    low, high = min(low, centre - allowed), max(high, centre + allowed)
    return Change(
        ratio=math.exp(centre),
        low=math.exp(low),
        high=math.exp(high),
        n_before=len(before),
        n_after=len(after),
        statistic=statistic,
        p_value=two_sided_p(shifts, below) if abs(centre) > allowed or not allowed else 1.0,
        floor=floor,
        level=level,
        paired=paired,
        spread=(to_there - from_here) / 2 * math.sqrt(n_pairs),
    )


def verdict(change: Change, *, min_effect: float) -> Verdict:
    """Return what to make of a change when less than ``min_effect`` (a share) is of no interest.

    regression, improvement
        The interval excludes equality, and the estimate is ``min_effect`` or more.
    same
        The interval excludes a regression of ``min_effect``: not worse, perhaps a little better.
    inconclusive
        Neither; more sessions would decide (:func:`pairs_needed`).
    """
    if not (math.isfinite(min_effect) and min_effect >= 0):
        raise ValueError(f"expected a smallest effect of 0 or more, found {min_effect}")
    ratio, low, high = change.ratio, change.low, change.high
    if math.isnan(low):
        return "inconclusive"
    worse = 1 + min_effect
    if low > 1 and ratio >= worse:
        return "regression"
    if high < 1 and ratio <= 1 / worse:
        return "improvement"
    return "same" if high < worse else "inconclusive"


def least_sessions(level: float, *, paired: bool) -> int:
    """Return how many pairs, or sessions a side, an interval at ``level`` needs at the least.

    With fewer no change is large enough: at most 1 % at either end takes 7 pairs, or 5 a side.
    """
    tail = (1 - level) / 2 * (1 + 1e-9)
    n = 2
    while (2.0**-n if paired else 1 / math.comb(2 * n, n)) > tail:
        n += 1
    return n


def pairs_needed(change: Change, effect: float) -> int:
    """Return how many pairs would show a true change of ``effect`` (a share) 8 times in 10.

    To show it is to exclude equality; that the estimate also reaches ``effect``, as :func:`verdict` asks, happens for a
    change of just that size half the time. From the spread seen so far, which is itself uncertain: from 10 pairs the
    number may be half or double. Guenther's (1981) approximation; never fewer than could prove anything.
    """
    if not (math.isfinite(effect) and effect > 0):
        raise ValueError(f"expected an effect above 0, found {effect}")
    tail = (1 - change.level) / 2
    least = least_sessions(change.level, paired=change.paired)
    reach, beyond = math.log1p(effect), math.log1p(effect) - math.log1p(change.floor)
    if beyond <= 0:
        raise ValueError(
            f"expected an effect above the noise floor of {change.floor:.1%}, found {effect:.1%}:"
            " no number of pairs would find it"
        )
    z_tail = student_quantile(1 - tail, 200)
    z = z_tail + student_quantile(POWER, 200)
    if math.isnan(change.spread):
        return least
    # to exclude equality, and to pass the floor
    errors = max(z / reach, (z - z_tail) / beyond)
    return max(least, math.ceil((errors * change.spread) ** 2 + z_tail**2 / 2))


def pairs_to_tell(change: Change, limit: float, *, miss: float) -> int | None:
    """Return how many pairs would settle, 8 times in 10, what is inconclusive now.

    If the true change is the one estimated now (no change where it seems better). One below ``limit`` (a share) is
    settled once the limit is excluded at a risk of ``miss``; one of ``limit`` or more once equality is, and the
    estimate stays beyond the limit. None where no number of pairs would: the estimate is the limit, or within the floor
    of it. More is worse.
    """
    seen, edge = max(math.log(change.ratio), 0.0), math.log1p(limit)
    allowed = math.log1p(change.floor)
    risk = miss if seen < edge else (1 - change.level) / 2
    # what noise has to stay within, with the risk's quantile and without
    reach = edge - seen if seen < edge else seen
    beyond = reach - allowed if seen < edge else min(seen - allowed, seen - edge)
    if beyond <= 0:
        return None
    least = least_sessions(1 - 2 * risk, paired=change.paired)
    if math.isnan(change.spread):
        return least
    z_power, z_risk = (student_quantile(item, 200) for item in (POWER, 1 - risk))
    errors = max((z_risk + z_power) / reach, z_power / beyond)
    return max(least, math.ceil((errors * change.spread) ** 2 + z_risk**2 / 2))


def newest_level(values: Floats) -> tuple[int, int]:
    """Return where the newest level of a few values begins, and where the one before it began.

    ``values`` : float64[n], one per recording, oldest first, above zero.

    Of the two numbers (begin, first), ``values[begin:]`` is the newest level and ``values[first:begin]`` the one
    before; 0 and 0 where all are of one level.

    Student's t of the logarithms between any two neighbouring stretches of which the second is the newest, Bonferroni's
    correction for their number: of histories without a change 0.3 % are cut. A single newest value may be a level of
    its own, unlike in ``change_points``, which waits for four: a change that was accepted counts from then on.
    """
    first, begin = 0, 0
    while len(values) - begin >= 3:
        cut = _strongest_cut(np.log(values[begin:]))
        if cut is None:
            break
        first, begin = begin + cut[0], begin + cut[1]
    return begin, first


def _strongest_cut(logs: Floats) -> tuple[int, int] | None:
    """Return (a, b) of the largest step from ``logs[a:b]`` to ``logs[b:]``, if it is one."""
    n = len(logs)
    a, b = np.triu_indices(n, 1)
    degrees = n - a - 2
    a, b, degrees = a[degrees > 0], b[degrees > 0], degrees[degrees > 0]
    centred = logs - logs.mean()
    sums = np.concatenate(([0.0], np.cumsum(centred)))
    squares = np.concatenate(([0.0], np.cumsum(centred**2)))
    n_old, n_new = b - a, n - b
    old, new = (sums[b] - sums[a]) / n_old, (sums[n] - sums[b]) / n_new
    within = np.maximum(squares[n] - squares[a] - n_old * old**2 - n_new * new**2, 0)
    deviation = np.maximum(np.sqrt(within / degrees), RESOLUTION)
    t = np.abs(new - old) / (deviation * np.sqrt(1 / n_old + 1 / n_new))
    asked = np.array([_step_needed(n, item) for item in range(1, n - 1)])[degrees - 1]
    best = int(np.argmax(t / asked))
    return (int(a[best]), int(b[best])) if t[best] > asked[best] else None


@lru_cache(maxsize=4096)
def _step_needed(n: int, degrees: int) -> float:
    return student_quantile(1 - LEVEL_RISK / (n * (n - 1)), degrees)


@dataclass(frozen=True)
class RecordingNoise:
    """What two recordings of one program differ by on a machine, however many sessions they have.

    ``deviation`` : of the logarithm of their ratio; ``degrees`` of freedom it is known with.
    """

    deviation: float
    degrees: int

    def floor(self, level: float) -> float:
        """Return the share they differ by at ``level``: Student's prediction interval."""
        # e^100 is larger than any change
        return math.expm1(min(student_quantile((1 + level) / 2, self.degrees) * self.deviation, 100.0))

    def p_value(self, ratio: float) -> float:
        """Return how often they differ by more than ``ratio``, to either side."""
        return 2 * student_tail(abs(math.log(ratio)) / self.deviation, self.degrees) if self.deviation else 0.0


def recording_noise(
    runs: Sequence[Sequence[Floats]], *, statistic: Statistic = "low", change: int = 0, n_before: int = 1
) -> RecordingNoise:
    """Return by what a further run of one program differs from ``n_before`` others put together.

    ``runs`` : earlier runs of the same program on the same machine, each with its sessions; at least 3.
    ``change`` : the run from which on the level was another one (see :func:`newest_level`); 0 for none. The spread is
    that around the level of either stretch.

    From the spread of the runs' medians, sessions' noise included. Assumes that the next run is as far from these as
    they are from each other, and has as many sessions or more.

    Raises ValueError: fewer than 3 runs, or 4 with a change.
    """
    levels = 2 if change else 1
    if len(runs) < levels + 2:
        raise ValueError(f"expected at least {levels + 2} runs of the baseline, found {len(runs)}")
    centres = np.log([np.median([session_value(item, statistic) for item in run]) for run in runs])
    for part in (centres[:change], centres[change:]) if change else (centres,):
        part -= part.mean()
    degrees = len(runs) - levels
    deviation = math.sqrt(float(centres @ centres) / degrees * (1 + 1 / n_before))
    return RecordingNoise(deviation, degrees)


def session_value(values: Floats, statistic: Statistic) -> float:
    """Return the one number that sums up a session.

    Raises ValueError: no values, values that are not finite or not positive, or too few for a tail quantile.
    """
    values = np.asarray(values, dtype=np.float64).ravel()
    if statistic not in STATISTICS:
        raise ValueError(f"expected one of {', '.join(STATISTICS)}, found {statistic!r}")
    if not len(values):
        raise ValueError("expected at least one value in a session, found none")
    least, most = float(values.min()), float(values.max())  # NaN if any value is
    if not (math.isfinite(least) and math.isfinite(most)):
        raise ValueError(f"expected finite values, found {values[~np.isfinite(values)][0]}")
    if least <= 0:
        raise ValueError(f"expected positive values, found {least:g}")
    if statistic in QUANTILES:
        check_enough(len(values), QUANTILES[statistic])
        return session_quantile(values, QUANTILES[statistic])
    if statistic == "low":
        n_low = int(LOW * len(values))
        return float(np.partition(values, n_low - 1)[:n_low].mean()) if n_low > 1 else least
    if statistic == "median":
        return float(np.median(values))
    return most if statistic == "peak" else float(values.mean())

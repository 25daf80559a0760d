"""Leak yes, no, or too early to say: from memory by step, distinguished from all that only grows.

What makes memory grow in healthy programs is start-up, caches that fill, heaps that swing with the
garbage collector or the load, and an allocator that keeps what it once had. A straight line fits
all of them. A leak is what is left when each of these is taken away:

* the **lower envelope** (the lowest value of each eighth of a window) does not see swings;
* it must **keep rising**: in at least six of seven eighths, and still in the later half;
* **no single jump** may make it: the largest is left out before the growth is measured;
* for **patience_steps**: as long as a cache or a start-up is granted to come to rest;
* and **longer than rises that came back** before it would make likely.

Rows are judged causally: the verdict at a row uses that row and those before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from torchtriage.core.arrays import Floats
from torchtriage.core.errors import UsageError
from torchtriage.core.stats.trend import Slope, block_minima, hinge, sen_slope
from torchtriage.core.units import format_bytes, format_count

CODE = "MEM029"
"""The pattern that finds the same in a trace's memory events."""

Answer = Literal["leak", "no leak", "too early"]

PATIENCE_STEPS = 2800
"""Growth that is younger may be a cache that fills. A verdict is wanted by step 3,000; recorded
start-ups came to rest by 2,100."""
CONFIRM_SHARE = 0.1
"""Of the patience: the last tenth of it must not be needed for the verdict."""
N_BLOCKS = 8
WARM = N_BLOCKS // 2
"""Of the fine blocks, 4 * N_BLOCKS: the first eighth of a window may still be start-up."""
MIN_RISES = 6
"""Of seven. A healthy envelope rises in fewer than 3 of 10 blocks (benchmarks/leaks.py): six of
seven by chance in one window of 800; noise of such size is below FLOOR_BYTES as well."""
UP_SHARE = 0.1
"""Of the mean rise, to count as one: heaps of any program creep by a page now and then."""
FLOOR_BYTES = 5 * 66 * 1024
"""Two and a half extensions of the C heap: glibc asks for 128 KiB and a page at a time. Two thirds
of it must be left without the largest rise."""
MIN_SLOPE = 40.0
"""Bytes per step. What a healthy loop of recorded series still gains late is below 30."""
LATE_SHARE = 0.5
"""Of the mean growth, in the last sixth of the window. A ramp that ended before it has none; what
comes to rest exponentially has less as soon as the window holds 2.4 of its time constants."""
KNOWN_SHARE = 1 / 3
"""Of the slope, that its interval must reach: a few jumps of a heap have a slope, and no more."""
SLOWER = 0.65
"""A leak keeps its rate (recorded ones kept 0.74 of it or more); what fills a cache at random slows
from its first hit on, and logarithmic growth over a window of ten to one keeps 0.4 of it."""
SWING_SHARE = 0.5
"""Of the swing within an eighth of the window: the lowest points of a swing are as uneven."""
RETURN_SHARE = 0.25
"""Of the growth: rises of this size that were given back count against it."""
GIVEN_BACK = 0.75
"""Of a rise, at least: the next one begins where it began. A saw over a leak leaves more."""
DIP_SHARE = 0.25
"""Of the time a rise took: what is half way up again sooner was a dip, and gave nothing back."""
RETURN_CHANCE = 0.1
"""That a rise like those given back would last this long; a leak is reported where it is smaller."""
STARTUP_SHARE = 1 / 12
"""Of the run, or the patience: what start-up gives back says nothing of the loop."""
MIN_SAMPLES = 24
MIN_STAIRS = 3


@dataclass(frozen=True)
class LeakVerdict:
    """Whether memory leaks, how fast, since when, and why that is said.

    ``slope``, ``slope_low``, ``slope_high`` : bytes per step and their 95 % interval; NaN where too
    little was seen. ``onset_step`` : where the growth begins; None without a leak. ``grown_bytes``
    : by how much the lower envelope rose since (leak), or in the judged window. ``at_step`` : the
    last step that was looked at. ``by`` : which series shows it.
    """

    answer: Answer
    slope: float
    slope_low: float
    slope_high: float
    onset_step: int | None
    grown_bytes: int
    at_step: int
    by: Literal["bytes", "objects", ""]
    why: str

    @property
    def leak(self) -> bool:
        """True when a leak was found; False is not yet a clean bill (see ``answer``)."""
        return self.answer == "leak"


def judge(
    step: ArrayLike,
    bytes_: ArrayLike,
    objects: ArrayLike | None = None,
    *,
    patience_steps: int = PATIENCE_STEPS,
    floor_bytes: int = FLOOR_BYTES,
) -> LeakVerdict:
    """Return whether memory leaks, judged at the last row.

    Parameters
    ----------
    step, bytes_, objects : float64[n]
        Increasing step numbers, memory at these steps, and the number of live objects; NaN where unknown.
    patience_steps : int
        How long growth must last to be called a leak; a UsageError below one.
    floor_bytes : int
        Growth below this is noise: two extensions of the heap for a resident set, less for an exact
        count of allocated bytes.
    """
    if patience_steps < 1:
        raise UsageError(f"expected at least one step, found {patience_steps}", where="patience_steps")
    at, level = _known(step, bytes_)
    if len(at) < MIN_SAMPLES or at[-1] - at[0] < patience_steps:
        return _early(at, level, patience_steps)
    verdict = _grows(at, level, patience_steps, floor_bytes)
    if verdict is not None:
        # once more, a while ago: what passes by chance passes at one end only
        ago = int(np.searchsorted(at, at[-1] - CONFIRM_SHARE * patience_steps))
        if _grows(at[:ago], level[:ago], patience_steps, floor_bytes) is not None:
            return verdict
    if objects is not None:
        stairs = _stairs(*_known(step, objects), at, level, patience_steps)
        if stairs is not None:
            return stairs
    return _no_leak(at, level, patience_steps, floor_bytes)


def judge_device(step: ArrayLike, allocated: ArrayLike, reserved: ArrayLike) -> LeakVerdict:
    """Return whether a device's memory leaks; what only the allocator keeps is no leak.

    ``allocated, reserved`` : bytes in live tensors, and bytes the caching allocator holds, at these steps.
    """
    # allocated bytes are exact: one 512-byte block per step is already a trend
    verdict = judge(step, allocated, floor_bytes=16 * 1024)
    if verdict.leak:
        return verdict
    cached = judge(step, reserved, floor_bytes=2 << 20)
    if not cached.leak:
        return verdict
    why = (
        f"reserved memory grows by {format_bytes(cached.slope)} per step while allocated memory"
        " does not: the allocator's cache, or fragmentation, not a leak"
    )
    return replace(verdict, why=why)


def first_alarm(
    step: ArrayLike,
    bytes_: ArrayLike,
    objects: ArrayLike | None = None,
    *,
    every_steps: int = 100,
    patience_steps: int = PATIENCE_STEPS,
) -> LeakVerdict:
    """Return the first verdict that says leak, of rows judged every ``every_steps`` as by :func:`judge`.

    The last verdict where none does.
    """
    steps, values = np.asarray(step, float), np.asarray(bytes_, float)
    counts = None if objects is None else np.asarray(objects, float)
    looks = np.arange(steps[0] + every_steps, steps[-1], every_steps) if len(steps) else steps
    for end in (*np.searchsorted(steps, looks, side="right"), len(steps)):
        so_far = None if counts is None else counts[:end]
        verdict = judge(steps[:end], values[:end], so_far, patience_steps=patience_steps)
        if verdict.leak:
            break
    return verdict


def _known(step: ArrayLike, values: ArrayLike) -> tuple[Floats, Floats]:
    at, level = np.asarray(step, float), np.asarray(values, float)
    known = np.isfinite(at) & np.isfinite(level)
    at, level = at[known], level[known]
    # a step that comes twice counts once, with its last value; a step back in time is not used
    rising = np.append(np.diff(at) > 0, True) if len(at) else np.zeros(0, bool)
    ahead = at >= np.maximum.accumulate(at) if len(at) else rising
    return at[rising & ahead], level[rising & ahead]


def _starts(at: Floats, patience_steps: float) -> Iterator[int]:
    length, total = float(patience_steps), at[-1] - at[0]
    while length < total:
        yield int(np.searchsorted(at, at[-1] - length))
        length *= 1.25
    # start-up always grows: it is never the reason
    yield int(np.searchsorted(at, at[0] + min(STARTUP_SHARE * total, total - patience_steps)))


def _rising(at: Floats, level: Floats, floor_bytes: int) -> Slope | None:
    if len(at) < MIN_SAMPLES:
        return None
    middle, lowest = block_minima(at, level, N_BLOCKS)
    if len(lowest) < N_BLOCKS:
        return None
    rise = np.diff(lowest)
    if not _mostly_up(rise):
        return None
    span = middle[-1] - middle[0]
    least = max(floor_bytes, MIN_SLOPE * span)
    if rise.sum() < least or rise.sum() - rise.max() < least * 2 / 3:
        return None
    fine = block_minima(at, level, 4 * N_BLOCKS)
    slope = sen_slope(*fine)
    if not slope.low > 0 or not _lasts(np.diff(fine[1][WARM:])) or _slows(*fine):
        return None
    return slope if rise.sum() >= SWING_SHARE * _swing(at, level, slope.slope) else None


def _swing(at: Floats, level: Floats, slope: float) -> float:
    """Return how far memory swings within an eighth of the window, its trend taken away, bytes.

    From the 5th to the 95th percentile: single spikes are not a swing.
    """
    flat = level - slope * (at - at[0])
    edges = np.searchsorted(at, np.linspace(at[0], at[-1], N_BLOCKS + 1)[1:-1])
    ends = [np.percentile(block, (5, 95)) for block in np.split(flat, edges) if len(block)]
    return float(np.median([high - low for low, high in ends]))


def _slows(middle: Floats, lowest: Floats) -> bool:
    middle, lowest = middle[WARM:], lowest[WARM:]
    half = len(middle) // 2
    first, second = sen_slope(middle[:half], lowest[:half]), sen_slope(middle[half:], lowest[half:])
    return second.slope < SLOWER * first.slope


def _mostly_up(rise: Floats) -> bool:
    least = UP_SHARE * max(rise.mean(), 0.0)
    up = rise > least
    late = up[-MIN_RISES + 1 :].all() and rise.min() >= -least
    return bool(up.sum() >= MIN_RISES or late)


def _lasts(rise: Floats) -> bool:
    late = max(len(rise) // 6, 1)
    return bool(rise[-late:].sum() * len(rise) >= LATE_SHARE * rise.sum() * late)


def _stairs(counted: Floats, count: Floats, at: Floats, level: Floats, patience_steps: int) -> LeakVerdict | None:
    """Return a verdict where the number of objects climbs and never once comes down.

    Counts are exact: a loop that keeps nothing comes back to the same number. Stairs that come as
    often later as earlier are one line of code that keeps something each time it runs.
    """
    if len(count) < 2 * MIN_STAIRS:
        return None
    # objects of garbage cycles come and go: what is there from now on is the lowest to come
    stays = np.minimum.accumulate(count[::-1])[::-1]
    if np.any(stays[1:-1] < count[1:-1]):  # the last value may still fall
        middle, lowest = block_minima(counted, count, N_BLOCKS)
        rise = np.diff(lowest)
        swing = float(np.median(np.abs(np.diff(count)))) + float((count - stays).max())
        if len(rise) < N_BLOCKS - 1 or not _mostly_up(rise):
            return None
        if rise.sum() - rise.max() < 2 * swing or not _lasts(rise):
            return None
        first = middle[0]
    else:
        height = np.diff(count)
        stairs = np.flatnonzero(height > 0)
        # the very same objects, twice and far apart, are one line that keeps them each time
        alike = len(stairs) > 1 and height[stairs].min() == height[stairs].max() >= 2
        if not alike:
            stairs = stairs[stairs > 0]  # up to the second count everything is start-up
        if len(stairs) < (2 if alike else MIN_STAIRS):
            return None
        gaps = np.diff(counted[stairs])
        since = counted[-1] - counted[stairs[-1] + 1]
        if since > 1.5 * gaps.max() or gaps[-1] > 3 * np.median(gaps):
            return None
        first = counted[stairs[0]]
        if counted[-1] - first < patience_steps:
            return None
    middle, lowest = block_minima(at, level, 4 * N_BLOCKS)
    inside = middle >= first
    slope = sen_slope(middle[inside], lowest[inside])
    grown = int(lowest[-1] - lowest[inside][0]) if inside.any() else 0
    if not slope.slope > 0:
        return None
    more = count[-1] - np.interp(first, counted, count)
    why = (
        f"the number of objects keeps growing: {format_count(int(more))} more since step"
        f" {first:.0f}, none released; memory rose by {format_bytes(grown)}"
    )
    return LeakVerdict("leak", slope.slope, slope.low, slope.high, int(first), grown, int(at[-1]), "objects", why)


def _leak(at: Floats, level: Floats, start: float, slope: Slope) -> LeakVerdict:
    # start-up steps up and would pass for the corner
    warm = int(np.searchsorted(at, min(at[0] + STARTUP_SHARE * (at[-1] - at[0]), start)))
    middle, lowest = block_minima(at[warm:], level[warm:], 8 * N_BLOCKS)
    corner = hinge(middle, lowest)
    late = corner.at > middle[4]
    onset = corner.at if late else at[0]
    if late:
        inside = at >= onset
        slope = sen_slope(*block_minima(at[inside], level[inside], 4 * N_BLOCKS))
    grown = int(lowest[-1] - (corner.level if late else level[0]))
    why = (
        f"the lowest memory of each interval rose by {format_bytes(grown)} since step {onset:.0f}"
        f" and still rises, {format_bytes(slope.slope)} per step"
        f" ({format_bytes(slope.low)} to {format_bytes(slope.high)})"
    )
    return LeakVerdict("leak", slope.slope, slope.low, slope.high, int(onset), grown, int(at[-1]), "bytes", why)


def _no_leak(at: Floats, level: Floats, patience_steps: int, floor_bytes: int) -> LeakVerdict:
    start = int(np.searchsorted(at, at[-1] - patience_steps))
    _, lowest = block_minima(at[start:], level[start:], N_BLOCKS)
    slope = sen_slope(*block_minima(at[start:], level[start:], 4 * N_BLOCKS))
    grown = int(lowest[-1] - lowest[0])
    rise = np.diff(lowest)
    answer: Answer = "no leak"
    span = format_count(at[-1] - at[start], "step")
    if grown <= floor_bytes:
        why = f"memory is flat: {format_bytes(max(grown, 0))} more in the last {span}"
    elif rise.sum() - rise.max() < floor_bytes * 2 / 3:
        why = f"memory rose once, by {format_bytes(rise.max())}, in the last {span}, then stayed"
    elif (rise > 0).sum() < MIN_RISES:
        why = f"memory rises and falls: higher in {int((rise > 0).sum())} of {len(rise)} intervals"
    else:
        answer = "too early"
        why = f"memory grew by {format_bytes(grown)} in the last {span}; it is too early to say whether it levels off"
    return LeakVerdict(answer, slope.slope, slope.low, slope.high, None, grown, int(at[-1]), "", why)


def _grows(at: Floats, level: Floats, patience_steps: int, floor_bytes: int) -> LeakVerdict | None:
    for start in _starts(at, (1 - CONFIRM_SHARE) * patience_steps):
        slope = _rising(at[start:], level[start:], floor_bytes)
        verdict = None if slope is None else _leak(at, level, at[start], slope)
        if (
            verdict is not None
            and verdict.slope_low > KNOWN_SHARE * verdict.slope
            and not _may_come_back(at, level, at[start], patience_steps)
        ):
            return verdict
    return None


def _may_come_back(at: Floats, level: Floats, start: float, patience_steps: int) -> bool:
    """Return whether growth since ``start`` is like rises before it that were given back.

    Rises are taken to end at random, at a rate that is not known (prior 1/rate). After n that came
    back in S steps altogether, the next one lasts T steps or more with probability
    ``(S / (S + T)) ** n``, the rate's gamma posterior integrated. What comes back at even intervals
    ends sooner than that: a leak over it is reported later than it could be.
    """
    warm = int(np.searchsorted(at, at[0] + STARTUP_SHARE * patience_steps))
    at, level = at[warm:], level[warm:]
    n_blocks = int(4 * N_BLOCKS * (at[-1] - at[0]) / patience_steps)
    middle, lowest = block_minima(at, level, max(n_blocks, 2))
    begin = len(lowest) - 1 - int(np.argmin(lowest[middle >= start][::-1]))
    least = RETURN_SHARE * (lowest[-1] - lowest[begin])
    lasted = []
    last, high, falls = 0, lowest[0], False
    for here, value in enumerate(lowest[: begin + 1]):
        low, high = lowest[last], max(high, value)
        falls = falls and high - low < least
        if not falls and high - value >= max(least, GIVEN_BACK * (high - low)):
            again = np.flatnonzero(lowest[here:] >= (high + value) / 2)
            stays = middle[here + again[0]] - middle[here] if len(again) else np.inf
            if stays >= DIP_SHARE * (middle[here] - middle[last]):
                lasted.append(middle[here] - middle[last])
                falls = True
            last, high = here, value
        elif falls and value < low:  # still the same return
            lasted[-1] += middle[here] - middle[last]
            last, high = here, value
    n_back, total, lasts = len(lasted), sum(lasted), middle[-1] - middle[begin]
    return n_back > 0 and bool((total / (total + lasts)) ** n_back > RETURN_CHANCE)


def _early(at: Floats, level: Floats, patience_steps: int) -> LeakVerdict:
    first, last, grown = (int(at[0]), int(at[-1]), int(level[-1] - level[0])) if len(at) else (0, 0, 0)
    nan = float("nan")
    why = (
        f"{format_count(last - first, 'step')} seen in {format_count(len(at), 'sample')}: a verdict needs"
        f" {format_count(patience_steps)} steps and {MIN_SAMPLES} samples"
    )
    return LeakVerdict("too early", nan, nan, nan, None, grown, last, "", why)

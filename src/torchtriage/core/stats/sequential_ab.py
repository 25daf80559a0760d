"""Compare two arms while they run, with a look after every request, at the error rate of one look.

Whoever peeks at a t-test after every hundred of 10,000 requests sees a difference between equal versions in 37 % of the
cases, and always where requests remember the ones before. These statistics are e-processes instead: under "no
difference" the chance that one ever exceeds ``1 / alpha`` is at most ``alpha`` (Ville 1939), however often it is looked
at and whenever one stops. All keep a constant amount of memory, and are plain numbers inside, so that they can be
stored and go on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

BLOCK = 5
"""Requests of the rarer arm in the smallest block; means of five logarithms are near to normal."""
N_LEVELS = 10
"""Blocks double in length from level to level, up to 2,560 requests."""
LEAST_BLOCKS = 12
"""Below, neither the spread of the blocks nor their memory is known well enough."""
MEMORY = 1.5
"""Standard errors by which the correlation of neighbouring blocks may exceed none."""
PRIOR = 0.014
"""Variance of the effect that is looked for, in variances of one request in each arm: the interval is the narrowest for
effects of an eighth of those, such as 5 % where requests vary by 30 %."""
LARGEST = 1e150
"""Squares of larger values overflow."""
LEAST_FOR_SLOPE = 50
"""Requests before a covariate is made use of."""

MULTIPLES = (1.25, 1.6, 2.0, 3.0, 5.0, 10.0, 30.0, 1000.0)
"""How many times more often than allowed events may come: each gets the same share of the bet."""
N_ASSUMED = 100
"""Requests that the planned share weighs; the measured one takes over."""
SPREAD = 1000
"""Of the shares that a wrong split is looked for in, as a number of requests: 1.6 points around one half."""


class Estimate(NamedTuple):
    """Treated minus control, an interval that holds at all looks together, and what it rests on.

    ``low`` and ``high`` are infinite before there is enough to tell. ``n_control`` and ``n_treated`` : values in closed
    blocks. ``block`` : values of the rarer arm that make one independent block, more than 5 where neighbours are alike;
    the least it can be where infinite.
    """

    centre: float
    low: float
    high: float
    n_control: int
    n_treated: int
    block: int


@dataclass
class Moments:
    """Number, mean, variance of values, and their covariance with another (Welford 1962)."""

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0
    mean_other: float = 0.0
    squares_other: float = 0.0
    products: float = 0.0

    def add(self, value: float, other: float = 0.0) -> None:
        """Take in one value, and what is known beside it."""
        self.n += 1
        step, step_other = value - self.mean, other - self.mean_other
        self.mean += step / self.n
        self.mean_other += step_other / self.n
        self.squares += step * (value - self.mean)
        self.squares_other += step_other * (other - self.mean_other)
        self.products += step * (other - self.mean_other)

    def join(self, other: Moments) -> None:
        """Take in another's values (Chan, Golub, LeVeque 1979)."""
        n = self.n + other.n
        if not other.n:
            return
        step, step_other = other.mean - self.mean, other.mean_other - self.mean_other
        weight = self.n * other.n / n
        self.squares += other.squares + step * step * weight
        self.squares_other += other.squares_other + step_other * step_other * weight
        self.products += other.products + step * step_other * weight
        self.mean += step * other.n / n
        self.mean_other += step_other * other.n / n
        self.n = n

    @property
    def variance(self) -> float:
        """Sample variance; 0 of fewer than two."""
        return self.squares / (self.n - 1) if self.n > 1 else 0.0


@dataclass
class _Level:
    """Sums over blocks of one length, in the order they closed; ``first`` and ``last`` summed over sequences."""

    n: int = 0
    n_sequences: int = 1
    total: float = 0.0
    squares: float = 0.0
    products: float = 0.0
    first: float = 0.0
    last: float = 0.0
    half: float | None = None

    def add(self, value: float) -> float | None:
        """Take in a block; return the mean of two where this is the second."""
        if self.n:
            self.products += value * self.last
        else:
            self.first = value
        self.n += 1
        self.total += value
        self.squares += value * value
        self.last = value
        if self.half is None:
            self.half = value
            return None
        both, self.half = (self.half + value) / 2, None
        return both

    def join(self, other: _Level) -> None:
        """Take in another sequence of blocks."""
        if not other.n:
            return
        self.n_sequences = self.n_sequences + other.n_sequences if self.n else other.n_sequences
        for name in ("n", "total", "squares", "products", "first", "last"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.half = None

    def spread(self) -> tuple[float, float]:
        """Return the variance of a block and how alike neighbours are, 0 to 0.95."""
        n, mean = self.n, self.total / self.n
        squares = max(self.squares - n * mean * mean, 0.0)
        # differences below the rounding of their sums are none
        if squares <= 1e-14 * self.squares:
            return 0.0, 0.0
        products = self.products - mean * (2 * self.total - self.first - self.last) + (n - self.n_sequences) * mean**2
        raw = products / squares
        # biased towards zero by about (1 + 3 r) / n (Marriott and Pope 1954)
        return squares / (n - 1), min(max(raw + (1 + 3 * raw) / n, 0.0), 0.95)


@dataclass
class Difference:
    """Difference of the means of two arms. Values come in the order of the requests.

    A block closes when both arms have ``BLOCK`` values; its difference of means frees it from what both arms share,
    such as a load wave. Blocks are joined two by two until neighbours are no longer alike (lag-one correlation within
    ``MEMORY`` standard errors of none); what is left of it widens the interval by ``(1 + r) / (1 - r)``. On these
    blocks runs the sequential t-test with a normal prior on the effect (Lai 1976; Wang and Ramdas 2023), exact for
    independent normal blocks of unknown variance from the first one on. That the length of the blocks is chosen from
    the data, and how far they are from normal, is covered by simulation (``docs/experiment-measured.md``).

    With a covariate, a value known before the request such as its size, the part of the difference that it explains is
    taken off (CUPED: Deng et al. 2013), by a slope from earlier requests only, so nothing that is looked at can be
    fitted. The version must not change the covariate.
    """

    arms: tuple[Moments, Moments] = field(default_factory=lambda: (Moments(), Moments()))
    levels: list[_Level] = field(default_factory=lambda: [_Level() for _ in range(N_LEVELS)])
    open: list[float] = field(default_factory=lambda: [0.0] * 6)
    n_closed: list[int] = field(default_factory=lambda: [0, 0])

    def add(self, treated: bool, value: float, covariate: float = 0.0) -> bool:
        """Take in one value; return whether a block closed, and with it there is more to see.

        Raises ValueError: a value that is not finite, or beyond 1e150.
        """
        if not (abs(value) <= LARGEST and abs(covariate) <= LARGEST):
            raise ValueError(f"expected finite values, found {value} and {covariate}")
        # per arm: number, sum of values, sum of covariates
        place = 3 if treated else 0
        block = self.open
        block[place] += 1
        block[place + 1] += value
        block[place + 2] += covariate
        closes = block[0] >= BLOCK and block[3] >= BLOCK
        if closes:
            slope = self.slope
            control, treatment = ((block[at + 1] - slope * block[at + 2]) / block[at] for at in (0, 3))
            # below the rounding of their sums there is no difference
            self._close(treatment - control if abs(treatment - control) > 1e-14 * abs(control) else 0.0)
            self.n_closed[0] += int(block[0])
            self.n_closed[1] += int(block[3])
            self.open = [0.0] * 6
        # after the block, which must not know the slope that it gave
        self.arms[treated].add(value, covariate)
        return closes

    def join(self, other: Difference) -> None:
        """Take in what another process recorded of the same arms; no value can be added after that."""
        for own, others in zip(self.arms, other.arms, strict=True):
            own.join(others)
        for level, theirs in zip(self.levels, other.levels, strict=True):
            level.join(theirs)
        self.n_closed = [a + b for a, b in zip(self.n_closed, other.n_closed, strict=True)]

    def _close(self, difference: float) -> None:
        joined: float | None = difference
        for level in self.levels:
            if joined is None:
                return
            joined = level.add(joined)

    @property
    def slope(self) -> float:
        """How much a value grows with its covariate, 0 where that is not known yet."""
        squares = sum(arm.squares_other for arm in self.arms)
        if self.arms[0].n + self.arms[1].n < LEAST_FOR_SLOPE or squares <= 0:
            return 0.0
        return sum(arm.products for arm in self.arms) / squares

    @property
    def explained(self) -> float:
        """Share of the variance within the arms that the covariate explains."""
        squares = sum(arm.squares for arm in self.arms)
        products = sum(arm.products for arm in self.arms)
        return min(max(self.slope * products / squares, 0.0), 1.0) if squares > 0 else 0.0

    def estimate(self, alpha: float = 0.05) -> Estimate:
        """Return the difference with an interval that misses it with chance ``alpha``, ever."""
        control, treated = self.n_closed
        for index, level in enumerate(self.levels):
            if level.n < LEAST_BLOCKS:
                break
            variance, alike = level.spread()
            last = index == N_LEVELS - 1
            if alike <= MEMORY / math.sqrt(level.n) or last:
                centre = level.total / level.n
                reach = self._reach(level.n, variance, alike, alpha)
                return Estimate(centre, centre - reach, centre + reach, control, treated, BLOCK << index)
        # too early, or neighbours alike in every length that there are enough blocks of
        centre = self.levels[0].total / self.levels[0].n if self.levels[0].n else math.nan
        return Estimate(centre, -math.inf, math.inf, control, treated, BLOCK << index)

    def _reach(self, n: int, variance: float, alike: float, alpha: float) -> float:
        """Return half the interval's width: the effects whose Bayes factor is below 1 / alpha."""
        if variance <= 0:
            return 0.0
        inflation = (1 + alike) / (1 - alike)
        variance *= inflation
        free = max((n - 1) / math.sqrt(inflation), 1.0)
        requests = (self.arms[0].variance + self.arms[1].variance) * (1 - self.explained)
        informed = 1 + n * PRIOR * requests / variance
        factor = math.exp((math.log(informed) - 2 * math.log(alpha)) / (free + 1))
        if factor >= informed:
            return math.inf
        return math.sqrt(free * (factor - 1) / (1 - factor / informed) * variance / n)


@dataclass
class EventRatio:
    """Evidence that events come more than ``worse_than`` times as often in the treated arm.

    ``worse_than`` : the ratio of rates that is still allowed. ``share`` : of requests that are planned to be treated.

    Given that an event happens and requests are assigned at random, it falls into the treated arm with chance ``w s /
    (w s + 1 - s)`` at most, whatever the rate: a binomial test of each event, with no start-up and no smallest number.
    The bet is spread over ``MULTIPLES`` of that odds; each part is a supermartingale where the ratio is allowed. ``s``
    is the share of requests before this one. Errors that come in bursts in both arms do no harm; a burst that one arm
    alone has counts against it. ``pause`` counts no further event of an arm for so many of its requests, for events
    that follow each other because their values do.
    """

    worse_than: float
    share: float
    n: list[int] = field(default_factory=lambda: [0, 0])
    n_events: list[int] = field(default_factory=lambda: [0, 0])
    n_counted: list[int] = field(default_factory=lambda: [0, 0])
    last: list[int] = field(default_factory=lambda: [-(10**9), -(10**9)])
    logs: list[float] = field(default_factory=lambda: [0.0] * len(MULTIPLES))

    def add(self, treated: bool, event: bool, pause: int = 0) -> bool:
        """Take in one request; return whether it counted as an event."""
        counts = event and self.n[treated] - self.last[treated] > pause
        self.n_events[treated] += event
        if counts:
            share = (self.n[1] + N_ASSUMED * self.share) / (sum(self.n) + N_ASSUMED)
            odds = self.worse_than * share / (1 - share)
            for index, log in enumerate(_gains(odds, treated)):
                self.logs[index] += log
            self.n_counted[treated] += 1
            self.last[treated] = self.n[treated]
        self.n[treated] += 1
        return counts

    def join(self, other: EventRatio) -> None:
        """Take in what another process recorded: the product of supermartingales of other requests is one."""
        for name in ("n", "n_events", "n_counted", "logs"):
            setattr(self, name, [a + b for a, b in zip(getattr(self, name), getattr(other, name), strict=True)])

    @property
    def log_evidence(self) -> float:
        """Natural logarithm of the e-process; above ``-log(alpha)`` the ratio is too large."""
        return _log_mean(self.logs)

    def interval(self, alpha: float = 0.05) -> tuple[float, float]:
        """Return the ratios of rates that the counted events allow, low and high.

        For people to read: found with the share of all requests so far rather than of each moment.
        """
        control, treated = self.n_counted
        n_control, n_treated = self.n
        if not (n_control and n_treated and control + treated):
            return 0.0, math.inf
        odds = n_treated / n_control
        low = _largest_excluded(treated, control, odds, alpha / 2)
        high = _largest_excluded(control, treated, 1 / odds, alpha / 2)
        return low, 1 / high if high > 0 else math.inf


@dataclass
class SplitCheck:
    """Evidence that requests do not arrive in the planned shares (sample-ratio mismatch).

    The multinomial e-process of Lindon and Malek (2022) for two arms: a beta prior around the planned share against
    that share alone.
    """

    share: float
    n: list[int] = field(default_factory=lambda: [0, 0])

    def add(self, treated: bool) -> None:
        """Count one request or unit."""
        self.n[treated] += 1

    @property
    def log_evidence(self) -> float:
        """Natural logarithm of the e-process; above ``-log(alpha)`` the split is not the plan's."""
        control, treated = self.n
        a, b = SPREAD * self.share, SPREAD * (1 - self.share)
        return (
            _log_beta(a + treated, b + control)
            - _log_beta(a, b)
            - treated * math.log(self.share)
            - control * math.log1p(-self.share)
        )


def _gains(odds: float, treated: bool) -> list[float]:
    """Return what each part of the bet wins or loses by one event, as logarithms."""
    # of the chance p = odds / (1 + odds), and of 1 - p = 1 / (1 + odds)
    return [
        math.log(multiple * (1 + odds) / (1 + multiple * odds))
        if treated
        else math.log((1 + odds) / (1 + multiple * odds))
        for multiple in MULTIPLES
    ]


def _largest_excluded(events: int, others: int, odds: float, alpha: float) -> float:
    """Return the largest ratio that these counts exclude from above, 0 where they exclude none."""
    low, high = -15.0, 15.0

    def evidence(log_ratio: float) -> float:
        with_events = _gains(odds * math.exp(log_ratio), True)
        without = _gains(odds * math.exp(log_ratio), False)
        return _log_mean(
            [events * with_event + others * other for with_event, other in zip(with_events, without, strict=True)]
        )

    if evidence(low) < -math.log(alpha):
        return 0.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        if evidence(middle) >= -math.log(alpha):
            low = middle
        else:
            high = middle
    return math.exp(low)


def _log_mean(logs: list[float]) -> float:
    top = max(logs)
    return top + math.log(sum(math.exp(log - top) for log in logs) / len(logs))


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)

"""What a request is expected to take: a level and a scale that follow slowly, and its size's share.

All of it is on the logarithm of the duration, so that a size's share is a factor, and a shift by half is the same at
every size. Everything learns from values cut at three scales: an outlier moves nothing.
"""

from __future__ import annotations

import math

CUT = 3.0  # scales a value may pull by
MAX_SIZES = 64  # sizes kept apart; beyond, quarters of a doubling are
SETTLED = 8  # requests of a size after which its share is trusted
SLOWEST = 0.005  # least part of what a request was off that its size's share moves by
PARENT = 5  # requests of a size after which others may be guessed from it
# bounds of the slope a new size is guessed with: a batch is no cheaper than half of it, roughly, and
# no dearer than its work
SLOPE = (-0.2, 1.2)
FLOOR = 0.02  # least scale: durations are not known better than to 2 %


class DurationLevel:
    """Location and scale of a stream, over about ``memory`` values."""

    def __init__(self, memory: float) -> None:
        self.memory = memory
        self.at = 0.0
        self.scale = FLOOR
        self._n = 0

    def learn(self, value: float) -> None:
        """Take one value."""
        self._n += 1
        if self._n == 1:
            self.at = value
        rate = max(0.25 if self._n <= 20 else 1 / self._n, 1 / self.memory)
        cut = CUT * (self.scale if self.scale > FLOOR else FLOOR)
        off = value - self.at
        off = cut if off > cut else -cut if off < -cut else off
        self.at += rate * off
        # 1.2533 mean absolute deviations are a normal standard deviation; 2 % is what cutting costs
        self.scale += rate * (1.2533 * 1.02 * abs(off) - self.scale)

    def hurry(self) -> None:
        """Learn as if little had been seen: the level is a new one."""
        self._n = 1


class SizeShares:
    """The share of each request size, as an addend to the level."""

    def __init__(self) -> None:
        self._shares: dict[float, list[float]] = {}  # size -> [share, requests, of these no news]
        self.high = 0.0
        self._n = 0

    def share(self, size: float) -> tuple[float, bool]:
        """Return what a request of this size adds, and whether that is trusted."""
        known = self._shares.get(self._key(size))
        if known is None:
            return self._guess(size), False
        return known[0], known[1] >= SETTLED

    def learn(self, size: float, off: float, *, news: bool) -> None:
        """Move a size's share by a part of what its request was off.

        The largest that was no ``news`` often enough is ``high``.
        """
        key = self._key(size)
        known = self._shares.get(key)
        if known is None:
            known = self._shares[key] = [self._guess(size), 0, 0]
        known[1] += 1
        self._n += 1
        # of what most requests are off by, the level takes the blame, not their size
        others = 1.0 if known[1] < SETTLED else 1 - known[1] / self._n
        known[0] += off * others * max(1 / known[1], SLOWEST)
        if not news:
            known[2] += 1
            if known[2] >= PARENT and size > self.high:
                self.high = size

    def _key(self, size: float) -> float:
        if len(self._shares) < MAX_SIZES or size in self._shares:
            return size
        return -round(math.log2(max(size, 1e-9)) * 4) - 1e9  # no size looks like this

    def _guess(self, size: float) -> float:
        # on the line through its two nearest neighbours
        known = [other for other, (_, n, _) in self._shares.items() if other > 0 and n >= PARENT]
        if size <= 0 or not known:
            return 0.0
        nearest, *others = sorted(known, key=lambda other: (abs(_apart(other, size)), other))
        share = self._shares[nearest][0]
        if not others:
            return share
        other = others[0]
        slope = (self._shares[other][0] - share) / _apart(other, nearest)
        return share + min(max(slope, SLOPE[0]), SLOPE[1]) * _apart(size, nearest)


def _apart(size: float, other: float) -> float:
    return math.log(min(max(size / other, 1e-300), 1e300))  # the quotient of odd sizes may be 0 or infinite

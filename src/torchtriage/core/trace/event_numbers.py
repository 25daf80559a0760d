"""What events say in numbers, as arrays: their times in ns, and whole numbers of arguments."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.trace.event_types import whole
from torchtriage.core.trace.events import Chunk

# Doubles hold three decimals of a microsecond exactly (after rounding to ns) below this:
# half a unit in the last place is 0.488 ns there. Larger clocks are read from their text.
EXACT_BELOW_US = float(1 << 43)
NO_DUR_NS = -1000
LARGEST_NS = 1 << 61
"""Times beyond are damage (an epoch is below it), and sums of two must fit 64 bits."""
NO_TIME_NS = -(1 << 62)


def us_text(value_ns: int) -> bytes:
    """Return microseconds with three decimals, as Kineto writes them: a double cannot hold an epoch so exactly."""
    sign, value = ("-", -value_ns) if value_ns < 0 else ("", value_ns)
    return f"{sign}{value // 1000}.{value % 1000:03d}".encode()


def int64_of(values: list[Any]) -> NDArray[np.int64]:
    """Return whole numbers as an array; -1 where one is missing, no number or too large."""
    try:
        return np.frombuffer(array("q", values), np.int64)
    except (TypeError, OverflowError):
        return np.array([whole(value) for value in values], np.int64)


class ExactTimes:
    """Times of a chunk's events in ns, through doubles only where that is exact."""

    def __init__(self, chunk: Chunk) -> None:
        self._chunk = chunk

    def starts(self, events: Sequence[Any]) -> NDArray[np.int64]:
        """Return int64[n], ns: ``ts`` of these events."""
        return self._ns([event.ts for event in events], events, 0)

    def durations(self, events: Sequence[Any]) -> NDArray[np.int64]:
        """Return int64[n], ns: ``dur`` of these events, negative when there is none."""
        return self._ns([event.dur for event in events], events, 1)

    def _ns(self, values: list[Any], events: Sequence[Any], which: int) -> NDArray[np.int64]:
        try:
            us = np.fromiter(values, np.float64, len(values))
            if np.abs(us).max(initial=0.0) < EXACT_BELOW_US:
                # apart, so that the product adds no rounding of its own
                whole_us = np.floor(us)
                ns: NDArray[np.int64] = np.rint((us - whole_us) * 1000).astype(np.int64)
                return ns + whole_us.astype(np.int64) * 1000
            integers = np.frombuffer(array("q", values), np.int64)
            if np.abs(us).max() < LARGEST_NS / 1000:
                return integers * 1000
        except (TypeError, OverflowError):
            pass  # fractions of a microsecond, or no time at all
        # an instant's duration is none, whatever its text says
        exact = [
            0 if value == 0 else self._exact[id(event)][which] for value, event in zip(values, events, strict=True)
        ]
        return np.array(exact, np.int64)

    @cached_property
    def _exact(self) -> dict[int, tuple[int, int]]:
        return {
            id(event): (exact_ns(bytes(raw.ts), NO_TIME_NS), exact_ns(bytes(raw.dur), NO_DUR_NS))
            for event, raw in zip(self._chunk.events, self._chunk.raw(), strict=True)
        }


def exact_ns(text: bytes, missing: int) -> int:
    """Return the ns of a time in microseconds as it is written, ``missing`` where it is none."""
    us, _, decimals = text.partition(b".")
    if us.isdigit() and len(decimals) == 3 and decimals.isdigit() and len(us) < 16:
        return int(us) * 1000 + int(decimals)
    try:
        ns = Decimal(text.strip(b'"').decode("ascii", "replace")) * 1000
        # an exponent can make a number that would take hours to write out
        return round(ns) if abs(ns) < LARGEST_NS else missing
    except (ArithmeticError, ValueError):
        return missing

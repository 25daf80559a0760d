"""Nanoseconds and bytes, and how people read them."""

from __future__ import annotations

import math

DEFAULT_MAX_BYTES = 64 << 30
"""Refuse inputs that expand beyond this."""

NS_PER_MS = 1_000_000


def ms(value_ns: float) -> float:
    """Return nanoseconds as milliseconds, rounded to the nanosecond."""
    return round(value_ns / NS_PER_MS, 6)


def format_ns(value_ns: float) -> str:
    """Return a duration with a unit and three significant digits: ``12.3 ms``."""
    # 0.9995 of the next unit rounds up to it, so 999.7 µs reads "1.00 ms"
    magnitude = abs(value_ns) / 0.9995
    if magnitude < 1e3:
        return f"{value_ns + 0.0:.3g} ns"  # -0.0 is zero
    for limit, unit in ((1e6, "µs"), (1e9, "ms")):
        if magnitude < limit:
            return f"{_three_digits(value_ns / limit * 1e3)} {unit}"
    return f"{_three_digits(value_ns / 1e9)} s"


def format_ms(value_ms: float) -> str:
    """Return milliseconds with a unit that fits: ``12.3 ms``, ``1.20 s``."""
    return format_ns(value_ms * NS_PER_MS)


def format_change_ns(value_ns: float) -> str:
    """Return a change with its sign: ``-30.6 ms``, ``+1.16 ms``, ``0 ns``."""
    text = format_ns(value_ns)
    return f"+{text}" if value_ns > 0 else text if value_ns < 0 else "0 ns"


def format_span_s(seconds: float) -> str:
    """Return how long something has been going on: ``45 s``, ``10 min``, ``1.5 h``."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.3g} h"


def format_range(low: str, high: str, *, from_zero: bool) -> str:
    """Return ``19-25 %`` for two formatted numbers; ``up to 25 %`` when nothing is promised."""
    if low == high:
        return high
    if from_zero:
        return f"up to {high}"
    number, _, unit = low.rpartition(" ")
    return f"{number if unit == high.rpartition(' ')[2] else low}-{high}"


def format_both_ns(one_ns: float, other_ns: float) -> tuple[str, str, str]:
    """Return two durations in the unit of the longer one, and that unit: ``31.0, 0.4, ms``."""
    largest = max(abs(one_ns), abs(other_ns))
    text, unit = format_ns(largest).split(" ")
    scale = {"ns": 1.0, "µs": 1e3, "ms": 1e6, "s": 1e9}[unit]
    digits = len(text.partition(".")[2])
    return f"{one_ns / scale:.{digits}f}", f"{other_ns / scale:.{digits}f}", unit


def format_count(number: float, noun: str = "", plural: str = "") -> str:
    """Return a number of things, also a median of such: ``1 read``, ``1,332 rounds``, ``0.5``."""
    whole = not math.isfinite(number) or number == int(number) or abs(number) >= 100
    text = f"{number:,.0f}" if whole else f"{number:.3g}"
    return f"{text} {noun if number == 1 else plural or noun + 's'}" if noun else text


def format_share(ratio: float) -> str:
    """Return a ratio as a percentage: ``12 %``, ``0.4 %``, and ``99.8 %`` where rounding would claim all."""
    percent = ratio * 100
    exact = 0 < abs(percent) < 9.95 or 99.5 <= abs(percent) < 99.95
    return f"{percent:.1f} %" if exact else f"{percent:.0f} %"


def format_bytes(size_bytes: float) -> str:
    """Return a size with a binary unit: ``1.50 GiB``."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1023.5:
            return f"{value:.0f} B" if unit == "B" else f"{_three_digits(value)} {unit}"
        value /= 1024
    return f"{_three_digits(value)} TiB"


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if magnitude >= 9.995 else f"{value:.2f}"

"""Nanoseconds and bytes, and how people read them."""

from __future__ import annotations

__all__ = ["format_bytes", "format_count", "format_ms", "format_ns", "format_share", "ms"]

NS_PER_MS = 1_000_000


def ms(value_ns: float) -> float:
    """Return nanoseconds as milliseconds, rounded to the nanosecond."""
    return round(value_ns / NS_PER_MS, 6)


def format_ns(value_ns: float) -> str:
    """Return a duration with a unit and three significant digits: ``12.3 ms``."""
    # 0.9995 of the next unit rounds up to it, so 999.7 µs reads "1.00 ms"
    magnitude = abs(value_ns) / 0.9995
    if magnitude < 1e3:
        return f"{value_ns:.3g} ns"
    for limit, unit in ((1e6, "µs"), (1e9, "ms")):
        if magnitude < limit:
            return f"{_three_digits(value_ns / limit * 1e3)} {unit}"
    return f"{_three_digits(value_ns / 1e9)} s"


def format_ms(value_ms: float) -> str:
    """Return milliseconds with a unit that fits: ``12.3 ms``, ``1.20 s``."""
    return format_ns(value_ms * NS_PER_MS)


def format_count(number: float, noun: str = "", plural: str = "") -> str:
    """Return a number of things, also a median of such: ``1 read``, ``1,332 rounds``, ``0.5``."""
    whole = number == int(number) or abs(number) >= 100
    text = f"{number:,.0f}" if whole else f"{number:.3g}"
    return f"{text} {noun if number == 1 else plural or noun + 's'}" if noun else text


def format_share(ratio: float) -> str:
    """Return a ratio as a percentage: ``12 %``, ``0.4 %``."""
    percent = ratio * 100
    return f"{percent:.1f} %" if 0 < abs(percent) < 9.95 else f"{percent:.0f} %"


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

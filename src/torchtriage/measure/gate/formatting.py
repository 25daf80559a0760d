"""How values, changes and rows of a gate read, in its sentences and on its pages."""

from __future__ import annotations

import math

from torchtriage.core.names import visible
from torchtriage.core.units import format_bytes, format_count, format_ns
from torchtriage.measure.gate.result import MetricChangePoint, MetricRow, Track

STATISTICS = {"low": "typical", "peak": "", "median": "median", "mean": "mean", "p95": "P95", "p99": "P99", "count": ""}
"""``low``, the mean of a session's best tenth: what the program takes when nobody disturbs it."""

_NS = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
_BYTES = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


def amount(value: float, unit: str) -> str:
    """Return a value with a unit that fits: ``12.3 ms``, ``1.50 GiB``, ``81.2 /s``, ``3``."""
    if unit in _NS:
        return format_ns(value * _NS[unit])
    if unit in _BYTES:
        return format_bytes(value * _BYTES[unit])
    if unit == "1":
        return format_count(value) if abs(value) >= 10 or value == int(value) else f"{value:.4g}"
    if unit.startswith("1/"):
        return f"{_plain(value)} {unit[1:]}"
    return f"{_plain(value)} {visible(unit)}"


def factor(unit: str, other: str) -> float | None:
    """Return by what values of a unit are multiplied to be of another; None where no number is."""
    if unit == other:
        return 1.0
    scales = (scale for scale in (_NS, _BYTES) if unit in scale and other in scale)
    return next((scale[unit] / scale[other] for scale in scales), None)


def seconds(value: float, unit: str) -> float | None:
    """Return a time in seconds; None where the unit is none of time."""
    return value * _NS[unit] / 1e9 if unit in _NS else None


def _plain(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def change(ratio: float) -> str:
    """Return a ratio as a change: ``+20.4 %``, ``-0.3 %``, ``3.2 times``."""
    if ratio >= 2.995:
        return f"{ratio:.3g} times"
    if ratio == 1:
        return "0 %"
    percent = 100 * (ratio - 1)
    if abs(percent) < 0.005:
        return "0.00 %"
    text = f"{percent:+.2f}" if abs(percent) < 0.995 else f"{percent:+.1f}"
    return f"{text} %"


def interval(low: float, high: float) -> str:
    """Return the ends of a ratio's interval: ``+18.1 % to +22.9 %``."""
    return f"{change(low)} to {change(high)}"


def level(share: float) -> str:
    """Return the level of an interval: ``98 %``, ``99.9 %``."""
    left = 1 - share
    # one digit of what is left: 99.9 %, 99.995 %
    digits = max(0, -math.floor(math.log10(left)) - 2) if 0 < left < 1 else 0
    return f"{100 * share:.{digits}f} %"


def short(share: float) -> str:
    """Return a share as a limit is written: ``3 %``, ``0.5 %``."""
    return f"{100 * share:.3g} %"


def row_name(row: MetricRow | Track, *, with_benchmark: bool = True) -> str:
    """Return ``resnet latency, typical``."""
    name = visible(" ".join(filter(None, [row.benchmark, row.metric])) if with_benchmark else row.metric)
    statistic = STATISTICS.get(row.statistic, row.statistic)
    return f"{name}, {statistic}" if statistic else name


def change_point(track: Track, point: MetricChangePoint) -> str:
    """Return ``at 1a2b3c4d5e: 12.3 ms to 14.8 ms, +20.4 %``."""
    before, after = (amount(value, track.unit) for value in (point.before, point.after))
    ratio = f", {change(point.ratio)}" if point.ratio is not None else ""
    return f"at {commit(point.commit)}: {before} to {after}{ratio}"


def commit(name: str) -> str:
    """Return a commit's short name."""
    return visible(name[:10]) or "an unnamed commit"

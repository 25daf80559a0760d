"""Which setting is faster, which are as good as each other, and what to deploy for which need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from torchtriage.core.arrays import Floats
from torchtriage.core.stats.paired_interval import GAP, LEAST_PAIRS, NARROW, order_of_pairs
from torchtriage.core.units import format_bytes, format_count, format_ms
from torchtriage.measure.bench.measurements import Measurements
from torchtriage.measure.bench.plan import MODES
from torchtriage.measure.bench.result import BenchAdvice, Need, Setting, SettingComparison, SettingRow

CLEAR = 0.03
"""Rounds end when the interval is narrow, or has its whole length above ``GAP``, or below this."""


def compare(measured: Measurements, first: Setting, other: Setting, q: float = 0.5) -> SettingComparison | None:
    """Return how two settings compare, the faster one first; None without a common round."""
    ratios = measured.ratios(first, other, q)
    return _comparison(first.name, other.name, ratios) if len(ratios) else None


def _comparison(first: str, other: str, ratios: Floats) -> SettingComparison:
    """Return the comparison of two names by ``other`` over ``one`` in each round."""
    order = order_of_pairs(np.ones(len(ratios)), ratios)
    if order.ratio.value < 1:
        return _comparison(other, first, 1 / ratios)
    known = len(ratios) >= LEAST_PAIRS
    return SettingComparison(
        faster=first,
        slower=other,
        ratio=round(order.ratio.value, 6),
        low=round(order.ratio.low, 6) if known else None,
        high=round(order.ratio.high, 6) if known else None,
        n_rounds=len(ratios),
        tie=not order.differs,
        resolved=order.resolved,
    )


def _settled(found: SettingComparison) -> bool:
    if found.low is None or found.high is None:
        return False
    reach = max(found.high / found.ratio - 1, 1 - found.low / found.ratio)
    return reach <= NARROW or found.low >= 1 + GAP or found.high <= 1 + CLEAR


def all_settled(measured: Measurements) -> bool:
    """Whether the order of the settings of each batch size and dtype is clear."""
    for group in measured.plan.groups():
        alive = [setting for setting in group if measured.sessions(setting) and measured.is_alive(setting)]
        for first, other in combinations(alive, 2):
            found = compare(measured, first, other)
            if found is not None and not _settled(found):
                return False
    return True


def compare_all(measured: Measurements) -> tuple[SettingComparison, ...]:
    """Return the comparison of each pair of settings that ran in the same rounds."""
    found = [
        compare(measured, first, other)
        for group in measured.plan.groups()
        for first, other in combinations(group, 2)
        if measured.is_alive(first) and measured.is_alive(other)
    ]
    return tuple(comparison for comparison in found if comparison is not None)


def advise(measured: Measurements, rows: Sequence[SettingRow]) -> tuple[BenchAdvice, ...]:
    """Return one line of code for each need and batch size.

    Settings that failed or compute something else, and those of lower precision than asked for, are left out. Of
    those that are as good as the best, the simplest is named for latency, and for every other need that one where it
    is among them: a tie is no reason for two answers.
    """
    good = [row for row in rows if is_measured(row) and is_right(row)]
    found: list[BenchAdvice | None] = []
    advised: list[str] = []
    sizes = list(dict.fromkeys(row.setting.batch_size for row in good))
    for size in sizes:
        same = [row for row in good if row.setting.batch_size == size]
        latency = _fastest(measured, same, rows, "latency", 0.5)
        found.append(latency)
        first = latency.setting if latency is not None else ""
        advised.append(first)
        for name, q in (("P99", 0.99), ("P95", 0.95)):
            if all(row.quantile(name) is not None for row in same):
                found.append(_fastest(measured, same, rows, "tail", q, first))
                break
        found.append(_smallest(same, first))
    found.append(_busiest(measured, good, advised))
    order: tuple[Need, ...] = ("latency", "throughput", "tail", "edge memory")
    return tuple(sorted(filter(None, found), key=lambda advice: order.index(advice.need)))


def is_measured(row: SettingRow) -> bool:
    """Whether a row has step times of sessions that all ended well."""
    return row.failure is None and row.n_sessions > 0


def is_right(row: SettingRow) -> bool:
    """Whether a row's answers are none that must not be advised."""
    return row.numerics is None or row.numerics.verdict not in ("wrong", "lower precision")


def _simplicity(setting: Setting) -> tuple[int, int, int]:
    if setting.mode in MODES:
        way = 1 + 2 * MODES.index(setting.mode)
    else:
        way = 0 if setting.mode == "eager" else 2
    return way, setting.dynamic != "auto", setting.dtype != ""


class _Choice(NamedTuple):
    """The preferred or simplest of those as good as the best; ``ties`` are the others, best first."""

    row: SettingRow
    ties: tuple[str, ...]
    why: str


def _choose(
    rows: Sequence[SettingRow],
    scale: Callable[[SettingRow], float],
    against: Callable[[SettingRow, SettingRow], SettingComparison | None],
    preferred: Sequence[str] = (),
) -> _Choice:
    ordered = sorted(rows, key=scale)
    best = ordered[0]
    found = {row.label: against(best, row) for row in ordered[1:]}
    as_good = [best, *(row for row in ordered[1:] if (comparison := found[row.label]) is None or comparison.tie)]
    chosen = min(as_good, key=lambda row: (row.label not in preferred, _simplicity(row.setting)))
    by: dict[str, list[str]] = {}
    for row in as_good:
        if row is chosen:
            continue
        # what is known of the best and the chosen is known of neither and a third
        comparison = against(chosen, row)
        reason = (
            "as good" if comparison is not None and comparison.resolved and comparison.tie else "not distinguishable"
        )
        if _simplicity(row.setting) > _simplicity(chosen.setting):
            reason += ", but less simple"
        by.setdefault(reason, []).append(row.label)
    why = "".join(f"; {reason}: {listed(by[reason])}" for reason in sorted(by))
    return _Choice(chosen, tuple(row.label for row in as_good if row is not chosen), why)


def listed(labels: Iterable[str]) -> str:
    """Return names of settings with commas between them: ``default (batch 1), default (batch 8)``.

    They have commas inside.
    """
    parts = (label.partition(", ") for label in labels)
    return ", ".join(f"{way} ({rest})" if rest else way for way, _, rest in parts)


def _fastest(
    measured: Measurements,
    same: Sequence[SettingRow],
    rows: Sequence[SettingRow],
    need: Need,
    q: float,
    preferred: str = "",
) -> BenchAdvice | None:
    if not same:
        return None

    def mean_log(row: SettingRow) -> float:
        ratios = measured.ratios(same[0].setting, row.setting, q)
        return float(np.log(ratios).mean()) if len(ratios) else float("inf")

    def against(first: SettingRow, other: SettingRow) -> SettingComparison | None:
        return compare(measured, first.setting, other.setting, q)

    choice = _choose(same, mean_log, against, [preferred])
    chosen = choice.row
    name = "P50" if q == 0.5 else f"P{100 * q:.0f}"
    value = chosen.quantile(name)
    why = f"{name} {format_ms(value)}" if value is not None else ""
    eager = next((row for row in same if row.setting.mode == "eager"), None)
    if eager is not None and chosen is not eager:
        found = compare(measured, chosen.setting, eager.setting, q)
        if found is not None and not found.tie and found.faster == chosen.setting.name:
            why += f", {times(found)} as fast as eager"
            if q == 0.5:
                calls = chosen.break_even_cold
                why += "" if calls is None else f", its cold start paid for after {format_count(calls, 'call')}"
    why += choice.why
    size = chosen.setting.batch_size
    left = [row.label for row in rows if row.setting.batch_size == size and not is_right(row)]
    if left:
        why += f"; left out because of their answers: {listed(left)}"
    return BenchAdvice(need, size, chosen.label, chosen.setting.line, why, choice.ties)


def times(found: SettingComparison) -> str:
    """Return a ratio and its interval: ``1.42 (1.40-1.45) times``."""
    if found.low is None or found.high is None:
        return f"{found.ratio:.3g} times"
    return f"{found.ratio:.3g} ({found.low:.3g}-{found.high:.3g}) times"


def _smallest(same: Sequence[SettingRow], preferred: str) -> BenchAdvice | None:
    """Return the setting with the least peak memory; of those within the gap, the preferred or simplest."""
    known = {id(row): peak for row in same if (peak := _peak_bytes(row)) is not None}
    if not known or len(known) < len(same):
        return None

    def size(row: SettingRow) -> int:
        return known[id(row)]

    def against(first: SettingRow, other: SettingRow) -> SettingComparison:
        less, more = sorted((first, other), key=size)
        ratio = size(more) / size(less)
        return SettingComparison(less.label, more.label, ratio, None, None, 0, tie=ratio <= 1 + GAP, resolved=True)

    choice = _choose(same, size, against, [preferred])
    chosen = choice.row
    why = f"peak {format_bytes(size(chosen))}, start-up and compilation included"
    most = max(same, key=size)
    if most is not chosen and most.label not in choice.ties:
        why += f"; {listed([most.label])} takes {format_bytes(size(most))}"
    return BenchAdvice(
        "edge memory", chosen.setting.batch_size, chosen.label, chosen.setting.line, why + choice.why, choice.ties
    )


def _peak_bytes(row: SettingRow) -> int | None:
    memory = row.memory
    if memory is None or memory.host_peak_bytes is None:
        return None
    return memory.host_peak_bytes + (memory.device_reserved_bytes or 0)


def _busiest(measured: Measurements, good: Sequence[SettingRow], advised: Sequence[str]) -> BenchAdvice | None:
    """Return the setting and batch size with most samples per second.

    Of each batch size the setting ``advised`` for latency, where steps are not queued: one step after the other, what
    is fastest for one is for all.
    """
    able = [row for row in good if row.throughput is not None and (row.device_ms is not None or row.label in advised)]
    if not able:
        return None

    def rate(row: SettingRow) -> float:
        return row.throughput.value if row.throughput is not None else 0.0

    def against(first: SettingRow, other: SettingRow) -> SettingComparison | None:
        """Compare the times per sample, round by round."""
        sizes = [row.setting.batch_size or 1 for row in (first, other)]
        means = [measured.step_means(row.setting) for row in (first, other)]
        common = sorted(means[0].keys() & means[1].keys())
        if not common:
            return None
        ratios = np.array([means[1][at] / means[0][at] for at in common]) * sizes[0] / sizes[1]
        return _comparison(first.setting.name, other.setting.name, ratios)

    choice = _choose(able, lambda row: -rate(row), against, advised)
    chosen = choice.row
    unit = chosen.throughput.unit if chosen.throughput is not None else ""
    why = f"{rate(chosen):,.4g} {unit}{choice.why}"
    return BenchAdvice("throughput", chosen.setting.batch_size, chosen.label, chosen.setting.line, why, choice.ties)

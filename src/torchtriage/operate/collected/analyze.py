"""Collected records into groups, drifts and a verdict."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Floats
from torchtriage.core.finding import Note
from torchtriage.core.stats.difference import student_quantile
from torchtriage.core.stats.median import median_interval, medians_of_others
from torchtriage.core.units import format_count, format_ms, format_share
from torchtriage.operate.collected.records import NO_SIZE, Records, read_records
from torchtriage.operate.collected.result import CollectedModel, Drift, LatencyGroup, RecordsReport, SlowRecord

N_SLOWEST = 20
MAX_SIZES = 24  # distinct sizes shown as they are; of more, powers of two
FEWEST = 100  # requests from which a group is compared with the others
PEERS = 3  # groups from which one is compared with their median
SLOW, SPREADS = math.log(1.2), 6.0  # a device is named that takes so much longer, and so many median deviations
VERSION_SLOW, SURE = 1.05, 0.99865  # a version is named that takes so much longer, and is so sure to take longer
NORMAL_95 = 1.6449
DRIFT_FEWEST = 300  # values on each side
DRIFT = 0.25  # population stability index that the verdict names
DRIFT_SHOWN = 0.1
BINS = 10
NEAR_S = 1.0  # lines of one batch are so near

Rows = NDArray[np.intp]
Beside = tuple["float | None", "float | None"]
Levels = dict[int, tuple[float, float]]  # of each device, and the variance with which it is known


def report(paths: Sequence[str | Path]) -> RecordsReport:
    """Return what the logs say together; raises what :func:`read_records` does."""
    records = read_records(paths)
    models = tuple(_model(records, at, rows) for at, rows in _split(records.model))
    notes = []
    if records.n_skipped:
        text = f"{format_count(records.n_skipped, 'line')} left out: unreadable"
        notes.append(Note("lines", "warn", text))
    if records.n_repeated:
        text = f"{format_count(records.n_repeated, 'request')} written twice, counted once"
        notes.append(Note("repeated", "info", text))
    if (records.stands_for != 1).any():
        text = "logs hold a sample of the successful requests: request counts and shares are estimates"
        notes.append(Note("sampled", "info", text))
    if records.devices == [""]:
        fix = 'JsonLog(..., device="cam-17") or RedisStream(..., device="cam-17")'
        notes.append(Note("devices", "info", "no line names a device: devices were not compared", fix))
    if any(group.beside and group.beside_low is None for model in models for group in model.versions):
        text = f"no version is called slower: it takes {PEERS} devices that ran both versions, or {PEERS} of each"
        notes.append(Note("versions", "info", text))
    return RecordsReport(
        verdict=tuple(_verdict(models)),
        logs=tuple(map(str, paths)),
        begin_s=float(records.at_s[0]),
        end_s=float(records.at_s[-1]),
        requests=round(float(records.stands_for.sum())),
        repeated=records.n_repeated,
        models=models,
        notes=tuple(notes),
    )


class _Requests:
    """One model's rows, with what each took beside the median of its size."""

    def __init__(self, records: Records, rows: Rows) -> None:
        self.rows = rows
        self.records = records
        self.took_ms = records.took_ns[self.rows] / 1e6
        self.good = ~records.failed[self.rows]
        self.stands_for = records.stands_for[self.rows]
        size = records.size[self.rows]
        self.powers = len(np.unique(size)) > MAX_SIZES
        self.bucket = size
        if self.powers:
            doublings = np.floor(np.log2(np.maximum(size, 1))).astype(np.int64)
            self.bucket = np.where(size > 0, 2**doublings, np.minimum(size, 0))
        logs = np.log(np.maximum(self.took_ms, 1e-6))
        self.beside = np.zeros(len(logs))
        for _, here in _split(self.bucket):
            good = here[self.good[here]]
            self.beside[here] = logs[here] - (np.median(logs[good]) if len(good) else 0.0)

    def group(self, name: str, rows: Rows | None = None, beside: Beside = (None, None)) -> LatencyGroup:
        """Return a group of some of the model's rows."""
        rows = np.arange(len(self.rows)) if rows is None else rows
        took = self.took_ms[rows[self.good[rows]]]
        p50, p90, p99 = (round(float(q), 6) for q in np.quantile(took, (0.5, 0.9, 0.99))) if len(took) else (None,) * 3
        requests = round(float(self.stands_for[rows].sum()))
        return LatencyGroup(name, requests, len(rows) - len(took), p50, p90, p99, *beside)

    def groups(
        self, keys: NDArray[Any], name: Callable[[Any], str], beside: Mapping[int, Beside] | None = None
    ) -> tuple[LatencyGroup, ...]:
        """Return a group per distinct key; ``beside`` : what one takes as a ratio to the others."""
        known = beside or {}
        return tuple(self.group(name(key), rows, known.get(key, (None, None))) for key, rows in _split(keys))

    def compare(
        self, device: NDArray[np.int32], version: NDArray[np.int32]
    ) -> tuple[dict[int, Beside], dict[int, Beside]]:
        """Return the ratios of versions and of devices to the median of the others, by the same sizes.

        A version's level is the median of its devices', so that one slow device makes no slow version; a device is
        compared with those of its version, where there are some.
        """
        cells: dict[int, Levels] = defaultdict(dict)
        for _, rows in _split(version.astype(np.int64) << 32 | device):
            took = self.beside[rows[self.good[rows]]]
            if len(took) >= FEWEST:
                low, level, high = median_interval(took)
                error = (high - low) / 2 / NORMAL_95
                cells[int(version[rows[0]])][int(device[rows[0]])] = level, error**2
        own: dict[int, list[float]] = defaultdict(list)
        for levels in cells.values():
            usual = float(np.median([level for level, _ in levels.values()])) if len(levels) >= PEERS else 0.0
            for on, (level, _) in levels.items():
                own[on].append(level - usual)
        sure: dict[int, Beside] = {}
        for of, levels in cells.items():
            longer = [_longer(levels, others) for other, others in cells.items() if other != of]
            if longer:
                centre, low = (float(np.median(several)) for several in zip(*longer, strict=True))
                sure[of] = round(math.exp(centre), 4), round(math.exp(low), 4) if math.isfinite(low) else None
        means = np.array([np.mean(several) for several in own.values()])
        beside = (means - medians_of_others(means)).tolist() if len(own) > 1 else []
        # one alone has no others
        return sure, {on: (round(math.exp(log), 4), None) for on, log in zip(own, beside, strict=False)}


def _longer(new: Levels, old: Levels) -> tuple[float, float]:
    """Return how much longer a version takes than another, and how much at least, as logarithms.

    Devices differ, and each has one level: what chance leaves is in the spread of their levels, or, of devices that ran
    both, of the differences. By their standard deviation: of devices of two kinds, the median deviation is near zero.
    """
    both = new.keys() & old.keys()
    if len(both) >= PEERS:
        samples = [np.array([[new[on][0] - old[on][0], new[on][1] + old[on][1]] for on in both])]
    else:
        samples = [np.array(list(levels.values())) * (sign, 1) for levels, sign in ((new, 1), (old, -1))]
    medians = [float(np.median(sample[:, 0])) for sample in samples]
    if min(map(len, samples)) < PEERS:
        return sum(medians), -math.inf
    off = np.concatenate([sample[:, 0] - middle for sample, middle in zip(samples, medians, strict=True)])
    free = len(off) - len(samples)
    between = float(off @ off) / free
    variance = sum(max(between, float(sample[:, 1].mean())) / len(sample) for sample in samples) * math.pi / 2
    return sum(medians), sum(medians) - student_quantile(SURE, free) * math.sqrt(variance)


def _split(keys: NDArray[Any]) -> Iterator[tuple[Any, Rows]]:
    """Yield each distinct key, in order, with where it is: as fast for thousands of keys as for two."""
    order = np.argsort(keys, kind="stable")
    found, first = np.unique(keys[order], return_index=True)
    yield from zip(found.tolist(), np.split(order, first[1:]), strict=True) if len(keys) else ()


def _model(records: Records, model: int, rows: Rows) -> CollectedModel:
    own = _Requests(records, rows)
    versions, devices = records.versions, records.devices
    several = len(devices) > 1
    hours = (records.at_s[rows] // 3600).astype(np.int64)
    sized = bool((records.size[rows] != NO_SIZE).any())
    of_versions, of_devices = own.compare(records.device[rows], records.version[rows])
    return CollectedModel(
        model=records.models[model],
        whole=own.group("all"),
        versions=own.groups(records.version[rows], lambda at: versions[at] or "(none)", of_versions),
        devices=own.groups(records.device[rows], lambda at: devices[at] or "(none)", of_devices) if several else (),
        sizes=own.groups(own.bucket, _size_name(own.powers)) if sized else (),
        hours=own.groups(hours, _hour),
        compiling=_compiling(own),
        slowest=tuple(_slowest(own)),
        drifts=tuple(_drifts(own)),
    )


def _size_name(powers: bool) -> Callable[[Any], str]:
    def name(size: Any) -> str:
        if size == NO_SIZE:
            return "(none)"
        return f"{size:,} to {2 * size - 1:,}" if powers and size > 1 else f"{size:,}"

    return name


def _hour(hour: Any) -> str:
    try:
        return datetime.fromtimestamp(int(hour) * 3600, timezone.utc).strftime("%Y-%m-%d %H:00")
    except (ValueError, OverflowError, OSError):
        return "at an unknown time"


def _compiling(own: _Requests) -> tuple[LatencyGroup, ...]:
    """Return the requests whose line first tells of a further recompilation on their device, and the others."""
    records, rows = own.records, own.rows
    counts = records.recompiles[rows]
    known = counts >= 0
    if not known.any():
        return ()
    mask = np.zeros(len(rows), bool)
    for _, all_rows in _split(records.device[rows]):
        here = all_rows[known[all_rows]]
        risen = np.maximum.accumulate(counts[here])
        # all lines of a batch have the count at its end: those of the first with a new count ran while it rose
        first = np.flatnonzero(np.diff(risen, prepend=risen[:1]) > 0)
        at_s = records.at_s[rows[here]]
        # lines are in the order of time
        for at, low, high in zip(
            first.tolist(),
            np.searchsorted(at_s, at_s[first] - NEAR_S, "right").tolist(),
            np.searchsorted(at_s, at_s[first] + NEAR_S, "left").tolist(),
            strict=True,
        ):
            near = here[low:high]
            mask[near[risen[low:high] == risen[at]]] = True
    parts = {"during a recompilation": mask, "without one": known & ~mask}
    return tuple(own.group(name, np.flatnonzero(part)) for name, part in parts.items())


def _slowest(own: _Requests) -> Iterable[SlowRecord]:
    records = own.records
    good = np.flatnonzero(own.good)
    for at in good[np.argsort(-own.beside[good], kind="stable")[:N_SLOWEST]].tolist():
        row = int(own.rows[at])
        size = int(records.size[row])
        yield SlowRecord(
            at_s=float(records.at_s[row]),
            took_ms=round(float(own.took_ms[at]), 6),
            times=round(math.exp(min(float(own.beside[at]), 50.0)), 3),
            device=records.devices[records.device[row]],
            version=records.versions[records.version[row]],
            size=None if size == NO_SIZE else size,
            fields={name: str(value) for name, value in records.fields[row].items()},
        )


# -- drift ----------------------------------------------------------------------------------------


def _drifts(own: _Requests) -> Iterable[Drift]:
    records, rows = own.records, own.rows
    at_s, version = records.at_s[rows], records.version[rows]
    span = float(at_s[-1] - at_s[0])
    begin_s, end_s = at_s[0] + span / 3, at_s[-1] - span / 3
    _, first = np.unique(version, return_index=True)
    counted = version[np.sort(first)].tolist()  # in the order in which they came
    for what, known, values in _measured(own):
        pairs = [
            (("first third", "last third"), np.flatnonzero(at_s[known] < begin_s), np.flatnonzero(at_s[known] >= end_s))
        ]
        of = dict(_split(version[known]))
        weights = own.stands_for[known]
        is_share = bool(((values == 0) | (values == 1)).all())
        for old, new in pairwise(key for key in counted if key in of):
            pairs.append(((records.versions[old], records.versions[new]), of[old], of[new]))
        for between, *sides in pairs:
            if min(map(len, sides)) >= DRIFT_FEWEST:
                psi = _stability(*((values[side], weights[side]) for side in sides))
                if psi >= DRIFT_SHOWN:
                    medians = (float(np.median(values[side])) for side in sides)
                    shares = (float(np.average(values[side], weights=weights[side])) for side in sides)
                    yield Drift(what, between, round(psi, 3), *medians, *(shares if is_share else ()))


def _measured(own: _Requests) -> Iterator[tuple[str, Rows, Floats]]:
    """Yield what may drift, where it is known: sizes, failures, and numbers that callers wrote into the fields."""
    records, rows = own.records, own.rows
    size = records.size[rows]
    known = np.flatnonzero(size != NO_SIZE)
    yield "size", known, size[known].astype(float)
    yield "failed", np.arange(len(rows)), records.failed[rows].astype(float)
    numbers: dict[str, tuple[list[int], list[float]]] = {}
    for at, row in enumerate(rows.tolist()):
        for name, value in records.fields[row].items():
            if not math.isnan(number := _float(value)):
                where, found = numbers.setdefault(name, ([], []))
                where.append(at)
                found.append(number)
    for name in sorted(numbers):
        where, found = numbers[name]
        yield name, np.array(where), np.array(found)


def _float(value: Any) -> float:
    try:
        return float(value) if isinstance(value, (int, float)) else math.nan
    except OverflowError:
        return math.nan


def _stability(before: tuple[Floats, Floats], after: tuple[Floats, Floats]) -> float:
    """Return the population stability index of values with weights, less what chance alone gives in the mean."""
    edges = np.unique(np.quantile(before[0], np.linspace(0, 1, BINS + 1)[1:-1]))
    shares, chance = [], 0.0
    for values, weights in (before, after):
        counts = np.bincount(np.searchsorted(edges, values, side="left"), weights, len(edges) + 1)
        n = float(weights.sum() ** 2 / (weights**2).sum())  # as many of equal weight say as much (Kish)
        shares.append((counts * n / weights.sum() + 0.5) / (n + 0.5 * len(counts)))
        chance += len(edges) / n
    index = float(((shares[1] - shares[0]) * np.log(shares[1] / shares[0])).sum())
    return max(index - chance, 0.0)


# -- verdict --------------------------------------------------------------------------------------


def _verdict(models: Sequence[CollectedModel]) -> Iterable[str]:
    for model in models:
        whole = model.whole
        text = f"{model.model}: {format_count(whole.requests, 'request')}"
        if model.devices:
            text += f" on {format_count(len(model.devices), 'device')}"
        if whole.p50_ms is not None and whole.p99_ms is not None:
            text += f", half within {format_ms(whole.p50_ms)}, 99 % within {format_ms(whole.p99_ms)}"
        if whole.failed:
            text += f", {format_share(whole.failed / whole.requests)} failed"
        yield text
        slow = _slow_devices(model.devices)
        if slow:
            named = ", ".join(f"{group.name} ({group.beside:.2f} x)" for group in slow[:5])
            rest = f" and {len(slow) - 5} more" if len(slow) > 5 else ""
            yield f"  slower than their peers at the same sizes: {named}{rest}"
        for group in model.versions:
            if group.beside is not None and group.beside > VERSION_SLOW and (group.beside_low or 0.0) > 1:
                yield f"  version {group.name} takes {group.beside - 1:.0%} longer than the others at the same sizes"
        for drift in model.drifts:
            if drift.psi >= DRIFT:
                yield (
                    f"  {drift.what} drifted from {drift.between[0]} to {drift.between[1]}: {drift.change()}"
                    f" (stability index {drift.psi:.2f})"
                )


def _slow_devices(devices: Sequence[LatencyGroup]) -> list[LatencyGroup]:
    known = [group for group in devices if group.beside is not None]
    if len(known) < PEERS:
        return []
    logs = np.log([group.beside or 1.0 for group in known])
    spread = float(np.median(np.abs(logs - np.median(logs))))
    slow = [group for group, log in zip(known, logs, strict=True) if log > max(SLOW, SPREADS * spread)]
    return sorted(slow, key=lambda group: -(group.beside or 0.0))

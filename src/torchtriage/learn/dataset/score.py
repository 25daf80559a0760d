"""How good a system's predictions are, each figure with an interval over programs.

The two tasks of TorchTraceAP (arXiv 2512.14141): find the windows that hold an anti-pattern
(AUROC), and name its type (accuracy); beside them what a user asks: is a healthy program left
alone, is the line right, is the saving true?
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchtriage.core.arrays import Floats, Mask
from torchtriage.core.errors import UsageError
from torchtriage.core.stats.share import share_interval
from torchtriage.learn.dataset.predictions import Prediction, Predictions
from torchtriage.learn.dataset.recordings import DEVICE, DatasetItem

SPLITS = ("train", "validation", "test")
DEVICE_SPLITS = ("development", "test", "later")
SYNTHETIC = "synthetic"
APART = (SYNTHETIC, DEVICE)
"""The parts that are scored apart: what a model made, and what others recorded, say nothing of each other."""
RESAMPLED = 200
LEVEL = 0.95


@dataclass(frozen=True)
class Figure:
    """A figure of merit, 0 to 1. NaN where nothing can be said: then ``n`` is 0 or all are alike.

    ``low``, ``high`` : a 95 % interval over programs, or published recordings' repositories; NaN where all draws of
    them give the same. ``n`` : recordings it is made of.
    """

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        """Return it as tables print it."""
        if math.isnan(self.value):
            return "-"
        return f"{self.value:.2f}" + ("" if math.isnan(self.low) else f" ({self.low:.2f}-{self.high:.2f})")


@dataclass(frozen=True)
class Score:
    """A system on a group of recordings.

    ``missing`` : recordings it says nothing of; they count as found healthy.

    ``auroc``, ``auprc`` : of windows, which is faulty. ``type_accuracy``, ``macro_f1`` : the surest
    type of faulty recordings is the fault's. ``detected`` : faulty recordings of which anything is
    said; ``quiet`` : clean ones of which nothing is said, ``not_severe`` : nothing severe, of systems that say what is.
    ``overlap`` : intersection over union of the windows above a half with the faulty ones.
    ``line_accuracy`` : a line named is the fault's, of predictions with a line. ``saving`` : the
    measured difference to the clean twin is inside the predicted interval, widened by a tenth, of
    predictions of the right type.
    """

    group: str
    n_items: int
    missing: int
    auroc: Figure
    auprc: Figure
    type_accuracy: Figure
    macro_f1: Figure
    detected: Figure
    quiet: Figure
    not_severe: Figure
    overlap: Figure
    line_accuracy: Figure
    saving: Figure


@dataclass(frozen=True)
class _Row:
    """One recording beside its prediction."""

    program: tuple[str, Any]
    code: str
    faulty: Mask
    scores: Floats
    named: str
    anything: bool
    severe: bool
    line_right: bool | None
    saving_right: bool | None


def score(items: Sequence[DatasetItem], predictions: Predictions, *, only: Collection[str] = ()) -> tuple[Score, ...]:
    """Score a system on all recordings, on each split, and on each fault with its clean twins.

    Parts, devices and versions of torch are groups where there are several, severities where a
    fault has several; look-alikes are clean recordings, and a group of their own beside. ``only``
    these groups, when any are named: each takes as long as another. Recordings that nobody can
    judge are left out.

    Raises UsageError: a prediction has other windows than its recording.
    """
    items = [item for item in items if item.judged]
    twins = {item.id: item for item in items if not item.code}
    rows = [(item, _row(item, predictions.items.get(item.id), twins)) for item in items]
    tells_severe = any(answer.severe is not None for answer in predictions.items.values())
    return tuple(
        _score(
            name,
            [row for item, row in rows if belongs(item)],
            sum(item.id not in predictions.items for item, _ in rows if belongs(item)),
            tells_severe=tells_severe,
        )
        for name, belongs in _groups(items).items()
        if not only or name in only
    )


def _groups(items: Sequence[DatasetItem]) -> dict[str, Callable[[DatasetItem], bool]]:
    groups = _groups_of([item for item in items if item.about.get("part") not in APART], "", SPLITS)
    for part, splits in ((SYNTHETIC, SPLITS), (DEVICE, DEVICE_SPLITS)):
        groups |= _groups_of([item for item in items if item.about.get("part") == part], f"{part} ", splits)
    return groups


def _groups_of(
    items: Sequence[DatasetItem], prefix: str, splits: Sequence[str]
) -> dict[str, Callable[[DatasetItem], bool]]:
    members = {"all": {item.id for item in items}}
    for split in splits:
        members[split] = {item.id for item in items if item.about["split"] == split}
    for key in ("part", "device", "torch"):
        values = sorted({str(item.about.get(key, "")) for item in items} - {""})
        for value in values if len(values) > 1 else ():
            members[f"{key} {value}"] = {item.id for item in items if item.about.get(key) == value}
    alike = {item.id for item in items if item.about.get("lookalike")}
    if alike:
        members["look-alikes"] = alike
    members |= _by_severity(items)
    for code in sorted({item.code for item in items if item.code}):
        faulty = [item for item in items if item.code == code]
        members[code] = {item.id for item in faulty} | {item.about["twin"] for item in faulty}
    if not items and prefix:
        return {}
    return {
        f"{prefix}{name}": lambda item, ids=ids: item.id in ids  # type: ignore[misc]
        for name, ids in members.items()
    }


def _by_severity(items: Sequence[DatasetItem]) -> dict[str, set[str]]:
    severities: dict[tuple[str, str], set[float]] = {}
    for item in items:
        if item.code:
            kind = item.code, str(item.about.get("variant", ""))
            severities.setdefault(kind, set()).add(item.about["severity"])
    members: dict[str, set[str]] = {"light": set(), "middle": set(), "heavy": set()}
    for item in items:
        known = severities.get((item.code, str(item.about.get("variant", ""))), set())
        if len(known) > 1:
            severity = item.about["severity"]
            light, heavy = severity == min(known), severity == max(known)
            members["light" if light else "heavy" if heavy else "middle"].add(item.id)
    return {f"severity {name}": ids for name, ids in members.items() if ids}


def _row(item: DatasetItem, answer: Prediction | None, twins: Mapping[str, DatasetItem]) -> _Row:
    faulty = item.faulty
    if answer is None:
        answer = Prediction((0.0,) * len(faulty))
    if len(answer.windows) != len(faulty):
        raise UsageError(
            f"expected a number for each of the {len(faulty)} windows of item {item.id}, found {len(answer.windows)}",
            hint="torchtriage benchmark dataset windows lists them",
        )
    named = max(answer.types, key=answer.types.__getitem__, default="")
    named = item.code if named in item.accepted else named
    line_right = saving_right = None
    if item.code and answer.lines and item.about["fault_lines"]:
        line_right = bool(set(answer.lines) & set(item.about["fault_lines"]))
    twin = twins.get(item.about["twin"])
    was_ms, is_ms = item.step_ms, twin.step_ms if twin is not None else None
    if item.code and was_ms and is_ms and answer.saving_ms is not None and named == item.code:
        least, most = answer.saving_ms
        gained = was_ms - is_ms
        slack = 0.1 * was_ms
        saving_right = least - slack <= gained <= most + slack
    return _Row(
        # twins and ranks share the seed; what was published has none, and its family is the repository
        (item.about["family"], item.about.get("seed")),
        item.code,
        faulty,
        np.array(answer.windows),
        named,
        bool(answer.types),
        bool(answer.severe),
        line_right,
        saving_right,
    )


def _score(name: str, rows: list[_Row], missing: int, *, tells_severe: bool) -> Score:
    faulty = [row for row in rows if row.code]
    clean = [row for row in rows if not row.code]
    rng = np.random.default_rng(0)
    return Score(
        name,
        len(rows),
        missing,
        _figure(rows, lambda some: area_under_roc(*_windows(some)), rng),
        _figure(rows, lambda some: average_precision(*_windows(some)), rng),
        _mean(faulty, lambda row: row.named == row.code),
        _figure(faulty, _macro_f1, rng),
        _mean(faulty, lambda row: row.anything),
        _mean(clean, lambda row: not row.anything),
        _mean(clean if tells_severe else [], lambda row: not row.severe),
        _mean(faulty, _overlap),
        _mean([row for row in rows if row.line_right is not None], lambda row: bool(row.line_right)),
        _mean([row for row in rows if row.saving_right is not None], lambda row: bool(row.saving_right)),
    )


def _mean(rows: list[_Row], right: Callable[[_Row], float]) -> Figure:
    if not rows:
        return Figure(np.nan, np.nan, np.nan, 0)
    programs = [np.array([right(row) for row in some], np.float64) for some in _programs(rows)]
    sums = np.array([program.sum() for program in programs])
    sizes = np.array([len(program) for program in programs])
    value = float(sums.sum() / len(rows))
    # nothing tells how alike a program's recordings are: each program counts once
    low, high = share_interval(sums, sizes) if 0 < value < 1 else share_interval(sums / sizes, np.ones(len(sizes)))
    return Figure(value, low, high, len(rows))


def _figure(rows: list[_Row], value: Callable[[list[_Row]], float], rng: np.random.Generator) -> Figure:
    if not rows:
        return Figure(np.nan, np.nan, np.nan, 0)
    programs = _programs(rows)
    draws = rng.integers(0, len(programs), (RESAMPLED, len(programs))).tolist()
    drawn = np.array([value([row for at in draw for row in programs[at]]) for draw in draws])
    known = drawn[~np.isnan(drawn)]
    alike = not len(known) or known.min() == known.max()
    low, high = (np.nan, np.nan) if alike else np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Figure(value(rows), float(low), float(high), len(rows))


def _programs(rows: list[_Row]) -> list[list[_Row]]:
    """Return the recordings of each program: twins and ranks are not independent."""
    found: dict[tuple[str, Any], list[_Row]] = {}
    for row in rows:
        found.setdefault(row.program, []).append(row)
    return list(found.values())


def _windows(rows: list[_Row]) -> tuple[Mask, Floats]:
    return np.concatenate([row.faulty for row in rows]), np.concatenate([row.scores for row in rows])


def _overlap(row: _Row) -> float:
    found = row.scores >= 0.5
    either = (found | row.faulty).sum()
    return float((found & row.faulty).sum() / either) if either else 1.0


def _macro_f1(rows: list[_Row]) -> float:
    """Return the mean over the types that occur of the harmonic mean of precision and recall."""
    values = []
    for code in {row.code for row in rows}:
        right = sum(row.code == row.named == code for row in rows)
        either = sum((row.code == code) + (row.named == code) for row in rows)
        values.append(2 * right / either)
    return float(np.mean(values))


def area_under_roc(truth: Mask, scores: Floats) -> float:
    """Return the chance that a faulty window scores above a healthy one; ties count half.

    NaN when all are faulty or none is. Mann and Whitney's statistic, from ranks.
    """
    n_true = int(truth.sum())
    n_false = len(truth) - n_true
    if not n_true or not n_false:
        return float("nan")
    _, which, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    return float((ranks[which][truth].sum() - n_true * (n_true + 1) / 2) / (n_true * n_false))


def average_precision(truth: Mask, scores: Floats) -> float:
    """Return the precision at each faulty window, averaged; equal scores count together."""
    n_true = int(truth.sum())
    if not n_true:
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))
    found = np.cumsum(truth[order])[ends]
    return float((np.diff(found, prepend=0) / n_true * found / (ends + 1)).sum())

"""What a system says of the benchmark's recordings, as JSON that any program can write.

::

    {"system": "my detector", "items": {"0001": {
        "windows": [0.1, 0.9, ...],       one number a window, more is more suspicious
        "types": {"LCH016": 0.8},         fault types with how sure it is; empty: a clean recording
        "lines": [47],                    lines of the script that are the fault, if it says so
        "saving_ms": [1.0, 2.5],          least and most that a step would save, if it says so
        "severe": true                    something is badly wrong, if it tells that
    }}}
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.errors import UsageError
from torchtriage.core.finding import Finding
from torchtriage.diagnose.verdict.options import Options
from torchtriage.diagnose.verdict.verdict import diagnose
from torchtriage.learn.dataset.recordings import DatasetItem

_SURE = {"certain": 1.0, "likely": 0.7, "hint": 0.4}


@dataclass(frozen=True)
class Prediction:
    """What a system reports of one recording; see the module."""

    windows: tuple[float, ...]
    types: Mapping[str, float] = field(default_factory=dict)
    lines: tuple[int, ...] = ()
    saving_ms: tuple[float, float] | None = None
    severe: bool | None = None
    """Whether something is badly wrong; None: it does not say."""


@dataclass(frozen=True)
class Predictions:
    """What one system says."""

    system: str
    items: Mapping[str, Prediction]

    def to_json(self) -> str:
        """Return the document."""
        return json.dumps(
            {"system": self.system, "items": {key: asdict(item) for key, item in self.items.items()}}, indent=1
        )


def read_predictions(path: Path) -> Predictions:
    """Read a document of predictions.

    Raises UsageError: it is not one, with the item that is wrong.
    """
    try:
        document = json.loads(path.read_bytes())
        system, items = str(document["system"]), document["items"].items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"expected predictions with system and items in {path}, found {error}",
            hint="docs/benchmark.md shows their form",
        ) from error
    return Predictions(system, {str(key): _prediction(key, row, path) for key, row in items})


def _prediction(key: object, row: Any, path: Path) -> Prediction:
    try:
        return _read(row)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UsageError(f"cannot read the prediction of item {key} in {path}: {error}") from error


def _read(row: Any) -> Prediction:
    windows = tuple(float(item) for item in row["windows"])
    if not all(map(math.isfinite, windows)):
        raise ValueError("a window's number is not finite")
    saving = row.get("saving_ms")
    bounds = None if saving is None else (float(saving[0]), float(saving[1]))
    types = {str(code): float(sure) for code, sure in (row.get("types") or {}).items()}
    if not all(map(math.isfinite, (*types.values(), *(bounds or ())))):
        raise ValueError("a type's or a saving's number is not finite")
    lines = tuple(int(line) for line in row.get("lines") or ())
    severe = row.get("severe")
    return Prediction(windows, types, lines, bounds, None if severe is None else bool(severe))


def rules(item: DatasetItem) -> Prediction:
    """Return what our patterns say: each finding counts where it lies, by how sure it is."""
    findings = diagnose(item.trace, Options(step_ms=item.step_ms)).findings
    windows_ns = item.windows_ns
    length_ns = np.maximum(windows_ns[:, 1] - windows_ns[:, 0], 1)
    scores = np.zeros(len(windows_ns))
    types: dict[str, float] = {}
    for finding in findings:
        spans = intervals.union(np.array(finding.place.intervals_ns, np.int64).reshape(-1, 2))
        share = intervals.covered(windows_ns, spans) / length_ns
        weight = _SURE[finding.certainty] * (0.5 + 0.5 * _share(finding))
        scores = np.maximum(scores, share * weight)
        types[finding.code] = max(types.get(finding.code, 0.0), weight)
    first = findings[0] if findings else None
    frame = first.place.frame if first else None
    cost = first.cost if first else None
    return Prediction(
        tuple(scores.tolist()),
        types,
        (frame.lines or (frame.line,)) if frame and frame.file.endswith("train.py") else (),
        (cost.low_ms, cost.high_ms) if cost else None,
        any(item.severity == "high" for item in findings),
    )


def _share(finding: Finding) -> float:
    return finding.cost.share_low if finding.cost else 0.0

"""Recordings made up for tests: windows with features, no trace behind them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from torchtriage.diagnose.detector.features import NAMES, PER_STEP
from torchtriage_benchmark.training.event_tokens import KINDS, VALUES
from torchtriage_benchmark.training.training_set import Example

WINDOWS = 32
CODES = ("HST020", "CPY012")
FAMILIES = {"train": ("a", "b", "c"), "validation": ("d",), "test": ("e",)}
PER_FAMILY = 6


def recording(number: int, family: str, split: str, code: str, rng: np.random.Generator) -> Example:
    """Return a recording: in its faulty windows, one column of its type is raised."""
    edges_ns = np.arange(WINDOWS + 1) * 1_000_000
    windows_ns = np.stack([edges_ns[:-1], edges_ns[1:]], axis=1)
    features = rng.normal(0, 1, (WINDOWS, len(NAMES))).astype(np.float32)
    intervals = []
    if code:
        place = int(rng.integers(0, PER_STEP - 4))
        for first in range(place, WINDOWS, PER_STEP):  # steps are alike
            intervals.append([first * 1_000_000, (first + 4) * 1_000_000])
            features[first : first + 4, 10 * CODES.index(code)] += 6
    about = {
        "id": f"{number:04d}",
        "family": family,
        "split": split,
        "code": code,
        "twin": f"{number - number % 3:04d}",
        "intervals_ns": intervals,
        "step_ns": [1e6],
        "sha256": f"{number:064d}",
        "fault_lines": [],
        "severity": 0,
    }
    one = Example(about, Path(f"{number:04d}.ttcol"))
    one.__dict__["looked"] = {
        "windows_ns": windows_ns,
        "features": features,
        "kind_names": rng.integers(0, 50, (WINDOWS, KINDS, 2)).astype(np.int16),
        "kind_values": rng.random((WINDOWS, KINDS, len(VALUES))).astype(np.float16),
    }
    return one


def recordings(seed: int = 0) -> list[Example]:
    """Return clean and faulty recordings of every split."""
    rng = np.random.default_rng(seed)
    out: list[Example] = []
    for split, families in FAMILIES.items():
        for family in families:
            for at in range(PER_FAMILY):
                code = ("", *CODES)[at % 3]
                out.append(recording(len(out), family, split, code, rng))
    return out

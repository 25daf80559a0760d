"""What is kept of the benchmark in a folder, read back: traces, labels, windows."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.core.errors import TraceFormatError, UsageError
from torchtriage.core.names import word_list
from torchtriage.core.trace import Trace, read_trace
from torchtriage.diagnose.detector.features import windows, windows_within
from torchtriage.learn.dataset import trace_codec

TRACE = ".ttcol"
DEVICE = "device"
"""The part of real accelerators: what others recorded, kept as they published it."""
RECORDING = ".recording"
MIN_STEPS = 3
"""Fewer are not judged one by one (benchmarks/devices/PROTOCOL.md)."""
MOST_STEPS = 10
"""Of more only the first ones: a hundred steps would count as much as a hundred recordings."""
_KEYS = frozenset(word_list("id code family split script twin severity fault_lines intervals_ns step_ns sha256"))
HALF = 0.5
_ID = re.compile(r"[a-z]?[0-9]{4,}")


@dataclass(frozen=True, eq=False)
class DatasetItem:
    """One item of the benchmark. ``about`` : what its JSON says."""

    about: dict[str, Any]
    path: Path

    @property
    def id(self) -> str:
        """Its number, as text."""
        return str(self.about["id"])

    @property
    def code(self) -> str:
        """The fault's code, empty for a clean program."""
        return str(self.about["code"])

    @property
    def accepted(self) -> frozenset[str]:
        """The names that an expert would give the fault."""
        return frozenset({self.code, *self.about.get("or", ())})

    @property
    def judged(self) -> bool:
        """Whether it could be told faulty from clean."""
        return self.about.get("state", "healthy") in ("faulty", "healthy")

    @property
    def step_ms(self) -> float | None:
        """Mean time of a step without the profiler, without the shortest and the longest; None: not measured."""
        if not self.about["step_ns"]:
            return None
        ordered = np.sort(self.about["step_ns"])
        return float(ordered[1:-1].mean() if len(ordered) > 2 else ordered.mean()) * 1e-6

    def document(self) -> dict[str, Any]:
        """Return the trace as the profiler wrote it, less the marks.

        Raises TraceFormatError: the file is missing, damaged, not the one that was recorded, or no JSON.
        """
        self._check()
        if self.path.suffix == TRACE:
            return trace_codec.read(self.path)
        try:
            document = json.loads(gzip.decompress(self.path.read_bytes()))
        except ValueError as error:
            raise TraceFormatError(
                f"expected the profiler's JSON in {self.path}, found another format",
                hint="it is kept as published, compressed with gzip: copy the file",
            ) from error
        return document if isinstance(document, dict) else {"traceEvents": document}

    def _check(self) -> None:
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise TraceFormatError(f"cannot read {self.path}: {error.strerror}") from error
        if hashlib.sha256(data).hexdigest() != self.about["sha256"]:
            raise TraceFormatError(
                f"expected the recording of {self.id}.json, found another in {self.path}",
                hint="remove both files and record again",
            )

    @cached_property
    def trace(self) -> Trace:
        """The trace as columns."""
        self._check()
        if self.path.suffix == TRACE:
            return read_trace(io.BytesIO(trace_codec.read_text(self.path)))
        return read_trace(self.path)

    @cached_property
    def windows_ns(self) -> NDArray[np.int64]:
        """Its windows, int64[n, 2], on the trace's clock."""
        return judged_windows(self.trace) if self.about.get("part") == DEVICE else windows(self.trace)

    @cached_property
    def faulty(self) -> NDArray[np.bool_]:
        """Which windows the fault is in."""
        intervals_ns = np.array(self.about["intervals_ns"], np.int64).reshape(-1, 2)
        return faulty(self.windows_ns, intervals_ns)


def item_paths(folder: Path) -> list[Path]:
    """Return the JSON files of the items in a folder, by their numbers; none where it is empty."""
    return sorted(path for path in folder.glob("*.json") if _ID.fullmatch(path.stem))


def dataset_items(folder: Path) -> Iterator[DatasetItem]:
    """Yield the items in a folder, by their numbers.

    Raises UsageError: there are none, or what is known of one cannot be read.
    """
    found = item_paths(folder)
    if not found:
        raise UsageError(
            f"expected recordings of the benchmark in {folder}, found none",
            hint="torchtriage benchmark dataset record makes them; dataset fetch downloads those of devices",
        )
    yield from map(read_item, found)


def read_item(path: Path) -> DatasetItem:
    """Return the item whose JSON this is.

    Raises UsageError: the file is missing, damaged, or lacks something.
    """
    hint = "remove it and record again: torchtriage benchmark dataset record"
    try:
        about = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"expected a recording's metadata in {path}, found {error}", hint=hint) from error
    missing = _KEYS - about.keys() if isinstance(about, dict) else _KEYS
    if missing:
        raise UsageError(
            f"expected a recording's metadata in {path}, found none of {', '.join(sorted(missing))}", hint=hint
        )
    return DatasetItem(about, path.with_suffix(RECORDING if about.get("part") == DEVICE else TRACE))


def judged_windows(trace: Trace) -> NDArray[np.int64]:
    """Return the windows of what is judged of a device's recording, int64[n, 2].

    Sixteenths of the second to the eleventh step, each until the device has done what was enqueued in it; where there
    are fewer than three steps, of the time from the first to the last row of the device.
    """
    steps, rows = trace.steps, np.flatnonzero(trace.works)
    if len(steps) >= MIN_STEPS:
        judged = slice(1, 1 + MOST_STEPS)
        return windows_within(steps.start_ns[judged], steps.end_ns[judged])
    if not len(rows):
        return windows(trace)
    return windows_within(trace.start_ns[rows].min(keepdims=True), trace.end_ns[rows].max(keepdims=True))


def faulty(windows_ns: NDArray[np.int64], intervals_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which windows the fault is in: it fills half of them, or half of it is in them.

    ``windows_ns`` : int64[n, 2]; ``intervals_ns`` : int64[k, 2], apart and in order.
    """
    found = np.zeros(len(windows_ns), np.bool_)
    for begin_ns, end_ns in intervals_ns:
        shared = np.minimum(windows_ns[:, 1], end_ns) - np.maximum(windows_ns[:, 0], begin_ns)
        found |= shared >= HALF * max(end_ns - begin_ns, 1)
    filled = intervals.covered(windows_ns, intervals_ns)
    return found | (filled >= HALF * (windows_ns[:, 1] - windows_ns[:, 0]))

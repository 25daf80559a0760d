"""The benchmark as systems learn from it: windows with features; no trace is read twice.

What was computed from a recording is kept beside the recordings, by the recording's checksum and by
the code that computed it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import zipfile
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtriage.diagnose.detector.features import window_features
from torchtriage.learn.dataset.recordings import DEVICE, DatasetItem, dataset_items
from torchtriage.learn.dataset.score import APART
from torchtriage_benchmark.training.event_tokens import window_kinds

FOLDER = "features"
"""Where it is kept, in the recordings' folder."""
_COMPUTES: dict[str, tuple[str, ...]] = {
    "torchtriage.core": ("intervals.py",),
    "torchtriage.core.trace": (),
    "torchtriage.diagnose.detector": (
        "collective_features.py",
        "device_features.py",
        "families.py",
        "features.py",
        "windows.py",
    ),
    "torchtriage.learn.dataset": ("recordings.py",),
    "torchtriage_benchmark.training": ("event_tokens.py",),
}
"""Packages and their modules that compute it; none named: all."""


@dataclass(frozen=True, eq=False)
class Example(DatasetItem):
    """A recording with what was computed from it; its trace is read only to compute that."""

    @cached_property
    def looked(self) -> dict[str, NDArray[Any]]:
        """What was computed."""
        path = self.path.parent / FOLDER / f"{self.about['sha256'][:32]}-{_code()}.npz"
        with (
            contextlib.suppress(OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error),
            np.load(path, allow_pickle=False) as stored,
        ):
            return {name: stored[name] for name in stored.files}
        arrays: dict[str, Any] = self._look()
        stream = io.BytesIO()
        np.savez_compressed(stream, **arrays)
        path.parent.mkdir(exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}.draft")
        draft.write_bytes(stream.getvalue())
        draft.replace(path)
        return arrays

    def _look(self) -> dict[str, Any]:
        # a recording of its own: its trace does not stay in memory
        recording = DatasetItem(self.about, self.path)
        trace, windows_ns = recording.trace, recording.windows_ns
        return {
            "windows_ns": windows_ns,
            "features": window_features(trace, windows_ns),
            **window_kinds(trace, windows_ns),
        }

    @cached_property
    def windows_ns(self) -> NDArray[np.int64]:
        """Its windows, int64[n, 2], on the trace's clock."""
        return self.looked["windows_ns"]

    @property
    def features(self) -> NDArray[np.float32]:
        """float32[n, features]: what its windows look like."""
        return self.looked["features"]

    @property
    def codes(self) -> tuple[str, ...]:
        """The fault of each window, empty where there is none."""
        return tuple(self.code if item else "" for item in self.faulty.tolist())

    @property
    def split(self) -> str:
        """Where its family belongs."""
        return str(self.about["split"])


def examples(folder: Path, *, jobs: int = 1, report: Callable[[int], None] = lambda _: None) -> list[Example]:
    """Return the recordings in a folder with their features computed.

    Raises UsageError: there are none; TraceFormatError: one cannot be read.
    """
    found = [Example(item.about, item.path) for item in dataset_items(folder)]
    if jobs == 1:
        for done, example in enumerate(found, 1):
            _ = example.looked
            report(done)
        return found
    with ProcessPoolExecutor(jobs) as pool:
        for done, _ in enumerate(pool.map(_look, found, chunksize=4), 1):
            report(done)
    return found


def learned(found: Sequence[Example], split: str) -> list[Example]:
    """Return what systems learn from ("train") or are tuned on ("validation").

    Recordings, synthetic timelines, and to learn from the judged development half of the device part.
    """
    part = {"train": "development"}.get(split, split)
    return [item for item in found if item.judged and item.split == (part if _published(item) else split)]


def _published(item: DatasetItem) -> bool:
    return bool(item.about.get("part") == DEVICE)


def recorded(found: Sequence[Example], split: str) -> list[Example]:
    """Return the recordings of one split; what a model made, and what others recorded, is none."""
    return [item for item in found if item.split == split and item.about.get("part") not in APART]


def data_hash(found: Sequence[Example]) -> str:
    """Return what tells one set of recordings from another: their checksums and labels."""
    said = hashlib.sha256()
    for example in sorted(found, key=lambda item: item.id):
        # of what others publish the content counts, not how it is packed
        content = example.about.get("content_sha256", example.about["sha256"])
        text = f"{example.id} {content} {' '.join(example.codes)}\n"
        said.update(text.encode())
    return said.hexdigest()[:32]


def _look(example: Example) -> None:
    _ = example.looked


@cache
def _code() -> str:
    """Return the digest of the code that computes."""
    code = hashlib.sha256()
    for package, names in _COMPUTES.items():
        sources = (path for path in files(package).iterdir() if path.name.endswith(".py"))
        for item in sorted(sources, key=lambda source: source.name):
            if not names or item.name in names:
                code.update(item.read_bytes())
    return code.hexdigest()[:16]

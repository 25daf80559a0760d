"""The index of the device part: where each recording is, what it is, and what was labelled of it.

Nothing here is a path of this machine: no name of an index ever becomes the name of a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from torchtriage.core import intervals
from torchtriage.core.errors import UsageError
from torchtriage.core.toml import read_toml
from torchtriage.learn.dataset.recordings import DEVICE
from torchtriage.learn.dataset.score import DEVICE_SPLITS

_FORMS = {
    "id": r"d[0-9]{4}",
    "repository": r"[\w-]+/[\w.-]+",
    "split": "|".join(DEVICE_SPLITS),
    "commit": r"[0-9a-f]{40}",
    "sha256": r"[0-9a-f]{64}",
    "stored_sha256": r"[0-9a-f]{64}",
}


@dataclass(frozen=True)
class Source:
    """One file in its repository. ``member`` : its name inside of it, where it is an archive.

    ``sha256``, ``bytes`` : of the recording, unpacked; ``stored_...`` : of the file as it is there.
    """

    path: str
    commit: str
    sha256: str
    bytes: int
    stored_sha256: str
    stored_bytes: int
    member: str = ""


@dataclass(frozen=True)
class Entry:
    """A recording, or a job of ranks: then a file for each, in their order.

    ``licence`` : of the repository, empty where it states none.
    """

    id: str
    repository: str
    licence: str
    device: str
    workload: str
    split: str
    files: tuple[Source, ...]


def read_index(folder: Path) -> tuple[Entry, ...]:
    """Return what ``index.json`` lists.

    Raises UsageError: it cannot be read, or a value has not the form it must have.
    """
    path = folder / "index.json"
    try:
        rows = json.loads(path.read_bytes())["items"]
        if not rows or len({row["id"] for row in rows}) < len(rows):
            raise ValueError("no recordings, or two of one id")
        for row in rows:
            if not row["files"]:
                raise ValueError(f"no files of {row['id']}")
            for part in (row, *row["files"]):
                _check(part)
        return tuple(Entry(**{**row, "files": tuple(Source(**file) for file in row["files"])}) for row in rows)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"expected an index of recordings in {path}, found {error}",
            hint="it is benchmarks/devices in a clone of the repository",
        ) from error


def _check(part: Mapping[str, Any]) -> None:
    for key, form in _FORMS.items():
        if key in part and not re.fullmatch(form, part[key]):
            raise ValueError(f"{key} {part[key]!r}")
    for key in ("path", "member", "repository"):
        name = part.get(key, "")
        if not isinstance(name, str) or not name.isprintable() or (name and {"", ".", ".."} & set(name.split("/"))):
            raise ValueError(f"{key} {name!r}")
    for key in ("bytes", "stored_bytes"):
        if key in part and not 0 < part[key] < 1 << 31:
            raise ValueError(f"{key} {part[key]!r}")


def read_labels(path: Path) -> dict[str, dict[str, Any]]:
    """Return labels by the recordings' ids; none where there is no such file.

    Raises UsageError: it is not TOML.
    """
    try:
        labels = read_toml(path) if path.exists() else {}
        for label in labels.values():
            for fault in label.get("faults", []):
                np.array(fault["intervals"], np.int64).reshape(-1, 2)
        return labels
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise UsageError(f"expected labels in {path}, found {error}") from error


def about(entry: Entry, label: Mapping[str, Any], sha256: str) -> dict[str, Any]:
    """Return what the benchmark knows of a recording, as ``DatasetItem`` reads it.

    ``sha256`` : of the file that is kept. The first fault is its type; all of them are in its windows.
    """
    faults = label.get("faults", [])
    first = faults[0] if faults else {}
    if not 0 <= rank(label) < len(entry.files):
        raise UsageError(f"expected the label of {entry.id} to name one of its {len(entry.files)} ranks")
    return {
        "id": entry.id,
        "part": DEVICE,
        "family": entry.repository,
        "workload": entry.workload,
        "device": entry.device,
        "split": entry.split,
        "licence": entry.licence or "none stated",
        "source": [f"{entry.repository} {file.path} {file.commit} {file.member}".strip() for file in entry.files],
        "state": label.get("state", "not labelled"),
        "code": first.get("code", ""),
        "or": first.get("or", []),
        "severity": 0,
        "twin": entry.id,
        "rank": rank(label),
        "intervals_ns": intervals_ns(label, rank(label)).tolist(),
        "fault_lines": [],
        "step_ns": [],
        "script": "",
        "sha256": sha256,
        "content_sha256": entry.files[rank(label)].sha256,
    }


def intervals_ns(label: Mapping[str, Any], rank: int) -> intervals.Spans:
    """Return when a label's faults are at work in a rank, merged."""
    spans = [span for fault in label.get("faults", []) if fault.get("rank", 0) == rank for span in fault["intervals"]]
    return intervals.union(np.array(spans, np.int64).reshape(-1, 2))


def rank(label: Mapping[str, Any]) -> int:
    """Return the rank that is judged of a job: where its first fault is at work."""
    return int(next((fault.get("rank", 0) for fault in label.get("faults", [])), 0))

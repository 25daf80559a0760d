"""Folders that people pass: what of them is read."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

__all__ = ["NO_TRACES", "SUFFIXES", "is_inside", "once_each"]

_KINDS = ".json", ".zip", ".sqlite", ".xplane.pb", ".rpd", ".db"
SUFFIXES = (*_KINDS, *(f"{kind}.gz" for kind in _KINDS))
"""What names of traces end in: in a folder, files are chosen by name."""
NO_TRACES = f"found no {', '.join(_KINDS[:-1])} or {_KINDS[-1]} file, plain or .gz"

AnyPath = TypeVar("AnyPath", str, Path)


def is_inside(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> bool:
    """Return whether what a path leads to lies in a folder: links may lead out of it.

    Whoever passes a folder that others write to has not chosen the files that its links name.
    """
    root = os.path.join(os.path.realpath(folder), "")  # noqa: PTH118 - resolve() fails on loops
    return os.path.realpath(path).startswith(root)


def once_each(paths: Sequence[AnyPath]) -> list[AnyPath]:
    """Return the paths without the JSON that JAX writes beside an XPlane: one recording is not two ranks."""
    copies = set()
    for path in paths:
        stem, is_plane, _ = os.fspath(path).rpartition(".xplane.pb")
        if is_plane:
            copies |= {f"{stem}.trace.json", re.sub(r"[^/\\]*$", "perfetto_trace.json", stem, count=1)}
    return [path for path in paths if os.fspath(path).removesuffix(".gz") not in copies]

"""Folders that people pass: what of them is read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

_KINDS = ".json", ".zip", ".sqlite", ".xplane.pb", ".rpd", ".db"
_TABLES = tuple(
    f"{what}_trace.csv" for what in ("kernel", "memory_copy", "hip_api", "marker_api", "hsa_api", "rccl_api")
)
_ROCPROF = "results.db", "results.json", *_TABLES
"""The files of one recording of rocprofv3, behind a common prefix; any table brings the others with it."""
SUFFIXES = tuple(f"{kind}{packed}" for packed in ("", ".gz") for kind in (*_KINDS, *_TABLES))
"""What names of traces end in: in a folder, files are chosen by name."""
NO_TRACES = f"found no {', '.join(_KINDS)} or {_TABLES[0]} file, plain or .gz"

AnyPath = TypeVar("AnyPath", bound=str | Path)


def is_inside(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> bool:
    """Return whether what a path leads to lies in a folder: links may lead out of it.

    Whoever passes a folder that others write to has not chosen the files that its links name.
    """
    root = os.path.join(os.path.realpath(folder), "")  # noqa: PTH118 - resolve() fails on loops
    return os.path.realpath(path).startswith(root)


def once_each(paths: Sequence[AnyPath], is_of_jax: Callable[[AnyPath], bool] = lambda _: False) -> list[AnyPath]:
    """Return the paths without the JSON that JAX writes beside an XPlane, or beside other JSON: that is no other rank.

    Of what rocprofv3 wrote in several formats or tables, one is left. ``is_of_jax`` : whether JSON is that of JAX.
    """
    copies = set()
    best: dict[str, tuple[int, str]] = {}
    names = {str(path).removesuffix(".gz") for path in paths}
    for path in paths:
        name = str(path).removesuffix(".gz")
        rank = next((rank for rank, end in enumerate(_ROCPROF) if name.endswith(end)), None)
        if rank is not None:
            prefix = name.removesuffix(_ROCPROF[rank])
            kept, other = sorted([(rank, name), best.get(prefix, (rank, name))])
            best[prefix] = kept
            copies |= {other[1]} - {kept[1]}
        stem = name.removesuffix(".xplane.pb")
        if stem != name:
            copies.add(f"{stem}.trace.json")
        perfetto = re.sub(r"[^/\\]*$", "perfetto_trace.json", name, count=1)
        if perfetto in names and (stem != name or (name.endswith(".trace.json") and is_of_jax(path))):
            copies.add(perfetto)
    return [path for path in paths if str(path).removesuffix(".gz") not in copies]

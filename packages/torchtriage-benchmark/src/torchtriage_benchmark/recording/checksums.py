"""Checksums of a folder of recordings, which tell whether it is what was recorded and planned.

``index.json`` has for each item the SHA-256 of its script (which the plan alone decides), of its
trace and of what is known of it (which no second recording gives again).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchtriage.core.errors import UsageError
from torchtriage.learn.dataset.recordings import DatasetItem, dataset_items, item_paths, read_item
from torchtriage_benchmark.recording.plan import PREFIX, plan

NAME = "index.json"


def write_index(folder: Path, seed: int | None = None) -> None:
    """Write the index of the recordings that are there, of the plan of a seed.

    Without a seed it stays what the index says, 0 where there is none.

    Raises UsageError: the index that is there cannot be read, or there are no recordings.
    """
    path = folder / NAME
    if seed is None:
        seed = _read(path)[0] if path.exists() else 0
    rows = {item.id: _row(item) for item in dataset_items(folder)}
    path.write_text(f"{json.dumps({'seed': seed, 'items': rows}, indent=1)}\n", encoding="utf-8")


def check_plan(folder: Path, seed: int) -> None:
    """Check that what was recorded in a folder is what a seed's plan has under the same ids.

    Raises UsageError: it is not, or what is known of one cannot be read.
    """
    found = list(map(read_item, item_paths(folder)))
    if others := list(_unplanned(found, seed)):
        raise UsageError(
            f"expected programs of this version's plan of seed {seed} in {folder}, "
            f"found another in {others[0]}.json ({len(others)} in all)",
            hint="give another --dir, or the --seed they were recorded with; synthesize needs those of seed 0",
        )


def differences(folder: Path) -> Iterator[str]:
    """Yield what differs from the index, a line each, and from the plan of its seed.

    Raises UsageError: there is no index, or no recordings.
    """
    seed, rows = _read(folder / NAME)
    found = {item.id: item for item in dataset_items(folder)}
    yield from (f"{row}: missing" for row in sorted(rows.keys() - found.keys()))
    yield from (f"{item}: not in the index" for item in sorted(found.keys() - rows.keys()))
    for key in sorted(rows.keys() & found.keys()):
        now = _row(found[key])
        yield from (
            f"{key}: another {name.removesuffix('_sha256')}" for name in now if now[name] != rows[key].get(name)
        )
    yield from (f"{item}: not the plan's program" for item in _unplanned(list(found.values()), seed))


def _read(path: Path) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return an index's seed and rows."""
    try:
        index = json.loads(path.read_bytes())
        rows = {str(key): dict(row) for key, row in index["items"].items()}
        return int(index["seed"]), rows
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"expected an index in {path}, found {error}",
            hint="torchtriage benchmark dataset record writes it; what was fetched has none, and was checked then",
        ) from error


def _row(item: DatasetItem) -> dict[str, str]:
    about = item.path.with_suffix(".json").read_bytes()
    trace = item.path.read_bytes() if item.path.exists() else b""
    return {
        "script_sha256": _sha256(str(item.about["script"]).encode()),
        "trace_sha256": _sha256(trace),
        "about_sha256": _sha256(about),
    }


def _unplanned(found: list[DatasetItem], seed: int) -> Iterator[str]:
    """Yield the ids of recordings whose script is not the one that the plan has for them."""
    for part, prefix in PREFIX.items():
        mine = [item for item in found if item.about.get("part", "eager") == part]
        if not mine:
            continue
        last = max(int(item.id.removeprefix(prefix)) for item in mine)
        scripts: dict[str, Any] = {item.id: item.script().text for item in plan(last + 1, seed, part)}
        yield from (item.id for item in mine if scripts.get(item.id) != item.about["script"])


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()

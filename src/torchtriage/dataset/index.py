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

from torchtriage.dataset.items import Kept, kept
from torchtriage.dataset.plan import PREFIX, plan
from torchtriage.errors import UsageError

__all__ = ["differences", "write_index"]

NAME = "index.json"


def write_index(folder: Path, seed: int | None = None) -> None:
    """Write the index of the recordings that are there, of the plan of a seed.

    Without a seed it stays what the index says, 0 where there is none.
    """
    path = folder / NAME
    if seed is None:
        seed = json.loads(path.read_bytes())["seed"] if path.exists() else 0
    rows = {one.id: _row(one) for one in kept(folder)}
    path.write_text(f"{json.dumps({'seed': seed, 'items': rows}, indent=1)}\n", encoding="utf-8")


def differences(folder: Path) -> Iterator[str]:
    """Yield what differs from the index, a line each, and from the plan of its seed.

    Raises
    ------
    UsageError
        There is no index, or no recordings.
    """
    try:
        index = json.loads((folder / NAME).read_bytes())
        seed, rows = int(index["seed"]), dict(index["items"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"expected an index in {folder / NAME}, found {error}",
            hint="torchtriage dataset record writes it",
        ) from error
    found = {one.id: one for one in kept(folder)}
    yield from (f"{one}: missing" for one in sorted(rows.keys() - found.keys()))
    yield from (f"{one}: not in the index" for one in sorted(found.keys() - rows.keys()))
    for key in sorted(rows.keys() & found.keys()):
        now = _row(found[key])
        yield from (
            f"{key}: another {name.removesuffix('_sha256')}"
            for name in now
            if now[name] != rows[key].get(name)
        )
    yield from _unplanned(list(found.values()), seed)


def _row(item: Kept) -> dict[str, str]:
    about = item.path.with_suffix(".json").read_bytes()
    trace = item.path.read_bytes() if item.path.exists() else b""
    return {
        "script_sha256": _sha256(str(item.about["script"]).encode()),
        "trace_sha256": _sha256(trace),
        "about_sha256": _sha256(about),
    }


def _unplanned(found: list[Kept], seed: int) -> Iterator[str]:
    """Yield the recordings whose script is not the one that the plan has for their id."""
    for part, prefix in PREFIX.items():
        mine = [one for one in found if one.about.get("part", "eager") == part]
        if not mine:
            continue
        last = max(int(one.id.removeprefix(prefix)) for one in mine)
        scripts: dict[str, Any] = {
            item.id: item.script().text for item in plan(last + 1, seed, part)
        }
        yield from (
            f"{one.id}: not the plan's program"
            for one in mine
            if scripts.get(one.id) != one.about["script"]
        )


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()

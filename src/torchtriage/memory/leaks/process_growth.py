"""What grows in the process as a whole: compiled graphs, child processes, and what these report of themselves."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torchtriage.core.process import child_pids, resident_bytes
from torchtriage.memory.leaks.object_growth import CodeLine, SizedObject

children_dir: Path | None = None
"""Where forked children report what grows in them."""


def n_compiled() -> int:
    """Return how many graphs torch.compile has made in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    counters = getattr(utils, "counters", None)
    return int(counters["stats"]["unique_graphs"]) if counters and "stats" in counters else 0


def compiled_graphs() -> list[SizedObject]:
    """Return the number of compiled graphs as something that can grow."""
    n = n_compiled()
    names = ("torch.compile", ".compiled graphs")
    return [SizedObject((0, " compiled", "graphs"), n, names)] if n else []


def last_compiled() -> tuple[str, CodeLine | None]:
    """Return the name of the function compiled last, and where it is."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    with suppress(Exception):
        last = utils.get_compilation_metrics()[-1]
        return last.co_name, CodeLine(last.co_filename, last.co_firstlineno, last.co_name)
    return "", None


def child_processes() -> list[SizedObject]:
    """Return the number of child processes and their resident set; nothing without children."""
    pids = child_pids()
    if not pids:
        return []
    root, n, size_bytes = "this program", len(pids), sum(map(resident_bytes, pids))
    return [
        SizedObject((n, " children", "bytes"), size_bytes, (root, f".memory of {n} child processes")),
        SizedObject((0, " children", "processes"), n, (root, ".number of child processes")),
    ]


def report_to_parent(holder: str, line: CodeLine) -> None:
    """Leave a note for the parent: what grows here, and the line that adds to it."""
    if children_dir is not None:
        note = {"holder": holder, **asdict(line)}
        (children_dir / f"{os.getpid()}.json").write_text(json.dumps(note), encoding="utf-8")


def child_report() -> dict[str, Any] | None:
    """Return what a forked child that still runs has found to grow in itself."""
    if children_dir is None or not children_dir.is_dir():
        return None
    running = child_pids()
    for file in sorted(children_dir.glob("*.json")):
        if file.stem not in running:
            continue
        with suppress(OSError, ValueError):
            note = json.loads(file.read_text(encoding="utf-8"))
            if note.get("line"):
                return dict(note)
    return None

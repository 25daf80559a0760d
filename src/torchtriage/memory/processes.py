"""What the system says of this process and its children, and what torch.compile has compiled."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from torchtriage.memory.holders import Held, Place

__all__ = [
    "children",
    "children_dir",
    "compiled",
    "last_compiled",
    "n_compiled",
    "peak_rss_bytes",
    "rss_bytes",
    "tell_parent",
    "told_by_children",
]

children_dir: Path | None = None
"""Where forked children tell what grows in them."""


def n_compiled() -> int:
    """Return how many graphs torch.compile has made in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    counters = getattr(utils, "counters", None)
    return int(counters["stats"]["unique_graphs"]) if counters and "stats" in counters else 0


def compiled() -> list[Held]:
    """Return the number of compiled graphs as something that can grow."""
    n = n_compiled()
    names = ("torch.compile", ".compiled graphs")
    return [Held((0, " compiled", "graphs"), "graphs", n, names)] if n else []


def last_compiled() -> tuple[str, Place | None]:
    """Return the name of the function compiled last, and where it is."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    with suppress(Exception):
        last = utils.get_compilation_metrics()[-1]
        return last.co_name, Place(last.co_filename, last.co_firstlineno, last.co_name)
    return "", None


def children() -> list[Held]:
    """Return the number of child processes and their resident set; nothing where not known."""
    pids = _child_pids()
    if not pids:
        return []
    total = 0
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    root, n = "this program", len(pids)
    return [
        Held((n, " children", "bytes"), "bytes", total, (root, f".memory of {n} child processes")),
        Held((0, " children", "processes"), "processes", n, (root, ".number of child processes")),
    ]


def _child_pids() -> list[str]:
    pids: list[str] = []
    with suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            pids += (task / "children").read_text().split()
    return pids


_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_statm: tuple[int, int] | None = None


def rss_bytes() -> int:
    """Return the resident set; the highest one so far where the system does not tell."""
    global _statm
    try:
        if _statm is None or _statm[1] != os.getpid():
            _statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC), os.getpid()
        return int(os.pread(_statm[0], 128, 0).split()[1]) * _PAGE
    except (OSError, AttributeError):
        try:
            import resource
        except ImportError:
            return 0
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def peak_rss_bytes() -> int:
    """Return the highest resident set of this program so far; 0 where the system does not tell."""
    with suppress(OSError, ValueError, IndexError):
        # getrusage also counts what the process was before it ran this program
        text = Path("/proc/self/status").read_text()
        return int(text.split("VmHWM:", 1)[1].split(None, 1)[0]) * 1024
    with suppress(ImportError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return 0


def tell_parent(holder: str, place: Place) -> None:
    """Leave a note for the parent: what grows here, and the line that adds to it."""
    if children_dir is None:
        return
    told = {"holder": holder, "file": place.file, "line": place.line, "function": place.function}
    made = children_dir / f"{os.getpid()}.json"
    made.write_text(json.dumps(told), encoding="utf-8")


def told_by_children() -> dict[str, Any] | None:
    """Return what a forked child that still runs found to grow in itself."""
    if children_dir is None or not children_dir.is_dir():
        return None
    running = _child_pids()
    for file in sorted(children_dir.glob("*.json")):
        if file.stem not in running:
            continue
        with suppress(OSError, ValueError):
            told = json.loads(file.read_text(encoding="utf-8"))
            if told.get("line"):
                return dict(told)
    return None

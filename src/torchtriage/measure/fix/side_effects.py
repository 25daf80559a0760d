"""What a program does beside computing, named before it is run again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from torchtriage.core.record.side_effects import EFFECTS_FILE
from torchtriage.core.units import format_count
from torchtriage.measure.fix.project import ProjectCopy
from torchtriage.measure.fix.result import SideEffects

SHOWN = 3
OF_TORCH = ("ldconfig", "uname", "lscpu", "gcc", "g++", "c++", "clang", "ptxas", "nvidia-smi")
"""What torch, its compiler and Python's own modules start."""


def effects_of(recording: Path, copy: ProjectCopy, touched: Sequence[str]) -> SideEffects:
    """Return what the recorded run did.

    ``recording`` : its folder. ``touched`` : the files of the copy that it changed. Files for the moment (the system's
    temporary folder, devices, caches of the compiler and of Python) are left out.
    """
    seen: dict[str, dict[str, None]] = {"write": {}, "remove": {}, "connect": {}, "start": {}}
    for path in sorted(recording.glob(EFFECTS_FILE.format(pid="*"))):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            kind, _, what = line.partition("\t")
            if kind in seen:
                seen[kind][what] = None
    outside = [
        path for path in (*seen["write"], *seen["remove"]) if not Path(path).is_relative_to(copy.root) and _lasts(path)
    ]
    started = [line for line in seen["start"] if not line.rpartition("/")[2].startswith(OF_TORCH)]
    written = [name for name in touched if "__pycache__" not in name]
    return SideEffects(tuple(written), tuple(outside), tuple(seen["connect"]), tuple(started))


def effects_sentences(effects: SideEffects) -> Iterator[str]:
    """Yield what the user should know before the program runs again."""
    if effects.written:
        yield f"it writes {_some(effects.written, 'file')} in its project: in the copy only, put back after each run"
    if effects.outside:
        yield f"it writes {_some(effects.outside, 'file')} outside of its project: again in each run"
    if effects.connections:
        yield f"it connects to {_some(effects.connections, 'address', 'addresses')}: again in each run, not stopped"
    if effects.programs:
        yield f"it starts {_some(effects.programs, 'program')}: again in each run"


def _some(names: Sequence[str], noun: str, plural: str = "") -> str:
    shown = ", ".join(names[:SHOWN])
    rest = ", …" if len(names) > SHOWN else ""
    return f"{format_count(len(names), noun, plural)} ({shown}{rest})"


def _lasts(path: str) -> bool:
    passing = (tempfile.gettempdir(), "/dev/", "/proc/")
    return not path.startswith(passing) and "__pycache__" not in path and "/torchinductor_" not in path

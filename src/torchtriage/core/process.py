"""The memory of this process and the children it has, as the system reports them; and Python's collector at rest."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_statm: tuple[int, int] | None = None


@contextmanager
def uncollected() -> Iterator[None]:
    """Let Python's cyclic collector rest: what is made inside holds no cycles.

    Thousands of lists and tuples made at once set it off again and again, and each time it looks at all objects of the
    process: 30 ms in a bare one, several times that where torch is loaded.
    """
    runs = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if runs:
            if not gc.get_freeze_count():
                # what was made inside grows old without being looked at
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def child_pids() -> list[str]:
    """Return the ids of the child processes; none where the system does not report them."""
    pids: list[str] = []
    with suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            pids += (task / "children").read_text().split()
    return pids


def resident_bytes(pid: str) -> int:
    """Return the resident set of another process; 0 where it is gone or unknown."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    return 0


def rss_bytes() -> int:
    """Return the resident set; the highest so far where the system reports no other."""
    global _statm
    try:
        if _statm is None or _statm[1] != os.getpid():
            _statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC), os.getpid()
        return int(os.pread(_statm[0], 128, 0).split()[1]) * _PAGE_BYTES
    except (OSError, AttributeError):
        return _max_rss_bytes()


def peak_rss_bytes() -> int:
    """Return the highest resident set of this program so far; 0 where the system reports none."""
    # getrusage also counts what the process was before it ran this program
    return status_bytes("VmHWM") or _max_rss_bytes()


def status_bytes(name: str) -> int:
    """Return a size of ``/proc/self/status``, as ``VmRSS``; 0 where the system reports none."""
    with suppress(OSError, ValueError, IndexError):
        text = Path("/proc/self/status").read_text()
        return int(text.split(f"\n{name}:", 1)[1].split(None, 1)[0]) * 1024
    return 0


def _max_rss_bytes() -> int:
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

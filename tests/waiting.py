"""What another thread or process does is waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def wait_for(condition: Callable[[], Any], limit_s: float = 60.0) -> Any:
    """Return what a condition gives once that is true; fail where it does not come, on a busy machine too."""
    end_s = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < end_s, f"it did not come in {limit_s:g} s"
        time.sleep(0.005)
    return found


def alive(pid: int) -> bool:
    """Return whether a process runs: one that ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

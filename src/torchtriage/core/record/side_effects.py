"""What a script does to the world around it: files it writes, addresses it connects to, programs it starts.

Seen by an audit hook of Python (PEP 578) from the import of torch on: what compiled code does by itself is not seen.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

EFFECTS_FILE = "effects-{pid}.txt"
MOST = 200
STARTS = {"subprocess.Popen": 0, "os.system": 0, "os.exec": 0, "os.posix_spawn": 0, "os.spawn": 1}
"""Events, and which of their arguments is the program."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def watch_effects(out: Path) -> None:
    """Note each effect once, as lines ``kind<TAB>what`` in a file of ``out``, when it happens.

    Kinds: ``write``, ``remove``, ``connect``, ``start``.
    """
    seen: set[tuple[str, str]] = set()
    file = (out / EFFECTS_FILE.format(pid=os.getpid())).open("a", encoding="utf-8", errors="backslashreplace")
    own = os.path.realpath(out) + os.sep
    busy = False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal busy
        if busy or len(seen) == MOST:
            return
        effect = _effect(event, arguments)
        if effect is None or effect in seen:
            return
        busy = True  # what is done here is audited as well
        try:
            seen.add(effect)
            if not effect[1].startswith(own):
                file.write("\t".join(effect).replace("\n", " ") + "\n")
                file.flush()
        finally:
            busy = False

    sys.addaudithook(hook)


def _effect(event: str, arguments: tuple[Any, ...]) -> tuple[str, str] | None:
    if event == "open":
        path, mode, flags = arguments
        writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else bool((flags or 0) & WRITES)
        return ("write", _path(path)) if writes and isinstance(path, str | bytes | os.PathLike) else None
    if event in ("os.remove", "os.rmdir", "shutil.rmtree"):
        return "remove", _path(arguments[0], through=False)
    if event == "os.rename":
        return "write", _path(arguments[1], through=False)
    if event == "socket.connect":
        return "connect", str(arguments[1])
    if event in STARTS:
        return "start", os.fsdecode(arguments[STARTS[event]])
    return None


def _path(path: Any, *, through: bool = True) -> str:
    """Return where a file is, ``through`` a link that it may be or of the link itself."""
    try:
        name = os.fsdecode(path)
        if through:
            return os.path.realpath(name)
        folder, base = os.path.split(os.path.abspath(name))  # noqa: PTH100 - of a name in whatever form
        return os.path.join(os.path.realpath(folder), base)  # noqa: PTH118
    except (TypeError, ValueError, OSError):
        return repr(path)

"""What a capture brought: files that are whole, and what it cost the job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isal import igzip, isal_zlib

from torchtriage.core.errors import AttachError
from torchtriage.core.units import format_bytes, format_count

STILL_S = 2.0
"""A file that has not grown for so long is no more written to."""
LOOK_S = 0.2
SUFFIXES = (".json", ".json.gz")
_BLOCK = 1 << 20
_open: Any = igzip.open
_InflateError: Any = isal_zlib.error


@dataclass(frozen=True)
class Captured:
    """Traces of a job, and one sentence on what taking them cost.

    ``still`` : why nothing seems to move in the job, empty where something does.
    """

    files: tuple[Path, ...]
    cost: str = ""
    still: str = ""


def traces_in(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return size and time of each trace below a folder.

    Raises AttachError: it is no folder that can be read.
    """
    if not folder.is_dir():
        raise AttachError(
            "expected the folder into which the job writes its traces, found none",
            where=str(folder),
            hint="--dir DIR, as this machine sees it",
        )
    found = {}
    for path in folder.rglob("*"):
        try:
            if path.name.endswith(SUFFIXES) and path.is_file():
                status = path.stat()
                found[path] = (status.st_size, status.st_mtime_ns)
        except OSError:  # noqa: PERF203 - it may just have been renamed
            continue
    return found


def is_whole(path: Path) -> bool:
    """Return whether a trace ends as JSON does, inside of its gzip if it is in one."""
    tail = b""
    try:
        with path.open("rb") as file:
            if file.read(2) == b"\x1f\x8b":
                file.seek(0)
                with _open(file, "rb") as unpacked:
                    while block := unpacked.read(_BLOCK):
                        tail = (tail + block)[-64:]
            else:
                size = file.seek(0, 2)
                file.seek(max(0, size - 64))
                tail = file.read()
    except (OSError, EOFError, _InflateError):
        return False
    return tail.rstrip()[-1:] in (b"}", b"]")


def wait_for(
    folder: Path,
    before: dict[Path, tuple[int, int]],
    timeout_s: float,
    *,
    n_files: int = 1,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Path, ...]:
    """Return the traces that came into a folder since it held ``before``, once all are whole.

    Raises AttachError: there are fewer than ``n_files`` in time, or one is never whole; it names what is there, and so
    does a KeyboardInterrupt.
    """
    deadline = time.monotonic() + timeout_s
    last: dict[Path, tuple[int, int]] = {}
    since = time.monotonic()
    new: dict[Path, tuple[int, int]] = {}
    try:
        while time.monotonic() < deadline:
            new = {path: status for path, status in traces_in(folder).items() if before.get(path) != status}
            if new != last:
                last, since = new, time.monotonic()
            elif len(new) >= n_files and time.monotonic() - since >= STILL_S:
                if all(map(is_whole, new)):
                    return tuple(sorted(new))
                since = time.monotonic()
            sleep(LOOK_S)
    except KeyboardInterrupt:
        if new:
            raise KeyboardInterrupt(f"in {folder} are left: {'; '.join(_left(new))}") from None
        raise
    if new:
        raise AttachError(
            f"the traces were not complete within {timeout_s:g} s: {'; '.join(_left(new))}", where=str(folder)
        )
    raise AttachError(
        f"no trace arrived within {timeout_s:g} s",
        where=str(folder),
        hint="--dir is where the job writes, as this machine sees it; a service writes only what it was asked to do"
        " meanwhile, and large traces need a larger --timeout",
    )


def _left(files: dict[Path, tuple[int, int]]) -> Iterator[str]:
    for path, (size, _) in list(files.items())[:8]:
        yield f"{path.name} ({format_bytes(size)}{'' if is_whole(path) else ', partial'})"
    if len(files) > 8:
        yield format_count(len(files) - 8, "more file")

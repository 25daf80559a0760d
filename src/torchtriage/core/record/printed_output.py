"""What a script prints while it is compared: written line by line, up to where it was ended."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from pathlib import Path

PRINTED_FILE = "printed-{pid}.txt"
"""Bytes of output when this process was ended."""


def print_by_line() -> None:
    """Have what is printed written at the end of each line: whole, and in order with what goes to standard error."""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # a stream of the script's own
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def finish_printing(folder: Path | None) -> None:
    """Write out what has been printed, for the script ends here, and note in ``folder`` how much that is.

    What a script prints because it is ended, in a ``finally``, is no result of it.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    with contextlib.suppress(OSError):
        output = os.fstat(1)
        if folder is not None and stat.S_ISREG(output.st_mode):
            (folder / PRINTED_FILE.format(pid=os.getpid())).write_text(str(output.st_size), encoding="utf-8")

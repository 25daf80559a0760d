"""``%load_ext torchtriage``: run a cell, record its loop, show the report below it.

``%%torchtriage`` finds the training or inference loop of the cell by itself, as ``torchtriage run``
does for a script; ``%%torchtriage --window`` records a cell without a loop as one window;
``%torchtriage statement`` does the same for one line.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchtriage.api.profile import need_torch, profile
from torchtriage.api.traces import Report, analyze_run
from torchtriage.core.errors import TriageError, UsageError

NAME = "torchtriage"
USAGE = "%%torchtriage [--window] [--out DIR]   or   %torchtriage [--window] [--out DIR] STATEMENT"


class CellReport:
    """What a cell gives back: the report, which shows itself as a page or as text."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def __repr__(self) -> str:
        """Return the report as text."""
        return str(self.report)

    def _repr_html_(self) -> str:
        return self.report._repr_html_()


def load_ipython_extension(shell: Any) -> None:
    """Make ``%torchtriage`` and ``%%torchtriage`` known to a shell; IPython calls this."""

    def torchtriage(line: str, cell: str | None = None) -> CellReport | None:
        """Run a statement or a cell, record its loop, and show what costs time and what to change.

        %%torchtriage [--window] [--out DIR]
            The loop is found by itself. --window: there is none, the cell is one window.
            --out: keep the recordings in this folder.
        """
        try:
            window, out, code = _read(line, cell)
            need_torch("%torchtriage")
            with _folder(out) as folder:
                report = _run(shell, code, folder, window=window)
            return None if report is None else CellReport(report)
        except TriageError as error:
            sys.stderr.write(f"torchtriage: {error}\n")
            return None

    shell.register_magic_function(torchtriage, "line_cell", NAME)


def _read(line: str, cell: str | None) -> tuple[bool, Path | None, str]:
    """Return whether it is one window, the folder, and the code; options stand first.

    Raises UsageError: an option does not exist, or there is nothing to run.
    """
    window, out, rest = False, None, line.strip()
    while rest.startswith("-"):
        option, _, rest = rest.partition(" ")
        rest = rest.strip()
        if option in ("-w", "--window"):
            window = True
        elif option in ("-o", "--out") and rest:
            # a name with spaces is quoted
            name, _, rest = rest.partition(" ") if rest[0] not in "'\"" else _quoted(rest)
            out, rest = Path(name), rest.strip()
        else:
            raise UsageError(f"unknown option {option}", hint=USAGE)
    if cell is not None and rest:
        raise UsageError(f"expected the statements below the first line, found {rest}", hint=USAGE)
    code = rest if cell is None else cell
    if not code.strip():
        raise UsageError("expected something to run, found nothing", hint=USAGE)
    return window, out, code


def _quoted(text: str) -> tuple[str, str, str]:
    end = text.find(text[0], 1)
    if end < 0:
        raise UsageError(f"expected a closing {text[0]}, found none", hint=USAGE)
    return shlex.split(text[: end + 1])[0], "", text[end + 1 :]


@contextlib.contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot be made: {error}", where=str(out)) from error
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="torchtriage-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def _run(shell: Any, code: str, folder: Path, *, window: bool) -> Report | None:
    """Return the report of what ran; None where nothing did, which the shell has said."""
    folder = Path(tempfile.mkdtemp(prefix="cell-", dir=folder))  # the processes of one cell
    if window:
        recording = profile(folder, steps=None)
        recording.start(sys._getframe(1))
        try:
            ran = shell.run_cell(code)
        finally:
            recording.stop()
    else:
        from torchtriage.core.record.loop_finder import LoopFinder

        watch = LoopFinder({"out": str(folder), "plan": {}, "exit_after": False, "answers": False})
        watch.start()
        try:
            ran = shell.run_cell(code)
        finally:
            watch.stop()
    if ran.error_before_exec is not None:
        return None
    if ran.error_in_exec is not None:
        raised = type(ran.error_in_exec).__name__
        sys.stderr.write(f"torchtriage: the code raised {raised}; what ran before is judged\n")
    if window:
        return recording.report
    try:
        report = analyze_run(folder, pid=os.getpid()).results[0]
    except TriageError as error:
        raise UsageError(error.message, hint="%%torchtriage --window records without a loop") from (error)
    assert isinstance(report, Report)
    return report

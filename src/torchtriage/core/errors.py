"""What can go wrong, as a tree.

``TriageError``
    ``TraceFormatError``: the input is not a trace, or not one we can read.
    ``SnapshotError``: the input is not a memory snapshot, or not one we can read.
    ``LogError``: the input is not a compile log, or not one we can read.
    ``AttachError``: a job that runs does not offer what is asked for, or answers with something else.
    ``SampleError``: measured samples that nothing can be concluded from, or a file that holds none.
    ``StoreError``: the store of samples cannot be opened, read or written.
    ``BenchmarkError``: a benchmark's process failed, ran too long or handed over nothing.
    ``PaddingError``: an output depends on the padding of a bucket.
    ``PatternError``: a pattern module is off (shape, code, docs).
    ``UsageError``: the caller asked for something that does not exist.
        ``NoDeviceError``: it is a device, which other ranks may have.
    ``MissingExtraError``: an optional dependency is needed and not installed.

The library raises; only ``cli/`` prints and exits.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any


class TriageError(Exception):
    """Base of everything torchtriage raises on purpose.

    ``message`` : what was expected and what was found. ``where`` : file and position, empty when there is none.
    ``hint`` : what to try next, empty when there is nothing useful to say.
    """

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        self.message = message
        self.where = where
        self.hint = hint
        super().__init__(str(self))

    def __reduce__(self) -> tuple[Any, ...]:
        """Let the parts cross to another process."""
        return partial(type(self), self.message, where=self.where, hint=self.hint), ()

    def __str__(self) -> str:
        """Return one line of what and where, and a second one with what to try."""
        first = f"{self.where}: {self.message}" if self.where else self.message
        return f"{first}\n  try: {self.hint}" if self.hint else first


class TraceFormatError(TriageError):
    """The input is not a profiler trace, or not one that can be read."""


class SnapshotError(TriageError):
    """The input is not a memory snapshot, or not one that can be read."""


class SampleError(TriageError):
    """Measured samples that nothing can be concluded from, or a file that holds none."""


class StoreError(TriageError):
    """The store of samples cannot be opened, read or written."""


class BenchmarkError(TriageError):
    """A benchmark's process failed, ran too long or handed over nothing."""


class LogError(TriageError):
    """The input is not a compile log, or not one that can be read."""


class AttachError(TriageError):
    """A job that runs does not offer what is asked for, or answers with something else."""


class PaddingError(TriageError):
    """An output depends on the padding, or a padded answer cannot be cropped or compared."""


class PatternError(TriageError):
    """A pattern module does not have the shape the catalogue needs."""


class UsageError(TriageError):
    """The caller asked for something that does not exist."""

    @classmethod
    def unknown(cls, what: str, wanted: str, known: Iterable[str]) -> UsageError:
        """Return the error that no pattern (or what else) is called so, with near names."""
        import difflib

        near = difflib.get_close_matches(wanted.lower(), known, n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(near)}?" if near else "torchtriage explain lists all"
        return cls(f"no {what} is called {wanted!r}", hint=hint)


class NoDeviceError(UsageError):
    """A recording holds no work on the device that was asked for; another rank's may."""


class MissingExtraError(TriageError):
    """An optional dependency is needed; the hint names the extra to install."""

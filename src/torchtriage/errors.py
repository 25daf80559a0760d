"""What can go wrong, as a tree.

``TriageError``
    ``TraceFormatError``: the input is not a trace, or not one we can read.
    ``SnapshotError``: the input is not a memory snapshot, or not one we can read.
    ``PatternError``: a pattern module is off (shape, code, docs).
    ``UsageError``: the caller asked for something that does not exist.
    ``MissingExtraError``: an optional dependency is needed and not installed.

The library raises; only ``cli/`` prints and exits.
"""

from __future__ import annotations

__all__ = [
    "MissingExtraError",
    "PatternError",
    "SnapshotError",
    "TraceFormatError",
    "TriageError",
    "UsageError",
]


class TriageError(Exception):
    """Base of everything torchtriage raises on purpose.

    Parameters
    ----------
    message : str
        What was expected and what was found.
    where : str
        File and position, empty when there is none.
    hint : str
        What to try next, empty when there is nothing useful to say.
    """

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        self.message = message
        self.where = where
        self.hint = hint
        super().__init__(str(self))

    def __str__(self) -> str:
        """Return one line of what and where, and a second one with what to try."""
        first = f"{self.where}: {self.message}" if self.where else self.message
        return f"{first}\n  try: {self.hint}" if self.hint else first


class TraceFormatError(TriageError):
    """The input is not a profiler trace, or not one that can be read."""


class SnapshotError(TriageError):
    """The input is not a memory snapshot, or not one that can be read."""


class PatternError(TriageError):
    """A pattern module does not have the shape the catalogue needs."""


class UsageError(TriageError):
    """The caller asked for something that does not exist."""


class MissingExtraError(TriageError):
    """An optional dependency is needed; the hint names the extra to install."""

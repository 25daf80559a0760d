"""What one run of lint says: the document ``torchtriage-lint/1``."""

from __future__ import annotations

from dataclasses import dataclass

from torchtriage.core.finding import Finding

SCHEMA = "torchtriage-lint/1"


@dataclass(frozen=True)
class Odd:
    """A source that could not be looked at, in one line. ``line`` is 0 where none is known."""

    file: str
    line: int
    message: str


@dataclass(frozen=True)
class Unused:
    """A suppression comment that suppresses nothing, or names no rule."""

    file: str
    line: int
    codes: tuple[str, ...]
    message: str


@dataclass(frozen=True)
class SourcePatch:
    """What autofix changes in one file, as a unified diff.

    ``safe_because`` : for each code that is mended, why the edit changes no result. ``applied`` :
    the file was written.
    """

    file: str
    diff: str
    codes: tuple[str, ...]
    safe_because: dict[str, str]
    applied: bool = False


@dataclass(frozen=True)
class LintResult:
    """Everything one run says about some sources.

    Findings come by file and line. ``n_files`` counts files that were read; of those
    ``n_without_torch`` do not mention torch and ``odd`` could not be parsed. ``n_tests`` were left
    out. ``n_suppressed`` findings were allowed by a comment, ``n_notes`` are mere remarks that were
    not asked for. ``trace`` : the recording the findings were compared with, empty without one;
    ``trace_only`` are its findings that no line of these sources explains.
    """

    schema: str
    version: str
    findings: tuple[Finding, ...]
    odd: tuple[Odd, ...] = ()
    unused: tuple[Unused, ...] = ()
    patches: tuple[SourcePatch, ...] = ()
    n_files: int = 0
    n_without_torch: int = 0
    n_tests: int = 0
    n_suppressed: int = 0
    n_notes: int = 0
    checked: tuple[str, ...] = ()
    trace: str = ""
    trace_only: tuple[Finding, ...] = ()

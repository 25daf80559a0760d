"""The critical path: which lane bounds which part of a step, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchtriage.trace import Trace

__all__ = ["CriticalPath", "Piece", "critical_path"]


@dataclass(frozen=True)
class Piece:
    """A stretch of the critical path on one lane.

    ``lane`` : index into ``trace.lanes``, -1 for what no lane shows (a loader's workers).
    ``rows`` : the events inside, longest first, at most 8. ``why`` : what the stretch waited for
    when it began.
    """

    lane: int
    label: str
    start_ns: int
    end_ns: int
    rows: tuple[int, ...]
    what: Literal["host", "compute", "comm", "copy", "wait", "lag", "unexplained", "loader"]
    why: str


@dataclass(frozen=True)
class CriticalPath:
    """The pieces of one step's critical path, in time order; they tile the step."""

    step: int
    start_ns: int
    end_ns: int
    pieces: tuple[Piece, ...]


def critical_path(trace: Trace, step: int | None = None) -> CriticalPath:
    """Return the critical path of a step: by default the steady step of median length."""
    raise NotImplementedError

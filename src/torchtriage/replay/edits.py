"""Edits: what a fix does to a recorded run, said so that the run can be replayed with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from torchtriage.errors import PatternError

__all__ = ["Edit", "EditKind"]

Ints = NDArray[np.int64]

EditKind = Literal["shrink", "drop", "unblock", "overlap", "parallel", "threads"]


@dataclass(frozen=True, eq=False)
class Edit:
    """One change to the recorded events.

    Parameters
    ----------
    kind : str
        ``shrink`` : the time of ``rows`` times ``factor``. Host rows (ops, calls, annotations,
        frames) lose it on their thread, device rows on their stream; what a host row enqueued
        stays as long as it was.
        ``drop`` : ``rows`` are gone. Host rows take the waits inside them along; the device work
        they enqueued stays unless it is among ``rows`` too.
        ``unblock`` : the host runs on past the waits in ``rows`` (calls), which keep the cost of
        the call itself.
        ``overlap`` : device rows run beside everything else; nothing waits for them any more, but a
        step lasts at least as long as they do together on their stream.
        ``parallel`` : the time of ``rows`` (host) leaves their thread and is done elsewhere at
        ``factor`` of its length; a step lasts at least that long.
        ``threads`` : everything that host threads do, gaps between events included, times
        ``factor``; ``rows`` is not used.
    rows : int64[k]
        Rows of the trace.
    factor : float
        What remains of the time, the cautious estimate, 0 or more.
    best : float, optional
        The hopeful estimate, at most ``factor``; the same as ``factor`` when left out.

    Raises
    ------
    PatternError
        The kind is unknown or a factor is negative or no number.
    """

    kind: EditKind
    rows: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    factor: float = 0.0
    best: float | None = None

    def __post_init__(self) -> None:
        """Check the kind and the factors."""
        if self.kind not in get_args(EditKind):
            raise PatternError(
                f"expected a kind of edit ({', '.join(get_args(EditKind))}), found {self.kind!r}"
            )
        for factor in (self.factor, self.hopeful):
            if not (np.isfinite(factor) and factor >= 0):
                raise PatternError(f"expected a factor of 0 or more, found {factor!r}")

    @property
    def hopeful(self) -> float:
        """``best``, or ``factor`` without one."""
        return self.factor if self.best is None else self.best

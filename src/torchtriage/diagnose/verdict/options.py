"""How a trace is read and analysed: one set of options for the command line, the API, ranks and ``run``."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from torchtriage.core.errors import UsageError
from torchtriage.core.selection import Selection
from torchtriage.core.units import DEFAULT_MAX_BYTES

By = Literal["category", "kernel", "operator", "module", "annotation", "line"]
BYS: tuple[By, ...] = get_args(By)
"""What the rows of a table of device time can be."""
CAPTURED: tuple[By, ...] = ("operator", "module", "line")
"""Those that a recording of the capture knows of kernels in replayed graphs."""


@dataclass(frozen=True)
class Options:
    """The options of :func:`torchtriage.analyze`, checked before minutes of reading.

    ``sources`` : folders searched for source files; None opens none.

    Raises UsageError: a code in ``only`` or ``skip`` does not exist, a question cannot be read, ``min_share`` is no
    share, ``step_ms`` is no time, or ``peak`` states none.
    """

    only: Collection[str] = ()
    skip: Collection[str] = ()
    min_share: float = 0.01
    """Findings that cannot save this share of a step are not worth a reader's time."""
    what_if: Collection[str] = ()
    step_ms: float | None = None
    sources: Collection[str | os.PathLike[str]] | None = ()
    cache: bool = False
    max_bytes: int = DEFAULT_MAX_BYTES
    max_memory: int | None = None
    detector: bool = False
    by: By = "category"
    """What the rows of the table of device time are; the table by category is there in any case."""
    peak: str = ""
    """Peak rates of the device, by its name or as rates, where the recording or this package does not know them."""
    selection: Selection | None = None
    """The part of the recording that is judged; None for all of it."""
    confined: bool = False
    """Open no source outside ``sources``: neither below the current folder nor where a recording says it was."""

    def __post_init__(self) -> None:
        """Check the values, and take a single code for a collection of one."""
        for name in ("only", "skip", "what_if"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        if self.by not in BYS:
            raise UsageError(f"expected one of {', '.join(BYS)}, found {self.by!r}")
        # not before they are asked for: --help has the defaults, and neither patterns nor numpy
        if self.what_if:
            from torchtriage.diagnose.replay import parse_what_if

            for question in self.what_if:
                parse_what_if(question)
        if codes := (*self.only, *self.skip):
            from torchtriage.diagnose.patterns import lookup

            for code in codes:
                lookup(code)
        if self.peak:
            from torchtriage.core.trace.peak_rates import stated_peak

            stated_peak(self.peak)
        if not 0 <= self.min_share <= 1:
            raise UsageError(f"expected min_share between 0 and 1, found {self.min_share!r}")
        if self.step_ms is not None and not 0 < self.step_ms < float("inf"):
            raise UsageError(f"expected a step time above 0 ms, found {self.step_ms!r}")

    def folders(self, *more: str | os.PathLike[str]) -> tuple[str, ...] | None:
        """Return where source files are searched, the current folder last; None where none is opened."""
        if self.sources is None:
            return None
        if self.confined:
            return tuple(map(str, self.sources))
        return tuple(dict.fromkeys(str(Path(folder)) for folder in (*self.sources, *more, Path.cwd())))


DEFAULTS = Options()

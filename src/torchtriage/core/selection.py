"""What a reader asks to judge of a recording: steps, a window, an annotation, a rank, a device."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torchtriage.core.errors import UsageError
from torchtriage.core.names import visible

_UNITS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
# no more digits than fit in 64 bits
_TIME = r"(\d{1,18}(?:\.\d+)?)(ns|us|µs|ms|s)"
_WINDOW = re.compile(rf"{_TIME}-{_TIME}")
_STEPS = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")


@dataclass(frozen=True)
class Selection:
    """What to judge of a recording; what is None does not narrow it.

    ``steps`` : ``3`` or ``3-5``, by the numbers in the steps' names, both ends included. ``window`` :
    ``1.2s-1.8s`` from the file's first event on, as one step. ``annotation`` : each occurrence of the annotation of
    this name, as a step. ``rank`` : of a job or a merged file. ``device`` : by its number; the others' work is left
    out.

    Raises UsageError: more than one of steps, window and annotation, or one that cannot be read.
    """

    steps: str | None = None
    window: str | None = None
    annotation: str | None = None
    rank: int | None = None
    device: int | None = None

    def __post_init__(self) -> None:
        """Check what can be checked without a recording."""
        given = [name for name in ("steps", "window", "annotation") if getattr(self, name) is not None]
        if len(given) > 1:
            raise UsageError(f"expected one of steps, window and annotation, found {' and '.join(given)}")
        if self.steps is not None:
            self.first_and_last()
        if self.window is not None:
            self.offsets_ns()

    @property
    def narrows(self) -> bool:
        """Whether it chooses anything."""
        return self != Selection()

    @property
    def in_time(self) -> bool:
        """Whether it chooses a part of the time, not only a rank or a device."""
        return any(part is not None for part in (self.steps, self.window, self.annotation))

    @property
    def label(self) -> str:
        """What was chosen, as a report says it: ``steps 3-5, device 0``."""
        words = {
            "steps": f"step{'s' * ('-' in (self.steps or ''))} {self.steps}",
            "window": f"window {self.window}, as one step",
            "annotation": f"annotation {visible(self.annotation or '')}, each occurrence as a step",
            "rank": f"rank {self.rank}",
            "device": f"device {self.device}",
        }
        return ", ".join(text for name, text in words.items() if getattr(self, name) is not None)

    def first_and_last(self) -> tuple[int, int]:
        """Return the numbers of the first and the last step."""
        match = _STEPS.fullmatch((self.steps or "").strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise UsageError(f"expected steps such as 3 or 3-5, found {self.steps!r}")
        return first, last

    def offsets_ns(self) -> tuple[int, int]:
        """Return begin and end of the window, from the first event on."""
        match = _WINDOW.fullmatch((self.window or "").replace(" ", ""))
        begin, end = (
            (round(float(match[1]) * _UNITS[match[2]]), round(float(match[3]) * _UNITS[match[4]])) if match else (0, 0)
        )
        if end <= begin:
            raise UsageError(f"expected a window such as 1.2s-1.8s or 300ms-450ms, found {self.window!r}")
        return begin, end

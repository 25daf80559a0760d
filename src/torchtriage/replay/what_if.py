"""Questions by hand: ``gpu*0.5``, ``cpu*0.5``, ``comm=0``, ``no-sync``, ``launch=0``."""

from __future__ import annotations

from dataclasses import dataclass

from torchtriage.replay.edits import Edit
from torchtriage.trace import Trace

__all__ = ["WhatIf", "parse_what_if"]


@dataclass(frozen=True)
class WhatIf:
    """A question: everything of a kind takes ``factor`` of its time."""

    text: str
    target: str
    factor: float

    def edits(self, trace: Trace) -> list[Edit]:
        """Return the edits that stand for the question in this trace."""
        raise NotImplementedError


def parse_what_if(text: str) -> WhatIf:
    """Read a question such as ``gpu*0.5``."""
    raise NotImplementedError

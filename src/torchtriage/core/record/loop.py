"""What a step of a program is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Boundary = Literal["optimizer", "forward", "loader", "time"]


@dataclass(frozen=True)
class Loop:
    """What a step is, and how that was found.

    ``boundary`` : what ends (optimizer) or begins (others) each step. ``name`` : its class.
    ``file``, ``line``, ``function`` : the user's call of it. ``how`` : a sentence for the report.
    """

    boundary: Boundary
    name: str
    file: str
    line: int
    function: str
    how: str

"""How far a replay of a trace can be trusted, and when it is refused."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MAX_PINNED", "MAX_STRICT", "MAX_UNEXPLAINED", "Quality"]

MAX_STRICT, MAX_UNEXPLAINED, MAX_PINNED = 0.03, 0.05, 0.50
"""Beyond these no number is given: every miss of a study on 64 traces was beyond one of them."""


@dataclass(frozen=True)
class Quality:
    """Whether the model tells the recorded run again from its causes alone.

    ``strict_error`` : total time replayed without residuals and with one lag per kind of edge,
    against the recorded total; signed share. ``unexplained`` : share of the critical path that
    no cause was found for. ``pinned`` : share of the total that stays when all work takes no time.
    ``reason`` : why it is not ``accepted``, else empty.
    """

    strict_error: float
    unexplained: float
    pinned: float
    accepted: bool
    reason: str
    n_nodes: int
    n_edges: int

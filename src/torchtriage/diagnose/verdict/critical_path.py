"""The critical path, merged to what a screen can show."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from torchtriage.core.trace import Trace
from torchtriage.core.trace.frames import frame_label
from torchtriage.diagnose.replay import CriticalPath, critical_path
from torchtriage.diagnose.replay.critical import WHATS
from torchtriage.diagnose.verdict.result import PathPiece, PathSummary

__all__ = ["summarise_path"]

N_PIECES = 200
"""Parts of a step: half a percent each."""
N_NAMES = 3


def summarise_path(trace: Trace) -> PathSummary | None:
    """Return the critical path of the median steady step; None where it is empty."""
    path = critical_path(trace)
    if not len(path):
        return None
    length = path.finish_ns - path.begin_ns
    whole = max(path.end_ns - path.start_ns, 1)
    kinds = np.bincount(path.kind, weights=length, minlength=len(WHATS)) / whole
    lanes = np.bincount(path.lane + 1, weights=length) / whole
    by_lane = {path.label(lane - 1): lanes[lane] for lane in np.flatnonzero(lanes).tolist()}
    return PathSummary(
        path.step,
        path.start_ns,
        path.end_ns,
        _descending({what: share for what, share in zip(WHATS, kinds, strict=True) if share}),
        _descending(by_lane),
        tuple(_shown(path)),
    )


def _descending(shares: dict[str, float]) -> dict[str, float]:
    ordered = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    return {name: round(float(share), 6) for name, share in ordered}


def _shown(path: CriticalPath) -> list[PathPiece]:
    """Return at most ``N_PIECES`` pieces that tile the path: each part shows its longest piece."""
    if len(path) <= N_PIECES:
        return [
            _piece(path, index, *edges) for index, edges in enumerate(zip(path.begin_ns, path.finish_ns, strict=True))
        ]
    edges = np.linspace(path.start_ns, path.end_ns, N_PIECES + 1).astype(np.int64).tolist()
    out: list[tuple[int, int, int]] = []
    for a, b in pairwise(edges):
        first = int(np.searchsorted(path.finish_ns, a, side="right"))
        last = int(np.searchsorted(path.begin_ns, b))
        inside = slice(first, last)
        held = np.minimum(path.finish_ns[inside], b) - np.maximum(path.begin_ns[inside], a)
        one = first + int(np.argmax(held))
        before = out[-1][0] if out else -1
        if before >= 0 and _alike(path, before, one):
            lengths = path.finish_ns[[before, one]] - path.begin_ns[[before, one]]
            out[-1] = (before if lengths[0] >= lengths[1] else one, out[-1][1], b)
        else:
            out.append((one, a, b))
    return [_piece(path, *one) for one in out]


def _alike(path: CriticalPath, one: int, two: int) -> bool:
    return bool(path.lane[one] == path.lane[two] and path.kind[one] == path.kind[two])


def _piece(path: CriticalPath, index: int, start_ns: int, end_ns: int) -> PathPiece:
    piece = path.piece(index)
    names = dict.fromkeys(frame_label(path.trace.name_of(row)) for row in piece.rows)
    return PathPiece(piece.label, piece.what, int(start_ns), int(end_ns), piece.why, tuple(names)[:N_NAMES])

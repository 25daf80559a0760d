"""The critical path, merged to what a screen can show."""

from __future__ import annotations

import numpy as np

from torchtriage.finding import PathPiece, PathSummary
from torchtriage.replay import CriticalPath, Piece, critical_path
from torchtriage.trace import Trace
from torchtriage.trace.frames import frame_label

__all__ = ["summarise_path"]

N_PIECES = 200
"""Parts of a step: half a percent each."""
N_NAMES = 3


def summarise_path(trace: Trace) -> PathSummary | None:
    """Return the critical path of the median steady step; None where it is empty."""
    path = critical_path(trace)
    if not path.pieces:
        return None
    whole = max(path.end_ns - path.start_ns, 1)
    shares: dict[str, float] = {}
    lanes: dict[str, float] = {}
    for piece in path.pieces:
        length = (piece.end_ns - piece.start_ns) / whole
        shares[piece.what] = shares.get(piece.what, 0.0) + length
        lanes[piece.label] = lanes.get(piece.label, 0.0) + length
    return PathSummary(
        path.step,
        path.start_ns,
        path.end_ns,
        {name: round(share, 6) for name, share in _descending(shares)},
        {name: round(share, 6) for name, share in _descending(lanes)},
        tuple(_shown(trace, path)),
    )


def _descending(shares: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(shares.items(), key=lambda item: (-item[1], item[0]))


def _shown(trace: Trace, path: CriticalPath) -> list[PathPiece]:
    """Return at most ``N_PIECES`` pieces that tile the path: each part shows its longest piece."""
    pieces = path.pieces
    if len(pieces) <= N_PIECES:
        return [_piece(trace, one, one.start_ns, one.end_ns) for one in pieces]
    edges = np.linspace(path.start_ns, path.end_ns, N_PIECES + 1).astype(np.int64)
    start = np.array([one.start_ns for one in pieces])
    end = np.array([one.end_ns for one in pieces])
    out: list[tuple[Piece, int, int]] = []
    for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        first, last = np.searchsorted(end, a, side="right"), np.searchsorted(start, b)
        held = np.minimum(end[first:last], b) - np.maximum(start[first:last], a)
        one = pieces[int(first) + int(np.argmax(held))]
        if out and (out[-1][0].lane, out[-1][0].what) == (one.lane, one.what):
            longer = max(out[-1][0], one, key=lambda piece: piece.end_ns - piece.start_ns)
            out[-1] = (longer, out[-1][1], b)
        else:
            out.append((one, a, b))
    return [_piece(trace, one, a, b) for one, a, b in out]


def _piece(trace: Trace, piece: Piece, start_ns: int, end_ns: int) -> PathPiece:
    names = dict.fromkeys(frame_label(trace.name_of(row)) for row in piece.rows)
    return PathPiece(piece.label, piece.what, start_ns, end_ns, piece.why, tuple(names)[:N_NAMES])

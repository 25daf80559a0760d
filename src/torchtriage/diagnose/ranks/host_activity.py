"""What the host of one rank does, piece by piece: in which phase of the step, and with what.

A rank is late at a collective because of what it did before. Here the time of the threads that
drive it is cut into pieces, each with one phase and one activity, so that ranks can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.core.arrays import Ints, Mask, distinct
from torchtriage.core.intervals import Spans
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.frames import is_user_frame
from torchtriage.core.trace.host_syncs import SYNC_CALL
from torchtriage.core.trace.schema import LOADER_NAME

PHASES = ("loader", "forward", "backward", "optimizer", "between")
"""``between``: outside what is marked, and Python between two phases."""
ACTIVITIES = ("op", "python", "sync", "gc")
"""``python``: no operator open; ``sync``: in a call that waits for the device."""
CELLS = (*((phase, activity) for phase in PHASES for activity in ACTIVITIES), ("", "device"))
"""What a rank's time before a collective is split into; the last is computation of the device."""

LOADER, FORWARD, BACKWARD, OPTIMIZER, BETWEEN = range(len(PHASES))
OP, PYTHON, SYNC, GC, COMM = range(5)

COMMUNICATES = r"^(c10d::|_c10d_functional|record_param_comms|nccl:|gloo:|mpi:|ucc:|xccl:|hccl:)"
_BACKWARD = r"(?i)^#* ?backward(?:[ _-](?:pass|step|compute))? ?#*$"
"""What programs call it by themselves, where no row of the engine tells."""
_OPTIMIZER = r"^Optimizer\."
_ENGINE = r"^autograd::engine::"
_STEP = "ProfilerStep#"
_GC = r"^Python GC|^<built-in function collect>"


@dataclass(frozen=True, eq=False)
class Pieces:
    """Consecutive pieces of the driving threads' time; arrays have one element per piece.

    ``owner`` : the innermost host row open, -1 when none is. ``phase`` and ``activity`` : codes
    into :data:`PHASES` and :data:`ACTIVITIES`, the activity ``len(ACTIVITIES)`` inside calls that
    communicate.
    """

    trace: Trace
    spans: Spans
    owner: Ints
    phase: NDArray[np.int8]
    activity: NDArray[np.int8]
    lanes: tuple[int, ...]
    """The main thread's first."""

    @cached_property
    def cell(self) -> Ints:
        """int64[k]: index into :data:`CELLS`; -1 inside calls that communicate."""
        cell = self.phase.astype(np.int64) * len(ACTIVITIES) + self.activity
        return np.where(self.activity == COMM, -1, cell)

    @cached_property
    def idle(self) -> Spans:
        """Time in which the host computes nothing: Python, or calls that communicate."""
        free = (self.activity == PYTHON) | (self.activity == COMM)
        return intervals.union(self.spans[free])

    @cached_property
    def places(self) -> Ints:
        """int64[k, 3]: the innermost row's name and, outside operators, those before and after; -1 for none."""
        name = np.append(self.trace.name, -1)[self.owner].astype(np.int64)
        edged = np.concatenate([[-1], name, [-1]])
        around = np.stack([edged[:-2], edged[2:]], axis=1)
        around[(self.activity != PYTHON) & (self.activity != GC)] = -1
        return np.column_stack([name, around])

    def names_of(self, codes: Ints) -> tuple[str, ...]:
        """Return the names of a place; marks of steps, which are numbered, have none."""
        names = [self.trace.names[code] if code >= 0 else "" for code in codes.tolist()]
        return tuple("" if name.startswith(_STEP) else name for name in names)

    def within(self, piece: int) -> tuple[str, ...]:
        """Return the names of the rows open in a piece, outermost first, without the step's mark."""
        return self._names(self._open(int(self.owner[piece])))

    def around(self, piece: int) -> tuple[str, str]:
        """Return the names of the last call before a piece of Python and of the first after, in the same range."""
        named = np.flatnonzero(self.activity != PYTHON)
        at = np.searchsorted(named, piece)
        before = int(self.owner[named[at - 1]]) if at else -1
        after = int(self.owner[named[at]]) if at < len(named) else -1
        ranges = self._open(int(self.owner[piece]))
        sides = [self._names([row for row in self._open(call) if row not in ranges]) for call in (before, after)]
        return next(iter(sides[0]), ""), next(iter(sides[1]), "")

    def frame(self, piece: int) -> str:
        """Return the name of the innermost user frame open in a piece, empty without stacks."""
        trace = self.trace
        if not trace.has_stacks or self.lanes[0] < 0:
            return ""
        middle = self.spans[piece].mean(dtype=np.int64)
        row = int(trace.frames.at(np.array(self.lanes[:1]), np.array([middle]))[0])
        if row < 0:
            return ""
        names = [trace.name_of(item) for item in [row, *trace.frames.chain(row)]]
        return next((name for name in names if is_user_frame(name)), "")

    def _open(self, row: int) -> list[int]:
        """Return a row and those it lies in, innermost first; none for -1."""
        return [] if row < 0 else [row, *self.trace.tree.chain(row)]

    def _names(self, rows: list[int]) -> tuple[str, ...]:
        names = [self.trace.name_of(row) for row in reversed(rows)]
        return tuple(name for name in names if not name.startswith(_STEP))


def find_pieces(trace: Trace) -> Pieces:
    """Cut the time of the threads that drive a rank: the main thread and the autograd engine's."""
    engine = trace.matching(_ENGINE) & (trace.kind == Kind.OP)
    main = trace.steps.lane
    crew = [main, *distinct(trace.lane[engine & (trace.lane != main)]).tolist()]
    rows = trace.tree.members
    rows = rows[np.isin(trace.lane[rows], crew)]
    window = trace.window
    # the last thing a rank does before a step's first collective may begin before the window
    first = min(window.start_ns, int(trace.start_ns[rows].min())) if len(rows) else window.start_ns
    edges = np.concatenate([trace.start_ns[rows], trace.end_ns[rows], np.array([first, window.end_ns])])
    edges = distinct(edges)
    spans = np.stack([edges[:-1], edges[1:]], axis=1)
    owner = np.full(len(spans), -1, np.int64)
    for lane in crew:
        found = trace.tree.at(np.full(len(spans), lane), spans[:, 0])
        owner = np.where(found >= 0, found, owner)
    activity = _activity(trace, owner, spans)
    return Pieces(trace, spans, owner, _phase(trace, owner, activity, engine), activity, tuple(crew))


def no_pieces(trace: Trace) -> Pieces:
    """Return none, where nothing will be asked of them."""
    none = np.empty(0, np.int8)
    return Pieces(trace, intervals.EMPTY, np.empty(0, np.int64), none, none, (-1,))


def _activity(trace: Trace, owner: Ints, spans: Spans) -> NDArray[np.int8]:
    kind = np.full(len(trace) + 1, PYTHON, np.int8)  # the last entry is what -1 reads
    kind[:-1][trace.is_kind(Kind.OP, Kind.RUNTIME)] = OP
    kind[:-1][trace.matching(SYNC_CALL) & (trace.kind == Kind.RUNTIME)] = SYNC
    communicates = trace.matching(COMMUNICATES)
    if not trace.devices:
        # an op that enqueues a collective may wait for it before it returns; what it computes has rows of its own
        kind[:-1][trace.tree.above(communicates) & (trace.kind == Kind.OP)] = PYTHON
    kind[:-1][communicates] = COMM
    activity = kind[owner]
    pauses = np.flatnonzero(trace.matching(_GC) & (trace.kind == Kind.PYTHON))
    if len(pauses):
        cover = trace.time_of(pauses)
        inside = 2 * intervals.covered(spans, cover) > spans[:, 1] - spans[:, 0]
        activity[inside & (activity != COMM)] = GC
    return activity


def _phase(trace: Trace, owner: Ints, activity: NDArray[np.int8], engine: Mask) -> NDArray[np.int8]:
    marked = np.full(len(trace) + 1, -1, np.int8)
    notes = trace.is_kind(Kind.ANNOTATION, Kind.OP)
    engine = engine if engine.any() else notes & trace.matching(_BACKWARD)
    for code, mask in (
        (BACKWARD, engine),
        (OPTIMIZER, notes & trace.matching(_OPTIMIZER)),
        (LOADER, notes & trace.matching(LOADER_NAME)),
    ):
        marked[:-1][mask | trace.tree.under(mask)] = code
    phase: NDArray[np.int8] = marked[owner]
    # operators outside all marks before a backward pass are the forward pass
    n = len(phase)
    following = np.where(phase >= 0, np.arange(n), n)
    following = np.minimum.accumulate(following[::-1])[::-1]
    ahead = np.append(phase, -1)[following]
    loose = (phase < 0) & (activity != PYTHON)
    trains = bool(engine.any())
    phase[loose] = np.where(ahead[loose] == BACKWARD, FORWARD, BETWEEN if trains else FORWARD)
    # Python belongs to the phase around it
    hole = phase < 0
    before = np.maximum.accumulate(np.where(hole, -1, np.arange(n)))
    after = np.minimum.accumulate(np.where(hole, n, np.arange(n))[::-1])[::-1]
    edge = np.append(phase, -1)
    same = edge[before] == edge[after]
    phase[hole] = np.where(same, edge[before], BETWEEN)[hole]
    phase[phase < 0] = BETWEEN
    return phase

"""Where one run's step goes: every nanosecond of its steady steps on exactly one account.

On a GPU the main device's time is split as everywhere (compute, exposed communication, exposed
copies, idle), kernels by the operator that launched them, and idle time by what the host was doing
meanwhile. Without a GPU it is the main thread's time. An account keeps a few numbers for each key
and step, so a trace can be dropped before the next one is read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.core.arrays import Ints, distinct
from torchtriage.core.intervals import Spans
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.device import HOST_LATE, QUEUED, UNKNOWN, Device
from torchtriage.core.trace.frames import frame_label, is_user_frame, parse_frame
from torchtriage.core.trace.nesting import Tree
from torchtriage.core.trace.schema import BACKWARD_NODE, LOADER_NAME
from torchtriage.core.trace.steps import COMPILES

TimeClass = Literal["compute", "comm_only", "copy_only", "idle_host_late", "idle_queued", "idle_unknown", "host"]
CLASSES: tuple[TimeClass, ...] = get_args(TimeClass)

LOADER, BACKWARD, WAIT, PYTHON = "DataLoader", "backward", "wait", "Python"
REST = "the rest"

_OPTIMIZER = r"^Optimizer\.\w+#"
_BACKWARD = r"^autograd::engine::|Backward\d*$|AccumulateGrad$"
# what PyTorch itself annotates says nothing about the user's own phases
_OWN_MARKS = rf"^ProfilerStep#|{LOADER_NAME}|{_OPTIMIZER}|^## |DataParallel\.|^(nccl|gloo|mpi):|{COMPILES}"
_CHANGING = re.compile(r"(?<=^ProfilerStep)#\d+|\b(?=[a-z0-9]*\d)[a-z0-9]{16,}\b|\b\d+/\d+\b|0x[0-9a-f]+")


class Key(NamedTuple):
    """What a stretch of time is for.

    ``region`` : ``DataLoader``, an optimizer's method, ``backward``, ``wait`` (idle time that a
    blocking call caused), ``Python`` (no operator open), or empty: the rest of the step.
    ``mark`` : the user's outermost annotation. ``what`` : the outermost operator, or the user's
    innermost function for Python; empty for loaders, optimizers and other idle time.
    """

    time_class: TimeClass
    region: str
    mark: str
    what: str


LEAST_PACE = 0.0005
"""Share of all own time below which a kind of work is no yardstick: traces hold thousands."""
Pace = dict[tuple[str, bytes], tuple[float, float, float]]
"""Name and sizes of some work to its median ns, mean ns and mean count per step."""


@dataclass(frozen=True, eq=False)
class Account:
    """One run's steady steps, or its window; rows of the tables are one per key.

    ``step_ns`` : int64[n_steps], wall time of each. ``time_ns`` : int64[k, n_steps], each column
    adds up to its step exactly. ``count`` : [k], pieces of work or calls over all steps (0
    for idle time; of a job the ranks' mean). ``first_ns`` : int64[k], how far into a step the key first appears.
    ``parts`` : for each key, what its time consists of: kernel, operator or frame name to
    (ns, count) over all steps. ``pace`` : how fast the ``host`` and the ``device`` did each kind
    of work: the yardstick for how alike two recordings of one program are. ``asked`` : for each of the spans asked
    for, the keys that hold their time, and how much of it.
    """

    keys: tuple[Key, ...]
    step_ns: Ints
    time_ns: Ints
    count: Ints | NDArray[np.float64]
    first_ns: Ints
    parts: tuple[dict[str, tuple[float, float]], ...]
    pace: dict[str, Pace]
    per: Literal["step", "window"]
    has_frames: bool
    has_shapes: bool
    asked: tuple[dict[Key, int], ...] = ()

    @property
    def n_steps(self) -> int:
        """Number of steady steps; 1 for a window."""
        return len(self.step_ns)

    @property
    def mean_ns(self) -> int:
        """Mean wall time of the steady steps, rounded down."""
        return int(self.step_ns.sum()) // self.n_steps


class _Pieces(NamedTuple):
    """Disjoint stretches of time and whose they are; one element each, names as indices.

    ``region`` : a name (an optimizer's method) or one of the negative codes below. ``work`` and
    ``inner`` : the piece of work or outermost call, and the innermost row; -1 is not counted.
    """

    spans: Spans
    time_class: Ints
    region: Ints
    mark: Ints
    what: Ints
    part: Ints
    work: Ints
    inner: Ints


_NONE, _LOADS, _BACK, _WAITS, _RUNS = -1, -2, -3, -4, -5
_REGIONS = {_NONE: "", _LOADS: LOADER, _BACK: BACKWARD, _WAITS: WAIT, _RUNS: PYTHON}


def account(trace: Trace, asked: Sequence[Spans] = ()) -> Account:
    """Return where the steady steps of a run go (its window, without steps).

    ``asked`` : spans of time, for each of which the keys that hold it are wanted.
    """
    steps = trace.steps
    spans = steps.judged
    if len(steps):
        spans = intervals.spans(steps.start_ns, steps.end_ns)[steps.steady]
    device = trace.devices[0] if trace.devices else None
    owners = _Owners(trace)
    pieces = _on_device(owners, device) if device else _host_time(owners, owners.crew, intervals.union(spans), "host")
    code, keys = _keys(trace, pieces)
    cut, step, source = _cut(pieces.spans, spans)
    code, dur = code[source], cut[:, 1] - cut[:, 0]
    n_steps, n_keys = len(spans), len(keys)
    time = np.bincount(code * n_steps + step, weights=dur, minlength=n_keys * n_steps)
    time_ns = time.astype(np.int64).reshape(n_keys, n_steps)
    wall = spans[:, 1] - spans[:, 0]
    first = np.full(n_keys + 1, _LAST)
    np.minimum.at(first, code, cut[:, 0] - spans[step, 0])
    # idle after the last work, and time that no thread's rows reach: shown, never spread
    rest = Key("idle_unknown" if device else "host", REST, "", "")
    return Account(
        keys=(*keys, rest),
        step_ns=wall,
        time_ns=np.concatenate([time_ns, [wall - time_ns.sum(axis=0)]]),
        count=_distinct(code, pieces.work[source], n_keys + 1),
        first_ns=first,
        parts=(*_parts(trace, code, pieces.part[source], pieces.inner[source], dur, n_keys), {}),
        pace={"host": _host_pace(owners), "device": _device_pace(trace, device)},
        per="step" if len(steps) else "window",
        has_frames=trace.has_stacks,
        has_shapes=trace.has_shapes,
        asked=tuple(_asked(cut, code, [*keys, rest], spans) for spans in asked),
    )


def _asked(cut: Spans, code: Ints, keys: list[Key], spans: Spans) -> dict[Key, int]:
    time = np.bincount(code, weights=intervals.covered(cut, intervals.union(spans)), minlength=len(keys))
    return {keys[at]: int(time[at]) for at in np.flatnonzero(time).tolist()}


_LAST = np.iinfo(np.int64).max >> 2


# -- time of the device ------------------------------------------------------------------------


def _on_device(owners: _Owners, device: Device) -> _Pieces:
    trace = owners.trace
    copies = trace.kind[device.rows] == Kind.MEMCPY
    found = [
        _work(owners, device, ~device.comm & ~copies, None, "compute"),
        _work(owners, device, device.comm, device.comm_only, "comm_only"),
        _work(owners, device, copies, device.copy_only, "copy_only"),
    ]
    gaps = device.gaps
    queued, unknown = gaps.blame == QUEUED, gaps.blame == UNKNOWN
    found += [
        _before(trace, gaps.spans[queued], gaps.next_row[queued], "idle_queued"),
        _before(trace, gaps.spans[unknown], gaps.next_row[unknown], "idle_unknown"),
    ]
    late = gaps.blame == HOST_LATE
    lanes, spans = device.gap_lane[late], gaps.spans[late]
    for lane in distinct(lanes).tolist():
        crew = owners.crew if lane == trace.steps.lane else [lane]
        found.append(_host_time(owners, crew, spans[lanes == lane], "idle_host_late"))
    return _joined(found)


def _work(
    owners: _Owners, device: Device, mask: NDArray[np.bool_], exposed: Spans | None, time_class: TimeClass
) -> _Pieces:
    """Return the time of some work rows; where rows overlap, the one that began first has it."""
    trace = owners.trace
    rows = device.rows[mask]
    spans, source = intervals.disjoint(trace.spans_of(rows))
    rows = rows[source]
    if exposed is not None:
        spans, _, source = _cut(spans, exposed)
        rows = rows[source]
    call = trace.links.call[rows]
    # without a launch in the file the kernel itself is all there is to go by
    what = np.where(call >= 0, owners.what[call], trace.name[rows])
    region, mark = owners.region[call], owners.mark[call]
    return _pieces(spans, time_class, region, mark, what, trace.name[rows], rows, rows)


def _before(trace: Trace, spans: Spans, rows: Ints, time_class: TimeClass) -> _Pieces:
    """Return idle time before some work, together: what it waits for is not in the file."""
    return _pieces(spans, time_class, _NONE, -1, -1, trace.name[rows], -1, -1)


def _pieces(spans: Spans, time_class: TimeClass, *columns: NDArray[np.integer] | int) -> _Pieces:
    whole = np.ones(len(spans), np.int64)
    return _Pieces(spans, whole * CLASSES.index(time_class), *(whole * column for column in columns))


# -- time of the host --------------------------------------------------------------------------


def _host_time(owners: _Owners, lanes: list[int], spans: Spans, time_class: TimeClass) -> _Pieces:
    """Return what a crew of threads did in some time, by the innermost row open.

    Of idle time, what a blocking call caused is that call's, whatever the host did meanwhile to
    catch up; only a loader goes before it, since it would have held the step up all the same.
    """
    trace, counted = owners.trace, time_class == "host"
    spans, row, _ = _innermost(trace, trace.tree, lanes, spans)
    region, mark, what = owners.region[row], owners.mark[row], owners.what[row]
    found = []
    if not counted and len(trace.waits):
        held, which, source = _cut(spans, *intervals.disjoint(trace.waits.bubble))
        held_up = region[source] != _LOADS
        found.append(_waiting(owners, held[held_up], which[held_up], time_class))
        spans, source = _outside(spans, held[held_up])
        row, region, mark, what = row[source], region[source], mark[source], what[source]
    running = (what < 0) & (region == _NONE)
    region[running] = _RUNS
    if trace.has_stacks and running.any():
        found.append(_running(trace, lanes, spans[running], mark[running], time_class))
        keep = ~running
        spans, row = spans[keep], row[keep]
        region, mark, what = region[keep], mark[keep], what[keep]
    inner = np.where(row >= 0, trace.name[row], -1)
    if counted:
        found.append(_pieces(spans, time_class, region, mark, what, inner, owners.op[row], row))
    else:
        # one cause, the host comes late, whichever operator it is at: they are its parts
        part = np.where(what >= 0, what, inner)
        found.append(_pieces(spans, time_class, region, mark, -1, part, -1, -1))
    return _joined(found)


def _waiting(owners: _Owners, spans: Spans, which: Ints, time_class: TimeClass) -> _Pieces:
    waits = owners.trace.waits
    row = waits.row[which]
    call = owners.trace.name[waits.sync_row[which]]
    return _pieces(spans, time_class, _WAITS, owners.mark[row], owners.what[row], call, -1, -1)


def _running(trace: Trace, lanes: list[int], spans: Spans, mark: Ints, time_class: TimeClass) -> _Pieces:
    cut, row, source = _innermost(trace, trace.frames, lanes, spans)
    user = trace.where_name(is_user_frame)
    above = trace.frames.nearest(np.maximum(row, 0), user)
    function = np.where((row >= 0) & user[row], row, np.where(row >= 0, above, -1))
    what = np.where(function >= 0, trace.name[function], -1)
    part = np.where(row >= 0, trace.name[row], -1)
    return _pieces(cut, time_class, _RUNS, mark[source], what, part, -1, -1)


# -- pace --------------------------------------------------------------------------------------


def _host_pace(owners: _Owners) -> Pace:
    """Return the own time of each operator of the loop's threads, by its inputs' sizes and types.

    Blocking copies and reads are no yardstick: they last as long as the device makes them.
    """
    trace = owners.trace
    rows = trace.tree.members
    rows = rows[(trace.kind[rows] == Kind.OP) & np.isin(trace.lane[rows], owners.crew)]
    waits = np.zeros(len(trace) + 1, dtype=bool)
    waits[trace.tree.parent[trace.waits.row]] = True
    rows = rows[~waits[rows]]
    dur = trace.tree.self_ns[rows]
    return _pace(trace, rows, trace.steps.of_host(rows), dur, ("dims", "types"))


def _device_pace(trace: Trace, device: Device | None) -> Pace:
    if device is None:
        return {}
    rows = device.rows[~device.comm & (trace.kind[device.rows] == Kind.KERNEL)]
    return _pace(trace, rows, trace.steps.of_work(rows), trace.dur_ns[rows], ("grid", "block"))


def _pace(trace: Trace, rows: Ints, step: Ints, dur: Ints, sizes: tuple[str, ...]) -> Pace:
    steady = trace.steps.in_steady(step)
    rows, step, dur = rows[steady], step[steady], dur[steady]
    width = len(trace.details) + 1
    code = trace.name[rows].astype(np.int64) * width + trace.detail[rows] + 1
    kinds, where = np.unique(code, return_inverse=True)
    judged, step = np.unique(step, return_inverse=True)
    n = max(len(judged), 1)
    total = np.bincount(where * n + step, weights=dur, minlength=len(kinds) * n)
    total = total.reshape(len(kinds), n)
    count = np.bincount(where, minlength=len(kinds)) / n
    mean = total.mean(axis=1)
    worth = mean > LEAST_PACE * mean.sum()
    kinds, total, mean, count = kinds[worth], total[worth], mean[worth], count[worth]
    found = np.stack([np.median(total, axis=1), mean, count], axis=1)
    out: Pace = {}
    for kind, values in zip(kinds.tolist(), found.tolist(), strict=True):
        name, detail = divmod(kind, width)
        held = trace.details[detail - 1] if detail else None
        size = b"|".join(getattr(held, size) for size in sizes) if held else b""
        key = trace.names[name], size
        out[key] = added(out.get(key), values)
    return out


def added(first: tuple[float, float, float] | None, second: Sequence[float]) -> tuple[float, float, float]:
    """Return the sum of two entries of a pace."""
    a, b, c = first or (0.0, 0.0, 0.0)
    return a + second[0], b + second[1], c + second[2]


# -- whose time --------------------------------------------------------------------------------


class _Owners:
    """Whose each host row is, found once for the whole trace; index -1 is nobody.

    ``region``, ``mark``, ``what`` : int64[n + 1] as in :class:`_Pieces`. ``op`` : int64[n + 1], the
    outermost operator that is or holds a row.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        rows = trace.tree.members
        ops, notes = trace.kind == Kind.OP, trace.kind == Kind.ANNOTATION
        own = trace.matching(_OWN_MARKS, Kind.OP, Kind.ANNOTATION)
        loads = _outermost(trace, rows, trace.matching(LOADER_NAME, Kind.OP, Kind.ANNOTATION))
        steps = _outermost(trace, rows, trace.matching(_OPTIMIZER, Kind.OP, Kind.ANNOTATION))
        nodes = _outermost(trace, rows, trace.matching(_BACKWARD, Kind.OP))
        marks = _outermost(trace, rows, notes & ~own & ~self._steps(notes))
        outer = _outermost(trace, rows, ops & ~own)
        # a call outside every operator stands for itself
        alone = (outer < 0) & (trace.kind[rows] == Kind.RUNTIME)
        region = np.where(nodes >= 0, _BACK, _NONE)
        region = np.where(steps >= 0, self._name(steps), region)
        region = np.where(loads >= 0, _LOADS, region)
        whole = (loads >= 0) | (steps >= 0)
        mark = np.where(whole | (nodes >= 0), -1, self._name(marks))
        what = np.where(nodes >= 0, nodes, np.where(alone, rows, outer))
        self.region = self._table(rows, region, _NONE)
        self.mark = self._table(rows, mark, -1)
        self.what = self._table(rows, np.where(whole, -1, self._name(what)), -1)
        self.op = self._table(rows, outer, -1)
        engine = trace.matching(f"^{BACKWARD_NODE}", Kind.OP)
        others = distinct(trace.lane[engine & (trace.lane != trace.steps.lane)])
        self.crew: list[int] = [*others.tolist(), trace.steps.lane]
        """The threads that take turns in one loop: the backward engine's, then the main one."""

    def _steps(self, notes: NDArray[np.bool_]) -> NDArray[np.bool_]:
        trace = self.trace
        out = np.zeros(len(trace), dtype=bool)
        if len(trace.steps):
            rows = np.flatnonzero(notes)
            out[rows] = np.isin(trace.start_ns[rows], trace.steps.host_start_ns)
        return out

    def _name(self, rows: Ints) -> Ints:
        return np.where(rows >= 0, self.trace.name[rows], -1).astype(np.int64)

    def _table(self, rows: Ints, values: Ints, missing: int) -> Ints:
        out = np.full(len(self.trace) + 1, missing, np.int64)
        out[rows] = values
        return out


def _outermost(trace: Trace, rows: Ints, mask: NDArray[np.bool_]) -> Ints:
    """Return the outermost row of ``mask`` that is or holds each host row, -1 without one."""
    if not mask.any():
        return np.full(len(rows), -1, np.int64)
    found = trace.tree.outermost(np.maximum(rows, 0), mask)
    own = np.where((rows >= 0) & mask[rows], rows, -1)
    return np.where((rows >= 0) & (found >= 0), found, own)


def _keys(trace: Trace, pieces: _Pieces) -> tuple[Ints, list[Key]]:
    code = np.zeros(len(pieces.spans), np.int64)
    width = len(trace.names) + 8
    for column in (pieces.time_class, pieces.region, pieces.mark, pieces.what):
        code = np.unique(code * width + column + 8, return_inverse=True)[1]
    first = np.unique(code, return_index=True)[1]
    index: dict[Key, int] = {}
    of_code = []
    for at in first.tolist():
        region = int(pieces.region[at])
        key = Key(
            CLASSES[int(pieces.time_class[at])],
            _REGIONS[region] if region < 0 else trace.names[region],
            _named(trace, int(pieces.mark[at])),
            _named(trace, int(pieces.what[at])),
        )
        of_code.append(index.setdefault(key, len(index)))
    return np.array(of_code, np.int64)[code], list(index)


def _named(trace: Trace, name: int) -> str:
    return plain_name(trace.names[name]) if name >= 0 else ""


@lru_cache(maxsize=65536)
def plain_name(name: str) -> str:
    """Return a name without what differs from run to run: lines, addresses, hashes, compile ids."""
    frame = parse_frame(name)
    if frame is not None:
        return f"{frame.file}: {frame.function}"
    return _CHANGING.sub("", frame_label(name).removeprefix(BACKWARD_NODE)).strip(" :")


def _parts(
    trace: Trace, code: Ints, part: Ints, inner: Ints, dur: Ints, n_keys: int
) -> list[dict[str, tuple[float, float]]]:
    out: list[dict[str, tuple[float, float]]] = [{} for _ in range(n_keys)]
    width = len(trace.names) + 1
    pairs, where = np.unique(code * width + part + 1, return_inverse=True)
    time = np.bincount(where, weights=dur, minlength=len(pairs)).astype(np.int64)
    count = _distinct(where, inner, len(pairs))
    for pair, ns, n in zip(pairs.tolist(), time.tolist(), count.tolist(), strict=True):
        name = _named(trace, pair % width - 1)
        table = out[pair // width]
        old = table.get(name, (0, 0))
        table[name] = old[0] + ns, old[1] + n
    return out


def _distinct(code: Ints, rows: Ints, n: int) -> Ints:
    keep = rows >= 0
    code, rows = code[keep], rows[keep]
    width = int(rows.max()) + 1 if len(rows) else 1
    return np.bincount(distinct(code * width + rows) // width, minlength=n).astype(np.int64)


# -- intervals ---------------------------------------------------------------------------------


def _innermost(trace: Trace, tree: Tree, lanes: list[int], spans: Spans) -> tuple[Spans, Ints, Ints]:
    """Cut disjoint time where anything begins or ends on the lanes, with the innermost row open, and the span it is of.

    The first lane with a row open has the time; -1 where none has.
    """
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    mine = tree.members[np.isin(trace.lane[tree.members], lanes)]
    edges = np.concatenate([trace.start_ns[mine], trace.end_ns[mine]])
    edges = distinct(np.concatenate([edges[intervals.owner(spans, edges) >= 0], spans[:, 0]]))
    source = intervals.owner(spans, edges)
    stop = np.minimum(np.append(edges[1:], _LAST), spans[source, 1])
    row = np.full(len(edges), -1, np.int64)
    for lane in lanes:
        free = np.flatnonzero(row < 0)
        row[free] = tree.at(np.full(len(free), lane), edges[free])
    return np.stack([edges, stop], axis=1), row, source


def _cut(values: Spans, cover: Spans, names: Ints | None = None) -> tuple[Spans, Ints, Ints]:
    """Return the parts of ``values`` inside ``cover`` (sorted, disjoint), the cover each is in, and its value.

    ``names`` : int64[m], what to call each cover; its index by default.
    """
    lo = np.searchsorted(cover[:, 1], values[:, 0], side="right")
    hi = np.searchsorted(cover[:, 0], values[:, 1], side="left")
    counts = np.maximum(hi - lo, 0)
    source = np.repeat(np.arange(len(values)), counts)
    at = lo[source] + np.arange(len(source)) - np.repeat(np.cumsum(counts) - counts, counts)
    cut = np.stack([np.maximum(values[source, 0], cover[at, 0]), np.minimum(values[source, 1], cover[at, 1])], axis=1)
    return cut, at if names is None else names[at], source


def _outside(values: Spans, cover: Spans) -> tuple[Spans, Ints]:
    """Return the parts of disjoint ``values`` outside ``cover``, and the value each is of."""
    cover = intervals.union(cover)
    ends = np.iinfo(np.int64)
    between = np.stack([np.append(ends.min, cover[:, 1]), np.append(cover[:, 0], ends.max)], axis=1)
    cut, _, source = _cut(values, between[between[:, 1] > between[:, 0]])
    return cut, source


def _joined(found: list[_Pieces]) -> _Pieces:
    return _Pieces(*(np.concatenate(column) for column in zip(*found, strict=True)))

"""What a job needs to know of one rank: its result and its collectives, and nothing of its trace.

A record is small (some hundred bytes for each collective), so that a thousand ranks fit where one
trace does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.core.intervals import Spans
from torchtriage.core.names import short_name
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.collectives import communicates
from torchtriage.diagnose.ranks.host_activity import ACTIVITIES, CELLS, PHASES, Pieces, find_pieces, no_pieces
from torchtriage.diagnose.replay import Scenario
from torchtriage.diagnose.replay.graph import Graph
from torchtriage.diagnose.verdict.result import Result

__all__ = ["Moment", "ProcessGroup", "RankCollectives", "RankRecord", "RankReplay", "RankSteps", "build_record"]

Ints = NDArray[np.int64]

_HOST_COLLECTIVE = r"^(gloo|mpi|ucc):"
_ANNOTATED = r"^(nccl|rccl|xccl|hccl|ucc):"
_POINT_TO_POINT = re.compile(r"^(i?send|i?recv\w*|batch_isend_irecv|p2p\w*|coalesced)\b", re.I)
_STEP_NUMBER = re.compile(r"#(\d+)$")
MAX_MOMENTS = 2000
"""Longest stretches kept by name: what a late rank did is among them."""


@dataclass(frozen=True)
class ProcessGroup:
    """A process group: its name, and its members.

    Where the name was not recorded it is ``stream 1``, ``stream 2``, ... of those that communicate.

    ``ranks`` is empty where they were not recorded.
    """

    name: str
    ranks: tuple[int, ...] = ()
    what: str = ""
    """What the program called it, such as ``mesh_tp``."""


@dataclass(frozen=True)
class Moment:
    """The longest stretch of one cell before a step's last collective, and where it was."""

    dur_ns: int
    name: str
    after: str = ""
    before: str = ""
    frame: str = ""


@dataclass(frozen=True, eq=False)
class RankCollectives:
    """The collectives of one rank in order of their start; arrays have one element for each.

    ``row`` : row of the trace. ``group``, ``name`` : codes into ``groups`` and ``names``.
    ``nelems``, ``seq`` : -1 where not recorded. ``step`` : number of the step that enqueued it, -1
    outside. ``start_ns``, ``end_ns`` : on the rank's own clock, base time included.
    ``spent_ns`` : int64[n, cells], time in each cell since the recording began.
    ``n_ops`` : int64[n, phases], operators since the recording began.
    """

    row: Ints
    group: Ints
    name: Ints
    nelems: Ints
    seq: Ints
    step: Ints
    start_ns: Ints
    end_ns: Ints
    spent_ns: Ints
    n_ops: Ints
    groups: tuple[ProcessGroup, ...]
    names: tuple[str, ...]

    def __len__(self) -> int:
        """Return the number of collectives."""
        return len(self.row)


@dataclass(frozen=True, eq=False)
class RankSteps:
    """The steps of one rank: their numbers, wall boundaries (base time included), and steadiness.

    ``parts_ns`` : int64[steps, 4], computation, exposed communication, exposed copies and idle (on
    a CPU: operators, waiting in collectives, 0 and Python).
    """

    number: Ints
    start_ns: Ints
    end_ns: Ints
    steady: NDArray[np.bool_]
    parts_ns: Ints


@dataclass(frozen=True, eq=False)
class RankReplay:
    """One rank's graph, and what each question changes in it (None: nothing).

    ``origin_ns`` : the graph's origin on the rank's own clock, base time included. ``reason`` : why
    the rank's own replay is refused, empty where it is not.
    """

    graph: Graph
    origin_ns: int
    reason: str
    questions: tuple[Scenario | None, ...]


@dataclass(frozen=True, eq=False)
class RankRecord:
    """One analysed file, fit to be sent between processes.

    ``exposed`` : time with communication and nothing beside it, base time included.
    ``moments`` : step number and cell to the longest stretch in it.
    ``n_point_to_point`` : sends and receives, which are not matched.
    """

    path: str
    result: Result
    host: str
    start_ns: int
    end_ns: int
    has_base_time: bool
    device: bool
    inflation: float
    collectives: RankCollectives
    exposed: Spans
    steps: RankSteps
    moments: dict[tuple[int, int], Moment]
    n_point_to_point: int
    replay: RankReplay | None = None
    """Where what-if questions were asked."""


def build_record(trace: Trace, path: str, result: Result) -> RankRecord:
    """Return what the job needs of one rank."""
    base = trace.origin.base_time_ns or 0
    rows, device = _rows(trace)
    pieces = find_pieces(trace) if len(rows) or not trace.devices else no_pieces(trace)
    names = _names(trace, rows)
    single = np.array([_POINT_TO_POINT.match(name) is None for name in names], dtype=bool)
    n_point_to_point = int((~single).sum())
    rows, names = rows[single], [name for name, keep in zip(names, single, strict=True) if keep]
    step_of = trace.steps.of_work(rows) if device else trace.steps.of_host(rows)
    numbers = _numbers(trace)
    groups, group = _groups(trace, rows)
    name_table = tuple(dict.fromkeys(names))
    codes = {name: code for code, name in enumerate(name_table)}
    start, end = trace.start_ns[rows], trace.end_ns[rows]
    spent, late = _spent(trace, pieces, rows, device=device)
    table = RankCollectives(
        row=rows,
        group=group,
        name=np.array([codes[name] for name in names], np.int64),
        nelems=_numbers_of(trace, rows, "nelems"),
        seq=_numbers_of(trace, rows, "seq"),
        step=np.append(numbers, -1)[step_of],
        start_ns=start + base,
        end_ns=end + base,
        spent_ns=spent,
        n_ops=_n_ops(trace, pieces, start),
        groups=groups,
        names=name_table,
    )
    exposed = trace.devices[0].comm_only if device else intervals.intersect(trace.time_of(rows), pieces.idle)
    whole = intervals.spans(trace.start_ns, trace.end_ns)[trace.hosts | trace.works]
    return RankRecord(
        path=path,
        result=result,
        host=str(trace.meta.get("host_name") or ""),
        start_ns=int(whole[:, 0].min(initial=trace.window.end_ns)) + base,
        end_ns=int(whole[:, 1].max(initial=trace.window.start_ns)) + base,
        has_base_time=trace.origin.base_time_ns is not None,
        device=device,
        inflation=trace.origin.inflation,
        collectives=table,
        exposed=exposed + base,
        steps=_steps(trace, pieces, exposed, numbers, base),
        moments=_moments(pieces, late, table, base),
        n_point_to_point=n_point_to_point,
    )


def _rows(trace: Trace) -> tuple[Ints, bool]:
    rows = np.flatnonzero(communicates(trace))
    device = bool(len(rows))
    if device:
        # one device per rank: what a process does on others is not the rank's clock
        of_lane = np.array([lane.device for lane in trace.lanes], np.int64)
        rows = rows[of_lane[trace.lane[rows]] == trace.devices[0].index]
    else:
        rows = np.flatnonzero((trace.kind == Kind.ANNOTATION) & trace.matching(_HOST_COLLECTIVE))
    return rows[np.argsort(trace.start_ns[rows], kind="stable")], device


def _names(trace: Trace, rows: Ints) -> list[str]:
    """Return what each collective is called: by its argument, its annotation, or its kernel."""
    call = trace.links.call[rows]
    mask = trace.matching(_ANNOTATED) & trace.is_kind(Kind.ANNOTATION, Kind.OP)
    around = np.full(len(rows), -1, np.int64)
    around[call >= 0] = trace.tree.nearest(call[call >= 0], mask)
    names = []
    for row, note, given in zip(rows.tolist(), around.tolist(), trace.details_of("collective", rows), strict=True):
        own = trace.name_of(row)
        text = given or (trace.name_of(note) if note >= 0 else own)
        text = str(text).split(":", 1)[-1] if ":" in str(text)[:6] else str(text)
        names.append(short_name(text) if text == own else text)
    return names


def _groups(trace: Trace, rows: Ints) -> tuple[tuple[ProcessGroup, ...], Ints]:
    """Return the process groups, and the code of each collective's; streams where not recorded."""
    known = _configured(trace)
    names, members = trace.details_of("group", rows), trace.details_of("ranks", rows)
    # numbers of streams differ between ranks, their order does not
    lanes = sorted(set(trace.lane[rows].tolist()), key=lambda lane: (trace.lanes[lane].stream, lane))
    streams = {lane: place for place, lane in enumerate(lanes, 1) if trace.lanes[lane].kind == "stream"}
    table: dict[ProcessGroup, int] = {}
    codes = []
    for name, ranks, lane in zip(names, members, trace.lane[rows].tolist(), strict=True):
        if name is None:
            only = next(iter(known.values())) if len(known) == 1 else None
            group = only or ProcessGroup(f"stream {streams[lane]}" if lane in streams else "")
        else:
            listed = _listed(ranks)
            config = known.get(str(name))
            group = ProcessGroup(str(name), listed or (config.ranks if config else ()))
            if config is not None:
                group = ProcessGroup(group.name, group.ranks, config.what)
        codes.append(table.setdefault(group, len(table)))
    return tuple(table), np.array(codes, np.int64)


def _configured(trace: Trace) -> dict[str, ProcessGroup]:
    info = trace.meta.get("distributedInfo")
    listed = info.get("pg_config") if isinstance(info, dict) else None
    out = {}
    for item in listed if isinstance(listed, list) else []:
        if isinstance(item, dict) and "pg_name" in item:
            name = str(item["pg_name"])
            out[name] = ProcessGroup(name, _listed(item.get("ranks")), str(item.get("pg_desc") or ""))
    return out


def _listed(value: Any) -> tuple[int, ...]:
    """Return rank numbers from a list, or from its text; nothing when it was cut short."""
    if isinstance(value, str):
        if "..." in value:
            return ()
        value = [int(match) for match in re.findall(r"\d+", value)]
    if not isinstance(value, list):
        return ()
    return tuple(item for item in value if isinstance(item, int))


def _numbers(trace: Trace) -> Ints:
    """Return the number in each step's name, or its place where names hold none; 0 for a window."""
    if not len(trace.steps):
        return np.zeros(1, np.int64)
    found = [_STEP_NUMBER.search(name) for name in trace.steps.names]
    return np.array([int(match[1]) if match else index for index, match in enumerate(found)], np.int64)


def _numbers_of(trace: Trace, rows: Ints, what: str) -> Ints:
    """Return a number of each collective, -1 where it was not recorded."""
    values = trace.details_of(what, rows)
    out = np.array([_whole(value) for value in values], np.int64)
    if what != "nelems":
        return out
    # older versions: the shape of the annotation's input
    call = trace.links.call[rows]
    mask = trace.matching(f"{_ANNOTATED}|{_HOST_COLLECTIVE}") & (trace.kind == Kind.ANNOTATION)
    around = np.where(mask[rows], rows, -1)
    linked = call >= 0
    around[linked] = trace.tree.nearest(call[linked], mask)
    old = np.flatnonzero((out < 0) & (around >= 0))
    shapes = trace.details_of("dims", around[old])
    for at, dims in zip(old.tolist(), shapes, strict=True):
        out[at] = _size(dims)
    return out


def _whole(value: Any) -> int:
    try:
        return int(value) if value is not None and abs(int(value)) < 1 << 62 else -1
    except (TypeError, ValueError):
        return -1


def _size(dims: Any) -> int:
    shapes = [dim for dim in dims or [] if isinstance(dim, list)]
    if not shapes or not all(isinstance(n, int) for shape in shapes for n in shape):
        return -1
    return _whole(sum(prod(shape) for shape in shapes))


def _spent(trace: Trace, pieces: Pieces, rows: Ints, *, device: bool) -> tuple[Ints, Spans]:
    """Return the time in each cell before each collective, and the time that counts.

    With a device, what the host does matters only where it makes the device stand idle; without
    one, Python inside a running collective is waiting for it.
    """
    start_ns = trace.start_ns[rows]
    if device:
        late = trace.devices[0].host_late
    else:
        held = intervals.union(intervals.spans(start_ns, trace.end_ns[rows]))
        late = intervals.subtract(intervals.union(pieces.spans), intervals.intersect(held, pieces.idle))
    table = np.zeros((len(rows), len(CELLS)), np.int64)
    if not len(rows) or not len(pieces.spans):
        return table, late
    own, cell = intervals.covered(pieces.spans, late), pieces.cell
    at = np.searchsorted(pieces.spans[:, 0], start_ns, side="right") - 1
    # whole pieces count for the collectives that start in a later one
    first = np.searchsorted(at, np.arange(len(pieces.spans)), side="right")
    whole = (cell >= 0) & (first < len(rows))
    np.add.at(table, (first[whole], cell[whole]), own[whole])
    table = np.cumsum(table, axis=0)
    # and of the piece it starts in, what lies before it
    inside = np.maximum(at, 0)
    begin = pieces.spans[inside, 0]
    part = intervals.covered(np.stack([begin, np.maximum(start_ns, begin)], axis=1), late)
    some = np.flatnonzero((at >= 0) & (cell[inside] >= 0))
    table[some, cell[inside][some]] += part[some]
    if device:
        compute = trace.devices[0].compute
        before = np.stack([np.full_like(start_ns, compute[:1, 0].min(initial=0)), start_ns], axis=1)
        table[:, -1] = intervals.covered(before, compute)
    return table, late


def _n_ops(trace: Trace, pieces: Pieces, start_ns: Ints) -> Ints:
    table = np.zeros((len(start_ns) + 1, len(PHASES)), np.int64)
    ops = trace.start_ns[np.isin(trace.lane, pieces.lanes) & (trace.kind == Kind.OP)]
    at = np.searchsorted(pieces.spans[:, 0], ops, side="right") - 1
    ops, at = ops[at >= 0], at[at >= 0]
    np.add.at(table, (np.searchsorted(start_ns, ops, side="right"), pieces.phase[at]), 1)
    return np.cumsum(table, axis=0)[: len(start_ns)]


def _steps(trace: Trace, pieces: Pieces, exposed: Spans, numbers: Ints, base: int) -> RankSteps:
    steps = trace.steps
    if len(steps):
        start, end, steady = steps.start_ns, steps.end_ns, steps.steady
    else:
        window = trace.window
        start, end = np.array([window.start_ns]), np.array([window.end_ns])
        steady = np.ones(1, bool)
    spans = intervals.spans(start, end)
    if trace.devices:
        main = trace.devices[0]
        cover = [main.compute, main.comm_only, main.copy_only]
    else:
        works = intervals.union(pieces.spans[pieces.activity == 0])
        cover = [works, intervals.subtract(exposed, works), intervals.EMPTY]
    parts = [intervals.covered(spans, item) for item in cover]
    rest = np.maximum(end - start - sum(parts), 0)
    return RankSteps(numbers, start + base, end + base, steady, np.stack([*parts, rest], axis=1))


def _moments(pieces: Pieces, late: Spans, table: RankCollectives, base: int) -> dict[tuple[int, int], Moment]:
    inside = table.step >= 0
    if not inside.any():
        return {}
    number, last = np.unique(table.step[inside][::-1], return_index=True)
    until = table.start_ns[inside][::-1][last] - base
    order = np.argsort(until, kind="stable")
    number, until = number[order], until[order]
    own = intervals.covered(pieces.spans, late)
    # not to be missed: what happened after a step's last collective makes the next one late
    step_at = np.searchsorted(until, pieces.spans[:, 0], side="left")
    good = (step_at < len(number)) & (pieces.cell >= 0) & (own > 0)
    index = np.flatnonzero(good)
    order = index[np.lexsort((own[index], pieces.cell[index], step_at[index]))]
    key = step_at[order] * len(CELLS) + pieces.cell[order]
    ends = np.flatnonzero(np.append(key[1:] != key[:-1], True)) if len(key) else key
    best = order[ends]
    # names are looked up for the longest only
    best = best[np.argsort(-own[best], kind="stable")][:MAX_MOMENTS]
    out = {}
    for piece in best.tolist():
        python = ACTIVITIES[pieces.activity[piece]] in ("python", "gc")
        after, before = pieces.around(piece) if python else ("", "")
        row = int(pieces.owner[piece])
        name = "" if python or row < 0 else pieces.trace.name_of(row)
        out[int(number[step_at[piece]]), int(pieces.cell[piece])] = Moment(
            int(own[piece]), name, after, before, pieces.frame(piece)
        )
    return out

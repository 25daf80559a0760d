"""What a job needs to know of one rank: its result and its collectives, and nothing of its trace.

A record is small (some hundred bytes for each collective), so that a thousand ranks fit where one
trace does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchtriage.core import intervals
from torchtriage.core.arrays import Ints, distinct
from torchtriage.core.intervals import Spans
from torchtriage.core.trace import Kind, Trace
from torchtriage.core.trace.collectives import communicates
from torchtriage.core.trace.device import LAUNCH_SLACK_NS
from torchtriage.core.trace.messages import HOST_COLLECTIVE, Messages, ProcessGroup
from torchtriage.diagnose.ranks.group_rows import GroupRows, group_rows
from torchtriage.diagnose.ranks.host_activity import ACTIVITIES, CELLS, PHASES, Pieces, find_pieces, no_pieces
from torchtriage.diagnose.ranks.pipeline_rank import NOTHING, RankPipeline, messages_of, rank_pipeline
from torchtriage.diagnose.ranks.rank_exchanges import RankExchanges, rank_exchanges
from torchtriage.diagnose.ranks.rank_skeleton import RankSkeleton
from torchtriage.diagnose.ranks.rank_work import NO_WORK, RankWork, rank_work
from torchtriage.diagnose.replay import Scenario
from torchtriage.diagnose.replay.graph import Graph
from torchtriage.diagnose.verdict.result import Result

_STEP_NUMBER = re.compile(r"#(\d+)$")
MAX_MOMENTS = 2000
"""Longest stretches kept by name: what a late rank did is among them."""


@dataclass(frozen=True)
class Moment:
    """The stretch of one cell that held the device up longest before a step's last collective.

    ``dur_ns`` : the whole stretch, which may have begun beside the device's work. ``place`` : what a stretch of another
    rank has in common with it. ``within`` : the names of the rows open in it, outermost first. ``after``, ``before`` :
    of Python, the calls on both sides in the same range.
    """

    dur_ns: int
    place: tuple[str, ...]
    within: tuple[str, ...] = ()
    after: str = ""
    before: str = ""
    frame: str = ""


@dataclass(frozen=True, eq=False)
class RankCollectives:
    """The collectives of one rank in order of their start; arrays have one element for each.

    ``row`` : row of the trace. ``group``, ``name`` : codes into ``groups`` and ``names``.
    ``nelems``, ``seq`` : -1 where not recorded. ``size_bytes``, ``n_ranks``, ``bus_factor`` : of
    :class:`~torchtriage.core.trace.messages.Messages`. ``step`` : number of the step that enqueued it, -1
    outside. ``start_ns``, ``end_ns`` : on the rank's own clock, base time included.
    ``spent_ns`` : int64[n, cells], time in each cell from the recording's begin to the launch that made the rank late,
    or of the device to the start. ``n_ops`` : int64[n, phases + 1], operators up to the launch, and in the last column
    kernels that compute up to the start.
    """

    row: Ints
    group: Ints
    name: Ints
    nelems: Ints
    size_bytes: Ints
    n_ranks: Ints
    bus_factor: NDArray[np.float64]
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

    ``base_ns`` : what its times count from.
    ``exposed`` : time with communication and nothing beside it, base time included.
    ``moments`` : step number and cell to the longest stretch in it.
    ``paces`` : phase (empty: the device's kernels) and name of a call to how often it ran in the steady steps and its
    median own ns. ``stretches`` : phase and place to the longest stretch there in the steady steps, ns.
    ``n_point_to_point`` : sends and receives; ``pipeline`` holds them, and what is computed between them.
    ``by_group`` : all that communicates, these too.
    """

    path: str
    result: Result
    host: str
    start_ns: int
    end_ns: int
    has_base_time: bool
    base_ns: int
    device: bool
    inflation: float
    collectives: RankCollectives
    exposed: Spans
    steps: RankSteps
    moments: dict[tuple[int, int], Moment]
    paces: dict[tuple[str, str], tuple[int, int]]
    stretches: dict[tuple[str, tuple[str, ...]], int]
    n_point_to_point: int
    by_group: GroupRows
    exchanges: RankExchanges
    pipeline: RankPipeline = NOTHING
    replay: RankReplay | None = None
    """Where what-if questions were asked."""
    work: RankWork = NO_WORK
    skeleton: RankSkeleton | None = None
    """For the savings of the job's findings; None without collectives on a device."""


def build_record(trace: Trace, path: str, result: Result) -> RankRecord:
    """Return what the job needs of one rank."""
    base = trace.origin.base_time_ns or 0
    rows, device = _rows(trace)
    pieces = find_pieces(trace) if len(rows) or not trace.devices else no_pieces(trace)
    messages = Messages(trace, rows)
    sent, said = messages_of(trace, rows, messages.names)
    single = ~np.isin(np.arange(len(rows)), sent)
    numbers = _numbers(trace)
    by_group = group_rows(trace, messages, single, numbers, device=device)
    pipeline = rank_pipeline(trace, pieces, rows[sent], said, numbers, base)
    communicating = rows
    rows, names = rows[single], [name for name, keep in zip(messages.names, single, strict=True) if keep]
    step_of = trace.steps.of_work(rows) if device else trace.steps.of_host(rows)
    messages = Messages(trace, rows)
    groups, group = messages.groups
    name_table = tuple(dict.fromkeys(names))
    codes = {name: code for code, name in enumerate(name_table)}
    start, end = trace.start_ns[rows], trace.end_ns[rows]
    call = trace.links.call[rows]
    launch = np.where(call >= 0, trace.start_ns[call], start)
    late = _late(trace, pieces, rows, device=device)
    spent, n_ops = _spent(pieces, late, launch), _n_ops(trace, pieces, launch)
    if device:
        main = trace.devices[0]
        computed = np.stack([np.full_like(start, main.compute[:1, 0].min(initial=0)), start], axis=1)
        spent[:, -1] = intervals.covered(computed, main.compute)
        n_ops[:, -1] = np.searchsorted(trace.start_ns[main.rows[~main.comm]], start)
    table = RankCollectives(
        row=rows,
        group=group,
        name=np.array([codes[name] for name in names], np.int64),
        nelems=messages.nelems,
        size_bytes=messages.size_bytes,
        n_ranks=messages.n_ranks,
        bus_factor=messages.bus_factor,
        seq=messages.seq,
        step=np.append(numbers, -1)[step_of],
        start_ns=start + base,
        end_ns=end + base,
        spent_ns=spent,
        n_ops=n_ops,
        groups=groups,
        names=name_table,
    )
    exposed = trace.devices[0].comm_only if device else intervals.intersect(trace.time_of(communicating), pieces.idle)
    # a stretch may begin beside the device's work; without a device, waiting is no part of it
    own = intervals.covered(pieces.spans, intervals.union(pieces.spans) if device else late)
    everything = intervals.spans(trace.start_ns, trace.end_ns)[trace.hosts | trace.works]
    return RankRecord(
        path=path,
        result=result,
        host=host_name(trace),
        start_ns=int(everything[:, 0].min(initial=trace.window.end_ns)) + base,
        end_ns=int(everything[:, 1].max(initial=trace.window.start_ns)) + base,
        has_base_time=trace.origin.base_time_ns is not None,
        base_ns=base,
        device=device,
        inflation=trace.origin.inflation,
        collectives=table,
        exposed=exposed + base,
        steps=_steps(trace, pieces, exposed, numbers, base),
        moments=_moments(pieces, own, late, table.step, launch),
        paces=_paces(trace, pieces),
        stretches=_stretches(pieces, own),
        n_point_to_point=len(sent),
        pipeline=pipeline,
        by_group=by_group,
        work=rank_work(trace, pieces, start if device else launch),
        exchanges=rank_exchanges(trace),
    )


def host_name(trace: Trace) -> str:
    """Return the host that a trace was recorded on, empty where it does not say."""
    return str(trace.meta.get("host_name") or "")


def _rows(trace: Trace) -> tuple[Ints, bool]:
    rows = np.flatnonzero(communicates(trace))
    device = bool(len(rows))
    if device:
        # one device per rank: what a process does on others is not the rank's clock
        of_lane = np.array([lane.device for lane in trace.lanes], np.int64)
        rows = rows[of_lane[trace.lane[rows]] == trace.devices[0].index]
    else:
        rows = np.flatnonzero((trace.kind == Kind.ANNOTATION) & trace.matching(HOST_COLLECTIVE))
    return rows[np.argsort(trace.start_ns[rows], kind="stable")], device


def _numbers(trace: Trace) -> Ints:
    """Return the number in each step's name, or its place where names hold none; 0 for a window."""
    if not len(trace.steps):
        return np.zeros(1, np.int64)
    found = [_STEP_NUMBER.search(name) for name in trace.steps.names]
    return np.array([int(match[1]) if match else index for index, match in enumerate(found)], np.int64)


def _late(trace: Trace, pieces: Pieces, rows: Ints, *, device: bool) -> Spans:
    """Return the host's time that makes the rank late.

    With a device, what the host does matters only where it makes the device stand idle; without one, Python inside a
    running collective is waiting for it.
    """
    if device:
        return trace.devices[0].host_late
    held = intervals.union(trace.time_of(rows))
    return intervals.subtract(intervals.union(pieces.spans), intervals.intersect(held, pieces.idle))


def _spent(pieces: Pieces, counted: Spans, until_ns: Ints) -> Ints:
    """Return int64[moments, cells]: the time counted in each cell before each moment."""
    table = np.zeros((len(until_ns), len(CELLS)), np.int64)
    if not len(until_ns) or not len(pieces.spans):
        return table
    own, cell = intervals.covered(pieces.spans, counted), pieces.cell
    at = np.searchsorted(pieces.spans[:, 0], until_ns, side="right") - 1
    inside = np.maximum(at, 0)
    for code in distinct(cell[cell >= 0]).tolist():
        sums = np.cumsum(np.where(cell == code, own, 0))
        table[:, code] = np.append(0, sums)[inside]
    # and of the piece the moment falls in, what lies before it
    begin = pieces.spans[inside, 0]
    part = intervals.covered(np.stack([begin, np.maximum(until_ns, begin)], axis=1), counted)
    some = np.flatnonzero((at >= 0) & (cell[inside] >= 0))
    table[some, cell[inside][some]] += part[some]
    return table


def _n_ops(trace: Trace, pieces: Pieces, until_ns: Ints) -> Ints:
    order = np.argsort(until_ns, kind="stable")
    table = np.zeros((len(until_ns) + 1, len(PHASES) + 1), np.int64)
    ops = trace.start_ns[np.isin(trace.lane, pieces.lanes) & (trace.kind == Kind.OP)]
    at = np.searchsorted(pieces.spans[:, 0], ops, side="right") - 1
    ops, at = ops[at >= 0], at[at >= 0]
    np.add.at(table, (np.searchsorted(until_ns[order], ops, side="right"), pieces.phase[at]), 1)
    counts = np.empty((len(until_ns), len(PHASES) + 1), np.int64)
    counts[order] = np.cumsum(table, axis=0)[: len(until_ns)]
    return counts


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


def _moments(pieces: Pieces, own: Ints, late: Spans, step: Ints, launch_ns: Ints) -> dict[tuple[int, int], Moment]:
    inside = step >= 0
    if not inside.any():
        return {}
    number, last = np.unique(step[inside][::-1], return_index=True)
    until = launch_ns[inside][::-1][last]
    order = np.argsort(until, kind="stable")
    number, until = number[order], until[order]
    # not to be missed: what happened after a step's last collective makes the next one late
    step_at = np.searchsorted(until, pieces.spans[:, 0], side="left")
    held = intervals.covered(pieces.spans, late)
    good = (step_at < len(number)) & (pieces.cell >= 0) & (held > 0)
    index = np.flatnonzero(good)
    order = index[np.lexsort((held[index], pieces.cell[index], step_at[index]))]
    key = step_at[order] * len(CELLS) + pieces.cell[order]
    ends = np.flatnonzero(np.append(key[1:] != key[:-1], True)) if len(key) else key
    best = order[ends]
    # names are looked up for the longest only
    best = best[np.argsort(-held[best], kind="stable")][:MAX_MOMENTS]
    out = {}
    for piece in best.tolist():
        python = ACTIVITIES[pieces.activity[piece]] in ("python", "gc")
        after, before = pieces.around(piece) if python else ("", "")
        out[int(number[step_at[piece]]), int(pieces.cell[piece])] = Moment(
            int(own[piece]),
            pieces.names_of(pieces.places[piece]),
            pieces.within(piece),
            after,
            before,
            pieces.frame(piece),
        )
    return out


def _stretches(pieces: Pieces, own: Ints) -> dict[tuple[str, tuple[str, ...]], int]:
    inside = intervals.covered(pieces.spans, pieces.trace.steps.judged) > 0
    long = np.flatnonzero((pieces.cell >= 0) & (own > LAUNCH_SLACK_NS) & inside)
    kinds, at = np.unique(np.column_stack([pieces.phase, pieces.places])[long], axis=0, return_inverse=True)
    longest = np.zeros(len(kinds), np.int64)
    np.maximum.at(longest, at.reshape(-1), own[long])
    out: dict[tuple[str, tuple[str, ...]], int] = {}
    for kind, dur_ns in zip(kinds, longest.tolist(), strict=True):
        key = (PHASES[kind[0]], pieces.names_of(kind[1:]))
        out[key] = max(out.get(key, 0), dur_ns)
    return out


def _paces(trace: Trace, pieces: Pieces) -> dict[tuple[str, str], tuple[int, int]]:
    """Return how long each kind of call takes by itself; medians, so that a call that once waited does not count."""
    steps, dur = trace.steps, pieces.spans[:, 1] - pieces.spans[:, 0]
    calls = (pieces.activity == ACTIVITIES.index("op")) & (pieces.owner >= 0)
    rows, at = np.unique(pieces.owner[calls], return_inverse=True)
    own = np.bincount(at, weights=dur[calls], minlength=len(rows)).astype(np.int64)
    phase = np.zeros(len(rows), np.int64)
    phase[at] = pieces.phase[calls]
    judged = steps.in_steady(steps.of_host(rows))
    out = _medians(trace, rows[judged], own[judged], phase[judged], PHASES)
    if trace.devices:
        main = trace.devices[0]
        rows = main.rows[~main.comm]
        rows = rows[steps.in_steady(steps.of_work(rows))]
        out |= _medians(trace, rows, trace.dur_ns[rows], np.zeros(len(rows), np.int64), ("",))
    return out


def _medians(
    trace: Trace, rows: Ints, own_ns: Ints, phase: Ints, phases: tuple[str, ...]
) -> dict[tuple[str, str], tuple[int, int]]:
    key = phase * len(trace.names) + trace.name[rows]
    order = np.lexsort((own_ns, key))
    keys, first, count = np.unique(key[order], return_index=True, return_counts=True)
    # of an even number the lower one
    middle = own_ns[order][first + (count - 1) // 2]
    kinds = [(phases[code // len(trace.names)], trace.names[code % len(trace.names)]) for code in keys.tolist()]
    return dict(zip(kinds, zip(count.tolist(), middle.tolist(), strict=True), strict=True))

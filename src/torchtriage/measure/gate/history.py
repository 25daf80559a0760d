"""Where along the commits of a branch the level of a metric changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from torchtriage.core.finding import Note
from torchtriage.core.samples import Run, Series, Session
from torchtriage.core.stats import change_points
from torchtriage.core.units import format_count
from torchtriage.core.version import __version__
from torchtriage.measure.gate import formatting
from torchtriage.measure.gate.result import HISTORY_SCHEMA, HistoryResult, MetricChangePoint, Point, Track
from torchtriage.measure.gate.revision import UNCOMMITTED
from torchtriage.measure.gate.row_verdict import STATISTICS, amount
from torchtriage.measure.gate.session_stats import SessionTable

MIN_CHANGE = 0.01
"""Smaller changes of level are left out, as a share."""
LEAST_T = 7.0
"""How far a change has to stand out of the commits around it: what people mark does, see docs/statistics.md."""
LEAST_VALUES = 4
"""Commits on either side of a change: fewer do not show a level."""
LEAST_POINTS = 2 * LEAST_VALUES
MOSTLY = 4
"""A count is exact where the sessions of each commit agree, and at most one commit in so many differs from the one
before."""


def find_history(
    runs: Sequence[Run], *, branch: str = "", min_change: float = MIN_CHANGE, order: Sequence[str] = ()
) -> HistoryResult:
    """Return the tracks of every metric and where their level changed.

    ``runs`` : of one branch, in any order. Unlike machines get tracks of their own; what has uncommitted changes is of
    no commit, and left out. ``branch`` : how it is called.
    ``min_change`` : changes of a smaller share are left out; of counts that are exact each is reported. ``order`` :
    commits, oldest first. Those that are not named stand where their recording falls.

    Raises SampleError: a run holds what nothing can be concluded from.
    """
    for run in runs:
        run.check()
    place = {commit: number for number, commit in enumerate(order)}
    committed = [run for run in runs if UNCOMMITTED not in dict(run.environment)]
    tracks = tuple(_tracks(committed, min_change, place))
    return HistoryResult(
        schema=HISTORY_SCHEMA,
        version=__version__,
        verdict=_verdict(tracks, branch, min_change, n_edited=len(runs) - len(committed)),
        branch=branch,
        min_change=min_change,
        tracks=tracks,
        notes=tuple(_notes(tracks, committed, n_edited=len(runs) - len(committed))),
    )


def _tracks(runs: Sequence[Run], min_change: float, place: Mapping[str, int]) -> Iterator[Track]:
    by_commit: dict[tuple[str, str, str], dict[str, list[tuple[Run, Series]]]] = {}
    for run in sorted(runs, key=lambda run: run.recorded_at_s):
        for series in run.series:
            key = (run.benchmark, series.metric, run.machine.fingerprint)
            # runs of no commit are points of their own
            name = run.commit or f"@{run.recorded_at_s:.3f}"
            by_commit.setdefault(key, {}).setdefault(name, []).append((run, series))
    for (benchmark, metric, fingerprint), commits in sorted(by_commit.items()):
        newest = list(commits.values())[-1][-1][1]
        statistic = STATISTICS[newest.kind][0]
        points = [_point(commit.partition("@")[0], found, newest, statistic) for commit, found in commits.items()]
        known = [point for point in points if point is not None]
        known.sort(key=lambda point: _position(point, known, place))
        exact = newest.kind == "count" and _is_exact(known, commits.values())
        refused = "" if exact else _refused(known)
        changes = [] if refused else _changes(known, newest, min_change, exact=exact)
        yield Track(
            benchmark=benchmark,
            metric=metric,
            statistic=statistic,
            unit=newest.unit,
            better=newest.better,
            kind=newest.kind,
            fingerprint=fingerprint,
            points=tuple(known),
            changes=tuple(changes),
            refused=refused,
        )


def _point(commit: str, found: Sequence[tuple[Run, Series]], newest: Series, statistic: str) -> Point | None:
    """Return one commit's point, of all its runs; None where it was measured in a unit that cannot be converted."""
    factors = [(run, series, formatting.factor(series.unit, newest.unit)) for run, series in found]
    alike = [(run, series, factor) for run, series, factor in factors if factor is not None]
    if not alike:
        return None
    sessions = tuple(
        session if factor == 1 else Session(tuple(value * factor for value in session.values))
        for _, series, factor in alike
        for session in series.sessions
    )
    whole = Series(newest.metric, newest.unit, newest.better, newest.kind, sessions)
    exact = amount(SessionTable(whole), statistic)
    return Point(commit, alike[0][0].recorded_at_s, exact.value, exact.n_sessions, len(alike))


def _position(point: Point, points: Sequence[Point], place: Mapping[str, int]) -> tuple[float, float]:
    if point.commit in place:
        return place[point.commit], 0.0
    earlier = [
        place[other.commit] for other in points if other.commit in place and other.recorded_at_s <= point.recorded_at_s
    ]
    return max(earlier, default=-1) + 0.5, point.recorded_at_s


def _is_exact(points: Sequence[Point], commits: Iterable[Sequence[tuple[Run, Series]]]) -> bool:
    for found in commits:
        if len({value for _, series in found for each in series.sessions for value in each.values}) > 1:
            return False
    n_changes = int(np.count_nonzero(np.diff([point.value for point in points])))
    return n_changes <= max(1, len(points) // MOSTLY)


def _refused(points: Sequence[Point]) -> str:
    if any(point.value <= 0 for point in points):
        return "values of zero or less have no ratio"
    if len(points) < LEAST_POINTS:
        return f"{LEAST_POINTS} commits are needed, found {len(points)}"
    return ""


def _changes(points: Sequence[Point], series: Series, min_change: float, *, exact: bool) -> list[MetricChangePoint]:
    values = np.array([point.value for point in points])
    found: list[tuple[int, float, float, float | None]]
    if exact:
        found = [
            (int(at), float(values[at - 1]), float(values[at]), None) for at in np.flatnonzero(np.diff(values)) + 1
        ]
    else:
        found = [
            (change.at, change.before, change.after, change.p_value)
            for change in change_points.find(values, min_effect=min_change, min_size=LEAST_VALUES, least_t=LEAST_T)
        ]
    return [
        MetricChangePoint(
            index=at,
            commit=points[at].commit,
            previous=points[at - 1].commit,
            before=before,
            after=after,
            ratio=after / before if before > 0 and after > 0 else None,
            p_value=p_value,
            worse=(after > before) == (series.better == "lower"),
        )
        for at, before, after, p_value in found
    ]


def _verdict(tracks: Sequence[Track], branch: str, min_change: float, *, n_edited: int) -> tuple[str, str, str]:
    judged = [track for track in tracks if not track.refused]
    changes = [(track, change) for track in judged for change in track.changes]
    where = f" of {branch}" if branch else ""
    if not judged:
        n = max((len(track.points) for track in tracks), default=0)
        found = f"{format_count(n, 'commit')} recorded"
        if n_edited:
            found += f", and {_edited(n_edited)}"
        return (
            f"No history{where} to analyse: {found}.",
            f"A change of level needs {LEAST_VALUES} commits on either side.",
            "Try: torchtriage gate record -- CMD on every commit of the branch.",
        )
    n_commits = max(len(track.points) for track in judged)
    along = f"{format_count(len(judged), 'metric')} over {format_count(n_commits, 'commit')}{where}"
    how = (
        f"Changes of {formatting.short(min_change)} or more that stand out from nearby commits, and all of exact"
        f" counts; the newest {LEAST_VALUES - 1} commits cannot show one yet."
    )
    if not changes:
        return f"No change of level: {along}.", "Every metric stays on one level.", how
    n_worse = sum(change.worse for _, change in changes)
    summary = f"{n_worse} worse, {len(changes) - n_worse} better"
    worse = [pair for pair in changes if pair[1].worse] or changes
    track, last = max(worse, key=lambda pair: pair[0].points[pair[1].index].recorded_at_s)
    return (
        f"{format_count(len(changes), 'change')} of level: {summary} ({along}).",
        f"Newest: {formatting.row_name(track)} {formatting.change_point(track, last)}.",
        how,
    )


def _edited(n: int) -> str:
    return f"{format_count(n, 'run')} with uncommitted changes left out"


def _notes(tracks: Sequence[Track], runs: Sequence[Run], *, n_edited: int) -> Iterator[Note]:
    if n_edited:
        yield Note("uncommitted", "info", _edited(n_edited))
    units = {(track.benchmark, track.metric, track.fingerprint): track.unit for track in tracks}
    unlike = [
        series
        for run in runs
        for series in run.series
        if formatting.factor(series.unit, units[run.benchmark, series.metric, run.machine.fingerprint]) is None
    ]
    if unlike:
        n = format_count(len(unlike), "recording of a metric", "recordings of a metric")
        what = f"{unlike[0].metric} in {unlike[0].unit}"
        yield Note("units", "warn", f"{n} in a different unit from its newest left out: {what}")
    fingerprints = {track.fingerprint for track in tracks}
    if len(fingerprints) > 1:
        yield Note(
            "machines", "info", f"the runs are from {len(fingerprints)} different machines: each has its own tracks"
        )

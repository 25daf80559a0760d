"""One statistic of one metric, judged: the interval on the ratio, and what follows from it.

The unit of analysis is the process session. All rows of a check are one family: their p-values are corrected
together, and the interval of every row is widened accordingly, so that what is shown is what decided (Benjamini and
Yekutieli 2005). What never varies on either side is exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchtriage.core.arrays import Floats
from torchtriage.core.errors import UsageError
from torchtriage.core.samples import Series
from torchtriage.core.stats import classical_tests, multiple_testing, quantiles, session_comparison
from torchtriage.measure.gate import formatting
from torchtriage.measure.gate.result import Classic, MetricRow, RowVerdict, SideAmount
from torchtriage.measure.gate.session_stats import SessionTable

MAX_REGRESS: dict[str, float] = {
    "latency": 0.03,
    "throughput": 0.03,
    "memory": 0.01,
    "compile_time": 0.10,
    "count": 0.0,
    "accuracy": 0.005,
}
"""The smallest change that matters by kind, as a share; of counts any rise is one."""

STATISTICS: dict[str, tuple[str, ...]] = {
    "latency": ("low", "mean", "p95", "p99"),
    "throughput": ("low",),
    "memory": ("peak",),
    "compile_time": ("median",),
    "count": ("count",),
    "accuracy": ("median",),
}
"""What is judged of each kind. The first one decides, the others are watched."""

TAILS: dict[str, float] = {"p95": 0.95, "p99": 0.99}
LEAST_VALUES = {"p95": 20, "p99": 100}
"""Values per session below which a tail gets no verdict."""
LEAST_SESSIONS = 3
"""Two give an interval of no use to anyone."""
LEAST_REPEATS = 3
"""Runs of the baseline from which its noise floor is taken."""
ASSUMED_FLOOR = 0.05
"""What two recordings of one program differ by where that was not measured: medians of ten sessions each, minutes
apart on a busy host of two cores, differ by up to 4.7 % nine times in ten."""
ROUNDING = 0.01
"""What two amounts, as they are shown, may say another change by."""
MANY_PAIRS = 500
"""Nobody runs more."""
WATCHED_ALPHA = 0.2
"""The share of ``alpha`` that rows get which can fail a gate but do not hold it up."""
MAX_SHOWN = 400
"""Sessions kept for the pictures."""
SUMMED_UP: session_comparison.Statistic = "peak"
"""What a session of one value is summed up by: any would do, this one may be constant."""
TIMED = frozenset({"latency", "throughput", "compile_time"})
"""Kinds that a clock measures: they always vary, so what does not is no measurement."""


@dataclass(frozen=True)
class GateLimits:
    """What a check was asked for.

    ``alpha`` : how often a check of equal programs may fail, all rows together. ``max_regress`` : by metric, by
    kind, or for all kinds but counts (""): the smallest change that matters, as a share. Later ones win.
    ``statistics`` : of latencies, what must be decided, beside the first of ``STATISTICS``. ``miss`` : how often a
    change of the smallest size of interest may pass as none, row by row; larger than ``alpha``, because it is what
    lets a check of unchanged code end.
    """

    alpha: float = 0.01
    max_regress: tuple[tuple[str, float], ...] = ()
    statistics: tuple[str, ...] = ()
    miss: float = 0.05

    def of(self, series: Series) -> float:
        """Return the smallest change that matters of a series."""
        found = MAX_REGRESS[series.kind]
        for name, share in self.max_regress:
            if name in (series.metric, series.kind) or (not name and series.kind != "count"):
                found = share
        return found


@dataclass(frozen=True)
class MetricMatch:
    """The two sides of one metric; None where a side does not have it.

    ``repeats`` : the baseline's sessions by run, for its noise floor; ``earlier`` : its runs of the level before.
    ``paired`` : the sessions of the two sides are pairs, in this order. ``noisy`` : others disturbed the
    candidate's processes.
    """

    benchmark: str
    before: Series | None
    after: Series | None
    repeats: tuple[Series, ...] = ()
    earlier: tuple[Series, ...] = ()
    paired: bool = False
    noisy: bool = False

    @property
    def knows_floor(self) -> bool:
        """Whether there are enough recordings to know what two of them differ by."""
        n_levels = 2 if self.earlier else 1
        return len(self.earlier) + len(self.repeats) >= LEAST_REPEATS + n_levels - 1


@dataclass(frozen=True, eq=False)
class _RowDraft:
    """A row that needs an interval, with its sessions as costs: lower is better.

    ``noise`` : of recordings, where there are enough to know it; else ``floor``.
    """

    row: MetricRow
    before: Floats
    after: Floats
    noise: session_comparison.RecordingNoise | None
    floor: float
    noisy: bool

    @property
    def has_zeros(self) -> bool:
        """Whether nothing may have a ratio to it: counts, and what is none at all on one side."""
        return self.row.kind == "count" or 0 in (side.value for side in _both(self.row))


def judge_rows(matches: Iterable[MetricMatch], limits: GateLimits) -> tuple[MetricRow, ...]:
    """Return a verdict on every statistic of every match, in their order.

    Raises UsageError: a limit names neither a kind nor a metric that is there.
    """
    found = list(matches)
    _check_names(found, limits)
    drafts = [draft for match in found for draft in _drafts(match, limits)]
    waiting = [draft for draft in drafts if isinstance(draft, _RowDraft)]
    judged: dict[int, MetricRow] = {}
    share = WATCHED_ALPHA if any(not draft.row.decides for draft in waiting) else 0.0
    for decides, alpha in ((True, limits.alpha * (1 - share)), (False, limits.alpha * share)):
        family = [draft for draft in waiting if draft.row.decides == decides]
        rows = _judge_family(family, alpha, limits.miss)
        judged.update((id(draft), row) for draft, row in zip(family, rows, strict=True))
    return tuple(judged[id(draft)] if isinstance(draft, _RowDraft) else draft for draft in drafts)


def _judge_family(family: Sequence[_RowDraft], alpha: float, miss: float) -> list[MetricRow]:
    """Judge rows that share ``alpha``: the intervals of all are as wide as the selection asks."""
    if not family:
        return []
    first = [_compare(draft, 1 - 2 * alpha) for draft in family]
    # each direction by itself: what got better must not make an alarm likelier
    worse = np.array([change.ratio > 1 for change in first])
    adjusted = np.empty(len(family))
    levels = np.empty(len(family))
    for side in (worse, ~worse):
        p_values = [
            change.p_value / 2 if here else 1 - change.p_value / 2 for change, here in zip(first, side, strict=True)
        ]
        found = multiple_testing.adjust(p_values)
        n_found = max(int((found <= alpha).sum()), 1)
        adjusted[side] = found[side]
        levels[side] = 1 - 2 * alpha * n_found / len(family)
    changes = [_compare(draft, float(level)) for draft, level in zip(family, levels, strict=True)]
    return [
        _judge_ranks(draft, change, float(p)) if draft.has_zeros else _judge(draft, change, float(p), miss)
        for draft, change, p in zip(family, changes, adjusted, strict=True)
    ]


def _check_names(matches: Sequence[MetricMatch], limits: GateLimits) -> None:
    metrics = {series.metric for match in matches for series in (match.before, match.after) if series}
    for name, _ in limits.max_regress:
        if name and matches and name not in MAX_REGRESS and name not in metrics:
            raise UsageError(
                f"expected a kind ({', '.join(MAX_REGRESS)}) or a metric, found {name!r}",
                where="--max-regress",
                hint=f"metrics here: {', '.join(sorted(metrics)[:8])}",
            )


def _drafts(match: MetricMatch, limits: GateLimits) -> Iterator[_RowDraft | MetricRow]:
    known = match.before or match.after
    assert known is not None
    names = [*STATISTICS[known.kind]]
    if known.kind == "latency":
        names += [name for name in limits.statistics if name not in names]
    row = MetricRow(
        benchmark=match.benchmark,
        metric=known.metric,
        statistic=names[0],
        unit=known.unit,
        better=known.better,
        kind=known.kind,
        verdict="inconclusive",
        decides=True,
        sentence="",
        max_regress=limits.of(known),
    )
    if reason := _unusable(match):
        # what is new has nothing to be slower than
        yield replace(row, verdict="refused", decides=match.before is not None, sentence=reason)
        return
    assert match.before is not None
    assert match.after is not None
    before, after = SessionTable(match.before), SessionTable(match.after)
    if reason := _no_measurement(before, after):
        yield replace(row, verdict="refused", sentence=reason)
        return
    n_least = min(len(table.series.sessions) for table in (before, after))
    n_values = min(matrix.shape[1] for table in (before, after) for _, matrix in table.parts)
    exact = all(table.least == table.most for table in (before, after))
    for name in names:
        row = replace(row, statistic=name, decides=name == names[0] or name in limits.statistics, paired=match.paired)
        if n_values < (least := LEAST_VALUES.get(name, 0)):
            # more sessions do not help; what nobody asked for holds up nothing
            sentence = f"needs {least} values in each session, found {n_values} in one"
            yield replace(row, verdict="refused", sentence=sentence)
            continue
        both = replace(row, before=amount(before, name), after=amount(after, name))
        if n_least < LEAST_SESSIONS:
            yield _too_few(both, LEAST_SESSIONS if exact else least_pairs(limits, paired=match.paired))
        elif exact:
            yield _exact(both)
        elif name != names[0] and not match.paired and not match.knows_floor:
            # a busy moment of the machine moves it at will, and by how much was never measured
            yield replace(
                both,
                verdict="inconclusive" if both.decides else "refused",
                sentence=f"{_sides(both)}: {len(match.repeats) + len(match.earlier)} recordings of the baseline cannot"
                f" show how much this differs between recordings of one program; {LEAST_REPEATS} are needed, or"
                " interleaved pairs",
            )
        elif known.kind == "count" or 0 in (before.most, after.most):
            # zero has no logarithm; what is added to all values leaves their ranks, if it is not large beside them
            added = 1.0 if known.kind == "count" else max(before.least, after.least)
            costs, other = (_costs_above_zero(table, name, added) for table in (before, after))
            yield _RowDraft(both, costs, other, None, 0.0, noisy=False)
        else:
            # pairs need no allowance
            timed = known.kind in TIMED and not match.paired
            noise = _noise(match, name) if timed and match.knows_floor else None
            floor = ASSUMED_FLOOR if timed else 0.0
            yield _RowDraft(both, before.costs(name), after.costs(name), noise, floor, match.noisy and timed)


def least_pairs(limits: GateLimits, *, paired: bool = True) -> int:
    """Return how many pairs, or sessions a side, a row needs that is judged alone."""
    alpha = limits.alpha * (1 - WATCHED_ALPHA)
    return max(session_comparison.least_sessions(1 - 2 * alpha, paired=paired), LEAST_SESSIONS)


def _costs_above_zero(table: SessionTable, name: str, added: float) -> Floats:
    values = added + table.values(name)
    return values if table.series.better == "lower" else 1 / values


def _unusable(match: MetricMatch) -> str:
    """Return why two sides must not be compared; empty when they may be."""
    before, after = match.before, match.after
    if before is None:
        return "new: the baseline does not have it"
    if after is None:
        return "missing from the candidate, present in the baseline"
    for what, first, other in zip(("unit", "better", "kind"), before.measures, after.measures, strict=True):
        if first != other:
            return f"{what} differs: {first} before, {other} after"
    return ""


def _no_measurement(before: SessionTable, after: SessionTable) -> str:
    """Return why values are none that anything could be concluded from; empty when they may be."""
    for side, table in (("baseline", before), ("candidate", after)):
        series = table.series
        if series.kind in TIMED and series.n_values > 1 and table.least == table.most:
            value = formatting.amount(table.least, series.unit)
            return (
                f"all {series.n_values:,} values of the {side} are {value}: real timings vary, so nothing was measured"
            )
        if series.kind == "count" and any((matrix % 1).any() for _, matrix in table.parts):
            return f"the {side} has counts that are not whole numbers"
        if series.kind != "count" and table.least <= 0 and (table.least or table.most):
            return f"the {side} has values of zero or less, which have no ratio"
    return ""


def _too_few(row: MetricRow, least: int) -> MetricRow:
    before, after = _both(row)
    n = f"{before.n_sessions} before, {after.n_sessions} after"
    return replace(
        row,
        ratio=_ratio(before.value, after.value),
        pairs_needed=least,
        sentence=(
            f"{_sides(row)}, from too few sessions ({n}): values of one process say nothing about"
            f" the next; at least {least} fresh processes per side are needed"
        ),
    )


def _exact(row: MetricRow) -> MetricRow:
    before, after = _both(row)
    ratio = _ratio(before.value, after.value)
    less, more = sorted((before.value, after.value))
    worse = (after.value > before.value) == (row.better == "lower")
    verdict: RowVerdict = "regression" if worse else "improvement"
    if less == more or more <= less * (1 + row.max_regress):
        verdict = "same"
    change = "" if ratio is None or ratio == 1 else f", {formatting.change(ratio)}"
    sentence = f"{_sides(row)}{change}, the same in all {before.n_sessions} and {after.n_sessions} sessions"
    return replace(row, verdict=verdict, ratio=ratio, sentence=sentence)


def _ratio(before: float, after: float) -> float | None:
    if before == after:
        return 1.0
    return after / before if before > 0 and after > 0 else None


def _both(row: MetricRow) -> tuple[SideAmount, SideAmount]:
    assert row.before is not None
    assert row.after is not None
    return row.before, row.after


def _sides(row: MetricRow) -> str:
    before, after = (formatting.amount(side.value, row.unit) for side in _both(row))
    return before if before == after else f"{before} to {after}"


def _compare(draft: _RowDraft, level: float) -> session_comparison.Change:
    noise = draft.noise
    floor = draft.floor if noise is None else noise.floor(level)
    change = session_comparison.compare_values(
        draft.before, draft.after, paired=draft.row.paired, level=level, floor=floor, statistic=SUMMED_UP
    )
    # ranks of sessions know nothing of what all those of a recording share
    return change if noise is None else replace(change, p_value=max(change.p_value, noise.p_value(change.ratio)))


def _noise(match: MetricMatch, statistic: str) -> session_comparison.RecordingNoise:
    """Return what a recording differs by from those of the baseline that it is compared with."""
    tables = [SessionTable(series) for series in (*match.earlier, *match.repeats)]
    runs = [[np.median(table.costs(statistic), keepdims=True)] for table in tables]
    return session_comparison.recording_noise(
        runs, statistic=SUMMED_UP, change=len(match.earlier), n_before=len(match.repeats)
    )


def _judge_ranks(draft: _RowDraft, change: session_comparison.Change, adjusted_p: float) -> MetricRow:
    """Judge counts that vary, and what is zero on one side: any rise counts, once ranks show one."""
    row = draft.row
    before, after = _both(row)
    values = f"{_range(row, before.sessions)} to {_range(row, after.sessions)}"
    words = ("more", "fewer") if row.kind == "count" else ("higher", "lower")
    worse = words[row.better == "higher"]
    less, more = sorted((before.value, after.value))
    beyond = more > less * (1 + row.max_regress) or not row.max_regress
    least = None
    if change.low > 1 and beyond:
        verdict: RowVerdict = "regression"
        sentence = f"{values}, median {_sides(row)}: {worse}"
    elif change.high < 1:
        verdict, sentence = "improvement", f"{values}, median {_sides(row)}"
    elif draft.after.max() <= draft.before.max() or (change.low > 1 and not beyond):
        verdict, sentence = "same", f"{values}: no {worse} than seen in the baseline"
    else:
        verdict, sentence = "inconclusive", f"{values}: it varies from session to session"
        if math.isnan(change.low):
            least = session_comparison.least_sessions(change.level, paired=change.paired)
            sentence += f"; at least {least} sessions per side are needed to show a change"
    return replace(
        row,
        verdict=verdict,
        sentence=sentence,
        ratio=_ratio(before.value, after.value),
        p_value=change.p_value,
        adjusted_p=adjusted_p,
        pairs_needed=least,
    )


def _range(row: MetricRow, values: Sequence[float]) -> str:
    low, high = formatting.amount(min(values), row.unit), formatting.amount(max(values), row.unit)
    return low if low == high else f"{low} … {high}"


def _judge(draft: _RowDraft, change: session_comparison.Change, adjusted_p: float, miss: float) -> MetricRow:
    row = draft.row
    verdict = session_comparison.verdict(change, min_effect=row.max_regress)
    if verdict == "inconclusive" and change.level > 1 - 2 * miss:
        loose = _compare(draft, 1 - 2 * miss)
        if session_comparison.verdict(loose, min_effect=row.max_regress) == "same":
            verdict, change = "same", loose
    # pairs share a neighbour; what was stored on a quiet machine does not
    blamed = verdict == "regression" and draft.noisy
    if blamed:
        verdict = "inconclusive"
    ends = (change.ratio, change.low, change.high)
    if row.better == "higher":
        ends = (1 / change.ratio, 1 / change.high, 1 / change.low)
    judged = replace(
        row,
        verdict=verdict,
        level=round(change.level, 9),
        ratio=ends[0],
        low=None if math.isnan(ends[1]) else ends[1],
        high=None if math.isnan(ends[2]) else ends[2],
        p_value=change.p_value,
        adjusted_p=adjusted_p,
        floor=change.floor,
        pairs_needed=_needed(change, row.max_regress, miss) if verdict == "inconclusive" else None,
        classic=_classic(draft),
    )
    if blamed:
        sentence = f"{_change(judged)}: worse, but the host was noisy then; interleaved pairs would decide"
        return replace(judged, pairs_needed=None, sentence=sentence)
    return replace(judged, sentence=_sentence(judged, change))


def _needed(change: session_comparison.Change, limit: float, miss: float) -> int | None:
    """Return how many sessions a side, those that are there included, would decide."""
    if math.isnan(change.low):
        return session_comparison.least_sessions(change.level, paired=change.paired)
    wanted = session_comparison.pairs_to_tell(change, limit, miss=miss)
    if wanted is None or wanted > MANY_PAIRS:
        return None
    n = min(change.n_before, change.n_after)
    return max(wanted, n + max(3, n // 2))


def _classic(draft: _RowDraft) -> Classic:
    sides = [np.asarray(side.sessions) for side in (draft.row.before, draft.row.after) if side]
    return Classic(
        welch_p=_finite(classical_tests.welch(*sides).p_value),
        mann_whitney_p=_finite(classical_tests.mann_whitney(*sides).p_value),
        cohen_d=_finite(classical_tests.cohen_d(*sides)),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _sentence(row: MetricRow, change: session_comparison.Change) -> str:
    limit = formatting.short(row.max_regress)
    text = _change(row)
    if row.low is None or row.high is None:
        least = session_comparison.least_sessions(change.level, paired=change.paired)
        what = "pairs" if row.paired else "sessions per side"
        return f"{text}: too few sessions for an interval; at least {least} {what} are needed"
    if row.verdict == "regression":
        surely = change.low >= 1 + row.max_regress
        return f"{text}: worse" + (f", by {limit} or more" if surely else f"; the estimate is beyond {limit}")
    if row.verdict == "improvement":
        return f"{text}: better"
    if row.verdict == "same":
        return f"{text}: not worse by {limit}"
    return f"{text}: {limit} worse can be neither shown nor ruled out; {_more(row, change)}"


def _change(row: MetricRow) -> str:
    """Return both sides, the change and its interval."""
    before, after = _both(row)
    assert row.ratio is not None
    text = f"{_sides(row)}, {formatting.change(row.ratio)}"
    if abs(after.value / before.value - row.ratio) > ROUNDING * row.ratio:
        # neighbours came and went: the medians say nothing, the pairs or the ranks still do
        how = "pair by pair" if row.paired else "session by session"
        text = f"{formatting.amount(before.value, row.unit)} before, {formatting.change(row.ratio)} {how}"
    if row.low is None or row.high is None or row.level is None:
        return text
    return f"{text} ({formatting.level(row.level)} interval {formatting.interval(row.low, row.high)})"


def _more(row: MetricRow, change: session_comparison.Change) -> str:
    if row.pairs_needed:
        what = "pairs" if row.paired else "sessions per side"
        return f"about {row.pairs_needed} {what} in total would decide, if the estimate holds"
    if row.floor:
        floor = formatting.short(row.floor)
        return f"recordings of one program may differ by {floor}, interleaved pairs would decide"
    limit = row.max_regress
    if limit and session_comparison.pairs_needed(change, limit) <= MANY_PAIRS:
        return f"the estimate is too close to {formatting.short(limit)}"
    return "it varies too much from session to session"


def amount(table: SessionTable, name: str) -> SideAmount:
    """Return a statistic over the sessions of a series, for tails with its interval."""
    per, series = table.values(name), table.series
    low = high = None
    if name in TAILS and len(per) > 1:
        _, low, high = map(_finite, quantiles.interval_over_sessions(per))
    elif name in TAILS:
        values = np.asarray(series.sessions[0].values, float)
        _, low, high = map(_finite, quantiles.quantile_interval(values, TAILS[name]))
    step = -(-len(per) // MAX_SHOWN)
    return SideAmount(
        value=float(np.median(per)),
        low=low,
        high=high,
        n_sessions=len(per),
        n_values=series.n_values,
        sessions=tuple(per[::step].tolist()),
    )

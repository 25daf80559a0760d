"""The change between two accounts, cause by cause; the causes add up to it to the nanosecond.

Keys that occur on both sides are compared as they are. What occurs on one side only is aligned by
its place between those: operators that stand where others stood have replaced them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from torchtriage.core.arrays import Ints
from torchtriage.core.stats import Interval, difference_of_means
from torchtriage.diagnose.compare.result import ChangeCause, ChangePart, TimeChange
from torchtriage.diagnose.compare.sentences import label, sentence
from torchtriage.diagnose.compare.time_account import PYTHON, REST, Account, Key, Pace, added

RUN_TO_RUN = 0.03
"""The least that two recordings of one program may differ by though steps within each agree."""
WINDOW_TO_WINDOW = 0.10
"""... and by this where single windows leave no step-to-step variation to go by."""
UNMOVED = 0.95
"""Share of the unchanged work whose own difference is taken for what runs differ by."""
MIN_CONTROLS, MIN_CONTROL = 3, 0.005
"""Kinds of work needed for that, and the share of all own time that makes one worth looking at."""
SAME_COUNT = 0.02
SMALL = 0.01
"""Causes below this share of the step are not told apart from the rest."""
LEVEL, CAUSE_LEVEL = 0.95, 0.99
"""The second is for causes: of thirty, one would leave a 95 % interval by chance."""
UNLIKELY = 20.0
"""What takes so many times more or less than what stood in its place did not replace it."""
MAX_CAUSES = 200
MAX_PARTS = 8
_HOST = ("idle_host_late", "host")


@dataclass(frozen=True)
class ChangeAttribution:
    """The change of the whole step, of each class of time, and of each cause.

    ``drift`` : by which factor the same work took longer after, the median of host and device.
    ``slack`` : the factor below which a time of each is not believed to have changed.
    """

    drift: dict[str, float]
    slack: dict[str, float]
    total: TimeChange
    classes: dict[str, TimeChange]
    causes: tuple[ChangeCause, ...]
    pairs: dict[Key, _Pair] = field(repr=False)
    bars_ns: dict[Key, float] = field(repr=False)

    def of(self, keys: Collection[Key]) -> TimeChange | None:
        """Return the change of some of the run before's keys together, None where it has none of them.

        With what came in the same classes of time: work that a fix compiled, batched or fused runs under other names.
        """
        mine = [key for key, pair in self.pairs.items() if not pair[0].keys.isdisjoint(keys)]
        if not mine:
            return None
        classes = {key.time_class for key in mine}
        mine += [key for key, pair in self.pairs.items() if not pair[0].keys and key.time_class in classes]
        sides = [np.sum([self.pairs[key][i].time_ns for key in mine], axis=0) for i in (0, 1)]
        before_ns, after_ns = (round(float(side.mean())) for side in sides)
        bar_ns = sum(self.bars_ns[key] for key in mine)
        return _change(before_ns, after_ns, _interval([(sides[0], sides[1])], LEVEL), 0, bar_ns)

    def split(self) -> dict[str, TimeChange]:
        """Return the change of the step in parts that add up to it.

        ``host`` (the device waits for launches), ``kernels`` (work of operators that both runs have), ``alone`` (work
        of operators that one run has) and ``idle`` (other idle time).
        """
        parts: dict[str, list[ChangeCause]] = {"host": [], "kernels": [], "alone": [], "idle": []}
        for cause in self.causes:
            if cause.of_host:
                parts["host"].append(cause)
            elif cause.time_class.startswith("idle"):
                parts["idle"].append(cause)
            else:
                parts["alone" if cause.kind in ("went", "came") else "kernels"].append(cause)
        return {
            name: TimeChange(
                sum(cause.change.before_ns for cause in causes),
                sum(cause.change.after_ns for cause in causes),
                sum(cause.change.delta_ns for cause in causes),
                None,
                None,
                told=any(cause.change.told for cause in causes),
            )
            for name, causes in parts.items()
            if causes
        }


@dataclass(eq=False)
class _Side:
    """One run's share of a cause: per-step times, number of pieces, names, and the keys of that run."""

    time_ns: Ints
    keys: set[Key]
    count: float = 0
    names: list[str] = field(default_factory=list)
    parts: dict[str, tuple[float, float]] = field(default_factory=dict)


_Pair = tuple[_Side, _Side]


def attribute(
    before: Account, after: Account, *, across: bool = False, ranks: Sequence[ChangeAttribution] = ()
) -> ChangeAttribution:
    """Return where the change in the mean steady step comes from; ``across`` : from one kind of device to another.

    ``ranks`` : of a job the change of each rank, by which its machine differs between the runs; their mean is taken.
    """
    drift, slack = _yardsticks(before, after)
    if ranks:
        drift = {domain: fmean(rank.drift[domain] for rank in ranks) for domain in drift}
        slack = {domain: fmean(rank.slack[domain] for rank in ranks) for domain in slack}
    if across:
        # that the same work takes another time is the change, not what recordings differ by
        drift, slack = dict.fromkeys(drift, 1.0), dict.fromkeys(slack, 1 + _least(before, after))
    pairs = _shortened(_paired(*_aligned(before, after), before, after), before, after)
    order = list(pairs)
    means = [
        _shares(np.array([int(pairs[key][i].time_ns.sum()) for key in order]), run)
        for i, run in enumerate((before, after))
    ]
    matrices = [(pairs[key][0].time_ns, pairs[key][1].time_ns) for key in order]
    bars = np.array([slack["host" if key.time_class in _HOST else "device"] - 1 for key in order]) * np.minimum(*means)
    total = _change(
        before.mean_ns,
        after.mean_ns,
        _interval([(before.step_ns, after.step_ns)], LEVEL),
        0,
        # in another state of the machine everything moves the same way
        float(bars.sum()),
    )
    least = SMALL * max(before.mean_ns, after.mean_ns)
    interval = _interval(matrices, CAUSE_LEVEL)
    causes = [
        _cause(key, pairs[key], _change(item, other, interval, i, max(bar, least)), before, after)
        for i, (key, item, other, bar) in enumerate(
            zip(order, *(side.tolist() for side in means), bars.tolist(), strict=True)
        )
    ]
    causes = [
        _certain(cause, pairs[key], least)
        for key, cause in zip(order, causes, strict=True)
        if cause.change.before_ns or cause.change.after_ns
    ]
    causes.sort(key=lambda cause: (-abs(cause.change.delta_ns), _name(cause)))
    classes = _classes(order, matrices, means, bars, least)
    if not any(cause.change.told for cause in causes) and not any(class_.told for class_ in classes.values()):
        # many small changes that are each within the noise are noise together
        total = replace(total, told=False)
    spoken = tuple(replace(cause, label=label(cause), sentence=sentence(cause, total, before.per)) for cause in causes)
    return ChangeAttribution(drift, slack, total, classes, spoken, pairs, dict(zip(order, bars.tolist(), strict=True)))


def _yardsticks(before: Account, after: Account) -> tuple[dict[str, float], dict[str, float]]:
    """Return by which factor the same work differs between the runs: its median, and nearly all.

    Two recordings of one program are never alike: clocks, neighbours on the machine, memory. Steps
    within a recording do not show it, work that did not change does. Where a program has none, or
    too little, the least allowance stands.
    """
    least = _least(before, after)
    sized = before.has_shapes == after.has_shapes
    drift, slack = {}, {}
    for domain in ("host", "device"):
        medians, means = _ratios(before.pace[domain], after.pace[domain], sized=sized)
        known = len(medians) >= MIN_CONTROLS
        drift[domain] = math.exp(float(np.median(medians))) if known else 1.0
        # each kind by its median, and all together by the mean, which preempted steps are part of
        moved = max(float(np.quantile(np.abs(medians), UNMOVED)), abs(means)) if known else 0.0
        slack[domain] = max(math.exp(moved), 1 + least)
    return drift, slack


def _least(before: Account, after: Account) -> float:
    return WINDOW_TO_WINDOW if min(before.n_steps, after.n_steps) < 2 else RUN_TO_RUN


def _ratios(before: Pace, after: Pace, *, sized: bool) -> tuple[NDArray[np.float64], float]:
    """Return log(after / before) of all work that both runs did alike: medians, and mean of all."""
    if not sized:
        before, after = _by_name(before), _by_name(after)
    least = [MIN_CONTROL * sum(ns for ns, *_ in pace.values()) for pace in (before, after)]
    medians = []
    sums = [0.0, 0.0]
    for kind, (one_ns, one_mean, one_count) in sorted(before.items()):
        other_ns, other_mean, other_count = after.get(kind, (0.0, 0.0, 0.0))
        same = abs(one_count - other_count) <= SAME_COUNT * max(one_count, other_count)
        worth = one_ns > least[0] or other_ns > least[1]
        if same and worth and one_ns > 0 and other_ns > 0:
            # as one difference, so that swapped runs give the negative to the last digit
            medians.append(math.log(other_ns) - math.log(one_ns))
            sums = [sums[0] + one_mean, sums[1] + other_mean]
    return np.array(medians), math.log(sums[1]) - math.log(sums[0]) if medians else 0.0


def _by_name(pace: Pace) -> Pace:
    out: Pace = {}
    for (name, _), values in pace.items():
        out[name, b""] = added(out.get((name, b"")), values)
    return out


# -- alignment ---------------------------------------------------------------------------------


def _aligned(before: Account, after: Account) -> tuple[dict[Key, _Side], dict[Key, _Side]]:
    marks = {key.mark for key in before.keys} & {key.mark for key in after.keys}
    frames = before.has_frames and after.has_frames
    out: list[dict[Key, _Side]] = []
    for run in (before, after):
        side: dict[Key, _Side] = {}
        for i in np.argsort(run.first_ns, kind="stable").tolist():
            key = own_key = run.keys[i]
            if key.mark not in marks:
                key = key._replace(mark="")
            if key.region == PYTHON and not frames:
                key = key._replace(what="")
            own = _Side(run.time_ns[i], {own_key}, float(run.count[i]), [key.what], run.parts[i])
            side[key] = _sum([side[key], own]) if key in side else own
        out.append(side)
    return out[0], out[1]


def _paired(
    before: dict[Key, _Side], after: dict[Key, _Side], account_before: Account, account_after: Account
) -> dict[Key, _Pair]:
    """Return both sides of every cause; what stands where something else stood replaced it."""
    pairs: dict[Key, _Pair] = {key: (before[key], after[key]) for key in before if key in after}
    places: dict[tuple[Key, str], tuple[list[Key], list[Key]]] = defaultdict(lambda: ([], []))
    for i, (side, others) in enumerate(((before, after), (after, before))):
        last: dict[Key, str] = {}
        for key in side:  # in order of first appearance
            group = key._replace(what="")
            if key in others:
                last[group] = key.what
            else:
                places[group, last.get(group, "")][i].append(key)
    for (group, _), (gone, come) in places.items():
        if group.region not in (PYTHON, REST) and _comparable(
            [before[key] for key in gone], [after[key] for key in come], account_before, account_after
        ):
            names = sorted({key.what for key in (*gone, *come)})
            key = group._replace(what="\0".join(names))
            pairs[key] = (
                _sum(sorted((before[key] for key in gone), key=_size)),
                _sum(sorted((after[key] for key in come), key=_size)),
            )
            continue
        for key in gone:
            pairs[key] = (before[key], _nothing(account_after))
        for key in come:
            pairs[key] = (_nothing(account_before), after[key])
    return dict(sorted(pairs.items()))


def _comparable(gone: list[_Side], come: list[_Side], before: Account, after: Account) -> bool:
    """Return whether some causes may have replaced others: both take time of one magnitude."""
    least, most = sorted(
        sum(int(side.time_ns.sum()) for side in sides) / run.n_steps for sides, run in ((gone, before), (come, after))
    )
    return least * UNLIKELY > most


def _shortened(pairs: dict[Key, _Pair], before: Account, after: Account) -> dict[Key, _Pair]:
    """Return the largest causes, the others summed by class: a trace may hold any many names."""
    if len(pairs) <= MAX_CAUSES:
        return pairs
    size = {
        key: max(item.time_ns.sum() / before.n_steps, other.time_ns.sum() / after.n_steps)
        for key, (item, other) in pairs.items()
    }
    kept = set(sorted(pairs, key=lambda key: (-size[key], key))[:MAX_CAUSES])
    out = {key: pair for key, pair in pairs.items() if key in kept}
    small: dict[Key, list[_Pair]] = defaultdict(list)
    for key, pair in pairs.items():
        if key not in kept:
            small[Key(key.time_class, REST, "", "small causes")].append(pair)
    for key, some in small.items():
        first, second = (_sum([pair[i] for pair in some]) for i in (0, 1))
        out[key] = (replace(first, names=[key.what]), replace(second, names=[key.what]))
    return dict(sorted(out.items()))


def _size(side: _Side) -> tuple[int, list[str]]:
    return -int(side.time_ns.sum()), side.names


def _sum(sides: Iterable[_Side]) -> _Side:
    sides = list(sides)
    parts: dict[str, tuple[float, float]] = {}
    for side in sides:
        for name, (ns, count) in side.parts.items():
            old = parts.get(name, (0, 0))
            parts[name] = old[0] + ns, old[1] + count
    time_ns: Ints = np.sum([side.time_ns for side in sides], axis=0)
    names = [name for side in sides for name in side.names]
    keys = {key for side in sides for key in side.keys}
    return _Side(time_ns, keys, sum(side.count for side in sides), list(dict.fromkeys(names)), parts)


def _nothing(run: Account) -> _Side:
    return _Side(np.zeros(run.n_steps, np.int64), set())


# -- amounts -----------------------------------------------------------------------------------


def _shares(sums_ns: Ints, run: Account) -> Ints:
    """Return each cause's ns per step as whole numbers that add up to the mean step.

    By largest remainder; ties go to the first in key order, whichever run is compared with which.
    """
    whole, left = np.divmod(sums_ns, run.n_steps)
    short = run.mean_ns - int(whole.sum())
    whole[np.argsort(-left, kind="stable")[:short]] += 1
    return whole


def _interval(pairs: list[tuple[Ints, Ints]], level: float) -> Interval:
    columns = [np.stack([pair[i] for pair in pairs], axis=1).astype(float) for i in (0, 1)]
    return difference_of_means(columns[0], columns[1], level=level)


def _change(before_ns: int, after_ns: int, interval: Interval, i: int, bar_ns: float) -> TimeChange:
    delta = after_ns - before_ns
    low, high = float(interval.low[i]), float(interval.high[i])
    known = not np.isnan(low)
    beyond = not known or low > 0 or high < 0
    return TimeChange(
        before_ns,
        after_ns,
        delta,
        round(low) if known else None,
        round(high) if known else None,
        told=beyond and abs(delta) > bar_ns,
        bar_ns=round(bar_ns),
    )


def _classes(
    order: list[Key], matrices: list[tuple[Ints, Ints]], means: list[Ints], bars: NDArray[np.float64], least: float
) -> dict[str, TimeChange]:
    names = list(dict.fromkeys(key.time_class for key in order))
    members = [[i for i, key in enumerate(order) if key.time_class == name] for name in names]
    sums = [np.array([mean[some].sum() for some in members]) for mean in means]
    both = [
        (np.sum([matrices[i][0] for i in some], axis=0), np.sum([matrices[i][1] for i in some], axis=0))
        for some in members
    ]
    interval = _interval(both, CAUSE_LEVEL)
    changes = [
        _change(int(item), int(other), interval, i, max(float(bars[some].sum()), least))
        for i, (item, other, some) in enumerate(zip(*sums, members, strict=True))
    ]
    return {name: change for name, change in zip(names, changes, strict=True) if change.before_ns or change.after_ns}


# -- causes ------------------------------------------------------------------------------------


def _cause(key: Key, pair: _Pair, change: TimeChange, before: Account, after: Account) -> ChangeCause:
    first, second = pair
    kind: Literal["changed", "replaced", "went", "came"] = "changed"
    if "\0" in key.what:
        kind = "replaced"
    elif not first.names:
        kind = "came"
    elif not second.names:
        kind = "went"
    names = set(first.parts) | set(second.parts)
    parts = [
        ChangePart(
            name,
            round(first.parts.get(name, (0, 0))[0] / before.n_steps),
            round(second.parts.get(name, (0, 0))[0] / after.n_steps),
            round(first.parts.get(name, (0, 0))[1] / before.n_steps, 3),
            round(second.parts.get(name, (0, 0))[1] / after.n_steps, 3),
        )
        for name in names
        if name
    ]
    parts.sort(key=lambda part: (-abs(part.after_ns - part.before_ns), part.name))
    return ChangeCause(
        kind=kind,
        time_class=key.time_class,
        region=key.region,
        mark=key.mark,
        what=tuple(filter(None, first.names or second.names)),
        what_after=tuple(filter(None, second.names or first.names)),
        change=change,
        n_before=round(first.count / before.n_steps, 3),
        n_after=round(second.count / after.n_steps, 3),
        parts=tuple(parts[:MAX_PARTS]),
        of_host=key.time_class in _HOST,
        label="",
        sentence="",
    )


def _certain(cause: ChangeCause, pair: _Pair, least: float) -> ChangeCause:
    """Return the cause as told when it is one whatever the noise.

    Work that one run does in every step and the other never has changed for certain, however much
    its time varies; a median, so that one step in which it took long does not make it large.
    """
    side = pair[0] if cause.kind == "went" else pair[1]
    if cause.kind not in ("went", "came") or not side.count or np.median(side.time_ns) <= least:
        return cause
    return replace(cause, change=replace(cause.change, told=True))


def _name(cause: ChangeCause) -> tuple[str, ...]:
    names = sorted({*cause.what, *cause.what_after})
    return (cause.time_class, cause.region, cause.mark, *names)

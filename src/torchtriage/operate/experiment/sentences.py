"""The results of an experiment as sentences with their numbers."""

from __future__ import annotations

from collections.abc import Sequence

from torchtriage.core.finding import Note
from torchtriage.core.units import format_count, format_share
from torchtriage.operate.experiment.result import Arm, Decision, ExperimentRow

LEAST_REPLICAS = 3
N_MANY = 7_500  # requests, half as many units of which are many in any case


def change(ratio: float) -> str:
    """Return a ratio as a change with its sign: ``+4.8 %``."""
    text = format_share(ratio - 1)
    return f"+{text}" if ratio > 1 else text


def sentence(row: ExperimentRow) -> str:
    """Return what is known of one metric."""
    if row.verdict == "no data":
        missing = [arm for arm, n in zip(("control", "candidate"), row.n, strict=True) if not n]
        return f"no usable value of {' and '.join(missing)} yet"
    if row.kind == "typical" and row.ratio is not None:
        if row.low is None or row.high is None:
            return f"{change(row.ratio)}, too few values for an interval"
        return f"{change(row.ratio)} ({change(row.low)} to {change(row.high)})"
    if row.kind == "typical" or row.low is None:
        return "too few values yet to compare"
    control, candidate = row.n_events or (0, 0)
    text = (
        f"{format_count(control)} of {format_count(row.n[0])} and {format_count(candidate)} of"
        f" {format_count(row.n[1], 'request')}"
    )
    if row.kind == "tail":
        text += f" are beyond the quantile (candidate: {row.worse_than:g} times it)"
    if not control + candidate:
        return text
    high = f"to {row.high:.3g}" if row.high is not None else "or more"
    return f"{text}: {row.low:.3g} {high} times as often"


def broken(candidate: str, planned: float, units: tuple[int, int]) -> str:
    """Return what the units that arrived of both arms say of a wrong split."""
    return f"Broken: {candidate} receives {units[1] / max(sum(units), 1):.2%} instead of {planned:.2%}"


def verdict(
    decision: Decision, control: Arm, candidate: Arm, rows: Sequence[ExperimentRow], split: tuple[int, int]
) -> tuple[str, ...]:
    """Return the first line that decides, and the ones that say why."""
    n = control.n_requests + candidate.n_requests
    seen = f"{format_count(n, 'request')}, {format_count(candidate.n_requests)} of {candidate.name}"
    if decision == "broken":
        return (
            broken(candidate.name, candidate.share, split),
            "Something loses or adds requests of one arm, so the arms are no longer alike, or returning users were"
            " counted each time (record(arm, id=...) counts each once): find the cause and start again.",
            seen,
        )
    metric = rows[0]
    if decision == "worse":
        bad = [row for row in rows if row.verdict == "worse"]
        return (
            f"Stop: {candidate.name} is worse in {', '.join(row.name for row in bad)}",
            *(f"{row.name}: {row.sentence}" for row in bad),
            seen,
        )
    if decision == "better":
        return (f"Stop: {candidate.name} is better in {metric.name}", f"{metric.name}: {metric.sentence}", seen)
    return ("Undecided: continue", f"{metric.name}: {metric.sentence}", seen)


def notes(
    control: Arm, candidate: Arm, rows: Sequence[ExperimentRow], unit: str, units: tuple[int, int]
) -> tuple[Note, ...]:
    """Return what limits the numbers."""
    limits = []
    arms = (control, candidate)
    named = [arm.n_replicas for arm in arms if arm.n_replicas is not None]
    if any(arm.n_replicas is None and arm.n_requests for arm in arms):
        message = "replicas are not named: the version cannot be told from the machine it runs on"
        fix = "record(arm, replica=...) with the pod or process that answered"
        limits.append(Note("replicas", "info", message, fix))
    elif len(named) == len(arms) and min(named) < LEAST_REPLICAS:
        which = "one replica" if min(named) == 1 else "two replicas"
        message = f"{which} per arm: no test can tell the version from the pod or machine it runs on"
        fix = f"run {LEAST_REPLICAS} replicas of each arm or more, or swap the arms' machines halfway"
        limits.append(Note("replicas", "warn", message, fix))
    for row in rows:
        for arm, n, missing in zip(arms, row.n, row.n_missing, strict=True):
            share = missing / max(n + missing, 1)
            if share > 0.01:
                message = f"{row.name}: {format_share(share)} of {arm.name}'s requests have no usable value"
                left_out = "NaN" if row.kind == "rate" else "NaN, zero"
                fix = f"{left_out} and requests without a value are left out: does the version cause them?"
                limits.append(Note("missing", "warn", message, fix))
        if row.block > 40:
            block = format_count(row.block)
            message = f"{row.name}: neighbouring requests are correlated, {block} of them tell as much as a few"
            limits.append(Note("memory", "info", message))
    n_units, n_requests = sum(units), control.n_requests + candidate.n_requests
    if unit != "request" and 0 < 2 * n_units < min(n_requests, N_MANY):
        message = f"the requests of one {unit} are alike: with {format_count(n_units, unit)} intervals are too narrow"
        limits.append(Note("units", "warn", message, "assign each request by its own id where possible"))
    if unit != "request" and not n_units:
        message = f"the split is not checked: no {unit} was counted"
        limits.append(Note("split", "warn", message, f"record(arm, id=...) with the {unit}'s id"))
    return tuple(limits)

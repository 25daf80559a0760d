"""Two runs, judged: comparable or not, what changed, which findings went, and was it promised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from torchtriage.core.errors import UsageError
from torchtriage.core.finding import Note
from torchtriage.core.trace import Trace
from torchtriage.core.units import format_change_ns, format_count, format_ms, format_ns, format_range, format_share
from torchtriage.core.version import __version__
from torchtriage.diagnose.compare.attribute import ChangeAttribution, attribute
from torchtriage.diagnose.compare.findings import STATUS_WORDS, keep_promise, match, place_of
from torchtriage.diagnose.compare.result import (
    COMPARISON_SCHEMA,
    ComparedRun,
    Comparison,
    FindingChange,
    Promise,
    TimeChange,
    Unlike,
)
from torchtriage.diagnose.compare.sentences import promise_saved
from torchtriage.diagnose.compare.time_account import Account, Key, account
from torchtriage.diagnose.compare.workload import Workload, limits, unlike, workload
from torchtriage.diagnose.verdict.options import Options
from torchtriage.diagnose.verdict.result import Result
from torchtriage.diagnose.verdict.verdict import diagnose


@dataclass(frozen=True, eq=False)
class ChangeEvidence:
    """What a comparison needs of one run; small, so that the trace can be dropped.

    ``account`` : None when the recording cannot be judged. ``about`` : code and place of a finding to the keys of the
    account that hold its time.
    """

    result: Result
    workload: Workload
    account: Account | None
    about: dict[tuple[str, str], frozenset[Key]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ByRank:
    """What two jobs show rank by rank: why they are unlike, what limits the comparison, and each rank's change."""

    reasons: tuple[Unlike, ...]
    limits: tuple[Note, ...] = ()
    ranks: tuple[ChangeAttribution, ...] = ()


ALL_FINDINGS = Options(min_share=0.0)
"""Those too small to report may be what is left of one that was large."""
MIN_ABOUT = 0.05
"""Share of a finding's time that a key must hold to be what the finding is about."""


def gather(trace: Trace, *, promised: Result | None = None) -> ChangeEvidence:
    """Judge one run and say where its step goes; ``promised`` : an earlier report on it, as in :func:`compare`."""
    return evidence(trace, diagnose(trace, ALL_FINDINGS), promised=promised)


def evidence(trace: Trace, result: Result, *, promised: Result | None = None) -> ChangeEvidence:
    """Say where the step of a run goes that was judged with ``ALL_FINDINGS``."""
    work = workload(trace, result.notes)
    if result.refused:
        return ChangeEvidence(result, work, None)
    findings = (promised or result).findings
    run = account(trace, [np.array(finding.place.intervals_ns, np.int64).reshape(-1, 2) for finding in findings])
    about: dict[tuple[str, str], frozenset[Key]] = {}
    for finding, times in zip(findings, run.asked, strict=True):
        least = MIN_ABOUT * sum(times.values())
        where = finding.code, place_of(finding)
        about[where] = about.get(where, frozenset()) | {key for key, ns in times.items() if ns >= least}
    return ChangeEvidence(result, work, run, about)


def compare(
    before: ChangeEvidence,
    after: ChangeEvidence,
    *,
    promised: Result | None = None,
    across: bool = False,
    by_rank: ByRank | None = None,
) -> Comparison:
    """Compare two runs.

    ``promised`` : an earlier report on the run before, whose promises are checked instead of today's. ``across`` : the
    runs are of two kinds of device; the difference is split, and nothing is called fixed. ``by_rank`` : of two jobs,
    what was looked at already.

    Raises UsageError: ``promised`` is about another recording.
    """
    if promised is not None and promised.trace.n_events != before.result.trace.n_events:
        raise UsageError(
            f"expected a report on {before.result.trace.path}"
            f" ({before.result.trace.n_events:,} events), found one on {promised.trace.path}"
            f" ({promised.trace.n_events:,} events)",
            hint="pass the report that torchtriage analyze wrote about the run before",
        )
    reasons = unlike(before.workload, after.workload, across=across) if by_rank is None else by_rank.reasons
    notes = limits(before.workload, after.workload) if by_rank is None else by_rank.limits
    found: tuple[FindingChange, ...] = ()
    attribution, promise = None, None
    if not reasons and before.account is not None and after.account is not None:
        ranks = by_rank.ranks if by_rank is not None else ()
        attribution = attribute(before.account, after.account, across=across, ranks=ranks)
        if by_rank is None:
            notes += tuple(drift_notes(attribution))
        found = match(promised or before.result, after.result)
        promise = (
            None
            if across
            else keep_promise(found, attribution.total, lambda went: _change_of(went, before, attribution))
        )
    runs = (_run(before), _run(after))
    return Comparison(
        schema=COMPARISON_SCHEMA,
        version=__version__,
        verdict=_refusal(reasons)
        if attribution is None
        else (
            _what_changed(attribution.total, runs[0].per),
            _split(attribution) if across else _causes(attribution),
            _trust(found, promise, notes, runs),
        ),
        comparable=attribution is not None,
        reasons=reasons,
        limits=() if attribution is None else notes,
        before=runs[0],
        after=runs[1],
        total=attribution.total if attribution else None,
        classes=attribution.classes if attribution else {},
        causes=attribution.causes if attribution else (),
        findings=found,
        promise=promise,
        split=attribution.split() if across and attribution else {},
    )


def _change_of(went: list[FindingChange], before: ChangeEvidence, attribution: ChangeAttribution) -> TimeChange | None:
    keys = [before.about.get((item.code, item.place), frozenset()) for item in went]
    # what one of them is about being unknown, the others' time is not all that was promised of
    return attribution.of(frozenset[Key]().union(*keys)) if all(keys) else None


MUCH_DRIFT = 1.10
"""Unchanged work that takes this much longer or shorter is worth a word."""


def drift_notes(attribution: ChangeAttribution) -> Iterator[Note]:
    """Yield a note for the host and one for the device, where its own work differs much between the runs."""
    for domain, factor in attribution.drift.items():
        if max(factor, 1 / factor) < MUCH_DRIFT:
            continue
        what = "operators" if domain == "host" else "kernels"
        yield Note(
            "machine-state",
            "warn",
            f"{what} that did the same work took {factor:.2f} times as long after: the machine"
            f" was in another state (clocks, neighbours, threads), so {domain} times count as"
            f" changed only beyond {attribution.slack[domain]:.2f} times",
            "record both runs one after the other on an otherwise idle machine",
            {"domain": domain, "drift": round(factor, 4), "slack": round(attribution.slack[domain], 4)},
        )


def _run(side: ChangeEvidence) -> ComparedRun:
    facts, run = side.result.trace, side.account
    return ComparedRun(
        path=facts.path,
        size_bytes=facts.size_bytes,
        n_events=facts.n_events,
        device=side.workload.device,
        per="step" if side.workload.per == "step" else "window",
        mean_ns=run.mean_ns if run else 0,
        n_steps=run.n_steps if run else 0,
        selection=facts.selection,
    )


# -- sentences ---------------------------------------------------------------------------------

N_NAMED = 3


def _refusal(reasons: tuple[Unlike, ...]) -> tuple[str, str, str]:
    first, *others = reasons
    more = "; ".join(other.message for other in others)
    return (
        f"Not comparable: {first.message}.",
        f"Also: {more}." if more else "This is the only reason.",
        f"{first.fix[:1].upper()}{first.fix[1:]}.",
    )


def _what_changed(total: TimeChange, per: str) -> str:
    where = "per step" if per == "step" else "in the window"
    sides = f"{format_ns(total.before_ns)} {where} before, {format_ns(total.after_ns)} after"
    noise = "run-to-run variation unknown"
    if total.low_ns is not None and total.high_ns is not None:
        ends = format_change_ns(total.low_ns), format_change_ns(total.high_ns)
        noise = f"95 % interval {ends[0]} to {ends[1]}"
    if not total.told:
        return f"No significant change: {sides} ({format_change_ns(total.delta_ns)}; {noise}{_unbelieved(total)})."
    word = "Faster" if total.delta_ns < 0 else "Slower"
    share = format_share(abs(total.delta_ns) / max(total.before_ns, 1))
    return f"{word} by {format_ns(abs(total.delta_ns))} ({share}): {sides} ({noise})."


def _unbelieved(total: TimeChange) -> str:
    """Return why a change beyond the noise between steps is none, empty where it is within."""
    if total.low_ns is None or total.high_ns is None or total.low_ns <= 0 <= total.high_ns:
        return ""
    if abs(total.delta_ns) > total.bar_ns:
        return " between steps, but in causes that are each within the noise"
    factor = 1 + total.bar_ns / max(min(total.before_ns, total.after_ns), 1)
    return f" between steps, but the same work may take {factor:.3g} times as long in one recording as in the other"


def _causes(attribution: ChangeAttribution) -> str:
    told = [cause for cause in attribution.causes if cause.change.told]
    if not told:
        return "No cause exceeds the noise."
    named = [f"{item.label} {format_change_ns(item.change.delta_ns)}" for item in told[:N_NAMED]]
    rest = attribution.total.delta_ns - sum(item.change.delta_ns for item in told[:N_NAMED])
    more = len(told) - len(named)
    other = f"{format_count(more, 'more cause')} and the rest" if more else "the rest"
    head = "Why" if attribution.total.told else "Beyond the noise"
    return f"{head}: {', '.join(named)}; {other} {format_change_ns(rest)}."


SPLIT_WORDS = {
    "host": "waiting for the host",
    "kernels": "work of the same operators",
    "alone": "work of operators found in one run only",
    "idle": "other idle time",
}


def _split(attribution: ChangeAttribution) -> str:
    parts = [f"{SPLIT_WORDS[name]} {format_change_ns(change.delta_ns)}" for name, change in attribution.split().items()]
    most = [cause for cause in attribution.causes if cause.change.told][:N_NAMED]
    named = ", ".join(f"{cause.label} {format_change_ns(cause.change.delta_ns)}" for cause in most)
    return f"Split: {', '.join(parts)}; most in {named}." if named else f"Split: {', '.join(parts)}."


def _trust(
    found: tuple[FindingChange, ...],
    promise: Promise | None,
    notes: tuple[Note, ...],
    runs: tuple[ComparedRun, ComparedRun],
) -> str:
    parts = []
    if promise is not None:
        span = format_range(format_ms(promise.low_ms), format_ms(promise.high_ms), from_zero=promise.low_ms <= 0)
        parts.append(f"{', '.join(promise.codes)} fixed: {span} promised, {promise_saved(promise)}")
    else:
        counts: Counter[str] = Counter(finding.status for finding in found)
        listed = [f"{counts[status]} {word}" for status, word in STATUS_WORDS.items() if counts[status]]
        if listed:
            parts.append(f"findings: {', '.join(listed)}")
    if runs[0].per == "step":
        parts.append(f"{format_count(runs[0].n_steps, 'steady step')} before, {runs[1].n_steps:,} after")
    serious = [note.message for note in notes if note.level == "warn"]
    if serious:
        parts.append(f"limited trust: {serious[0]}")
    text = "; ".join(parts) or "one window each"
    return f"{text[:1].upper()}{text[1:]}."

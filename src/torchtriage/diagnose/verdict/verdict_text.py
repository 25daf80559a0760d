"""The verdict in three sentences: where the time goes, what costs most, how far to trust it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchtriage.core import intervals
from torchtriage.core.finding import Finding, NotChecked, Note
from torchtriage.core.trace import Trace
from torchtriage.core.units import format_count, format_ms, format_ns, format_range, format_share
from torchtriage.diagnose.verdict.doctor import missing_rows
from torchtriage.diagnose.verdict.result import Result, Summary

LEAK = "MEM029"
GROWTH_CERTAINTY = "growth_certainty"
"""Key of a finding's evidence: how certain the growth of memory is that it took in."""
_COMMANDS = ("rocprofv3 ", "nsys ")


def sentences(trace: Trace, result: Result, min_share: float) -> tuple[str, str, str]:
    """Return three sentences: where the time goes, what costs most, how far to trust it."""
    refusals = [note for note in result.notes if note.level == "refuse"]
    if refusals:
        first = refusals[0]
        return (
            f"No verdict: {first.message}.",
            f"{first.fix if first.fix.startswith(_COMMANDS) else first.fix[:1].upper() + first.fix[1:]}.",
            f"{trace.report.n_events} events were read.",
        )
    missing = missing_rows(result.notes)
    limits = ["device time is not judged"] if missing else []
    limits += [note.message for note in result.notes if note.level == "warn" and note is not missing]
    n_missing, n_failed = len(result.not_checked), len(result.crashes)
    # the doctor knows nothing of those that were left out
    see = " (see torchtriage doctor)" * any(not entry.left_out for entry in result.not_checked)
    trust = (
        f"{format_count(len(result.checked), 'pattern')} checked"
        + (f", {n_missing} not checked{see}" if n_missing else "")
        + (f", {n_failed} failed" if n_failed else "")
    )
    if limits:
        trust = f"Limited trust: {'; '.join(limits[:2])}"
    where, saving = _where_time_goes(trace, result.summary, missing), _largest_saving(trace, result, min_share)
    return where, growth_first(result.findings, saving), f"{trust}."


def surely_grows(finding: Finding) -> bool:
    """Whether a finding is of memory that surely grows from step to step, alone or with its cause."""
    certainty = finding.evidence.get(GROWTH_CERTAINTY, finding.certainty)
    return LEAK in (finding.code, *finding.also_explains) and certainty == "certain"


def sure_growth(findings: Sequence[Finding]) -> Finding | None:
    """Return the finding of memory that surely grows; None where there is none, or what is grave goes first."""
    if findings and findings[0].grave:
        return None
    return next(filter(surely_grows, findings), None)


def growth_first(findings: Sequence[Finding], saving: str) -> str:
    """Return a verdict's second sentence, begun with memory that surely grows.

    A saving by it is not all that it costs: memory runs out.
    """
    growth = sure_growth(findings)
    if growth is None:
        return saving
    rest = f" {saving}" if saving.startswith("Largest saving") and growth is not findings[0] else ""
    return f"Memory grows from step to step ({growth.code}): {growth.message}.{rest}"


_BUSY = ("compute_ns", "comm_only_ns", "copy_only_ns")
_OTHER_THAN_COMPUTE = {
    "comm_only_ns": "exposed communication",
    "copy_only_ns": "exposed copies",
    "idle_host_late_ns": "idle waiting for launches",
    "idle_queued_ns": "idle with work queued",
    "idle_unknown_ns": "idle for unknown reasons",
}
WORTH_SAYING = 0.02


def _where_time_goes(trace: Trace, summary: Summary | None, missing: Note | None) -> str:
    steps = trace.steps
    over = (
        f"{format_count(int(steps.steady.sum()), 'steady step')} of {format_ns(steps.wall_ns)}"
        if len(steps)
        else f"one window of {format_ns(trace.window.wall_ns)}"
    )
    if trace.selection is not None:
        over = f"{over.replace('steady', 'selected') if trace.is_part else over}, {trace.selection.label}"
    kind = trace.origin.device_word
    if not trace.devices:
        return f"{'CPU only' if trace.is_host_only else f'No {kind} rows'}, {over}."
    device = trace.devices[0]
    if missing:
        return f"Utilisation of {device.name or f'the {kind}'} is unknown in {over}: {missing.message}."
    classes = summary.devices[0].classes if summary is not None else None
    assert classes is not None

    def share(field: str) -> float:
        return float(getattr(classes, field) / max(classes.wall_ns, 1))

    parts = [
        f"{format_share(share(field))} {label}"
        for field, label in _OTHER_THAN_COMPUTE.items()
        if share(field) >= WORTH_SAYING
    ]
    busy = format_share(sum(map(share, _BUSY)))
    tail = f" ({', '.join(parts)})" if parts else ""
    return f"{device.name or kind} is busy {busy} of {over}{tail}."


def _largest_saving(trace: Trace, result: Result, min_share: float) -> str:
    findings, joint = result.findings, result.joint_cost
    timed = [(finding, finding.cost) for finding in findings if finding.cost and finding.saves]
    whole = "a step" if len(trace.steps) else "the window"
    share = unexplained_idle(trace, result.summary, findings) if result.summary else 0.0
    much = format_share(share) if share >= MUCH_IDLE else ""
    idle = f", yet the device stands idle for {much} of it" if much else ""
    by = by_some(result.checked, result.not_checked)
    nothing = f"Nothing found{by} that saves {format_share(min_share)} of {whole} or more"
    if findings and findings[0].grave:
        return f"{findings[0].title} ({findings[0].code}): {findings[0].message}."
    if timed and joint is not None:
        first, cost = timed[0]
        amount = format_range(format_ms(cost.low_ms), format_ms(cost.high_ms), from_zero=cost.low_ms <= 0)
        where = f"per {cost.per}" if len(trace.steps) else "in the window"
        saving = f"{first.title} ({first.code}), {amount} of {format_ms(cost.of_ms)} {where}"
        if joint.share_high < min_share:
            return f"{nothing}{idle}; the largest saving: {saving}."
        more = f"; with {format_count(len(timed[1:]), 'more finding')} up to {format_ms(joint.high_ms)}"
        return f"Largest saving: {saving}{more if len(timed) > 1 else ''}."
    if not result.checked:
        return "Nothing was checked."
    if findings and much:
        return f"No finding explains why the device stands idle for {much} of {whole}."
    if findings:
        notes = format_count(len(findings), "note")
        return f"No lost time found{by}; {notes}: {findings[0].title} ({findings[0].code})."
    return f"{nothing}{idle}."


def by_some(checked: Sequence[str], not_checked: Sequence[NotChecked]) -> str:
    """Return `` by 1 of 72 patterns`` where some were left out on request, else nothing."""
    if not any(entry.left_out for entry in not_checked):
        return ""
    return f" by {len(checked):,} of {format_count(len(checked) + len(not_checked), 'pattern')}"


MUCH_IDLE = 0.10
"""Idle time of this share of the judged time is a problem even when no pattern names it."""


def unexplained_idle(trace: Trace, summary: Summary, findings: Iterable[Finding]) -> float:
    """Return the share of the judged time that the main device is idle and no finding owns, a pace's waits aside.

    0 where it is not known.
    """
    judged, pace = trace.steps.judged, trace.steps.pace
    rest = (summary.judged_idle_ns or 0) - sum(finding.idle_ns for finding in findings)
    if pace is not None and trace.devices:  # no work is missing there
        rest -= intervals.length(intervals.intersect(intervals.intersect(trace.devices[0].idle, pace.waits), judged))
    return max(rest, 0) / max(intervals.length(judged), 1)

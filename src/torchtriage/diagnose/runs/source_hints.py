"""What ``lint`` sees in the files that a run went through, beside what the run showed: told once, at its line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torchtriage.core.errors import TriageError
from torchtriage.core.finding import Finding, Frame, Severity
from torchtriage.core.names import file_name
from torchtriage.core.source import Sources
from torchtriage.diagnose.lint import check
from torchtriage.diagnose.lint.base import catalogue
from torchtriage.diagnose.runs.account import SampledLoop
from torchtriage.diagnose.runs.costs import WORTH, share_cost
from torchtriage.diagnose.runs.samples import Samples
from torchtriage.diagnose.runs.source_view import SourceView

__all__ = ["UNNAMED", "with_source"]

NEAR = 3
"""Lines apart that are one place: a statement, or a call and what it is given."""
MAX_FILES = 20
TIMED = ("host", "launch", "copy", "data", "optim")
"""Families whose findings are time at their own line."""
MUCH, SURELY = 0.2, 0.2
"""Of a step at a line that the source alone points at: what is much, and what of it is surely saved."""
UNNAMED = ("HST020", "HST114")
"""Codes that say where the time is, and not why."""
LOADED = ("DAT018", "DAT019", "MEM029")
"""What is seen where batches are fetched or memory grows, and mended where the source says: one place each."""


def with_source(
    findings: Sequence[Finding],
    samples: Samples,
    folders: Sequence[str],
    *,
    on_device: bool,
    timed: Sequence[tuple[SampledLoop, float]],
    view: SourceView,
) -> tuple[Finding, ...]:
    """Return the findings with the source's own: one that both see is certain, and has the line of the source.

    Only files that the looks at the stack went through are read; what did not run is not told. ``on_device`` : the
    run used an accelerator; else nothing is said about the way to one. ``timed`` : loops with the ms of a step, whose
    looks tell how much is spent at a line of the source.
    """
    out = list(findings)
    needless = frozenset() if on_device else _of_devices()
    ran = {
        (position.file, line_function)
        for look in samples.looks
        for position in look.stack
        if not position.library
        for line_function in (position.name,)
    }
    files = sorted({file for file, _ in ran})[:MAX_FILES]
    for hint in _hints(files, folders):
        frame = hint.place.frame
        if frame is None or hint.code in needless:
            continue
        same = [finding for finding in out if finding.code == hint.code]
        at = next((finding for finding in same if _one_place(finding, hint)), None)
        if at is None and same and hint.code in LOADED and same[0].place.frame is None:
            at = same[0]
        called = next((finding for finding in same if at is None and _calls(hint, finding)), None)
        if called is not None:
            # the source says where it is mended: at the call, not in the function that is called
            place = replace(called.place, frame=frame, stack=(frame, *called.place.stack))
            out[out.index(called)] = replace(called, place=place, certainty="certain")
        elif at is not None:
            place = at.place if at.place.frame and at.place.frame.exact else replace(at.place, frame=frame)
            certainty = "certain" if at.certainty != "certain" else at.certainty
            out[out.index(at)] = replace(at, place=place, certainty=certainty)
        elif not same or hint.severity != "note":
            near = any(_at(other, frame) for other in out)
            if not near:
                hint = replace(hint, severity="low" if hint.severity != "note" else "note")
                out.append(_costed(hint, timed, view))
    return tuple(_told_once(out, view))


def _costed(hint: Finding, timed: Sequence[tuple[SampledLoop, float]], view: SourceView) -> Finding:
    """Return what the source alone says with the share of the step that is spent in its statement, where it is time."""
    frame = hint.place.frame
    if frame is None or hint.family not in TIMED:
        return hint
    statement = view.statement(frame.file, frame.line)
    last = (statement.end_lineno if statement is not None else None) or frame.line
    shares = ((loop.share_between(frame.file, frame.line, last), loop, step_ms) for loop, step_ms in timed)
    share, loop, step_ms = next((timing for timing in shares if timing[0] >= WORTH), (0.0, None, 0.0))
    if loop is None:
        return hint
    low = SURELY * share if share >= MUCH else 0.0
    cost = share_cost(low, share, step_ms, share, "share of looks at the stack in this statement", loop, "C")
    severity: Severity = "medium" if low >= WORTH else "low"
    return replace(hint, cost=cost, severity=severity, certainty="likely")


def _told_once(findings: Sequence[Finding], view: SourceView) -> Iterator[Finding]:
    """Yield the findings without those that say only "Python" or "this line" of a loop that another one explains."""
    named: dict[tuple[str, int], float] = {}
    for finding in findings:
        if finding.code not in UNNAMED and finding.cost is not None and finding.cost.high_ms > 0:
            for loop in _loops(finding, view):
                named[loop] = max(named.get(loop, 0.0), finding.cost.low_ms)
    for finding in findings:
        low_ms = finding.cost.low_ms if finding.cost is not None else 0.0
        if finding.code in UNNAMED and any(2 * named.get(loop, -1.0) >= low_ms for loop in _loops(finding, view)):
            continue
        yield finding


def _loops(finding: Finding, view: SourceView) -> set[tuple[str, int]]:
    """Return the innermost loop around a finding's line, by file and line."""
    frame = finding.place.frame
    if frame is None or not frame.file.endswith(".py"):
        return set()
    return {(file_name(frame.file), loop.lineno) for loop in view.loops(frame.file, 0, frame.line)[-1:]}


def _of_devices() -> frozenset[str]:
    return frozenset(
        entry.rule.code for entry in catalogue() if entry.rule.device or entry.rule.family in ("sync", "comm")
    )


def _hints(files: Sequence[str], folders: Sequence[str]) -> list[Finding]:
    sources = Sources(folders)
    found: list[Finding] = []
    for file in files:
        source = next((item for item in sources.find(file) if item.tree is not None), None)
        if source is None:
            continue
        try:
            found += check.lint_text(source.text, file).findings
        except TriageError:
            continue
    return found


def _at(finding: Finding, frame: Frame) -> bool:
    mine = finding.place.frame
    return mine is not None and (file_name(mine.file), mine.line) == (file_name(frame.file), frame.line)


def _calls(hint: Finding, finding: Finding) -> bool:
    """Whether the line of the source stands on the way to a finding of the run."""
    frame = hint.place.frame
    return frame is not None and any(
        (file_name(caller.file), caller.line) == (file_name(frame.file), frame.line) for caller in finding.place.stack
    )


def _one_place(finding: Finding, hint: Finding) -> bool:
    mine, theirs = finding.place.frame, hint.place.frame
    if mine is None or theirs is None or file_name(mine.file) != file_name(theirs.file):
        return False
    return abs(mine.line - theirs.line) <= NEAR or (mine.function == theirs.function and bool(mine.function))

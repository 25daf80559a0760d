"""Lint and a trace together: what both see is certain, and has a cost.

A candidate of lint agrees with a finding of the trace when their codes and files are the same and
either the trace knows the exact line, or lines, of the call, or their functions are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from torchtriage.core.finding import Finding, Frame
from torchtriage.diagnose.lint.base import catalogue
from torchtriage.diagnose.lint.result import LintResult
from torchtriage.diagnose.verdict.result import Result

AGREES = "the trace shows it here"
UNPLACED = "the trace shows it, without a place: record with with_stack=True"
FREE = "not exercised or free here"
ELSEWHERE = "the trace shows it elsewhere; not exercised or free here"
UNCHECKED = "not checked in this trace"
UNSEEN = "no trace shows this"


def join(result: LintResult, trace: Result) -> LintResult:
    """Return lint's result with what a trace says about each finding.

    Where both agree the finding is ``certain`` and has the trace's cost. Several candidates that
    agree with one finding of the trace share its cost; ``evidence["cost_shared_by"]`` counts them.
    A result can be joined with one process after the other: what one of them showed stays.
    """
    partner = [_partner(finding, trace) for finding in result.findings]
    shared = Counter(index for index in partner if index is not None)
    findings = tuple(
        _joined(finding, trace, index, shared) for finding, index in zip(result.findings, partner, strict=True)
    )
    codes = {entry.rule.code for entry in catalogue()}
    rest = tuple(
        finding
        for index, finding in enumerate(trace.findings)
        if index not in shared
        and finding.code in codes
        and not any(item.code == finding.code and _unplaced(finding) for item in result.findings)
    )
    path = f"{result.trace}, {trace.trace.path}" if result.trace else trace.trace.path
    return replace(result, findings=findings, trace=path, trace_only=(*result.trace_only, *rest))


def _partner(linted: Finding, trace: Result) -> int | None:
    """Return the index of the trace's finding that a candidate agrees with."""
    frame = linted.place.frame
    assert frame is not None
    for index, finding in enumerate(trace.findings):
        if finding.code == linted.code and any(_agree(frame, other) for other in _frames(finding)):
            return index
    return None


def _joined(linted: Finding, trace: Result, index: int | None, shared: Counter[int]) -> Finding:
    evidence: dict[str, Any] = dict(linted.evidence)
    if index is not None and linted.certainty == "certain":
        return linted  # another process showed it first; ranks do alike
    if index is not None:
        evidence["trace"] = AGREES
        if shared[index] > 1:
            evidence["cost_shared_by"] = shared[index]
        found = trace.findings[index]
        return replace(
            linted,
            certainty="certain",
            severity=found.severity,
            cost=found.cost,
            evidence=evidence,
            n_events=found.n_events,
        )
    if linted.certainty in ("certain", "likely"):
        return linted
    same = [finding for finding in trace.findings if finding.code == linted.code]
    if any(_unplaced(finding) for finding in same):
        evidence["trace"] = UNPLACED
        return replace(linted, certainty="likely", evidence=evidence)
    if same:
        evidence["trace"] = ELSEWHERE
    elif linted.code[3:] > "099":
        evidence["trace"] = UNSEEN
    elif linted.code in trace.checked:
        evidence["trace"] = FREE
    else:
        evidence["trace"] = UNCHECKED
    return replace(linted, evidence=evidence)


def _frames(finding: Finding) -> Iterator[Frame]:
    if finding.place.frame is not None:
        yield finding.place.frame
    yield from finding.place.stack


def _unplaced(finding: Finding) -> bool:
    return finding.place.frame is None and not finding.place.stack


def _agree(ours: Frame, theirs: Frame) -> bool:
    if not _same_file(ours.file, theirs.file):
        return False
    if theirs.exact:
        return ours.line == theirs.line
    if ours.line in theirs.lines:
        return True
    return ours.function.rpartition(".")[2] == theirs.function.rpartition(".")[2]


def _same_file(first: str, second: str) -> bool:
    """Return whether one path ends with the other: profilers shorten them."""
    parts = PurePath(first.replace("\\", "/")).parts, PurePath(second.replace("\\", "/")).parts
    length = min(len(parts[0]), len(parts[1]))
    return length > 0 and parts[0][-length:] == parts[1][-length:]

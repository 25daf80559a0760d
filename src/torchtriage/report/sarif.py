"""SARIF 2.1.0, for code scanning: one rule per code, one result per finding.

A finding with a frame points at its source line; one without points at the trace file, its ops and
module are logical locations. The cost is in ``properties``. Fingerprints name the code and the
place, never a time, so the same problem keeps its identity from run to run.

Source: OASIS SARIF 2.1.0, sections 3.27 (result), 3.28 (location), 3.49 (reportingDescriptor).
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from torchtriage.core.finding import Finding, Severity
from torchtriage.core.names import visible
from torchtriage.diagnose.ranks.result import JobResult
from torchtriage.diagnose.verdict.result import Result
from torchtriage.report import words
from torchtriage.report.json_report import plain

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
FINGERPRINT = "torchtriage/v1"

_LEVEL: dict[Severity, str] = {"high": "error", "medium": "warning", "low": "note", "note": "note"}
_NOTE_LEVEL = {"refuse": "error", "warn": "warning", "info": "note"}


def encode(results: Sequence[Result], jobs: Sequence[JobResult] = ()) -> bytes:
    """Return one SARIF run over all traces as UTF-8; equal results give equal bytes.

    The ranks of a job speak through its findings, each named once.
    """
    findings = [(_shown(results, job, finding), finding) for job in jobs for finding in job.findings]
    findings += [(result, finding) for result in words.outside(results, jobs) for finding in result.findings]
    return log(
        results[0].version if results else "",
        [(result.trace.path, finding) for result, finding in findings],
        [
            *(
                notification(note.code, _NOTE_LEVEL[note.level], f"{len(job.ranks)} ranks: {note.message} {note.fix}")
                for job in jobs
                for note in job.notes
            ),
            *(row for result in results for row in _notifications(result)),
        ],
        successful=not any(result.refused for result in results),
    )


def log(
    version: str, findings: Sequence[tuple[str, Finding]], notifications: Sequence[dict[str, Any]], *, successful: bool
) -> bytes:
    """Return one SARIF run as UTF-8.

    ``findings`` : each with the path of its trace, which is where it points without a frame; empty when there is
    none. ``notifications`` : what was not judged, and why; see :func:`notification`. ``successful`` : whether a
    verdict could be given.
    """
    codes = sorted({finding.code for _, finding in findings})
    seen: Counter[str] = Counter()
    run = {
        "tool": {
            "driver": {
                "name": "torchtriage",
                "version": version,
                "rules": [_rule(next(finding for _, finding in findings if finding.code == code)) for code in codes],
            }
        },
        "invocations": [{"executionSuccessful": successful, "toolExecutionNotifications": list(notifications)}],
        "columnKind": "unicodeCodePoints",
        "results": [_result(path, finding, codes.index(finding.code), seen) for path, finding in findings],
    }
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return msgspec.json.encode(plain(document)) + b"\n"


def notification(code: str, level: str, text: str) -> dict[str, Any]:
    """Return one thing to know about the run; ``level`` is ``error``, ``warning`` or ``note``."""
    return {"descriptor": {"id": code}, "level": level, "message": {"text": visible(text)}}


def _shown(results: Sequence[Result], job: JobResult, finding: Finding) -> Result:
    rank = finding.evidence.get("shown_rank", finding.evidence.get("late_rank"))
    path = next((item.path for item in job.ranks if item.rank == rank), job.ranks[0].path)
    return next((result for result in results if result.trace.path == path), results[0])


def _rule(finding: Finding) -> dict[str, Any]:
    rule: dict[str, Any] = {
        "id": finding.code,
        "name": finding.name,
        "shortDescription": {"text": visible(finding.title)},
        "help": {"text": visible(finding.fix.text)},
        "properties": {"tags": ["performance", finding.family]},
    }
    if finding.fix.link.startswith(("https://", "http://")):
        rule["helpUri"] = quote(finding.fix.link, safe=":/?#[]@!$&'()*+,;=%~")
    return rule


def _result(path: str, finding: Finding, rule_index: int, seen: Counter[str]) -> dict[str, Any]:
    identity = _identity(finding)
    # two findings of one code at one place stay two, in rank order
    occurrence, seen[identity] = seen[identity], seen[identity] + 1
    digest = hashlib.sha256(f"{identity}\0{occurrence}".encode("utf-8", "backslashreplace"))
    return {
        "ruleId": finding.code,
        "ruleIndex": rule_index,
        "level": _LEVEL[finding.severity],
        "message": {"text": _message(finding)},
        "locations": [_location(path, finding)],
        "partialFingerprints": {FINGERPRINT: digest.hexdigest()[:32]},
        "properties": {
            "severity": finding.severity,
            "certainty": finding.certainty,
            "cost": finding.cost,
            "evidence": plain(finding.evidence, strict=False),
            "steps": finding.place.steps,
            "exactLine": finding.place.frame.exact if finding.place.frame else False,
            "trace": visible(path),
        },
    }


def _message(finding: Finding) -> str:
    parts = [f"{finding.title}: {finding.message}."]
    if finding.cost:
        parts.append(f"Saves {words.saving(finding.cost)}.")
    parts.append(finding.fix.text)
    if finding.place.frame and not finding.place.frame.exact:
        parts.append("The line is the function's, not the call's.")
        if lines := finding.place.frame.lines:
            parts.append(f"The call is on line {' or '.join(str(line) for line in lines)}.")
    return visible(" ".join(parts))


def _location(trace: str, finding: Finding) -> dict[str, Any]:
    frame = finding.place.frame
    path = frame.file if frame else trace
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(path)}}
    if frame and frame.line > 0:
        physical["region"] = {"startLine": frame.line}
        if isinstance(column := finding.evidence.get("column"), int):
            physical["region"]["startColumn"] = column
    logical = [{"name": visible(op), "kind": "function"} for op in finding.place.ops]
    if finding.place.module:
        logical.append({"name": visible(finding.place.module), "kind": "module"})
    if frame and frame.function:
        logical.insert(0, {"name": visible(frame.function), "kind": "function"})
    location: dict[str, Any] = {"physicalLocation": physical}
    if logical:
        location["logicalLocations"] = logical
    return location


def _uri(path: str) -> str:
    slashed = path.replace("\\", "/")
    encoded = quote(slashed, safe="/", errors="replace")
    if re.match(r"[A-Za-z]:/", slashed):
        return f"file:///{slashed[0]}:{quote(slashed[2:], safe='/', errors='replace')}"
    return f"file://{encoded}" if slashed.startswith("/") else encoded


def _identity(finding: Finding) -> str:
    """Return what stays the same in the next run: code and place; lines and times move."""
    place = finding.place
    frame = (place.frame.file, place.frame.function) if place.frame else ("", "")
    return "\0".join((finding.code, *frame, place.module, *place.ops))


def _notifications(result: Result) -> list[dict[str, Any]]:
    """List notes, losses, unchecked and failed patterns: silence must not look clean."""
    rows = [(note.code, _NOTE_LEVEL[note.level], f"{note.message} {note.fix}".strip()) for note in result.notes]
    rows += [("read", "warning", line) for line in words.losses(result.trace)]
    for entry in result.not_checked:
        if not entry.left_out:
            text = f"{entry.name} was not checked, missing: {', '.join(entry.missing)}. {entry.how_to_record}"
            rows.append((entry.code, "note", text.strip()))
    left_out = [entry.code for entry in result.not_checked if entry.left_out]
    if left_out:
        rows.append(("left-out", "note", f"not checked, {words.LEFT_OUT}: {', '.join(left_out)}"))
    rows += [(crash.code, "error", f"the pattern failed: {crash.error}") for crash in result.crashes]
    path = visible(result.trace.path)
    return [notification(code, level, f"{path}: {text}") for code, level, text in rows]

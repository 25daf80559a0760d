"""Of findings about the same time, the one that says why before the one that says that it is so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchtriage.core.finding import Finding
from torchtriage.core.names import file_name
from torchtriage.core.units import format_ms

__all__ = ["symptoms_last"]

ANYWHERE, THERE = ("LCH014",), ("HST114",)
"""Codes that say that time is lost, and not what for: in the whole step, or at a line."""
WHY = ("CPY009", "CPY103", "LCH016", "LCH104", "LCH105")
LARGE, SOME = 0.33, 0.1
"""Of a symptom's time, what one cause must explain to go first, and what is worth a word."""


def symptoms_last(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return ranked findings, each symptom behind the causes of a large part of it, and with what they explain."""
    ranked = list(findings)
    for symptom in findings:
        causes = [(cause, part) for cause in findings if (part := _explains(cause, symptom)) >= SOME]
        if not causes or symptom.cost is None:
            continue
        at = ranked.index(symptom)
        large = [cause for cause, part in causes if part >= LARGE and cause in ranked[at + 1 :]]
        named = replace(symptom, message=f"{symptom.message}; {_causes(causes)}")
        ranked = [*ranked[:at], *large, named, *(finding for finding in ranked[at + 1 :] if finding not in large)]
    return tuple(ranked)


def _explains(cause: Finding, symptom: Finding) -> float:
    """Return what part of a symptom's time a cause takes by the looks at the stack, 0 where it does not cause it."""
    spent, lost = cause.cost, symptom.cost
    if cause.code not in WHY or symptom.code not in ANYWHERE + THERE or spent is None or lost is None:
        return 0.0
    if "look" not in spent.method or not spent.high_ms or not lost.high_ms:
        return 0.0
    if symptom.code in THERE and not _at(cause) & _on_the_way(symptom):
        return 0.0
    return min(spent.naive_ms / spent.of_ms / (lost.high_ms / lost.of_ms), 1.0)


def _at(finding: Finding) -> set[tuple[str, int]]:
    frame = finding.place.frame
    return {(file_name(frame.file), line) for line in (frame.line, *frame.lines)} if frame is not None else set()


def _on_the_way(finding: Finding) -> set[tuple[str, int]]:
    return _at(finding) | {(file_name(frame.file), frame.line) for frame in finding.place.stack}


def _causes(causes: Sequence[tuple[Finding, float]]) -> str:
    parts = []
    for cause, _ in causes:
        frame, cost = cause.place.frame, cause.cost
        where = f" at {file_name(frame.file)}:{frame.line}" if frame is not None else ""
        parts.append(f"{cause.code}{where} explains {format_ms(cost.naive_ms) if cost is not None else 'a part'}")
    return f"of this {' and '.join(parts)}"

"""Of findings about the same time, the one that says why before the one that says that it is so; of one cause, one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchtriage.core.finding import SEVERITIES, Finding
from torchtriage.core.names import file_name
from torchtriage.core.units import format_bytes, format_ms
from torchtriage.diagnose.verdict.verdict_text import GROWTH_CERTAINTY

ANYWHERE, THERE = ("LCH014",), ("HST114",)
"""Codes that say that time is lost, and not what for: in the whole step, or at a line."""
WHY = ("CPY009", "CPY103", "LCH016", "LCH104", "LCH105", "KRN105")
GRAPH, GROWTH = "CFG043", "MEM029"
MOST_LINES = 5
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
    """Return what part of a symptom's time a cause takes by the stack samples, 0 where it does not cause it."""
    spent, lost = cause.cost, symptom.cost
    if cause.code not in WHY or symptom.code not in ANYWHERE + THERE or spent is None or lost is None:
        return 0.0
    if "stack sample" not in spent.method or not spent.high_ms or not lost.high_ms:
        return 0.0
    on_the_way = {(file_name(frame.file), frame.line) for frame in symptom.place.stack}
    if symptom.code in THERE and not _at(cause) & (_at(symptom) | on_the_way):
        return 0.0
    return min(spent.naive_ms / spent.of_ms / (lost.high_ms / lost.of_ms), 1.0)


def _at(finding: Finding) -> set[tuple[str, int]]:
    frame = finding.place.frame
    return {(file_name(frame.file), line) for line in (frame.line, *frame.lines)} if frame is not None else set()


def _causes(causes: Sequence[tuple[Finding, float]]) -> str:
    parts = []
    for cause, _ in causes:
        frame, cost = cause.place.frame, cause.cost
        where = f" at {file_name(frame.file)}:{frame.line}" if frame is not None else ""
        parts.append(f"{cause.code}{where} explains {format_ms(cost.naive_ms) if cost is not None else 'a part'}")
    return f"of this {' and '.join(parts)}"


def one_of_each_cause(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return ranked findings with one for each cause, at all its places.

    That is one problem at several lines of a file, of which one at most has a cost; and a graph that nothing uses
    together with the memory that grows because it is kept.
    """
    out: list[Finding] = []
    for finding in findings:
        at = next((at for at, first in enumerate(out) if _same(first, finding)), None)
        if at is None:
            out.append(finding)
        else:
            out[at] = _with_places(out[at], finding)
    graph = next((finding for finding in out if finding.code == GRAPH), None)
    growth = next((finding for finding in out if finding.code == GROWTH), None)
    if graph is None or growth is None or growth.place.frame is None:
        return tuple(out)
    taken = _with_growth(graph, growth)
    return tuple(taken if finding is graph else finding for finding in out if finding is not growth)


def _same(first: Finding, later: Finding) -> bool:
    mine, other = first.place.frame, later.place.frame
    if mine is None or other is None or first.code != later.code or later.saves or not (mine.exact and other.line):
        return False
    # what grows is mended at each line that keeps something, whoever saw that it grows
    return file_name(mine.file) == file_name(other.file) and (first.fix == later.fix or first.code == GROWTH)


def _with_places(first: Finding, later: Finding) -> Finding:
    frame, other = first.place.frame, later.place.frame
    assert frame is not None
    assert other is not None
    lines = sorted({frame.line, *frame.lines, other.line, *other.lines} - {frame.line})[: MOST_LINES - 1]
    return replace(first, place=replace(first.place, frame=replace(frame, lines=(frame.line, *lines))))


def _with_growth(graph: Finding, growth: Finding) -> Finding:
    frame, seen = growth.place.frame, growth.evidence.get("bytes_per_step")
    assert frame is not None
    what = f"; {file_name(frame.file)}:{frame.line} keeps it from step to step"
    what += f", and the process grows by {format_bytes(seen)} per step" if seen else ""
    said = graph.message.partition("; the cost of the memory it keeps")[0]
    return replace(
        graph,
        message=said + what,
        severity=min(graph.severity, growth.severity, key=SEVERITIES.index),
        evidence={**growth.evidence, **graph.evidence, GROWTH_CERTAINTY: growth.certainty},
        also_explains=(*graph.also_explains, GROWTH),
    )

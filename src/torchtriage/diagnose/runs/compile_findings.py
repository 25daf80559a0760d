"""Findings out of the compiler's log, of a whole run: recompilations, and graph breaks that no recorded step holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torchtriage.core.finding import Cost, Finding, Fix, Frame, Place
from torchtriage.core.names import file_name
from torchtriage.core.units import format_count, format_ms
from torchtriage.diagnose.runs.compile_events import BREAK, LOGGED, RECOMPILE, event_line
from torchtriage.diagnose.runs.costs import severity_of
from torchtriage.diagnose.runs.result import CompileEvent, WatchedCompile
from torchtriage.diagnose.runs.source_view import SourceView

SURE = 0.7
"""Of the time that compiling again took, at least: some sizes may need a graph of their own."""
WORTH = 0.01
UNCOMPILED = ("LCH014", "LCH015")
"""What code that is not compiled any more looks like."""


def compile_findings(
    compiled: WatchedCompile, known: tuple[Finding, ...], run_ms: float, view: SourceView
) -> tuple[Finding, ...]:
    """Return the findings with those of the compiler's log among them.

    ``run_ms`` : the whole run, which recompilations are a cost of; 0 where it is not known.
    """
    recompiles = [event for event in compiled.events if event.kind == "recompilation"]
    limited = [event.frame.file for event in recompiles if event.limit and event.frame]
    follow = [finding for finding in known if finding.code in UNCOMPILED and _in_files(finding, limited)]
    others = [finding for finding in known if not (finding.code == RECOMPILE and recompiles) and finding not in follow]
    new = [finding for event in recompiles for finding in _recompiled(event, run_ms, view, follow)]
    for event in compiled.events:
        if event.kind != "graph break" or event.frame is None:
            continue
        at = next((index for index, finding in enumerate(others) if _at(finding, event.frame)), None)
        if at is None:
            new += [_broken(event)] if view.text(event.frame.file, event.frame.line) else []
        elif others[at].code == BREAK and LOGGED not in others[at].evidence:
            others[at] = _confirmed(others[at], event)
    return (*others, *new)


def _in_files(finding: Finding, files: list[str]) -> bool:
    frame = finding.place.frame
    return frame is not None and any(file_name(frame.file) == file_name(file) for file in files)


def _at(finding: Finding, frame: Frame) -> bool:
    mine = finding.place.frame
    return mine is not None and mine.line == frame.line and file_name(mine.file) == file_name(frame.file)


def _confirmed(finding: Finding, event: CompileEvent) -> Finding:
    """Return a finding of the source with what the log says of its line."""
    line = event_line(event)
    return replace(
        finding,
        certainty="certain",
        message=f"{finding.message}; {line}",
        evidence={**finding.evidence, LOGGED: [line]},
        fix=event.fix if event.fix.text else finding.fix,
    )


def _recompiled(event: CompileEvent, run_ms: float, view: SourceView, follow: list[Finding]) -> Iterator[Finding]:
    """Yield the finding of one kind; ``follow`` : what runs slower since the limit ended the compiling."""
    share = event.total_ms / run_ms if run_ms else 0.0
    if share < WORTH and not event.limit:
        return
    call = view.calls("torch.compile", event.frame.file) if event.frame else ()
    frame = event.frame
    stack: tuple[Frame, ...] = ()
    if frame is not None and call:
        made = Frame(frame.file, call[0], "", exact=True, called="torch.compile", lines=call)
        # a guard on a shape comes from how it was compiled; one on a value from the line that reads it
        of_shape = event.what.startswith(("size", "stride", "rank", "dtype"))
        frame, stack = (made, (made, frame)) if of_shape else (frame, (frame, made))
    limit = "; the recompile limit is reached, and later calls run uncompiled" if event.limit else ""
    cost = None
    if run_ms:
        cost = Cost.of(
            SURE * event.total_ms,
            event.total_ms,
            run_ms,
            event.total_ms,
            per="run",
            basis="measured",
            method="recompilation time from the compiler's log",
            grade="A",
        )
    costs = [finding.cost for finding in follow if finding.cost is not None]
    if event.limit and costs:  # of every step, as long as the program runs: the larger thing
        cost = replace(costs[0], method=f"{costs[0].method}; operators that compiled code had fused", together_ms=None)
        share = max(share, cost.share_high)
    yield Finding(
        code=RECOMPILE,
        name="compile-recompile",
        family="compile",
        title="Compiled code is recompiled again and again",
        severity="high" if event.limit else severity_of(share, 1.0),
        certainty="certain",
        message=f"{event.function or 'a function'} is compiled again {format_count(event.count, 'time')}, because"
        f" {event.what} changes: {format_ms(event.total_ms)} of the run{limit}",
        place=Place(frame=frame, stack=stack),
        cost=cost,
        evidence={"recompilations": event.count, "compile_ms": round(event.total_ms, 3), "limit": event.limit},
        fix=event.fix,
        n_events=event.count,
        also_explains=tuple(sorted({finding.code for finding in follow})) if event.limit else (),
    )


def _broken(event: CompileEvent) -> Finding:
    assert event.frame is not None
    return Finding(
        code=BREAK,
        name="compile-graph-break",
        family="compile",
        title="torch.compile breaks the graph",
        severity="low",
        certainty="certain",
        message=f"{event.what} breaks the graph of {event.function or 'a function'},"
        f" {format_count(event.count, 'time')}",
        place=Place(frame=replace(event.frame, exact=True, lines=(event.frame.line,))),
        cost=None,
        evidence={"breaks": event.count, LOGGED: [event_line(event)]},
        fix=event.fix if event.fix.text else Fix("Move this line out of the compiled function."),
        n_events=event.count,
    )

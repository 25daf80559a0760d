"""What the compiler's log of ``torchtriage run`` adds to a process' result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torchtriage.compile.logs import formatting
from torchtriage.compile.logs.join import join
from torchtriage.compile.logs.judge import judge
from torchtriage.compile.logs.kernel_lines import GraphCode, read_graph_codes
from torchtriage.compile.logs.locations import part_name
from torchtriage.compile.logs.read import read_logs
from torchtriage.compile.logs.result import CompileResult, GraphBreak, Recompile
from torchtriage.core.errors import LogError
from torchtriage.core.finding import Finding, Frame
from torchtriage.core.names import file_name
from torchtriage.core.trace import Trace
from torchtriage.diagnose.ranks.result import JobResult
from torchtriage.diagnose.runs.result import CompileEvent, WatchedCompile
from torchtriage.diagnose.runs.run_folder import Recording
from torchtriage.diagnose.verdict.kernel_lines import KernelLines, find_kernel_lines
from torchtriage.diagnose.verdict.result import Result

BREAK, RECOMPILE = "CMP030", "CMP031"
"""The trace's patterns of the same things."""
LOGGED = "compile_log"
N_NAMED = 3


def read_compiled(recording: Recording, light: Trace | None) -> tuple[CompileResult | None, str]:
    """Return what a process' log says, beside its light recording, and why it cannot be read.

    Neither without a log.
    """
    if recording.compile_log is None:
        return None, ""
    try:
        logs, _ = read_logs([str(recording.compile_log)])
    except LogError as error:
        return None, str(error)
    result = judge(logs)
    return result if light is None else join(result, light, light.report.path), ""


def graph_codes(recording: Recording) -> list[GraphCode]:
    """Return the code of the graphs that a process compiled, as far as its log has it."""
    try:
        return read_graph_codes(str(recording.compile_log)) if recording.compile_log is not None else []
    except LogError:
        return []


def lines_of(trace: Trace, codes: Sequence[GraphCode]) -> KernelLines | None:
    """Return the lines of what these graphs launch in a trace; None where they launch nothing."""
    try:
        return find_kernel_lines(trace, codes) if codes else None
    except LogError:
        return None


def watched_compile(recording: Recording, compiled: CompileResult | None, unread: str = "") -> WatchedCompile | None:
    """Return the same for the report; None where it was not asked for."""
    if not recording.facts.get("compile_log"):
        return None
    problem = str(recording.facts.get("compile_problem") or "")
    notes = [f"the compiler's log could not be stored: {problem}"] if problem else []
    notes += [f"the compiler's log could not be read: {unread}"] if unread else []
    if compiled is None:
        return WatchedCompile((), 0, 0.0, (), "", "", "", tuple(notes))
    events = [*map(_of_break, compiled.breaks), *map(_of_recompile, compiled.recompiles)]
    return WatchedCompile(
        verdict=compiled.verdict,
        n_compiles=sum(process.n_compiles or 0 for process in compiled.processes),
        compile_ms=compiled.compile_ms,
        events=tuple(events),
        payback=compiled.payback,
        log=str(recording.compile_log.parent) if recording.compile_log else "",
        trace=compiled.trace_path,
        notes=(*notes, *(note.message for note in compiled.notes if note.level == "warn")),
    )


def _of_break(graph_break: GraphBreak) -> CompileEvent:
    return CompileEvent(
        kind="graph break",
        what=f"{graph_break.id} {graph_break.type}".strip(),
        function=", ".join(dict.fromkeys(frame.function for frame in graph_break.functions[:3])),
        frame=graph_break.caller or graph_break.frame,
        total_ms=0.0,
        limit=False,
        **_shared(graph_break),
    )


def _of_recompile(recompile: Recompile) -> CompileEvent:
    return CompileEvent(
        kind="recompilation",
        what=formatting.recompile(recompile),
        function=part_name(recompile.function.function),
        frame=recompile.frame or recompile.caller or (recompile.function if recompile.function.file else None),
        total_ms=recompile.total_ms,
        limit=recompile.limit,
        **_shared(recompile),
    )


def _shared(cause: GraphBreak | Recompile) -> dict[str, Any]:
    """Return by field what both say, and what it costs in the trace, where that is known."""
    cost: dict[str, Any] = {"per": "", "of_ms": None, "host_ms": None, "idle_ms": None, "at_most": False}
    if cause.trace is not None:
        cost = {name: getattr(cause.trace, name) for name in cost}
    return {"count": cause.count, "fix": cause.fix, **cost}


def named(result: Result, compiled: CompileResult | None) -> Result:
    """Return the result with the log's causes, lines and fixes in the trace's findings of them.

    Their costs stay the trace's, over all breaks or all compilations of one function.
    """
    if compiled is None:
        return result
    return replace(result, findings=tuple(_named(finding, compiled) for finding in result.findings))


def _named(finding: Finding, compiled: CompileResult) -> Finding:
    if finding.code == BREAK:
        breaks = [graph_break for graph_break in compiled.breaks if graph_break.trace is not None]
        if breaks:
            return _with(finding, [*map(_of_break, breaks)], breaks[0].stack)
    if finding.code == RECOMPILE and (again := _same(finding, compiled.recompiles)):
        return _with(finding, [*map(_of_recompile, again)], finding.place.stack)
    return finding


def _same(finding: Finding, recompiles: Sequence[Recompile]) -> list[Recompile]:
    frame = finding.evidence.get("frame")
    if frame is None:
        return [recompile for recompile in recompiles if recompile.limit]
    return [
        recompile
        for recompile in recompiles
        if any(i.rpartition("/")[0].rpartition("/")[2] == str(frame) for i in recompile.compile_ids)
    ]


def _with(finding: Finding, events: Sequence[CompileEvent], stack: tuple[Frame, ...]) -> Finding:
    lines = [event_line(event) for event in events]
    frame = events[0].frame
    return replace(
        finding,
        certainty="certain",
        message=f"{finding.message}; {_listed(lines)}",
        place=replace(finding.place, frame=frame, stack=stack) if frame else finding.place,
        evidence={**finding.evidence, LOGGED: lines},
        fix=events[0].fix,
    )


def named_as(job: JobResult, results: Sequence[Result]) -> JobResult:
    """Return the job with the log's causes as they are in the results of its processes."""
    known = {
        (finding.code, finding.evidence.get("frame")): finding
        for result in reversed(results)
        for finding in result.findings
        if LOGGED in finding.evidence
    }
    findings = []
    for finding in job.findings:
        same = known.get((finding.code, finding.evidence.get("frame")))
        if same is not None:
            logged = same.evidence[LOGGED]
            finding = replace(
                finding,
                message=f"{finding.message}; {_listed(logged)}",
                place=replace(finding.place, frame=same.place.frame, stack=same.place.stack),
                evidence={**finding.evidence, LOGGED: logged},
                fix=same.fix,
            )
        findings.append(finding)
    return replace(job, findings=tuple(findings))


def event_line(event: CompileEvent) -> str:
    """Return what an event is, and where."""
    at = f" at {file_name(event.frame.file)}:{event.frame.line}" if event.frame else ""
    return f"{event.what}{at}"


def _listed(lines: Sequence[str]) -> str:
    more = f" and {len(lines) - N_NAMED} more" if len(lines) > N_NAMED else ""
    return f"the compiler's log names {', '.join(lines[:N_NAMED])}{more}"

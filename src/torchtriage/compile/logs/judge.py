"""From compile logs to a result: rows, findings, a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from torchtriage.compile.logs import collective_order
from torchtriage.compile.logs.divergence import divergence, jobs, schedules
from torchtriage.compile.logs.findings import BREAK, OVERHEAD, RECOMPILE, findings_of
from torchtriage.compile.logs.process_log import ProcessLog
from torchtriage.compile.logs.result import (
    COMPILE_SCHEMA,
    CompiledFunction,
    CompileResult,
    GraphBreak,
    Inductor,
    LogPhase,
    Process,
    Recompile,
)
from torchtriage.compile.logs.tables import (
    breaks_of,
    coverage_of,
    functions_of,
    guards_of,
    inductor_of,
    inlined_of,
    phases_of,
    processes_of,
    recompiles_of,
)
from torchtriage.core.finding import SEVERITIES, Finding, Frame, NotChecked, Note
from torchtriage.core.units import format_count, format_ms, format_share
from torchtriage.core.version import __version__


def judge(logs: Sequence[ProcessLog]) -> CompileResult:
    """Return the result of the logs of one or more processes together."""
    programs = jobs(logs)
    processes = processes_of(programs)
    breaks = breaks_of(logs)
    recompiles = recompiles_of(logs, [seen.first for log in logs for seen in log.breaks.values()])
    functions = functions_of(logs)
    guards = guards_of(logs)
    phases = phases_of(logs)
    inductor = inductor_of(logs)
    order_findings: list[Finding] = []
    differences: list[str] = []
    for job in programs:
        order_finding = collective_order.finding(schedules(job))
        if order_finding is not None:
            order_findings.append(order_finding)
            differences.append(f"the order of collectives: {order_finding.message}")
        differences += divergence(job)
    inlined = inlined_of(logs)
    unlogged = _unlogged(logs)
    findings = [*order_findings, *findings_of(breaks, recompiles, functions, guards, inductor)]
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return CompileResult(
        schema=COMPILE_SCHEMA,
        version=__version__,
        paths=tuple(dict.fromkeys(log.path for log in logs)),  # one text may be of several ranks
        verdict=(
            _first(logs, breaks, recompiles, functions, differences, unlogged),
            _second(processes, phases),
            _third(inductor),
        ),
        healthy=not (findings or differences or any(unlogged.values()))
        and not any(log.end for log in logs)
        and not any(function.outcome == "unfinished" for function in functions)
        and any(log.compilations for log in logs),
        torch=tuple(sorted({log.torch for log in logs if log.torch})),
        compile_ms=sum(process.compile_ms for process in processes),
        books=coverage_of(logs),
        processes=tuple(processes),
        breaks=tuple(breaks),
        recompiles=tuple(recompiles),
        functions=tuple(functions),
        n_inlined=len(inlined),
        inlined=tuple(Frame(file, 0, name) for file, name in inlined[:200]),
        guards=guards,
        phases=tuple(phases),
        inductor=inductor,
        divergence=tuple(differences),
        findings=tuple(findings),
        notes=(*_unrelated(programs), *_notes(logs)),
        not_checked=tuple(_not_checked(logs, unlogged)),
    )


CHANNELS = {
    "graph breaks": (BREAK[0], ("graph_breaks", "explain")),
    "recompilations": (RECOMPILE[0], ("recompiles", "recompiles_verbose")),
    "guards": (OVERHEAD[0], ("guards",)),
}
"""What each channel of ``TORCH_LOGS`` reports; a text log without its lines says nothing about it."""


def _unlogged(logs: Sequence[ProcessLog]) -> dict[str, list[ProcessLog]]:
    """Return the text logs that have no line of a channel, by what it would report.

    A text log does not show whether the channel was off or had nothing to report.
    """
    texts = [log for log in logs if log.form == "text"]
    return {
        name: [log for log in texts if not any(log.kinds[kind] for kind in kinds)]
        for name, (_, kinds) in CHANNELS.items()
    }


def _first(
    logs: Sequence[ProcessLog],
    breaks: Sequence[GraphBreak],
    recompiles: Sequence[Recompile],
    functions: Sequence[CompiledFunction],
    divergence: Sequence[str],
    unlogged: Mapping[str, list[ProcessLog]],
) -> str:
    """Return what was found, or that there was none, and what the logs do not show."""
    parts = []
    if breaks:
        records = format_count(sum(row.count for row in breaks), "record")
        parts.append(f"{format_count(len(breaks), 'graph break')} ({records})")
    if recompiles:
        number = format_count(sum(row.count for row in recompiles), "recompilation")
        parts.append(f"{number} of {format_count(len(recompiles), 'kind')}")
    failed = sum(function.outcome == "failed" for function in functions)
    if failed:
        parts.append(format_count(failed, "function") + " not compiled")
    if any(row.limit for row in recompiles):
        parts.append("the recompile limit reached")
    without = {name: len(silent) for name, silent in unlogged.items() if name != "guards"}
    if not (parts or any(without.values()) or any(log.compilations for log in logs)):
        return "Nothing was compiled."
    parts = parts or [f"no {name}" for name, n_silent in without.items() if n_silent < len(logs)]
    clauses = [", ".join(parts)] if parts else []
    if divergence:
        clauses.append(f"ranks differ in {', '.join(text.partition(':')[0] for text in divergence)}")
    for n_silent in dict.fromkeys(filter(None, without.values())):
        names = " and ".join(name for name, count in without.items() if count == n_silent)
        of = f" in {n_silent} of {format_count(len(logs), 'log')}" if len(logs) > 1 else ""
        clauses.append(f"{names}: not logged{of}")
    n_cut = sum(bool(log.end) for log in logs)
    if n_cut:
        which = f"{n_cut} of {format_count(len(logs), 'log')}" if len(logs) > 1 else "the log"
        clauses.append(f"{which} cannot be read to the end")
    unfinished = sum(function.outcome == "unfinished" for function in functions)
    if unfinished and not n_cut:
        clauses.append(f"compiling {format_count(unfinished, 'function')} does not end in the log")
    first = "; ".join(clauses)
    return f"{first[0].upper()}{first[1:]}."


def _second(processes: Sequence[Process], phases: Sequence[LogPhase]) -> str:
    counted = [process.n_compiles for process in processes if process.n_compiles is not None]
    if not counted:
        return "A text log records neither how much was compiled nor how long it took."
    many = f" in {format_count(len(counted), 'process', 'processes')}" if len(processes) > 1 else ""
    text = f"Compiling: {format_count(sum(counted), 'compilation')}{many}"
    total = format_ms(sum(process.compile_ms for process in processes))
    marked = format_ms(sum(process.marked_ms for process in processes))
    top = max(phases, key=lambda phase: phase.self_ms, default=None)
    if any(process.compile_ms for process in processes):
        text += f", {total}"
    if top is not None:
        # the marks are also of what is no part of a compilation's own time
        of = "it" if total == marked else f"{marked} between marks"
        text += f", {format_share(top.share)} of {of} is {top.name}"
    return f"{text}."


def _third(inductor: Inductor) -> str:
    sentences = []
    hits = [
        f"{cache.name.replace('_', ' ')} {cache.n_hits} of {n_asked}"
        for cache in inductor.caches
        if (n_asked := cache.n_hits + cache.n_misses + cache.n_bypasses)
    ]
    if hits:
        sentences.append(f"Cache hits: {', '.join(hits)}")
    n_kernels = sum(row.count for row in inductor.generated)
    if n_kernels:
        sentences.append(f"Inductor wrote {format_count(n_kernels, 'kernel')}")
    return f"{'. '.join(sentences) or 'The log shows no caches and no kernels'}."


def _unrelated(programs: Sequence[Sequence[ProcessLog]]) -> Iterator[Note]:
    if len(programs) > 1:
        yield Note(
            "unrelated-runs",
            "info",
            f"the logs are of {len(programs)} runs that compiled different code or have no rank: only ranks of one job"
            " are compared",
            "pass the logs of one run to get its totals",
        )


def _notes(logs: Sequence[ProcessLog]) -> Iterable[Note]:
    for log in logs:
        where = f" ({log.path})" if len(logs) > 1 else ""
        damaged = sum(
            count for reason, count in log.skipped.items() if reason.startswith(("damaged", "header with", "payload"))
        )
        n_damaged = log.n_damaged
        parts = [f"{format_count(damaged, 'entry', 'entries')} could not be read"] if damaged else []
        parts += [f"{format_count(n_damaged, 'payload')} did not match its checksum"] if n_damaged else []
        if parts:
            yield Note(
                "log-damaged",
                "warn",
                f"{' and '.join(parts)}; the rest was used{where}",
                "copy the log again; two processes may have written to one file",
                {"n_left_out": damaged, "n_damaged": n_damaged},
            )
        if log.phases.n_unended:
            marks = format_count(log.phases.n_unended, "mark")
            yield Note(
                "marks-unended",
                "warn",
                f"{marks} of the compiler never ended; counted until the last record of the compilation{where}",
            )
        if log.specialized:
            names = ", ".join(name for name, _ in log.specialized.most_common(3))
            yield Note(
                "size-specialized",
                "info",
                f"{format_count(len(log.specialized), 'size')} became a constant because the code"
                f" asked for its value, so that marking it dynamic has no effect: {names}{where}",
            )
        if log.end:
            yield Note("log-cut", "warn", f"{log.end}{where}", "copy the log again")
        if log.named_rank is not None and log.logged_rank not in (None, log.named_rank):
            yield Note(
                "log-rank",
                "info",
                f"the file's name says rank {log.named_rank}, its records rank {log.logged_rank};"
                f" the name is used{where}",
            )


def _named(logs: Sequence[ProcessLog]) -> str:
    paths = list(dict.fromkeys(log.path for log in logs))
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return ", ".join(paths[:3]) + more


def _not_checked(logs: Sequence[ProcessLog], unlogged: Mapping[str, list[ProcessLog]]) -> Iterable[NotChecked]:
    how = "TORCH_TRACE=/some/folder python train.py"
    for name, silent in unlogged.items():
        if silent:
            code, kinds = CHANNELS[name]
            where = f" in {_named(silent)}" if len(logs) > 1 else ""
            yield NotChecked(
                code,
                name,
                (f"line of TORCH_LOGS={kinds[0]}{where}",),
                "TORCH_LOGS=graph_breaks,recompiles,guards python train.py",
            )
    texts = [log for log in logs if log.form == "text"]
    if texts:
        where = f" of {_named(texts)}" if len(texts) < len(logs) else ""
        missing = (f"structured log{where}",)
        yield NotChecked(OVERHEAD[0], "compile time, kernels, caches", missing, how)
    elif logs and not any(log.phases.n_marks for log in logs):
        yield NotChecked("CMP032", "compile time by phase", ("chromium events",), f"{how}, torch 2.5 or later")

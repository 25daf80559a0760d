"""The tables of a result: what the logs of all processes tell, in rows that add up."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from torchtriage.compile.logs.breaks import Break
from torchtriage.compile.logs.fixes import break_id, fix_inside, fix_of, fix_of_wrapper, known, recompile_fix
from torchtriage.compile.logs.guards import PYTHON_GUARDS
from torchtriage.compile.logs.locations import is_library, is_wrapper, part_name, resumed, user_frame
from torchtriage.compile.logs.phases import OTHER, PHASES, Total, phase_of
from torchtriage.compile.logs.process_log import BreakGroup, Compilation, ProcessLog, RecompileGroup
from torchtriage.compile.logs.result import (
    Cache,
    Count,
    Function,
    GraphBreak,
    Guards,
    Inductor,
    LogCoverage,
    PassStage,
    Phase,
    PhaseSpan,
    Process,
    Recompile,
)
from torchtriage.core.finding import Fix, Frame

__all__ = [
    "breaks_of",
    "coverage_of",
    "functions_of",
    "guards_of",
    "inductor_of",
    "inlined_of",
    "phases_of",
    "processes_of",
    "recompiles_of",
]

N_SHOWN = 50
_MS = 1e-6


def _counts(counter: Counter[str], limit: int = N_SHOWN) -> tuple[Count, ...]:
    rows = sorted(counter.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Count(name, count) for name, count in rows[:limit] if count)


def _ms(dur_ns: float | None) -> float:
    return round((dur_ns or 0) * _MS, 6)


def _ranks(logs: Iterable[ProcessLog]) -> tuple[int, ...]:
    return tuple(sorted({(log.told_rank or 0) for log in logs}))


def coverage_of(logs: Sequence[ProcessLog]) -> LogCoverage:
    """Return where every entry of the logs went."""
    skipped: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for log in logs:
        skipped.update(log.tally.skipped)
        kinds.update(log.tally.kinds)
    return LogCoverage(
        n_read=sum(log.tally.n_read for log in logs),
        n_used=sum(log.tally.n_used for log in logs),
        n_skipped=sum(skipped.values()),
        n_damaged=sum(log.tally.n_damaged for log in logs),
        n_breaks=sum(log.n_break_records for log in logs),
        n_recompiles=sum(log.n_recompile_records for log in logs),
        skipped=_counts(skipped, 500),
        kinds=_counts(kinds, 500),
    )


def _warmth(compilation: Compilation) -> str:
    if any(name.endswith(("miss", "bypass")) for name in compilation.cache):
        return "cold"
    return "warm" if compilation.cache else ""


def processes_of(logs: Sequence[ProcessLog]) -> list[Process]:
    """Return a row for each log, by rank and restart."""
    met: Counter[int] = Counter()
    found = []
    for log in sorted(logs, key=lambda log: ((log.told_rank or 0), log.started, log.path)):
        is_text = log.form == "text"
        ran = [
            compilation for compilation in log.compilations if compilation.dur_ns is not None or compilation.backward_ns
        ]
        spent = {id(compilation): (compilation.dur_ns or 0) + compilation.backward_ns for compilation in ran}
        cold = [compilation for compilation in ran if _warmth(compilation) == "cold"]
        warm = [compilation for compilation in ran if _warmth(compilation) == "warm"]
        rank = log.told_rank or 0
        found.append(
            Process(
                path=log.path,
                size_bytes=log.size_bytes,
                form=log.form,
                rank=log.told_rank,
                restart=met[rank],
                torch=log.torch,
                started=log.started,
                n_compiles=None if is_text else len(log.compilations),
                n_graphs=None if is_text else sum(compilation.has_graph for compilation in log.compilations),
                n_breaks=log.n_break_records,
                n_recompiles=log.n_recompile_records,
                compile_ms=_ms(sum(spent.values())),
                marked_ms=_ms(log.phases.outer_ns),
                cold_ms=_ms(sum(spent[id(compilation)] for compilation in cold)),
                warm_ms=_ms(sum(spent[id(compilation)] for compilation in warm)),
                n_cold=len(cold),
                n_warm=len(warm),
                spans=_spans(log),
                books=coverage_of([log]),
                end=log.end,
            )
        )
        met[rank] += 1
    return found


def _spans(log: ProcessLog) -> tuple[PhaseSpan, ...]:
    rows = sorted(log.phases.spans, key=lambda span: (span[1], -span[0], span[2]))
    begin = rows[0][1] if rows else 0
    return tuple(
        PhaseSpan(_ms(start - begin), _ms(dur), depth, name, phase_of(name), compile_id)
        for dur, start, depth, name, compile_id in rows
    )


def _frame(function: tuple[str, str, int]) -> Frame:
    return Frame(function[1], function[2], function[0])


def breaks_of(logs: Sequence[ProcessLog]) -> list[GraphBreak]:
    """Return a row for each cause at one line, the most frequent first."""
    met: dict[object, list[tuple[ProcessLog, BreakGroup]]] = defaultdict(list)
    for log in logs:
        for key, seen in log.breaks.items():
            met[key].append((log, seen))
    rows = []
    for group in met.values():
        _, seen = next((compilation for compilation in group if compilation[1].first.stack), group[0])
        first = seen.first
        told = known(first)
        functions: Counter[tuple[str, str, int]] = Counter()
        for _, other in group:
            functions.update(other.functions)
        caller = first.caller if first.caller != first.frame else None
        rows.append(
            GraphBreak(
                id=break_id(first),
                type=first.type,
                explanation=first.explanation or (told.explanation if told else ""),
                hints=first.hints or (told.hints if told else ()),
                context=first.context[:2000],
                trying=first.trying,
                frame=first.frame,
                caller=caller,
                stack=first.stack[:30],
                functions=tuple(_frame(function) for function, _ in functions.most_common(20) if function[0]),
                count=sum(other.count for _, other in group),
                compile_ids=tuple(dict.fromkeys(i for _, other in group for i in other.ids))[:N_SHOWN],
                ranks=_ranks(log for log, _ in group),
                fix=fix_of(first, break_id(first)),
            )
        )
    rows.sort(key=lambda row: (-row.count, row.frame.file if row.frame else "", _line(row.frame)))
    return rows


def _line(frame: Frame | None) -> int:
    return frame.line if frame is not None else 0


def recompiles_of(logs: Sequence[ProcessLog], broken: Sequence[Break]) -> list[Recompile]:
    """Return a row for each function and kind of guard, the costliest first.

    ``broken`` : graph breaks, which may be why a value is looked at.
    """
    arguments = _arguments(logs)
    met: dict[object, list[tuple[ProcessLog, RecompileGroup]]] = defaultdict(list)
    for log in logs:
        for key, seen in log.recompiles.items():
            met[key].append((log, seen))
    rows = []
    for group in met.values():
        log, seen = group[0]
        first = seen.first
        # of one process: whether it goes on is not a matter of how many ranks there are
        most = max(other.count for _, other in group)
        automatic = all(log.automatic_dynamic for log, _ in group)
        remedy = recompile_fix(first.cause, first.source, first.dim, most, automatic=automatic, guard=first.guard)
        if first.cause == "object" and first.source == "fn" and is_wrapper(seen.function):
            remedy = fix_of_wrapper()
        others: Counter[str] = Counter()
        for _, other in group:
            others.update(other.others)
        again = [ran for _, other in group for ran in other.compilations]
        rows.append(
            Recompile(
                function=_frame(seen.function),
                caller=_caller(seen.function, again),
                cause=first.cause,
                source=first.source,
                dim=first.dim,
                guard=first.guard[:1000],
                frame=first.frame,
                code=first.code,
                hint=first.hint,
                values=_values(seen),
                count=sum(other.count for _, other in group),
                compile_ids=tuple(dict.fromkeys(ran.id for ran in again))[:N_SHOWN],
                ranks=_ranks(log for log, _ in group),
                total_ms=_ms(sum((ran.dur_ns or 0) + ran.backward_ns for ran in again)),
                limit=any(ran.limit for ran in again),
                others=_counts(others),
                mark_dynamic=remedy.mark_dynamic,
                bucketing=remedy.bucketing,
                dynamic=remedy.dynamic,
                fix=_inside(seen, arguments, broken) or remedy.fix,
            )
        )
    rows.sort(key=lambda row: (not row.limit, -row.total_ms, -row.count))
    return rows


def _arguments(logs: Sequence[ProcessLog]) -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    for log in logs:
        for compilation in log.compilations:
            if compilation.guards is not None and compilation.resumed_at is None:
                found.setdefault(compilation.function[:2], set()).update(compilation.guards.sources)
    return found


def _inside(seen: RecompileGroup, arguments: dict[tuple[str, str], set[str]], broken: Sequence[Break]) -> Fix | None:
    """Return the remedy where the guard is on a value that is made inside of a function."""
    name, file, _ = seen.function
    line = resumed(name)
    first = seen.first
    root = re.match(r"(?!self\b|G\b|len\b)[A-Za-z_]\w*", first.source)
    if line is None or root is None:
        return None
    whole = part_name(name).partition(" ")[0]
    known = arguments.get((whole, file))
    if known is not None and root[0] in known:
        return None
    before = next(
        (
            graph_break
            for graph_break in broken
            for at in (graph_break.frame, *graph_break.stack)
            if at is not None and (at.file, at.line) == (file, line)
        ),
        None,
    )
    return fix_inside(first.cause, first.source, whole, before, is_known=known is not None)


def _caller(function: tuple[str, str, int], ran: Sequence[Compilation]) -> Frame | None:
    if not is_library(function[1]):
        return None
    return next(filter(None, (user_frame(compilation.stack) for compilation in ran)), None)


def _values(seen: RecompileGroup) -> tuple[str, ...]:
    values: list[str] = []
    for failure in seen.failures:
        for value in (failure.was, failure.now):
            if value and (not values or values[-1] != value):
                values.append(value[:200])
    return tuple(values[:N_SHOWN])


def _outcome(compilation: Compilation, log: ProcessLog) -> tuple[str, str]:
    why = str(compilation.metrics.get("fail_reason") or compilation.error or "").strip()
    if compilation.limit:
        return "limit", compilation.limit
    if compilation.metrics.get("fail_type"):
        return "failed", f"{compilation.metrics['fail_type']}: {why}"[:500]
    if compilation.metrics.get("graph_op_count") or (
        compilation.has_graph and (compilation.has_metrics or log.form == "text")
    ):
        return "captured", ""
    if compilation.error:
        return "failed", compilation.error
    if compilation.has_metrics:
        is_empty = compilation.metrics.get("has_guarded_code", compilation.metrics.get("guard_count") is not None)
        return ("empty", "") if is_empty else ("skipped", why)
    if log.form == "text":
        return "captured", ""
    return "unfinished", "the log ends before the compilation does"


def inlined_of(logs: Sequence[ProcessLog]) -> list[tuple[str, str]]:
    """Return file and name of functions whose lines are in graphs of others."""
    found: set[tuple[str, str]] = set()
    compiled: set[tuple[str, str]] = set()
    for log in logs:
        found |= log.inlined
        compiled |= {(compilation.file, name) for compilation in log.compilations for name in compilation.names}
    return sorted(found - compiled)


_WORSE = ("limit", "failed", "unfinished", "skipped", "captured", "empty")


def functions_of(logs: Sequence[ProcessLog]) -> list[Function]:
    """Return a row for each function, or its rest after a break, the costliest first."""
    met: dict[tuple[str, str, int], list[tuple[ProcessLog, Compilation]]] = defaultdict(list)
    for log in logs:
        for compilation in log.compilations:
            if compilation.id:
                met[compilation.part if compilation.name else ("", "", 0)].append((log, compilation))
    rows = []
    for (name, file, line), group in met.items():
        outcomes = [_outcome(compilation, log) for log, compilation in group]
        outcome, why = min(outcomes, key=lambda pair: _WORSE.index(pair[0]))
        ops = [
            int(compilation.metrics["graph_op_count"])
            for _, compilation in group
            if "graph_op_count" in compilation.metrics
        ]
        guards = [
            int(compilation.metrics["guard_count"]) for _, compilation in group if "guard_count" in compilation.metrics
        ]
        rows.append(
            Function(
                frame=Frame(file, line, name),
                outcome=outcome,
                why=why,
                n_compiles=len(group),
                n_attempts=sum(compilation.n_attempts for _, compilation in group),
                n_breaks=sum(compilation.n_breaks for _, compilation in group),
                n_ops=max(ops, default=None),
                n_guards=max(guards, default=None),
                total_ms=_ms(sum(compilation.dur_ns or 0 for _, compilation in group)),
                backward_ms=_ms(sum(compilation.backward_ns for _, compilation in group)),
                compile_ids=tuple(dict.fromkeys(compilation.id for _, compilation in group))[:N_SHOWN],
                ranks=_ranks(log for log, _ in group),
            )
        )
    rows.sort(key=lambda row: (-(row.total_ms + row.backward_ms), row.frame.file, row.frame.line))
    return rows


def guards_of(logs: Sequence[ProcessLog]) -> Guards:
    """Return the guards of all graphs together."""
    kinds: Counter[str] = Counter()
    places: Counter[str] = Counter()
    sources: Counter[str] = Counter()
    slowest: tuple[float, str] | None = None
    n_graphs = n_told = 0
    for log in logs:
        for compilation in log.compilations:
            latency = compilation.metrics.get("guard_latency_us")
            if compilation.guards is not None:
                n_graphs += 1
                kinds.update(compilation.guards.kinds)
                places.update(compilation.guards.places)
                sources.update(compilation.guards.sources)
                latency = compilation.guards.latency_us if compilation.guards.latency_us is not None else latency
            elif "guard_count" in compilation.metrics:
                n_graphs += 1
                n_told += int(compilation.metrics["guard_count"])
            if latency is not None and (slowest is None or float(latency) > slowest[0]):
                slowest = float(latency), f"{compilation.id} {compilation.function[0]}".strip()
    return Guards(
        n_guards=sum(kinds.values()) + n_told,
        n_graphs=n_graphs,
        n_python=sum(kinds[name] for name in PYTHON_GUARDS),
        latency_us=slowest[0] if slowest else None,
        slowest=slowest[1] if slowest else "",
        kinds=_counts(kinds),
        places=_counts(places, 20),
        sources=_counts(sources, 20),
    )


def phases_of(logs: Sequence[ProcessLog]) -> list[Phase]:
    """Return compile time by what it was for; the rows add up to all marks."""
    marks: dict[str, Total] = defaultdict(Total)
    for log in logs:
        for name, total in log.phases.totals.items():
            marks[name].count += total.count
            marks[name].self_ns += total.self_ns
            marks[name].total_ns += total.total_ns
    by_phase: dict[str, list[tuple[str, Total]]] = defaultdict(list)
    for name, total in marks.items():
        by_phase[phase_of(name)].append((name, total))
    whole = max(sum(total.self_ns for total in marks.values()), 1)
    rows = []
    for phase in [name for name, _ in PHASES] + [OTHER]:
        inside = sorted(by_phase.get(phase, ()), key=lambda item: (-item[1].self_ns, item[0]))
        self_ns = sum(total.self_ns for _, total in inside)
        if inside:
            told = tuple((name, total.count, _ms(total.self_ns)) for name, total in inside[:20])
            rows.append(Phase(phase, _ms(self_ns), round(self_ns / whole, 6), told))
    return rows


def inductor_of(logs: Sequence[ProcessLog]) -> Inductor:
    """Return what Inductor made of the graphs."""
    generated: Counter[str] = Counter()
    library: Counter[str] = Counter()
    fallback: Counter[str] = Counter()
    skips: Counter[str] = Counter()
    passes: dict[str, Total] = defaultdict(Total)
    caches: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    stages: dict[str, tuple[Counter[str], Counter[str], list[int]]] = {}
    autotune_ns = 0.0
    for log in logs:
        generated.update(log.n_generated)
        library.update(log.library)
        fallback.update(log.fallback)
        skips.update(log.cudagraph_skips)
        for name, total in log.phases.totals.items():
            if "pass" in name.lower():
                passes[name].count += total.count
                passes[name].total_ns += total.total_ns
            if phase_of(name) == "Autotuning":
                autotune_ns += total.self_ns
        for name, cache in log.caches.items():
            for place, value in enumerate((cache.hits, cache.misses, cache.bypasses, cache.saved_ns)):
                caches[name][place] += value
            reasons[name].update(cache.reasons)
        for name, stage in log.stages.items():
            before, after, number = stages.setdefault(name, (Counter(), Counter(), [0]))
            before.update(stage.before)
            after.update(stage.after)
            number[0] += stage.n_graphs
    timed = sorted(passes.items(), key=lambda item: (-item[1].total_ns, item[0]))
    return Inductor(
        n_modules=sum(log.n_output_codes for log in logs),
        generated=_counts(generated),
        library=_counts(library),
        fallback=_counts(fallback),
        n_fused_ops=sum(log.n_fused for log in logs),
        n_fused_kernels=sum(log.n_fused_into for log in logs),
        autotune_ms=_ms(autotune_ns),
        stages=tuple(
            PassStage(
                name,
                number[0],
                sum(before.values()),
                sum(after.values()),
                _counts(before - after, 12),
                _counts(after - before, 12),
            )
            for name, (before, after, number) in stages.items()
            if number[0]
        ),
        passes=tuple((name, total.count, _ms(total.total_ns)) for name, total in timed[:40]),
        caches=tuple(
            Cache(name, hits, misses, bypasses, _ms(saved_ns), _counts(reasons[name], 10))
            for name, (hits, misses, bypasses, saved_ns) in sorted(caches.items())
        ),
        cudagraph_skips=_counts(skips),
    )

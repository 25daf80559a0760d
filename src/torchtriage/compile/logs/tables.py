"""The tables of a result: what the logs of all processes record, in rows that add up."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from torchtriage.compile.logs.breaks import Break
from torchtriage.compile.logs.fixes import WRAPPER_FIX, RecompileFix, completed, fix_inside, fix_of, recompile_fix
from torchtriage.compile.logs.guards import PYTHON_GUARDS
from torchtriage.compile.logs.locations import is_library, is_wrapper, resumed, user_frame, whole_name
from torchtriage.compile.logs.phases import OTHER, PHASES, phase_of
from torchtriage.compile.logs.process_log import Compilation, FunctionKey, ProcessLog, RecompileGroup
from torchtriage.compile.logs.recompiles import GuardFailure
from torchtriage.compile.logs.result import (
    AlsoChanged,
    Cache,
    CompiledFunction,
    Count,
    GraphBreak,
    Guards,
    Inductor,
    LogCoverage,
    LogPhase,
    PassStage,
    PhaseSpan,
    Process,
    Recompile,
)
from torchtriage.core.finding import Fix, Frame

N_SHOWN = 50
N_CURED = 4
"""Causes of one recompilation whose cures are listed."""
_MS = 1e-6
Group = TypeVar("Group")
Key = TypeVar("Key", bound=Hashable)


def _counts(counter: Counter[str], limit: int = N_SHOWN) -> tuple[Count, ...]:
    rows = sorted(counter.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Count(name, count) for name, count in rows[:limit] if count)


def _sum(counters: Iterable[Counter[Key]]) -> Counter[Key]:
    total: Counter[Key] = Counter()
    for counter in counters:
        total.update(counter)
    return total


def _of(name: str, counter: Counter[tuple[str, str]]) -> Counter[str]:
    return Counter({key: count for (owner, key), count in counter.items() if owner == name})


def _by_key(rows: Iterable[tuple[Hashable, ProcessLog, Group]]) -> Iterable[list[tuple[ProcessLog, Group]]]:
    groups: dict[Hashable, list[tuple[ProcessLog, Group]]] = defaultdict(list)
    for key, log, row in rows:
        groups[key].append((log, row))
    return groups.values()


def _first_ids(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(ids))[:N_SHOWN]


def _ms(dur_ns: float | None) -> float:
    return round((dur_ns or 0) * _MS, 6)


def _ranks(logs: Iterable[ProcessLog]) -> tuple[int, ...]:
    return tuple(sorted({log.rank or 0 for log in logs}))


def coverage_of(logs: Sequence[ProcessLog]) -> LogCoverage:
    """Return where every entry of the logs went."""
    skipped = _sum(log.skipped for log in logs)
    return LogCoverage(
        n_read=sum(log.n_read for log in logs),
        n_used=sum(log.n_used for log in logs),
        n_skipped=sum(skipped.values()),
        n_damaged=sum(log.n_damaged for log in logs),
        n_breaks=sum(log.n_break_records for log in logs),
        n_recompiles=sum(log.n_recompile_records for log in logs),
        skipped=_counts(skipped, 500),
        kinds=_counts(_sum(log.kinds for log in logs), 500),
    )


def _warmth(compilation: Compilation) -> str:
    if any(name.endswith(("miss", "bypass")) for name in compilation.cache):
        return "cold"
    return "warm" if compilation.cache else ""


def processes_of(programs: Sequence[Sequence[ProcessLog]]) -> list[Process]:
    """Return a row for each log, by rank and restart.

    ``programs`` : logs of one program together; a restart is of the same.
    """
    restarts: Counter[tuple[int, int]] = Counter()
    rows = []
    of_program = [(number, log) for number, job in enumerate(programs) for log in job]
    for number, log in sorted(of_program, key=lambda item: (item[1].rank or 0, item[1].started, item[1].path)):
        is_text = log.form == "text"
        ran = [
            compilation for compilation in log.compilations if compilation.dur_ns is not None or compilation.backward_ns
        ]
        cold = [compilation.total_ns for compilation in ran if _warmth(compilation) == "cold"]
        warm = [compilation.total_ns for compilation in ran if _warmth(compilation) == "warm"]
        rank = log.rank or 0
        rows.append(
            Process(
                path=log.path,
                size_bytes=log.size_bytes,
                form=log.form,
                rank=log.rank,
                restart=restarts[number, rank],
                torch=log.torch,
                started=log.started,
                n_compiles=None if is_text else len(log.compilations),
                n_graphs=None if is_text else sum(compilation.has_graph for compilation in log.compilations),
                n_breaks=log.n_break_records,
                n_recompiles=log.n_recompile_records,
                compile_ms=_ms(sum(compilation.total_ns for compilation in ran)),
                marked_ms=_ms(log.phases.outer_ns),
                cold_ms=_ms(sum(cold)),
                warm_ms=_ms(sum(warm)),
                n_cold=len(cold),
                n_warm=len(warm),
                spans=_spans(log),
                books=coverage_of([log]),
                end=log.end,
            )
        )
        # several texts, or processes in one, without a rank are not known to follow each other
        restarts[number, rank] += not is_text or log.rank is not None
    return rows


def _spans(log: ProcessLog) -> tuple[PhaseSpan, ...]:
    rows = sorted(log.phases.spans, key=lambda span: (span[1], -span[0], span[2]))
    begin = rows[0][1] if rows else 0
    return tuple(
        PhaseSpan(_ms(start - begin), _ms(dur), depth, name, phase_of(name), compile_id)
        for dur, start, depth, name, compile_id in rows
    )


def _frame(function: FunctionKey) -> Frame:
    return Frame(function[1], function[2], function[0])


def breaks_of(logs: Sequence[ProcessLog]) -> list[GraphBreak]:
    """Return a row for each cause at one line, the most frequent first."""
    rows = []
    for group in _by_key((key, log, seen) for log in logs for key, seen in log.breaks.items()):
        first = next((seen.first for _, seen in group if seen.first.stack), group[0][1].first)
        whole = completed(first)
        records = [record for _, seen in group for record in seen.records]
        functions = Counter(ran.function if ran.name else function for ran, function in records)
        ids = [[ran.id for ran, _ in seen.records if ran.id][:N_SHOWN] for _, seen in group]
        rows.append(
            GraphBreak(
                id=whole.id,
                type=first.type,
                explanation=whole.explanation,
                hints=whole.hints,
                context=first.context[:2000],
                trying=first.trying,
                frame=first.frame,
                caller=first.caller if first.caller != first.frame else None,
                stack=first.stack[:30],
                functions=tuple(_frame(function) for function, _ in functions.most_common(20) if function[0]),
                count=len(records),
                compile_ids=_first_ids(itertools.chain(*ids)),
                ranks=_ranks(log for log, _ in group),
                fix=fix_of(first),
            )
        )
    rows.sort(key=lambda row: (-row.count, *((row.frame.file, row.frame.line) if row.frame else ("", 0))))
    return rows


def recompiles_of(logs: Sequence[ProcessLog], broken: Sequence[Break]) -> list[Recompile]:
    """Return a row for each function and kind of guard, the most expensive first.

    ``broken`` : graph breaks, which may be why a value is looked at.
    """
    arguments = _arguments(logs)
    rows = []
    for group in _by_key((key, log, seen) for log in logs for key, seen in log.recompiles.items()):
        seen = group[0][1]
        first = seen.failures[0]
        # of one process: whether it goes on is not a matter of how many ranks there are
        most = max(len(other.failures) for _, other in group)
        automatic = all(log.automatic_dynamic for log, _ in group)
        remedy = recompile_fix(first.cause, first.source, first.dim, most, automatic=automatic, guard=first.guard)
        if first.cause == "object" and first.source == "fn" and is_wrapper(seen.function):
            remedy = WRAPPER_FIX
        again = [ran for _, other in group for ran in other.compilations]
        also = _also([beside for _, other in group for beside in other.besides])
        fix = _inside(seen, arguments, broken) or remedy.fix
        if also:
            remedy, fix = _with(remedy, fix, also, len(again), automatic=automatic)
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
                values=_values(seen.failures),
                count=len(again),
                compile_ids=_first_ids(ran.id for ran in again),
                ranks=_ranks(log for log, _ in group),
                total_ms=_ms(sum(ran.total_ns for ran in again)),
                limit=any(ran.limit for ran in again),
                others=_counts(_sum(other.others for _, other in group)),
                mark_dynamic=remedy.mark_dynamic,
                bucketing=remedy.bucketing,
                dynamic=remedy.dynamic,
                fix=fix,
                also=tuple(
                    AlsoChanged(group[0].cause, group[0].source, group[0].dim, _values(group), len(group))
                    for group in also
                ),
            )
        )
    rows.sort(key=lambda row: (not row.limit, -row.total_ms, -row.count))
    return rows


def _also(besides: Sequence[Sequence[GuardFailure]]) -> list[list[GuardFailure]]:
    """Return what changed beside the guards that the log names, of each kind together, the most frequent first."""
    groups: dict[tuple[str, str, int], list[GuardFailure]] = defaultdict(list)
    for failure in itertools.chain(*besides):
        groups[failure.key].append(failure)
    return sorted(groups.values(), key=len, reverse=True)[:N_SHOWN]


def _with(
    remedy: RecompileFix, fix: Fix, also: Sequence[Sequence[GuardFailure]], count: int, *, automatic: bool
) -> tuple[RecompileFix, Fix]:
    """Return the remedy of all that changed: what ends one cause ends nothing while another goes on."""
    text, codes = fix.text, [fix.code]
    for failures in also[:N_CURED]:
        failure = failures[0]
        other = recompile_fix(
            failure.cause, failure.source, failure.dim, len(failures), automatic=automatic, guard=failure.guard
        )
        text += f" Also {failure.cause}{f' of {failure.source}' if failure.source else ''}: {other.text}"
        codes.append(other.code)
        if len(failures) == count:
            answers = {
                name: min(getattr(remedy, name), getattr(other, name), key=("no", "once", "yes").index)
                for name in ("mark_dynamic", "bucketing", "dynamic")
            }
            remedy = replace(remedy, **answers)
    return remedy, replace(fix, text=text, code="\n".join(filter(None, codes)))


def _arguments(logs: Sequence[ProcessLog]) -> dict[tuple[str, str], set[str]]:
    arguments: dict[tuple[str, str], set[str]] = {}
    for log in logs:
        for compilation in log.compilations:
            if compilation.guards is not None and compilation.resumed_at is None:
                arguments.setdefault((compilation.name, compilation.file), set()).update(compilation.guards.sources)
    return arguments


def _inside(seen: RecompileGroup, arguments: dict[tuple[str, str], set[str]], broken: Sequence[Break]) -> Fix | None:
    """Return the remedy where the guard is on a value that is made inside of a function."""
    name, file, _ = seen.function
    line = resumed(name)
    first = seen.failures[0]
    root = re.match(r"(?!self\b|G\b|len\b)[A-Za-z_]\w*", first.source)
    if line is None or root is None:
        return None
    whole = whole_name(name)
    known = arguments.get((whole, file))
    if known is not None and root[0] in known:
        return None
    frames = ((graph_break, frame) for graph_break in broken for frame in (graph_break.frame, *graph_break.stack))
    before = next((ended for ended, frame in frames if frame and (frame.file, frame.line) == (file, line)), None)
    return fix_inside(first.cause, first.source, whole, before, is_known=known is not None)


def _caller(function: FunctionKey, ran: Sequence[Compilation]) -> Frame | None:
    if not is_library(function[1]):
        return None
    return next(filter(None, (user_frame(compilation.stack) for compilation in ran)), None)


def _values(failures: Sequence[GuardFailure]) -> tuple[str, ...]:
    values: list[str] = []
    for failure in failures:
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
    inlined = {function for log in logs for function in log.inlined}
    for log in logs:
        for compilation in log.compilations:
            inlined -= {(compilation.file, compilation.name), (compilation.file, compilation.function[0])}
    return sorted(inlined)


_WORSE = ("limit", "failed", "unfinished", "skipped", "captured", "empty")


def functions_of(logs: Sequence[ProcessLog]) -> list[CompiledFunction]:
    """Return a row for each function, or its rest after a break, the most expensive first."""
    named = (
        (compilation.part if compilation.name else ("", "", 0), log, compilation)
        for log in logs
        for compilation in log.compilations
    )
    rows = []
    for group in _by_key(named):
        ran = [compilation for _, compilation in group]
        name, file, line = ran[0].part if ran[0].name else ("", "", 0)
        outcomes = [_outcome(compilation, log) for log, compilation in group]
        outcome, why = min(outcomes, key=lambda pair: _WORSE.index(pair[0]))
        rows.append(
            CompiledFunction(
                frame=Frame(file, line, name),
                outcome=outcome,
                why=why,
                n_compiles=len(group),
                n_attempts=sum(compilation.n_attempts for compilation in ran),
                n_breaks=sum(compilation.n_breaks for compilation in ran),
                n_ops=_most(ran, "graph_op_count"),
                n_guards=_most(ran, "guard_count"),
                total_ms=_ms(sum(compilation.dur_ns or 0 for compilation in ran)),
                backward_ms=_ms(sum(compilation.backward_ns for compilation in ran)),
                compile_ids=_first_ids(compilation.id for compilation in ran),
                ranks=_ranks(log for log, _ in group),
            )
        )
    rows.sort(key=lambda row: (-(row.total_ms + row.backward_ms), row.frame.file, row.frame.line))
    return rows


def _most(ran: Sequence[Compilation], metric: str) -> int | None:
    return max((int(compilation.metrics[metric]) for compilation in ran if metric in compilation.metrics), default=None)


def guards_of(logs: Sequence[ProcessLog]) -> Guards:
    """Return the guards of all graphs together."""
    ran = [compilation for log in logs for compilation in log.compilations]
    trees = [compilation.guards for compilation in ran if compilation.guards is not None]
    counted = [
        int(compilation.metrics["guard_count"])
        for compilation in ran
        if compilation.guards is None and "guard_count" in compilation.metrics
    ]
    kinds = _sum(tree.kinds for tree in trees)
    latency_us, slowest = None, ""
    for compilation in ran:
        latency = compilation.guards.latency_us if compilation.guards is not None else None
        if latency is None:
            latency = compilation.metrics.get("guard_latency_us")
        if latency is not None and (latency_us is None or latency > latency_us):
            latency_us, slowest = float(latency), f"{compilation.id} {compilation.function[0]}".strip()
    return Guards(
        n_guards=kinds.total() + sum(counted),
        n_graphs=len(trees) + len(counted),
        n_python=sum(kinds[name] for name in PYTHON_GUARDS),
        latency_us=latency_us,
        slowest=slowest,
        kinds=_counts(kinds),
        places=_counts(_sum(tree.places for tree in trees), 20),
        sources=_counts(_sum(tree.sources for tree in trees), 20),
    )


def phases_of(logs: Sequence[ProcessLog]) -> list[LogPhase]:
    """Return compile time by what it was for; the rows add up to all marks."""
    n_marks, self_ns = _sum(log.phases.n_marks for log in logs), _sum(log.phases.self_ns for log in logs)
    by_phase: dict[str, list[str]] = defaultdict(list)
    for name in sorted(self_ns, key=lambda name: (-self_ns[name], name)):
        by_phase[phase_of(name)].append(name)
    whole = max(self_ns.total(), 1)
    rows = []
    for phase in [name for name, _ in PHASES] + [OTHER]:
        if names := by_phase[phase]:
            phase_ns = sum(self_ns[name] for name in names)
            longest = tuple((name, n_marks[name], _ms(self_ns[name])) for name in names[:20])
            rows.append(LogPhase(phase, _ms(phase_ns), round(phase_ns / whole, 6), longest))
    return rows


def inductor_of(logs: Sequence[ProcessLog]) -> Inductor:
    """Return what Inductor made of the graphs."""
    n_marks, total_ns = _sum(log.phases.n_marks for log in logs), _sum(log.phases.total_ns for log in logs)
    self_ns = _sum(log.phases.self_ns for log in logs)
    caches, bypasses = _sum(log.caches for log in logs), _sum(log.bypasses for log in logs)
    saved_ns, n_staged = _sum(log.cache_saved_ns for log in logs), _sum(log.n_staged for log in logs)
    before, after = _sum(log.ops_before for log in logs), _sum(log.ops_after for log in logs)
    passes = sorted((name for name in n_marks if "pass" in name.lower()), key=lambda name: (-total_ns[name], name))
    return Inductor(
        n_modules=sum(log.n_output_codes for log in logs),
        generated=_counts(_sum(log.n_generated for log in logs)),
        library=_counts(_sum(log.library for log in logs)),
        fallback=_counts(_sum(log.fallback for log in logs)),
        n_fused_ops=sum(log.n_fused for log in logs),
        n_fused_kernels=sum(log.n_fused_into for log in logs),
        autotune_ms=_ms(sum(self_ns[name] for name in self_ns if phase_of(name) == "Autotuning")),
        stages=tuple(
            PassStage(
                name,
                n_graphs,
                _of(name, before).total(),
                _of(name, after).total(),
                _counts(_of(name, before) - _of(name, after), 12),
                _counts(_of(name, after) - _of(name, before), 12),
            )
            for name, n_graphs in n_staged.items()
        ),
        passes=tuple((name, n_marks[name], _ms(total_ns[name])) for name in passes[:40]),
        caches=tuple(
            Cache(
                name,
                caches[name, "hit"],
                caches[name, "miss"],
                caches[name, "bypass"],
                _ms(saved_ns[name]),
                _counts(_of(name, bypasses), 10),
            )
            for name in sorted({name for name, _ in caches})
        ),
        cudagraph_skips=_counts(_sum(log.cudagraph_skips for log in logs)),
    )

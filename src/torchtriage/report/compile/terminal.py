"""A compile result as text: the verdict in three lines, breaks, recompilations, where time went."""

from __future__ import annotations

from rich.text import Text

from torchtriage.compile.result import CompileResult, GraphBreak, Inductor, Recompile
from torchtriage.names import elide, visible
from torchtriage.report.compile import words
from torchtriage.report.terminal import Page
from torchtriage.units import format_count, format_ms, format_share

__all__ = ["render"]

N_ROWS = 12
N_FUNCTIONS = 10
N_PROCESSES = 8
BAR = 24
_SEVERITY = {"high": "bold red", "medium": "bold yellow", "low": "bold cyan", "note": "dim"}


def render(result: CompileResult, *, width: int | None = None) -> Text:
    """Return the report, at most 120 columns wide, 80 when not given."""
    page = Page(width)
    bad = bool(result.breaks or result.recompiles)
    for index, line in enumerate(result.verdict):
        page.line((visible(line), "bold" if index == 0 and bad else ""), hang=2)
    page.blank()
    shown = ", ".join(map(visible, result.paths[:3]))
    more = f" and {len(result.paths) - 3} more" if len(result.paths) > 3 else ""
    page.line((elide(shown, page.width - 14) + more, "dim"), indent=2, hang=2)
    page.line((words.facts(result), "dim"), indent=2, hang=2)
    _breaks(page, result)
    _recompiles(page, result)
    _others(page, result)
    _functions(page, result)
    _phases(page, result)
    _inductor(page, result.inductor)
    _guards(page, result)
    _processes(page, result)
    if result.payback:
        page.blank()
        page.labelled("pays back", (visible(result.payback), ""))
    page.blank()
    page.labelled("counted", (words.books(result), "dim"))
    for note in result.notes:
        page.note(note.level, note.message, note.fix)
    for one in result.not_checked:
        missing = ", ".join(one.missing)
        page.labelled(
            "not told",
            (f"{one.name}: no {missing}; record with ", ""),
            (one.how_to_record, "green"),
        )
    for crash in result.crashes:
        page.labelled("failed", (f"{crash.code} {visible(crash.error)}", "bold red"))
    return page.text


def _heading(page: Page, title: str, rest: str = "") -> None:
    page.blank()
    page.line((title, "bold"), (f"  {rest}" if rest else "", "dim"))


def _hidden(page: Page, number: int, noun: str) -> None:
    if number > 0:
        page.line((f"{format_count(number, noun)} more in --json and --html", "dim"), indent=2)


def _breaks(page: Page, result: CompileResult) -> None:
    if not result.breaks:
        return
    records = format_count(result.books.n_breaks, "record")
    _heading(page, "Graph breaks", f"{len(result.breaks)} distinct, {records}")
    for rank, one in enumerate(result.breaks[:N_ROWS], 1):
        _break(page, one, rank)
    _hidden(page, len(result.breaks) - N_ROWS, "row")


def _break(page: Page, one: GraphBreak, rank: int) -> None:
    times = f"  {one.count}x" if one.count > 1 else ""
    page.line(
        (f"{rank}. ", "dim"),
        (f"{one.id} " if one.id else "", "bold"),
        (words.cut(one.type, 100), "bold"),
        (times, "dim"),
        hang=3,
    )
    page.labelled("where", (words.graph_break(one), ""), indent=3)
    if one.functions:
        # of one name in several files, or at several lines: once
        names = ", ".join(dict.fromkeys(visible(frame.function) for frame in one.functions[:8]))
        page.labelled("splits", (names, ""), indent=3)
    if one.explanation:
        page.labelled("why", (words.cut(one.explanation.split("\n\n")[0], 240), ""), indent=3)
    page.labelled("fix", (visible(one.fix.text), ""), indent=3)
    if one.fix.code:
        page.verbatim([(one.fix.code, "green")], indent=3)
    for hint in one.hints[:2]:
        page.labelled("hint", (words.cut(hint, 200), "dim"), indent=3)
    if one.trace is not None:
        page.labelled("costs", (words.joined(one.trace), "bold"), indent=3)


def _recompiles(page: Page, result: CompileResult) -> None:
    if not result.recompiles:
        return
    n_records = result.books.n_recompiles
    kinds = format_count(len(result.recompiles), "kind")
    _heading(page, "Recompilations", f"{kinds}, {format_count(n_records, 'record')}")
    for rank, one in enumerate(result.recompiles[:N_ROWS], 1):
        _recompile(page, one, rank)
    _hidden(page, len(result.recompiles) - N_ROWS, "row")


def _recompile(page: Page, one: Recompile, rank: int) -> None:
    spent = f", {format_ms(one.total_ms)}" if one.total_ms else ""
    page.line(
        (f"{rank}. ", "dim"),
        (words.recompile(one), "bold"),
        (f"  {one.count}x{spent}", "dim"),
        ("  recompile limit reached" if one.limit else "", "bold red"),
        hang=3,
    )
    caller = f", called at {words.place(one.caller)}" if one.caller else ""
    page.labelled("of", (words.place(one.function) + caller, ""), indent=3)
    if one.frame is not None:
        code = f": {visible(one.code)}" if one.code else ""
        page.labelled("guard at", (words.place(one.frame) + code, ""), indent=3)
    page.labelled("guard", (words.cut(one.guard, 160), "dim"), indent=3)
    if one.values:
        page.labelled("saw", (words.values(one), ""), indent=3)
    page.labelled("cure", (f"{words.cures(one)}. {visible(one.fix.text)}", ""), indent=3)
    if one.fix.code:
        page.verbatim([(one.fix.code, "green")], indent=3)
    if one.trace is not None:
        page.labelled("costs", (words.joined(one.trace), "bold"), indent=3)


def _others(page: Page, result: CompileResult) -> None:
    rest = words.other_findings(result)
    if rest:
        _heading(page, "Other findings")
    for one in rest[:N_ROWS]:
        page.line(
            (one.severity.upper(), _SEVERITY[one.severity]),
            (f" {one.code} ", "bold"),
            (visible(one.title), "bold"),
            hang=3,
        )
        page.labelled("what", (visible(one.message), ""), indent=3)
        page.labelled("fix", (visible(one.fix.text), ""), indent=3)
    _hidden(page, len(rest) - N_ROWS, "finding")


def _functions(page: Page, result: CompileResult) -> None:
    rows = [one for one in result.functions if one.frame.function]
    if not rows:
        return
    inlined = f"{format_count(result.n_inlined, 'function')} inlined into their graphs"
    _heading(page, "Functions", inlined if result.n_inlined else "")
    is_text = all(one.form == "text" for one in result.processes)  # tells no times
    for one in rows[:N_FUNCTIONS]:
        spent = format_ms(one.total_ms + one.backward_ms)
        page.line(
            ("" if is_text else f"{spent:>9} {one.n_compiles:>3}x  ", ""),
            (words.place(one.frame), "bold"),
            (f"  {words.function(one)}", "dim"),
            indent=2,
            hang=2 if is_text else 17,
        )
        if one.why:
            page.line((words.cut(one.why, 160), "dim"), indent=4 if is_text else 19)
    _hidden(page, len(rows) - N_FUNCTIONS, "function")


def _phases(page: Page, result: CompileResult) -> None:
    if not result.phases:
        return
    marked = sum(one.marked_ms for one in result.processes)
    _heading(page, "Compile time by phase", f"of {format_ms(marked)} between the compiler's marks")
    for one in sorted(result.phases, key=lambda one: -one.self_ms):
        bar = "█" * round(one.share * BAR)
        page.line(
            (f"{format_ms(one.self_ms):>9} {format_share(one.share):>6}  ", ""),
            (f"{bar:<{BAR}}  ", "cyan"),
            (one.name, ""),
            indent=2,
            hang=19,
        )


def _inductor(page: Page, one: Inductor) -> None:
    if not (one.n_modules or one.caches or one.stages or one.cudagraph_skips):
        return
    _heading(page, "Inductor")
    if one.n_modules:
        made = words.counts(one.generated) or "none"
        page.labelled("kernels", (f"{made}, in {format_count(one.n_modules, 'module')}", ""))
        if one.n_fused_kernels:
            mean = one.n_fused_ops / one.n_fused_kernels
            ops = format_count(one.n_fused_ops, "operator")
            fused = f"{ops} in {format_count(one.n_fused_kernels, 'kernel')}, {mean:.1f} each"
            page.labelled("fusion", (fused, ""))
        if one.library:
            page.labelled("library", (words.counts(one.library), ""))
        if one.fallback:
            page.labelled("fallback", (words.counts(one.fallback), ""))
    for stage in one.stages:
        change = f"{stage.n_before:,} operators become {stage.n_after:,}"
        gone = f"; gone: {words.counts(stage.gone, 4)}" if stage.gone else ""
        came = f"; new: {words.counts(stage.came, 4)}" if stage.came else ""
        page.labelled("passes", (f"{stage.name}: {change}{gone}{came}", ""))
    slow = [row for row in one.passes if row[2] >= 1][:4]
    if slow:
        told = ", ".join(
            f"{visible(name)} {format_ms(spent)} ({number}x)" for name, number, spent in slow
        )
        page.labelled("slowest", (told, "dim"))
    for cache in one.caches:
        asked = cache.n_hits + cache.n_misses + cache.n_bypasses
        saved = f", saved {format_ms(cache.saved_ms)}" if cache.saved_ms else ""
        name = visible(cache.name.replace("_", " "))
        page.labelled(
            "cache",
            (
                f"{name}: {cache.n_hits} of {asked} hit, {cache.n_misses} missed,"
                f" {cache.n_bypasses} passed by{saved}{words.cache(cache.bypass_reasons)}",
                "",
            ),
        )
    if one.autotune_ms:
        page.labelled("autotune", (format_ms(one.autotune_ms), ""))
    for skip in one.cudagraph_skips[:4]:
        page.labelled(
            "cudagraph", (f"skipped {skip.count}x: {words.cut(skip.name, 160)}", "yellow")
        )


def _guards(page: Page, result: CompileResult) -> None:
    told = result.guards
    if not told.n_guards:
        return
    _heading(page, "Guards", f"{told.n_guards:,} in {format_count(told.n_graphs, 'graph')}")
    if told.latency_us is not None:
        page.labelled(
            "check",
            (f"{told.latency_us:.0f} µs when compiled, the slowest: {visible(told.slowest)}", ""),
        )
    if told.kinds:
        python = f"; {told.n_python} run Python" if told.n_python else ""
        page.labelled("kinds", (words.counts(told.kinds) + python, ""))
    if told.sources:
        page.labelled("most on", (words.counts(told.sources, 4), ""))
    if told.places:
        page.labelled("most from", (words.counts(told.places, 3), ""))


def _processes(page: Page, result: CompileResult) -> None:
    if len(result.processes) < 2:
        cold = [one for one in result.processes if one.n_cold or one.n_warm]
        for one in cold:
            page.blank()
            page.labelled("caches", (words.process(one), ""))
        return
    _heading(page, "Processes")
    for one in result.processes[:N_PROCESSES]:
        page.line(
            (words.process(one), ""), (f"  {words.file_name(one.path)}", "dim"), indent=2, hang=2
        )
    _hidden(page, len(result.processes) - N_PROCESSES, "process")
    for line in result.divergence:
        page.labelled("differs", (visible(line), "yellow"))

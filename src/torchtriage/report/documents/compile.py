"""What torch.compile did: breaks, recompilations, where the time went, Inductor, guards, processes."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchtriage.compile.logs import formatting
from torchtriage.compile.logs.formatting import counts, cut, joined, place, seconds
from torchtriage.compile.logs.phases import OTHER, PHASES
from torchtriage.compile.logs.result import CompileResult, GraphBreak, Inductor, PhaseSpan, Process, Recompile
from torchtriage.core.finding import Finding, Fix, Note
from torchtriage.core.names import file_name, visible
from torchtriage.core.units import format_count, format_ms, format_share
from torchtriage.report import blocks as b
from torchtriage.report.documents import findings
from torchtriage.report.page import text

N_ROWS, N_IN_MARKDOWN, N_ON_PAGE = 12, 20, 200
N_FUNCTIONS, N_PROCESSES, N_FALLS = 10, 8, 8
BAR = 24
WIDTH, LANE = 1000, 18
_COLOURS = {name: f"p{number}" for number, name in enumerate([*dict(PHASES), OTHER])}


@dataclass(frozen=True)
class CompileReport:
    """One run of ``torchtriage compile`` over the logs of one program."""

    schema: str
    version: str
    result: CompileResult


def document(report: CompileReport) -> b.Document:
    """Return the report of ``torchtriage compile``."""
    result = report.result
    names = [file_name(path) for path in result.paths] or ["compile log"]
    title = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    facts, books = formatting.facts(result), formatting.books(result)
    paths = ", ".join(result.paths[:3]) + (f" and {len(result.paths) - 3} more" if len(result.paths) > 3 else "")
    missing = [
        Note(item.code, "warn", f"{item.name}: no {', '.join(item.missing)}", f"record with {item.how_to_record}")
        for item in result.not_checked
    ]
    blocks: list[b.Block] = [
        b.Head("torchtriage compile", result.verdict, ("bold" if result.breaks or result.recompiles else "", "")),
        b.Lines([b.dim(paths)], fit=True, on=b.TERMINAL),
        b.Lines([b.dim(facts)], tight=True, on=b.TERMINAL),
        b.Lines([f"{facts}. {books}."], kind="sub", on=b.PAGE),
        b.Lines([result.payback], on=b.PAGE),
        b.Markup('<div class="clean"><p>No findings.</p></div>' if result.healthy else "", on=b.PAGE),
        *_breaks(result),
        *_recompiles(result),
        *_others(formatting.other_findings(result)),
        *_phases(result),
        *_functions(result),
        *_inductor(result.inductor),
        *_guards(result),
        b.Markup("".join(_drawings(result)), on=b.PAGE),
        *_processes(result),
        b.Rows([b.Row("pays back", result.payback)] if result.payback else [], on=b.TERMINAL),
        b.Lines([result.payback], on=b.MARKDOWN),
        b.Rows([b.Row("counted", b.dim(books))], on=b.TERMINAL),
        b.Notes([*result.notes, *missing], tight=True, apart=False),
        b.Rows(
            [b.Row("failed", b.Span(f"{crash.code} {crash.error}", "bold red")) for crash in result.crashes], tight=True
        ),
        b.Foot(f"{facts}. {books}. torchtriage {result.version}"),
    ]
    remark = "Times are wall time of the compiling process; shares of what each heading names."
    return b.Document(title, result.version, result.schema, blocks, "compile.css", remark)


# -- causes ----------------------------------------------------------------------------------------


def _breaks(result: CompileResult) -> Iterator[b.Block]:
    breaks = result.breaks
    heading = (
        b.bold("Graph breaks"),
        b.dim(f"  {len(breaks)} distinct, {format_count(result.books.n_breaks, 'record')}"),
    )
    entries = [_break(graph_break, rank) for rank, graph_break in enumerate(breaks[:N_ON_PAGE], 1)]
    yield from _listed(entries, len(breaks), heading, "Graph breaks", "breaks")
    costed = any(graph_break.trace for graph_break in breaks)
    rows = []
    for graph_break in breaks:
        what = (b.code(graph_break.id), f" {graph_break.type}") if graph_break.id else graph_break.type
        cost = (joined(graph_break.trace),) if costed else ()
        where = formatting.graph_break(graph_break)
        rows.append((what, where, str(graph_break.count), graph_break.fix.text, *cost))
    columns = ("graph break", "where", "times", "fix", *(("in the trace",) if costed else ()))
    yield b.Table(columns, rows, align="llrll", limit=N_IN_MARKDOWN, on=b.MARKDOWN)


def _listed(entries: Sequence[b.Entry], number: int, heading: b.Text, title: str, name: str) -> Iterator[b.Block]:
    rest = b.more(number - N_ROWS, "row")
    yield b.Section("", [*entries[:N_ROWS], rest], heading=heading, on=b.TERMINAL)
    left = [f"{number - N_ON_PAGE} more are in the JSON."] if number > N_ON_PAGE else []
    yield b.Section(title, [*entries, b.Lines(left, kind="sub")], name=name, on=b.PAGE)


def _rows(*rows: tuple[str, b.Text], indent: int = 3, on: str = b.TERMINAL + b.PAGE) -> b.Rows:
    return b.Rows([b.Row(label, line) for label, line in rows if b.unfold(line)], indent=indent, on=on)


def _number(value: int | str | None) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else value


def _ranks(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks)) if len(ranks) > 1 else ""


def _break(row: GraphBreak, rank: int) -> b.Entry:
    title = (b.dim(f"{rank}. "), b.bold(f"{row.id} " if row.id else ""), b.bold(cut(row.type, 100)))
    # of one name in several files, or at several lines: once
    splits = ", ".join(dict.fromkeys(frame.function for frame in row.functions[:8]))
    times = f"{row.count:,}, compile ids {', '.join(row.compile_ids[:12])}"
    stack = [(f"{frame.file}:{frame.line} {frame.function}", "") for frame in row.stack]
    blocks = [
        _rows(("where", formatting.graph_break(row)), ("splits", splits)),
        _rows(("why", cut(row.explanation.split("\n\n")[0], 240)), on=b.TERMINAL),
        _rows(("why", " ".join(row.explanation.split())), ("times", times), ("ranks", _ranks(row.ranks)), on=b.PAGE),
        *_fix(row.fix),
        _rows(*(("hint", b.dim(cut(hint, 200))) for hint in row.hints[:2]), on=b.TERMINAL),
        _rows(*(("hint", hint) for hint in row.hints), ("context", row.context[:300]), on=b.PAGE),
        _rows(("costs", b.bold(joined(row.trace)))),
        b.Folded("Python stack, innermost first", [b.Code(stack)], on=b.PAGE),
    ]
    return b.Entry(
        (*title, b.dim(f"  {row.count}x" if row.count > 1 else "")), blocks, tight=True, on=b.TERMINAL + b.PAGE
    )


def _fix(fix: Fix, before: str = "") -> list[b.Block]:
    link = fix.link if fix.link.startswith("https://") else ""
    rows = [(row, "green") for row in fix.code.split("\n")] if fix.code else []
    return [_rows(("fix", before + fix.text)), b.Code(rows, indent=3), b.Lines([b.Span(link, link=link)], on=b.PAGE)]


def _recompiles(result: CompileResult) -> Iterator[b.Block]:
    recompiles = result.recompiles
    records = format_count(result.books.n_recompiles, "record")
    heading = (b.bold("Recompilations"), b.dim(f"  {format_count(len(recompiles), 'kind')}, {records}"))
    entries = [_recompile(recompile, rank) for rank, recompile in enumerate(recompiles[:N_ON_PAGE], 1)]
    yield from _listed(entries, len(recompiles), heading, "Recompilations", "recompiles")
    rows = [
        (
            place(recompile.function),
            (formatting.recompile(recompile), b.bold(" limit reached" if recompile.limit else "")),
            formatting.values(recompile),
            str(recompile.count),
            seconds(recompile.total_ms),
            f"{formatting.cures(recompile)}: {recompile.fix.text}",
        )
        for recompile in recompiles
    ]
    columns = ("compiled again", "for", "values", "times", "took", "fix")
    yield b.Table(columns, rows, align="lllrrl", limit=N_IN_MARKDOWN, on=b.MARKDOWN)


def _recompile(row: Recompile, rank: int) -> b.Entry:
    spent = f", {format_ms(row.total_ms)}" if row.total_ms else ""
    limit = b.Span("  recompile limit reached" if row.limit else "", "bold red")
    title = (b.dim(f"{rank}. "), b.bold(formatting.recompile(row)), b.dim(f"  {row.count}x{spent}"), limit)
    caller = f", called at {place(row.caller)}" if row.caller else ""
    source = f": {row.code}" if row.code else ""
    others = f"; other graphs failed for {counts(row.others)}" if row.others else ""
    blocks = [
        _rows(
            ("of", place(row.function) + caller),
            ("guard at", place(row.frame) + source if row.frame is not None else ""),
        ),
        _rows(("guard", b.dim(cut(row.guard, 160))), on=b.TERMINAL),
        _rows(("guard", (b.code(row.guard[:600]), others)), on=b.PAGE),
        _rows(("values", formatting.values(row))),
        _rows(
            *(
                ("also", f"{formatting.looked_at(change)}: {formatting.values(change)}")
                for change in row.also[: formatting.N_NAMED]
            )
        ),
        _rows(("compile ids", ", ".join(row.compile_ids[:12])), ("ranks", _ranks(row.ranks)), on=b.PAGE),
        *_fix(row.fix, f"{formatting.cures(row)}. "),
        _rows(("hint", row.hint), on=b.PAGE),
        _rows(("costs", b.bold(joined(row.trace)))),
    ]
    return b.Entry(title, blocks, tight=True, on=b.TERMINAL + b.PAGE)


def _others(rest: Sequence[Finding]) -> Iterator[b.Block]:
    entries = [findings.entry(finding, rank) for rank, finding in enumerate(rest[:N_ON_PAGE], 1)]
    yield from _listed(entries, len(rest), "Other findings", "Other findings", "others")
    more = [f"{len(rest) - N_IN_MARKDOWN} more findings are in the JSON."] if len(rest) > N_IN_MARKDOWN else []
    yield b.Section("", [*entries[:N_IN_MARKDOWN], b.Lines(more)], on=b.MARKDOWN)


# -- time --------------------------------------------------------------------------------------


def _phases(result: CompileResult) -> Iterator[b.Block]:
    falls = [process for process in result.processes if process.spans]
    waterfall = "".join(f"<h3>{text(formatting.process(process))}</h3>{_fall(process)}" for process in falls[:N_FALLS])
    if len(falls) > N_FALLS:
        waterfall += f'<p class="sub">{len(falls) - N_FALLS} more processes are in the JSON.</p>'
    sub = (
        "The longest marks of the compiler, nested; time between compilations is cut out. Point at a bar for its"
        " name and time."
    )
    yield b.Section("Compile time as a waterfall", [b.Markup(waterfall)], sub, name="waterfall", on=b.PAGE)
    phases = sorted(result.phases, key=lambda phase: -phase.self_ms)
    marked = format_ms(sum(process.marked_ms for process in result.processes))
    lines: list[b.Text] = []
    for phase in phases:
        bar = b.Span(f"{'█' * round(phase.share * BAR):<{BAR}}  ", "cyan")
        lines.append((f"{format_ms(phase.self_ms):>9} {format_share(phase.share):>6}  ", bar, phase.name))
    heading = (b.bold("Compile time by phase"), b.dim(f"  of {marked} between the compiler's marks"))
    yield b.Section("", [b.Lines(lines, hang=19)], heading=heading, on=b.TERMINAL)
    rows = [(phase.name, format_ms(phase.self_ms), format_share(phase.share)) for phase in phases[:8]]
    yield b.Table(("compile time", "", "of all"), rows, on=b.MARKDOWN)
    sub = f"Time without the marks inside; adds up to the {marked} between the compiler's outermost marks."
    cells = [
        (
            phase.name,
            format_ms(phase.self_ms),
            format_share(phase.share),
            "█" * round(phase.share * BAR),
            ", ".join(f"{name} {format_ms(spent)} ({number}x)" for name, number, spent in phase.marks[:3]),
        )
        for phase in phases
    ]
    kinds = [_COLOURS.get(phase.name, _COLOURS[OTHER]) for phase in phases]
    columns = ("phase", "time", "share", "", "longest marks")
    yield b.Section("By phase", [b.Table(columns, cells, kind="phases", kinds=kinds)], sub, name="phases", on=b.PAGE)


def _fall(process: Process) -> str:
    """Return the marks of a process over time; outermost ones stand side by side, without gaps."""
    outer = [span for span in process.spans if span.depth == 0]
    whole = sum(span.dur_ms for span in outer) or 1.0
    scale = WIDTH / whole
    lanes = max(span.depth for span in process.spans) + 1
    height = lanes * LANE + 14
    begin = 0.0
    parts = []
    offsets: list[tuple[PhaseSpan, float]] = []
    for span in outer:
        offsets.append((span, begin))
        begin += span.dur_ms
        x = f"{begin * scale:.1f}"
        parts.append(f'<line class="cut" x1="{x}" x2="{x}" y1="0" y2="{lanes * LANE}"/>')
    for span in process.spans:
        for home, at in offsets:
            if home is span or home.start_ms <= span.start_ms < home.start_ms + home.dur_ms:
                left = (at + span.start_ms - home.start_ms) * scale
                break
        else:
            continue
        width, y = max(span.dur_ms * scale, 0.4), span.depth * LANE
        title = text(f"{span.name} {span.compile_id}: {format_ms(span.dur_ms)}", 200)
        label = html.escape(visible(span.name)[: int(width / 6)])
        words = f'<text x="{left + 3:.1f}" y="{y + 12}">{label}</text>' if width > 60 else ""
        parts.append(
            f'<g class="{_COLOURS.get(span.phase, _COLOURS[OTHER])}"><rect x="{left:.1f}" y="{y}" width="{width:.1f}"'
            f' height="{LANE - 1}"><title>{title}</title></rect>{words}</g>'
        )
    end = text(format_ms(whole))
    parts.append(f'<text class="axis" x="0" y="{height - 2}">0</text>')
    parts.append(f'<text class="axis" x="{WIDTH}" y="{height - 2}" text-anchor="end">{end}</text>')
    name = html.escape(f"Waterfall of {format_ms(whole)} of compiling")
    return f'<svg class="fall" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{name}">{"".join(parts)}</svg>'


# -- tables ------------------------------------------------------------------------------------


def _functions(result: CompileResult) -> Iterator[b.Block]:
    is_text = all(process.form == "text" for process in result.processes)  # which holds no times
    named = [function for function in result.functions if function.frame.function]
    lines: list[b.Block] = []
    for function in named[:N_FUNCTIONS]:
        spent = format_ms(function.total_ms + function.backward_ms)
        head = "" if is_text else f"{spent:>9} {function.n_compiles:>3}x  "
        title = (head, b.bold(place(function.frame)), b.dim(f"  {formatting.function(function)}"))
        lines += [
            b.Lines([title], hang=2 if is_text else 17),
            b.Lines([b.dim(cut(function.why, 160))] if function.why else [], indent=4 if is_text else 19, hang=0),
        ]
    inlined = f"{format_count(result.n_inlined, 'function')} inlined into their graphs"
    heading = (b.bold("Functions"), b.dim(f"  {inlined}" if result.n_inlined else ""))
    yield b.Section("", [*lines, b.more(len(named) - N_FUNCTIONS, "function")], heading=heading, on=b.TERMINAL)

    rows = [
        (
            (
                b.code(f"{function.frame.file}{f':{function.frame.line}' if function.frame.line else ''}"),
                f" {function.frame.function}",
            ),
            (function.outcome, *(("\n", b.dim(function.why[:300])) if function.why else ())),
            "" if is_text else _number(function.n_compiles),
            "" if is_text else _number(function.n_attempts),
            _number(function.n_ops),
            _number(function.n_guards),
            str(function.n_breaks or ""),
            seconds(function.total_ms),
            seconds(function.backward_ms),
        )
        for function in result.functions
        if function.frame.function or function.frame.file
    ]
    columns = ("function", "outcome", "compiled", "attempts", "operators", "guards", "breaks", "forward", "backward")
    names = ", ".join(f"{frame.function} ({file_name(frame.file)})" for frame in result.inlined[:60])
    inlined = f"{format_count(result.n_inlined, 'function')} inlined into the graphs"
    parts: list[b.Block] = [
        b.Table(columns, rows, limit=N_ON_PAGE),
        *([b.Folded(inlined, [b.Lines([names])])] if rows and names else ()),
    ]
    yield b.Section("Functions", parts, name="functions", on=b.PAGE)


def _inductor(inductor: Inductor) -> Iterator[b.Block]:
    if not (inductor.n_modules or inductor.caches or inductor.stages or inductor.cudagraph_skips):
        return
    kernels = fused = ""
    if inductor.n_modules:
        kernels = f"{counts(inductor.generated) or 'none'}, in {format_count(inductor.n_modules, 'module')}"
    if inductor.n_fused_kernels:
        mean = inductor.n_fused_ops / inductor.n_fused_kernels
        ops = format_count(inductor.n_fused_ops, "operator")
        fused = f"{ops} in {format_count(inductor.n_fused_kernels, 'kernel')}, {mean:.1f} each"
    rows: list[tuple[str, b.Text]] = [("kernels", kernels), ("fusion", fused)]
    rows += [("library", counts(inductor.library)), ("fallback", counts(inductor.fallback))]
    for stage in inductor.stages:
        gone = f"; gone: {counts(stage.gone, 4)}" if stage.gone else ""
        new = f"; new: {counts(stage.came, 4)}" if stage.came else ""
        rows.append(("passes", f"{stage.name}: {stage.n_before:,} operators become {stage.n_after:,}{gone}{new}"))
    slow = [f"{name} {format_ms(spent)} ({number}x)" for name, number, spent in inductor.passes if spent >= 1][:4]
    rows.append(("slowest", b.dim(", ".join(slow)) if slow else ""))
    for cache in inductor.caches:
        asked = cache.n_hits + cache.n_misses + cache.n_bypasses
        saved = f", saved {format_ms(cache.saved_ms)}" if cache.saved_ms else ""
        line = (
            f"{cache.name.replace('_', ' ')}: {cache.n_hits} of {asked} hit, {cache.n_misses} missed,"
            f" {cache.n_bypasses} bypassed{saved}{formatting.cache(cache.bypass_reasons)}"
        )
        rows.append(("cache", line))
    rows.append(("autotune", format_ms(inductor.autotune_ms) if inductor.autotune_ms else ""))
    skips = [
        ("cudagraph", b.Span(f"skipped {skip.count}x: {cut(skip.name, 160)}", "yellow"))
        for skip in inductor.cudagraph_skips
    ]
    yield b.Section("", [_rows(*rows, *skips[:4], indent=2)], heading="Inductor", on=b.TERMINAL)
    passes = [(name, f"{number:,}", format_ms(spent)) for name, number, spent in inductor.passes]
    folded = b.Folded("Passes by time, marks inside included", [b.Table(("pass", "times", "time"), passes)])
    yield b.Section("Inductor", [_rows(*rows, *skips), folded], name="inductor", on=b.PAGE)


def _guards(result: CompileResult) -> Iterator[b.Block]:
    guards = result.guards
    if not guards.n_guards:
        return
    number = f"{guards.n_guards:,} in {format_count(guards.n_graphs, 'graph')}"
    check = (
        f"{guards.latency_us:.0f} µs when compiled, the slowest: {guards.slowest}"
        if guards.latency_us is not None
        else ""
    )
    python = f"; {guards.n_python} run Python" if guards.n_python else ""
    rows = (
        ("check", check),
        ("kinds", counts(guards.kinds) + python if guards.kinds else ""),
        ("most on", counts(guards.sources, 4)),
        ("most from", counts(guards.places, 3)),
    )
    heading = (b.bold("Guards"), b.dim(f"  {number}"))
    yield b.Section("", [_rows(*rows, indent=2)], heading=heading, on=b.TERMINAL)
    groups = (("By kind", guards.kinds), ("On", guards.sources), ("Asked for by", guards.places))
    tallies = [
        b.Table((title, "guards"), [(row.name, f"{row.count:,}") for row in group[:15]]) for title, group in groups
    ]
    yield b.Section("Guards", [_rows(*rows), *tallies], number, name="guards", on=b.PAGE)


def _drawings(result: CompileResult) -> Iterator[str]:
    if not result.drawings:
        return
    yield (
        '<section id="graphs"><h2>Graphs</h2><p class="sub">FX graphs in the order they were made, with the break that'
        " ended each; equal ones of several processes once. Open one to see it; point at a box for its line.</p>"
    )
    for drawing in result.drawings:
        more = f" and {len(drawing.processes) - 8} more" if len(drawing.processes) > 8 else ""
        of = f" · {text(', '.join(drawing.processes[:8]) + more)}" if drawing.processes else ""
        yield f"<details><summary>{text(drawing.title)}{of}</summary>"
        yield (
            f'<div class="graph"><svg width="{drawing.width:.0f}" height="{drawing.height:.0f}"'
            f' viewBox="0 0 {drawing.width:.0f} {drawing.height:.0f}" role="img" aria-label="{text(drawing.title)}">'
        )
        for begin, end in drawing.edges:
            _, _, _, x1, y1, _, h1 = drawing.nodes[begin]
            _, _, _, x2, y2, _, h2 = drawing.nodes[end]
            top, low = y1 + h1 / 2, y2 - h2 / 2
            middle = (top + low) / 2
            yield f'<path d="M{x1:.0f},{top:.0f}C{x1:.0f},{middle:.0f} {x2:.0f},{middle:.0f} {x2:.0f},{low:.0f}"/>'
        for label, kind, detail, x, y, width, height in drawing.nodes:
            yield (
                f'<g class="{html.escape(kind, quote=True)}"><rect x="{x - width / 2:.0f}" y="{y - height / 2:.0f}"'
                f' width="{width:.0f}" height="{height:.0f}" rx="3"><title>{text(detail, 400)}</title></rect>'
                f'<text x="{x:.0f}" y="{y - 1:.0f}" text-anchor="middle">{text(label, 40)}</text>'
                f'<text class="dtype" x="{x:.0f}" y="{y + 11:.0f}" text-anchor="middle">'
                f"{text(detail.partition(chr(10))[0], 40)}</text></g>"
            )
        yield "</svg></div></details>"
        if drawing.end:
            yield f'<p class="broken">graph break: {text(drawing.end)}</p>'
    yield "</section>"


def _processes(result: CompileResult) -> Iterator[b.Block]:
    processes = result.processes
    if len(processes) < 2:
        cold = [
            b.Row("caches", formatting.process(process)) for process in processes if process.n_cold or process.n_warm
        ]
        yield b.Rows(cold, on=b.TERMINAL)
    else:
        lines = [
            (formatting.process(process), b.dim(f"  {file_name(process.path)}")) for process in processes[:N_PROCESSES]
        ]
        differ = b.Rows([b.Row("differs", b.Span(line, "yellow")) for line in result.divergence])
        more = b.more(len(processes) - N_PROCESSES, "process")
        yield b.Section("", [b.Lines(lines), more, differ], heading="Processes", on=b.TERMINAL)
    ranks = [f"Ranks differ: {line}" for line in result.divergence]
    yield b.Lines(ranks, bullets=True, on=b.MARKDOWN)

    columns = (
        "log rank restart torch compilations graphs breaks recompilations time cold warm read used left_out damaged"
    )
    counted = ("rank", "restart", "torch", "n_compiles", "n_graphs", "n_breaks", "n_recompiles")
    times = ("compile_ms", "cold_ms", "warm_ms")
    books = ("n_read", "n_used", "n_skipped", "n_damaged")
    rows = [
        (
            file_name(process.path),
            *(_number(getattr(process, name)) for name in counted),
            *(seconds(getattr(process, name)) for name in times),
            *(_number(getattr(process.books, name)) for name in books),
        )
        for process in processes[:N_ON_PAGE]
    ]
    skipped = [(reason.name, f"{reason.count:,}") for reason in result.books.skipped]
    parts = [
        b.Table([name.replace("_", " ") for name in columns.split()], rows),
        b.Lines(ranks),
        b.Folded("What was left out of the report, and why", [b.Table(("reason", "entries"), skipped)]),
    ]
    yield b.Section("Processes", parts, name="processes", on=b.PAGE)

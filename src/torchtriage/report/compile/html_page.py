"""A compile result as one page that asks no server and runs no script.

Names from a log are escaped text. Pictures are SVG in the page: the compiler's marks over time, and
the FX graphs where they were drawn.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from torchtriage.compile.phases import OTHER, PHASES
from torchtriage.compile.result import (
    CompileResult,
    Count,
    GraphBreak,
    Inductor,
    Process,
    Recompile,
    Span,
)
from torchtriage.finding import Finding, Fix, Frame
from torchtriage.names import visible
from torchtriage.report.compile import words
from torchtriage.report.page import document, head, note, text
from torchtriage.units import format_count, format_ms, format_share

__all__ = ["render"]

N_ROWS = 200
N_FALLS = 8
WIDTH = 1000
LANE = 18
_COLOURS = {name: f"p{place}" for place, name in enumerate([*dict(PHASES), OTHER])}


def render(result: CompileResult) -> str:
    """Return one self-contained HTML page."""
    names = [words.file_name(path) for path in result.paths] or ["compile log"]
    title = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    return document(
        "compile.css",
        title=f"{title} · torchtriage compile",
        version=result.version,
        schema=result.schema,
        note="Times are wall time of the compiling process; shares of what each heading names.",
        body="\n".join(_body(result)),
    )


def _lines(value: str) -> str:
    return "\n".join(text(line) for line in value.split("\n"))


def _body(result: CompileResult) -> Iterable[str]:
    yield from head("torchtriage compile", result.verdict)
    yield f'<p class="sub">{text(words.facts(result))}. {text(words.books(result))}.</p>'
    if result.payback:
        yield f"<p>{text(result.payback)}</p>"
    yield "</header>"
    if result.healthy:
        yield '<div class="clean"><p>No findings.</p></div>'
    yield from _breaks(result.breaks)
    yield from _recompiles(result.recompiles)
    yield from _others(words.other_findings(result))
    yield from _falls(result)
    yield from _phases(result)
    yield from _functions(result)
    yield from _inductor(result.inductor)
    yield from _guards(result)
    yield from _drawings(result)
    yield from _processes(result)
    yield from _notes(result)


def _place(frame: Frame) -> str:
    line = f":{frame.line}" if frame.line else ""
    return f"<code>{text(frame.file)}{line}</code> {text(frame.function)}"


def _pairs(rows: Iterable[tuple[str, str]]) -> str:
    told = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in rows if value)
    return f"<dl>{told}</dl>"


def _fix(fix: Fix) -> str:
    said = text(fix.text) + " "
    if fix.code:
        said += f"<pre>{_lines(fix.code)}</pre>"
    if fix.link.startswith("https://"):
        link = html.escape(fix.link, quote=True)
        said += f'<a href="{link}" rel="noreferrer">{link}</a>'
    return said


def _breaks(rows: Sequence[GraphBreak]) -> Iterable[str]:
    if not rows:
        return
    yield '<section id="breaks"><h2>Graph breaks</h2>'
    for one in rows[:N_ROWS]:
        name = f"{text(one.id)} " if one.id else ""
        yield f'<div class="row"><h3>{name}{text(one.type)}</h3>'
        yield _pairs(
            [
                ("where", _place(one.frame) if one.frame else "no line in the log"),
                ("from", _place(one.caller) if one.caller else ""),
                ("splits", ", ".join(text(frame.function) for frame in one.functions[:8])),
                ("times", f"{one.count:,}, compile ids {text(', '.join(one.compile_ids[:12]))}"),
                ("ranks", ", ".join(map(str, one.ranks)) if len(one.ranks) > 1 else ""),
                ("in the trace", text(words.joined(one.trace))),
                ("why", text(" ".join(one.explanation.split()))),
                ("fix", _fix(one.fix)),
                ("PyTorch says", "<br>".join(text(hint) for hint in one.hints)),
                ("context", text(one.context, 300)),
            ]
        )
        if one.stack:
            frames = "\n".join(
                f"{text(frame.file)}:{frame.line} {text(frame.function)}" for frame in one.stack
            )
            title = "Python stack, innermost first"
            yield f"<details><summary>{title}</summary><pre>{frames}</pre></details>"
        yield "</div>"
    yield from _more(len(rows))
    yield "</section>"


def _more(number: int) -> Iterable[str]:
    if number > N_ROWS:
        yield f'<p class="sub">{number - N_ROWS} more are in the JSON.</p>'


def _recompiles(rows: Sequence[Recompile]) -> Iterable[str]:
    if not rows:
        return
    yield '<section id="recompiles"><h2>Recompilations</h2>'
    for one in rows[:N_ROWS]:
        limit = " · recompile limit reached" if one.limit else ""
        yield f'<div class="row"><h3>{text(words.recompile(one))}{limit}</h3>'
        code = f" <code>{text(one.code)}</code>" if one.code else ""
        others = f"; other graphs failed for {text(words.counts(one.others))}" if one.others else ""
        yield _pairs(
            [
                ("function", _place(one.function)),
                ("called at", _place(one.caller) if one.caller else ""),
                ("guard at", _place(one.frame) + code if one.frame else ""),
                ("guard", f"<code>{text(one.guard, 600)}</code>{others}"),
                ("saw", text(" → ".join(one.values))),
                (
                    "times",
                    f"{one.count:,}, {text(format_ms(one.total_ms))} in all, compile ids"
                    f" {text(', '.join(one.compile_ids[:12]))}",
                ),
                ("ranks", ", ".join(map(str, one.ranks)) if len(one.ranks) > 1 else ""),
                ("in the trace", text(words.joined(one.trace))),
                ("cure", f'<span class="cure">{text(words.cures(one))}.</span> {_fix(one.fix)}'),
                ("PyTorch says", text(one.hint)),
            ]
        )
        yield "</div>"
    yield from _more(len(rows))
    yield "</section>"


def _others(rows: Sequence[Finding]) -> Iterable[str]:
    if not rows:
        return
    yield '<section id="others"><h2>Other findings</h2>'
    for one in rows[:N_ROWS]:
        level = f'<span class="sev {one.severity}">{one.severity}</span>'
        yield f'<div class="row"><h3>{level} {text(one.code)} {text(one.title)}</h3>'
        where = _place(one.place.frame) if one.place.frame else ""
        yield _pairs([("where", where), ("what", text(one.message)), ("fix", _fix(one.fix))])
        yield "</div>"
    yield from _more(len(rows))
    yield "</section>"


# -- time --------------------------------------------------------------------------------------


def _falls(result: CompileResult) -> Iterable[str]:
    drawn = [one for one in result.processes if one.spans]
    if not drawn:
        return
    yield (
        '<section id="waterfall"><h2>Compile time as a waterfall</h2><p class="sub">The longest'
        " marks of the compiler, nested; time between compilations is cut out. Point at a bar for"
        " its name and time.</p>"
    )
    for one in drawn[:N_FALLS]:
        yield f"<h3>{text(words.process(one))}</h3>"
        yield _fall(one)
    if len(drawn) > N_FALLS:
        yield f'<p class="sub">{len(drawn) - N_FALLS} more processes are in the JSON.</p>'
    yield "</section>"


def _fall(process: Process) -> str:
    outer = [span for span in process.spans if span.depth == 0]
    whole = sum(span.dur_ms for span in outer) or 1.0
    scale = WIDTH / whole
    lanes = max(span.depth for span in process.spans) + 1
    height = lanes * LANE + 14
    begin = 0.0
    parts = []
    offsets: list[tuple[Span, float]] = []
    for span in outer:
        offsets.append((span, begin))
        begin += span.dur_ms
        parts.append(
            f'<line class="cut" x1="{begin * scale:.1f}" x2="{begin * scale:.1f}" y1="0"'
            f' y2="{lanes * LANE}"/>'
        )
    for span in process.spans:
        home = next(
            (
                (one, at)
                for one, at in offsets
                if one.start_ms <= span.start_ms < one.start_ms + one.dur_ms or one is span
            ),
            None,
        )
        if home is None:
            continue
        x = (home[1] + span.start_ms - home[0].start_ms) * scale
        width = max(span.dur_ms * scale, 0.4)
        told = f"{span.name} {span.compile_id}: {format_ms(span.dur_ms)}"
        parts.append(
            f'<g class="{_COLOURS.get(span.phase, _COLOURS[OTHER])}"><rect x="{x:.1f}"'
            f' y="{span.depth * LANE}" width="{width:.1f}" height="{LANE - 1}">'
            f"<title>{text(told, 200)}</title></rect>"
        )
        if width > 60:
            label = visible(span.name)[: int(width / 6)]
            parts.append(
                f'<text x="{x + 3:.1f}" y="{span.depth * LANE + 12}">{html.escape(label)}</text>'
            )
        parts.append("</g>")
    parts.append(f'<text class="axis" x="0" y="{height - 2}">0</text>')
    end = text(format_ms(whole))
    parts.append(f'<text class="axis" x="{WIDTH}" y="{height - 2}" text-anchor="end">{end}</text>')
    name = html.escape(f"Waterfall of {format_ms(whole)} of compiling")
    return (
        f'<svg class="fall" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{name}">'
        + "".join(parts)
        + "</svg>"
    )


def _phases(result: CompileResult) -> Iterable[str]:
    if not result.phases:
        return
    marked = sum(one.marked_ms for one in result.processes)
    yield (
        f'<section id="phases"><h2>By phase</h2><p class="sub">Time without the marks inside;'
        f" adds up to the {text(format_ms(marked))} between the compiler's outermost marks.</p>"
        '<div class="scroll"><table class="phases"><thead><tr><th>phase</th><th>time</th>'
        "<th>share</th><th></th><th>longest marks</th></tr></thead><tbody>"
    )
    for one in sorted(result.phases, key=lambda one: -one.self_ms):
        colour = _COLOURS.get(one.name, _COLOURS[OTHER])
        marks = ", ".join(
            f"{name} {format_ms(spent)} ({number}x)" for name, number, spent in one.marks[:3]
        )
        yield (
            f'<tr class="{colour}"><td><i></i>{text(one.name)}</td>'
            f"<td>{text(format_ms(one.self_ms))}</td>"
            f"<td>{text(format_share(one.share))}</td>"
            '<td><svg viewBox="0 0 100 4" preserveAspectRatio="none">'
            f'<rect width="{one.share * 100:.2f}" height="4"/></svg></td>'
            f"<td>{text(marks)}</td></tr>"
        )
    yield "</tbody></table></div></section>"


# -- tables ------------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f"<th>{name}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _functions(result: CompileResult) -> Iterable[str]:
    rows = [one for one in result.functions if one.frame.function or one.frame.file]
    if not rows:
        return
    is_text = all(one.form == "text" for one in result.processes)  # tells no numbers
    yield '<section id="functions"><h2>Functions</h2>'
    yield _table(
        (
            "function",
            "outcome",
            "compiled",
            "attempts",
            "operators",
            "guards",
            "breaks",
            "forward",
            "backward",
        ),
        (
            (
                _place(one.frame),
                text(one.outcome) + (f"<br><small>{text(one.why, 300)}</small>" if one.why else ""),
                "" if is_text else str(one.n_compiles),
                "" if is_text else str(one.n_attempts),
                "" if one.n_ops is None else str(one.n_ops),
                "" if one.n_guards is None else str(one.n_guards),
                str(one.n_breaks or ""),
                text(words.seconds(one.total_ms)),
                text(words.seconds(one.backward_ms)),
            )
            for one in rows[:N_ROWS]
        ),
    )
    yield from _more(len(rows))
    if result.inlined:
        names = ", ".join(
            f"{text(one.function)} ({text(words.file_name(one.file))})"
            for one in result.inlined[:60]
        )
        yield (
            f"<details><summary>{format_count(result.n_inlined, 'function')} inlined into the"
            f" graphs</summary><p>{names}</p></details>"
        )
    yield "</section>"


def _inductor(one: Inductor) -> Iterable[str]:
    if not (one.n_modules or one.caches or one.stages or one.cudagraph_skips):
        return
    yield '<section id="inductor"><h2>Inductor</h2><div class="row">'
    fused = ""
    if one.n_fused_kernels:
        mean = one.n_fused_ops / one.n_fused_kernels
        fused = f"{one.n_fused_ops:,} operators in {one.n_fused_kernels:,} kernels, {mean:.1f} each"
    yield _pairs(
        [
            (
                "kernels",
                f"{text(words.counts(one.generated))} in {one.n_modules:,} modules"
                if one.n_modules
                else "",
            ),
            ("fusion", fused),
            ("library calls", text(words.counts(one.library))),
            ("left as they are", text(words.counts(one.fallback))),
            ("autotuning", text(words.seconds(one.autotune_ms))),
            (
                "CUDA graphs skipped",
                "<br>".join(f"{row.count:,}x {text(row.name)}" for row in one.cudagraph_skips),
            ),
        ]
    )
    yield "</div>"
    if one.caches:
        yield "<h3>Caches</h3>"
        yield _table(
            ("cache", "hits", "misses", "passed by", "saved", "why passed by"),
            (
                (
                    text(cache.name.replace("_", " ")),
                    str(cache.n_hits),
                    str(cache.n_misses),
                    str(cache.n_bypasses),
                    text(words.seconds(cache.saved_ms)),
                    text(words.counts(cache.bypass_reasons, 3)),
                )
                for cache in one.caches
            ),
        )
    if one.stages:
        yield "<h3>What the passes changed</h3>"
        yield _table(
            ("passes", "graphs", "operators before", "after", "gone", "new"),
            (
                (
                    text(stage.name),
                    str(stage.n_graphs),
                    f"{stage.n_before:,}",
                    f"{stage.n_after:,}",
                    text(words.counts(stage.gone)),
                    text(words.counts(stage.came)),
                )
                for stage in one.stages
            ),
        )
    if one.passes:
        yield "<details><summary>Passes by time, marks inside included</summary>"
        yield _table(
            ("pass", "times", "time"),
            (
                (text(name), f"{number:,}", text(format_ms(spent)))
                for name, number, spent in one.passes
            ),
        )
        yield "</details>"
    yield "</section>"


def _tally(rows: Sequence[Count]) -> str:
    return _table(("", "guards"), ((text(one.name), f"{one.count:,}") for one in rows[:15]))


def _guards(result: CompileResult) -> Iterable[str]:
    told = result.guards
    if not told.n_guards:
        return
    yield (
        f'<section id="guards"><h2>Guards</h2><p class="sub">{told.n_guards:,} guards in'
        f" {format_count(told.n_graphs, 'graph')}, {told.n_python:,} of them run Python."
    )
    if told.latency_us is not None:
        yield (
            f" One check of the slowest, {text(told.slowest)}, takes {told.latency_us:.0f} µs at"
            " each call, as measured once when it was made."
        )
    yield '</p><div class="two">'
    for title, rows in (
        ("By kind", told.kinds),
        ("On", told.sources),
        ("Asked for by", told.places),
    ):
        if rows:
            yield f"<div><h3>{title}</h3>{_tally(rows)}</div>"
    yield "</div></section>"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more


def _drawings(result: CompileResult) -> Iterable[str]:
    if not result.drawings:
        return
    yield (
        '<section id="graphs"><h2>Graphs</h2><p class="sub">FX graphs in the order they were made,'
        " with the break that ended each; equal ones of several processes once. Open one to see it;"
        " point at a box for its line.</p>"
    )
    for one in result.drawings:
        of = f" · {text(_some(one.processes))}" if one.processes else ""
        yield f"<details><summary>{text(one.title)}{of}</summary>"
        size = f"{one.width:.0f} {one.height:.0f}"
        yield (
            f'<div class="graph"><svg width="{one.width:.0f}" height="{one.height:.0f}"'
            f' viewBox="0 0 {size}" role="img" aria-label="{text(one.title)}">'
        )
        for begin, end in one.edges:
            _, _, _, x1, y1, _, h1 = one.nodes[begin]
            _, _, _, x2, y2, _, h2 = one.nodes[end]
            top, low = y1 + h1 / 2, y2 - h2 / 2
            middle = (top + low) / 2
            yield (
                f'<path d="M{x1:.0f},{top:.0f}C{x1:.0f},{middle:.0f} {x2:.0f},{middle:.0f}'
                f' {x2:.0f},{low:.0f}"/>'
            )
        for label, kind, detail, x, y, width, height in one.nodes:
            sub = detail.split("\n", 1)[0]
            yield (
                f'<g class="{html.escape(kind, quote=True)}"><rect x="{x - width / 2:.0f}"'
                f' y="{y - height / 2:.0f}" width="{width:.0f}" height="{height:.0f}" rx="3">'
                f"<title>{text(detail, 400)}</title></rect>"
                f'<text x="{x:.0f}" y="{y - 1:.0f}" text-anchor="middle">{text(label, 40)}</text>'
                f'<text class="dtype" x="{x:.0f}" y="{y + 11:.0f}" text-anchor="middle">'
                f"{text(sub, 40)}</text></g>"
            )
        yield "</svg></div></details>"
        if one.end:
            yield f'<p class="broken">graph break: {text(one.end)}</p>'
    yield "</section>"


def _processes(result: CompileResult) -> Iterable[str]:
    yield '<section id="processes"><h2>Processes</h2>'
    yield _table(
        (
            "log",
            "rank",
            "restart",
            "torch",
            "compilations",
            "graphs",
            "breaks",
            "recompilations",
            "time",
            "cold",
            "warm",
            "entries read",
            "used",
            "left out",
            "damaged",
        ),
        (
            (
                text(words.file_name(one.path)),
                "" if one.rank is None else str(one.rank),
                str(one.restart),
                text(one.torch),
                "" if one.n_compiles is None else str(one.n_compiles),
                "" if one.n_graphs is None else str(one.n_graphs),
                str(one.n_breaks),
                str(one.n_recompiles),
                text(words.seconds(one.compile_ms)),
                text(words.seconds(one.cold_ms)),
                text(words.seconds(one.warm_ms)),
                f"{one.books.n_read:,}",
                f"{one.books.n_used:,}",
                f"{one.books.n_skipped:,}",
                f"{one.books.n_damaged:,}",
            )
            for one in result.processes[:N_ROWS]
        ),
    )
    for line in result.divergence:
        yield f"<p>Ranks differ: {text(line)}</p>"
    yield "<details><summary>What was left out of the report, and why</summary>"
    yield _table(
        ("reason", "entries"), ((text(one.name), f"{one.count:,}") for one in result.books.skipped)
    )
    yield "</details></section>"


def _notes(result: CompileResult) -> Iterable[str]:
    if not (result.notes or result.not_checked or result.crashes):
        return
    yield '<section><h2>Notes</h2><ul class="notes">'
    yield from (note(one.level, one.message, one.fix) for one in result.notes)
    for one in result.not_checked:
        yield note("warn", f"Not told: {one.name}, no {', '.join(one.missing)}", one.how_to_record)
    yield from (note("refuse", f"{crash.code}: {crash.error}") for crash in result.crashes)
    yield "</ul></section>"

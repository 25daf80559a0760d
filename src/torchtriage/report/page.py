"""Documents as one page that asks no server: blocks as HTML, everything in them escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator

from torchtriage.core.html import filled, policy, template
from torchtriage.core.names import visible
from torchtriage.core.units import format_count
from torchtriage.report import blocks as b

MAX_TEXT = 4000
WIDE, HIGH = 1000.0, 100.0
"""Of pictures as wide as their place, in their own units."""
_UNIT = re.compile(r"(?<=\d) (?=(?:[nµm]?s|%|[KMGT]?i?B|/s)(?:\W|$))")


def render(document: b.Document) -> str:
    """Return one self-contained HTML page without scripts."""
    style = template("page.css") + (template(document.sheet) if document.sheet else "")
    parts = {
        "policy": policy(style),
        "title": html.escape(visible(f"{document.title} · torchtriage")),
        "version": html.escape(document.version),
        "schema": html.escape(document.schema),
        "style": style,
        "note": document.remark,
        "body": body(document.blocks),
    }
    return filled("document.html", parts)


def body(blocks: Iterable[b.Block]) -> str:
    """Return the blocks as HTML."""
    return "\n".join(_blocks(blocks))


def text(value: str, limit: int = MAX_TEXT) -> str:
    """Return a name or a sentence as HTML: nothing invisible, not too long, numbers kept with units."""
    plain = visible(value)
    cut = html.escape(plain if len(plain) <= limit else f"{plain[: limit - 1]}…")
    return _UNIT.sub("\N{NO-BREAK SPACE}", cut)


def line(value: b.Text) -> str:
    """Return a line with its styles as HTML."""
    pieces = []
    for span in b.unfold(value):
        inner = "<br>" if span.text == "\n" else text(span.text)
        if span.link.startswith("https://"):
            pieces.append(f'<a href="{html.escape(span.link)}" rel="noreferrer">{inner}</a>')
        elif span.style == "code":
            pieces.append(f"<code>{inner}</code>")
        elif span.style == "dim":
            pieces.append(f'<span class="tag">{inner}</span>')
        else:
            pieces.append(f"<b>{inner}</b>" if "bold" in span.style else inner)
    return "".join(pieces)


def lines(value: str) -> str:
    """Return code as HTML, line by line."""
    return "\n".join(text(row) for row in value.split("\n"))


def svg(parts: Iterable[str], kind: str, label: str) -> str:
    """Return a picture that is as wide as its place; ``label`` says what it shows."""
    name = f'class="{kind}" ' if kind else ""
    return (
        f'<svg {name}viewBox="0 0 {WIDE:g} {HIGH:g}" preserveAspectRatio="none" role="img" aria-label="{text(label)}">'
        f"{''.join(parts)}</svg>"
    )


def whisker(
    kind: str, label: str, verdict: str, *, limit: float | None, low: float | None, high: float, centre: float | None
) -> str:
    """Return an interval on an axis from -1 to 1 around no change; what lies beyond is cut."""

    def at(share: float) -> float:
        return round((max(min(share, 1.0), -1.0) + 1) / 2 * WIDE, 1)

    parts = [svg_line(WIDE / 2, 0, WIDE / 2, HIGH, "zero")]
    if limit is not None:
        parts.append(svg_line(at(limit), 0, at(limit), HIGH, "limit"))
    if low is not None:
        parts.append(svg_line(at(low), HIGH / 2, at(high), HIGH / 2, f"range-line {verdict}"))
    if centre is not None:
        parts.append(svg_line(at(centre), HIGH / 2, at(centre), HIGH / 2, "centre"))
    return svg(parts, kind, label)


def svg_line(x1: float, y1: float, x2: float, y2: float, kind: str, title: str = "") -> str:
    """Return a line of a picture; ``title`` is what it says when it is pointed at."""
    shape = f'class="{html.escape(kind)}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"'
    return f"<line {shape}><title>{text(title)}</title></line>" if title else f"<line {shape}/>"


def _blocks(blocks: Iterable[b.Block]) -> Iterator[str]:
    for block in b.shown(blocks, b.PAGE):
        yield from _block(block)


def _block(block: b.Block) -> Iterator[str]:
    match block:
        case b.Head():
            yield from _head(block)
        case b.Rows():
            cells = "".join(f"<dt>{text(row.label)}</dt><dd>{line(row.text)}</dd>" for row in block.rows)
            yield f'<dl class="pairs">{cells}</dl>'
        case b.Lines():
            kind = f' class="{block.kind}"' if block.kind else ""
            if block.bullets:
                yield f"<ul>{''.join(f'<li>{line(item)}</li>' for item in block.lines if item)}</ul>"
            else:
                yield from (f"<p{kind}>{line(item)}</p>" for item in block.lines if item)
        case b.Table():
            yield _table(block)
        case b.Code():
            yield f"<pre>{lines(chr(10).join(row for row, _ in block.rows))}</pre>"
        case b.Entry():
            yield f'<div class="{block.kind}">{f"<h3>{line(block.title)}</h3>" if block.title else ""}'
            yield from _blocks(block.blocks)
            yield "</div>"
        case b.Section():
            name = f' id="{block.name}"' if block.name else ""
            yield f"<section{name}><h2>{text(block.title)}</h2>"
            if block.sub:
                yield f'<p class="sub">{line(block.sub)}</p>'
            yield from _blocks(block.blocks)
            yield "</section>"
        case b.Folded():
            yield f"<details><summary>{line(block.title)}</summary>"
            yield from _blocks(block.blocks)
            yield "</details>"
        case b.Notes():
            yield f'<section><h2>{block.title}</h2><ul class="notes">'
            for note in block.notes:
                below = f'<p class="how">Try: {text(note.fix)}</p>' if note.fix else ""
                yield f'<li class="{note.level}"><p>{text(note.message)}</p>{below}</li>'
            yield "</ul></section>"
        case b.Markup():
            yield block.html


def _head(head: b.Head) -> Iterator[str]:
    first, *others = head.verdict
    mark = f' <b class="{head.mark[1]}">{text(head.mark[0])}</b>' if head.mark else ""
    yield f'<header class="head"><p class="kicker">{text(head.kicker)}{mark}</p>'
    yield f"<h1>{text(first)}</h1>"
    yield from (f'<p class="lede">{text(item)}</p>' for item in others if item)
    if head.facts:
        rows = "".join(f"<div><dt>{text(label)}</dt><dd>{line(value)}</dd></div>" for label, value in head.facts)
        yield f'<dl class="facts">{rows}</dl>'
    yield "</header>"


def _table(table: b.Table) -> str:
    head = "".join(f"<th>{text(name)}</th>" for name in table.columns)
    top = f"<thead><tr>{head}</tr></thead>" if any(table.columns) else ""
    rows = []
    for index, row in enumerate(table.rows[: table.limit]):
        kind = f' class="{table.kinds[index]}"' if table.kinds and table.kinds[index] else ""
        rows.append(f"<tr{kind}>{''.join(f'<td>{line(cell)}</td>' for cell in row)}</tr>")
    kind = f' class="{table.kind}"' if table.kind else ""
    whole = f'<div class="scroll"><table{kind}>{top}<tbody>{"".join(rows)}</tbody></table></div>'
    if len(table.rows) > table.limit:
        whole += f'<p class="more">{format_count(len(table.rows) - table.limit, "more row")} in the JSON.</p>'
    return whole

"""Documents as a comment for a pull request, in GitHub's dialect.

Names stand in code spans, prose is escaped, so no event name can open a tag, break out of a table,
mention a person or reference an issue.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

from torchtriage.core.names import visible
from torchtriage.core.units import format_count
from torchtriage.report import blocks as b

# What Markdown would read as markup inside a line.
_MARKUP = re.compile(r"([\\`*_\[\]|~$])")
# What would become a link, a mention or a reference; a zero-width space keeps it text.
_REFERENCE = re.compile(r"(@|#(?=\d)|\bGH-(?=\d)|:(?=//)|\bwww(?=\.))", re.IGNORECASE)
_BLOCK_START = re.compile(r"^(\s*)([-+=#]|\d+(?=[.)](\s|$)))")


def render(document: b.Document) -> str:
    """Return GitHub Markdown: the blocks, an empty line between them."""
    return "\n\n".join(_blocks(document.blocks)) + "\n"


def _blocks(blocks: Iterable[b.Block]) -> Iterable[str]:
    for block in b.shown(blocks, b.MARKDOWN):
        yield from filter(None, _block(block))


def _block(block: b.Block) -> Iterable[str]:
    match block:
        case b.Head():
            if block.path:
                yield f"## {code(block.path)}"
            first, *others = block.verdict
            yield f"### {prose(first)}"
            yield "  \n".join(prose(line) for line in others if line)
        case b.Rows():
            yield "\n".join(
                f"- {row.label}: {_line(row.text)}" if row.label else f"  - {_line(row.text)}" for row in block.rows
            )
        case b.Lines():
            if block.bullets:
                yield "\n".join(f"- {_line(line)}" for line in block.lines if line)
            else:
                yield "  \n".join(_line(line) for line in block.lines if line)
        case b.Table():
            yield _table(block)
        case b.Code():
            yield code_block("\n".join(row for row, _ in block.rows), block.language)
        case b.Entry():
            if block.fold:
                yield _details(block.title, block.blocks)
            else:
                marks = "" if any("bold" in span.style for span in b.unfold(block.title)) else "**"
                yield f"{marks}{_line(block.title)}{marks}"
                yield from _blocks(block.blocks)
        case b.Section():
            yield from _blocks(block.blocks)
        case b.Folded():
            yield _details(block.title, block.blocks)
        case b.Notes():
            yield "  \n".join(
                f"> **{b.LEVELS[note.level]}** {f'{code(note.code)} ' * block.codes}{prose(note.message.rstrip('.'))}"
                + (f". Try: {prose(note.fix)}" if note.fix else ".")
                for note in block.notes
            )
        case b.Foot():
            yield f"<sub>{prose(block.text)}</sub>"


def _details(title: b.Text, blocks: Iterable[b.Block]) -> str:
    summary = "".join(
        f"<b>{_escaped(span.text)}</b>" if "bold" in span.style else _escaped(span.text) for span in b.unfold(title)
    )
    body = "\n\n".join(_blocks(blocks))
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"


def _line(text: b.Text, *, in_table: bool = False) -> str:
    pieces: list[str] = []
    for span in b.unfold(text):
        plain = span.text.strip()
        inner = prose(plain, inline=in_table or bool(pieces))
        if span.style == "code":
            inner = code(span.text, in_table=in_table)
        elif span.link.startswith("https://"):
            inner = f"[{inner}](<{html.escape(visible(span.link))}>)"
        elif "bold" in span.style and plain:
            inner = f"**{inner}**"
        lead = " " * (len(span.text) - len(span.text.lstrip()))
        pieces.append(inner if span.style == "code" else f"{lead}{inner}{span.text[len(lead) + len(plain) :]}")
    return "".join(pieces)


def _table(table: b.Table) -> str:
    align = table.align or "l" + "r" * len(table.columns)
    lines = [
        f"| {' | '.join(prose(name) for name in table.columns)} |".replace("|  |", "| |").replace("|  |", "| |"),
        f"|{'|'.join('--:' if side == 'r' else ':--' for side, _ in zip(align, table.columns, strict=False))}|",
    ]
    rows = table.rows[: table.limit]
    lines += [f"| {' | '.join(_line(cell, in_table=True) for cell in row)} |" for row in rows]
    if len(table.rows) > table.limit:
        lines.append(f"\n{format_count(len(table.rows) - table.limit, 'more row')} in the JSON.")
    return "\n".join(lines)


def prose(text: str, *, inline: bool = False) -> str:
    """Return ``text`` as Markdown that reads as written, on one line; ``inline`` : not at its beginning."""
    escaped = _MARKUP.sub(r"\\\1", html.escape(visible(text), quote=False))
    escaped = _REFERENCE.sub(lambda match: f"{match[1]}&#8203;", escaped)
    if inline:
        return escaped
    # a backslash before a digit would be shown
    return _BLOCK_START.sub(r"\1\2&#8203;" if escaped[:1].isdigit() else r"\1\\\2", escaped)


def code(text: str, *, in_table: bool = False) -> str:
    """Return ``text`` as a code span; a longer fence holds backticks, tables escape pipes."""
    shown = visible(text)
    if in_table:
        # GitHub unescapes this one inside code spans of tables
        shown = shown.replace("|", "\\|")
    fence = _fence(shown, 1)
    pad = " " if "`" in (shown[:1], shown[-1:]) or not shown.strip() else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def code_block(text: str, language: str = "python") -> str:
    """Return ``text`` as a fenced block that nothing inside can close."""
    body = "\n".join(visible(row) for row in text.replace("\r\n", "\n").split("\n"))
    fence = _fence(body, 3)
    return f"{fence}{language}\n{body}\n{fence}"


def _fence(text: str, least: int) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    return "`" * max(longest + 1, least)


def _escaped(text: str) -> str:
    return _REFERENCE.sub(lambda match: f"{match[1]}&#8203;", html.escape(visible(text)))

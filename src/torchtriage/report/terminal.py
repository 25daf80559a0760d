"""Documents as text: lines are wrapped here, so that a pipe gets the lines a screen gets, without padding.

Links and code are never wrapped: half a link cannot be opened, and half a line is no Python. Names go
through ``names.visible`` and are appended, never parsed, so neither escape codes nor markup of a trace
reach the terminal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from io import StringIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Span, Text

from torchtriage.core.names import elide, visible
from torchtriage.core.units import format_count
from torchtriage.report import blocks as b

WIDTH = 80
MIN_WIDTH, MAX_WIDTH = 40, 120
"""Longer lines are hard to read, however wide the screen."""

LEAST_NAME = 18
"""Columns of a name that still tells it from its neighbours."""

INK = {
    "red": "color(160)",
    "green": "color(28)",
    "yellow": "color(130)",
    "blue": "color(26)",
    "magenta": "color(133)",
    "cyan": "color(30)",
    "bright_black": "color(243)",
}
"""Of each colour the shade that can be read on white and on black: a terminal's own yellow is lost on white."""

INDENT = 2
LABEL = 10
LEVEL_STYLES = {"refuse": "bold red", "warn": "yellow", "info": "dim"}

# A number and its unit stay on one line: this stands between them while lines are wrapped.
_GLUE = "\ue000"
_UNIT = re.compile(r"(?<=\d) (?=(?:%|[nµm]?s|B|[KMGT]i?B|[GT]B/s|TFLOP/s)(?:\W|$))")

# Single characters that say the same where the output cannot hold them.
_ASCII = str.maketrans("█▓▒░·─…µ▁▂▃▄▅▆▇", "#=-w.-~u__--==#")


def render(document: b.Document, *, width: int | None = None) -> Text:
    """Return the report, at most 120 columns wide, 80 when not given."""
    page = TerminalPage(width)
    for index, block in enumerate(b.shown(document.blocks, b.TERMINAL)):
        page.blank(index > 0 and not block.tight)
        _block(page, block, 0)
    return page.text


def _block(page: TerminalPage, block: b.Block, shift: int) -> None:
    match block:
        case b.Head():
            if block.path:
                page.line((elide(visible(block.path), page.width), "bold"))
                page.text.append("─" * page.width + "\n", "dim")
            for index, line in enumerate(filter(None, block.verdict)):
                page.line((visible(line), block.styles[min(index, len(block.styles) - 1)]), hang=block.hang)
        case b.Rows():
            for row in block.rows:
                indent = shift + block.indent
                room = page.width - indent - LABEL
                parts = _fitted(_parts(row.text), room - 2, row.fit)
                if row.cut:
                    parts = _shortened(parts, room)
                page.labelled(visible(row.label), *parts, indent=indent, style=row.style)
        case b.Lines():
            indent = shift + block.indent
            for paragraph in filter(b.unfold, block.lines):
                page.line(*_fitted(_parts(paragraph), page.width - indent, block.fit), indent=indent, hang=block.hang)
        case b.Table():
            _table(page, block, shift)
        case b.Code():
            rows = block.rows
            if block.fit:
                room = page.width - INDENT
                rows = [("─" * room if row == "─" else _cut(row, room), style) for row, style in rows]
            page.verbatim(rows, indent=shift + block.indent)
        case b.Entry():
            page.line(*_parts(block.title, "bold"), indent=shift + block.indent, hang=block.hang)
            for child in b.shown(block.blocks, b.TERMINAL):
                page.blank(not child.tight and isinstance(child, b.Entry | b.Section))
                _block(page, child, shift + block.indent)
        case b.Section():
            if block.heading:
                page.line(*_parts(block.heading, "bold"))
            for index, child in enumerate(b.shown(block.blocks, b.TERMINAL)):
                page.blank(index > 0 and not child.tight and not block.heading)
                _block(page, child, shift)
        case b.Notes():
            for index, note in enumerate(block.notes):
                page.blank(block.apart and index > 0)
                label = block.label if block.label and note.level != "info" else b.LEVELS[note.level]
                name = visible(note.code) if block.codes else ""
                message = f"{': ' * bool(name and note.message)}{visible(note.message)}"
                page.labelled(label, (name, "bold"), (message, ""), style=block.style or LEVEL_STYLES[note.level])
                if note.fix:
                    page.labelled("", ("try: ", "dim"), (visible(note.fix), "green"))


def _parts(text: b.Text, default: str = "") -> list[tuple[str, str]]:
    return [
        (
            visible(span.text),
            f"{'' if span.style == 'code' else span.style}{f' link {span.link}' * b.is_link(span.link)}",
        )
        for span in b.unfold(text, default)
    ]


def _shortened(parts: list[tuple[str, str]], room: int) -> list[tuple[str, str]]:
    out = []
    for part, style in parts:
        out.append((part if len(part) <= room else f"{part[: room - 1]}…", style))
        room -= len(part)
        if room < 0:
            break
    return out


def _cut(row: str, room: int) -> str:  # its beginning, the columns, stays
    return row if len(row) <= room else f"{row[:22]}{elide(row[22:], room - 22)}"


def _fitted(parts: list[tuple[str, str]], room: int, fit: bool) -> list[tuple[str, str]]:
    return [(elide(text, room), style) for text, style in parts] if fit else parts


def _table(page: TerminalPage, table: b.Table, shift: int) -> None:
    cells = [
        ["".join(text for text, _ in _parts(cell)) for cell in row]
        for row in (table.columns, *table.rows[: table.limit])
    ]
    columns = [at for at in range(len(table.columns)) if any(row[at] not in ("", "-") for row in cells[1:])]
    widths = [max(cell_len(row[at]) for row in cells) for at in range(len(table.columns))]
    if table.fit and columns:
        others = sum(widths[column] + 2 for column in columns[1:])
        widths[0] = min(widths[0], max(page.width - shift - INDENT - others, LEAST_NAME))
    for at in table.drop:
        if sum(widths[column] + 2 for column in columns) > page.width - shift and at in columns:
            columns.remove(at)
    align = table.align or "l" + "r" * len(table.columns)
    for index, row in enumerate(cells):
        row[0] = elide(row[0], widths[0]) if table.fit else row[0]
        padded = [row[at].ljust(widths[at]) if align[at] == "l" else row[at].rjust(widths[at]) for at in columns]
        style = "dim" if index == 0 else table.styles[index - 1] if table.styles else ""
        # wider than the page rather than wrapped
        page.text.append(f"{'':{shift + INDENT}}{'  '.join(padded).rstrip()}\n", style)
    if (hidden := len(table.rows) - table.limit) > 0:
        page.line((f"{format_count(hidden, 'row')} more in --json and --html", "dim"), indent=INDENT)


def put(render: Callable[..., Text], console: Console) -> None:
    """Print what ``render(width=…)`` makes for the console's width, in its colours.

    An output that cannot hold ``█`` or ``µ`` gets ASCII in their place, one for one.
    """
    text = render(width=console.width if console.is_terminal else None)
    # what names no colour stays as it is, links among it
    text.spans = [
        Span(start, end, " ".join(INK.get(word, word) for word in str(style).split()))
        for start, end, style in text.spans
    ]
    console.print(_fitting(text, console.encoding), soft_wrap=True, highlight=False)


def _fitting(text: Text, encoding: str) -> Text:
    """Return the text with ASCII marks where the encoding has no others, one for one."""
    try:
        text.plain.encode(encoding)
    except UnicodeEncodeError:
        # one character for one, or the styles would shift
        plain = text.plain.translate(_ASCII).encode(encoding, "replace").decode(encoding)
        return Text(plain, spans=text.spans, no_wrap=True, end=text.end)
    return text


class TerminalPage:
    """Lines of styled text, wrapped to a width as they come."""

    def __init__(self, width: int | None) -> None:
        self.width = min(max(width or WIDTH, MIN_WIDTH), MAX_WIDTH)
        self.text = Text(no_wrap=True, overflow="ignore", end="")
        # measures and wraps, never prints
        self._console = Console(file=StringIO(), width=self.width, color_system=None)

    def line(self, *parts: tuple[str, str], indent: int = 0, hang: int = 0) -> None:
        """Add one paragraph; lines after its first are indented by ``hang`` more."""
        rows = self._wrapped(Text.assemble(*parts), self.width - indent, self.width - indent - hang)
        for index, row in enumerate(rows):
            self.text.append(" " * (indent + hang * (index > 0)))
            self.text.append_text(row)
            self.text.append("\n")

    def labelled(self, label: str, *parts: tuple[str, str], indent: int = INDENT, style: str = "dim") -> None:
        """Add a paragraph with a word in the margin."""
        room, margin = self.width - indent, max(LABEL, len(label) + 1)
        for row in self._wrapped(Text.assemble(*parts), room - margin, room - LABEL):
            self.text.append(" " * indent)
            self.text.append(label.ljust(margin), style)
            self.text.append_text(row)
            self.text.append("\n")
            label, margin = "", LABEL

    def _wrapped(self, whole: Text, first: int, rest: int) -> list[Text]:
        whole.plain = _UNIT.sub(_GLUE, whole.plain)
        rows = list(whole.wrap(self._console, first)) or [Text()]
        if first != rest and len(rows) > 1:
            tail = whole[len(rows[0].plain) :]
            tail = tail[len(tail.plain) - len(tail.plain.lstrip(" ")) :]
            rows = [rows[0], *tail.wrap(self._console, rest)]
        for row in rows:
            row.rstrip()
            row.plain = row.plain.replace(_GLUE, " ")
        return rows

    def verbatim(self, rows: Sequence[tuple[str, str]], *, indent: int = INDENT) -> None:
        """Add lines that stay whole: beside the margin's words, further left, or overflowing."""
        shown = [(visible(row).rstrip(), style) for row, style in rows]
        widest = max((cell_len(row) for row, _ in shown), default=0)
        # one of two edges, so that findings look alike
        left = indent + (LABEL if indent + LABEL + widest <= self.width else 2)
        for row, style in shown:
            self.text.append(" " * left * bool(row))
            self.text.append(row, style)
            self.text.append("\n")

    def blank(self, wanted: bool = True) -> None:
        """Add an empty line."""
        if wanted:
            self.text.append("\n")

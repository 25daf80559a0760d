"""What a report is made of, whoever reads it: a result gives blocks, each format draws them.

Text in a block is as it came: every renderer makes names visible and escapes them for its format.
A style is one of rich; pages and Markdown know ``bold`` in it, and ``code``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torchtriage.core.finding import Note
from torchtriage.core.units import format_count

TERMINAL, MARKDOWN, PAGE = "t", "m", "p"
LEVELS = {"refuse": "refused", "warn": "warning", "info": "note"}
"""Words for the levels of a note."""
HEIGHTS = "▁▂▃▄▅▆▇█"
_LINK = re.compile(r"https://[!-~]+")
ALL = TERMINAL + MARKDOWN + PAGE


@dataclass(frozen=True, slots=True)
class Span:
    r"""A piece of a line with a style of its own; ``link`` : what it opens.

    A piece that is ``\n`` alone breaks the line on a page.
    """

    text: str
    style: str = ""
    link: str = ""


Text = str | Span | tuple[str | Span, ...]
"""A line: plain, styled, or of several pieces."""


def bold(text: str) -> Span:
    """Return text that stands out."""
    return Span(text, "bold")


def dim(text: str) -> Span:
    """Return text beside the point."""
    return Span(text, "dim")


def code(text: str) -> Span:
    """Return text that is code, a path or a name."""
    return Span(text, "code")


def is_link(text: str) -> bool:
    """Return whether a text may be opened: the address of a page and nothing else."""
    return _LINK.fullmatch(text) is not None


def bars(values: Sequence[float], low: float = 0.0) -> str:
    """Return numbers as a row of bars, the lowest bar for ``low``, the highest for the largest."""
    span = max(values) - low
    top = len(HEIGHTS) - 1
    return "".join(HEIGHTS[round((value - low) / span * top) if span > 0 else 0] for value in values)


def unfold(text: Text, default: str = "") -> list[Span]:
    """Return the pieces of a line, none of them empty."""
    pieces = text if isinstance(text, tuple) else (text,)
    spans = [piece if isinstance(piece, Span) else Span(piece, default) for piece in pieces]
    return [span for span in spans if span.text]


@dataclass(frozen=True, kw_only=True)
class Block:
    """One part of a report.

    ``on`` : the formats that show it. ``tight`` : no empty line stands before it on the terminal.
    """

    on: str = ALL
    tight: bool = False


@dataclass(frozen=True)
class Row:
    """A line of text with a label; an empty label goes on with the one before.

    ``style`` : of the label. ``fit``, ``cut`` : on the terminal the middle, or the end, gives way in a long line.
    """

    label: str
    text: Text
    style: str = "dim"
    fit: bool = False
    cut: bool = False


@dataclass(frozen=True)
class Head(Block):
    """The verdict, and on a page what it is about.

    ``styles`` : of its lines, the last for all that follow. ``mark`` : a word of the kicker and its class.
    ``path`` : stands above it on the terminal, where several follow each other.
    """

    kicker: str
    verdict: Sequence[str]
    styles: Sequence[str] = ("bold", "")
    facts: Sequence[tuple[str, Text]] = ()
    mark: tuple[str, str] | None = None
    hang: int = 2
    path: str = ""


@dataclass(frozen=True)
class Rows(Block):
    """Labels and texts, one below the other."""

    rows: Sequence[Row]
    indent: int = 2


@dataclass(frozen=True)
class Lines(Block):
    """Paragraphs, or with ``bullets`` the items of a list; ``fit`` as for a row."""

    lines: Sequence[Text]
    indent: int = 2
    hang: int = 2
    bullets: bool = False
    fit: bool = False
    kind: str = ""
    """The class of the paragraphs on a page."""


@dataclass(frozen=True)
class Table(Block):
    """Rows of cells; the first column is text, the others are numbers unless ``align`` says so.

    ``align`` : ``l`` or ``r`` for each column. ``kind`` : its class on a page; ``kinds`` those of its rows.
    ``styles`` : of the rows on the terminal. ``drop`` : columns that the terminal leaves out where they do not fit,
    the first of them first. ``limit`` : rows that are shown; the number of the others is given. ``fit`` : on the
    terminal the middle of the first column gives way.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Text]]
    align: str = ""
    kind: str = ""
    kinds: Sequence[str] = ()
    styles: Sequence[str] = ()
    drop: Sequence[int] = ()
    limit: int = 10_000
    fit: bool = False


@dataclass(frozen=True)
class Code(Block):
    """Lines that stay as they are: code, a command, a diff or a picture made of characters.

    ``fit`` : the terminal cuts them to its width, and draws a line alone of ``─`` across it.
    """

    rows: Sequence[tuple[str, str]]
    """Lines and their styles."""
    indent: int = 2
    language: str = ""
    fit: bool = False


@dataclass(frozen=True)
class Entry(Block):
    """One of several things with a title: a break, a window, a setting."""

    title: Text
    blocks: Sequence[Block] = ()
    indent: int = 0
    hang: int = 3
    kind: str = "row"
    fold: bool = False
    """Whether Markdown shows the title alone until it is opened."""


@dataclass(frozen=True)
class Section(Block):
    """Blocks under a heading. On the terminal ``heading`` stands above them, where it is given."""

    title: str
    blocks: Sequence[Block]
    sub: Text = ""
    heading: Text = ""
    name: str = ""
    """Its id on a page."""


@dataclass(frozen=True)
class Folded(Block):
    """Blocks that open on a click; the terminal leaves them out."""

    title: Text
    blocks: Sequence[Block]
    on: str = field(default=MARKDOWN + PAGE, kw_only=True)


@dataclass(frozen=True)
class Notes(Block):
    """What limits the answer, and what to do about it."""

    notes: Sequence[Note]
    label: str = ""
    """In place of the level on the terminal."""
    style: str = ""
    title: str = "Notes"
    apart: bool = True
    """Whether an empty line stands before each."""
    codes: bool = False
    """Whether each begins with its code."""


@dataclass(frozen=True)
class Markup(Block):
    """HTML of a page's own: a picture. Whoever makes it escapes what is in it."""

    html: str
    on: str = field(default=PAGE, kw_only=True)


@dataclass(frozen=True)
class Foot(Block):
    """The line below a comment: what was measured, and by which version."""

    text: str
    on: str = field(default=MARKDOWN, kw_only=True)


def _empty(block: Block) -> bool:
    match block:
        case Rows(rows=parts) | Table(rows=parts) | Code(rows=parts) | Notes(notes=parts) | Markup(html=parts):
            return not parts
        case Lines(lines=lines):
            return not any(map(unfold, lines))
        case Entry(title=title, blocks=[]):
            return not unfold(title)
        case Entry(blocks=blocks) | Section(blocks=blocks) | Folded(blocks=blocks):
            return all(map(_empty, blocks))
    return False


def shown(blocks: Iterable[Block], form: str) -> list[Block]:
    """Return the blocks that a format shows: those for it that hold anything."""
    return [block for block in blocks if form in block.on and not _empty(block)]


def more(number: int, noun: str) -> Lines:
    """Return how many things the terminal does not show, if any."""
    return Lines([dim(f"{format_count(number, noun)} more in --json and --html")] * (number > 0), on=TERMINAL)


def labelled(label: str, texts: Iterable[Text], style: str = "dim") -> list[Row]:
    """Return a row for each text, of which the first has the label."""
    return [Row("" if place else label, text, style) for place, text in enumerate(texts)]


def share_bar(parts: Iterable[tuple[float, str, str]], cells: int) -> list[Span]:
    """Return shares of a whole, each with its mark and style, as a bar; its rounding errors do not add up."""
    bar, used, reach = [], 0, 0.0
    for share, mark, style in parts:
        reach += share
        wide = max(round(reach * cells) - used, 0)
        bar.append(Span(mark * wide, style))
        used += wide
    return bar


@dataclass(frozen=True)
class Document:
    """A result as every format shows it.

    ``title``, ``sheet`` (a style sheet of ``templates/``), ``remark`` : of the page, the last at its foot.
    """

    title: str
    version: str
    schema: str
    blocks: Sequence[Block]
    sheet: str = ""
    remark: str = ""

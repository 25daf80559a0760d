r"""What every page is made of: templates, a policy of its own, and data that cannot break out.

A page asks no server for anything. Its policy lets the one script and the one style sheet that it
holds run, named by their hashes; the data block cannot be closed from inside, for ``<`` is written
``\u003c`` there.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

from torchtriage.finding import Note
from torchtriage.names import visible

__all__ = [
    "as_data",
    "document",
    "filled",
    "head",
    "note",
    "notes",
    "policy",
    "template",
    "text",
]

MAX_TEXT = 4000
_UNIT = re.compile(r"(?<=\d) (?=(?:[nµm]?s|%|[KMGT]?i?B|/s)(?:\W|$))")

Shown = Callable[[str], str]
"""What makes HTML of a name or a sentence: ``text``, or a page's own kind of it."""


@cache
def template(name: str) -> str:
    """Return a file of ``templates/``; a first line ``{{head.html}}`` is the head pages share."""
    source = (resources.files("torchtriage.report") / "templates" / name).read_text("utf-8")
    begin = "{{head.html}}\n"
    return template("head.html") + source[len(begin) :] if source.startswith(begin) else source


def policy(style: str, script: str = "", connect: str = "") -> str:
    """Return the content policy of a page with this style sheet and, if any, this script.

    ``connect`` : what the script may ask; nothing by default.
    """
    scripts = f" script-src {_digest(script)};" if script else ""
    scripts += f" connect-src {connect};" if connect else ""
    return (
        f"default-src 'none';{scripts} img-src data:; style-src {_digest(style)}; base-uri 'none';"
        " form-action 'none'"
    )


def document(sheet: str, *, title: str, version: str, schema: str, note: str, body: str) -> str:
    """Return a page without scripts.

    ``sheet`` : the style sheet in ``templates/`` beside the one of all pages. ``title`` is plain
    text; ``body`` and ``note``, which stands at the foot, are HTML.
    """
    style = template("page.css") + template(sheet)
    parts = {
        "policy": policy(style),
        "title": html.escape(visible(title)),
        "version": html.escape(version),
        "schema": html.escape(schema),
        "style": style,
        "note": note,
        "body": body,
    }
    return filled("document.html", parts)


def text(value: str, limit: int = MAX_TEXT, *, unit: re.Pattern[str] | None = _UNIT) -> str:
    """Return a name or a sentence as HTML: nothing invisible, and not too long.

    The spaces that ``unit`` finds are not broken at: a number and its unit stay on one line.
    """
    shown = visible(value)
    cut = html.escape(shown if len(shown) <= limit else f"{shown[: limit - 1]}…")
    return cut if unit is None else unit.sub("\N{NO-BREAK SPACE}", cut)


def head(kicker: str, verdict: Iterable[str], *, shown: Shown = text) -> Iterator[str]:
    """Return how a page's header begins: what it is of, and the verdict."""
    first, *others = verdict
    yield f'<header class="head"><p class="kicker">{kicker}</p>'
    yield f"<h1>{shown(first)}</h1>"
    yield from (f'<p class="lede">{shown(line)}</p>' for line in others if line)


def notes(told: Iterable[Note], *, lead: str = "", shown: Shown = text) -> Iterator[str]:
    """Return the section of the notes, if there are any; ``lead`` stands before what to do."""
    items = [
        note(one.level, one.message, f"{lead}{one.fix}" if one.fix else "", shown=shown)
        for one in told
    ]
    if items:
        yield '<section><h2>Notes</h2><ul class="notes">'
        yield from items
        yield "</ul></section>"


def note(level: str, message: str, how: str = "", *, shown: Shown = text) -> str:
    """Return one entry of a list of notes, and below it what to do."""
    below = f'<p class="how">{shown(how)}</p>' if how else ""
    return f'<li class="{level}"><p>{shown(message)}</p>{below}</li>'


def as_data(value: Any) -> str:
    """Return a value as JSON for a page's data block."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # a lone surrogate, as a file name may hold, has no UTF-8
    return text.encode("utf-8", "backslashreplace").decode().replace("<", "\\u003c")


def filled(name: str, parts: Mapping[str, str]) -> str:
    """Return a template with each ``{{name}}`` replaced."""
    # one pass, so that a part holding "{{script}}" stays what it is
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template(name))


def _digest(source: str) -> str:
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
    return f"'sha256-{digest}'"

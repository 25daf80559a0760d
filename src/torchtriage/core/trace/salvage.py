"""Damaged JSON text to whole events: mend what profilers are known to break, lose the rest.

Text is walked event by event, at a few microseconds each, with the parser as the only grammar.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from torchtriage.core.trace.event_types import event_size, is_event

MAX_BAD_IN_A_ROW = 1000
"""After so many unreadable pieces in a row the rest of the text is given up as well."""
MAX_MENDED_BYTES = 1 << 20
"""No real event comes near this; a longer damaged one is lost rather than searched for hours."""

_OPEN = ord("{")
_KEY = rb'"(?:ph|name|cat|pid|tid|ts|dur|args|id|bp|s|tts|cname|id2|scope|bind_id|sf)"\s*:'
_EVENT_START = re.compile(rb"\{\s*" + _KEY)
_PHASE = re.compile(rb'"ph"\s*:')
_GAP = re.compile(rb"[\s,]*")
_LIST_END = re.compile(rb"\](?=\s*(?:\Z|\}|,\s*\"))")


class Piece(NamedTuple):
    """One step of a walk: an event's text, mended or not, or what was lost there instead."""

    offset: int
    end: int
    text: bytes = b""
    repaired: bool = False
    n_lost: int = 0
    closes: bool = False
    """Whether the list of events ends here, so that ``end`` is behind its ``]``."""


def closes_list(text: bytes | bytearray, position: int) -> bool:
    """Return whether the ``]`` at ``position`` is followed by what may follow the events."""
    return _LIST_END.match(text, position) is not None


def walk(text: bytes, *, is_tail: bool) -> Iterator[Piece]:
    """Yield the events of a damaged text one by one, each loss counted where it happened.

    The text starts between two events; ``is_tail`` says that the file ends with it. Stops behind the ``]`` that ends
    the list of events.
    """
    position = 0
    n_bad = 0  # pieces since the last event
    while True:
        position = skip_gap(text, position)
        if position >= len(text):
            return
        if n_bad >= MAX_BAD_IN_A_ROW:
            yield Piece(position, len(text), n_lost=_count_phases(text, position))
            return
        if text[position] == _OPEN:
            piece = _next_piece(text, position, after_loss=n_bad > 0, is_tail=is_tail)
        elif closes_list(text, position) and not _PHASE.search(text, position):
            piece = Piece(position, position + 1, closes=True)
        else:
            start = find_start(text, position)
            n_lost = _count_phases(text, position, start)
            # what stands here may be the rest of what was lost before
            repaired = not n_lost and not n_bad
            piece = Piece(position, start, repaired=repaired, n_lost=n_lost)
        yield piece
        if piece.closes:
            return
        # rubbish between two good events is no loss, and no reason for suspicion
        n_bad = 0 if piece.text or piece.repaired else n_bad + 1
        position = piece.end


def _next_piece(text: bytes, position: int, *, after_loss: bool, is_tail: bool) -> Piece:
    """Return the event at ``position``, mended if need be, or its loss."""
    size = event_size(memoryview(text)[position:])
    end = position + size if size else find_start(text, position + 1)
    piece = text[position:end]
    if after_loss and not _PHASE.search(piece):
        # an object without a phase right after a loss is a part of what was lost
        return Piece(position, end)
    if size:
        return Piece(position, end, piece)
    closes = _find_list_end(text, position) if is_tail and end == len(text) else 0
    end = closes or end
    mended = _rescue(text[position : closes - 1 if closes else end])
    if mended:
        return Piece(position, end, mended, repaired=True, closes=closes > 0)
    return Piece(position, end, n_lost=max(_count_phases(piece), 1), closes=closes > 0)


def _find_list_end(text: bytes, position: int) -> int:
    """Return where the list of events ends behind a damaged last event, 0 if it does not.

    The first ``]`` behind which nothing stands but the other keys of the document.
    """
    for match in islice(_LIST_END.finditer(text, position), 64):
        tail = text[match.end() :].strip()
        if tail in (b"", b"}") or (tail.startswith(b",") and is_event(mend(b"{" + tail.lstrip(b", \t\r\n")))):
            return match.end()
    return 0


def _count_phases(text: bytes, start: int = 0, end: int | None = None) -> int:
    return len(_PHASE.findall(text, start, len(text) if end is None else end))


def skip_gap(text: bytes | bytearray, position: int) -> int:
    """Return where white space and commas end."""
    match = _GAP.match(text, position)
    return match.end() if match else position


def find_start(text: bytes | bytearray, position: int) -> int:
    """Return where the next event seems to begin: a ``{`` and a known key, not a key's value."""
    for match in _EVENT_START.finditer(text, position):
        before = text[max(match.start() - 64, 0) : match.start()].rstrip()
        if not before.endswith(b":"):
            return match.start()
    return len(text)


def _rescue(piece: bytes) -> bytes:
    """Return one event mended, empty when that does not help."""
    if len(piece) > MAX_MENDED_BYTES:
        return b""
    for mended in (mend(piece), mend(_quote_name(piece))):
        size = event_size(memoryview(mended))
        if size:
            return mended[:size]
    return b""


# -- mending -----------------------------------------------------------------------------------

# (the closing quote is optional, and the loop unrolled, so that no text takes quadratic time)
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|-?\b(?:NaN|nan|[Ii]nf(?:inity)?)\b|\bN/A\b|\bundefined\b', re.DOTALL)
_CONTROL = re.compile(rb"[\x00-\x1f]")
_ESCAPE = re.compile(
    rb'\\["\\/bfnrt]'
    rb"|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}"
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    rb"|(?P<stray>\\)"
)


def mend(text: bytes) -> bytes:
    """Return JSON text with the damage real profilers write mended.

    Sources: ``inf`` bandwidth (kineto#105), ``N/A`` (kineto#133), raw control bytes (pytorch#136180), Windows
    backslashes (pytorch#98432), bytes that are not UTF-8.
    """
    return _TOKEN.sub(_mend_token, text.decode("utf-8", "replace").encode())


def _mend_token(match: re.Match[bytes]) -> bytes:
    token = match.group()
    if not token.startswith(b'"'):
        return b"null"
    if b"\\" in token:
        strays = any(found.group("stray") for found in _ESCAPE.finditer(token))
        # one stray backslash: whoever wrote this (a Windows path) escaped none of them
        token = _ESCAPE.sub(_double if strays else _whole_pairs, token)
    if _CONTROL.search(token):
        token = _CONTROL.sub(lambda control: b"\\u%04x" % control.group()[0], token)
    return token


def _double(match: re.Match[bytes]) -> bytes:
    escape = match.group()
    return escape if escape == b'\\"' else escape.replace(b"\\", b"\\\\")


def _whole_pairs(match: re.Match[bytes]) -> bytes:
    return b"\\ufffd" if match.group("half") else match.group()


# an unescaped quote inside a name (pytorch#146900): the name ends where the next key begins
_NAME_START = re.compile(rb'"name"\s*:\s*"')
_NAME_END = re.compile(rb'"\s*(?:,\s*' + _KEY + rb"|\}\s*,?\s*\Z)")
_LOST_KEY = re.compile(_KEY)


def _quote_name(text: bytes) -> bytes:
    start = _NAME_START.search(text)
    end = _NAME_END.search(text, start.end()) if start else None
    if not start or not end:
        return text
    inner = text[start.end() : end.start()]
    if _LOST_KEY.search(inner):
        return text  # not a quote too many: something else is broken
    inner = inner.replace(b'\\"', b'"')
    inner = inner.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    return text[: start.end()] + inner + text[end.start() :]

"""Damaged JSON text to whole events: mend what profilers are known to break, lose the rest.

The parser's own error says where an event ends or breaks, so walking event by event costs a few
microseconds each and needs no second grammar.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

__all__ = ["BROKEN", "Piece", "closes_list", "error_position", "is_cut_short", "mend", "walk"]

BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What the parser raises on text that is not JSON, not UTF-8, or nested beyond reason."""

MAX_MENDED_BYTES = 1 << 20
"""No real event comes near this; a longer damaged one is lost rather than searched for hours."""

_KEY = rb'"(?:ph|name|cat|pid|tid|ts|dur|args|id|bp|s)"\s*:'
_EVENT_START = re.compile(rb"\{\s*" + _KEY)
_PHASE = re.compile(rb'"ph"\s*:')
_GAP = re.compile(rb"[\s,]*")
_LIST_END = re.compile(rb"\](?=\s*(?:$|\}|,\s*\"))")
_LAST_EVENT_END = re.compile(rb"\}(?=(\s*)\]\s*(?:$|\}|,\s*\"))")
_POSITION = re.compile(r"\(byte (\d+)\)")


class Piece(NamedTuple):
    """One step of a walk: an event's text, mended or not, or what was lost there instead."""

    offset: int
    end: int
    text: bytes = b""
    repaired: bool = False
    n_lost: int = 0
    closes: bool = False
    """Whether the list of events ends here, so that ``end`` is behind its ``]``."""


def is_cut_short(error: BaseException) -> bool:
    """Return whether the text ended before the JSON value did."""
    return isinstance(error, msgspec.DecodeError) and "truncated" in str(error)


def error_position(error: BaseException) -> int:
    """Return where text follows a complete JSON value, or -1 if that is not the trouble."""
    message = str(error)
    found = _POSITION.search(message) if "trailing" in message else None
    return int(found.group(1)) - 1 if found else -1


def closes_list(text: bytes, position: int) -> bool:
    """Return whether the ``]`` at ``position`` is followed by what may follow the events."""
    return _LIST_END.match(text, position) is not None


def walk(text: bytes) -> Iterator[Piece]:
    """Yield the events of a damaged text one by one, each loss counted where it happened.

    The text starts between two events. Stops behind the ``]`` that ends the list of events.
    """
    position = 0
    after_loss = False
    while True:
        position = _skip_gap(text, position)
        if position >= len(text):
            return
        if text[position] == ord("]") and closes_list(text, position):
            yield Piece(position, position + 1, closes=True)
            return
        if text[position] != ord("{"):
            start = _next_start(text, position)
            n_lost = len(_PHASE.findall(text, position, start))
            yield Piece(position, start, repaired=not n_lost, n_lost=n_lost)
            position, after_loss = start, after_loss or n_lost > 0
            continue
        end = position + _value_size(memoryview(text)[position:])
        if end > position:
            event = text[position:end]
            # an object without a phase right after a loss is a part of what was lost
            if not after_loss or _PHASE.search(event):
                yield Piece(position, end, event)
                after_loss = False
            position = end
            continue
        start = _next_start(text, position + 1)
        piece = text[position:start]
        mended, closes = _rescue(piece)
        if mended:
            end = position + closes if closes else start
            yield Piece(position, end, mended, repaired=True, closes=closes > 0)
            if closes:
                return
        elif not after_loss or _PHASE.search(piece):
            n_lost = max(len(_PHASE.findall(piece)), 1)
            yield Piece(position, start, n_lost=n_lost)
        after_loss = not mended
        position = start


def _value_size(view: memoryview) -> int:
    """Return the length of the object that the text starts with, 0 when it is damaged."""
    try:
        _decode_any(view)
    except BROKEN as error:
        end = error_position(error)
        return end if end > 0 and _is_object(view[:end]) else 0
    return len(view)


def _is_object(text: bytes | memoryview) -> bool:
    try:
        return isinstance(_decode_any(text), dict)
    except BROKEN:
        return False


_decode_any = msgspec.json.Decoder().decode


def _skip_gap(text: bytes, position: int) -> int:
    match = _GAP.match(text, position)
    return match.end() if match else position


def _next_start(text: bytes, position: int) -> int:
    """Return where the next event seems to begin: a ``{`` and a known key, not a key's value."""
    for match in _EVENT_START.finditer(text, position):
        before = text[max(match.start() - 64, 0) : match.start()].rstrip()
        if not before.endswith(b":"):
            return match.start()
    return len(text)


def _rescue(piece: bytes) -> tuple[bytes, int]:
    """Return one event mended, and where the list ends behind it (0: it does not)."""
    if len(piece) > MAX_MENDED_BYTES:
        return b"", 0
    body = piece.rstrip(b" \t\r\n,")
    candidates = [(body, 0)]
    # the last event is followed by the end of the list and the other keys
    ends = list(_LAST_EVENT_END.finditer(body))[-4:]
    candidates += [(body[: match.end()], match.end(1) + 1) for match in ends]
    for text, closes in candidates:
        for mended in (mend(text), mend(_quote_name(text))):
            if _is_object(mended):
                return mended, closes
    return b"", 0


# -- mending -----------------------------------------------------------------------------------

# (the closing quote is optional, and the loop unrolled, so that no text takes quadratic time)
_TOKEN = re.compile(
    rb'"[^"\\]*(?:\\.[^"\\]*)*"?|-?\b(?:NaN|nan|[Ii]nf(?:inity)?)\b|\bN/A\b|\bundefined\b',
    re.DOTALL,
)
_CONTROL = re.compile(rb"[\x00-\x1f]")
_ESCAPE = re.compile(
    # a good escape or pair of surrogates; half a pair; a stray backslash
    rb'(\\(?:["\\/bfnrt]|u[dD][89abAB]..\\u[dD][c-fC-F][0-9a-fA-F]{2}'
    rb"|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}))|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|(\\)",
    re.DOTALL,
)


def mend(text: bytes) -> bytes:
    """Return JSON text with the damage real profilers write mended.

    Sources: ``inf`` bandwidth (kineto#105), ``N/A`` (kineto#133), raw control bytes
    (pytorch#136180), Windows backslashes (pytorch#98432), bytes that are not UTF-8.
    """
    return _TOKEN.sub(_mend_token, text.decode("utf-8", "replace").encode())


def _mend_token(match: re.Match[bytes]) -> bytes:
    token = match.group()
    if not token.startswith(b'"'):
        return b"null"
    if b"\\" in token:
        token = _ESCAPE.sub(_mend_escape, token)
    if _CONTROL.search(token):
        token = _CONTROL.sub(lambda control: b"\\u%04x" % control.group()[0], token)
    return token


def _mend_escape(match: re.Match[bytes]) -> bytes:
    good, half, _ = match.groups()
    return good or (b"\\ufffd" if half else b"\\\\")


# an unescaped quote inside a name (pytorch#146900): the name ends where the next key begins
_NAME_START = re.compile(rb'"name"\s*:\s*"')
_NAME_END = re.compile(rb'"\s*(?:,\s*' + _KEY + rb"|\})")


def _quote_name(text: bytes) -> bytes:
    start = _NAME_START.search(text)
    end = _NAME_END.search(text, start.end()) if start else None
    if not start or not end:
        return text
    inner = text[start.end() : end.start()].replace(b'\\"', b'"')
    inner = inner.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    return text[: start.end()] + inner + text[end.start() :]

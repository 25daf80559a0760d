"""Raw JSON bytes to typed events, in bounded chunks, in three tiers.

*strict*: a chunk is cut at a ``}, {`` and decoded as an array. A chunk that decodes proves its
own end: the text before it was a complete list of events (left-to-right grammar from a proven
start), so this is exact for any valid JSON, whatever its strings and nesting hold.
*repaired*: literals JSON does not have (``NaN``, ``inf``, ``N/A``), raw control characters, stray
backslashes, quotes in names and bytes that are not UTF-8 are mended.
*salvaged*: an event that cannot be read is lost, counted and shown, and costs only itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from itertools import islice
from typing import Any

import msgspec

from torchtriage.core.errors import TraceFormatError
from torchtriage.core.trace.event_types import (
    BROKEN,
    Event,
    RawEvent,
    decode_by_category,
    decode_by_phase,
    decode_loosely,
    decode_raw,
    error_position,
    is_complete,
    is_cut_short,
)
from torchtriage.core.trace.input import EXPORT, Source
from torchtriage.core.trace.salvage import MAX_MENDED_BYTES, closes_list, find_start, mend, skip_gap, walk
from torchtriage.core.units import format_bytes

CHUNK_BYTES = 256 << 10
"""Fits the L2 cache: whole-file decoding is 2-3x slower (measured, docs/performance.md)."""
MAX_EVENT_BYTES = 16 << 20
"""No real event comes near this; beyond it the text has lost its event boundaries."""
MAX_HEADER_BYTES = 64 << 20
"""Metadata of real traces stays below a megabyte."""
MAX_DOUBT = 16
"""So many more chunks with unknown categories than without, and the short cut is not worth it."""


_decode_any = msgspec.json.Decoder().decode


@dataclass
class Loss:
    """What reading cost: how the text had to be treated, and what did not survive.

    ``incomplete`` : a part is missing whose events nobody can count.
    """

    n_lost: int = 0
    n_repaired: int = 0
    messages: list[str] = field(default_factory=list)
    more: int = 0
    incomplete: bool = False

    @property
    def tier(self) -> str:
        """Return ``strict``, ``repaired`` or ``salvaged``."""
        if self.n_lost or self.incomplete:
            return "salvaged"
        return "repaired" if self.n_repaired or self.messages else "strict"

    def summary(self) -> tuple[str, ...]:
        """Return what was lost or odd, in words, the first few in full."""
        return (*self.messages, f"and {self.more} more") if self.more else tuple(self.messages)

    def say(self, message: str) -> None:
        """Keep the first few messages, count the others."""
        if len(self.messages) < 8:
            self.messages.append(message)
        else:
            self.more += 1

    def add(self, other: Loss) -> None:
        """Take over what another part of the same file cost."""
        self.n_lost += other.n_lost
        self.n_repaired += other.n_repaired
        for message in other.messages:
            self.say(message)
        self.more += other.more
        self.incomplete |= other.incomplete


@dataclass
class Chunk:
    """A run of decoded events and where its text stands in the uncompressed stream."""

    offset: int
    size: int
    events: list[Event]
    document: bytes
    """The events as a JSON array, damaged ones mended."""
    by_category: bool = False
    """Whether the classes of the events stand for their categories."""

    def raw(self) -> list[RawEvent]:
        """Return times and arguments of every event as written."""
        try:
            return decode_raw(self.document)
        except BROKEN:  # so deeply nested that it depends on who asks
            return [RawEvent()] * len(self.events)


class UnfinishedBlock(Exception):  # noqa: N818 - not an error: the block is cut inside an event
    """A block of text ends inside an event: what looked like a boundary was none."""


class TextBlock(BytesIO):
    """Text in memory as a source."""

    name = ""
    truncated = ""


class EventReader:
    """Iterate over a source's events as chunks; then ``meta`` holds the other top-level keys.

    A chunk ends at the first event boundary at or after a multiple of ``chunk_bytes`` in the text, so where it ends
    does not depend on where reading began. With ``offset`` the source starts there, between two events; as a block it
    also ends between two.
    """

    def __init__(
        self, source: Source | TextBlock, chunk_bytes: int = CHUNK_BYTES, *, offset: int = 0, is_block: bool = False
    ) -> None:
        self.chunk_bytes = chunk_bytes
        self.meta: dict[str, Any] = {}
        self.loss = Loss()
        self.ended = False
        self._source = source
        self._buffer = bytearray()  # drops its front and grows at its end without copying
        self._pos = 0
        self._is_block = is_block
        self._base = offset  # of self._buffer[0] in the text
        self._eof = False
        self._is_list = False
        self._doubt = 0

    @property
    def offset(self) -> int:
        """Position in the text: everything before it has been handed out."""
        return self._base + self._pos

    def __iter__(self) -> Iterator[Chunk]:
        """Yield chunks in file order."""
        self.open()
        yield from self.chunks()
        self.close()

    def chunks(self) -> Iterator[Chunk]:
        """Yield the chunks from here on, up to the end of the list or of the text."""
        while not self.ended:
            boundary = self._boundary(self.chunk_bytes)
            if self._at_end():
                return
            yield self._next_chunk(boundary)

    def close(self) -> None:
        """Read the keys behind the events."""
        if self.ended:
            self._read_tail()
            if self._source.truncated and not self._is_list:
                self.loss.say(self._source.truncated)
        else:
            cut = self._source.truncated or "the text ends before the list of events does"
            self.loss.say(f"{cut}, after {format_bytes(self.offset)} of text")

    def hand_over(self) -> tuple[int, bytes]:
        """Move to the end of the text read so far; return its rest and where that stands.

        Whoever takes it may read on from the source, until ``resume``.
        """
        offset, text = self.offset, bytes(memoryview(self._buffer)[self._pos :])
        self.resume(offset + len(text), b"")
        return offset, text

    def resume(self, offset: int, text: bytes) -> None:
        """Go on at ``offset`` with text that has been read from the source and not been used."""
        self._base, self._buffer, self._pos = offset, bytearray(text), 0

    def take_block(self, n_bytes: int) -> bytes:
        """Move past about ``n_bytes`` of text up to a likely event boundary, and return it."""
        stop = self._find_cut(self._boundary(n_bytes)) - self._base
        block = bytes(memoryview(self._buffer)[self._pos : stop])
        self._pos = stop
        return block

    def give_back(self, text: bytes) -> None:
        """Move back to read again ``text``, which ended where the reader stands."""
        self._base = self.offset - len(text)
        self._buffer[: self._pos] = text
        self._pos = 0

    # -- text ------------------------------------------------------------------------------

    def _boundary(self, step: int) -> int:
        # by where the last event's brace stands: that is what the search for a boundary finds
        return ((self.offset - 1) // step + 1) * step

    def _more(self, n_bytes: int = 0) -> bool:
        """Append text; False at the end of the stream."""
        if self._eof:
            return False
        block = self._source.read(max(n_bytes, self.chunk_bytes))
        if not block:
            self._eof = True
            return False
        self._base += self._pos
        del self._buffer[: self._pos]
        self._buffer += block
        self._pos = 0
        return True

    def _at_end(self) -> bool:
        """Skip white space and commas; True when no event follows (and perhaps the ``]``)."""
        while True:
            self._pos = skip_gap(self._buffer, self._pos)
            rest = len(self._buffer) - self._pos
            if rest and (self._buffer[self._pos] != _CLOSE or rest > 64 or self._eof):
                break
            if not self._more():
                if not rest:
                    return True
                break
        if self._buffer[self._pos] == _CLOSE and closes_list(self._buffer, self._pos):
            self._pos += 1
            self.ended = True
        return self.ended

    def _find_cut(self, boundary: int) -> int:
        """Return the text offset after the first ``}`` from ``boundary`` on that ``, {`` follows.

        The end of what can be read when the text ends first, or when no event is that long.
        """
        while True:
            match = SEPARATOR.search(self._buffer, max(boundary - self._base, self._pos))
            if match:
                return self._base + match.start() + 1
            end = self._base + len(self._buffer)
            too_long = end - max(boundary, self.offset) > MAX_EVENT_BYTES
            if too_long or not self._more(max(boundary, 2 * end - self.offset) - end):
                return self._base + len(self._buffer)

    def _find_start(self, offset: int) -> int:
        """Return the text offset from ``offset`` on where an event seems to begin.

        A mere boundary may be one in a damaged event's arguments: two losses instead of one.
        """
        while True:
            start = find_start(self._buffer, offset - self._base)
            size = len(self._buffer) - self._pos
            if start < len(self._buffer) or size > MAX_EVENT_BYTES or not self._more(size):
                if start == len(self._buffer) and self._is_block:
                    raise UnfinishedBlock
                return self._base + start

    # -- before and behind the events ------------------------------------------------------

    def open(self) -> None:
        """Move to the first event, keeping the keys before it as metadata; refuse text that is no trace."""
        while not (start := self._buffer.lstrip()) and self._more():
            self._pos = len(self._buffer) - len(self._buffer.lstrip())
        self._pos = len(self._buffer) - len(start)
        if start.startswith(b"["):
            self._is_list = True
            self._pos += 1
            while not (first := bytes(self._buffer[self._pos :].lstrip()[:1])) and self._more():
                pass
            if first not in (b"{", b"]", b""):
                raise self._refusal("a JSON list of something else")
            return
        if not start.startswith(b"{"):
            raise self._refusal(_describe(self._buffer[:4096]))
        searched = 0
        while True:
            for match in islice(_EVENTS_KEY.finditer(self._buffer, searched), 32):
                # what stands before the key is a complete object once closed: that proves that
                # the key is one of the top level, and not text in a string
                if self._take_meta(self._buffer[self._pos : match.start()].rstrip(b", \t\r\n")):
                    self.meta.pop("traceEvents", None)
                    self._pos = match.end()
                    return
            searched = max(len(self._buffer) - 64, 0)
            if len(self._buffer) > MAX_HEADER_BYTES or not self._more(len(self._buffer)):
                break
        self._refuse_other_json()
        likely = _EVENTS_KEY.search(self._buffer)
        if likely:
            self.loss.say("the metadata before the events cannot be read")
            self._pos = likely.end()
            return
        # nothing of it is quoted: it may be any file
        has_key = "traceEvents" in _top_keys(self._buffer)
        found = "JSON whose traceEvents is no list" if has_key else "other JSON"
        if not self._buffer.rstrip().endswith(b"}"):
            found += ", cut short"
        raise self._refusal(found)

    def _refuse_other_json(self) -> None:
        keys = _top_keys(self._buffer)
        for key, (what, hint) in _OTHER_JSON.items():
            if key in keys:
                raise self._refusal(what, hint)
        if b'"torchtriage/' in self._buffer[:256]:
            raise self._refusal("a report of torchtriage", "render it again with: torchtriage show FILE")

    def _refusal(self, found: str, hint: str = EXPORT) -> TraceFormatError:
        return TraceFormatError(
            f"expected a profiler trace (JSON with traceEvents), found {found}", where=self._source.name, hint=hint
        )

    def _take_meta(self, text: bytes | bytearray) -> bool:
        """Keep the keys of an object that only lacks its closing brace; False if it is not one."""
        for mending in (bytes, mend):
            if mending is mend and len(text) > MAX_MENDED_BYTES:
                break
            try:
                found = _decode_any(mending(bytes(text)) + b"}")
            except BROKEN:
                continue
            if isinstance(found, dict):
                self.meta.update(found)
                self.loss.n_repaired += mending is mend
                return True
        return False

    def _read_tail(self) -> None:
        if self._is_list:
            return
        while len(self._buffer) - self._pos < MAX_HEADER_BYTES and self._more():
            pass
        tail = self._buffer[self._pos :].strip()
        if not tail:
            self.loss.say("the text ends right after the events")
            return
        is_read = self._take_meta(b"{" + tail.lstrip(b", \t\r\n").removesuffix(b"}"))
        if self.meta.pop("traceEvents", None) or (not is_read and _MORE_EVENTS.search(tail)):
            self.loss.incomplete = True
            self.loss.say("another list of events behind the first is not read")
        elif not is_read:
            self.loss.say("the metadata behind the events cannot be read")

    # -- events ----------------------------------------------------------------------------

    def _next_chunk(self, boundary: int) -> Chunk:
        """Decode the next run of events, up to the boundary or the end of the list."""
        cut = first_cut = self._find_cut(boundary)
        n_tries = 0
        while True:
            stop = cut - self._base
            document = b"".join((b"[", memoryview(self._buffer)[self._pos : stop], b"]"))
            try:
                return self._decode(document)
            except BROKEN as error:
                end = self._list_end(document, error)
                if end:
                    chunk = self._decode(document[:end])
                    self._pos += 1
                    self.ended = True
                    return chunk
                size = cut - self.offset
                if not is_cut_short(error) or size > MAX_EVENT_BYTES or is_complete(document):
                    break
            # that was a boundary in an event's arguments or in a string: try the next ones
            n_tries += 1
            cut = self._find_cut(cut + (0 if n_tries < 8 else size))
            if cut == self.offset + size:
                if self._is_block:
                    raise UnfinishedBlock
                break
        stop = self._find_start(first_cut) - self._base
        # ends behind a brace, as the strict chunks do
        text = bytes(self._buffer[self._pos : stop]).rstrip(_SPACE)
        is_tail = self._eof and stop == len(self._buffer) and not self._is_block
        return self._salvage(text, is_tail=is_tail)

    def _decode(self, document: bytes) -> Chunk:
        size = len(document) - 2
        chunk = Chunk(self.offset, size, [], document)
        if self._doubt < MAX_DOUBT:
            try:
                chunk.events = decode_by_category(document)
                chunk.by_category = True
                self._doubt = max(self._doubt - 1, 0)
            except msgspec.ValidationError:
                self._doubt += 1
        if not chunk.by_category:
            try:
                chunk.events = decode_by_phase(document)
            except msgspec.ValidationError:
                chunk.events = decode_loosely(document)
        self._pos += size
        return chunk

    def _list_end(self, document: bytes, error: BaseException) -> int:
        """Return where the list of events ends within the document, 0 if it does not."""
        end = len(document[: max(error_position(error), 0)].rstrip())
        if document[end - 1 : end] != b"]" or not closes_list(self._buffer, self._pos + end - 2):
            return 0
        return end

    def decode_again(self, text: bytes, *, is_tail: bool) -> Chunk:
        """Decode the text of a chunk as it was the first time, wherever it stands."""
        try:
            return self._decode(b"[" + text + b"]")
        except BROKEN:
            return self._salvage(text.rstrip(_SPACE), is_tail=is_tail)

    def _salvage(self, text: bytes, *, is_tail: bool) -> Chunk:
        """Rescue what can be read of a damaged text, event by event."""
        offset = self.offset
        pieces: list[bytes] = []
        n_used = len(text)
        for piece in walk(text, is_tail=is_tail):
            self.loss.n_repaired += piece.repaired
            if piece.n_lost:
                self.loss.n_lost += piece.n_lost
                at = offset + piece.offset
                if is_tail and piece.end == len(text):
                    self.loss.say(f"the last event is cut short ({format_bytes(at)} into the text)")
                else:
                    shown = _shown(text[piece.offset : piece.offset + 60])
                    self.loss.say(f"an unreadable event at byte {at}: {shown}")
            if piece.text:
                pieces.append(piece.text)
            if piece.closes:
                n_used = piece.end
                self.ended = True
        self._pos += n_used
        try:
            document = _join(pieces)
            events = decode_loosely(document)
        except BROKEN:  # an event nested to the limit: the list around it is one too deep
            shallow = [text for text in pieces if is_complete(_join([text]))]
            self.loss.n_lost += len(pieces) - len(shallow)
            document = _join(shallow)
            events = decode_loosely(document)
        return Chunk(offset, n_used, events, document)


# -- text helpers ------------------------------------------------------------------------------

_CLOSE = ord("]")
_SPACE = b", \t\r\n"
SEPARATOR = re.compile(rb"\}\s*,\s*\{")
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_MORE_EVENTS = re.compile(_EVENTS_KEY.pattern + rb"|^\}\s*[\[{]")
_OTHER_JSON = {
    "nodes": (
        "a PyTorch execution trace (ExecutionTraceObserver, Chakra), which holds operators and inputs but no kernels",
        "pass the file that prof.export_chrome_trace(...) or tensorboard_trace_handler wrote in the same run, and this"
        " one with --execution-trace",
    ),
    "cells": ("a Jupyter notebook", EXPORT),
    "segments": ("a memory snapshot", EXPORT),
}
_LOG_LINE = re.compile(rb"[VIWEFDC]\d{4} \d\d:\d\d:\d\d")
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[{}\[\]]', re.DOTALL)


def _join(events: list[bytes]) -> bytes:
    return b"[" + b",\n".join(events) + b"]"


def _shown(text: bytes | bytearray) -> str:
    return repr(text.decode("utf-8", "replace"))


def _describe(head: bytes | bytearray) -> str:
    start = head.lstrip()
    if not start:
        return "only white space"
    if _LOG_LINE.match(start):
        return "a PyTorch log (TORCH_TRACE or TORCH_LOGS)"
    if _BINARY.search(head) or b"\xff" in head:
        return "binary data (another profiler's, or a compressed file?)"
    return "text that is no JSON"


def _top_keys(text: bytes | bytearray) -> list[str]:
    """Return the top-level keys within the first few thousand tokens of an object's text."""
    keys: list[str] = []
    depth = 0
    for match in islice(_TOKEN.finditer(text), 20_000):
        token = match.group()
        if token in (b"{", b"["):
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                break
        elif depth == 1 and text[match.end() : match.end() + 8].lstrip().startswith(b":"):
            keys.append(token[1:-1].decode("utf-8", "replace"))
    return keys

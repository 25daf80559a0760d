"""Raw JSON bytes to typed events, in bounded chunks, in three tiers.

*strict*: a chunk is cut at the last ``},{`` and decoded as an array. A chunk that decodes proves
its own end: the text before it was a complete list of events (left-to-right grammar from a proven
start), so this is exact for any valid JSON, whatever strings and nesting hold.
*repair*: literals JSON does not have (``NaN``, ``inf``, ``N/A``), raw control characters, stray
backslashes and bytes that are not UTF-8 are mended, then the chunk is decoded again.
*salvage*: what is still broken is decoded event by event; an event that cannot be read is lost,
counted and shown, and costs only itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from torchtriage.errors import TraceFormatError
from torchtriage.trace.source import Source
from torchtriage.units import format_bytes

__all__ = ["NO_ARGS", "Args", "Chunk", "Event", "EventReader", "LooseEvent", "Loss", "decode_untyped"]

CHUNK_BYTES = 256 << 10
"""Fits the L2 cache: whole-file decoding is 2-3x slower (measured, docs/performance.md)."""
BLOCK_BYTES = 1 << 20
MAX_EVENT_BYTES = 64 << 20
"""No real event comes near this; beyond it the text has lost its event boundaries."""
MAX_HEADER_BYTES = 64 << 20


class Args(msgspec.Struct, gc=False):
    """The arguments that become columns; the rest stays in the file, by byte range."""

    correlation: int = -1
    stream: int | str | None = None
    device: int | str | None = None
    # ROCm writes sizes as text
    size_bytes: int | str | None = msgspec.field(default=-1, name="bytes")
    sequence: int = msgspec.field(default=-1, name="Sequence number")
    fwd_thread: int = msgspec.field(default=-1, name="Fwd thread id")
    python_id: int = msgspec.field(default=-1, name="Python id")
    python_parent: int | None = msgspec.field(default=-1, name="Python parent id")
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input type")
    concrete: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Concrete Inputs")
    strides: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input Strides")
    grid: msgspec.Raw = msgspec.Raw(b"")
    block: msgspec.Raw = msgspec.Raw(b"")
    collective: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Collective name")
    nelems: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="In msg nelems")
    dtype: msgspec.Raw = msgspec.Raw(b"")
    memory_bytes: int = msgspec.field(default=0, name="Bytes")
    addr: int = msgspec.field(default=0, name="Addr")
    allocated: int = msgspec.field(default=-1, name="Total Allocated")
    reserved: int = msgspec.field(default=-1, name="Total Reserved")
    device_type: int = msgspec.field(default=-1, name="Device Type")
    device_id: int = msgspec.field(default=-1, name="Device Id")


NO_ARGS = Args()


class Event(msgspec.Struct, gc=False):
    """One trace event; ``ts`` and ``dur`` in microseconds."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: float = 0.0
    dur: float = -1.0
    args: Args | None = None


class LooseEvent(msgspec.Struct, gc=False):
    """The same with nothing assumed about types: old, foreign and hand-edited files."""

    ph: Any = ""
    name: Any = ""
    cat: Any = ""
    pid: Any = ""
    tid: Any = ""
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")
    args: Any = None


class _Times(msgspec.Struct, gc=False):
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")


_decode_times = msgspec.json.Decoder(list[_Times]).decode
_decode_fast = msgspec.json.Decoder(list[Event]).decode
_decode_loose = msgspec.json.Decoder(list[LooseEvent]).decode
_decode_any = msgspec.json.Decoder().decode


@dataclass
class Loss:
    """What reading cost: how the text had to be treated, and what did not survive."""

    n_lost: int = 0
    n_repaired: int = 0
    messages: list[str] = field(default_factory=list)
    more: int = 0

    @property
    def tier(self) -> str:
        """Return ``strict``, ``repaired`` or ``salvaged``."""
        if self.n_lost:
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


@dataclass
class Chunk:
    """A run of decoded events and where its text stands in the uncompressed stream."""

    offset: int
    text: bytes
    events: list[Event] | list[LooseEvent]
    loose: bool
    mended: bool = False

    def untyped(self) -> list[dict[str, Any]]:
        """Return every event with all its arguments, in the order of ``events``."""
        return decode_untyped(self.text)

    def text_times(self) -> list[tuple[bytes, bytes]]:
        """Return ``(ts, dur)`` of every event as written, for clocks a double cannot hold."""
        if self.loose:
            return [(bytes(event.ts), bytes(event.dur)) for event in self.events]  # type: ignore[arg-type]
        return [(bytes(row.ts), bytes(row.dur)) for row in _decode_times(b"[" + self.text + b"]")]


class EventReader:
    """Iterate over a source's events as chunks; then ``meta`` holds the other top-level keys."""

    def __init__(self, source: Source) -> None:
        self.meta: dict[str, Any] = {}
        self.loss = Loss()
        self._source = source
        self._buffer = b""
        self._pos = 0
        self._base = 0  # stream offset of self._buffer[0]
        self._eof = False
        self._is_list = False

    def __iter__(self) -> Iterator[Chunk]:
        """Yield chunks in file order."""
        self._find_events()
        ended = False
        while not ended:
            self._fill(CHUNK_BYTES)
            if self._at_array_end():
                ended = True
                break
            if self._pos >= len(self._buffer) and self._eof:
                break
            chunk, ended = self._next_chunk()
            if chunk is not None:
                yield chunk
            elif not ended:
                break
        if ended:
            self._read_tail()
        else:
            cut = self._source.truncated or "the text ends before the list of events does"
            self.loss.say(f"{cut}, after {format_bytes(self._base + self._pos)} of text")

    # -- text ------------------------------------------------------------------------------

    def _more(self) -> bool:
        """Append one block; False at the end of the stream."""
        if self._eof:
            return False
        block = self._source.read(BLOCK_BYTES)
        if not block:
            self._eof = True
            return False
        self._base += self._pos
        self._buffer = self._buffer[self._pos :] + block
        self._pos = 0
        return True

    def _fill(self, wanted: int) -> None:
        while len(self._buffer) - self._pos < wanted and self._more():
            pass

    def _find_events(self) -> None:
        """Move to the first event, keeping the keys before it as metadata."""
        self._fill(1)
        text = self._buffer.lstrip()
        if text.startswith(b"["):
            self._is_list = True
            self._pos = self._buffer.index(b"[") + 1
            return
        if not text.startswith(b"{"):
            raise TraceFormatError(
                "expected JSON, found text that starts with "
                f"{text[:20].decode('utf-8', 'replace')!r}",
                where=self._source.name,
                hint="pass the file written by prof.export_chrome_trace(...)",
            )
        scan = _KeyScan()
        while True:
            found = scan.advance(self._buffer)
            if found is not None:
                key_start, self._pos = found
                head = self._buffer[:key_start].rstrip().rstrip(b",") + b"}"
                self._take_meta(head)
                return
            self._refuse_other_json(scan.keys)
            if len(self._buffer) > MAX_HEADER_BYTES or not self._more():
                break
        if self._eof and not scan.keys:
            raise TraceFormatError(
                "expected a profiler trace, found JSON that cannot be read",
                where=self._source.name,
                hint="the file may be cut short or not be JSON at all",
            )
        raise TraceFormatError(
            "expected the key traceEvents, found "
            + (", ".join(sorted(scan.keys)[:6]) or "no key at all"),
            where=self._source.name,
            hint="pass the file written by prof.export_chrome_trace(...)",
        )

    def _refuse_other_json(self, keys: list[str]) -> None:
        """Name the JSON files that people mistake for traces."""
        names = set(keys)
        if "nodes" in names:
            what, hint = (
                "a PyTorch execution trace (ExecutionTraceObserver)",
                "pass the Kineto trace written by prof.export_chrome_trace(...) instead",
            )
        elif {"cells", "nbformat"} <= names:
            what, hint = "a Jupyter notebook", "pass a trace file"
        elif "segments" in names and "device_traces" in names:
            what, hint = "a memory snapshot", "analyze reads profiler traces"
        elif "schema" in names and "results" in names:
            what, hint = (
                "a torchtriage report",
                "render it again with: torchtriage show FILE",
            )
        else:
            return
        raise TraceFormatError(
            f"expected a profiler trace, found {what}", where=self._source.name, hint=hint
        )

    def _at_array_end(self) -> bool:
        """Skip white space and commas; True when the next byte closes the list of events."""
        while True:
            match = _GAP.match(self._buffer, self._pos)
            assert match is not None
            self._pos = match.end()
            if self._pos < len(self._buffer):
                if self._buffer[self._pos : self._pos + 1] == b"]":
                    self._pos += 1
                    return True
                return False
            if not self._more():
                return False

    # -- events ----------------------------------------------------------------------------

    def _next_chunk(self) -> tuple[Chunk | None, bool]:
        """Decode the next run of events; the flag says that the list ended behind it."""
        while True:
            start = self._pos
            stop = min(start + CHUNK_BYTES, len(self._buffer))
            whole = self._eof and stop == len(self._buffer)
            window = self._buffer[start:stop]
            if not whole:
                cut = _last_separator(window)
                if cut > 0:
                    chunk = self._decode(window[:cut])
                    if chunk is not None:
                        self._pos = start + cut
                        return chunk, False
            return self._hard_chunk(start)

    def _decode(self, text: bytes) -> Chunk | None:
        """Decode complete events strictly, typed if possible, else untyped."""
        document = b"[" + text + b"]"
        offset = self._base + self._pos
        try:
            return Chunk(offset, text, _decode_fast(document), loose=False)
        except msgspec.ValidationError:
            pass
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return None
        try:
            return Chunk(offset, text, _decode_loose(document), loose=True)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return None

    def _hard_chunk(self, start: int) -> tuple[Chunk | None, bool]:
        """Everything the fast path does not settle: ends, nesting, damage, truncation."""
        # 1. the list may end here; the first candidate that decodes is the end, by proof
        self._fill(CHUNK_BYTES + BLOCK_BYTES)
        start = self._pos
        text = self._buffer[start : start + 2 * CHUNK_BYTES]
        last = self._eof and start + len(text) == len(self._buffer)
        for match in _likely_ends(text, self._is_list):
            chunk = self._decode(text[: match + 1])
            if chunk is not None:
                self._pos = start + match + 1
                self._at_array_end()
                return chunk, True
        # 2. a separator inside an event's arguments fooled the cut: try earlier ones
        separators = [match.start() + 1 for match in _SEPARATOR.finditer(text)]
        for cut in separators[-1:-24:-1]:
            chunk = self._decode(text[:cut])
            if chunk is not None:
                self._pos = start + cut
                return chunk, False
        if not separators and not last and len(self._buffer) - start < MAX_EVENT_BYTES:
            # 3. one event larger than the buffer
            if not self._more():
                return self._salvage(self._buffer[self._pos :], at_end=True)
            wider = self._buffer[self._pos :]
            while not _SEPARATOR.search(wider) and len(wider) < MAX_EVENT_BYTES and self._more():
                wider = self._buffer[self._pos :]
            cut = _last_separator(wider)
            chunk = self._decode(wider[:cut]) if cut > 0 else None
            if chunk is not None:
                self._pos += cut
                return chunk, False
            text, last = wider, self._eof
            separators = [match.start() + 1 for match in _SEPARATOR.finditer(text)]
        # 4. damaged text
        if not last and separators:
            text = text[: separators[-1]]
        return self._salvage(text, at_end=last)

    def _salvage(self, text: bytes, *, at_end: bool) -> tuple[Chunk | None, bool]:
        """Mend or rescue events one by one; returns what survived of ``text``."""
        offset = self._base + self._pos
        ended = False
        if not at_end:
            mended = mend(text)
            events = _try(mended)
            if events is not None:
                self._pos += len(text)
                self.loss.n_repaired += _n_mended(text, events)
                return Chunk(offset, text, events, loose=True, mended=True), False
        kept: list[LooseEvent] = []
        position = 0
        while position < len(text):
            piece_end = _next_start(text, position)
            piece = text[position:piece_end]
            body = piece.rstrip(b" \t\r\n,")
            is_last = piece_end >= len(text)
            event, repaired, used = _rescue(body, may_end=True)
            if event is not None:
                kept.append(event)
                self.loss.n_repaired += repaired
                closes = body[used:].lstrip()
                if closes.startswith(b"]"):
                    position += body.index(b"]", used)
                    self._pos += position
                    ended = self._at_array_end()
                    return Chunk(offset, text[:position], kept, loose=True, mended=True), ended
            elif body.strip(b" \t\r\n,]}"):
                self.loss.n_lost += 1
                where = format_bytes(offset + position)
                if is_last and at_end:
                    self.loss.say(f"the last event is cut short ({where} into the text)")
                else:
                    shown = body[:60].decode("utf-8", "replace")
                    self.loss.say(f"an unreadable event at byte {offset + position}: {shown!r}")
            position = piece_end
        self._pos += len(text)
        if not kept and not at_end:
            return Chunk(offset, text, [], loose=True, mended=True), False
        return (Chunk(offset, text, kept, loose=True, mended=True) if kept else None), ended

    # -- metadata --------------------------------------------------------------------------

    def _take_meta(self, text: bytes) -> None:
        for candidate in (text, mend(text)):
            try:
                found = _decode_any(candidate)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                continue
            if isinstance(found, dict):
                self.meta.update(found)
            return
        self.loss.say("the metadata before the events cannot be read")

    def _read_tail(self) -> None:
        if self._is_list:
            return
        while len(self._buffer) - self._pos < MAX_HEADER_BYTES and self._more():
            pass
        tail = self._buffer[self._pos :].strip()
        if tail in (b"}", b""):
            if not tail:
                self.loss.say("the text ends right after the events")
            return
        body = b"{" + tail.lstrip(b", \t\r\n")
        if body == b"{}":
            return
        self._take_meta(body if body.endswith(b"}") else body.rstrip(b", \t\r\n") + b"}")


# -- text helpers ------------------------------------------------------------------------------

_GAP = re.compile(rb"[\s,]*")
_SEPARATOR = re.compile(rb"\}\s*,\s*\{")
_ARRAY_END = re.compile(rb"\}\s*\](?=\s*(?:\}\s*$|,\s*\"))")
_LIST_END = re.compile(rb"\}\s*\](?=\s*$)")
_EVENT_START = re.compile(rb"\{\s*\"(?:ph|name|cat|pid|tid|ts|args|id|bp|s)\"\s*:")
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"?|[{}\[\]]|[^"{}\[\]]+', re.DOTALL)


def _last_separator(text: bytes) -> int:
    """Return the index after the last ``}`` that a comma and a ``{`` follow, else 0."""
    stop = len(text)
    while True:
        brace = text.rfind(b"{", 0, stop)
        if brace <= 0:
            return 0
        before = text[max(brace - 64, 0) : brace].rstrip()
        if before.endswith(b","):
            before = before[:-1].rstrip()
            if before.endswith(b"}"):
                return max(brace - 64, 0) + len(before)
        stop = brace


def _likely_ends(text: bytes, is_list: bool) -> list[int]:
    """Return positions of ``}`` that may close the last event, likeliest first."""
    pattern = _LIST_END if is_list else _ARRAY_END
    found = [match.start() for match in pattern.finditer(text)]
    return found[-1:-9:-1] + found[:8]


def _next_start(text: bytes, position: int) -> int:
    """Return where the next event begins after the one at ``position``."""
    search = position + 1
    while True:
        match = _EVENT_START.search(text, search)
        if match is None:
            return len(text)
        before = text[max(match.start() - 64, 0) : match.start()].rstrip()
        if before.endswith((b",", b"}")):
            return match.start()
        search = match.end()


class _KeyScan:
    """Find the key ``traceEvents`` at depth one without decoding what stands before it."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self._position = 0
        self._depth = 0
        self._last: tuple[int, bytes] | None = None

    def advance(self, text: bytes) -> tuple[int, int] | None:
        """Return (start of the key, position after ``[``) once both are in ``text``."""
        while self._position < len(text):
            match = _TOKEN.match(text, self._position)
            if match is None:
                return None
            token = match.group()
            if match.end() == len(text) and token[:1] not in b"{}[]":
                return None  # a string or number may go on in the next block
            if token[:1] == b'"':
                self._last = (match.start(), token) if self._depth == 1 else None
            elif token in (b"{", b"["):
                last = self._last
                if self._depth == 1 and last and last[1] == b'"traceEvents"' and token == b"[":
                    return last[0], match.end()
                self._depth += 1
                self._last = None
            elif token in (b"}", b"]"):
                self._depth -= 1
            elif self._depth == 1 and self._last and token.lstrip().startswith(b":"):
                self.keys.append(self._last[1].strip(b'"').decode("utf-8", "replace"))
                if token.strip() != b":":
                    self._last = None
            self._position = match.end()
        return None


_LITERAL = re.compile(
    rb'"(?:[^"\\]|\\.)*"|-?\b(?:NaN|nan|[Ii]nf(?:inity)?)\b|\bN/A\b|\bundefined\b', re.DOTALL
)
_CONTROL = re.compile(rb"[\x00-\x1f]")
_STRAY_BACKSLASH = re.compile(rb'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')


def mend(text: bytes) -> bytes:
    """Return JSON text with the damage real profilers write mended.

    Sources: ``inf`` bandwidth (kineto#105), ``N/A`` (kineto#133), raw control bytes
    (pytorch#136180), Windows backslashes (pytorch#98432), bytes that are not UTF-8.
    """

    def fix(match: re.Match[bytes]) -> bytes:
        token = match.group()
        if not token.startswith(b'"'):
            return b"null"
        if _CONTROL.search(token):
            token = _CONTROL.sub(lambda control: b"\\u%04x" % control.group()[0], token)
        if b"\\" in token:
            token = _escape_strays(token)
        return token

    try:
        text.decode()
    except UnicodeDecodeError:
        text = text.decode("utf-8", "replace").encode()
    return _LITERAL.sub(fix, text)


def _escape_strays(token: bytes) -> bytes:
    out, index = bytearray(), 0
    while index < len(token):
        if token[index : index + 1] != b"\\":
            out += token[index : index + 1]
            index += 1
        elif _STRAY_BACKSLASH.match(token, index):
            out += b"\\\\"
            index += 1
        else:
            out += token[index : index + 2]
            index += 2
    return bytes(out)


# an unescaped quote inside a name (pytorch#146900): the name ends where the next key begins
_NAME = re.compile(
    rb'("name"\s*:\s*")(.*?)("\s*,\s*"(?:ph|cat|pid|tid|ts|dur|args|id|bp|s)"\s*:)', re.DOTALL
)


def _quote_name(text: bytes) -> bytes:
    def fix(match: re.Match[bytes]) -> bytes:
        inner = match.group(2).replace(b'\\"', b'"').replace(b"\\", b"\\\\").replace(b'"', b'\\"')
        return match.group(1) + inner + match.group(3)

    return _NAME.sub(fix, text, count=1)


def _try(text: bytes) -> list[LooseEvent] | None:
    try:
        return _decode_loose(b"[" + text + b"]")
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def decode_untyped(text: bytes) -> list[dict[str, Any]]:
    """Return the events of a chunk's text with everything they hold, damaged ones mended."""
    for repair in (bytes, mend):  # mending costs far more than decoding: only when needed
        try:
            return [e for e in _decode_any(b"[" + repair(text) + b"]") if isinstance(e, dict)]
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            continue
    events, position = [], 0
    while position < len(text):
        end = _next_start(text, position)
        piece = text[position:end].rstrip(b" \t\r\n,")
        for candidate in (piece, mend(piece), mend(_quote_name(piece))):
            try:
                found = _decode_any(candidate)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                continue
            if isinstance(found, dict):
                events.append(found)
            break
        position = end
    return events


def _n_mended(text: bytes, events: list[LooseEvent]) -> int:
    """Count the damaged events of a chunk that decodes once mended (at least one)."""
    n, position = 0, 0
    while position < len(text):
        end = _next_start(text, position)
        n += _try(text[position:end].rstrip(b" \t\r\n,")) is None
        position = end
    return max(n, 1)


def _rescue(text: bytes, *, may_end: bool) -> tuple[LooseEvent | None, int, int]:
    """Return one event of a damaged text, how many repairs it took (0, 1), and bytes used."""
    mended = mend(text)
    for repaired, candidate in ((0, text), (1, mended), (1, mend(_quote_name(text)))):
        events = _try(candidate)
        if events is not None and len(events) == 1:
            return events[0], repaired, len(text)
    if may_end:
        # the last event is followed by the end of the list and the other keys
        for stop in re.finditer(rb"\}(?=\s*\])", text):
            event, repaired, _ = _rescue(text[: stop.end()], may_end=False)
            if event is not None:
                return event, repaired, stop.end()
    return None, 0, 0

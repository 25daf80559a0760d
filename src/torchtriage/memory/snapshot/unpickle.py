"""Pickles of plain data, read without ever running anything.

Not ``pickle``: an interpreter of the opcodes that build dict, list, tuple, str, int, float, bool,
None and bytes, and of no others. Whatever could import, call or look up (GLOBAL, REDUCE, BUILD,
persistent ids, extension codes …) is refused by name. Lengths are held against what is there, and
what is kept against what was read, so that no file of a few bytes grows into many.

A :class:`EventSink` is shown every dict and every list of known things when it is complete, and may put
a small value in its place: files of gigabytes become columns while they are read.
Source: the opcodes are those of ``pickletools`` in the standard library.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from torchtriage.core.errors import SnapshotError
from torchtriage.core.process import uncollected
from torchtriage.core.units import format_bytes

WINDOW_BYTES = 1 << 20
MARGIN_BYTES = 64 << 10
"""An opcode with its argument fits in it; longer strings are waited for."""
MAX_TEXT_BYTES = 1 << 20
"""Of a longer string the first ``CUT_BYTES`` are kept, and it is counted."""
CUT_BYTES = 1000
MAX_TEXTS_BYTES = 512 << 20
"""Of all different strings together, as kept. A snapshot has names of files and functions."""
SHARED_BYTES = 255
"""Strings up to this length are kept once, however often the file repeats them."""
MAX_DEPTH = 100
"""Snapshots nest eight deep."""
FREE_VALUES = 1_000_000
BYTES_PER_VALUE = 16
"""Values that may be kept: so many, and one more for each so many bytes. An entry of a snapshot's
history takes more than 60 bytes and leaves three."""

MAX_ITEMS = 24
MAX_SHAPES = 32
"""Of dicts that come by the million: each shape has a pattern, which takes time to make. A torch
writes a handful of shapes, of twelve items at most."""
CACHED = 200_000
_TRY = "write it again with torch.cuda.memory._dump_snapshot(path), and pass that file"
_TRUNCATED = "the file was cut: copy it again, or let the program that writes it finish"
PROTO, FRAME, STOP, MARK = b"\x80\x95.("
EMPTY_DICT, SETITEM, SETITEMS = b"}su"
EMPTY_LIST, APPEND, APPENDS = b"]ae"
EMPTY_TUPLE, TUPLE, TUPLE1, TUPLE2, TUPLE3 = b")t\x85\x86\x87"
NONE, TRUE, FALSE = b"N\x88\x89"
BININT, BININT1, BININT2, LONG1, LONG4, BINFLOAT = b"JKM\x8a\x8bG"
BINUNICODE, SHORT_BINUNICODE, BINUNICODE8 = b"X\x8c\x8d"
BINBYTES, SHORT_BINBYTES, BINBYTES8 = b"BC\x8e"
BINPUT, LONG_BINPUT, MEMOIZE = b"qr\x94"
BINGET, LONG_BINGET = b"hj"

_GET = rb"(?:j....|h.)"
_FLAT = rb"K.|M..|J....|\x8a(?:\x06.{6}|\x08.{8}|\x07.{7}|\x05.{5})|[N\x88\x89]"
_SHORT_TEXT = rb"\x8c(?:" + b"|".join(rb"\x%02x.{%d}" % (n, n) for n in range(1, 65)) + rb")"
# a whole list of things that were there before: its bytes stand for it
_LIST_OF_KNOWN = re.compile(
    rb"\](?:\x94|q(.)|r(....)|)(?:\(((?:j....|h.){2,4096})e|((?:j....|h.))a)(?![(ae])", re.DOTALL
)
_KNOWN = re.compile(rb"j(....)|h(.)", re.DOTALL)
_INT = struct.Struct("<i").unpack_from
_INDEX = struct.Struct("<I").unpack_from
_LENGTH = struct.Struct("<Q").unpack_from
_FLOAT = struct.Struct(">d").unpack_from


class EventSink(Protocol):
    """What wants to see parts of a document before it is whole."""

    def take_dict(self, value: dict[Any, Any]) -> Any:
        """Return what to keep in place of a complete dict: ``value`` itself to keep it."""

    def take_list(self, value: list[Any]) -> Any:
        """Return what to keep in place of a list of earlier values: ``value`` to keep it."""

    def count(self, what: str) -> None:
        """Note that something was met and not kept as it is in the file."""

    def taker(self, names: tuple[Any, ...]) -> Callable[[list[Any]], Any] | None:
        """Return what does as ``take_dict`` with the values of a dict of these keys, if anything.

        Dicts of the same keys come by the million.
        """

    n_items: int
    """How many items the dicts have that come by the million; 0 while that is not known."""


@lru_cache(maxsize=64)
def _row_of_known(keys: tuple[bytes, ...], puts: bytes) -> re.Pattern[bytes]:
    """Return what matches a dict of known keys, numbers and known things, one group for each.

    Groups: what puts the dict, then key, value, ... A list holds known things alone; lists and
    short texts are put, too. ``keys`` are the keys' patterns.
    """
    listed = rb"\]" + puts + rb"(?:\(" + _GET + rb"{2,4096}e)?"
    value = b"(" + b"|".join([_GET, _FLAT, listed, _SHORT_TEXT + puts]) + b")"
    return re.compile(rb"\}(" + puts + rb")\(" + b"".join(key + value for key in keys) + rb"u", re.DOTALL)


class _Shape(NamedTuple):
    """The keys of dicts that follow each other, and what takes their values."""

    keys: tuple[bytes, ...]
    names: tuple[Any, ...]
    take: Callable[[list[Any]], Any] | None


class _Pending:
    """A dict that has no items yet, and where the memo has it."""

    __slots__ = ("slot",)

    def __init__(self, slot: int) -> None:
        self.slot = slot


def unpickle(
    read: Callable[[int], bytes], sink: EventSink, *, name: str = "", progress: Callable[[int], None] | None = None
) -> Any:
    """Return the plain data a pickle of protocol 2 to 5 holds.

    ``read`` returns up to so many bytes, none at the end. ``name`` : of the input, for messages. ``progress`` gets
    the number of bytes read so far, every few megabytes.

    Raises SnapshotError: not a pickle, cut, or one that holds anything but plain data.
    """
    reader = _Reader(read, sink, progress)
    try:
        with uncollected():
            return reader.run()
    except SnapshotError as error:
        raise SnapshotError(error.message, where=error.where or name, hint=error.hint) from None
    except (IndexError, struct.error):
        raise SnapshotError(
            f"expected a whole pickle, found one that ends or breaks off at byte {reader.position:,}",
            where=name,
            hint=_TRUNCATED,
        ) from None
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise SnapshotError(
            f"expected plain data, found opcodes that fit no data near byte {reader.position:,} ({error})",
            where=name,
            hint=_TRY,
        ) from None


class _Reader:
    """The state that outlives one window of the file."""

    def __init__(self, read: Callable[[int], bytes], sink: EventSink, progress: Callable[[int], None] | None) -> None:
        self.read = read
        self.sink = sink
        self.progress = progress
        self.base = 0
        self.pos = 0
        self.data = b""
        self.is_end = False
        self.n_values = 0
        self.memo: list[Any] = []
        # what opcodes stand for: a memo index never changes its meaning
        self.lists: dict[bytes, Any] = {}
        self.small: dict[bytes, Any] = {}
        self.texts: dict[bytes, str] = {}
        self.texts_bytes = 0
        self.shape: _Shape | None = None
        self.shapes: dict[tuple[bytes, ...], _Shape] = {}

    @property
    def position(self) -> int:
        return self.base + self.pos

    def fill(self, size: int) -> None:
        """Forget what was read, and have at least ``size`` bytes from here unless the file ends."""
        parts = [self.data[self.pos :]]
        n_bytes = len(parts[0])
        self.base += self.pos
        self.pos = 0
        while n_bytes < size and not self.is_end:
            part = self.read(max(size - n_bytes, MARGIN_BYTES))
            self.is_end = not part
            n_bytes += len(part)
            parts.append(part)
        self.data = b"".join(parts)
        if self.progress is not None:
            self.progress(self.base + n_bytes)

    def long_text(self, pos: int, n_bytes: int, is_text: bool) -> str | bytes:
        n_read = n_bytes if n_bytes <= MAX_TEXT_BYTES else CUT_BYTES
        self.pos = pos
        if pos + n_read > len(self.data):
            self.fill(n_read + MARGIN_BYTES)
            if n_read > len(self.data):
                raise IndexError
        raw = self.data[self.pos : self.pos + n_read]
        self.pos += n_read
        if n_read < n_bytes:
            self.skip(n_bytes - n_read)
            self.sink.count(f"text longer than {format_bytes(MAX_TEXT_BYTES)}, cut")
            return raw.decode("utf-8", "ignore") + "…" if is_text else raw
        self.n_values += 1 + n_bytes // 64
        if is_text:
            return self.text(raw)
        self.texts_bytes += sys.getsizeof(raw)
        return raw

    def skip(self, n_bytes: int) -> None:
        while n_bytes > len(self.data) - self.pos:
            n_bytes -= len(self.data) - self.pos
            self.pos = len(self.data)
            self.fill(WINDOW_BYTES)
            if not self.data:
                raise IndexError
        self.pos += n_bytes

    def text(self, raw: bytes) -> str:
        """Return the text of these bytes, the same object for the same bytes while they last."""
        text = self.texts.get(raw)
        if text is None:
            text = raw.decode("utf-8", "surrogatepass")
            self.texts_bytes += sys.getsizeof(text)
            if len(raw) <= SHARED_BYTES:
                self.texts[raw] = text
        return text

    def put(self, index: int, value: Any) -> None:
        memo = self.memo
        if index == len(memo):
            memo.append(value)
        elif index > len(memo) + 16:
            raise SnapshotError(f"expected memo index {len(memo):,}, found {index:,}", hint=_TRY)
        else:  # cPickle counted from 1
            memo.extend([None] * (index + 1 - len(memo)))
            if memo[index] is not None:
                raise SnapshotError(f"expected one value at memo index {index:,}, found two", hint=_TRY)
            memo[index] = value

    def known(self, run: bytes) -> list[Any]:
        memo = self.memo
        return [memo[_INDEX(long)[0] if long else short[0]] for long, short in _KNOWN.findall(run)]

    def known_dicts(self, pos: int, limit: int, stack: list[Any]) -> int:
        """Push the dicts that look like those before and follow each other; return their end.

        Most of a large file is these: one match each, instead of some thirty opcodes.
        """
        data, memo, small, take = self.data, self.memo, self.small, self.sink.take_dict
        puts = b"\x94" if data[pos + 1] == MEMOIZE else b"r...."
        head = 1 + (1 if data[pos + 1] == MEMOIZE else 5)
        any_row = _row_of_known((b"(" + _GET + b")",) * self.sink.n_items, puts).match
        shape = self.shape
        match_at = None if shape is None else _row_of_known(shape.keys, puts).match
        while pos < limit:
            match = None if match_at is None else match_at(data, pos)
            if match is None or shape is None:
                match = any_row(data, pos)
                if match is None:
                    break
                # other keys: from now on these are looked for
                shape = self.shape = self.shape_of(match.groups()[1::2])
                if shape is None:
                    break
                match_at = _row_of_known(shape.keys, puts).match
                match = match_at(data, pos)
                if match is None:
                    break
            groups = match.groups()
            slot = len(memo)
            if head == 6 and not self.puts_fit(groups):
                break
            memo.append(None)
            values = []
            for raw in groups[1:]:
                value = small.get(raw, memo)  # the memo itself is nobody's value
                if value is memo:
                    op = raw[0]
                    if op == LONG1:
                        value = int.from_bytes(raw[2:], "little", signed=True)
                    elif op == EMPTY_LIST:
                        value = self.known_list(raw[head + 1 : -1]) if len(raw) > head else []
                        memo.append(value)
                    elif op == SHORT_BINUNICODE:
                        value = self.text(raw[2 : 2 + raw[1]])
                        memo.append(value)
                    else:
                        value = small[raw] = self.decoded(raw)
                values.append(value)
            if shape.take is not None:
                row = shape.take(values)
            else:
                items = dict(zip(shape.names, values, strict=True))
                row = take(items)
                if row is items:
                    self.n_values += 2 * len(items)
            memo[slot] = row
            stack.append(row)
            pos = match.end()
        if len(small) > CACHED or len(self.lists) > CACHED:
            small.clear()
            self.lists.clear()
        return pos

    def shape_of(self, keys: tuple[bytes, ...]) -> _Shape | None:
        shape = self.shapes.get(keys)
        if shape is None and len(self.shapes) < MAX_SHAPES:
            names = tuple(_key(self.decoded(key)) for key in keys)
            shape = _Shape(tuple(map(re.escape, keys)), names, self.sink.taker(names))
            self.shapes[keys] = shape
        return shape

    def puts_fit(self, groups: tuple[bytes, ...]) -> bool:
        """Return whether the memo indices a dict and its lists are put under come next."""
        puts = [groups[0][1:5]]
        for raw in groups[1:]:
            if raw[0] == EMPTY_LIST:
                puts.append(raw[2:6])
            elif raw[0] == SHORT_BINUNICODE:
                puts.append(raw[-4:])
        return all(_INDEX(put)[0] == index for index, put in enumerate(puts, len(self.memo)))

    def decoded(self, raw: bytes) -> Any:
        op = raw[0]
        if op == BINGET:
            return self.memo[raw[1]]
        if op == LONG_BINGET:
            return self.memo[_INDEX(raw, 1)[0]]
        if op == BININT:
            return _INT(raw, 1)[0]
        if op in (BININT1, BININT2):
            return int.from_bytes(raw[1:], "little")
        return {NONE: None, TRUE: True, FALSE: False}[op]

    def known_list(self, run: bytes) -> Any:
        """Return the list of remembered values that a run of BINGET opcodes stands for."""
        value = self.lists.get(run)
        if value is None:
            value = self.sink.take_list(self.known(run))
            if type(value) is list:
                self.n_values += len(value)
            else:
                self.lists[run] = value  # many like it follow
        return value

    def check_size(self, stack: list[Any], outer: list[list[Any]]) -> None:
        """Refuse a file that makes more of itself than its bytes."""
        if len(self.texts) > CACHED:
            self.texts.clear()
        if self.texts_bytes > MAX_TEXTS_BYTES:
            raise SnapshotError(
                f"expected names and numbers, found more than {format_bytes(MAX_TEXTS_BYTES)} of"
                f" text in the first {self.position:,} bytes",
                hint=_TRY,
            )
        values = self.n_values + len(self.memo) + len(stack) + sum(map(len, outer))
        if values > FREE_VALUES + self.position // BYTES_PER_VALUE:
            raise SnapshotError(
                f"expected a snapshot, found {values:,} loose values in the first {self.position:,} bytes", hint=_TRY
            )

    def run(self) -> Any:
        self.fill(WINDOW_BYTES)
        self.check_head()
        stack: list[Any] = []
        outer: list[list[Any]] = []
        memo, sink = self.memo, self.sink
        while True:
            if len(self.data) - self.pos < 2 * MARGIN_BYTES and not self.is_end:
                self.fill(WINDOW_BYTES)
                self.check_size(stack, outer)
            data, pos = self.data, self.pos
            limit = len(data) if self.is_end else len(data) - MARGIN_BYTES
            if pos >= limit and self.is_end:
                raise IndexError
            push = stack.append
            while pos < limit:
                op = data[pos]
                pos += 1
                if op == BINGET:
                    push(memo[data[pos]])
                    pos += 1
                elif op == LONG_BINGET:
                    push(memo[_INDEX(data, pos)[0]])
                    pos += 4
                elif op == LONG1:
                    n_bytes = data[pos]
                    if n_bytes > 9:
                        raise self.too_wide(n_bytes)
                    pos += 1
                    push(int.from_bytes(data[pos : pos + n_bytes], "little", signed=True))
                    pos += n_bytes
                elif op == BININT1:
                    push(data[pos])
                    pos += 1
                elif op == BININT:
                    push(_INT(data, pos)[0])
                    pos += 4
                elif op == EMPTY_LIST:
                    match = _LIST_OF_KNOWN.match(data, pos - 1)
                    if match is not None:
                        short, long, many, single = match.groups()
                        value = self.known_list(many or single)
                        pos = match.end()
                        push(value)
                        if data[match.start() + 1] == MEMOIZE:
                            memo.append(value)
                        elif short or long:
                            self.put(int.from_bytes(short or long, "little"), value)
                    else:
                        push([])
                        self.n_values += 1
                elif op == MARK:
                    outer.append(stack)
                    if len(outer) > MAX_DEPTH:
                        raise SnapshotError(
                            f"expected a snapshot, found values nested more than {MAX_DEPTH} deep", hint=_TRY
                        )
                    stack = []
                    push = stack.append
                elif op in (SETITEMS, SETITEM):
                    if op == SETITEM:
                        value, key = stack.pop(), stack.pop()
                        items = {_key(key): value}
                    else:
                        items = dict(zip(map(_key, stack[::2]), stack[1::2], strict=True))
                        stack = outer.pop()
                        push = stack.append
                    target = stack[-1]
                    if type(target) is _Pending:
                        value = sink.take_dict(items)
                        stack[-1] = value
                        if target.slot >= 0:
                            memo[target.slot] = value
                        if value is items:
                            self.n_values += 2 * len(items)
                    elif type(target) is dict:
                        target.update(items)
                        self.n_values += 1 + 2 * len(items)
                    else:
                        raise TypeError(f"items for {type(target).__name__}")
                elif op == EMPTY_DICT:
                    if 0 < sink.n_items <= MAX_ITEMS:
                        end = self.known_dicts(pos - 1, limit, stack)
                        if end >= pos:
                            pos = end
                            continue
                    op = data[pos]
                    pending = _Pending(-1)
                    if op == MEMOIZE:
                        pos += 1
                        pending.slot = len(memo)
                        memo.append(pending)
                    elif op == BINPUT:
                        pending.slot = data[pos + 1]
                        self.put(pending.slot, pending)
                        pos += 2
                    elif op == LONG_BINPUT:
                        pending.slot = _INDEX(data, pos + 1)[0]
                        self.put(pending.slot, pending)
                        pos += 5
                    push(pending)
                elif op == MEMOIZE:
                    memo.append(stack[-1])
                elif op == APPENDS:
                    values = stack
                    stack = outer.pop()
                    push = stack.append
                    target = stack[-1]
                    if type(target) is not list:
                        raise TypeError(f"values for {type(target).__name__}")
                    target.extend(values)
                    self.n_values += 1 + len(values)
                elif op == APPEND:
                    value = stack.pop()
                    target = stack[-1]
                    if type(target) is not list:
                        raise TypeError(f"a value for {type(target).__name__}")
                    target.append(value)
                    self.n_values += 1
                elif op == SHORT_BINUNICODE:
                    n_bytes = data[pos]
                    pos += 1 + n_bytes
                    if pos > len(data):
                        raise IndexError
                    push(self.text(data[pos - n_bytes : pos]))
                elif op == BININT2:
                    push(data[pos] | data[pos + 1] << 8)
                    pos += 2
                elif op in (BINUNICODE, BINUNICODE8, BINBYTES, BINBYTES8):
                    is_long = op in (BINUNICODE8, BINBYTES8)
                    n_bytes = (_LENGTH if is_long else _INDEX)(data, pos)[0]
                    is_text = op in (BINUNICODE, BINUNICODE8)
                    push(self.long_text(pos + (8 if is_long else 4), n_bytes, is_text))
                    data, pos = self.data, self.pos
                    limit = len(data) if self.is_end else len(data) - MARGIN_BYTES
                elif op == NONE:
                    push(None)
                elif op in (TRUE, FALSE):
                    push(op == TRUE)
                elif op == BINFLOAT:
                    push(_FLOAT(data, pos)[0])
                    pos += 8
                elif op == BINPUT:
                    self.put(data[pos], stack[-1])
                    pos += 1
                elif op == LONG_BINPUT:
                    self.put(_INDEX(data, pos)[0], stack[-1])
                    pos += 4
                elif op == EMPTY_TUPLE:
                    push(())
                elif TUPLE1 <= op <= TUPLE3:
                    size = op - TUPLE1 + 1
                    if len(stack) < size:
                        raise TypeError("a tuple of nothing")
                    stack[-size:] = [tuple(stack[-size:])]
                    self.n_values += size
                elif op == TUPLE:
                    value = tuple(stack)
                    stack = outer.pop()
                    push = stack.append
                    push(value)
                    self.n_values += 1 + len(value)
                elif op in (FRAME, PROTO):
                    pos += 8 if op == FRAME else 1
                    self.n_values += 1  # what does nothing must not go on forever
                elif op == SHORT_BINBYTES:
                    n_bytes = data[pos]
                    pos += 1 + n_bytes
                    push(data[pos - n_bytes : pos])
                    self.texts_bytes += n_bytes
                elif op == STOP:
                    self.pos = pos
                    if outer or len(stack) != 1:
                        raise TypeError("an end inside a value")
                    return stack[0]
                elif op == LONG4:
                    raise self.too_wide(_INDEX(data, pos)[0])
                else:
                    self.pos = pos
                    raise self.refusal(op)
            self.pos = pos

    def check_head(self) -> None:
        head = self.data[:2]
        if len(head) < 2 or head[0] != PROTO:
            raise SnapshotError(
                "expected a memory snapshot (a pickle of protocol 2 to 5), found something else", hint=_TRY
            )
        if not 2 <= head[1] <= 5:
            raise SnapshotError(f"expected pickle protocol 2 to 5, found protocol {head[1]}", hint=_TRY)
        self.pos = 2

    def too_wide(self, n_bytes: int) -> SnapshotError:
        return SnapshotError(f"expected numbers of 64 bits, found one of {n_bytes * 8:,}", hint=_TRY)

    def refusal(self, op: int) -> SnapshotError:
        import pickletools  # a refusal alone needs it

        name = next((known.name for known in pickletools.opcodes if known.code == chr(op)), f"0x{op:02x}")
        return SnapshotError(
            f"expected plain data, found the opcode {name} at byte {self.position - 1:,}, which"
            " could run code or build objects: nothing was run",
            hint="only open files that torch.cuda.memory._dump_snapshot wrote; this one is"
            " something else, or was tampered with",
        )


def _key(value: Any) -> Any:
    if type(value) is tuple:
        raise SnapshotError("expected names as keys, found a tuple", hint=_TRY)
    return value

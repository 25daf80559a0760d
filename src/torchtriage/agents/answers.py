"""Answers for agents: records as JSON, escaped and bounded, one page at a time.

An answer is a list of records. A page holds as many whole ones as fit into its bytes, and a cursor to the rest. Below
the key ``untrusted`` of a record stands text of a recording, of a program or of a file name; nowhere else.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import msgspec

from torchtriage.core.errors import UsageError
from torchtriage.core.names import visible

SCHEMA = "torchtriage-mcp/1"
UNTRUSTED = "untrusted"
DEFAULT_BYTES = 4096
LEAST_BYTES = 1024
KEPT = 32
"""Answers whose further pages can be asked for."""

Record = dict[str, Any]

_SIZES = ((800, 64), (240, 24), (100, 10), (40, 4), (16, 2))
"""Characters of a text and entries of a list or table, tried in this order until a record fits into a page."""
# printable by name, and drawn as nothing: text can be hidden in them
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


@dataclass(frozen=True)
class Answer:
    """What one call of a tool found.

    ``input`` : what to pass as ``path`` to ask more about the same. ``more`` : how one does that.
    """

    tool: str
    input: str
    records: list[Record]
    more: str = ""


class Pages:
    """The latest answers, and their pages of at most ``max_bytes`` of UTF-8."""

    def __init__(self, max_bytes: int = DEFAULT_BYTES) -> None:
        """Raise UsageError where no page could hold a record."""
        if max_bytes < LEAST_BYTES:
            raise UsageError(f"expected at least {LEAST_BYTES} bytes for an answer, found {max_bytes}")
        self.max_bytes = max_bytes
        self._kept: OrderedDict[str, tuple[Answer, Any]] = OrderedDict()
        self._number = 0

    def first(self, answer: Answer, asked: Any) -> str:
        """Return the first page of an answer, and keep the rest; ``asked`` : the request that it is the answer to."""
        self._number += 1
        key = f"a{self._number}"
        text, end = self._page(answer, key, 0)
        if end < len(answer.records):
            self._kept[key] = answer, asked
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return text

    def further(self, cursor: str, asked: Any) -> str:
        """Return the page that a cursor names.

        Raises UsageError: there is no such page, or it is of another request.
        """
        key, _, number = cursor.partition(":")
        if key not in self._kept or not number.isdecimal():
            raise UsageError(
                f"expected the cursor of one of the last {KEPT} answers, found {cursor!r}",
                hint="ask again without next",
            )
        answer, of = self._kept[key]
        if of != asked or not 0 < int(number) < len(answer.records):
            raise UsageError(
                f"the cursor {cursor!r} belongs to another request of {answer.tool}",
                hint="repeat the arguments of the first page together with next",
            )
        return self._page(answer, key, int(number))[0]

    def _page(self, answer: Answer, key: str, start: int) -> tuple[str, int]:
        head = {"schema": SCHEMA, "tool": answer.tool, "input": _narrow(answer.input, self.max_bytes // 8)}
        if answer.more and not start:
            head["more"] = answer.more
        opened = msgspec.json.encode(head)[:-1] + b',"records":['
        longest = msgspec.json.encode(f"{key}:{len(answer.records)}")
        room = self.max_bytes - len(opened) - len(b'],"next":}') - len(longest)
        parts: list[bytes] = []
        end, size = start, 0
        while end < len(answer.records):
            part = _fitted(answer.records[end], room, self.max_bytes)
            if parts and size + len(part) + 1 > room:
                break
            parts.append(part)
            size += len(part) + 1
            end += 1
        cursor = f"{key}:{end}" if end < len(answer.records) else None
        closed = b'],"next":' + msgspec.json.encode(cursor) + b"}"
        return (opened + b",".join(parts) + closed).decode(), end


def _narrow(text: str, n_bytes: int) -> str:
    """Return a text as shown, shortened where it takes more bytes than these."""
    for width in (n_bytes, n_bytes // 3):
        out = shown(text, width)
        if len(out.encode()) <= n_bytes:
            return out
    return shown(text, n_bytes // 12)


def one_page(head: Record, max_bytes: int) -> str:
    """Return a document that is one record, such as an error, within ``max_bytes``."""
    return _fitted({"schema": SCHEMA, **head}, max_bytes, max_bytes).decode()


def _fitted(record: Record, room: int, max_bytes: int) -> bytes:
    """Return a record as JSON in less than ``room`` bytes: texts and lists are shortened with a mark, no number is."""
    for width, entries in _SIZES:
        data = msgspec.json.encode(_bounded(record, width, entries, untrusted=False))
        if len(data) < room:
            return data
    known = {name: record[name] for name in ("schema", "tool", "kind", "id", "code") if name in record}
    return msgspec.json.encode({**known, "left_out": f"does not fit into {max_bytes} bytes: serve with --max-bytes"})


def _bounded(value: Any, width: int, entries: int, *, untrusted: bool) -> Any:
    if isinstance(value, str):
        return shown(value, width) if untrusted else _shortened(value, width)
    if isinstance(value, list):
        items = [_bounded(item, width, entries, untrusted=untrusted) for item in value[:entries]]
        return items if len(value) <= entries else [*items, f"…[{len(value) - entries} more left out]"]
    if not isinstance(value, dict):
        return value
    out: Record = {}
    # the fields of a record are ours and few; a table of names is the recording's
    for name in [*value][: entries if untrusted else None]:
        key = shown(name, width) if untrusted else name
        while key in out:
            key += "'"  # two long names that were shortened alike stay two
        out[key] = _bounded(value[name], width, entries, untrusted=untrusted or name == UNTRUSTED)
    if len(value) > len(out):
        out["…"] = f"[{len(value) - len(out)} more left out]"
    return out


def _shortened(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    tail = width // 3
    head = width - tail
    return f"{text[:head]}…[{len(text) - width} characters left out]…{text[len(text) - tail :]}"


def shown(text: str, width: int = 200) -> str:
    """Return a text of the recording on one line, with nothing in it that is not seen."""
    text = visible(_shortened(text, width))
    return _INVISIBLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)

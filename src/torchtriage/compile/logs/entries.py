r"""A structured compile log (``TORCH_TRACE``) as a stream of entries; memory stays bounded.

A log is text: a header line ``V0524 12:48:44.657000 1401 torch/_dynamo/x.py:19] {"kind": …}``, and below it, each
line after a tab, a payload whose MD5 the header names. What is neither is an entry too, so that every line of a
file is accounted for.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

BLOCK_BYTES = 1 << 20
MAX_PAYLOAD_BYTES = 32 << 20
"""A longer payload is skipped, and reported as such."""

_SPLIT = re.compile(rb"\n(?=[^\t])")
_HEADER = re.compile(
    rb"(?:\[rank(?P<rank>\d+)\]:\s*)?[VDIWEC](?P<date>\d{4}) (?P<time>\d\d:\d\d:\d\d\.\d+)"
    rb" +(?P<thread>\d+) (?P<at>[^\]\n]*)\] (?P<json>\{.*)"
)
_KIND = re.compile(rb'\{\s*"(\w+)"')


class Readable(Protocol):
    """What bytes are read from."""

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes, none at the end."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One header with its payload, or one line that is neither.

    ``kind`` : the first key of the header's JSON, ``""`` where the line is no header. ``json`` : the header's JSON.
    ``indented`` : the payload as in the file, each line after a tab, which is white space to a JSON parser.
    ``is_cut`` : the payload was too long and is not there.
    """

    kind: str
    json: bytes
    indented: bytes
    stamp: bytes = b""
    rank: int | None = None
    is_cut: bool = False

    @property
    def payload(self) -> bytes:
        """Return the payload as it was before it was indented."""
        return self.indented[1:].replace(b"\n\t", b"\n")

    def is_whole(self, digest: str) -> bool:
        """Return whether the payload is the one whose MD5 the header names."""
        return hashlib.md5(self.payload, usedforsecurity=False).hexdigest() == digest


def read_entries(stream: Readable) -> Iterator[LogEntry]:
    """Yield every entry of a log, in order; ``stream`` : of the log, decompressed."""
    rest = b""
    dropped = False  # the middle of a payload that is too long
    while block := stream.read(BLOCK_BYTES):
        # a mark may stand across two blocks: look one byte back
        looked = max(len(rest) - 1, 0)
        rest += block
        begin = 0
        for mark in _SPLIT.finditer(rest, looked):
            end = mark.start()
            yield _entry(rest[begin:end], dropped)
            dropped = False
            begin = end + 1
        rest = rest[begin:]
        if len(rest) > MAX_PAYLOAD_BYTES:
            head, _, _ = rest.partition(b"\n")
            rest, dropped = head[:MAX_PAYLOAD_BYTES] + b"\n\t" + rest[-1:], True
    if rest.strip():
        yield _entry(rest.rstrip(b"\n"), dropped)


def _entry(data: bytes, dropped: bool) -> LogEntry:
    head, _, indented = data.partition(b"\n")
    header = _HEADER.match(head.rstrip(b"\r"))
    if header is None:
        return LogEntry("", head, indented, is_cut=dropped)
    kind = _KIND.match(header["json"])
    return LogEntry(
        kind[1].decode() if kind else "?",
        header["json"],
        indented,
        header["date"] + b" " + header["time"],
        int(header["rank"]) if header["rank"] else None,
        dropped,
    )

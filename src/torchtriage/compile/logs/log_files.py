"""Which files a user means, and their bytes: a file, a folder of ranks and restarts, or gzip."""

from __future__ import annotations

import io
import os
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from isal import igzip_lib, isal_zlib

from torchtriage.compile.logs.entries import Readable
from torchtriage.core.errors import LogError
from torchtriage.core.folders import is_inside

__all__ = ["HEAD_BYTES", "HOW", "Form", "find_logs", "form_of", "known_form", "opened", "rank_of"]

Form = Literal["structured", "text", "explain"]

HEAD_BYTES = 1 << 18
PACKED_BYTES = 1 << 10
"""Unpacked at once: few, for what is in a damaged piece is lost."""
HOW = "record with TORCH_TRACE=/some/folder python train.py, then pass that folder"
_DAMAGED: type[Exception] = igzip_lib.IsalError  # type: ignore[assignment]
_LOG_NAMES = re.compile(r"\.(log|txt|out|err|ndjson)(\.gz)?$")
_TRACE_NAME = re.compile(r"^dedicated_log_torch_trace_")
_RANK_NAME = re.compile(r"(?:^|[_.-])rank[_-]?(\d+)(?=[_.-]|$)")
_STRUCTURED = re.compile(
    rb"^(?:\[rank\d+\]:\s*)?[VDIWEC]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [^\]\n]*\] \{\s*\"", re.MULTILINE
)
_TEXT = re.compile(
    rb"\[__(?:graph_breaks|recompiles(?:_verbose)?|guards|perf_hints|cudagraphs)\]"
    rb"|^Graph break (?:\(|in user code|: from user code)|^Graph break: |^ {2}Break Reason \d+:$"
    rb"|torch\._dynamo hit config\.\w*limit",
    re.MULTILINE,
)
_JSON = re.compile(rb"(?:\xef\xbb\xbf)?\s*[{\[]\s*[\"{\[]")
_FOREIGN = (
    (b"<!", "an HTML page", "pass the log that it was made from"),
    (b"<html", "an HTML page", "pass the log that it was made from"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself", "git lfs pull"),
    (b"SQLite format 3\0", "an SQLite database", HOW),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed data", "decompress it first: zstd -d FILE"),
    (b"BZh", "bzip2-compressed data", "decompress it first: bunzip2 FILE"),
    (b"\xfd7zXZ", "xz-compressed data", "decompress it first: unxz FILE"),
    (b"PK\x03\x04", "a zip archive", "unpack it and pass the logs in it"),
    (b"{", "JSON without break_reasons", "analyse traces with: torchtriage analyze FILE"),
    (b"[{", "JSON without break_reasons", "analyse traces with: torchtriage analyze FILE"),
    (b"[\n", "JSON without break_reasons", "analyse traces with: torchtriage analyze FILE"),
    (b"\x80", "a pickle", "analyse memory snapshots with: torchtriage memory FILE"),
)


def find_logs(paths: Sequence[str]) -> list[str]:
    """Return the files that the paths mean, each once; of a folder those that may be logs.

    Files written by ``TORCH_TRACE`` in a folder are taken alone, without what lies beside them.

    Raises LogError: a path does not exist, or a folder holds no log.
    """
    found: dict[str, None] = {}
    for path in paths:
        if path == "-" or not _is_folder(path):
            found[path] = None
            continue
        inside = sorted(_walk(Path(path)), key=lambda file: (rank_of(file.name) or 0, str(file)))
        logs = [file for file in inside if _TRACE_NAME.match(file.name)] or inside
        if not logs:
            raise LogError("expected compile logs in the folder, found none", where=_shown(path), hint=HOW)
        found.update(dict.fromkeys(map(str, logs)))
    return list(found)


def _is_folder(path: str) -> bool:
    try:
        return Path(path).is_dir()
    except (OSError, ValueError) as error:
        raise LogError(f"expected a path, found: {error}", where=_shown(path)) from None


def _walk(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders.sort()
        for name in names:
            file = Path(root) / name
            if _LOG_NAMES.search(name) and file.is_file() and is_inside(file, folder):
                yield file


def rank_of(path: str) -> int | None:
    """Return the rank that a file's name tells, None where it tells none."""
    found = _RANK_NAME.search(Path(path).name)
    return int(found[1]) if found is not None and len(found[1]) < 8 else None


def known_form(lines: bytes) -> Form | None:
    """Return what kind of log these lines are of, None where none of them tells."""
    if _STRUCTURED.search(lines):
        return "structured"
    return "text" if _TEXT.search(lines) else None


def form_of(head: bytes, name: str) -> Form | None:
    """Return what kind of log begins with these bytes; None for text that may become one.

    Raises LogError: it will be none; the message says what it looks like.
    """
    if not head.strip():
        raise LogError("expected a compile log, found an empty file", where=name, hint=HOW)
    form = known_form(head)
    if form is not None and not _JSON.match(head):  # which may quote such lines
        return form
    if _JSON.match(head) and b'"break_reasons"' in head:
        return "explain"
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    for magic, what, hint in _FOREIGN:
        if start.startswith(magic):
            raise LogError(f"expected a compile log, found {what}", where=name, hint=hint)
    if b"\0" in head:
        raise LogError("expected a compile log, found binary data", where=name, hint=HOW)
    return None


@contextmanager
def opened(path: str) -> Iterator[tuple[Readable, str, int]]:
    """Yield the log's bytes, a name for messages, and the size on disk (0 where not known).

    Raises LogError: it cannot be read, or its gzip is damaged.
    """
    if path == "-":
        with _inside(sys.stdin.buffer, "<stdin>") as stream:
            yield stream, "<stdin>", 0
        return
    shown = _shown(path)
    try:
        file = Path(path)
        if file.exists() and not file.is_file():
            raise LogError("expected a file, found something else", where=shown)
        raw = file.open("rb")
    except OSError as error:
        raise LogError(
            f"expected a readable file, found: {error.strerror or error}",
            where=shown,
            hint="check the path and its permissions",
        ) from error
    except ValueError as error:  # a NUL byte
        raise LogError(f"expected a path, found one with an {error}", where=shown) from error
    with raw, _inside(raw, shown) as stream:
        yield stream, shown, os.fstat(raw.fileno()).st_size


@contextmanager
def _inside(raw: Any, name: str) -> Iterator[Readable]:
    buffered: Any = raw if hasattr(raw, "peek") else io.BufferedReader(raw)
    if buffered.peek(2)[:2] == b"\x1f\x8b":
        buffered = _Unpacked(buffered)
    try:
        yield buffered
    except EOFError as error:
        raise LogError(
            f"expected a whole gzip, found one that cannot be read to its end: {error}",
            where=name,
            hint="copy the file again; it was cut or damaged on its way",
        ) from None


class _Unpacked:
    """A gzip that gives all it holds, also where it was cut, before it complains."""

    def __init__(self, packed: Any) -> None:
        self.packed = packed
        self.member: Any = None
        self.held = bytearray()
        self.is_done = False
        self.error: EOFError | None = None

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes; raise only when all was handed out."""
        try:
            while len(self.held) < size and not self.is_done:
                self._unpack(self.packed.read(PACKED_BYTES))
        except (EOFError, _DAMAGED) as error:
            self.error, self.is_done = EOFError(str(error)), True
        if not self.held and self.error is not None:
            raise self.error
        data = bytes(self.held[:size])
        del self.held[:size]
        return data

    def _unpack(self, packed: bytes) -> None:
        if not packed:
            self.is_done = True
            if self.member is not None:
                raise EOFError("the gzip ends before its end marker")
        while packed:
            if self.member is None:
                packed = packed.lstrip(b"\0")  # padding between members
                if not packed:
                    break
                self.member = isal_zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
            self.held += self.member.decompress(packed)
            packed = self.member.unused_data if self.member.eof else b""
            if self.member.eof:
                self.member = None


def _shown(path: str) -> str:
    return path if path.isprintable() else repr(path)[1:-1]

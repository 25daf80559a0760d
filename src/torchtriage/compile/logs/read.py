"""Opening what a user points at as compile logs: files, folders of ranks and restarts, gzip."""

from __future__ import annotations

import io
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from isal import igzip_lib, isal_zlib

from torchtriage.compile.logs.entries import BLOCK_BYTES, Readable
from torchtriage.compile.logs.process_log import ProcessLog
from torchtriage.core.errors import LogError
from torchtriage.core.folders import is_inside
from torchtriage.core.names import visible

Form = Literal["structured", "text", "explain"]
Progress = Callable[[int, int], None]

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
_NO_JSON = re.compile(
    rb"^(?:[^\"{\n]*\b[VDIWEC]\d{4} \d\d:\d\d:\d\d\.|Graph break\b| {2}Break Reason \d+:$)", re.MULTILINE
)
"""A line of a log that no string of JSON can hold: it was not JSON but what the program printed before."""
_FOREIGN = (
    ((b"<!", b"<html"), "an HTML page", "pass the log that it was made from"),
    ((b"version https://git-lfs",), "a Git LFS pointer, not the file itself", "git lfs pull"),
    ((b"SQLite format 3\0",), "an SQLite database", HOW),
    ((b"\x28\xb5\x2f\xfd",), "zstd-compressed data", "decompress it first: zstd -d FILE"),
    ((b"BZh",), "bzip2-compressed data", "decompress it first: bunzip2 FILE"),
    ((b"\xfd7zXZ",), "xz-compressed data", "decompress it first: unxz FILE"),
    ((b"PK\x03\x04",), "a zip archive", "unpack it and pass the logs in it"),
    ((b"\x80",), "a pickle", "analyse memory snapshots with: torchtriage memory FILE"),
)
"""First bytes, what they are of, and what to do instead."""


def read_logs(
    paths: Sequence[str], progress: Callable[[str, int], Progress | None] | None = None
) -> tuple[list[ProcessLog], list[LogError]]:
    """Return the logs that the paths mean, and why files of a folder were left out.

    ``progress`` : called with each file and how many came before it; returns what to call with the bytes read.

    Raises LogError: there is no log among them.
    """
    files = find_logs(paths)
    logs: list[ProcessLog] = []
    refused: list[LogError] = []
    for number, path in enumerate(files):
        count_bytes = progress(path, number) if progress is not None else None
        try:
            logs += _read(path, count_bytes)
        except LogError as error:
            refused.append(error)
    if logs:
        return logs, refused
    if len(refused) == 1:
        raise refused[0]
    raise LogError(
        f"expected compile logs, found none in {len(files)} files; the first: {refused[0].message}",
        where=", ".join(paths)[:200],
        hint=refused[0].hint,
    )


def find_logs(paths: Sequence[str]) -> list[str]:
    """Return the files that the paths mean, each once; of a folder those that may be logs.

    Files written by ``TORCH_TRACE`` in a folder are taken alone, without what lies beside them.
    """
    files: dict[str, None] = {}
    for path in paths:
        try:
            is_folder = path != "-" and Path(path).is_dir()
        except (OSError, ValueError) as error:
            raise LogError(f"expected a path, found: {error}", where=visible(path)) from None
        if not is_folder:
            files[path] = None
            continue
        inside = sorted(_walk(Path(path)), key=lambda file: (rank_of(file.name) or 0, str(file)))
        logs = [file for file in inside if _TRACE_NAME.match(file.name)] or inside
        if not logs:
            raise LogError("expected compile logs in the folder, found none", where=visible(path), hint=HOW)
        files.update(dict.fromkeys(map(str, logs)))
    return list(files)


def _walk(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders.sort()
        for name in names:
            file = Path(root) / name
            if _LOG_NAMES.search(name) and file.is_file() and is_inside(file, folder):
                yield file


def rank_of(path: str) -> int | None:
    """Return the rank that a log's name holds."""
    match = _RANK_NAME.search(Path(path).name)
    return int(match[1]) if match is not None and len(match[1]) < 8 else None


def _read(path: str, progress: Progress | None) -> list[ProcessLog]:
    with opened(path) as (stream, name, size_bytes):
        head = _head(stream, name)
        form = _form_of(head, name)
        n_before = 0
        if form is None:  # the program may print much before the first record
            form, head, n_before = _begun(head, stream, name)
        # what explain says is what the text of graph_breaks says
        log = ProcessLog(name, size_bytes, "structured" if form == "structured" else "text", named_rank=rank_of(path))
        if n_before:
            reason = "line of the program" if form == "text" else "line that is no record"
            log.n_read = log.skipped[reason] = n_before
        whole = _Rewound(head, stream, None if progress is None else lambda n_bytes: progress(n_bytes, size_bytes))
        # imported when they are needed: patterns take time to compile
        if form == "structured":
            from torchtriage.compile.logs.structured_log import read_structured

            return [read_structured(log, whole)]
        from torchtriage.compile.logs.text_log import read_explain, read_text

        return read_text(log, whole) if form == "text" else [read_explain(log, whole)]


def _head(stream: Readable, name: str) -> bytes:
    """Return the first bytes; of a gzip that is cut, as far as it goes."""
    data = b""
    try:
        while len(data) < HEAD_BYTES and (more := stream.read(HEAD_BYTES - len(data))):
            data += more
    except EOFError as error:
        if not data:
            raise _cut(name, error) from None
    return data


def _cut(name: str, error: EOFError, how: str = "") -> LogError:
    return LogError(
        f"expected a whole gzip, found one that cannot be read{how}: {error}",
        where=name,
        hint="copy the file again; it was cut or damaged on its way",
    )


def _known_form(lines: bytes) -> Form | None:
    if _STRUCTURED.search(lines):
        return "structured"
    return "text" if _TEXT.search(lines) else None


def _form_of(head: bytes, name: str) -> Form | None:
    """Return what kind of log begins with these bytes; None for text that may become one.

    Raises LogError: it will be none; the message says what it looks like.
    """
    if not head.strip():
        raise LogError("expected a compile log, found an empty file", where=name, hint=HOW)
    if _JSON.match(head) and not _NO_JSON.search(head):  # though it may quote lines of a log
        return "explain"
    if (form := _known_form(head)) is not None:
        return form
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    for magic, what, hint in _FOREIGN:
        if start.startswith(magic):
            raise LogError(f"expected a compile log, found {what}", where=name, hint=hint)
    if b"\0" in head:
        raise LogError("expected a compile log, found binary data", where=name, hint=HOW)
    return None


def _begun(data: bytes, stream: Readable, name: str) -> tuple[Form, bytes, int]:
    """Return what kind of log it is, the block in which that shows, and the lines before it."""
    n_before = 0
    while True:
        end = data.rfind(b"\n") + 1
        n_before += data.count(b"\n", 0, end)
        try:
            block = stream.read(BLOCK_BYTES)
        except EOFError:
            block = b""
        if not block:
            raise LogError(
                "expected a compile log, found other text",
                where=name,
                hint=f"{HOW}; or TORCH_LOGS=graph_breaks,recompiles,guards",
            )
        data = data[end:][-BLOCK_BYTES:] + block
        form = _known_form(data)
        if form is not None:
            return form, data, n_before


@contextmanager
def opened(path: str) -> Iterator[tuple[Readable, str, int]]:
    """Yield the log's bytes, a name for messages, and the size on disk (0 where not known).

    Raises LogError: it cannot be read, or its gzip is damaged.
    """
    if path == "-":
        with _unpacked(sys.stdin.buffer, "<stdin>") as stream:
            yield stream, "<stdin>", 0
        return
    name = visible(path)
    try:
        file = Path(path)
        if file.exists() and not file.is_file():
            raise LogError("expected a file, found something else", where=name)
        raw = file.open("rb")
    except OSError as error:
        raise LogError(
            f"expected a readable file, found: {error.strerror or error}",
            where=name,
            hint="check the path and its permissions",
        ) from error
    except ValueError as error:  # a NUL byte
        raise LogError(f"expected a path, found one with an {error}", where=name) from error
    with raw, _unpacked(raw, name) as stream:
        yield stream, name, os.fstat(raw.fileno()).st_size


@contextmanager
def _unpacked(raw: Any, name: str) -> Iterator[Readable]:
    buffered: Any = raw if hasattr(raw, "peek") else io.BufferedReader(raw)
    try:
        yield _Unpacked(buffered) if buffered.peek(2)[:2] == b"\x1f\x8b" else buffered
    except EOFError as error:
        raise _cut(name, error, " to its end") from None


class _Unpacked:
    """A gzip that gives all it holds, also where it was cut, before it complains."""

    def __init__(self, packed: Any) -> None:
        self.packed = packed
        self.member: Any = None
        self.data = bytearray()
        self.is_done = False
        self.error: EOFError | None = None

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes; raise only when all was handed out."""
        try:
            while len(self.data) < size and not self.is_done:
                self._unpack(self.packed.read(PACKED_BYTES))
        except (EOFError, _DAMAGED) as error:
            self.error, self.is_done = EOFError(str(error)), True
        if not self.data and self.error is not None:
            raise self.error
        data = bytes(self.data[:size])
        del self.data[:size]
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
            self.data += self.member.decompress(packed)
            if not self.member.eof:
                break
            packed, self.member = self.member.unused_data, None


class _Rewound:
    """A stream whose first bytes were read already; ``progress`` : called with the bytes handed out so far."""

    def __init__(self, head: bytes, rest: Readable, progress: Callable[[int], None] | None) -> None:
        self.head, self.rest, self.progress = head, rest, progress
        self.n_read = 0

    def read(self, size: int, /) -> bytes:
        data, self.head = (self.head[:size], self.head[size:]) if self.head else (self.rest.read(size), b"")
        self.n_read += len(data)
        if data and self.progress is not None:
            self.progress(self.n_read)
        return data

"""Opening what a user points at as a memory snapshot, or a refusal that says what it is."""

from __future__ import annotations

import io
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Union, cast

from isal import igzip

from torchtriage.core.errors import SnapshotError
from torchtriage.core.names import visible
from torchtriage.core.trace import Trace
from torchtriage.core.trace.archive import open_member
from torchtriage.core.trace.read import read_trace
from torchtriage.core.units import DEFAULT_MAX_BYTES, format_bytes
from torchtriage.memory.snapshot.categories import CategoryTimeline, parse_categories
from torchtriage.memory.snapshot.snapshot import Snapshot
from torchtriage.memory.snapshot.snapshot_builder import SnapshotBuilder
from torchtriage.memory.snapshot.unpickle import unpickle

if TYPE_CHECKING:
    from torchtriage.memory.leaks.leak_report import WatchFile

Input = Union[str, "os.PathLike[str]", BinaryIO]

MAX_JSON_BYTES = 256 << 20
"""Of a timeline or a watch's report: read whole, each byte takes about ten."""
_HEAD_BYTES = 64 << 10
_WATCH = re.compile(rb'\s*\{\s*"schema"\s*:\s*"torchtriage-watch/')
_RESULT = re.compile(rb'\s*\{\s*"schema"\s*:\s*"torchtriage')
_TIMELINE = re.compile(rb"\s*\[\s*\[\s*-?\d")
"""Rows of numbers; the events of a trace are objects."""
SNAPSHOT = (
    "record with torch.cuda.memory._record_memory_history(), then pass the file written by"
    " torch.cuda.memory._dump_snapshot(path)"
)
_FOREIGN = (
    (b"<", "an HTML page", "pass the .pickle that it was made from"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself", "git lfs pull"),
    (b"SQLite format 3\0", "an SQLite database", SNAPSHOT),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed data", "decompress it first: zstd -d FILE"),
    (b"BZh", "bzip2-compressed data", "decompress it first: bunzip2 FILE"),
    (b"\xfd7zXZ", "xz-compressed data", "decompress it first: unxz FILE"),
)
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")


class _IsJsonError(SnapshotError):
    """JSON: perhaps the profiler's memory timeline, perhaps a trace."""


def read_memory(
    path: Input, progress: Callable[[int, int], None] | None = None
) -> Snapshot | CategoryTimeline | WatchFile | Trace:
    """Return a snapshot as :func:`read_snapshot`, the profiler's memory timeline, the report of a watch, or a trace.

    Raises SnapshotError (it is none of them), or TraceFormatError (a trace that cannot be read).
    """
    try:
        return read_snapshot(path, progress)
    except _IsJsonError:
        if not isinstance(path, str | os.PathLike) or os.fspath(path) == "-":
            raise
    with _opened(path, is_json=True) as (stream, name, _):
        head = stream.read(_HEAD_BYTES)
        if _TIMELINE.match(head):
            return parse_categories(_whole(head, stream, name), name)
        if _WATCH.match(head):
            # reading a snapshot must not pay for what watches
            from torchtriage.memory.leaks.leak_report import parse_watch

            return parse_watch(_whole(head, stream, name), name)
        if _RESULT.match(head):
            raise SnapshotError(
                "expected a memory snapshot, found a result of torchtriage",
                where=name,
                hint=f"torchtriage show {name}; to write it again: --json -o {name}",
            )
    return read_trace(path, progress=progress)


def _whole(head: bytes, stream: BinaryIO, name: str) -> bytes:
    data = head + stream.read(MAX_JSON_BYTES)
    if len(data) > MAX_JSON_BYTES:
        limit = format_bytes(MAX_JSON_BYTES)
        raise SnapshotError(f"expected JSON of at most {limit}, found more", where=name)
    return data


def read_snapshot(
    path: Input, progress: Callable[[int, int], None] | None = None, *, max_bytes: int = DEFAULT_MAX_BYTES
) -> Snapshot:
    """Return the columns of a memory snapshot: a pickle, plain or in gzip or zip.

    Nothing in the file is ever executed. Memory stays below twice the size of the pickle.

    Parameters
    ----------
    path : path, ``-`` for standard input, or binary stream
        A stream stays open.
    progress : callable, optional
        Gets bytes read and the file's size (0 where it is not known).
    max_bytes : int
        Refuse inputs that expand beyond this many bytes.

    Raises SnapshotError: it cannot be read, is cut, is something else, or holds more than plain data.
    """
    with _opened(path) as (stream, name, size_bytes):
        n_read = 0

        def read(size: int) -> bytes:
            nonlocal n_read
            try:
                data = stream.read(size)
            except EOFError:
                raise SnapshotError(
                    "expected a whole file, found a compressed one that ends early",
                    where=name,
                    hint="copy the file again; it was cut on its way",
                ) from None
            except (OSError, ValueError, zlib.error) as error:
                raise SnapshotError(
                    f"expected readable data, found: {error}",
                    where=name,
                    hint="copy the file again; it was damaged on its way",
                ) from None
            n_read += len(data)
            if n_read > max_bytes:
                raise SnapshotError(
                    f"expected a snapshot of at most {format_bytes(max_bytes)}, found one that expands beyond it",
                    where=name,
                )
            return data

        builder = SnapshotBuilder()
        bytes_read = None if progress is None else (lambda n_bytes: progress(n_bytes, size_bytes))
        document = unpickle(read, builder, name=name, progress=bytes_read)
        return builder.finish(document, name, n_read)


@contextmanager
def _opened(path: Input, *, is_json: bool = False) -> Iterator[tuple[BinaryIO, str, int]]:
    """Yield a stream of the pickle's bytes, a name for messages, and the size on disk."""
    if not isinstance(path, str | os.PathLike):
        with _inside(path, "<stream>") as stream:
            yield stream, "<stream>", 0
        return
    name = os.fspath(path)
    if name == "-":
        with _inside(sys.stdin.buffer, "<stdin>") as stream:
            yield stream, "<stdin>", 0
        return
    shown = visible(name)
    try:
        file = Path(name)
        if file.is_dir():
            raise SnapshotError("expected a snapshot, found a folder", where=shown, hint="pass the .pickle files in it")
        if file.exists() and not file.is_file():
            raise SnapshotError("expected a file, found something else", where=shown)
        raw = file.open("rb")
    except OSError as error:
        raise SnapshotError(
            f"expected a readable file, found: {error.strerror or error}",
            where=shown,
            hint="check the path and its permissions",
        ) from error
    except ValueError as error:  # a NUL byte
        raise SnapshotError(f"expected a path, found one with an {error}", where=shown) from error
    with raw, _inside(raw, shown, is_json=is_json) as stream:
        yield stream, shown, os.fstat(raw.fileno()).st_size


@contextmanager
def _inside(raw: BinaryIO, name: str, *, is_json: bool = False) -> Iterator[BinaryIO]:
    buffered: Any = raw if hasattr(raw, "peek") else io.BufferedReader(cast(Any, raw))
    head = buffered.peek(64)[:64]
    if not head:
        raise SnapshotError("expected a memory snapshot, found an empty file", where=name, hint=SNAPSHOT)
    if head[:2] == b"\x1f\x8b":
        unpacked = io.BufferedReader(_gunzip(buffered))
        try:
            inner = unpacked.peek(64)[:64]
        except (OSError, EOFError, zlib.error) as error:
            raise SnapshotError(
                f"expected a gzip of a snapshot, found one that cannot be read: {error}",
                where=name,
                hint="copy the file again; it was damaged on its way",
            ) from None
        _refuse_foreign(inner, name, is_json=is_json)
        yield cast(BinaryIO, unpacked)
    elif head[:4] in _ZIP:
        endings = (".pickle", ".pkl", ".pickle.gz")
        with open_member(buffered, "snapshot", endings, name, SnapshotError, SNAPSHOT) as (item, member):
            inner_stream = io.BufferedReader(member)
            yield cast(BinaryIO, _gunzip(inner_stream) if item.endswith(".gz") else inner_stream)
    else:
        _refuse_foreign(head, name, is_json=is_json)
        yield buffered


def _gunzip(packed: Any) -> Any:
    return igzip.IGzipFile(fileobj=packed)  # type: ignore[no-untyped-call]


def _refuse_foreign(head: bytes, name: str, *, is_json: bool) -> None:
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text.startswith((b"[", b"{")):
        if is_json:
            return
        raise _IsJsonError(
            "expected a memory snapshot, found JSON (a profiler trace?)",
            where=name,
            hint="analyse traces with: torchtriage analyze FILE",
        )
    for magic, what, hint in _FOREIGN:
        if text.startswith(magic):
            raise SnapshotError(f"expected a memory snapshot, found {what}", where=name, hint=hint)

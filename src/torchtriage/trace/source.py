"""Opening whatever a user points at: one stream of raw JSON bytes, or a refusal by name."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

from torchtriage.errors import TraceFormatError
from torchtriage.units import format_bytes

__all__ = ["DEFAULT_MAX_BYTES", "Source", "open_source"]

DEFAULT_MAX_BYTES = 64 << 30
"""Refuse inputs that expand beyond this many bytes (a guard against decompression bombs)."""

_SNIFF_BYTES = 4096

# magic bytes of files people pass by mistake: (offset, magic, what it is, what to do)
_FOREIGN: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"SQLite format 3\0", "an SQLite database (an Nsight Systems export?)", "nsys"),
    (0, b"\x28\xb5\x2f\xfd", "zstd-compressed data", "decompress it first: zstd -d FILE"),
    (0, b"BZh", "bzip2-compressed data", "decompress it first: bunzip2 FILE"),
    (0, b"\xfd7zXZ", "xz-compressed data", "decompress it first: unxz FILE"),
    (257, b"ustar", "a tar archive", "unpack it and pass the .json or .json.gz inside"),
    (0, b"\x89HDF", "an HDF5 file", "trace"),
    (0, b"PAR1", "a Parquet file", "trace"),
    (0, b"\x7fELF", "an executable", "trace"),
    (0, b"\x89PNG", "a PNG picture", "trace"),
    (0, b"%PDF", "a PDF document", "trace"),
    (0, b"<!DOCTYPE", "an HTML page", "trace"),
    (0, b"<html", "an HTML page", "trace"),
    (0, b"version https://git-lfs", "a Git LFS pointer, not the file itself", "git lfs pull"),
)
_HINTS = {
    "trace": "pass the file written by prof.export_chrome_trace(...) or tensorboard_trace_handler",
    "nsys": "Nsight Systems files are not read; record with torch.profiler and"
    " prof.export_chrome_trace('trace.json.gz')",
}


class Source:
    """An opened input: ``name`` for messages, ``size_bytes`` on disk, ``read`` for raw JSON bytes.

    Counts what it hands out and refuses to go past ``max_bytes``. A compressed stream that ends
    early sets ``truncated`` and ends, so that every complete event before the cut survives.
    """

    def __init__(self, stream: IO[bytes], name: str, size_bytes: int, max_bytes: int) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self.n_read = 0
        self.truncated = ""
        self._stream = stream
        self._max_bytes = max_bytes

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes of UTF-8 JSON text; empty at the end."""
        try:
            block = self._stream.read(size)
        except EOFError:
            self.truncated = "the compressed stream ends early"
            return b""
        except OSError as error:
            if isinstance(error, IsADirectoryError | PermissionError):
                raise
            self.truncated = f"the compressed stream is damaged ({error})"
            return b""
        except Exception as error:  # isal and zlib raise their own error types on damage
            self.truncated = f"the compressed stream is damaged ({error})"
            return b""
        self.n_read += len(block)
        if self.n_read > self._max_bytes:
            raise TraceFormatError(
                f"expands beyond the limit of {format_bytes(self._max_bytes)}",
                where=self.name,
                hint="raise the limit with --max-bytes if you trust this file",
            )
        return block


@contextmanager
def open_source(
    path: str | os.PathLike[str] | BinaryIO, *, max_bytes: int = DEFAULT_MAX_BYTES
) -> Iterator[Source]:
    """Open a path, ``-`` for standard input, or a binary stream as raw JSON bytes.

    Raises
    ------
    TraceFormatError
        The path cannot be read, or the content is recognisably something else.
    """
    with _open_raw(path) as (raw, name, size_bytes):
        head = raw.read(_SNIFF_BYTES)
        raw.seek(0)
        _refuse_foreign(head, name)
        if not head:
            raise TraceFormatError(
                "expected a profiler trace, found an empty file",
                where=name,
                hint="export inside on_trace_ready, or before the profiler's schedule ends",
            )
        if head[:2] == b"\x1f\x8b":
            from isal import igzip

            with igzip.IGzipFile(fileobj=raw) as stream:
                yield _text_source(stream, name, size_bytes, max_bytes)
        elif head[:4] == b"PK\x03\x04":
            with _zip_member(raw, name) as stream:
                yield _text_source(stream, name, size_bytes, max_bytes)
        else:
            yield _text_source(raw, name, size_bytes, max_bytes)


@contextmanager
def _open_raw(
    path: str | os.PathLike[str] | BinaryIO,
) -> Iterator[tuple[IO[bytes], str, int]]:
    """Yield a seekable binary stream, its name for messages, and its size."""
    if not isinstance(path, str | os.PathLike):
        yield _seekable(path, "<stream>")
        return
    if str(path) == "-":
        yield _seekable(sys.stdin.buffer, "<stdin>")
        return
    file = Path(path)
    try:
        mode = file.stat().st_mode
        if stat.S_ISDIR(mode):
            raise TraceFormatError(
                "expected a trace file, found a folder",
                where=str(file),
                hint="pass the files in it; torchtriage analyze FOLDER finds them by itself",
            )
        if not stat.S_ISREG(mode):
            raise TraceFormatError(
                "expected a trace file, found a socket, pipe or device",
                where=str(file),
                hint="pipe data in with: … | torchtriage analyze -",
            )
        with file.open("rb") as stream:
            yield stream, str(file), file.stat().st_size
    except OSError as error:
        # FileNotFoundError, PermissionError, symlink loops, names too long, NUL bytes
        raise TraceFormatError(
            f"cannot be read: {error.strerror or error}", where=str(file)
        ) from error
    except ValueError as error:
        raise TraceFormatError(f"cannot be read: {error}", where=repr(str(file))) from error


def _seekable(stream: IO[bytes], name: str) -> tuple[IO[bytes], str, int]:
    """Return the stream with a size, spooled to a temporary file when it cannot seek."""
    if not stream.seekable():
        # bounded memory: beyond 16 MiB a pipe goes to disk, since arguments are read lazily
        spool = tempfile.SpooledTemporaryFile(max_size=16 << 20)  # noqa: SIM115 - outlives us
        while block := stream.read(1 << 20):
            spool.write(block)
        size = spool.tell()
        spool.seek(0)
        return spool, name, size
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    return stream, name, size


@contextmanager
def _zip_member(raw: IO[bytes], name: str) -> Iterator[IO[bytes]]:
    try:
        with zipfile.ZipFile(raw) as archive:
            names = archive.namelist()
            traces = [item for item in names if item.endswith((".json", ".json.gz"))]
            if any(item.endswith(("data.pkl", "/version")) for item in names):
                raise TraceFormatError(
                    "expected a profiler trace, found a torch.save checkpoint",
                    where=name,
                    hint=_HINTS["trace"],
                )
            if len(traces) != 1:
                raise TraceFormatError(
                    f"expected one .json trace in the zip, found {len(traces)}",
                    where=name,
                    hint="unpack it and pass the folder",
                )
            with archive.open(traces[0]) as member:
                if traces[0].endswith(".gz"):
                    from isal import igzip

                    with igzip.IGzipFile(fileobj=member) as stream:
                        yield stream
                else:
                    yield member
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise TraceFormatError(
            f"the zip archive cannot be read: {error}", where=name, hint="unpack it by hand"
        ) from error


def _text_source(stream: IO[bytes], name: str, size_bytes: int, max_bytes: int) -> Source:
    """Wrap the stream, dropping a UTF-8 mark and turning UTF-16/32 into UTF-8."""
    source = Source(stream, name, size_bytes, max_bytes)
    head = source.read(_SNIFF_BYTES)
    if not head and source.truncated:
        raise TraceFormatError(f"nothing could be read: {source.truncated}", where=name)
    _refuse_foreign(head, name)
    for mark, encoding in (
        (b"\xff\xfe\0\0", "utf-32-le"),
        (b"\0\0\xfe\xff", "utf-32-be"),
        (b"\xff\xfe", "utf-16-le"),
        (b"\xfe\xff", "utf-16-be"),
        (b"\xef\xbb\xbf", "utf-8"),
    ):
        if head.startswith(mark):
            return _Recoded(source, head[len(mark) :], encoding)
    return _Recoded(source, head, "")


class _Recoded(Source):
    """A source whose first bytes were already looked at, in any Unicode encoding."""

    def __init__(self, inner: Source, head: bytes, encoding: str) -> None:
        import codecs

        super().__init__(inner._stream, inner.name, inner.size_bytes, inner._max_bytes)
        self.n_read = inner.n_read
        self._head = head
        self._recode = (
            codecs.getincrementaldecoder(encoding)("replace")
            if encoding and encoding != "utf-8"
            else None
        )

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes, the peeked ones first."""
        if self._head:
            block, self._head = self._head, b""
        else:
            block = super().read(size)
        if self._recode is None:
            return block
        return self._recode.decode(block, final=not block).encode()


def _refuse_foreign(head: bytes, name: str) -> None:
    if len(head) > 2 and head[0] == 0x80 and 2 <= head[1] <= 5:
        raise TraceFormatError(
            "expected a profiler trace, found a Python pickle (a CUDA memory snapshot?)",
            where=name,
            hint="memory snapshots are not read by analyze; view them at"
            " https://pytorch.org/memory_viz",
        )
    for offset, magic, what, hint in _FOREIGN:
        if head[offset : offset + len(magic)].lower() == magic.lower():
            raise TraceFormatError(
                f"expected a profiler trace, found {what}",
                where=name,
                hint=_HINTS.get(hint, hint),
            )

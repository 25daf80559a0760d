"""Opening whatever a user points at: one stream of raw JSON bytes, or a refusal by name."""

from __future__ import annotations

import codecs
import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol, Union

from isal import isal_zlib

from torchtriage.core.errors import TraceFormatError
from torchtriage.core.names import elide, visible
from torchtriage.core.trace.recorders import is_xplane, is_xplane_json, rocprof_format
from torchtriage.core.units import DEFAULT_MAX_BYTES, format_bytes

"""Refuse inputs that expand beyond this many bytes (a guard against decompression bombs)."""
BOMB_BYTES, BOMB_RATIO = 1 << 30, 200
"""By default, also refuse what expands beyond both: traces compress 8 to 30 times."""

_SNIFF_BYTES = 64 << 10
_INFLATE_BYTES = 64 << 10
"""A damaged stream loses what one call to the inflater would have returned: keep it small."""
_PACKED_BYTES = 16 << 10
"""What is not inflated yet is copied with every call: keep it small, too."""
_TYPICAL_RATIO = 12
_NSYS_SUFFIXES = (".nsys-rep", ".qdrep", ".qdstrm")

EXPORT = "pass the file written by prof.export_chrome_trace(...) or tensorboard_trace_handler"
"""What to try with a file that is no trace."""
_SQLITE = b"SQLite format 3\0"
_NSYS = "export it: nsys export --type sqlite --output report.sqlite REPORT, and pass report.sqlite"
_NSYS_STREAM = "import it with QdstrmImporter of Nsight Systems, then " + _NSYS
# magic bytes of files people pass by mistake: (offset, magic, what it is, what to try)
_FOREIGN: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"NVIDIA Tegra Profiler Report", "an Nsight Systems report", _NSYS),
    (0, b"QDSTRM", "an Nsight Systems recording", _NSYS_STREAM),
    (0, b"\x28\xb5\x2f\xfd", "zstd-compressed data", "decompress it first: zstd -d FILE"),
    (0, b"BZh", "bzip2-compressed data", "decompress it first: bunzip2 FILE"),
    (0, b"\xfd7zXZ", "xz-compressed data", "decompress it first: unxz FILE"),
    (0, b"\x04\x22\x4d\x18", "lz4-compressed data", "decompress it first: lz4 -d FILE"),
    (257, b"ustar", "a tar archive", "unpack it and pass the .json or .json.gz inside"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7-zip archive", "unpack it and pass the .json inside"),
    (0, b"Rar!", "a RAR archive", "unpack it and pass the .json inside"),
    (0, b"\x89HDF", "an HDF5 file", EXPORT),
    (0, b"PAR1", "a Parquet file", EXPORT),
    (0, b"ARROW1", "an Arrow file", EXPORT),
    (0, b"\x93NUMPY", "a NumPy array", EXPORT),
    (0, b"\x7fELF", "an executable", EXPORT),
    (0, b"MZ", "an executable", EXPORT),
    (0, b"\x89PNG", "a picture", EXPORT),
    (0, b"\xff\xd8\xff", "a picture", EXPORT),
    (0, b"%PDF", "a PDF document", EXPORT),
    (0, b"<!doctype", "an HTML page", EXPORT),
    (0, b"<html", "an HTML page", EXPORT),
    (0, b"<?xml", "an XML document", EXPORT),
    (0, b"version https://git-lfs", "a Git LFS pointer, not the file itself", "git lfs pull"),
)
_InflateError: Any = isal_zlib.error
_UNICODE_MARKS = (
    (b"\xff\xfe\0\0", "utf-32-le"),
    (b"\0\0\xfe\xff", "utf-32-be"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
    (b"\xef\xbb\xbf", ""),
)


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Source:
    """An opened input: ``name`` for messages, ``size_bytes`` on disk, ``read`` for JSON text.

    ``packed``: the text has to be inflated.

    Counts what it hands out and refuses to go past ``max_bytes``. A compressed stream that ends early or is damaged
    sets ``truncated`` and ends, so that every event before it survives.
    """

    def __init__(self, stream: _Readable, name: str, size_bytes: int, max_bytes: int, *, packed: bool) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self.packed = packed
        self.likely_text_bytes = size_bytes * _TYPICAL_RATIO if packed else size_bytes
        self.n_read = 0
        self.truncated = ""
        self._stream = stream
        self._max_bytes = max_bytes
        if packed and max_bytes == DEFAULT_MAX_BYTES:
            self._max_bytes = min(max_bytes, max(BOMB_BYTES, size_bytes * BOMB_RATIO))
        self._ahead = self._take(_SNIFF_BYTES)
        self.is_database = self._ahead.startswith(_SQLITE)
        self.is_xplane = is_xplane(self._ahead)
        self.is_xplane_json = is_xplane_json(self._ahead)
        self.rocprof = rocprof_format(self._ahead)
        if not self._ahead and self.truncated:
            raise TraceFormatError(
                f"expected a profiler trace, found nothing that can be read: {self.truncated}",
                where=name,
                hint="copy the file again; it was cut or damaged on its way",
            )
        _refuse_foreign(self._ahead, name)
        self._recode: codecs.IncrementalDecoder | None = None
        self._text_start = 0
        self._seekable: Any = None if packed else stream
        for mark, encoding in _UNICODE_MARKS:
            if self._ahead.startswith(mark):
                self._text_start = len(mark)
                self._ahead = self._ahead[len(mark) :]
                if encoding:
                    self._recode = codecs.getincrementaldecoder(encoding)("replace")
                break

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes of UTF-8 text, seldom fewer; empty at the end."""
        block, self._ahead = self._ahead or self._take(size), b""
        self._count(len(block))
        if self._recode is None:
            return block
        return self._recode.decode(block, final=not block).encode("utf-8", "replace")

    def read_into(self, room: memoryview) -> int | None:
        """Write text where it is wanted; return its length, None where only ``read`` can do it."""
        # another class of stream may do more than hand out its bytes
        is_plain = type(self._seekable) in (io.BufferedReader, io.BytesIO)
        if not is_plain or self._recode is not None or self._ahead:
            return None
        try:
            size: int | None = self._seekable.readinto(room)
        except (OSError, ValueError):
            return None
        self._count(size or 0)
        return size

    def _count(self, n_bytes: int) -> None:
        self.n_read += n_bytes
        if self.n_read > self._max_bytes:
            raise TraceFormatError(
                f"expected a trace of at most {format_bytes(self._max_bytes)}, found one that"
                f" expands beyond it (from {format_bytes(self.size_bytes)})",
                where=self.name,
                hint="raise the limit with --max-bytes if you trust this file",
            )

    @contextmanager
    def as_file(self, path: Input) -> Iterator[str]:
        """Yield the path of a file with all these bytes: the opened one itself where it is one, else a copy.

        ``path`` : what was opened. The copy is gone afterwards.
        """
        if isinstance(path, str | os.PathLike) and not self.packed:
            self._count(self.size_bytes)
            yield os.fspath(path)
            return
        import tempfile

        with tempfile.TemporaryDirectory(prefix="torchtriage-") as folder:
            copy = Path(folder) / "database"
            with copy.open("wb") as stream:
                while block := self.read(1 << 20):
                    stream.write(block)
            yield os.fspath(copy)

    @contextmanager
    def beside(self, path: str) -> Iterator[Source]:
        """Open another file of the same recording, as :func:`open_source` does; what it has counts here."""
        with open_source(path, max_bytes=max(self._max_bytes - self.n_read, 0), others=True) as other:
            yield other
            self.size_bytes += other.size_bytes
            self.n_read += other.n_read

    def skip(self, n_bytes: int) -> int:
        """Move past up to ``n_bytes`` of text without reading it; return how many it were."""
        if self._seekable is None or self._recode is not None:
            return 0
        self._seekable.seek(self._text_start + n_bytes)
        self._ahead = b""
        return n_bytes

    def _take(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except (IsADirectoryError, PermissionError):
            raise
        except EOFError:
            self.truncated = "the compressed stream ends early"
        except (OSError, ValueError, _InflateError) as error:
            self.truncated = f"the compressed stream is damaged ({error})"
        return b""


class _Inflater:
    """A gzip stream of any number of members that gives all it holds before it complains.

    Inflates without the library's own trailer check: that would keep the last text to itself.
    """

    def __init__(self, stream: _Readable) -> None:
        self._stream = stream
        self._packed = b""
        self._member: Any = None
        self._checksum = 0
        self._trouble: Exception | None = None

    def read(self, size: int) -> bytes:
        """Return up to about ``size`` bytes; raise only when there is nothing left to give."""
        out: list[bytes] = []
        while sum(map(len, out)) < size and self._trouble is None:
            try:
                if not self._inflate(out):
                    break
            except (EOFError, OSError, _InflateError) as error:
                self._trouble = error
        if not any(out) and self._trouble is not None:
            raise self._trouble
        return b"".join(out)

    def _inflate(self, out: list[bytes]) -> bool:
        """Append the next piece of text, perhaps empty; False at the end of the stream."""
        if self._member is None:
            if not self._start_member():
                return False
        elif not self._packed:
            self._packed = self._stream.read(_PACKED_BYTES)
        is_over = not self._packed
        block = self._member.decompress(self._packed, _INFLATE_BYTES)
        if is_over and not block:
            raise EOFError
        self._checksum = isal_zlib.crc32(block, self._checksum)
        out.append(block)
        if self._member.eof:
            self._packed = self._member.unused_data
            self._member = None
            trailer = self._need(8)[:8]
            self._packed = self._packed[8:]
            if int.from_bytes(trailer[:4], "little") != self._checksum:
                raise OSError("its checksum is wrong")
        else:
            self._packed = self._member.unconsumed_tail
        return True

    def _start_member(self) -> bool:
        # members may be padded with zeros; whatever else follows one is not ours
        head = self._need(1).lstrip(b"\0")
        if not head.startswith(b"\x1f"):
            return False
        self._packed = head
        flags = self._need(10)[3]
        position = 10
        if flags & 4:  # extra field
            position += 2 + int.from_bytes(self._need(position + 2)[position:], "little")
        for _ in range((flags >> 3 & 1) + (flags >> 4 & 1)):  # file name, comment
            while (end := self._packed.find(b"\0", position)) < 0:
                self._need(len(self._packed) + 1)
            position = end + 1
        position += flags & 2  # checksum of the header
        self._need(position + 1)
        self._packed = self._packed[position:]
        self._member = isal_zlib.decompressobj(wbits=-15)
        self._checksum = 0
        return True

    def _need(self, size: int) -> bytes:
        """Return what is buffered, at least ``size`` bytes unless the stream ends before."""
        while len(self._packed) < size:
            more = self._stream.read(_INFLATE_BYTES)
            if not more:
                if size > 1:
                    raise EOFError
                break
            self._packed += more
        return self._packed


Input = Union[str, "os.PathLike[str]", BinaryIO]


def reopenable(path: Input) -> tuple[Input, str]:
    """Return what can be opened again and again, and its name for messages.

    A path is made absolute. Standard input (``-``) and streams that cannot seek are copied: beyond 16 MiB to a
    temporary file that is gone when closed.
    """
    if isinstance(path, str | os.PathLike):
        name = os.fspath(path)
        if name != "-":
            return os.path.abspath(name), name  # noqa: PTH100 - resolve() fails on loops
        return _spooled(sys.stdin.buffer), "<stdin>"
    return _spooled(path), "<stream>"


def _spooled(stream: BinaryIO) -> BinaryIO:
    if stream.closed or stream.seekable():
        return stream
    from torchtriage.core.trace.spool import Spool

    return Spool.copy(stream)


@contextmanager
def open_source(
    path: Input, *, max_bytes: int = DEFAULT_MAX_BYTES, name: str = "", others: bool = False
) -> Iterator[Source]:
    """Open a path, ``-`` for standard input, or a binary stream as raw JSON bytes.

    ``path`` : plain, gzip or zip. A stream stays open. ``max_bytes`` : refuse inputs that expand beyond this many
    bytes. ``name`` : what to call the input in messages. ``others`` : SQLite files, XPlanes and
    what rocprofv3 writes are welcome, too (``is_database``, ``is_xplane``, ``is_xplane_json``, ``rocprof``).

    Raises TraceFormatError: the path cannot be read, or the content is recognisably something else.
    """
    opened, shown = reopenable(path)
    name = elide(visible(name or shown), 400)
    with _open_raw(opened, name) as raw:
        size_bytes = raw.seek(0, os.SEEK_END)
        raw.seek(0)
        head = raw.read(_SNIFF_BYTES)
        raw.seek(0)
        _refuse_foreign(head, name)
        if not head:
            raise TraceFormatError(
                "expected a profiler trace, found an empty file",
                where=name,
                hint="export inside on_trace_ready, or before the profiler's schedule ends",
            )
        with _unpacked(raw, head, name) as (stream, packed):
            source = Source(stream, name, size_bytes, max_bytes, packed=packed)
            found = (
                "an SQLite database"
                if source.is_database
                else "an XPlane profile"
                if source.is_xplane
                else "the profile of JAX, TensorFlow or PyTorch/XLA"
                if source.is_xplane_json
                else f"rocprofv3's {source.rocprof.upper()}"
                if source.rocprof
                else ""
            )
            if found and not others:
                raise TraceFormatError(
                    f"expected a profiler trace in JSON, found {found}",
                    where=name,
                    hint="such files are read and judged, not written again",
                )
            yield source


@contextmanager
def _unpacked(raw: BinaryIO, head: bytes, name: str) -> Iterator[tuple[_Readable, bool]]:
    if head[:2] == b"\x1f\x8b":
        yield _Inflater(raw), True
    elif head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        with _zip_member(raw, name) as stream:
            yield stream, True
    else:
        yield raw, False


@contextmanager
def _open_raw(path: Input, name: str) -> Iterator[BinaryIO]:
    """Yield a seekable binary stream; one of ours is closed afterwards."""
    if not isinstance(path, str | os.PathLike):
        if path.closed:
            raise TraceFormatError("expected an open stream, found a closed one", where=name)
        yield path
        return
    file = Path(path)
    try:
        mode = file.stat().st_mode
        if stat.S_ISDIR(mode):
            raise TraceFormatError(
                "expected a trace file, found a folder", where=name, hint="pass the .json or .json.gz files in it"
            )
        if not stat.S_ISREG(mode):
            kind = next((what for test, what in _SPECIAL if test(mode)), "something else")
            raise TraceFormatError(
                f"expected a trace file, found {kind}", where=name, hint="pipe data in with: … | torchtriage analyze -"
            )
        stream = file.open("rb")
    except OSError as error:
        # no such file, permissions, symlink loops, names too long
        raise TraceFormatError(
            f"expected a readable file, found: {error.strerror or error}",
            where=name,
            hint="check the path and its permissions",
        ) from error
    except ValueError as error:  # a NUL byte
        raise TraceFormatError(
            f"expected a path, found one with an {error}", where=name, hint="check the path"
        ) from error
    with stream:
        yield stream


_SPECIAL = (
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


@contextmanager
def _zip_member(raw: BinaryIO, name: str) -> Iterator[_Readable]:
    # few traces are zips, and reading them takes many modules
    from torchtriage.core.trace.archive import open_member

    endings = (".json", ".json.gz")
    with open_member(raw, "trace", endings, name, TraceFormatError, EXPORT) as (item, member):
        yield _Inflater(member) if item.endswith(".gz") else member


def _refuse_foreign(head: bytes, name: str) -> None:
    if len(head) > 2 and head[0] == 0x80 and 2 <= head[1] <= 5:
        raise TraceFormatError(
            "expected a profiler trace, found a Python pickle (a memory snapshot?)",
            where=name,
            hint="analyse memory snapshots with: torchtriage memory FILE; " + EXPORT,
        )
    # what they begin with is not documented
    if name.endswith(_NSYS_SUFFIXES) and not head.lstrip().startswith((b"{", b"[", b"\x1f\x8b", _SQLITE)):
        raise TraceFormatError("expected a profiler trace, found an Nsight Systems report", where=name, hint=_NSYS)
    for offset, magic, what, hint in _FOREIGN:
        if head[offset : offset + len(magic)].lower() == magic.lower():
            raise TraceFormatError(f"expected a profiler trace, found {what}", where=name, hint=hint)

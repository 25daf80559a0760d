"""Write a trace again with more events: the input as it was, plus a track of findings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from torchtriage.core.errors import UsageError
from torchtriage.core.trace.events import EventReader
from torchtriage.core.trace.input import open_source
from torchtriage.core.units import DEFAULT_MAX_BYTES


def write_overlay(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    extra: list[dict[str, Any]],
    *,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> None:
    """Copy a trace to ``out`` and append events to it; compressed when ``out`` ends in ``.gz``.

    Undamaged events are copied byte for byte, chunk by chunk, in bounded memory; damaged ones are written as they were
    mended, and what was lost stays lost. A bare list of events becomes an object with the key ``traceEvents``. The
    input is never written to; when anything fails, no half-written file is left behind.

    Raises TraceFormatError: the input cannot be read; UsageError: ``out`` is the input, or cannot be written.
    """
    target = Path(out)
    if target.exists() and Path(path).exists() and target.samefile(path):
        raise UsageError(
            "expected another file to write to, found the input itself",
            where=str(target),
            hint="choose a new name, such as findings.json.gz",
        )
    with open_source(path, max_bytes=max_bytes) as source, created(target) as stream:
        for text in _texts(EventReader(source), extra):
            write(stream, text, target)


@contextmanager
def created(target: Path, *, small: bool = False) -> Iterator[IO[bytes]]:
    """Yield a new file to write to; take it away when what should fill it fails.

    ``small`` : compress as far as gzip goes, and in any case: a third smaller, at a tenth of the speed.
    """
    try:
        raw = target.open("wb")
    except (OSError, ValueError) as error:
        raise _unwritable(target, error) from error
    try:
        with raw:
            if small:
                import gzip

                with gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
                    yield cast("IO[bytes]", packed)
                return
            if target.suffix != ".gz":
                yield raw
                return
            from isal import igzip

            # no name and no time in the header: equal input gives equal bytes
            fast = igzip.IGzipFile("", "wb", 2, raw, mtime=0)  # type: ignore[no-untyped-call]
            with fast:
                yield cast("IO[bytes]", fast)
    except BaseException:
        if target.is_file():  # a pipe or a device is not ours to remove
            target.unlink()
        raise


def write(stream: IO[bytes], text: bytes, target: Path) -> None:
    """Write to a file that was created here; UsageError when that fails."""
    # here, and not around the whole: reading fails with an OSError too, and says so itself
    try:
        stream.write(text)
    except OSError as error:
        raise _unwritable(target, error) from error


def _unwritable(target: Path, error: Exception) -> UsageError:
    reason = getattr(error, "strerror", None) or error
    return UsageError(f"cannot be written: {reason}", where=str(target))


def _texts(reader: EventReader, extra: list[dict[str, Any]]) -> Iterator[bytes]:
    encode = msgspec.json.encode
    yield b'{"traceEvents": [\n'
    comma = b""
    for chunk in reader:
        text = chunk.document[1:-1].strip()
        if text:
            yield comma + text
            comma = b",\n"
    for event in extra:
        yield comma + encode(event)
        comma = b",\n"
    yield b"\n]"
    for key, value in reader.meta.items():
        yield b",\n" + encode(key) + b": " + encode(value)
    yield b"\n}\n"

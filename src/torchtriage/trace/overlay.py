"""Write a trace again with more events: the input as it was, plus a track of findings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any

import msgspec

from torchtriage.errors import TriageError, UsageError
from torchtriage.trace.events import EventReader
from torchtriage.trace.source import DEFAULT_MAX_BYTES, open_source

__all__ = ["write_overlay"]


def write_overlay(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    extra: list[dict[str, Any]],
    *,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> None:
    """Copy a trace to ``out`` and append events to it; compressed when ``out`` ends in ``.gz``.

    Undamaged text is copied byte for byte, chunk by chunk, in bounded memory; damaged events are
    written as they were mended. The input is never written to.

    Raises
    ------
    TraceFormatError
        The input cannot be read.
    UsageError
        ``out`` is the input, or cannot be written.
    """
    target = Path(out)
    if target.exists() and Path(path).exists() and target.samefile(path):
        raise UsageError(
            "expected another file to write to, found the input itself",
            where=str(target),
            hint="choose a new name, such as findings.json.gz",
        )
    try:
        with open_source(path, max_bytes=max_bytes) as source, target.open("wb") as raw:
            reader = EventReader(source)
            if target.suffix == ".gz":
                from isal import igzip

                with igzip.IGzipFile(fileobj=raw, mode="wb", compresslevel=2) as stream:
                    _write(reader, stream, extra)
            else:
                _write(reader, raw, extra)
    except OSError as error:
        raise UsageError(
            f"cannot be written: {error.strerror or error}", where=str(target)
        ) from error
    except TriageError:
        target.unlink(missing_ok=True)
        raise


def _write(reader: EventReader, stream: IO[bytes], extra: list[dict[str, Any]]) -> None:
    encode = msgspec.json.encode
    stream.write(b'{"traceEvents": [\n')
    first = True
    for chunk in reader:
        text = chunk.document[1:-1].strip()
        if text:
            stream.write(text if first else b",\n" + text)
            first = False
    for event in extra:
        stream.write(encode(event) if first else b",\n" + encode(event))
        first = False
    stream.write(b"\n]")
    for key, value in reader.meta.items():
        stream.write(b",\n" + encode(key) + b": " + encode(value))
    stream.write(b"\n}\n")

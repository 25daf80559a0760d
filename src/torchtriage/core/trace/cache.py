"""The columns of a trace in a file beside it, for whoever asks: reading again takes no decoding.

A cache is known by the digest of the trace's bytes and by the format's version. One that is stale, damaged or not ours
is read over as if it were not there. JSON and plain arrays, never a pickle.

Layout: magic, checksum of the rest, size of the header, header (JSON, padded), arrays.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from torchtriage.core.trace.columns import Detail, Lane, MemoryEvents, ReadReport, Trace
from torchtriage.core.trace.schema import COLUMN_TYPES

SUFFIX = ".torchtriage-cache"
VERSION = 4
"""Raise with every change of what a column or table means."""

_MAGIC = b"ttcache\0"
_CHECKSUM_BYTES = 20
_SIZE = struct.Struct("<Q")
# the widest first, so that each array is aligned
_COLUMNS = dict(sorted(COLUMN_TYPES.items(), key=lambda item: -item[1].itemsize))


class _Header(msgspec.Struct):
    """Everything of a trace that is no array."""

    version: int
    byte_order: str
    digest: str
    n_rows: int
    n_memory: int
    n_chunks: int
    names: tuple[str, ...]
    cats: tuple[str, ...]
    lanes: tuple[Lane, ...]
    details: tuple[Detail, ...]
    labels: list[tuple[str, str, str, str]]
    meta: dict[str, Any]
    report: ReadReport


def cache_path(path: str | os.PathLike[str]) -> Path:
    """Return where the cache of a trace file lies."""
    return Path(os.fspath(path) + SUFFIX)


def digest_of(path: str | os.PathLike[str]) -> str:
    """Return the digest of a file's bytes, as they are on disk."""
    digest = hashlib.blake2b(digest_size=20)
    with Path(path).open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def load(path: str | os.PathLike[str], digest: str, name: str) -> Trace | None:
    """Return the cached trace of a file with this digest, None when there is none that fits.

    ``path`` : the trace, not the cache. ``digest`` : of the trace's bytes now. ``name`` : what the trace is called in
    messages now.
    """
    try:
        with cache_path(path).open("rb") as stream:
            if stream.read(len(_MAGIC)) != _MAGIC:
                return None
            checksum = stream.read(_CHECKSUM_BYTES)
            rest = bytearray(stream.read())
        if _checksum(rest) != checksum:
            return None
        (size,) = _SIZE.unpack_from(rest)
        header = msgspec.json.decode(memoryview(rest)[_SIZE.size : _SIZE.size + size], type=_Header)
    except (OSError, struct.error, msgspec.MsgspecError):
        return None
    if (header.version, header.byte_order, header.digest) != (VERSION, sys.byteorder, digest):
        return None

    position = _SIZE.size + size

    def take(dtype: Any, count: int) -> NDArray[Any]:
        nonlocal position
        values: NDArray[Any] = np.frombuffer(rest, dtype, count, position)
        position += values.nbytes
        return values

    memory = take(np.int64, 7 * header.n_memory).reshape(7, -1)
    chunks = take(np.int64, 3 * header.n_chunks).reshape(-1, 3)
    columns: dict[str, Any] = {c: take(dtype, header.n_rows) for c, dtype in _COLUMNS.items()}
    return Trace(
        names=header.names,
        cats=header.cats,
        lanes=header.lanes,
        details=header.details,
        memory=MemoryEvents(*memory),
        labels={(what, pid, tid): text for what, pid, tid, text in header.labels},
        meta=header.meta,
        report=msgspec.structs.replace(header.report, path=name, chunks=chunks),
        source=os.fspath(path),
        **columns,
    )


def store(trace: Trace, path: str | os.PathLike[str], digest: str) -> None:
    """Write the cache of a trace; a folder that cannot be written to goes without."""
    header = _Header(
        version=VERSION,
        byte_order=sys.byteorder,
        digest=digest,
        n_rows=len(trace),
        n_memory=len(trace.memory.at_ns),
        n_chunks=len(trace.report.chunks),
        names=trace.names,
        cats=trace.cats,
        lanes=trace.lanes,
        details=trace.details,
        labels=[(*where, text) for where, text in trace.labels.items()],
        meta=trace.meta,
        report=msgspec.structs.replace(trace.report, chunks=None),
    )
    target = cache_path(path)
    try:
        text = msgspec.json.encode(header)
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=target.name)
    except (OSError, OverflowError):
        return  # a folder that is not ours, or numbers that this JSON cannot hold
    text += b" " * (-len(text) % 8)
    parts: list[Any] = [
        _SIZE.pack(len(text)),
        text,
        np.stack(trace.memory),
        trace.report.chunks,
        *(getattr(trace, column) for column in _COLUMNS),
    ]
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(_MAGIC + _checksum(*parts))
            for part in parts:
                stream.write(part)
        Path(name).replace(target)
    except OSError:
        with contextlib.suppress(OSError):
            Path(name).unlink()


def _checksum(*parts: Any) -> bytes:
    digest = hashlib.blake2b(digest_size=_CHECKSUM_BYTES)
    for part in parts:
        digest.update(part)
    return digest.digest()

"""Traces in object stores: what fsspec can open, as ``s3://bucket/run/rank0.json.gz``.

A store that fails is asked again, later each time: of a thousand ranks some always meet a busy server. What is not
there, or not allowed, fails at once.
"""

from __future__ import annotations

import io
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, TypeVar, cast

from torchtriage.core.errors import MissingExtraError, TraceFormatError, TriageError
from torchtriage.core.folders import NO_TRACES, SUFFIXES, once_each

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
WAITS_S = (0.5, 1.0, 2.0, 4.0)
"""Before each further try; up to half as long again, so that workers do not come back all at once."""
_LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, ValueError, TypeError, KeyError)
"""What another try does not change; each store raises its own for the rest."""
_BLOCK_BYTES = 1 << 20

Found = TypeVar("Found")


def is_url(path: object) -> bool:
    """Return whether a path names its store: ``s3://…``, ``memory://…``."""
    return isinstance(path, str) and _URL.match(path) is not None


def find_urls(url: str) -> list[str]:
    """Return the traces a URL stands for: one file, a pattern's, or a folder's.

    Raises MissingExtraError: fsspec, or what it needs for this store, is not installed; TraceFormatError: there is
    nothing, or it cannot be reached.
    """
    store, path = _store(url)

    def look() -> list[str]:
        if any(mark in path for mark in "*?["):
            return sorted(store.glob(path))
        if store.isdir(path):
            return once_each(sorted(item for item in store.find(path) if item.endswith(SUFFIXES)))
        return [path]

    found = _tried(url, look)
    if not found:
        raise TraceFormatError(f"expected traces here, {NO_TRACES}", where=url)
    return [str(store.unstrip_protocol(item)) for item in found]


@contextmanager
def opened(url: str) -> Iterator[BinaryIO]:
    """Open a URL for reading.

    Raises MissingExtraError: fsspec, or what it needs for this store, is not installed; TraceFormatError: it cannot be
    opened.
    """
    store, path = _store(url)
    with _Persistent(url, lambda: store.open(path, "rb")) as stream:
        yield cast("BinaryIO", io.BufferedReader(stream, _BLOCK_BYTES))


class _Persistent(io.RawIOBase):
    """A stream that is opened again where it was when reading fails."""

    def __init__(self, url: str, opener: Callable[[], Any]) -> None:
        self._url, self._opener = url, opener
        self._stream: Any = None
        self._at = 0
        _tried(url, self._open)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        block = _tried(self._url, lambda: self._read(len(room)))
        room[: len(block)] = block
        self._at += len(block)
        return len(block)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        def moved() -> int:
            self._open()
            return int(self._stream.seek(offset, whence))

        # another stream stands elsewhere
        offset, whence = (offset + self._at, io.SEEK_SET) if whence == io.SEEK_CUR else (offset, whence)
        self._at = _tried(self._url, moved)
        return self._at

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        super().close()

    def _open(self) -> None:
        if self._stream is None:
            self._stream = self._opener()

    def _read(self, size: int) -> bytes:
        try:
            again = self._stream is None
            self._open()
            if again:
                self._stream.seek(self._at)
            return bytes(self._stream.read(size))
        except Exception:
            # what a broken connection left behind is of no use to the next try
            self._stream = None
            raise


def _tried(url: str, ask: Callable[[], Found]) -> Found:
    """Return what a store answers, asking again while it fails in a way that may pass."""
    for wait_s in (*WAITS_S, None):
        try:
            return ask()
        except Exception as error:  # noqa: PERF203 - each store raises its own
            if isinstance(error, TriageError):
                raise
            if wait_s is None or isinstance(error, _LASTING):
                tries = f", {len(WAITS_S) + 1} times" if wait_s is None else ""
                text = f"cannot be read{tries}: {type(error).__name__}: {error}"
                raise TraceFormatError(text, where=url) from error
            time.sleep(wait_s * random.uniform(1.0, 1.5))
    raise AssertionError


def _store(url: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError:
        raise MissingExtraError(
            "expected fsspec to read from an object store, it is not installed",
            where=url,
            hint="pip install 'torchtriage[cluster]'",
        ) from None
    try:
        store, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        # fsspec names the package that this store needs
        raise MissingExtraError(
            f"expected a store that fsspec can open: {error}",
            where=url,
            hint="install that package beside torchtriage[cluster]",
        ) from error
    return store, str(path)

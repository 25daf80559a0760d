"""Traces in object stores: what fsspec can open, as ``s3://bucket/run/rank0.json.gz``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from torchtriage.core.errors import MissingExtraError, TraceFormatError
from torchtriage.core.folders import NO_TRACES, SUFFIXES, once_each

__all__ = ["find_urls", "is_url", "opened"]

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def is_url(path: object) -> bool:
    """Return whether a path names its store: ``s3://…``, ``memory://…``."""
    return isinstance(path, str) and _URL.match(path) is not None


def find_urls(url: str) -> list[str]:
    """Return the traces a URL stands for: one file, a pattern's, or a folder's.

    Raises
    ------
    MissingExtraError
        fsspec, or what it needs for this store, is not installed.
    TraceFormatError
        There is nothing, or it cannot be reached.
    """
    store, path = _store(url)
    try:
        if any(mark in path for mark in "*?["):
            found = sorted(store.glob(path))
        elif store.isdir(path):
            found = once_each(sorted(item for item in store.find(path) if item.endswith(SUFFIXES)))
        else:
            found = [path]
    except Exception as error:  # each store raises its own
        raise _unreachable(url, error) from error
    if not found:
        raise TraceFormatError(f"expected traces here, {NO_TRACES}", where=url)
    return [str(store.unstrip_protocol(item)) for item in found]


@contextmanager
def opened(url: str) -> Iterator[BinaryIO]:
    """Open a URL for reading.

    Raises
    ------
    MissingExtraError
        fsspec, or what it needs for this store, is not installed.
    TraceFormatError
        It cannot be opened.
    """
    store, path = _store(url)
    try:
        stream = store.open(path, "rb")
    except Exception as error:  # each store raises its own
        raise _unreachable(url, error) from error
    with stream:
        yield stream


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


def _unreachable(url: str, error: Exception) -> TraceFormatError:
    return TraceFormatError(f"cannot be read: {type(error).__name__}: {error}", where=url)

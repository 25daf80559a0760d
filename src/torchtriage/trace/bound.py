"""A bound on this process's memory: what is large lies in files without a name.

While :func:`within` is open, large arrays of numpy and of the native library are mappings of
temporary files, and pages that are not at work leave this process (``native/src/spill.rs``).
Columns and everything computed from them are bounded the same way; no result depends on it.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, c_char_p, c_void_p, py_object, pythonapi
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from torchtriage.errors import UsageError
from torchtriage.trace.engine import find_engine
from torchtriage.units import format_bytes

__all__ = ["LEAST_BYTES", "within"]

LEAST_BYTES = 128 << 20
"""Python, numpy and tables take about half of it."""
LARGE_BYTES = 1 << 20
"""Smaller allocations stay in memory: a file for each would cost more than it saves."""
_LOCK = threading.Lock()
_OPEN: list[int] = []
"""Bounds in force in this process, nested or of several threads: the smallest counts."""
_HANDLER = b"mem_handler"
_SET_HANDLER, _GET_HANDLER = 304, 305
"""Places in numpy's table of functions, which extensions are compiled against."""


@contextmanager
def within(max_bytes: int | None) -> Iterator[None]:
    """Keep this process within so many bytes of resident memory; None for no bound.

    Arrays made inside stay in files for as long as they live. Only arrays of this thread count. Of
    several bounds at a time, nested or in threads, the smallest holds.

    Raises
    ------
    UsageError
        The bound is too small, or cannot be kept here: no native library, not Linux, or no room
        on the disk.
    """
    if max_bytes is None:
        yield
        return
    if max_bytes < LEAST_BYTES:
        raise UsageError(
            f"expected a bound of at least {format_bytes(LEAST_BYTES)} of memory,"
            f" found {format_bytes(max_bytes)}"
        )
    engine = find_engine()
    if engine.library is None:
        raise UsageError(
            f"a bound on memory needs the native library: {engine.reason}",
            hint="build it with make native, or leave the bound out",
        )
    folder = os.fsencode(_folder())
    bound = engine.library.tt_bound
    with _LOCK:
        if bound(min([max_bytes, *_OPEN]), LARGE_BYTES, folder, len(folder)) != 1:
            raise UsageError(
                f"a bound on memory needs Linux, /proc and room for files in {_folder()}",
                hint="name another folder in $TMPDIR, or leave the bound out",
            )
        _OPEN.append(max_bytes)
    numpy = _numpy_functions()
    before = numpy.set_handler(_handler())
    try:
        yield
    except MemoryError as error:
        raise UsageError(
            f"expected room for columns in {_folder()}, found none",
            hint="name a folder with more room in $TMPDIR",
        ) from error
    finally:
        numpy.set_handler(before)
        with _LOCK:
            _OPEN.remove(max_bytes)
            # where the folder is gone, the smaller bound stays in force
            bound(min(_OPEN, default=0), LARGE_BYTES, folder, len(folder))


def _folder() -> Path:
    """Return where the files go: on a disk, which the folder of small ones often is not."""
    if "TMPDIR" not in os.environ and os.access("/var/tmp", os.W_OK):
        return Path("/var/tmp")
    import tempfile

    return Path(tempfile.gettempdir())


class _Functions:
    """The two functions of numpy that have no name in Python."""

    def __init__(self, table: Any) -> None:
        prototype = ctypes.PYFUNCTYPE
        self.set_handler = prototype(py_object, py_object)(table[_SET_HANDLER])
        self.get_handler = prototype(py_object)(table[_GET_HANDLER])


@cache
def _numpy_functions() -> _Functions:
    core = np._core if hasattr(np, "_core") else np.core
    address = _address(core.multiarray._ARRAY_API, None)
    return _Functions(ctypes.cast(address, POINTER(c_void_p)))


@cache
def _handler() -> object:
    """Return our handler as numpy wants it, made of the one that is in use."""
    small = _address(_numpy_functions().get_handler(), _HANDLER)
    library: Any = find_engine().library
    new = pythonapi.PyCapsule_New
    new.restype, new.argtypes = py_object, [c_void_p, c_char_p, c_void_p]
    capsule: object = new(library.tt_memory_handler(small), _HANDLER, None)
    return capsule


def _address(capsule: object, name: bytes | None) -> int:
    get = pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = c_void_p, [py_object, c_char_p]
    address: int = get(capsule, name)
    return address

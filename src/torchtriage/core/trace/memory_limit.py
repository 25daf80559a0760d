"""A bound on this process's memory: what is large lies in files without a name.

While :func:`within` is open, large arrays of numpy and of the native library are mappings of temporary files, and pages
that are not at work leave this process (``native/src/spill.rs``). Columns and everything computed from them are bounded
the same way; no result depends on it.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, c_char_p, c_uint, c_void_p, py_object, pythonapi
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from torchtriage.core.engine import find_engine
from torchtriage.core.errors import UsageError
from torchtriage.core.units import format_bytes

LEAST_BYTES = 128 << 20
"""Python, numpy and tables take about half of it."""
LARGE_BYTES = 1 << 20
"""Smaller allocations stay in memory: a file for each would cost more than it saves."""
_LOCK = threading.Lock()
_OPEN: list[int] = []
"""Bounds in force in this process, nested or of several threads: the smallest counts."""
_HANDLER = b"mem_handler"
_ABI, _SET_HANDLER, _GET_HANDLER = 0, 304, 305
"""Places in numpy's table of functions, which extensions are compiled against."""
_KNOWN_ABI = {1: 0x01000009, 2: 0x02000000}
"""Where those places hold: the version of the table by numpy's major version."""


@contextmanager
def within(max_bytes: int | None) -> Iterator[None]:
    """Keep this process within so many bytes of resident memory; None for no bound.

    Arrays made inside stay in files for as long as they live. Only arrays of this thread count. Of several bounds at a
    time, nested or in threads, the smallest holds.

    Raises UsageError: the bound is too small, or cannot be kept here: no native library, another numpy than 1 or 2, not
    Linux, or no room on the disk.
    """
    if max_bytes is None:
        yield
        return
    if max_bytes < LEAST_BYTES:
        raise UsageError(
            f"expected a bound of at least {format_bytes(LEAST_BYTES)} of memory, found {format_bytes(max_bytes)}"
        )
    engine = find_engine()
    if engine.library is None:
        raise UsageError(
            f"a bound on memory needs the native library: {engine.reason}",
            hint="build it with make native, or leave the bound out",
        )
    set_handler, _ = _numpy_functions()
    folder = os.fsencode(spill_folder())
    bound = engine.library.tt_bound
    with _LOCK:
        if bound(min([max_bytes, *_OPEN]), LARGE_BYTES, folder, len(folder)) != 1:
            raise UsageError(
                f"a bound on memory needs Linux, /proc and room for files in {spill_folder()}",
                hint="name another folder in $TMPDIR, or leave the bound out",
            )
        _OPEN.append(max_bytes)
    before = set_handler(_handler())
    try:
        yield
    except MemoryError as error:
        raise UsageError(
            f"expected room for columns in {spill_folder()}, found none", hint="name a folder with more room in $TMPDIR"
        ) from error
    finally:
        set_handler(before)
        with _LOCK:
            _OPEN.remove(max_bytes)
            # where the folder is gone, the smaller bound stays in force
            bound(min(_OPEN, default=0), LARGE_BYTES, folder, len(folder))


def spill_folder() -> Path:
    """Return where the files go: on a disk, which the folder of small ones often is not."""
    if "TMPDIR" not in os.environ and os.access("/var/tmp", os.W_OK):
        return Path("/var/tmp")
    import tempfile

    return Path(tempfile.gettempdir())


@cache
def _numpy_functions() -> tuple[Any, Any]:
    """Return the two functions of numpy that set and get the handler, which have no name in Python."""
    known = _KNOWN_ABI.get(int(np.__version__.partition(".")[0]))
    if known is not None:
        core = np._core if hasattr(np, "_core") else np.core
        table: Any = ctypes.cast(_address(core.multiarray._ARRAY_API, None), POINTER(c_void_p))
        prototype = ctypes.PYFUNCTYPE
        if prototype(c_uint)(table[_ABI])() == known:
            set_handler = prototype(py_object, py_object)(table[_SET_HANDLER])
            return set_handler, prototype(py_object)(table[_GET_HANDLER])
    raise UsageError(
        f"a bound on memory needs numpy 1 or 2, found {np.__version__}", hint="leave the bound out, or install numpy<3"
    )


@cache
def _handler() -> object:
    small = _address(_numpy_functions()[1](), _HANDLER)
    library: Any = find_engine().library
    new = pythonapi.PyCapsule_New
    new.restype, new.argtypes = py_object, [c_void_p, c_char_p, c_void_p]
    return new(library.tt_memory_handler(small), _HANDLER, None)


def _address(capsule: object, name: bytes | None) -> int:
    get = pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = c_void_p, [py_object, c_char_p]
    return get(capsule, name)

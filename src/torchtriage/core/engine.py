"""Which engine reads traces: the native library where it is built, else Python alone.

The library (``native/``, Rust without dependencies) holds the scanner and what is slow in numpy. It is optional, and
nothing depends on which engine is at work: the results are the same.
"""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import POINTER, c_bool, c_char_p, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from torchtriage.core.errors import UsageError

READER_VARIABLE = "TORCHTRIAGE_READER"
VERSION = 9
"""Of the library's interface; one of another version is left alone."""

_NAMES = {"darwin": "libtorchtriage_native.dylib", "win32": "torchtriage_native.dll"}
FILE = Path(__file__).parent / "trace" / _NAMES.get(sys.platform, "libtorchtriage_native.so")


class Engine(NamedTuple):
    """Which engine reads traces here, and why."""

    library: Any
    """None where the Python engine reads."""
    reason: str

    @property
    def name(self) -> str:
        """Return ``native`` or ``python``."""
        return "python" if self.library is None else "native"


def find_engine() -> Engine:
    """Return the engine to read with.

    Raises UsageError: ``$TORCHTRIAGE_READER`` asks for one that is not there, or that does not exist.
    """
    wanted = os.environ.get(READER_VARIABLE, "")
    if wanted == "python":
        return Engine(None, f"${READER_VARIABLE} asks for it")
    if wanted not in ("", "native"):
        raise UsageError(f"expected python or native in ${READER_VARIABLE}, found {wanted!r}")
    engine = _load(FILE)
    if wanted and engine.library is None:
        raise UsageError(
            f"expected the native scanner, which ${READER_VARIABLE} asks for: {engine.reason}",
            hint="build it with make native, or unset the variable",
        )
    return engine


@cache
def _load(file: Path) -> Engine:
    if not file.exists():
        return Engine(None, f"{file.name} is not there: install a wheel, or run make native where cargo is")
    try:
        library = ctypes.CDLL(os.fspath(file))
        library.tt_version.restype = c_uint32
        found = library.tt_version()
    except (OSError, AttributeError) as error:
        return Engine(None, f"{file.name} cannot be loaded ({error})")
    if found != VERSION:
        return Engine(None, f"{file.name} is of another version ({found}, expected {VERSION}): make native")
    scanner = c_void_p
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "tt_new": (scanner, [c_char_p, c_size_t]),
        "tt_free": (None, [scanner]),
        "tt_scan": (c_int64, [scanner, c_void_p, c_size_t, c_int64, c_int64]),
        "tt_totals": (None, [scanner, c_void_p]),
        "tt_roll_back": (c_int64, [scanner, c_void_p]),
        "tt_table": (None, [scanner, c_uint32, POINTER(c_void_p), POINTER(POINTER(c_uint64))]),
        "tt_records": (c_void_p, [scanner, c_uint32]),
        "tt_copy": (c_int64, [scanner, c_uint32, c_size_t, c_size_t, c_void_p, c_size_t, c_void_p]),
        "tt_drop": (None, [scanner, c_uint32]),
        "tt_tree": (c_int64, [c_void_p, c_void_p, c_size_t, c_int64, c_bool, c_void_p, c_void_p]),
        "tt_own": (c_int64, [c_size_t, *[c_void_p] * 3, c_size_t, c_void_p, c_void_p]),
        "tt_under": (c_int64, [c_size_t, c_void_p, c_size_t, *[c_void_p] * 3]),
        "tt_above": (c_int64, [c_size_t, c_void_p, c_size_t, *[c_void_p] * 3]),
        "tt_union": (c_int64, [c_void_p, c_size_t, c_void_p]),
        "tt_intersect": (c_int64, [c_void_p, c_size_t, c_void_p, c_size_t, c_void_p]),
        "tt_covered": (c_int64, [c_void_p, c_size_t, c_void_p, c_size_t, c_void_p]),
        "tt_renumber": (c_int64, [c_void_p, c_size_t, c_void_p, c_size_t, c_void_p]),
        "tt_group": (c_int64, [c_void_p, c_size_t, c_size_t, c_void_p, c_void_p]),
        "tt_replay": (c_int64, [c_void_p, c_void_p]),
        "tt_steps": (c_int64, [c_void_p, c_size_t, c_size_t, c_void_p]),
        "tt_runs": (c_int64, [c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p]),
        "tt_bound": (c_int64, [c_size_t, c_size_t, c_char_p, c_size_t]),
        "tt_out_of_room": (c_int64, []),
        "tt_memory_handler": (c_void_p, [c_void_p]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return Engine(library, f"{file.name} is there")

"""Looks at the stacks of a process: which module is called, by which line of the user's, inside of what."""

from __future__ import annotations

import _thread
import gc
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate, repeat, takewhile
from operator import attrgetter, methodcaller
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # here only the script imports torch
    import torch

Result = TypeVar("Result")
_CALL = methodcaller("__call__")
_POSITION = attrgetter("f_code", "f_lasti")
DEEPEST = 5_000


def without_collection(call: Callable[[], Result]) -> Result:
    """Return what a call of C returns, with no garbage collection meanwhile, and no other thread's instruction.

    Python before 3.12 collects whenever an object is made. A collection runs Python, which lets other threads run: then
    the frame that C was reading is gone, and its memory another's. ``map`` makes the three calls in C, so that no
    thread sees the collector switched off.
    """
    if not gc.isenabled():
        return call()
    try:
        _, result, _ = map(_CALL, (gc.disable, call, gc.enable))
    except BaseException:
        gc.enable()
        raise
    return result


def current_frames() -> dict[int, FrameType]:
    """Return the innermost frame of each other thread.

    ``sys._current_frames`` of Python before 3.12 makes objects while it holds the lock of all threads' states: a
    collection that begins there, and finds a ``threading.local``, waits for that lock for ever (CPython issue 106883).
    """
    frames = without_collection(sys._current_frames)
    # our own frames hold what is returned: a cycle, which would keep the variables of all threads until it is collected
    frames.pop(_thread.get_ident(), None)
    return frames


def callers(innermost: FrameType) -> list[FrameType]:
    """Return a frame of another thread and those it was called from, innermost first."""
    return without_collection(partial(list, _chain(innermost, DEEPEST)))


def positions(innermost: FrameType, deepest: int) -> tuple[tuple[CodeType, int], ...]:
    """Return code and instruction of a frame of another thread, and of those it was called from, all of one moment."""
    return without_collection(partial(tuple, map(_POSITION, _chain(innermost, deepest))))


def _chain(innermost: FrameType, deepest: int) -> Iterator[FrameType]:
    # in C from end to end; the outermost frame's f_back is None
    return takewhile(bool, accumulate(repeat("f_back", deepest - 1), getattr, initial=innermost))


def module_codes() -> frozenset[CodeType]:
    """Return the code that every call of a module runs through."""
    import torch

    names = ("__call__", "_wrapped_call_impl", "_call_impl")
    found = (getattr(getattr(torch.nn.Module, name, None), "__code__", None) for name in names)
    return frozenset(code for code in found if code is not None)


def outermost_modules(codes: frozenset[CodeType]) -> list[torch.nn.Module]:
    """Return the outermost module being called on each other thread."""
    import torch

    found = []
    for innermost in current_frames().values():
        top: FrameType | None = None
        for frame in callers(innermost):
            if frame.f_code in codes:
                top = frame
            elif _compiles(frame):
                top = None  # inside a compiled region: a hook would be part of its graph
        if top is not None:
            module = without_collection(partial(getattr, top, "f_locals")).get("self")
            if isinstance(module, torch.nn.Module):
                found.append(module)
    return found


_DYNAMO = f"{os.sep}torch{os.sep}_dynamo{os.sep}"


def _compiles(frame: FrameType) -> bool:
    # OptimizedModule.__call__ stands there too, outside of what is compiled
    return _DYNAMO in frame.f_code.co_filename and frame.f_code.co_name != "__call__"


_LIBRARY = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_STDLIB = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120
_OURS = str(Path(__file__).absolute().parents[2]) + os.sep
_CELL = "<ipython-input"
"""So begins what IPython calls the file of a cell, on a terminal."""


def is_library(file: str) -> bool:
    """Return whether a file is no code of the user's: installed, of the standard library, generated, or ours."""
    if file.startswith(_CELL):
        return False
    installed = any(part in file for part in _LIBRARY) or (file.startswith(_STDLIB) and "-packages" not in file)
    return installed or file.startswith(("<", _OURS))


def user_call(frame: FrameType | None) -> tuple[str, int, str]:
    """Return file, line and function of the innermost frame of the user's own code."""
    last = ("", 0, "")
    while frame is not None:
        code = frame.f_code
        file = code.co_filename
        if file.startswith(_CELL) or not file.startswith(("<", _OURS)):
            last = (file, frame.f_lineno or code.co_firstlineno, code.co_name)
            if not is_library(file):
                return last
        frame = frame.f_back
    return last


def user_calls(frame: FrameType | None, most: int) -> tuple[tuple[str, int], ...]:
    """Return file and line of the innermost frames of the user's own code, at most so many."""
    found: list[tuple[str, int]] = []
    while frame is not None and len(found) < most:
        if not is_library(frame.f_code.co_filename):
            found.append((frame.f_code.co_filename, frame.f_lineno or 0))
        frame = frame.f_back
    return tuple(found)


def inside_another(module: torch.nn.Module, frame: FrameType | None, codes: frozenset[CodeType]) -> bool:
    """Return whether a frame lies within the call of a module other than this one."""
    while frame is not None:
        if frame.f_code in codes and frame.f_locals.get("self") is not module:
            return True
        frame = frame.f_back
    return False


def runs(code: CodeType) -> bool:
    """Return whether any thread is inside a call of this code."""
    return any(frame.f_code is code for innermost in current_frames().values() for frame in callers(innermost))


def of_the_user(error: Exception) -> bool:
    """Return whether code of the user's raised it: a signal handler, which runs wherever the main thread is."""
    trace = error.__traceback__
    while trace is not None:
        if not is_library(trace.tb_frame.f_code.co_filename):
            return True
        trace = trace.tb_next
    return False

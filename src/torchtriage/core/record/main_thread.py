"""Runs a call on the main thread of a process, between two of its instructions, asked for by another thread."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from torchtriage.core.record.stacks import callers, current_frames

PATIENCE_S = 10.0
"""So long the main thread may stay inside one call before it is no longer asked."""
COMPILING = ("_dynamo/convert_frame.py", "_inductor/compile_fx.py")
"""Frames of the compiler at work; others of its packages run compiled code."""
BACKWARD = ("torch/autograd/graph.py", "torch/autograd/function.py")
"""Frames between a backward pass in C++ and the Python that it calls, or was called from."""
AGAIN_S = 0.01
ENDS_S = 1.0
"""So long a script has to end by itself once the thread of its loop has ended."""
_ASKED: list[object] = []
"""What the interpreter still has to call: C knows them by address alone."""


def in_main_thread(act: Callable[[], object]) -> bool:
    """Call ``act`` on the main thread and wait for it; False where the interpreter does not come to it.

    Not inside a backward pass: autograd sets the thread's state back at its end, and a profiler that ended there is on
    again, one that began there off. What ``act`` raises is swallowed: it would appear in the middle of the program.
    """
    until = time.monotonic() + PATIENCE_S
    while (called := _ask_main_thread(act)) is None and time.monotonic() < until:
        time.sleep(AGAIN_S)
    return bool(called)


def end_main_thread() -> bool:
    """Raise SystemExit in the main thread, unless it ends by itself; False where the interpreter does not come to it.

    For another thread to call: in the main one it would be raised inside of what is asked for.
    """
    time.sleep(ENDS_S)
    reached = in_main_thread(lambda: None)
    if not threading.main_thread().is_alive():  # exit handlers are at work
        return True
    if reached:
        import ctypes

        thread = ctypes.c_ulong(threading.main_thread().ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(SystemExit))
    return reached


def _ask_main_thread(act: Callable[[], object]) -> bool | None:
    """Return whether the main thread has called ``act``, None where it is in a backward pass."""
    try:
        import ctypes
    except ImportError:
        return False
    done = threading.Event()
    given_up = threading.Event()
    inside: list[bool] = []

    compiler: Any = sys.modules.get("torch._dynamo.eval_frame")
    set_eval_frame = getattr(compiler, "set_eval_frame", lambda callback: callback)

    def call(_argument: object) -> int:
        before = set_eval_frame(None)
        try:
            inside.append(_in_backward(sys._getframe()))
            if not given_up.is_set() and not inside[0]:
                with contextlib.suppress(Exception):
                    act()
        finally:
            done.set()
            set_eval_frame(before)
        return 0

    # in the middle of a compiled call the compiler would take this for a part of it, and all that it calls
    if (skip_code := getattr(compiler, "skip_code", None)) is not None:
        skip_code(call.__code__)
        skip_code(_in_backward.__code__)

    pending = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(call)
    _ASKED.append(pending)
    if ctypes.pythonapi.Py_AddPendingCall(pending, None) != 0:
        return False
    if done.wait(PATIENCE_S):
        return None if inside and inside[0] else True
    given_up.set()
    return False


def _in_backward(innermost: FrameType) -> bool:
    frame: FrameType | None = innermost
    while frame is not None:
        if frame.f_code.co_filename.endswith(BACKWARD):
            return True
        frame = frame.f_back
    return False


def main_thread_prepares() -> bool:
    """Return whether the main thread is importing or compiling."""
    innermost = current_frames().get(threading.main_thread().ident or 0)
    files = [frame.f_code.co_filename for frame in callers(innermost)] if innermost is not None else []
    return any(file.startswith("<frozen importlib") or file.endswith(COMPILING) for file in files)

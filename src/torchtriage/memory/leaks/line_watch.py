"""The line that adds to a suspect: found by looking at its size after each line of a few steps, or by the text."""

from __future__ import annotations

import linecache
import re
import sys
import types
from time import thread_time
from typing import Any

from torchtriage.memory.leaks.object_growth import CodeLine, Measure, SizedObject, function_name, is_users

MAX_EVENTS = 100_000
"""Lines that are traced; a step that has more is left alone from there on."""


def adding_line(held: SizedObject, frame: types.FrameType | None) -> CodeLine | None:
    """Return the line that, by its text, adds to a name; for where lines cannot be traced.

    Looked for in the files of the running functions and of the user's modules, the last part of
    the name before any index, as ``name.append(``, ``name[...] =`` and the like.
    """
    last = [name for name in held.names[1:] if name.startswith(".")]
    if not last:
        return None
    name = re.escape(last[-1][1:])
    adds = re.compile(
        rf"\b{name}\b\s*(\.(append|appendleft|add|extend|update|setdefault|insert)\(|\[[^\]]*\]\s*=[^=]"
        rf"|\+=|=\s*{name}\s*\+)"
    )
    files: dict[str, None] = {}
    while frame is not None:
        files[frame.f_code.co_filename] = None
        frame = frame.f_back
    for module in list(sys.modules.values()):
        files[getattr(module, "__file__", None) or ""] = None
    for file in files:
        if file and is_users(file):
            for number, text in enumerate(linecache.getlines(file), 1):
                if adds.search(text):
                    return CodeLine(file, number, "")
    return None


class LineWatch:
    """Looks at sizes after each line of the user's code, until :meth:`stop`: what makes them grow.

    ``measures`` : one for each suspect. ``frame`` : the innermost one; it and those above are traced too.

    Raises RuntimeError: somebody else traces already, a debugger or a coverage tool.
    """

    def __init__(self, measures: list[Measure], frame: types.FrameType | None) -> None:
        if sys.gettrace() is not None:
            raise RuntimeError("another tracer is at work")
        self._measures = measures
        self._frames: list[types.FrameType] = []
        self._last: tuple[types.CodeType, int] | None = None
        self._n_events = 0
        self.grew: list[dict[CodeLine, int]] = [{} for _ in measures]
        """For each suspect: by how much it grew at which line."""
        self.own_s = 0.0
        """Seconds that measuring took."""
        if frame is None:
            return
        self._sizes = [measure(frame) for measure in measures]
        while frame is not None:
            if is_users(frame.f_code.co_filename):
                frame.f_trace = self._on_line
                self._frames.append(frame)
            frame = frame.f_back
        sys.settrace(self._on_call)

    def stop(self) -> None:
        """Remove the tracer; a second call does nothing."""
        if not self._measures:
            return
        # only ours: somebody may have set another one since
        if sys.gettrace() == self._on_call:
            sys.settrace(None)
        for frame in self._frames:
            frame.f_trace = None
        self._frames.clear()
        self._measures.clear()

    def _on_call(self, frame: types.FrameType, event: str, arg: Any) -> Any:
        return self._on_line(frame, event, arg) if is_users(frame.f_code.co_filename) else None

    def _on_line(self, frame: types.FrameType, event: str, arg: Any) -> Any:
        self._n_events += 1
        if self._n_events > MAX_EVENTS or not self._measures:
            self.stop()
            return None
        began = thread_time()
        try:
            self._measure(frame)
            self.own_s += thread_time() - began
        except Exception:  # raised here it would be raised in the user's code
            self.stop()
            return None
        if event == "return":
            # what comes next happens on the caller's line, if that is the user's
            back = frame.f_back
            if back is not None and is_users(back.f_code.co_filename):
                self._last = (back.f_code, back.f_lineno)
        else:
            self._last = (frame.f_code, frame.f_lineno)
        return self._on_line

    def _measure(self, frame: types.FrameType) -> None:
        for index, measure in enumerate(self._measures):
            size = measure(frame)
            if size > self._sizes[index] and self._last is not None:
                code, line = self._last
                place = CodeLine(code.co_filename, line, function_name(code))
                grew = self.grew[index]
                grew[place] = grew.get(place, 0) + size - self._sizes[index]
            self._sizes[index] = size

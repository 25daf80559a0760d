"""From recorded frames to lines of the user's code: the one step that reads source files.

The profiler names the first line of a function. The calls that one instance of it made, in order, are held against its
body on disk (``core/source/align.py``): what is left over is the line of the call, or a few lines it can be. The same
walk gives modules the path people write (``layer.3.attention``).
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace

from torchtriage.core.finding import Frame, Note
from torchtriage.core.source.align import Called, align
from torchtriage.core.source.call_sites import flow_of
from torchtriage.core.source.files import SourceFile, Sources
from torchtriage.core.source.flow import Flow, Site
from torchtriage.core.source.functions import Function
from torchtriage.core.trace import Trace
from torchtriage.core.trace.frames import calls_of, frame_of, module_path, module_rows, parse_frame, user_rows

MAX_LINES = 5
"""More candidate lines than these help nobody."""
MAX_FRAMES = 400
"""Instances of frames examined for one trace: findings are few, stacks are short."""


@dataclass(frozen=True)
class _Found:
    """Where a call was made: its possible sites, and whether the order of calls agreed."""

    sites: tuple[Site, ...] = ()
    ordered: bool = False
    function: Function | None = None
    number: int = 0
    """How many other modules were called from the same site before."""

    @property
    def lines(self) -> tuple[int, ...]:
        return tuple(sorted({site.line for site in self.sites}))

    @property
    def exact(self) -> bool:
        return self.ordered and len(self.lines) == 1


class Locator:
    """Finds the lines of one trace's frames in the sources on this disk."""

    def __init__(self, roots: Iterable[str | os.PathLike[str]] = (".",), *, confined: bool = False) -> None:
        """Look for files below ``roots`` and, unless ``confined``, where the recording says they were."""
        self.sources = Sources(roots, confined=confined)
        self._known: dict[tuple[int, int], _Found] = {}
        self._flows: dict[Function, Flow | None] = {}
        self._unlike: dict[str, str] = {}

    def stack(self, trace: Trace, row: int) -> tuple[Frame, ...]:
        """Return the user's frames around a host row, innermost first, with lines where known."""
        out = []
        for above, below in user_rows(trace, row):
            frame = frame_of(trace, above, below)
            if below >= 0 and not frame.exact:
                found = self._find(trace, above, below)
                if found.exact:
                    frame = replace(frame, line=found.lines[0], exact=True, lines=found.lines)
                elif len(found.lines) <= MAX_LINES:
                    frame = replace(frame, lines=found.lines)
            out.append(frame)
        return tuple(out)

    def module(self, trace: Trace, row: int) -> str:
        """Return the module path around a host row as its attributes are named, else by class."""
        rows = module_rows(trace, row)
        names = [self._attribute(trace, row) for row in rows[1:]]
        if names and all(names):
            return ".".join(name for name in names if name is not None)
        return module_path(trace, row)

    def notes(self) -> tuple[Note, ...]:
        """Return what was found on disk and could not be used, and why."""
        if not self._unlike:
            return ()
        reasons = [f"{file}: {why}" for file, why in sorted(self._unlike.items())]
        more = f", and {len(reasons) - 3} more" if len(reasons) > 3 else ""
        return (
            Note(
                "source-differs",
                "info",
                f"lines are those of functions, not of calls, in {'; '.join(reasons[:3])}{more}",
                "name the folder of the recorded version with --source",
                {"files": len(reasons)},
            ),
        )

    # -- one call --------------------------------------------------------------------------

    def _find(self, trace: Trace, row: int, below: int) -> _Found:
        key = (row, below)
        if key not in self._known:
            full = len(self._known) >= MAX_FRAMES
            self._known[key] = _Found() if full else self._search(trace, row, below)
        return self._known[key]

    def _search(self, trace: Trace, row: int, below: int) -> _Found:
        frame = parse_frame(trace.name_of(row))
        if frame is None:
            return _Found()
        file, function, resumed = self._function(frame)
        if file is None or function is None or file.tree is None:
            return _Found()
        calls = calls_of(trace, row, below)
        index = next((index for index, call in enumerate(calls.calls) if call.row == below), None)
        if index is None:
            return _Found()
        word = [Called(call.kind, call.name, call.file, call.line) for call in calls.calls]
        if function not in self._flows:
            try:
                self._flows[function] = flow_of(function, file.tree)
            except RecursionError:
                self._flows[function] = None
        flow = self._flows[function]
        if flow is None:
            return _Found()
        # modules called before say which round of a loop this one is
        modules = [i for i, call in enumerate(calls.calls[:index]) if call.kind == "module"]
        found = align(
            flow,
            word,
            wanted=[*modules[-1000:], index],
            resumed_line=frame.line if resumed else None,
            cut_start=calls.before,
            cut_end=calls.after,
        )
        name = trace.name_of(below)
        rounds = {
            trace.name_of(calls.calls[i].row): None
            for i in range(index)
            if found.sites[i] and found.sites[i] == found.sites[index]
        }
        number = list(rounds).index(name) if name in rounds else len(rounds)
        return _Found(found.sites[index], found.ordered, function, number)

    def _function(self, frame: Frame) -> tuple[SourceFile | None, Function | None, bool]:
        """Return the file and function of a frame, and whether it was entered in the middle."""
        files = self.sources.find(frame.file)
        for file in files:
            starting = file.starting(frame.function, frame.line)
            if len(starting) == 1:
                module = frame.function == "<module>"
                return file, starting[0], module and frame.line > 1
        for file in files:
            # open when the recording began, or a generator that goes on: the line it stands on
            spanning = file.spanning(frame.function, frame.line)
            if len(spanning) == 1 and not file.starting(frame.function, frame.line):
                return file, spanning[0], True
        for file in files[:1]:
            self._unlike.setdefault(
                frame.file, file.reason or f"no function {frame.function} starts at line {frame.line} of {file.path}"
            )
        return None, None, False

    # -- modules ---------------------------------------------------------------------------

    def _attribute(self, trace: Trace, row: int) -> str | None:
        """Return how the enclosing module calls the module of a row: ``attention``, ``layer.3``."""
        below, above = row, int(trace.frames.parent[row])
        while above >= 0:
            frame = parse_frame(trace.name_of(above))
            if frame is None:
                return None
            if frame.file.endswith("torch/nn/modules/container.py") and frame.function == "forward":
                # Sequential: one call for each element, in order
                calls = [call for call in calls_of(trace, above, below).calls if call.kind == "module"]
                return next((str(i) for i, call in enumerate(calls) if call.row == below), None)
            found = self._find(trace, above, below)
            if not found.exact or len(found.sites) != 1 or found.function is None:
                return None
            callee = found.sites[0].callee
            if not callee.startswith("super()"):
                return self._written(found)
            # a subclass that calls its parent's __call__ stands between
            below, above = above, int(trace.frames.parent[above])
        return None

    def _written(self, found: _Found) -> str | None:
        site = found.sites[0]
        assert found.function is not None
        if site.callee.startswith("self."):
            name = site.callee[len("self.") :]
            return name if name.replace(".", "").replace("_", "").isalnum() else None
        looped = _loops(found.function).get(site.callee)
        if looped is None:
            return None
        # for block in self.layer: block(x)
        return f"{looped}.{found.number}"


def _loops(function: Function) -> dict[str, str]:
    """Return loop variables over attributes of ``self``: ``{"block": "layer"}``."""
    found: dict[str, str] = {}
    seen: set[str] = set()
    for node in ast.walk(function.node):
        if not isinstance(node, ast.For | ast.comprehension):
            continue
        target, what = node.target, node.iter
        numbered = isinstance(what, ast.Call) and ast.unparse(what.func) == "enumerate"
        if numbered and isinstance(what, ast.Call) and isinstance(target, ast.Tuple):
            target, what = target.elts[-1], what.args[0]
        if isinstance(target, ast.Name):
            text = ast.unparse(what)
            if target.id in seen:
                found.pop(target.id, None)
            elif text.startswith("self.") and text.replace(".", "").replace("_", "").isalnum():
                found[target.id] = text[len("self.") :]
            seen.add(target.id)
    return found

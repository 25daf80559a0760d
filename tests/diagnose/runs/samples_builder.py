"""Makes what the stack sampler would have written of a program, look by look."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

from torchtriage.core.source.files import Sources
from torchtriage.diagnose.runs.account import SampledLoop, sampled_loop
from torchtriage.diagnose.runs.recorded_host import HostShares
from torchtriage.diagnose.runs.samples import Samples, read_samples
from torchtriage.diagnose.runs.source_view import SourceView

MAIN, OTHER = 1, 2
MS = 1_000_000


class SamplesBuilder:
    """Looks at a program given as text; lines are named by what they begin with.

    ``called`` : what a line with several calls stands at, or another expression.
    """

    def __init__(self, folder: Path, source: str, called: str = "") -> None:
        self.called = called
        self.folder = folder
        self.lines = source.splitlines()
        self.tree = ast.parse(source)
        (folder / "train.py").write_text(source)
        self.frames: list[list[Any]] = []
        self.stacks: list[list[int]] = []
        self.looks: tuple[list[int], list[int], list[int]] = ([], [], [])
        self.marks: tuple[list[int], list[int], list[int]] = ([], [], [])
        self.states: list[tuple[int, str]] = []
        self.collections: list[tuple[int, int, int]] = []
        self.rss: tuple[list[int], ...] = ([], [], [], [])
        self.now = 1_000 * MS

    def look(self, *lines: str, below: tuple[str, ...] = (), ms: float = 4, thread: int = MAIN) -> None:
        """Stand for ``ms`` in the last of these lines, called from the one before; ``below`` is what it has called."""
        self._look([*map(self._user, lines), *map(self._library, below)], ms, thread)

    def between(self, *lines: str, below: tuple[str, ...], inner: str, ms: float = 4, thread: int = MAIN) -> None:
        """Stand for ``ms`` in a line that a library calls, which these lines have called."""
        self._look([*map(self._user, lines), *map(self._library, below), self._user(inner)], ms, thread)

    def _look(self, stack: list[int], ms: float, thread: int) -> None:
        if thread == MAIN:
            self.now += round(ms * MS)
        self.stacks.append(list(reversed(stack)))
        for column, value in zip(self.looks, (self.now, thread, len(self.stacks) - 1), strict=True):
            column.append(value)

    def step(self, state: str = "off") -> None:
        """End a step and begin the next."""
        for column, value in zip(self.marks, (self.now, self.now, MAIN), strict=True):
            column.append(value)
        if not self.states or self.states[-1][1] != state:
            self.states.append((self.now, state))

    def resident(self, megabytes: float, system_ms: float = 0.0, faults: int = 0) -> None:
        """Note the resident set, and the system time and page faults so far."""
        values = self.now, round(megabytes * (1 << 20)), round(system_ms * MS), faults
        for column, value in zip(self.rss, values, strict=True):
            column.append(value)

    def _add(self, frame: list[Any]) -> int:
        if frame not in self.frames:
            self.frames.append(frame)
        return self.frames.index(frame)

    def _user(self, text: str) -> int:
        number = next(at for at, line in enumerate(self.lines, 1) if line.strip().startswith(text))
        function, first = "<module>", 1
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef) and node.lineno <= number <= (node.end_lineno or 0):
                function, first = node.name, node.lineno
        kinds = ast.expr | ast.AugAssign
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, kinds) and node.lineno == number]
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        named: list[ast.expr | ast.AugAssign] = [call for call in calls if ast.unparse(call.func) == self.called]
        named += [node for node in nodes if ast.unparse(node) == self.called]
        where: list[Any] = [number, None, None, None]
        if named or calls:
            node = (named or calls)[0]
            where = [number, node.end_lineno, node.col_offset, node.end_col_offset]
        return self._add([str(self.folder / "train.py"), function, first, *where])

    def _library(self, word: str) -> int:
        path, _, function = word.partition(":")
        return self._add([str(Path("/venv/lib/python3.11/site-packages", path)), function, 1, 1, None, None, None])

    def samples(self) -> Samples:
        """Return it all as it is read."""
        path = self.folder / "samples-1.json"
        facts = {
            "main_thread": MAIN,
            "started_ns": 1_000 * MS,
            "process_started_ns": 0,
            "ended_ns": self.now,
            "frames": self.frames,
            "stacks": self.stacks,
            "looks": self.looks,
            "collections": self.collections,
            "rss": self.rss,
            "marks": self.marks,
            "states": self.states,
            "torch": {"threads": 1, "cores": 4},
            "threads": {MAIN: "MainThread", OTHER: "dashboard"},
        }
        path.write_text(json.dumps(facts))
        read = read_samples(path, [str(self.folder)])
        assert read is not None
        return read

    @property
    def view(self) -> SourceView:
        """The program's source."""
        return SourceView(Sources([self.folder]))

    def loop(
        self, *, boundary: str = "", operators: float | None = None, results: float = 0.0, queue: float = 0.0
    ) -> SampledLoop | None:
        """Return the loop, with the call at the line ``boundary`` for what ends a step.

        ``operators``, ``results``, ``queue`` : what a recording knows of the host; None without one.
        """
        where = ("", "", 0)
        if boundary:
            frame = self.frames[self._user(boundary)]
            where = ("train.py", frame[1], frame[3])
        host = None if operators is None else HostShares(operators, results, queue)
        return sampled_loop(self.samples(), self.view, where, host)

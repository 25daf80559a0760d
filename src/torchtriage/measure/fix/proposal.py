"""What an edit is given, a place in the source that a finding points at, and what it returns, a change to try."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, wraps
from itertools import islice, takewhile

from torchtriage.core.finding import Finding
from torchtriage.diagnose.lint.edits import SourceEdit
from torchtriage.diagnose.lint.facts import Module, SourceCall, SourceFunction, SourceLoop
from torchtriage.diagnose.lint.syntax import Function

Loop = ast.For | ast.AsyncFor | ast.While


@dataclass(frozen=True)
class Proposal:
    """A change of one file that may save time; the trial says whether it does, and whether results stay.

    ``what`` : what it does, as the subject line of a commit would say. ``changes`` : how results change on purpose
    (evaluation mode, another precision), empty where they must stay. ``per_run`` : the time is saved once a run, not in
    each step.
    """

    edits: tuple[SourceEdit, ...]
    what: str
    changes: str = ""
    per_run: bool = False


@dataclass(frozen=True, eq=False)
class Site:
    """A line of a file that a finding points at, or that calls what it points at.

    ``module`` : what lint knows of the file: tree, text, calls, loops, values.
    """

    module: Module
    line: int
    finding: Finding

    @cached_property
    def statement(self) -> ast.stmt | None:
        """The innermost statement at the line."""
        at = [node for node in ast.walk(self.module.tree) if isinstance(node, ast.stmt) and self.holds(node)]
        return max(at, key=lambda node: (node.lineno, node.col_offset), default=None)

    @cached_property
    def function(self) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """The function around the line."""
        nodes = [self.statement, *self.module.outward(self.statement)]
        return next((node for node in nodes if isinstance(node, Function)), None)

    @property
    def outward(self) -> Iterator[ast.AST]:
        """The statement at the line and what is around it in its function, innermost first."""
        nodes = [self.statement] if self.statement is not None else []
        return takewhile(lambda node: not isinstance(node, Function), [*nodes, *self.module.outward(self.statement)])

    @cached_property
    def known_function(self) -> SourceFunction | None:
        """What lint knows of the function around the line."""
        return next((item for item in self.module.functions if item.node is self.function), None)

    @property
    def scope(self) -> ast.AST:
        """The function around the line, or the whole file."""
        return self.function or self.module.tree

    def holds(self, node: ast.expr | ast.stmt) -> bool:
        """Return whether the line is one of a node's."""
        return node.lineno <= self.line <= (node.end_lineno or node.lineno)

    @cached_property
    def calls(self) -> list[SourceCall]:
        """The calls of which the line is one."""
        return [call for call in self.module.calls if self.holds(call.node)]

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """The loops whose body holds the line, or that begin at it, in its function; innermost first."""
        in_class = takewhile(lambda node: not isinstance(node, ast.ClassDef), self.outward)
        return tuple(node for node in in_class if isinstance(node, Loop))

    @cached_property
    def for_loops(self) -> list[ast.For]:
        """Of these loops those that go over something."""
        return [loop for loop in self.loops if isinstance(loop, ast.For)]

    @cached_property
    def step_loop(self) -> Loop | None:
        """The innermost loop of steps around the line, in its function; its innermost loop where none is known."""
        known: dict[ast.AST, SourceLoop] = {loop.node: loop for loop in self.module.loops}
        steps = [node for node in self.loops if node in known and known[node].steps]
        return next(iter([*steps, *self.loops]), None)


def first_only(propose: Callable[[Site], Iterator[Proposal | None]]) -> Callable[[Site], Iterator[Proposal]]:
    """Let an edit propose the first change that it finds, and no other."""

    @wraps(propose)
    def only(site: Site) -> Iterator[Proposal]:
        return islice((item for item in propose(site) if item is not None and item.edits), 1)

    return only

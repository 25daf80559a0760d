"""An abstract run of one turn: its statements in order, and the functions of the file that it calls."""

import ast
from collections.abc import Iterable

from torchtriage.diagnose.lint.conditions import ends, is_rare, is_switch, leaves
from torchtriage.diagnose.lint.facts import SourceFunction
from torchtriage.diagnose.lint.syntax import names_in
from torchtriage.diagnose.lint.turns import FIXED, VARIES, Piece, Reading, Turn
from torchtriage.diagnose.lint.work_expressions import MANY, Expressions, elements
from torchtriage.diagnose.lint.work_syntax import (
    appended,
    bound_names,
    by_element,
    is_long,
    is_short,
    looks_up,
    parameters,
)
from torchtriage.diagnose.lint.work_words import CACHES, COSTLY

_DEPTH = 8
_PASSES = 3


def lasting_work(turn: Turn) -> list[Piece]:
    """Return the largest pieces of a turn's work that stay the same, with what they cost."""
    for _ in range(_PASSES):
        before = len(turn.mutated)
        turn.readings.clear()
        reading = _read(turn)
        if len(turn.mutated) == before:
            break
    return [piece for piece in reading.pieces if _in_every_call(turn, piece)]


def _in_every_call(turn: Turn, piece: Piece) -> bool:
    """Return whether a piece of a function stays the same in every call that a turn makes of it."""
    return all(
        reading.lasts or any(piece.node is part.node for part in reading.pieces)
        for (function, *_), reading in turn.readings.items()
        if function is piece.function
    )


def _read(turn: Turn) -> Reading:
    """Return what one turn does."""
    if turn.step is not None:
        given = frozenset(parameters(turn.step.node)) - {"self"}
        return _Frame(turn, None).visit(turn.step, given, own=True)
    assert turn.loop is not None
    node = turn.loop.node
    frame = _Frame(turn, turn.loop.function, top=True)
    frame.levels = dict.fromkeys(turn.shared | turn.mutated, VARIES)
    if isinstance(node, ast.For | ast.AsyncFor):
        for name in names_in(node.target):
            frame.levels[name] = VARIES if turn.axis in (None, name) else FIXED
    if isinstance(node, ast.For | ast.AsyncFor | ast.While):
        frame.block(node.body)
    return frame.reading()


class _Frame(Expressions):
    """One function in one turn.

    ``memo`` : whether what follows runs only where a cache lacks the result. ``leaves`` : whether a condition may end
    the loop around what is read.
    """

    def __init__(self, turn: Turn, function: SourceFunction | None, *, own: bool = True, top: bool = False) -> None:
        super().__init__(turn, function, own=own, top=top)
        self.result = FIXED
        self.memo = self.leaves = False

    def reading(self) -> Reading:
        """Return what the function does as a whole."""
        weight = sum(piece.weight for piece in self.pieces)
        return Reading(self.result, weight, self.effect, self.pieces, frozenset(self.mutates))

    def visit(self, function: SourceFunction, varying: frozenset[str], *, own: bool) -> Reading:
        """Return what a call of a function does, where some of what it is given varies."""
        turn, key = self.turn, (function, varying, own)
        if key in turn.readings:
            return turn.readings[key]
        if function in turn.active or len(turn.active) >= _DEPTH:
            return Reading(VARIES, effect=True)
        turn.active.add(function)
        frame = _Frame(turn, function, own=own)
        frame.levels = {name: VARIES if name in varying else FIXED for name in parameters(function.node)}
        frame.block(function.node.body)
        turn.active.discard(function)
        reading = frame.reading()
        if function.is_generator:
            reading.level = VARIES
        if any(CACHES.search(decorator) for decorator in function.decorators):
            reading = Reading(reading.level, effect=reading.effect)
        turn.readings[key] = reading
        return reading

    def block(self, body: Iterable[ast.stmt]) -> None:
        """Go through statements in order."""
        for statement in body:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        """Go through one statement."""
        if isinstance(node, ast.Assign):
            reading = self._whole(node.value)
            for target in node.targets:
                self.bind(target, reading, node.value)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self.bind(node.target, self._whole(node.value), node.value)
        elif isinstance(node, ast.AugAssign):
            reading = self._whole(node.value)
            self.change(node.target, reading.level, rebinds=isinstance(node.target, ast.Name))
        elif isinstance(node, ast.Expr):
            before = len(self.pieces)
            self._whole(node.value)
            # what is called for what it does is no result that could be used again; what a list is given is
            given = appended(node.value)
            self.pieces[before:] = [
                piece._replace(node=given) if piece.node is node.value and given is not None else piece
                for piece in self.pieces[before:]
                if piece.node is not node.value or given is not None
            ]
        elif isinstance(node, ast.Return):
            level = self._whole(node.value).level if node.value is not None else FIXED
            self.result = max(self.result, level, VARIES if self.conditional else FIXED)
            self.leaves = self.leaves or bool(self.conditional)
        elif isinstance(node, ast.If):
            self._if(node)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
            self._inner_loop(node)
        elif isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                reading = self.eval(item.context_expr)
                if item.optional_vars is not None:
                    self.bind(item.optional_vars, Reading(VARIES), None)
            self.block(node.body)
        elif isinstance(node, ast.Try):
            self.block(node.body)
            for handler in node.handlers:
                self._aside(handler.body)
            self.block(node.orelse)
            self.block(node.finalbody)
        elif isinstance(node, ast.Break | ast.Continue):
            self.leaves = self.leaves or bool(self.conditional)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self.levels[node.name] = FIXED
        elif isinstance(node, ast.Global | ast.Nonlocal):
            self.effect = True
        elif isinstance(node, ast.Match):
            self.eval(node.subject)
            for case in node.cases:
                self._aside(case.body)

    def _whole(self, node: ast.expr) -> Reading:
        """Read an expression that stands by itself, and keep it when it stays the same."""
        reading = self.eval(node)
        self.effect = self.effect or reading.effect
        self.varied += not reading.lasts
        self._keep(node, reading)
        return reading

    def _keep(self, node: ast.expr, reading: Reading) -> None:
        if not self.conditional and not self.memo:
            many = MANY if self.inner else 1
            pieces = reading.pieces_at(node, self.function)
            self.pieces += [piece._replace(weight=piece.weight * many) for piece in pieces]

    def _if(self, node: ast.If) -> None:
        test = self.eval(node.test)
        self.effect = self.effect or test.effect
        varies = test.level != FIXED
        self.varied += varies
        if not varies:
            self._keep(node.test, test)
        seldom = is_rare(node.test) or is_switch(node.test) or ends(node.body)
        before = dict(self.levels)
        if varies or seldom:
            self._aside(node.body)
        else:
            self.block(node.body)
        after, self.levels = self.levels, before
        if varies or ends(node.orelse) or is_rare(node.test, negated=True):
            self._aside(node.orelse)
        else:
            self.block(node.orelse)
        for name, level in after.items():
            self.levels[name] = max(self.levels.get(name, level), level)
        if varies and leaves(node.body) and not node.orelse and looks_up(node):
            self.memo = True

    def _aside(self, body: list[ast.stmt]) -> None:
        """Go through what does not run in every turn."""
        self.conditional += 1
        self.block(body)
        self.conditional -= 1

    def _inner_loop(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        reading = self.eval(node.test) if isinstance(node, ast.While) else self._whole(node.iter)
        self.effect = self.effect or reading.effect
        assigned = bound_names(node)
        many = not is_short(node)
        left, self.leaves = self.leaves, False
        saved = self.pieces
        for _ in range(2):
            self.pieces, before = [], self.varied
            if isinstance(node, ast.For | ast.AsyncFor):
                self.bind(node.target, elements(self.module, node.iter, reading), node.iter)
            self.inner += many
            self.block(node.body)
            self.inner -= many
        if self.leaves or reading.level != FIXED:
            for name in assigned:
                self.levels[name] = VARIES
        self.leaves = left
        inside = self.pieces
        if reading.lasts and before == self.varied:
            # all of it stays the same
            nested = self.inner > 0 and is_long(node)
            weight = sum(piece.weight for piece in inside) + (COSTLY if many and (nested or by_element(node)) else 0)
            inside = [Piece(node, weight, self.function)] if weight else []
        self.pieces = saved + ([] if self.conditional or self.memo else inside)
        self.block(node.orelse)

"""Which names hold a tensor that torch has made, at a line of a program."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Sequence
from typing import Any

from torchtriage.diagnose.lint import torch_names
from torchtriage.diagnose.lint.syntax import path_of, set_by, stored_names, walk
from torchtriage.diagnose.lint.work_syntax import bound_names, local_names

_TRIES: Any = (ast.Try, *([ast.TryStar] if sys.version_info >= (3, 11) else []))
Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
Held = dict[str, bool]
"""Names that hold a tensor of torch's making, and with False those that hold an array of NumPy's."""

_TENSOR_CLASS = re.compile(r"torch\.(cuda\.)?\w*Tensor$")
_FUNCTIONAL = re.compile(r"^(F|nn\.functional)\.")
_NO_TENSOR = (torch_names.HOST_METHODS | torch_names.HOST_ATTRIBUTES | {"item", "tolist"}) - {"type"}
"""Methods and attributes of a tensor that are none; ``x.type(...)`` is one."""


def is_tensor(node: ast.expr | None, held: Held) -> bool | None:
    """Whether an expression is a tensor, by what it begins with: a call of torch's, or a name that holds one.

    False for an array of NumPy's; None where it is neither, or not known.
    """
    if isinstance(node, ast.Name):
        return held.get(node.id)
    if isinstance(node, ast.BinOp):
        sides = is_tensor(node.left, held), is_tensor(node.right, held)
        return True if True in sides else False if False in sides else None
    if isinstance(node, ast.Call):
        if _makes_tensor(node):
            return True
        return is_tensor(node.func, held) if isinstance(node.func, ast.Attribute) else None
    if isinstance(node, ast.Attribute):
        if node.attr == "numpy" or path_of(node.value) in ("np", "numpy"):
            return False
        return None if node.attr in _NO_TENSOR else is_tensor(node.value, held)
    return is_tensor(node.value, held) if isinstance(node, ast.Subscript) else None


def _makes_tensor(call: ast.Call) -> bool:
    """Whether a call is one of torch's that return a tensor, by its name."""
    name = _FUNCTIONAL.sub("torch.nn.functional.", path_of(call.func))
    function = torch_names.TENSOR_SPACES.match(name) is not None and torch_names.HOST_CALLS.match(name) is None
    return function or _TENSOR_CLASS.match(name) is not None


class Flow:
    """Runs a function, or a file, on what its names hold.

    ``held`` : what they held when each statement was last reached. ``end`` : what they hold once all has run.
    """

    def __init__(self, scope: Scope, around: Held) -> None:
        self.held: dict[ast.stmt, Held] = {}
        self._left: list[Held] = []  # at each `return` and `raise`
        self._turned: list[Held] = []  # at each `continue` and `break` of the innermost loop
        own = frozenset() if isinstance(scope, ast.Module) else local_names(scope)
        last = self._run(scope.body, {name: tensor for name, tensor in around.items() if name not in own})
        self.end = _either(last, *self._left) or {}

    def _run(self, body: Sequence[ast.stmt], held: Held | None) -> Held | None:
        """Return what names hold after statements; None where that is never reached."""
        for node in body:
            if held is None:
                break
            self.held[node] = held
            held = self._after(node, held)
        return held

    def _after(self, node: ast.stmt, held: Held) -> Held | None:
        if isinstance(node, ast.For | ast.AsyncFor | ast.While):
            return self._run(node.orelse, self._turns(node, held))
        held = _assigned(node, held)
        if isinstance(node, ast.Return | ast.Raise):
            self._left.append(held)
            return None
        if isinstance(node, ast.Continue | ast.Break):
            self._turned.append(held)
            return None
        if isinstance(node, ast.If):
            return _either(self._run(node.body, held), self._run(node.orelse, held))
        if isinstance(node, ast.With | ast.AsyncWith):
            return self._run(node.body, held)
        if isinstance(node, ast.Match):
            return _either(
                held, *(self._run(case.body, _without(held, bound_names(case.pattern))) for case in node.cases)
            )
        if isinstance(node, _TRIES):
            done = self._run(node.body, held)
            failed = _either(held, done) or {}
            caught = [self._run(handler.body, _without(failed, {handler.name or ""})) for handler in node.handlers]
            through = _either(self._run(node.orelse, done), *caught)
            # behind a `return` it is run, and what follows is not
            last = self._run(node.finalbody, failed if through is None else through)
            return None if through is None else last
        return held

    def _turns(self, loop: ast.For | ast.AsyncFor | ast.While, held: Held) -> Held | None:
        outer, self._turned = self._turned, []
        after: Held | None = held
        for _ in range(2):  # a turn begins with what the one before has left
            before = after
            after = _either(held, self._run(loop.body, _assigned(loop, before or {})), *self._turned)
            if after == before:
                break
        self._turned = outer
        return after


def _assigned(node: ast.stmt, held: Held) -> Held:
    """Return what names hold after a statement, of one with a body after its head."""
    heads = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr | ast.withitem)]
    inner = [part for head in heads for part in walk(head) if isinstance(part, ast.NamedExpr | ast.withitem)]
    for part in [*inner, node]:
        for target, value in set_by(part):
            names, tensor = stored_names(target), is_tensor(value, held)
            held = _without(held, names)
            held |= {} if tensor is None else dict.fromkeys(names, tensor)
    if isinstance(node, ast.Import | ast.ImportFrom):
        return _without(held, {(alias.asname or alias.name).partition(".")[0] for alias in node.names})
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return _without(held, {node.name})
    return _without(held, bound_names(node)) if isinstance(node, ast.Delete) else held


def _without(held: Held, names: set[str]) -> Held:
    return {name: tensor for name, tensor in held.items() if name not in names}


def _either(*ways: Held | None) -> Held | None:
    """Return what names hold where ways meet: an array outweighs a tensor, and a tensor what is not known."""
    some = [way for way in ways if way is not None]
    names = {name for way in some for name in way}
    return {name: all(way.get(name, True) for way in some) for name in names} if some else None

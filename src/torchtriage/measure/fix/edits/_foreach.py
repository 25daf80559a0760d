"""Arithmetic on one tensor after another, written as arithmetic on lists of tensors (``torch._foreach_*``)."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field

from torchtriage.diagnose.lint.syntax import names_in, path_of
from torchtriage.diagnose.lint.torch_names import words

OPERATORS: dict[type[ast.operator], str] = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}
UNARY = words(
    "abs ceil cos erf exp expm1 floor log log10 log1p log2 neg reciprocal round rsqrt sigmoid sign sin sqrt tanh"
)
BINARY = words("add clamp_max clamp_min copy div lerp maximum minimum mul pow sub")
TERNARY = words("addcdiv addcmul")
ARITY = {**dict.fromkeys(UNARY, 1), **dict.fromkeys(BINARY, 2), **dict.fromkeys(TERNARY, 3)}
"""How many operands each takes."""
OPTIONS = words("alpha non_blocking value weight")


class NotListsError(Exception):
    """Something that no operator on lists computes."""


@dataclass
class Lists:
    """Translates expressions and statements; ``names`` : the list that stands for each variable of the loop.

    ``entries`` : makes the list of an attribute or an entry (``p.grad``, ``p.data``, ``state[k]``). ``source`` : gives
    the text of a node. ``free`` : gives a name that nothing has. ``rows`` : the statements so far.
    """

    torch: str
    names: dict[str, str]
    source: Callable[[ast.AST], str]
    entries: Callable[[ast.expr], str]
    free: Callable[[str], str]
    rows: list[str] = field(default_factory=list)

    def is_list(self, node: ast.AST) -> bool:
        """Return whether an expression is another one for each tensor."""
        return bool(names_in(node) & set(self.names))

    def expression(self, node: ast.expr) -> str:
        """Return an expression over lists. Raises NotListsError."""
        if not self.is_list(node):
            return self.source(node)
        if isinstance(node, ast.Name):
            return self.names[node.id]
        if isinstance(node, ast.Attribute | ast.Subscript) or without_history(node) is not None:
            return self.entries(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return self._call("neg", [self.expression(node.operand)])
        if isinstance(node, ast.BinOp):
            return self._binary(node)
        if isinstance(node, ast.Call):
            return self._called(node)
        raise NotListsError

    def statement(self, node: ast.stmt) -> None:
        """Add the rows for a statement. Raises NotListsError."""
        if (
            isinstance(node, ast.AugAssign)
            and type(node.op) in OPERATORS
            and not isinstance(node.target, ast.Subscript)
        ):
            self._in_place(OPERATORS[type(node.op)], self.expression(node.target), [node.value], [])
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self._chain(node.value)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name) and self.is_list(node.value) and target.id not in self.names:
                self.rows.append(f"{target.id} = {self.expression(node.value)}")
                self.names[target.id] = target.id
            else:
                raise NotListsError
        else:
            raise NotListsError

    def _binary(self, node: ast.BinOp) -> str:
        left, right = node.left, node.right
        if isinstance(node.op, ast.Pow) and not self.is_list(right):
            return self._call("pow", [self.expression(left), self.source(right)])
        name = OPERATORS.get(type(node.op))
        if name is None:
            raise NotListsError
        if not self.is_list(left):
            if name not in ("add", "mul"):
                raise NotListsError
            left, right = right, left
        first = self.expression(left)
        if name == "div" and self.is_list(right) and isinstance(right, ast.BinOp):
            return self._call(name, [first, self._row("denom", self.expression(right))])
        return self._call(name, [first, *self._scaled(name, right)])

    def _scaled(self, name: str, node: ast.expr) -> list[str]:
        """Return the second operand, a factor as ``alpha`` where the operator has one."""
        term = self._term(node) if name in ("add", "sub") else None
        return [term[1], f"alpha={term[0]}"] if term is not None else [self.expression(node)]

    def _called(self, node: ast.Call) -> str:
        if not isinstance(node.func, ast.Attribute):
            raise NotListsError
        given = list(node.args) if path_of(node.func.value) == self.torch else [node.func.value, *node.args]
        name = node.func.attr
        if name == "square":
            return self._call("mul", [self.expression(given[0])] * 2)
        if not given or not self.is_list(given[0]):
            raise NotListsError
        return self._call(name, [self.expression(given[0]), *self._others(name, given[1:], node.keywords)])

    def _others(self, name: str, given: list[ast.expr], keywords: list[ast.keyword]) -> list[str]:
        """Return what an operator on lists is given beside its first operand."""
        if name in ("add", "sub") and len(given) == 1 and not keywords:
            return self._scaled(name, given[0])
        weighted = name == "lerp" and len(given) == 2
        if 1 + len(given) != ARITY.get(name, 0) + weighted or any(item.arg not in OPTIONS for item in keywords):
            raise NotListsError
        if any(self.is_list(item.value) for item in keywords):
            raise NotListsError
        options = (f"{item.arg}={self.source(item.value)}".removeprefix("weight=") for item in keywords)
        return [*map(self.expression, given), *options]

    def _chain(self, node: ast.Call) -> None:
        """Add the rows of ``m.mul_(a).add_(g, alpha=b)``."""
        links: list[ast.Call] = []
        base: ast.expr = node
        while isinstance(base, ast.Call) and isinstance(base.func, ast.Attribute) and base.func.attr.endswith("_"):
            links.insert(0, base)
            base = base.func.value
        if not links or not self.is_list(base):
            raise NotListsError
        target = self.expression(base)
        for link in links:
            assert isinstance(link.func, ast.Attribute)
            self._in_place(link.func.attr[:-1], target, link.args, link.keywords)

    def _in_place(self, name: str, target: str, given: list[ast.expr], keywords: list[ast.keyword]) -> None:
        if name == "zero" and not given:
            self.rows.append(f"{self.torch}._foreach_zero_({target})")
            return
        if name == "copy" and given:
            given = [_not_cloned(given[0]), *given[1:]]
            if self._mixed(target, given[0]):
                return
        if name in ("clamp", "clip"):
            self._clamp(target, given, keywords)
            return
        parts = self._others(name, given, keywords)
        if parts and "(" in parts[0] and parts[0].startswith(f"{self.torch}._foreach") and len(parts[0]) > 60:
            parts[0] = self._row("update", parts[0])
        self.rows.append(f"{self.torch}._foreach_{name}_({', '.join([target, *parts])})")

    def _clamp(self, target: str, given: list[ast.expr], keywords: list[ast.keyword]) -> None:
        ends = dict(zip(("min", "max"), given, strict=False)) | {item.arg: item.value for item in keywords}
        if any(self.is_list(end) for end in ends.values()):
            raise NotListsError
        for name, end in ends.items():
            if ast.unparse(end) != "None":
                self.rows.append(f"{self.torch}._foreach_clamp_{name}_({target}, {self.source(end)})")

    def _mixed(self, target: str, node: ast.expr) -> bool:
        """Add the rows of ``t.copy_(a * p + (1 - a) * t)``, which need no list in between."""
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
            return False
        terms = [self._term(part) for part in (node.left, node.right)]
        own = [term for term in terms if term is not None and term[1] == target]
        other = [term for term in terms if term is not None and term[1] != target]
        if len(own) != 1 or len(other) != 1:
            return False
        self.rows.append(f"{self.torch}._foreach_mul_({target}, {own[0][0]})")
        self.rows.append(f"{self.torch}._foreach_add_({target}, {other[0][1]}, alpha={other[0][0]})")
        return True

    def _term(self, node: ast.expr) -> tuple[str, str] | None:
        """Return the factor and the list of ``a * p``."""
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
            return None
        for factor, other in ((node.left, node.right), (node.right, node.left)):
            if not self.is_list(factor) and self.is_list(other):
                return self.source(factor), self.expression(other)
        return None

    def _row(self, name: str, text: str) -> str:
        name = self.free(name)
        self.rows.append(f"{name} = {text}")
        return name

    def _call(self, name: str, given: list[str]) -> str:
        return f"{self.torch}._foreach_{name}({', '.join(given)})"


def without_history(node: ast.expr) -> ast.expr | None:
    """Return ``x`` of ``x.data`` and ``x.detach()``, None for anything else."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "detach":
        return None if node.args else node.func.value
    return node.value if isinstance(node, ast.Attribute) and node.attr == "data" else None


def _not_cloned(node: ast.expr) -> ast.expr:
    """Return what a clone that is only copied from is a clone of."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "clone":
        return node.func.value
    return node

"""Loops over the elements of an array, written as expressions of whole arrays."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import indices, literal, names_in, path_of
from torchtriage.measure.fix.edits._flow import written
from torchtriage.measure.fix.statements import bound

FUNCTIONS = {
    **{
        f"math.{name}": name
        for name in ("sqrt", "exp", "log", "sin", "cos", "tan", "tanh", "floor", "ceil", "log10", "log2")
    },
    **{
        f"numpy.{name}": name
        for name in ("sqrt", "exp", "log", "sin", "cos", "tan", "tanh", "floor", "ceil", "log10", "abs")
    },
    **{
        f"torch.{name}": name
        for name in ("sqrt", "exp", "log", "sin", "cos", "tan", "tanh", "floor", "ceil", "sigmoid", "relu")
    },
    "math.fabs": "abs",
    "abs": "abs",
    "math.hypot": "hypot",
    "math.atan2": "arctan2",
}


class NotElementwiseError(Exception):
    """A loop that is no expression of whole arrays, as far as can be seen."""


@dataclass
class Nest:
    """Loops inside of one another, each over a range; ``body`` : of the innermost, ``library`` : ``np``."""

    module: Module
    loops: list[ast.For]
    body: list[ast.stmt]
    library: str
    is_tensor: bool
    local: set[str] = field(default_factory=set)

    @property
    def names(self) -> list[str]:
        """The variables that count, outermost first."""
        return [loop.target.id for loop in self.loops if isinstance(loop.target, ast.Name)]

    def rows(self) -> list[str]:
        """Return the statements that do all turns at once; raises ``NotElementwiseError``."""
        sums = [item for item in self.body if isinstance(item, ast.AugAssign) and isinstance(item.target, ast.Name)]
        self.local = bound(item for item in self.body if item not in sums)
        stores = written(self.body) - bound(self.body)
        for name in stores:
            for part in self._reads(name):
                if self._index(part.slice) != self._index(self._store(name).slice):
                    raise NotElementwiseError
        end = self.loops[0].end_lineno or 0
        later = [
            node
            for node in ast.walk(self.module.scope(self.loops[0]))
            if isinstance(node, ast.Name) and node.id in {*self.local, *self.names} and node.lineno > end
        ]
        if any(isinstance(node.ctx, ast.Load) and not self._is_bound_again(node) for node in later):
            raise NotElementwiseError
        return [row for statement in self.body for row in self._rows(statement, "")]

    def _is_bound_again(self, node: ast.Name) -> bool:
        end = self.loops[0].end_lineno or 0
        same = self.module.names(node.id, self.module.scope(self.loops[0]))
        return any(isinstance(item.ctx, ast.Store) and end < item.lineno <= node.lineno for item in same)

    def _reads(self, name: str) -> list[ast.Subscript]:
        return [
            part
            for statement in self.body
            for part in ast.walk(statement)
            if isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Load) and path_of(part.value) == name
        ]

    def _store(self, name: str) -> ast.Subscript:
        for statement in self.body:
            for part in ast.walk(statement):
                if (
                    isinstance(part, ast.Subscript)
                    and not isinstance(part.ctx, ast.Load)
                    and path_of(part.value) == name
                ):
                    return part
        raise NotElementwiseError

    def _rows(self, statement: ast.stmt, condition: str) -> list[str]:
        if isinstance(statement, ast.If):
            test = ast.unparse(self.whole(statement.test))
            both = f"({condition}) & ({test})" if condition else test
            if any(isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name) for item in statement.body):
                raise NotElementwiseError
            rows = [row for item in statement.body for row in self._rows(item, both)]
            if not statement.orelse:
                return rows
            return self._either(statement, test, condition)
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], self.whole(statement.value)
            text = ast.unparse(value)
            if isinstance(target, ast.Name) and not condition:
                return [f"{target.id} = {text}"]
            if isinstance(target, ast.Subscript) and set(self.names) <= names_in(target.slice):
                place = self._place(target)
                if condition:
                    text = f"{self.library}.where({condition}, {text}, {self._read(target)})"
                return [f"{place} = {text}"]
        if isinstance(statement, ast.AugAssign) and not condition:
            text = ast.unparse(self.whole(statement.value))
            target = statement.target
            operator = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}.get(type(statement.op), "")
            if isinstance(target, ast.Subscript) and set(self.names) <= names_in(target.slice) and operator:
                return [f"{self._place(target)} {operator}= {text}"]
            varies = names_in(statement.value) & {*self.names, *self.local}
            if (
                isinstance(target, ast.Name)
                and operator == "+"
                and target.id not in names_in(statement.value)
                and varies
            ):
                return [f"{target.id} += ({text}).sum()"]
        raise NotElementwiseError

    def _either(self, statement: ast.If, test: str, condition: str) -> list[str]:
        """Return the row of a condition both of whose branches give one place its value."""
        yes, no = statement.body, statement.orelse
        if condition or len(yes) != 1 or len(no) != 1 or not isinstance(yes[0], ast.Assign):
            raise NotElementwiseError
        target = yes[0].targets[0]
        if isinstance(no[0], ast.If):
            other = self._value(no[0], target)
        elif isinstance(no[0], ast.Assign) and ast.dump(no[0].targets[0]) == ast.dump(target):
            other = ast.unparse(self.whole(no[0].value))
        else:
            raise NotElementwiseError
        place = (
            self._place(target)
            if isinstance(target, ast.Subscript)
            else target.id
            if isinstance(target, ast.Name)
            else ""
        )
        if not place:
            raise NotElementwiseError
        return [f"{place} = {self.library}.where({test}, {ast.unparse(self.whole(yes[0].value))}, {other})"]

    def _value(self, statement: ast.If, target: ast.expr) -> str:
        row = self._either(statement, ast.unparse(self.whole(statement.test)), "")[0]
        if ast.dump(statement.body[0].targets[0]) != ast.dump(target):  # type: ignore[attr-defined]
            raise NotElementwiseError
        return row.partition(" = ")[2]

    def _place(self, target: ast.Subscript) -> str:
        text = self._read(target)
        return text if text.endswith("]") else f"{text}[:]"

    def _read(self, node: ast.Subscript) -> str:
        return ast.unparse(self._element(node))

    # ------------------------------------------------------------------------------------------ expressions

    def whole(self, node: ast.expr) -> ast.expr:
        """Return an expression of one element as one of all of them."""
        if isinstance(node, ast.Constant):
            return node
        if isinstance(node, ast.Name):
            return self._count(node) if node.id in self.names else node
        if not names_in(node) & {*self.names, *self.local}:
            return node
        if isinstance(node, ast.Subscript):
            return self._element(node)
        if isinstance(node, ast.BinOp):
            return ast.BinOp(self.whole(node.left), node.op, self.whole(node.right))
        if isinstance(node, ast.UnaryOp):
            operand = self.whole(node.operand)
            return ast.UnaryOp(ast.Invert() if isinstance(node.op, ast.Not) else node.op, operand)
        if isinstance(node, ast.BoolOp):
            operator = ast.BitAnd() if isinstance(node.op, ast.And) else ast.BitOr()
            first, *rest = (self.whole(value) for value in node.values)
            for value in rest:
                first = ast.BinOp(first, operator, value)
            return first
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], _ORDER):
            return ast.Compare(self.whole(node.left), node.ops, [self.whole(node.comparators[0])])
        if isinstance(node, ast.IfExp):
            return self._call("where", [self.whole(node.test), self.whole(node.body), self.whole(node.orelse)])
        if isinstance(node, ast.Call) and not node.keywords:
            return self._called(node)
        raise NotElementwiseError

    def _called(self, node: ast.Call) -> ast.expr:
        name = self.module.name_of(node.func)
        if name in ("min", "max") and len(node.args) == 2:
            return self._bounded(name, node)
        if name == "float" and len(node.args) == 1:
            return self._cast(self.whole(node.args[0]), "double", "float64")
        if name == "int" and len(node.args) == 1:
            return self._cast(self.whole(node.args[0]), "long", "int64")
        if name in FUNCTIONS:
            function = FUNCTIONS[name]
            if function == "abs":
                return ast.Call(ast.Name("abs"), [self.whole(item) for item in node.args], [])
            if self.is_tensor and function == "arctan2":
                function = "atan2"
            return self._call(function, [self.whole(item) for item in node.args])
        if isinstance(node.func, ast.Attribute) and node.func.attr == "item" and not node.args:
            return self.whole(node.func.value)
        raise NotElementwiseError

    def _bounded(self, name: str, node: ast.Call) -> ast.expr:
        """Return a minimum or maximum; ``min(max(x, a), b)`` is a clip."""
        parts = sorted(node.args, key=lambda item: bool(names_in(item) & {*self.names, *self.local}), reverse=True)
        value, limit = parts
        inner = value if isinstance(value, ast.Call) and not value.keywords else None
        if inner is not None and name == "min" and path_of(inner.func) == "max" and len(inner.args) == 2:
            low = [item for item in inner.args if isinstance(item, ast.Constant)]
            if len(low) == 1 and isinstance(limit, ast.Constant):
                rest = next(item for item in inner.args if item is not low[0])
                if self.is_tensor:
                    return ast.Call(ast.Attribute(self.whole(rest), "clamp"), [low[0], limit], [])
                return self._call("clip", [self.whole(rest), low[0], limit])
        if self.is_tensor and not names_in(limit) & {*self.names, *self.local}:
            bound_ = ast.keyword("max" if name == "min" else "min", limit)
            return ast.Call(ast.Attribute(self.whole(value), "clamp"), [], [bound_])
        return self._call("minimum" if name == "min" else "maximum", [self.whole(item) for item in node.args])

    def _cast(self, value: ast.expr, tensors: str, arrays: str) -> ast.expr:
        if isinstance(value, ast.Constant):
            return value
        if self.is_tensor:
            return ast.Call(ast.Attribute(value, tensors), [], [])
        return ast.Call(ast.Attribute(value, "astype"), [ast.Attribute(ast.Name(self.library), arrays)], [])

    def _call(self, function: str, args: Sequence[ast.expr]) -> ast.expr:
        return ast.Call(ast.Attribute(ast.Name(self.library), function), list(args), [])

    def _count(self, node: ast.Name) -> ast.expr:
        at = self.names.index(node.id)
        loop = self.loops[at]
        assert isinstance(loop.iter, ast.Call)
        counted = self._call("arange", loop.iter.args)
        missing = len(self.names) - 1 - at
        return ast.parse(f"{ast.unparse(counted)}[:{', None' * missing}]", mode="eval").body if missing else counted

    def _element(self, node: ast.Subscript) -> ast.expr:
        parts: list[ast.expr] = []
        value: ast.expr = node
        while isinstance(value, ast.Subscript):
            inner = indices(value)
            parts = [*inner, *parts]
            value = value.value
        name = path_of(value)
        if not name or name.partition(".")[0] in {*self.names, *self.local}:
            raise NotElementwiseError
        index = self._index(ast.Tuple(parts))
        text = ", ".join(index)
        whole = self._shape_of(name)
        lengths = [
            ast.unparse(loop.iter.args[0])
            for loop in self.loops
            if isinstance(loop.iter, ast.Call) and len(loop.iter.args) == 1
        ]
        if whole and whole == lengths and index == [f":{length}" for length in lengths]:
            return ast.parse(name, mode="eval").body
        return ast.parse(f"{name}[{text}]", mode="eval").body

    def _shape_of(self, name: str) -> list[str]:
        """Return the sides of an array that is made in sight, as they are written."""
        scope = self.module.scope(self.loops[0])
        for around in (scope, self.module.tree):
            for node in ast.walk(around):
                if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
                    continue
                if path_of(node.targets[0]) == name and re.search(
                    r"\.(zeros|empty|ones|full)$", path_of(node.value.func)
                ):
                    given = node.value.args
                    sides = given[0].elts if given and isinstance(given[0], ast.Tuple | ast.List) else given
                    return [ast.unparse(side) for side in sides]
        return []

    def _index(self, index: ast.expr) -> list[str]:
        """Return the index of all elements, as texts; raises where the order of axes is another one."""
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        found: list[str] = []
        last = -1
        for part in parts:
            used = [at for at, name in enumerate(self.names) if name in names_in(part)]
            if not used:
                if names_in(part) & self.local:
                    raise NotElementwiseError
                found.append(ast.unparse(part))
                continue
            at = used[0]
            if len(used) > 1 or at <= last:
                raise NotElementwiseError
            if last >= 0:
                found += ["None"] * (at - last - 1)
            last = at
            found.append(self._slice(part, at))
        if last >= 0:
            found += ["None"] * (len(self.names) - 1 - last)
        return found

    def _slice(self, part: ast.expr, at: int) -> str:
        loop = self.loops[at]
        assert isinstance(loop.iter, ast.Call)
        given = loop.iter.args
        start, stop = (None, given[0]) if len(given) == 1 else (given[0], given[1])
        shift = self._shift(part, self.names[at])
        begin = _plus(start, shift) if start is not None or shift else ""
        if shift < 0 and start is None:
            raise NotElementwiseError
        return f"{begin}:{_plus(stop, shift)}"

    def _shift(self, part: ast.expr, name: str) -> int:
        if isinstance(part, ast.Name):
            return 0
        if isinstance(part, ast.BinOp) and path_of(part.left) == name and isinstance(literal(part.right), int):
            number = literal(part.right)
            assert isinstance(number, int)
            if isinstance(part.op, ast.Add):
                return number
            if isinstance(part.op, ast.Sub):
                return -number
        raise NotElementwiseError


_ORDER = ast.Lt | ast.LtE | ast.Gt | ast.GtE | ast.Eq | ast.NotEq


def _plus(node: ast.expr | None, number: int) -> str:
    if node is None:
        return str(number)
    value = literal(node)
    if isinstance(value, int):
        return str(value + number)
    if isinstance(node, ast.BinOp) and isinstance(literal(node.right), int) and isinstance(node.op, ast.Add | ast.Sub):
        right = literal(node.right)
        assert isinstance(right, int)
        total = (right if isinstance(node.op, ast.Add) else -right) + number
        left = ast.unparse(node.left)
        return left if not total else f"{left} {'+' if total > 0 else '-'} {abs(total)}"
    text = ast.unparse(copy.deepcopy(node))
    return text if not number else f"{text} {'+' if number > 0 else '-'} {abs(number)}"


def nest_of(module: Module, outer: ast.For) -> Nest | None:
    """Return the loops that begin with one, where each counts and holds nothing but the next one."""
    loops, node = [], outer
    while True:
        over = node.iter
        if not isinstance(node.target, ast.Name) or node.orelse or not isinstance(over, ast.Call):
            return None
        if path_of(over.func) != "range" or not 1 <= len(over.args) <= 2 or over.keywords:
            return None
        loops.append(node)
        if len(node.body) == 1 and isinstance(node.body[0], ast.For):
            node = node.body[0]
            continue
        break
    stored = [
        part.value
        for statement in node.body
        for part in ast.walk(statement)
        if isinstance(part, ast.Subscript) and not isinstance(part.ctx, ast.Load)
    ]
    read = [part.value for statement in node.body for part in ast.walk(statement) if isinstance(part, ast.Subscript)]
    kinds: set[str] = {module.value(item).kind for item in (stored or read)}
    kinds |= {_made(module, item) for item in (stored or read)}
    names = {full: name for name, full in module.aliases.items()}
    if "tensor" in kinds and "torch" in names:
        return Nest(module, loops, node.body, names["torch"], True)
    if "numpy" in kinds and "numpy" in names:
        return Nest(module, loops, node.body, names["numpy"], False)
    return None


def _made(module: Module, node: ast.expr) -> str:
    """Return what an array is by what its variable is assigned."""
    made = module.made_of(node)
    name = module.name_of(made.func) if isinstance(made, ast.Call) else ""
    return "numpy" if name.startswith("numpy.") else "tensor" if name.startswith("torch.") else ""

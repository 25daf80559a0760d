"""Write a loop over the elements of an array as an expression of the whole array."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torchtriage.diagnose.lint.edits import replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import indices, literal, names_in, path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.edits._flow import written
from torchtriage.measure.fix.proposal import Proposal, Site, first_only
from torchtriage.measure.fix.statements import bound, indent_of

CODES = words("HST020 HST110 HST114 LCH014 LCH015 LCH017 LCH108 LCH109 SYN001 DAT018 DAT019 DAT114 CPY102 HST055")
EVERYWHERE = "sqrt exp log sin cos tan tanh floor ceil"
FUNCTIONS = {
    **{f"math.{name}": name for name in words(f"{EVERYWHERE} log10 log2")},
    **{f"numpy.{name}": name for name in words(f"{EVERYWHERE} log10 abs")},
    **{f"torch.{name}": name for name in words(f"{EVERYWHERE} sigmoid relu")},
    "math.fabs": "abs",
    "abs": "abs",
    "math.hypot": "hypot",
    "math.atan2": "arctan2",
}


@first_only
def propose(site: Site) -> Iterator[Proposal]:
    """Yield the outermost loop around the line, or that begins at it, whose turns can be done at once."""
    for loop in reversed(site.for_loops):
        nest, indent = _nest(site.module, loop), indent_of(site.module, loop)
        if nest is None or indent is None:
            continue
        try:
            rows = nest.rows()
        except _NotElementwiseError:
            continue
        edit = replace_node(loop, f"\n{indent}".join(rows))
        yield Proposal((edit,), f"compute all elements of the loop on line {loop.lineno} at once")


class _NotElementwiseError(Exception):
    """A loop that is no expression of whole arrays, as far as can be seen."""


@dataclass
class _Nest:
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
        """Return the statements that do all turns at once; raises ``_NotElementwiseError``."""
        sums = [item for item in self.body if isinstance(item, ast.AugAssign) and isinstance(item.target, ast.Name)]
        self.local = bound(item for item in self.body if item not in sums)
        indexed = [part for item in self.body for part in ast.walk(item) if isinstance(part, ast.Subscript)]
        for name in written(self.body) - bound(self.body):
            parts = [part for part in indexed if path_of(part.value) == name]
            stored = [self._index(part.slice) for part in parts if not isinstance(part.ctx, ast.Load)]
            if any(self._index(part.slice) not in stored[:1] for part in parts if isinstance(part.ctx, ast.Load)):
                raise _NotElementwiseError
        end = self.loops[0].end_lineno or 0
        named = [node for node in ast.walk(self.module.scope(self.loops[0])) if isinstance(node, ast.Name)]
        later = [node for node in named if node.id in {*self.local, *self.names} and node.lineno > end]
        if any(isinstance(node.ctx, ast.Load) and not self._is_bound_again(node) for node in later):
            raise _NotElementwiseError
        return [row for statement in self.body for row in self._rows(statement, "")]

    def _is_bound_again(self, node: ast.Name) -> bool:
        end = self.loops[0].end_lineno or 0
        stores = self.module.stores(node.id, self.module.scope(self.loops[0]))
        return any(end < item.lineno <= node.lineno for item in stores)

    def _rows(self, statement: ast.stmt, condition: str) -> list[str]:
        if isinstance(statement, ast.If):
            test = ast.unparse(self.whole(statement.test))
            both = f"({condition}) & ({test})" if condition else test
            if any(isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name) for item in statement.body):
                raise _NotElementwiseError
            rows = [row for item in statement.body for row in self._rows(item, both)]
            return self._either(statement, test, condition) if statement.orelse else rows
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
            own = isinstance(target, ast.Name) and target.id in names_in(statement.value)
            if isinstance(target, ast.Name) and operator == "+" and varies and not own:
                return [f"{target.id} += ({text}).sum()"]
        raise _NotElementwiseError

    def _either(self, statement: ast.If, test: str, condition: str) -> list[str]:
        """Return the row of a condition both of whose branches give one place its value."""
        yes, no = statement.body, statement.orelse
        if condition or len(yes) != 1 or len(no) != 1 or not isinstance(yes[0], ast.Assign):
            raise _NotElementwiseError
        target = yes[0].targets[0]
        if isinstance(no[0], ast.If):
            other = self._value(no[0], target)
        elif isinstance(no[0], ast.Assign) and ast.dump(no[0].targets[0]) == ast.dump(target):
            other = ast.unparse(self.whole(no[0].value))
        else:
            raise _NotElementwiseError
        place = self._place(target) if isinstance(target, ast.Subscript) else getattr(target, "id", "")
        if not place:
            raise _NotElementwiseError
        return [f"{place} = {self.library}.where({test}, {ast.unparse(self.whole(yes[0].value))}, {other})"]

    def _value(self, statement: ast.If, target: ast.expr) -> str:
        row = self._either(statement, ast.unparse(self.whole(statement.test)), "")[0]
        if ast.dump(statement.body[0].targets[0]) != ast.dump(target):  # type: ignore[attr-defined]
            raise _NotElementwiseError
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
        raise _NotElementwiseError

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
        raise _NotElementwiseError

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
            parts = [*indices(value), *parts]
            value = value.value
        name = path_of(value)
        if not name or name.partition(".")[0] in {*self.names, *self.local}:
            raise _NotElementwiseError
        index, whole = self._index(ast.Tuple(parts)), self._shape_of(name)
        counted = [loop.iter.args for loop in self.loops if isinstance(loop.iter, ast.Call)]
        lengths = [ast.unparse(given[0]) for given in counted if len(given) == 1]
        is_all = whole and whole == lengths and index == [f":{length}" for length in lengths]
        return ast.parse(name if is_all else f"{name}[{', '.join(index)}]", mode="eval").body

    def _shape_of(self, name: str) -> list[str]:
        """Return the sides of an array that is made in sight, as they are written."""
        for around in (self.module.scope(self.loops[0]), self.module.tree):
            for node in ast.walk(around):
                made = node.value if isinstance(node, ast.Assign) and path_of(node.targets[0]) == name else None
                if isinstance(made, ast.Call) and re.search(r"\.(zeros|empty|ones|full)$", path_of(made.func)):
                    given = made.args
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
                    raise _NotElementwiseError
                found.append(ast.unparse(part))
                continue
            at = used[0]
            if len(used) > 1 or at <= last:
                raise _NotElementwiseError
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
            raise _NotElementwiseError
        return f"{begin}:{_plus(stop, shift)}"

    def _shift(self, part: ast.expr, name: str) -> int:
        if isinstance(part, ast.Name):
            return 0
        number = _added(part)
        if isinstance(part, ast.BinOp) and path_of(part.left) == name and number is not None:
            return number
        raise _NotElementwiseError


_ORDER = ast.Lt | ast.LtE | ast.Gt | ast.GtE | ast.Eq | ast.NotEq


def _plus(node: ast.expr | None, number: int) -> str:
    if node is None:
        return str(number)
    value = literal(node)
    if isinstance(value, int):
        return str(value + number)
    added = _added(node)
    if isinstance(node, ast.BinOp) and added is not None:
        node, number = node.left, added + number
    text = ast.unparse(node)
    return text if not number else f"{text} {'+' if number > 0 else '-'} {abs(number)}"


def _added(node: ast.expr) -> int | None:
    """Return the number of ``x + 2`` and ``x - 2``, with its sign; None for anything else."""
    number = literal(node.right) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub) else None
    if not isinstance(node, ast.BinOp) or not isinstance(number, int):
        return None
    return number if isinstance(node.op, ast.Add) else -number


def _nest(module: Module, outer: ast.For) -> _Nest | None:
    """Return the loops that begin with one, where each counts and holds nothing but the next one."""
    loops, node = [], outer
    while True:
        over = node.iter
        if not isinstance(node.target, ast.Name) or node.orelse or not isinstance(over, ast.Call):
            return None
        if path_of(over.func) != "range" or not 1 <= len(over.args) <= 2 or over.keywords:
            return None
        loops.append(node)
        if len(node.body) != 1 or not isinstance(node.body[0], ast.For):
            break
        node = node.body[0]
    parts = [part for statement in node.body for part in ast.walk(statement)]
    named = [part for part in parts if isinstance(part, ast.Subscript)]
    stored = [part for part in named if not isinstance(part.ctx, ast.Load)]
    kinds = {kind for part in stored or named for kind in (module.value(part.value).kind, _made(module, part.value))}
    names = {full: name for name, full in module.aliases.items()}
    if "tensor" in kinds and "torch" in names:
        return _Nest(module, loops, node.body, names["torch"], True)
    if "numpy" in kinds and "numpy" in names:
        return _Nest(module, loops, node.body, names["numpy"], False)
    return None


def _made(module: Module, node: ast.expr) -> str:
    """Return what an array is by what its variable is assigned."""
    made = module.made_of(node)
    name = module.name_called(made)
    return "numpy" if name.startswith("numpy.") else "tensor" if name.startswith("torch.") else ""

"""What the turns of a loop, or of a comprehension, go through: a number, rows of tensors, or both."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import indices, literal, path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.statements import free_name, source

TENSOR_ONLY = words("""
    size unsqueeze view view_as permute detach device requires_grad is_cuda unbind new_zeros new_tensor masked_fill cuda
    numel expand expand_as softmax backward grad float long half double scatter gather
""")
NOT_TENSORS = frozenset({"list", "module", "loader", "dataset", "callable", "profiler"})
OTHER = re.compile(r"numpy\.|(list|dict|tuple|sorted|zip|map|range)$")
NUMBER = ast.Name | ast.Attribute | ast.Call | ast.Subscript | ast.BinOp | ast.Constant
TAKES_LISTS = re.compile(r"^torch\.(tensor|as_tensor|from_numpy|stack|cat|[A-Z]\w*Tensor|utils|optim|save|nn\.[A-Z])")


class NotRowsError(Exception):
    """Turns that go through something else, or use what they go through in another way."""


@dataclass
class Turns:
    """``index`` : the variable that counts; ``ends`` : the first of them ends it; ``rows`` : variables with tensors."""

    module: Module
    index: str = ""
    ends: list[str] = field(default_factory=list)
    rows: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, module: Module, target: ast.expr, over: ast.expr) -> Turns:
        """Return what a loop's head says; raises ``NotRowsError``."""
        turns = cls(module)
        turns._add(target, over)
        return turns

    @property
    def length(self) -> str:
        """The number of turns, as text."""
        return self.ends[0] if len(self.ends) == 1 else f"min({', '.join(self.ends)})"

    def name_length(self) -> list[str]:
        """Return the statement that counts the turns, of which several things may be the first to end."""
        if len(self.ends) == 1:
            return []
        counted, name = self.length, free_name(self.module, "n_rows", "n_turns")
        if not name:
            raise NotRowsError
        self.ends = [name]
        return [f"{name} = {counted}"]

    def _add(self, target: ast.expr, over: ast.expr) -> None:
        called = path_of(over.func) if isinstance(over, ast.Call) and not over.keywords else ""
        given = over.args if isinstance(over, ast.Call) else []
        names = target.elts if isinstance(target, ast.Tuple) else []
        if called == "range" and len(given) == 1 and isinstance(target, ast.Name) and isinstance(given[0], NUMBER):
            self._count(target)
            self.ends.append(source(self.module, given[0]))
        elif called == "enumerate" and len(given) == 1 and len(names) == 2 and isinstance(names[0], ast.Name):
            self._count(names[0])
            self._add(names[1], given[0])
        elif called == "zip" and len(given) == len(names):
            for name, item in zip(names, given, strict=True):
                self._add(name, item)
        elif isinstance(target, ast.Name) and path_of(over):
            self.rows[target.id] = path_of(over)
            self.ends.append(f"len({path_of(over)})")
        else:
            raise NotRowsError

    def _count(self, name: ast.Name) -> None:
        if self.index:
            raise NotRowsError
        self.index = name.id


@dataclass
class Mapped:
    """A tensor that all turns take a row of. ``axis`` : of the rows; ``name`` : of the row in a turn."""

    path: str
    axis: int
    name: str
    uses: list[ast.Subscript] = field(default_factory=list)

    def whole(self, length: str) -> str:
        """Return the tensor, of which only ``length`` rows are taken where that is given."""
        return begun(self.path, self.axis, length) if length else self.path


def begun(path: str, axis: int, length: str) -> str:
    """Return the first ``length`` places of a tensor along one axis."""
    if axis < -1:
        raise NotRowsError
    return f"{path}[{':, ' * axis if axis >= 0 else '..., '}:{length}]"


def mapped(turns: Turns, scope: ast.AST, parts: Iterable[ast.AST]) -> tuple[list[Mapped], list[ast.Name]]:
    """Return the tensors whose rows the parts of a turn use, and where they use its number as such.

    Raises ``NotRowsError``: a place is another one than the number of the turn, or what is taken may be no tensor.
    """
    module = turns.module
    found = [Mapped(path, 0, name) for name, path in turns.rows.items()]
    numbers: list[ast.Name] = []
    inside = {item: None for part in parts for item in ast.walk(part)}
    for node in inside:
        entry = literal(node.slice) if isinstance(node, ast.Subscript) and path_of(node.value) in turns.rows else None
        if isinstance(entry, str):
            raise NotRowsError  # of a list of dictionaries
        if not isinstance(node, ast.Name) or not turns.index or node.id != turns.index:
            continue
        place: ast.AST = module.parents[node]
        place = module.parents[place] if isinstance(place, ast.Tuple) else place
        if isinstance(place, ast.Subscript) and path_of(place.value):
            path, axis = path_of(place.value), axis_of(place, turns.index)
            same = next((item for item in found if (item.path, item.axis) == (path, axis) and item.uses), None)
            if same is None:
                same = Mapped(path, axis, "")
                found.append(same)
            same.uses.append(place)
        elif isinstance(place, ast.BinOp | ast.Compare) and module.around(node, ast.Subscript) not in inside:
            numbers.append(node)
        else:
            raise NotRowsError
    if {item.path.partition(".")[0] for item in found} & {turns.index, *turns.rows}:
        raise NotRowsError
    said = {item.path: is_tensor(module, item.path, scope) for item in found}
    # what is gone through may be a list of tensors; what a place is taken of in a function of torch is rarely one
    shown = all(said[path] for path in turns.rows.values()) if turns.rows else any(said.values())
    if False in said.values() or not (shown or (not turns.rows and _names_torch(module, scope))):
        raise NotRowsError
    return found, numbers


def _names_torch(module: Module, scope: ast.AST) -> bool:
    nodes = [node for node in ast.walk(scope) if isinstance(node, ast.Attribute)]
    return any(node.attr in TENSOR_ONLY or module.name_of(node).startswith("torch.") for node in nodes)


def axis_of(node: ast.Subscript, index: str) -> int:
    """Return the dimension that ``x[:, i]`` takes one of; raises ``NotRowsError`` where that cannot be seen."""
    places = indices(node)
    at = [number for number, item in enumerate(places) if path_of(item) == index]
    if len(at) != 1:
        raise NotRowsError
    before, behind = places[: at[0]], places[at[0] + 1 :]
    if any(literal(item) is ... for item in before if isinstance(item, ast.Constant)):
        if any(not _is_plain(item) for item in behind):
            raise NotRowsError
        return -1 - len(behind)
    if not all(_is_plain(item) for item in before):
        raise NotRowsError
    return at[0]


def _is_plain(node: ast.expr) -> bool:
    return isinstance(node, ast.Slice | ast.Name) or type(literal(node)) is int


def is_whole(node: ast.expr) -> bool:
    """Return whether a place of a subscript is a plain colon."""
    return isinstance(node, ast.Slice) and not (node.lower or node.upper or node.step)


def rest_of(module: Module, node: ast.Subscript, index: str, row: str) -> str:
    """Return ``row[:5]`` for ``x[i, :5]``, ``row`` for ``x[:, i]``."""
    places = indices(node)
    others = [item for item in places if path_of(item) != index]
    if all(map(is_whole, others)):
        return row
    if len(others) == 1 and isinstance(others[0], ast.Constant) and literal(others[0]) is ...:
        return row
    return f"{row}[{', '.join(source(module, item) for item in others)}]"


def is_tensor(module: Module, path: str, scope: ast.AST) -> bool | None:
    """Return whether a function shows that something is a tensor, or something else; None where it shows neither."""
    known = False
    for node in ast.walk(scope):
        if isinstance(node, ast.arg) and node.arg == path and node.annotation is not None:
            known |= source(module, node.annotation).endswith("Tensor")
        if not isinstance(node, ast.Name | ast.Attribute) or path_of(node) != path:
            continue
        if module.value(node).kind in NOT_TENSORS:
            return False
        if isinstance(node.ctx, ast.Load):
            known |= module.value(node).kind == "tensor" or _is_used_as_tensor(module, node)
        else:
            made = module.parents.get(node)
            value = made.value if isinstance(made, ast.Assign) else None
            name = module.name_called(value)
            if isinstance(value, ast.List | ast.ListComp | ast.Dict | ast.Constant) or OTHER.match(name):
                return False
            known |= name.startswith("torch.")
    return known or None


def _is_used_as_tensor(module: Module, node: ast.expr) -> bool:
    around = module.parents.get(node)
    if isinstance(around, ast.Subscript) and around.value is node:
        return _is_used_as_tensor(module, around)
    if isinstance(around, ast.Attribute):
        return around.attr in TENSOR_ONLY
    name = module.name_of(around.func) if isinstance(around, ast.Call) and node in around.args else ""
    return name.startswith("torch.") and not TAKES_LISTS.match(name)


def counts(module: Module, length: str, rows: Mapped, scope: ast.AST) -> bool:
    """Return whether a number is that of all rows of a tensor: ``len(x)``, or ``n`` after ``n, m = x.shape``."""
    path, axis = rows.path, rows.axis
    told = {f"{path}.shape[{axis}]", f"{path}.size({axis})", f"{path}.size()[{axis}]"}
    told |= {f"len({path})"} if axis == 0 else set()
    if length in told:
        return True
    given = list(assigned(scope, length))
    is_handed = any(isinstance(node, ast.arg) and node.arg == length for node in ast.walk(scope))
    if len(given) != 1 or is_handed or not length.isidentifier() or len(stores_of(scope, length)) != 1:
        return False
    value, place = given[0]
    told_here = source(module, value) in told
    told_here |= place == axis and source(module, value) in (f"{path}.shape", f"{path}.size()")
    return told_here and all(node.lineno <= value.lineno for node in stores_of(scope, path))


def stores_of(scope: ast.AST, path: str) -> list[ast.Name | ast.Attribute]:
    """Return where code gives a variable or an attribute another value, or deletes it."""
    nodes = [node for node in ast.walk(scope) if isinstance(node, ast.Name | ast.Attribute) and path_of(node) == path]
    return [node for node in nodes if not isinstance(node.ctx, ast.Load)]


def assigned(scope: ast.AST, name: str) -> Iterator[tuple[ast.expr, int]]:
    """Yield what a variable is assigned, and which item of it."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if path_of(target) == name:
                    yield node.value, -1
                for place, item in enumerate(target.elts if isinstance(target, ast.Tuple) else []):
                    if path_of(item) == name:
                        yield node.value, place

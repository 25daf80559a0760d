"""Windows of a series taken with one index, in place of a loop that appends a slice in each turn."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from types import EllipsisType, NoneType

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import indices, names_in, path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.edits._flow import flow_of
from torchtriage.measure.fix.edits._turns import is_tensor
from torchtriage.measure.fix.proposal import Proposal, Site, first_only
from torchtriage.measure.fix.statements import body_of, bound, complete, remove, source

CODES = words("LCH017 LCH105 LCH107 LCH109 LCH014 HST020 HST106 HST110 HST111 HST114 CPY102 DAT018 DAT114")
ARRAYS = frozenset({"numpy.array", "numpy.asarray", "numpy.stack"})
SIMPLE = ast.Name | ast.Attribute | ast.Call | ast.Constant | ast.Subscript
COUNTS = words("len size int min")


@first_only
def propose(site: Site) -> Iterator[Proposal]:
    """Yield ``x[arange(n)[:, None] + arange(w)]`` for ``xs.append(x[i : i + w])`` and ``torch.stack(xs)`` below."""
    for loop in site.for_loops:
        yield Proposal(_edits(site, loop), f"take the windows of the loop on line {loop.lineno} at once")


def _edits(site: Site, loop: ast.For) -> tuple[SourceEdit, ...]:
    module, over = site.module, loop.iter
    if not isinstance(loop.target, ast.Name) or not isinstance(over, ast.Call) or len(over.args) > 2 or loop.orelse:
        return ()
    index, number = loop.target.id, ", ".join(source(module, item) for item in over.args)
    local: dict[str, ast.expr] = {}
    edits: list[SourceEdit | None] = []
    begun: set[ast.stmt] = set()
    lists: set[str] = set()
    for item in loop.body:
        if isinstance(item, ast.Assign) and len(item.targets) == 1 and isinstance(item.targets[0], ast.Name):
            local[item.targets[0].id] = item.value
            continue
        call = item.value if isinstance(item, ast.Expr) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or len(call.args) != 1:
            return ()
        rows, given = call.func.value, local.get(path_of(call.args[0]), call.args[0])
        if call.func.attr != "append" or not isinstance(rows, ast.Name) or not isinstance(given, ast.Subscript):
            return ()
        made, join = _list(module, loop, rows)
        given_rows = join is not None and _is(site, join, given) and flow_of(module).repeats(given)
        text = _window(module, given, index, number, join) if join is not None and given_rows else ""
        if made is None or join is None or not text or _changes(module, loop, join, text):
            return ()
        edits.append(replace_node(join, text))
        begun.add(made)
        lists |= names_in(made.targets[0])
    later = [node for name in (index, *local) for node in module.names(name, module.scope(loop))]
    if (
        path_of(over.func) != "range"
        or not all(_counts(module, item) for item in over.args)
        or any(node.lineno > (loop.end_lineno or 0) for node in later)
    ):
        return ()
    if any(isinstance(node, ast.Call) for value in local.values() for node in ast.walk(value)) or len(lists) != len(
        edits
    ):
        return ()
    edits += [remove(module, item) for item in (loop, *begun)]
    return complete(edits)


def _counts(module: Module, number: ast.expr) -> bool:
    """Return whether a number of turns is none, or less, for a series too short for a window, and is not drawn."""
    behind = [module.made_of(part) if isinstance(part, ast.Name) else part for part in ast.walk(number)]
    parts = [part for item in behind for part in ast.walk(item)]
    calls = [path_of(part.func).rpartition(".")[2] for part in parts if isinstance(part, ast.Call)]
    return set(calls) <= COUNTS and not any(isinstance(part, ast.BoolOp | ast.IfExp) for part in parts)


def _changes(module: Module, loop: ast.For, join: ast.Call, text: str) -> bool:
    """Return whether the loop, or what stands before the join, gives the names in a text another meaning."""
    body = body_of(module, loop) or []
    held = [item for item in body if loop.lineno < item.lineno and any(node is join for node in ast.walk(item))]
    before = [item for item in body if held and loop.lineno < item.lineno < held[0].lineno]
    nodes = [*before, *(item for item in held if hasattr(item, "body"))]
    flow, names = flow_of(module), names_in(ast.parse(text))
    changed = {path.partition(".")[0] for path in flow.changes(nodes) | flow.handed(nodes) | bound(loop.body)}
    return not held or bool(names & changed)


def _list(module: Module, loop: ast.For, rows: ast.Name) -> tuple[ast.Assign | None, ast.Call | None]:
    """Return what begins an empty list in the loop's own body, and the one call that joins it below."""
    named = [node for node in module.names(rows.id, module.scope(loop)) if node is not rows]
    stores = [node for node in named if isinstance(node.ctx, ast.Store)]
    made: ast.AST | None = module.parents[stores[0]] if len(stores) == 1 and len(named) == 2 else None
    made = module.parents[made] if isinstance(made, ast.Tuple) else made
    join = next((module.parents[node] for node in named if node not in stores), None)
    if not isinstance(made, ast.Assign) or made not in (body_of(module, loop) or []):
        return None, None
    parts = (
        made.value.elts
        if isinstance(made.targets[0], ast.Tuple) and isinstance(made.value, ast.Tuple)
        else [made.value]
    )
    empty = all(isinstance(item, ast.List) and not item.elts for item in parts) and len(made.targets) == 1
    plain = isinstance(join, ast.Call) and len(join.args) == 1 and not join.keywords
    if not empty or not plain or not isinstance(join, ast.Call) or not made.lineno < loop.lineno < join.lineno:
        return None, None
    return made, join


def _is(site: Site, join: ast.Call, given: ast.Subscript) -> bool:
    """Return whether rows are taken of a tensor or an array, whose slices are what the join takes."""
    scope, path, name = site.scope, path_of(given.value), site.module.name_of(join.func)
    kind = site.module.value(given.value).kind
    if name != "torch.stack":
        return name in ARRAYS and kind == "numpy"
    # it takes slices of nothing else, unless a class of the file gives them
    around = [node for node in ast.walk(scope) if isinstance(node, ast.Subscript) and path_of(node.value) == path]
    sliced = any(isinstance(node.slice, ast.Slice) for node in around) and "__getitem__" not in site.module.text
    return kind == "tensor" or (bool(path) and sliced and is_tensor(site.module, path, scope) is not False)


def _window(module: Module, given: ast.Subscript, index: str, number: str, join: ast.Call) -> str:
    """Return what all turns take together: ``x[arange(n) + w]`` of ``x[i + w]``; empty where it is something else."""
    first, *rest = indices(given)
    arange = f"{source(module, join.func).rpartition('.')[0]}.arange"
    others, places = "".join(f", {source(module, item)}" for item in rest), f"{arange}({number})"
    begin: Counter[str] = Counter()
    if not isinstance(first, ast.Slice):
        begin = _addends(module, first)
    elif first.lower is not None and first.upper is not None and first.step is None:
        begin, width = _addends(module, first.lower), _addends(module, first.upper)
        width.subtract(begin)
        places = f"{places}[:, None] + {arange}({_sum(width)})"
    once = begin[index] == 1 and arange[0] != "." and all(map(_is_fixed, rest))
    begin.subtract([index])
    text = f"{source(module, given.value)}[{_sum(Counter({places: 1, **begin}))}{others}]"
    return text if once and index not in names_in(ast.parse(text)) else ""


def _is_fixed(node: ast.expr) -> bool:
    """Return whether a subscript takes the same of each window, and takes no places one by one."""
    if isinstance(node, ast.Slice):
        return all(_is_fixed(item) for item in (node.lower, node.upper, node.step) if item is not None)
    node = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(node, ast.Constant) and type(node.value) in (int, NoneType, EllipsisType)


def _addends(module: Module, node: ast.expr) -> Counter[str]:
    """Return the texts that are added up, and how often; those that are taken off count below zero."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        found = _addends(module, node.left)
        (found.update if isinstance(node.op, ast.Add) else found.subtract)(_addends(module, node.right))
        return found
    text = source(module, node)
    return Counter([text if isinstance(node, SIMPLE) else f"({text})"])


def _sum(addends: Counter[str]) -> str:
    plus, minus = list(addends.elements()), list((-addends).elements())
    return "".join([" + ".join(plus), *(f" - {item}" for item in minus)]).strip()

"""The few that are used picked from many: topk for a sort, a draw for a permutation, a heap for a sorted list."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import indices, keyword, literal, names_in, path_of, whole_number
from torchtriage.measure.fix.edits._torch import operands
from torchtriage.measure.fix.proposal import Proposal, Site, first_only
from torchtriage.measure.fix.statements import end_of, imported, source

CODES = frozenset({"KRN101", "HST020", "HST114", "HST106", "HST124", "LCH105"})
SHUFFLES = ("torch.randperm", "numpy.random.permutation")
DRAWN = "rows are drawn with replacement, and other rows than before"


@first_only
def propose(site: Site) -> Iterator[Proposal | None]:
    """Yield the statement at the line with what takes only the few that are used."""
    statement = site.statement
    if statement is None or isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and node.lineno <= (statement.end_lineno or 0):
            yield _sort(site.module, node) or _shuffle(site.module, node) or _sorted(site.module, node)


def _sort(module: Module, node: ast.Call) -> Proposal | None:
    """Return ``x.topk(k)`` for ``x.sort()`` of which the first ``k`` are taken."""
    name = module.name_of(node.func)
    last = name.rpartition(".")[2] or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
    if last not in ("sort", "argsort") or not isinstance(node.func, ast.Attribute):
        return None
    function = name in ("torch.sort", "torch.argsort")
    if name.startswith("numpy.") or (not function and isinstance(module.parents.get(node), ast.Expr)):
        return None  # a list, sorted in place
    given = operands(module, node)
    if any(item.arg not in ("dim", "descending", "input") for item in node.keywords) or not 1 <= len(given) <= 3:
        return None
    values = source(module, given[0])
    dim = keyword(node, "dim") or next(iter(given[1:2]), None)
    descending = keyword(node, "descending") or next(iter(given[2:]), None)
    parts = _uses(module, node, last == "argsort")
    if descending is not None and not isinstance(literal(descending), bool):
        return None
    few = {source(module, part.slice) for part in parts}
    cuts = [_cut(part) for part in parts]
    first = cuts[0] if cuts else None
    if len(few) != 1 or first is None or not _is_at(first[1], first[2], dim):
        return None
    if not _is_known(module, first[0], node):
        return None
    count = source(module, first[0])
    options = [count, *([f"dim={source(module, dim)}"] if dim is not None else [])]
    options += [] if descending is not None and literal(descending) is True else ["largest=False"]
    changes = f"it raises an error if there are fewer than {count}"
    if not first[2] and (dim is None or literal(dim) != first[1]):
        changes += ", and picks along the last axis"
    picked = f"{values}.topk({', '.join(options)})" + (".indices" if last == "argsort" else "")
    edits = [replace_node(node, picked)]
    edits += [SourceEdit(*end_of(part.value), *end_of(part), "") for part in parts]
    return Proposal(tuple(edits), f"pick the first {count} with topk", changes)


def _uses(module: Module, node: ast.Call, indices: bool) -> list[ast.Subscript]:
    """Return the slices that are all the uses of a sort; none where there are others."""
    outer: ast.AST | None = module.parents.get(node)
    taken: ast.expr = node
    if isinstance(outer, ast.Attribute) and outer.attr in ("values", "indices") and not indices:
        taken, outer = outer, module.parents.get(outer)
    if isinstance(outer, ast.Subscript) and outer.value is taken and literal(outer.slice) is not ... and not indices:
        taken, outer = outer, module.parents.get(outer)  # torch.sort(x)[1]
    if isinstance(outer, ast.Subscript) and outer.value is taken:
        return [outer] if indices or taken is not node else []
    if not isinstance(outer, ast.Assign) or outer.value is not taken or len(outer.targets) != 1:
        return []
    target = outer.targets[0]
    names = target.elts if isinstance(target, ast.Tuple) and not indices and taken is node else [target]
    parts: list[ast.Subscript] = []
    for item in names:
        if not isinstance(item, ast.Name):
            return []
        if item.id == "_":
            continue
        named, reads = module.names(item.id, module.scope(node)), module.reads(item.id, module.scope(node))
        if len(named) - len(reads) != 1:
            return []
        for name in reads:
            use = module.parents.get(name)
            if not isinstance(use, ast.Subscript) or use.value is not name:
                return []
            parts.append(use)
    return parts


def _cut(node: ast.Subscript) -> tuple[ast.expr, int, bool] | None:
    """Return the number of ``[:k]``, ``[:, :k]`` or ``[..., :k]``, the axis it is of, and whether that is the last."""
    parts = indices(node)
    last = parts[-1]
    if not isinstance(last, ast.Slice) or last.step is not None or last.upper is None:
        return None
    if literal(last.lower) not in (..., 0) or (last.lower is not None and not isinstance(last.lower, ast.Constant)):
        return None
    if isinstance(last.upper, ast.UnaryOp):
        return None
    before = parts[:-1]
    if any(not (isinstance(item, ast.Slice) and item.lower is item.upper is None) for item in before):
        return (last.upper, -1, True) if len(before) == 1 and literal(before[0]) is Ellipsis else None
    return last.upper, len(before), False


def _is_at(axis: int, last: bool, dim: ast.expr | None) -> bool:
    """Return whether a sort is along the axis that is cut."""
    number = whole_number(dim) if dim is not None else -1
    return number == -1 if last else number in (axis, -1)


def _is_known(module: Module, count: ast.expr, node: ast.Call) -> bool:
    """Return whether a number is known where the sort is: nothing after it binds its names."""
    scope = module.scope(node)
    stores = [item for name in names_in(count) for item in module.stores(name, scope)]
    return all(item.lineno < node.lineno for item in stores)


def _shuffle(module: Module, node: ast.Call) -> Proposal | None:
    """Return ``torch.randint(n, (k,))`` for ``torch.randperm(n)[:k]``."""
    name = module.name_of(node.func)
    if name not in SHUFFLES or len(node.args) != 1:
        return None
    parts = _uses(module, node, True)
    first = _cut(parts[0]) if parts else None
    if len({source(module, part.slice) for part in parts}) != 1 or first is None or first[1] or first[2]:
        return None
    number, count = source(module, node.args[0]), source(module, first[0])
    others = "".join(f", {source(module, item)}" for item in node.keywords)
    owner = source(module, node.func).rpartition(".")[0]
    dot = f"{owner}." if owner else ""
    drawn = f"{dot}randint({number}, ({count},){others})"
    if name.startswith("numpy."):
        drawn = f"{dot}randint({number}, size={count})"
    if not _is_known(module, first[0], node):
        return None
    edits = [replace_node(node, drawn), *(SourceEdit(*end_of(part.value), *end_of(part), "") for part in parts)]
    return Proposal(tuple(edits), f"draw only the {count} that are used", DRAWN)


def _sorted(module: Module, node: ast.Call) -> Proposal | None:
    """Return ``heapq.nsmallest(k, x)`` for ``sorted(x)[:k]``."""
    part = module.parents.get(node)
    if path_of(node.func) != "sorted" or not isinstance(part, ast.Subscript) or part.value is not node:
        return None
    cut = _cut(part)
    reverse, key = keyword(node, "reverse"), keyword(node, "key")
    if cut is None or cut[1] or len(node.args) != 1 or (reverse is not None and not isinstance(literal(reverse), bool)):
        return None
    largest = reverse is not None and literal(reverse) is True
    name, imports = imported(module, f"heapq.{'nlargest' if largest else 'nsmallest'}")
    given = [source(module, cut[0]), source(module, node.args[0]), *([f"key={source(module, key)}"] if key else [])]
    edits = (replace_node(part, f"{name}({', '.join(given)})"), *imports)
    return Proposal(edits, f"pick the first {given[0]} from a heap")

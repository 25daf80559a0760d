"""Counts of pairs, such as a confusion matrix, filled with a whole batch in place of one sample at a time."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.syntax import indices, literal, names_in, path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.edits._torch import torch_in
from torchtriage.measure.fix.proposal import Proposal, Site, first_only
from torchtriage.measure.fix.statements import complete, imported, source, statement_edit

CODES = words("LCH017 LCH109 LCH014 HST020 HST114 SYN001 LCH105 HST106")
BARE = words("item long int cpu")


@first_only
def propose(site: Site) -> Iterator[Proposal | None]:
    """Yield the loop around the line, or that begins at it: ``for t, p in zip(true, predicted): counts[t, p] += 1``."""
    for loop in site.for_loops:
        if len(loop.body) == 1:
            yield _counted(site, loop)


def _counted(site: Site, loop: ast.For) -> Proposal | None:
    module, adds, over = site.module, loop.body[0], _pairs(loop)
    if not over or not isinstance(adds, ast.AugAssign) or not isinstance(adds.op, ast.Add) or loop.orelse:
        return None
    if literal(adds.value) != 1:
        return None
    counts, index = _places(adds.target)
    if path_of(counts) == "" or names_in(counts) & over.keys() or [item for item in index if item not in over]:
        return None
    reads = [item for name in over for item in module.reads(name, module.scope(loop))]
    if not index or any(item.lineno > (loop.end_lineno or 0) for item in reads):
        return None
    texts, kind = [source(module, over[name]) for name in index], _kind(site, counts)
    if not all(_kind(site, over[name]) == "tensor" for name in index):
        return None
    name = source(module, counts)
    if kind == "numpy":
        numpy, more = imported(module, "numpy.add")
        rows = f"{numpy}.at({name}, {_tuple([f'{item}.cpu()' for item in texts])}, 1)"
    elif kind == "tensor":
        torch, more = torch_in(module)
        one = f"{torch}.ones((), dtype={name}.dtype, device={name}.device)"
        rows = f"{name}.index_put_({_tuple([f'{item}.long()' for item in texts])}, {one}, accumulate=True)"
    else:
        return None
    edits = complete((statement_edit(module, loop, rows), *more))
    return Proposal(edits, f"count all iterations of the loop on line {loop.lineno} at once")


def _tuple(items: list[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _pairs(loop: ast.For) -> dict[str, ast.expr]:
    """Return what each variable of a loop goes through: ``for a, b in zip(x, y)``, ``for a in x``."""
    if isinstance(loop.target, ast.Name) and path_of(loop.iter):
        return {loop.target.id: loop.iter}
    if not isinstance(loop.target, ast.Tuple) or not isinstance(loop.iter, ast.Call) or loop.iter.keywords:
        return {}
    names = [item.id for item in loop.target.elts if isinstance(item, ast.Name)]
    if path_of(loop.iter.func) != "zip" or len(names) != len(loop.iter.args) or len(names) != len(loop.target.elts):
        return {}
    return dict(zip(names, loop.iter.args, strict=True))


def _places(target: ast.expr) -> tuple[ast.expr, list[str]]:
    """Return what is counted in, and the variables that index it: ``counts[t, p]``, ``counts[t.item()][p.item()]``."""
    index: list[str] = []
    while isinstance(target, ast.Subscript):
        parts = indices(target)
        index = [*(path_of(_bare(part)) for part in parts), *index]
        target = target.value
    return target, index


def _bare(node: ast.expr) -> ast.expr:
    """Return an element without what makes it an index."""
    while isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in BARE and not node.args:
            node = node.func.value
        elif path_of(node.func) == "int" and len(node.args) == 1:
            node = node.args[0]
        else:
            break
    return node


def _kind(site: Site, node: ast.expr) -> str:
    """Return ``tensor`` or ``numpy`` for what an expression surely is, by what it is assigned."""
    module, path = site.module, path_of(node)
    known = module.value(node).kind
    if known in ("tensor", "numpy") or not path:
        return str(known)
    around: ast.AST = site.module.around(site.statement, ast.ClassDef) or module.tree if site.statement else module.tree
    kinds = set()
    for item in ast.walk(around):
        if isinstance(item, ast.Assign) and path in map(path_of, item.targets):
            name = module.name_called(item.value)
            kinds.add({"torch": "tensor", "numpy": "numpy"}.get(name.partition(".")[0], module.value(item.value).kind))
    return str(kinds.pop()) if len(kinds) == 1 else ""

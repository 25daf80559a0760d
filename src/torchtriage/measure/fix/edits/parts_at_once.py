"""A tensor's parts taken all at once before the loop that goes through them: their gradients are joined in one copy."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import names_in, path_of
from torchtriage.measure.fix.edits._flow import flow_of
from torchtriage.measure.fix.edits._turns import is_tensor, is_whole
from torchtriage.measure.fix.proposal import Loop, Proposal, Site
from torchtriage.measure.fix.statements import bound, free_name, insert_before, source

CODES = frozenset({"KRN072"})


def propose(site: Site) -> Iterator[Proposal]:
    """Yield ``parts = x.unbind(1)`` before a loop with ``x[:, t]``, which becomes ``parts[t]``."""
    for loop in site.loops:
        taken = _taken(site.module, loop)
        for path in dict.fromkeys(path_of(node.value) for node, _, _ in taken):
            mine = [(axis, node, place) for node, axis, place in taken if path_of(node.value) == path]
            proposal = _proposal(site, loop, path, mine)
            if proposal is not None:
                yield proposal
                return


def _proposal(site: Site, loop: Loop, path: str, mine: list[tuple[int, ast.Subscript, ast.expr]]) -> Proposal | None:
    module, axes = site.module, {axis for axis, _, _ in mine}
    scope = site.function or module.tree
    changed = flow_of(module).changes([loop]) | bound([loop])
    name = free_name(module, f"{path}_parts", "parts")
    if len(axes) != 1 or path in changed or not name or is_tensor(module, path, scope) is not True:
        return None
    if not any(_runs_in_each_turn(module, node, loop) for _, node, _ in mine):
        return None  # it may be None where it is not taken
    before = insert_before(module, loop, f"{name} = {path}.unbind({axes.pop()})")
    if before is None:
        return None
    edits = [before, *(replace_node(node, f"{name}[{source(module, place)}]") for _, node, place in mine)]
    return Proposal(tuple(edits), f"take the parts of {path} at once, before the loop in line {loop.lineno}")


def _runs_in_each_turn(module: Module, node: ast.AST, loop: Loop) -> bool:
    while (node := module.parents[node]) is not loop:
        if not isinstance(
            node, ast.expr | ast.keyword | ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr | ast.With
        ):
            return False
        if isinstance(node, ast.IfExp | ast.BoolOp | ast.Lambda | ast.ListComp | ast.GeneratorExp):
            return False
    return True


def _taken(module: Module, loop: Loop) -> list[tuple[ast.Subscript, int, ast.expr]]:
    """Return what takes one part a turn: ``x[:, t]``, the axis, and its place; none where parts may be changed."""
    target = loop.target if isinstance(loop, ast.For) else None
    over = path_of(loop.iter.func) if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call) else ""
    if not isinstance(target, ast.Name) or over not in ("range", "reversed"):
        return []
    found = []
    inner = [node for item in loop.body for node in ast.walk(item)]
    # of what was taken at once no part may be changed, nor another name for one
    if any(isinstance(node, ast.keyword) and node.arg in ("inplace", "out") for node in inner):
        return []
    changed = {path_of(node.target) for node in inner if isinstance(node, ast.AugAssign)}
    changed |= {path_of(node.value) for node in inner if isinstance(node, ast.Attribute) and node.attr.endswith("_")}
    for node in inner:
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
            continue
        places = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        at = [number for number, place in enumerate(places) if target.id in names_in(place)]
        whole = [isinstance(place, ast.Slice) and is_whole(place) for place in places]
        if len(at) != 1 or sum(whole) != len(places) - 1 or not _is_number(places[at[0]]):
            continue
        outer = module.parents.get(node)
        if isinstance(outer, ast.Subscript | ast.Tuple) and node is not getattr(outer, "value", None):
            continue  # a place in something else
        names = set(map(path_of, outer.targets)) if isinstance(outer, ast.Assign) else set()
        in_place = isinstance(outer, ast.Attribute) and outer.attr.endswith("_")
        if in_place or names & changed or not isinstance(node.ctx, ast.Load):
            return []
        found.append((node, at[0], places[at[0]]))
    return found


def _is_number(node: ast.expr) -> bool:
    return all(
        isinstance(part, ast.Name | ast.Constant | ast.BinOp | ast.operator | ast.expr_context)
        for part in ast.walk(node)
    )

"""A tensor's parts taken all at once before the loop that goes through them: their gradients are joined in one copy."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import takewhile
from typing import NamedTuple

from torchtriage.diagnose.lint.edits import replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.diagnose.lint.syntax import indices, names_in, path_called, path_of
from torchtriage.measure.fix.edits._flow import flow_of
from torchtriage.measure.fix.edits._turns import is_tensor, is_whole
from torchtriage.measure.fix.proposal import Proposal, Site, first_only
from torchtriage.measure.fix.statements import bound, complete, free_name, insert_before, source

CODES = frozenset({"KRN072"})
ONCE = ast.expr | ast.keyword | ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr | ast.With
NUMBER = ast.Name | ast.Constant | ast.BinOp | ast.operator | ast.expr_context
PERHAPS = ast.IfExp | ast.BoolOp | ast.Lambda | ast.ListComp | ast.GeneratorExp


class Part(NamedTuple):
    """What a turn takes of a tensor: ``x[:, t]``, the axis 1 and the place ``t``."""

    node: ast.Subscript
    axis: int
    place: ast.expr


@first_only
def propose(site: Site) -> Iterator[Proposal | None]:
    """Yield ``parts = x.unbind(1)`` before a loop with ``x[:, t]``, which becomes ``parts[t]``."""
    for loop in site.for_loops:
        parts = list(_parts(site.module, loop))
        for path in dict.fromkeys(path_of(part.node.value) for part in parts):
            yield _proposal(site, loop, path, [part for part in parts if path_of(part.node.value) == path])


def _proposal(site: Site, loop: ast.For, path: str, parts: list[Part]) -> Proposal | None:
    module, (axis, *others) = site.module, {part.axis for part in parts}
    kept = path not in flow_of(module).changes([loop]) | bound([loop]) and not _may_be_changed(module, loop, parts)
    name = free_name(module, f"{path}_parts", "parts")
    if others or not kept or not name or is_tensor(module, path, site.scope) is not True:
        return None
    if not any(_runs_in_each_turn(module, part.node, loop) for part in parts):
        return None  # the tensor may be None where it is not taken
    before = insert_before(module, loop, f"{name} = {path}.unbind({axis})")
    edits = [before, *(replace_node(part.node, f"{name}[{source(module, part.place)}]") for part in parts)]
    return Proposal(complete(edits), f"take all parts of {path} at once, before the loop on line {loop.lineno}")


def _runs_in_each_turn(module: Module, node: ast.AST, loop: ast.For) -> bool:
    between = takewhile(lambda outer: outer is not loop, module.outward(node))
    return all(isinstance(outer, ONCE) and not isinstance(outer, PERHAPS) for outer in between)


def _may_be_changed(module: Module, loop: ast.For, parts: list[Part]) -> bool:
    """Return whether a loop writes into a part, or another name for one: PyTorch refuses that for parts of unbind."""
    inner = [node for item in loop.body for node in ast.walk(item)]
    if any(isinstance(node, ast.keyword) and node.arg in ("inplace", "out") for node in inner):
        return True
    changed = {path_of(node.target) for node in inner if isinstance(node, ast.AugAssign)}
    changed |= {path_of(node.value) for node in inner if isinstance(node, ast.Attribute) and node.attr.endswith("_")}
    for outer in (module.parents.get(part.node) for part in parts):
        if isinstance(outer, ast.Attribute) and outer.attr.endswith("_"):
            return True
        if isinstance(outer, ast.Assign) and changed & set(map(path_of, outer.targets)):
            return True
    return not all(isinstance(part.node.ctx, ast.Load) for part in parts)


def _parts(module: Module, loop: ast.For) -> Iterator[Part]:
    """Yield what a loop over numbers takes at a place that depends on its turn, and all of other axes."""
    over = path_called(loop.iter)
    if not isinstance(loop.target, ast.Name) or over not in ("range", "reversed"):
        return
    for node in (inner for item in loop.body for inner in ast.walk(item)):
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
            continue
        outer = module.parents.get(node)
        if isinstance(outer, ast.Subscript | ast.Tuple) and node is not getattr(outer, "value", None):
            continue  # a place in something else
        places = indices(node)
        at = [number for number, place in enumerate(places) if loop.target.id in names_in(place)]
        plain = all(isinstance(part, NUMBER) for number in at for part in ast.walk(places[number]))
        if len(at) == 1 and sum(map(is_whole, places)) == len(places) - 1 and plain:
            yield Part(node, at[0], places[at[0]])

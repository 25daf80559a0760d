"""Losses of one forward pass added up, with one backward pass in place of one for each."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit
from torchtriage.diagnose.lint.syntax import keyword, literal, method_of, path_of
from torchtriage.measure.fix.edits._flow import flow_of, loads, mutated, written
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import INDENT, body_of, complete, remove, source, statement_edit

CODES = frozenset({"OPT102", "MEM029"})
GRADIENTS = frozenset({"grad", "step", "zero_grad", "no_sync", "requires_grad", "requires_grad_", "clip_grad_norm_"})

ELSEWHERE = re.compile(r"_hook\(|def backward\(|\bgrad\(")
"""What sees the gradients of one pass, has passes of its own, or needs a graph once more."""

SUMMED = ast.Name | ast.Attribute | ast.Call | ast.Subscript | ast.BinOp


def propose(site: Site) -> Iterator[Proposal]:
    """Yield ``(a + b).backward()`` for the passes of one body, or ``sum(losses).backward()`` for a loop over them."""
    statement, loop = site.statement, site.loops[0] if site.loops else None
    body = body_of(site.module, statement) if statement is not None else None
    if statement is None or body is None or _passed(statement) is None or not _keeps(statement):
        return
    if ELSEWHERE.search(site.module.text):
        return
    edits = _of_loop(site, loop) if isinstance(loop, ast.For) and loop.body == [statement] else _of_body(site, body)
    yield Proposal(edits, "add up the losses, and run backward once")


def _passed(statement: ast.stmt) -> ast.expr | None:
    """Return what a statement does nothing but call ``backward`` of, for a loss: without gradients from outside."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "backward":
        return None
    plain = not call.args and all(item.arg == "retain_graph" for item in call.keywords)
    return call.func.value if plain and isinstance(call.func.value, SUMMED) else None


def _keeps(statement: ast.stmt) -> bool:
    """Return whether a backward pass leaves the graph for the next one."""
    assert isinstance(statement, ast.Expr)
    assert isinstance(statement.value, ast.Call)
    return literal(keyword(statement.value, "retain_graph")) is True


def _of_body(site: Site, body: list[ast.stmt]) -> tuple[SourceEdit, ...]:
    """Return the edits for passes of one body with nothing between that needs the gradients of the first."""
    first: list[ast.stmt] = []
    for item in body[body.index(site.statement) if site.statement in body else len(body) :]:
        loss = _passed(item)
        if loss is not None and not _keeps(item):
            passes = [node for node in ast.walk(site.scope) if _is_pass(node)]
            losses = [given for given in map(_passed, (*first, item)) if given is not None]
            text = " + ".join(source(site.module, given) for given in losses)
            last = statement_edit(site.module, item, f"({text}).backward()")
            edits = [last, *(remove(site.module, other) for other in first)]
            return complete(edits) if len(passes) == len(losses) > 1 else ()
        if loss is not None:
            first.append(item)
            continue
        attributes = {part.attr for part in ast.walk(item) if isinstance(part, ast.Attribute)}
        calculates = isinstance(item, ast.Assign | ast.AnnAssign) and not mutated([item])
        calculates &= flow_of(site.module).repeats(item)
        read = set().union(*(loads(other) for other in first))
        if not calculates or attributes & GRADIENTS or {path.partition(".")[0] for path in read} & written([item]):
            return ()
    return ()


def _is_pass(node: ast.AST) -> bool:
    return method_of(node) == "backward"


def _of_loop(site: Site, loop: ast.For) -> tuple[SourceEdit, ...]:
    """Return the edit for ``for loss in losses: loss.backward(retain_graph=True)``."""
    if not isinstance(loop.target, ast.Name) or loop.orelse:
        return ()
    target, losses = loop.target.id, source(site.module, loop.iter)
    scope = site.scope
    named = [item for item in ast.walk(scope) if isinstance(item, ast.Name) and item.id == target]
    made = site.module.made_of(loop.iter)
    loss = _passed(loop.body[0])
    text = f"sum({losses}).backward(retain_graph=True)"
    if not isinstance(made, ast.List | ast.Tuple | ast.ListComp):
        return ()  # only losses in a list can be distinguished from nothing and from a tensor
    if path_of(loop.iter):
        text = f"if {losses}:\n{INDENT}{text}"
    elif isinstance(made, ast.ListComp) or all(isinstance(item, ast.Starred) for item in made.elts):
        return ()
    if loss is None or path_of(loss) != target or len(named) != 2:
        return ()
    return complete((statement_edit(site.module, loop, text),))

"""One iterator over a loader, started again when it ends, in place of a new one for each batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.syntax import names_in, path_of
from torchtriage.measure.fix.proposal import Loop, Proposal, Site
from torchtriage.measure.fix.statements import (
    bound,
    complete,
    free_name,
    insert_before,
    replaced_in,
    source,
    statement_edit,
)

CODES = frozenset({"DAT107", "DAT018", "DAT019", "LCH105", "HST020", "HST114"})
CHANGES = "each step takes the next batch of the epoch, not the first one of a new epoch"


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the statement with ``next(iter(loader))`` on an iterator that is made before the loops around it."""
    module, statement = site.module, site.statement
    if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr | ast.Return):
        return
    taken = next((node for node in ast.walk(statement) if _is_first(node)), None)
    if not isinstance(taken, ast.Call) or not isinstance(taken.args[0], ast.Call):
        return
    loader = taken.args[0].args[0]
    path = path_of(loader)
    outermost = _outermost(site.loops, loader)
    name = free_name(module, "batches", "batch_iterator", "loader_iterator")
    if not path or not name or outermost is None:
        return
    started = f"{name} = iter({path})"
    row = replaced_in(module, statement, (taken, f"next({name})"))
    indented = row.replace("\n", "\n    ")
    new = f"try:\n    {indented}\nexcept StopIteration:\n    {started}\n    {indented}"
    edits = complete((insert_before(module, outermost, started), statement_edit(module, statement, new)))
    yield Proposal(edits, f"iterate over {source(module, loader)} with one iterator", CHANGES)


def _is_first(node: ast.AST) -> bool:
    """Return whether a node is ``next(iter(x))``."""
    return (
        isinstance(node, ast.Call)
        and path_of(node.func) == "next"
        and len(node.args) == 1
        and isinstance(inner := node.args[0], ast.Call)
        and path_of(inner.func) == "iter"
        and len(inner.args) == 1
    )


def _outermost(loops: tuple[Loop, ...], loader: ast.expr) -> Loop | None:
    """Return the outermost of the loops around a line that go over the same loader again and again."""
    found = None
    for loop in loops:
        if names_in(loader) & bound([*loop.body, *([loop.target] if not isinstance(loop, ast.While) else [])]):
            break
        found = loop
    return found

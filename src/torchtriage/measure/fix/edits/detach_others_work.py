"""What another model made goes into a loss without its graph, where its gradients are thrown away."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit
from torchtriage.diagnose.lint.syntax import path_of, walk
from torchtriage.measure.fix.proposal import Proposal, Site

CODES = frozenset({"OPT103"})
NO_GRAPH = frozenset({"data", "detach", "device", "dtype", "len", "shape", "size"})


def propose(site: Site) -> Iterator[Proposal]:
    """Yield ``.detach()`` for all that the model made and that this line's loss is computed of."""
    makers, statement = set(site.finding.evidence.get("models", ())), site.statement
    if not makers or not isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return):
        return
    if statement.value is None:
        return
    makers |= _variables(site, makers)
    found: dict[ast.expr, SourceEdit] = {}
    pending: list[tuple[ast.expr, int]] = [(statement.value, site.line)]
    seen = set()
    while pending:
        expression, before = pending.pop()
        seen.add(expression)
        inside: set[ast.AST] = set()
        for node in walk(expression):
            if node in inside:
                continue
            made, line = _made(site, node, before) if isinstance(node, ast.Name) else (None, 0)
            if _is_made_by(node, makers) or _is_made_by(made, makers):
                assert isinstance(node, ast.expr)
                inside.update(walk(node))
                end = node.end_lineno or 0, node.end_col_offset or 0
                found[node] = SourceEdit(*end, *end, ".detach()")
            elif made is not None and made not in seen:
                pending.append((made, line))
    detached = [node for node in found if not _needs_no_graph(site.module.parents.get(node))]
    if detached:
        yield Proposal(tuple(found[node] for node in detached), "detach what another model made")


def _variables(site: Site, classes: set[str]) -> set[str]:
    """Return the names of what is made of these classes: ``G`` of ``self.G = Generator()``."""
    made = [
        node for node in walk(site.module.tree) if isinstance(node, ast.Assign) and _is_made_by(node.value, classes)
    ]
    return {path_of(target).rpartition(".")[2] for node in made for target in node.targets} - {""}


def _is_made_by(node: ast.AST | None, makers: set[str]) -> bool:
    return isinstance(node, ast.Call) and path_of(node.func).rpartition(".")[2] in makers


def _needs_no_graph(user: ast.AST | None) -> bool:
    name = user.attr if isinstance(user, ast.Attribute) else path_of(user.func) if isinstance(user, ast.Call) else ""
    return name in NO_GRAPH


def _made(site: Site, name: ast.Name, before: int) -> tuple[ast.expr | None, int]:
    """Return what a variable was last given before a line, and where."""
    found: tuple[ast.expr | None, int] = None, 0
    for node in walk(site.function or site.module.tree):
        if isinstance(node, ast.Assign) and found[1] < node.lineno < before:
            targets = [part for target in node.targets for part in walk(target)]
            if any(isinstance(part, ast.Name) and part.id == name.id for part in targets):
                found = node.value, node.lineno
    return found

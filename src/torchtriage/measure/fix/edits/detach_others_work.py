"""What another model made goes into a loss without its graph, where its gradients are thrown away."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set

from torchtriage.diagnose.lint.edits import SourceEdit
from torchtriage.diagnose.lint.syntax import names_in, path_called, path_of, walk
from torchtriage.measure.fix.edits._other_models import other_models
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import end_of

CODES = frozenset({"OPT103"})
NO_GRAPH = frozenset({"data", "detach", "device", "dtype", "len", "shape", "size"})
MOST_STEPS = 50


def propose(site: Site) -> Iterator[Proposal]:
    """Yield ``.detach()`` for all that the model made and that this line's loss is computed of."""
    makers, statement = other_models(site, needless=True), site.statement
    if not makers or not isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return):
        return
    if statement.value is None:
        return
    chain = _Chain(site, makers)
    nodes = chain.cut(statement.value, site.line)
    detached = [node for node in nodes or () if not _needs_no_graph(site.module.parents.get(node))]
    ends = dict.fromkeys(map(end_of, detached))
    if ends:
        yield Proposal(tuple(SourceEdit(*end, *end, ".detach()") for end in ends), "detach the output of another model")


class _Chain:
    """Goes from a loss back to what models made. ``makers`` : the names of the models."""

    def __init__(self, site: Site, makers: Set[str]) -> None:
        self.site, self.makers = site, makers
        self.scope = site.scope
        self.kept = {
            path_of(target)
            for node in walk(site.module.tree)
            if isinstance(node, ast.Assign) and self._is_made(node.value)
            for target in node.targets
            if isinstance(target, ast.Attribute)
        }
        self.kept = {path for path in self.kept if path and path.rpartition(".")[2] not in makers}
        self.models = {call.node for call in site.module.calls if call.receiver.kind == "module"}

    def cut(self, loss: ast.expr, line: int) -> list[ast.expr] | None:
        """Return what to detach; None where a model's result is shared with another loss."""
        chain, pending = [loss], [(loss, line)]
        while pending and len(chain) < MOST_STEPS:
            expression, before = pending.pop()
            for _, made, at in self._variables_of(expression, before):
                if made not in chain:
                    chain.append(made)
                    pending.append((made, at))
        inside = {node for expression in chain for node in walk(expression)}
        found: list[ast.expr] = []
        return found if self._cut(loss, line, inside, found, 0) else None

    def _cut(self, expression: ast.expr, before: int, inside: Set[ast.AST], found: list[ast.expr], depth: int) -> bool:
        calls = [node for node in walk(expression) if isinstance(node, ast.expr) and self._is_made_or_kept(node)]
        found += calls
        within = {part for call in calls for part in walk(call)}
        for name, made, at in self._variables_of(expression, before):
            if name in within or depth > MOST_STEPS:
                continue
            if self._is_made(made):
                found.append(name)
            elif self._holds(made, at, 0):
                same = [node for node in walk(self.scope) if isinstance(node, ast.Name) and node.id == name.id]
                reads = [node for node in same if isinstance(node.ctx, ast.Load) and node not in inside]
                if all(node.lineno <= at for node in reads):
                    if not self._cut(made, at, inside, found, depth + 1):
                        return False
                elif any(node in self.models for node in walk(made)):
                    return False  # what it judged is trained by another loss as well
                else:
                    found.append(name)
        return True

    def _holds(self, expression: ast.expr, before: int, depth: int) -> bool:
        """Return whether something is computed of what a model made."""
        if any(self._is_made_or_kept(node) for node in walk(expression)):
            return True
        return depth < 8 and any(
            self._holds(made, at, depth + 1) for _, made, at in self._variables_of(expression, before)
        )

    def _is_made_or_kept(self, node: ast.AST) -> bool:
        """Return whether it is a model's result, or an attribute that holds one: ``self.fake``."""
        return self._is_made(node) or (isinstance(node, ast.Attribute) and path_of(node) in self.kept)

    def _is_made(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and path_of(node.func).rpartition(".")[2] in self.makers

    def _variables_of(self, expression: ast.expr, before: int) -> Iterator[tuple[ast.Name, ast.expr, int]]:
        """Yield the variables of an expression, what they were last given before a line, and where."""
        for name in walk(expression):
            if not isinstance(name, ast.Name):
                continue
            above = [node for node in walk(self.scope) if isinstance(node, ast.Assign) and node.lineno < before]
            given = [node for node in above if any(name.id in names_in(target) for target in node.targets)]
            if given:
                last = max(given, key=lambda node: node.lineno)
                yield name, last.value, last.lineno


def _needs_no_graph(user: ast.AST | None) -> bool:
    name = user.attr if isinstance(user, ast.Attribute) else path_called(user)
    return name in NO_GRAPH

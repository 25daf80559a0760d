"""Return what compiled code puts into a list of its object, and append it outside: the list's length recompiles."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import compiled
from torchtriage.diagnose.lint.edits import SourceEdit
from torchtriage.diagnose.lint.facts import Module, SourceFunction
from torchtriage.diagnose.lint.syntax import names_in, path_of
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import bound, complete, end_of, insert_after, remove, source

CODES = frozenset({"CMP030", "CMP031"})


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the value as one more result of the function, appended where the function is called."""
    for call in site.module.sent("append"):
        function, owner = call.context.function, call.owner
        if function is None or owner is None or not compiled(call.context) or not path_of(owner).startswith("self."):
            continue
        edits = _moved(site.module, function, call.node)
        yield Proposal(edits, f"append to {path_of(owner)} outside compiled code")


def _moved(module: Module, function: SourceFunction, append: ast.Call) -> tuple[SourceEdit, ...]:
    body, statement = function.node.body, module.parents.get(append)
    last = body[-1]
    returns = [node for node in ast.walk(function.node) if isinstance(node, ast.Return)]
    if statement not in body or returns != [last] or not isinstance(last, ast.Return) or last.value is None:
        return ()
    assert isinstance(statement, ast.stmt)
    assert isinstance(append.func, ast.Attribute)
    value, owner = append.args[0], append.func.value
    if names_in(value) & bound(body[body.index(statement) + 1 :]):
        return ()
    site = _only_call(module, function)
    if site is None:
        return ()
    name = path_of(owner).rpartition(".")[2]
    scope = module.scope(site)
    if name in names_in(scope) or isinstance(scope, ast.Module):
        return ()
    after = insert_after(module, site, f"{source(module, owner)}.append({name})")
    longer = _longer(last.value, source(module, value)), _longer(site.targets[0], name)
    return complete((remove(module, statement), *longer, after))


def _longer(node: ast.expr, text: str) -> SourceEdit:
    """Return the edit that adds one more to a tuple, or makes one."""
    end = end_of(node.elts[-1] if isinstance(node, ast.Tuple) and node.elts else node)
    return SourceEdit(*end, *end, f", {text}")


def _only_call(module: Module, function: SourceFunction) -> ast.Assign | None:
    """Return the one statement that calls a method, by its name or by what was compiled from it."""
    names = {f"self.{function.name}"}
    for item in module.assigns:
        made = item.expression
        if isinstance(made, ast.Call) and made.args and path_of(made.args[0]) in names:
            names.add(item.target)
    calls = [call for call in module.calls if path_of(call.node.func) in names]
    if len(calls) != 1:
        return None
    statement, caller = module.parents.get(calls[0].node), calls[0].context.function
    same = caller is not None and caller.owner is function.owner
    return statement if same and isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None

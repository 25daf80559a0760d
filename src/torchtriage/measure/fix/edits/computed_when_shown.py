"""A running metric computed where it is shown, in place of with each update."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit, replace_node
from torchtriage.diagnose.lint.facts import Module, SourceFunction
from torchtriage.diagnose.lint.syntax import path_of
from torchtriage.diagnose.lint.torch_names import words
from torchtriage.measure.fix.edits._flow import flow_of, written
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import body_of, insert_before, remove, source

CODES = words("HST106 HST124 HST114 HST020 LCH105")


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the update of a metric without its value, for the method around the line that computes the value."""
    function = flow_of(site.module).function(site.function)
    if function is None or function.owner is None or len(function.node.args.args) != 1:
        return
    if any(path.startswith("self.") for path in written(function.node.body)):
        return
    for update in function.owner.methods.values():
        edits = _apart(site.module, update, function.name) if update.owner is function.owner else ()
        if edits:
            what = f"call {function.name}() where its value is shown, not in each {update.name}()"
            yield Proposal(edits, what)
            return


def _apart(module: Module, update: SourceFunction, compute: str) -> tuple[SourceEdit, ...]:
    """Return the edits for ``value = metric.update(x)``, which ends in ``return self.compute()``."""
    *before, last = update.node.body
    value = last.value if isinstance(last, ast.Return) else None
    is_value = isinstance(value, ast.Call) and path_of(value.func) == f"self.{compute}" and not value.args
    if not before or not is_value or any(isinstance(item, ast.Return) for part in before for item in ast.walk(part)):
        return ()
    edits: list[SourceEdit | None] = [remove(module, last)]
    for call in module.calls:
        outer = module.parents.get(call.node)
        if call.attr != update.name or isinstance(outer, ast.Expr) or (call.callees and update not in call.callees):
            continue
        shown = _shown(module, outer) if update in call.callees else None
        if shown is None or not isinstance(call.node.func, ast.Attribute) or not isinstance(outer, ast.Assign):
            return ()
        owner = source(module, call.node.func.value)
        edits.append(replace_node(outer, source(module, call.node)))  # type: ignore[arg-type]
        edits.append(insert_before(module, shown.body[0], f"{path_of(outer.targets[0])} = {owner}.{compute}()"))
    return tuple(filter(None, edits)) if len(edits) > 1 and all(edits) else ()


def _shown(module: Module, statement: ast.AST | None) -> ast.If | None:
    """Return the condition, later in the same block, that alone reads what a statement binds."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    name = path_of(statement.targets[0])
    same = module.names(name, module.scope(statement)) if "." not in name else []
    reads = [item for item in same if isinstance(item.ctx, ast.Load)]
    body = body_of(module, statement) or []
    for item in body[body.index(statement) + 1 :] if statement in body else ():
        if isinstance(item, ast.If) and reads and len(same) == len(reads) + 1:
            inside = {node for part in item.body for node in ast.walk(part)}
            return item if inside.issuperset(reads) else None
    return None

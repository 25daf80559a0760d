"""Switch a model to evaluation where it is made, or around the loop that only asks it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.edits import SourceEdit
from torchtriage.diagnose.lint.facts import Module, SourceCall
from torchtriage.diagnose.lint.syntax import path_of
from torchtriage.measure.fix.edits._torch import calls_at
from torchtriage.measure.fix.proposal import Proposal, Site, first_only
from torchtriage.measure.fix.statements import complete, end_of, insert_after, insert_before, source

CODES = frozenset({"CFG042"})
CHANGES = "in evaluation mode dropout is off and batch norm uses its running statistics"


@first_only
def propose(site: Site) -> Iterator[Proposal]:
    """Yield ``.eval()`` after the model is made, or ``eval()`` and ``train()`` around a loop of a training program."""
    for call in calls_at(site):
        path = path_of(call.node.func)
        if call.receiver.kind != "module" or not path or path.endswith(".forward") or call.context.in_module:
            continue
        if any(path_of(other.owner) == path for other in site.module.sent("eval") if other.owner is not None):
            return
        edits = _around(site, path) if site.module.trains else _where_made(site.module, path, call)
        yield Proposal(edits, f"switch {path} to evaluation mode", changes=CHANGES)


def _where_made(module: Module, path: str, call: SourceCall) -> tuple[SourceEdit, ...]:
    assigned = [item for item in module.assigns if item.target == path and item.how == "="]
    made = [item for item in assigned if isinstance(item.node, ast.Assign) and item.expression is not call.node]
    if len(made) != 1:
        return ()
    expression = made[0].expression
    if not isinstance(expression, ast.Call) or ".eval()" in source(module, expression):
        return ()
    if module.name_of(expression.func) == "torch.compile":
        edit = insert_after(module, made[0].node, f"{path}.eval()") if isinstance(made[0].node, ast.stmt) else None
        return complete([edit])
    return (SourceEdit(*end_of(expression), *end_of(expression), ".eval()"),)


def _around(site: Site, path: str) -> tuple[SourceEdit, ...]:
    loop = site.step_loop
    if loop is None or "backward(" in source(site.module, loop):
        return ()
    before, after = f"{path}.eval()", f"{path}.train()"
    return complete([insert_before(site.module, loop, before), insert_after(site.module, loop, after)])

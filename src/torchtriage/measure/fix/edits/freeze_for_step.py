"""A model frozen while another one's loss goes through it, where the gradients of its weights are thrown away."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.syntax import path_of, walk
from torchtriage.measure.fix.edits._other_models import other_models
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import body_of, complete, free_name, insert_after, insert_before, source

CODES = frozenset({"OPT103"})


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the model's weights frozen before the line, and as they were behind the loss' backward pass."""
    module, statement, models = site.module, site.statement, other_models(site, needless=False)
    body = body_of(module, statement) if statement is not None and models else None
    if statement is None or body is None or statement not in body:
        return
    calls = {path_of(node.func) for node in walk(statement) if isinstance(node, ast.Call)}
    called = sorted(path for path in calls if path.rpartition(".")[2] in models)
    at = body.index(statement)
    if len(called) != 1 or (at and "requires_grad_(False)" in source(module, body[at - 1])):
        return
    (model,) = called
    behind = _backward_of(statement, body[at:], model)
    weights, weight = free_name(module, "trained", "trained_weights"), free_name(module, "weight", "trained_weight")
    if behind is None or not weights or not weight:
        return
    before = (
        f"{weights} = [{weight} for {weight} in {model}.parameters() if {weight}.requires_grad]\n"
        f"for {weight} in {weights}:\n    {weight}.requires_grad_(False)"
    )
    after = f"for {weight} in {weights}:\n    {weight}.requires_grad_(True)"
    edits = complete((insert_before(module, statement, before), insert_after(module, behind, after)))
    yield Proposal(edits, f"no gradients of {model}'s weights for this loss")


def _backward_of(statement: ast.stmt, rest: list[ast.stmt], model: str) -> ast.stmt | None:
    """Return the backward pass of what a statement makes, where the model is not used before it."""
    loss = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    for item in rest:
        call = item.value if isinstance(item, ast.Expr) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "backward":
            mine = item is statement or (loss is not None and path_of(call.func.value) == path_of(loss) != "")
            return item if mine else None
        paths = {path_of(node) for node in walk(item) if isinstance(node, ast.Name | ast.Attribute)}
        if item is not statement and model in paths:
            return None
    return None

"""A model frozen while another one's loss goes through it, where the gradients of its weights are thrown away."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.syntax import path_of, walk
from torchtriage.measure.fix.edits._other_models import other_models
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import body_of, complete, insert_after, insert_before

CODES = frozenset({"OPT103"})


def propose(site: Site) -> Iterator[Proposal]:
    """Yield ``critic.requires_grad_(False)`` before the line, and the opposite behind its backward pass."""
    module, statement, models = site.module, site.statement, other_models(site, needless=False)
    body = body_of(module, statement) if statement is not None and models else None
    if statement is None or body is None or statement not in body:
        return
    calls = {path_of(node.func) for node in walk(statement) if isinstance(node, ast.Call)}
    called = sorted(path for path in calls if path.rpartition(".")[2] in models)
    behind = next((item for item in body[body.index(statement) :] if _goes_backward(item)), None)
    if len(called) != 1 or behind is None or _is_frozen_somewhere(module.text, called[0].rpartition(".")[2]):
        return
    edits = (
        insert_before(module, statement, f"{called[0]}.requires_grad_(False)"),
        insert_after(module, behind, f"{called[0]}.requires_grad_(True)"),
    )
    if all(edit is not None for edit in edits):
        yield Proposal(complete(edits), f"no gradients of {called[0]}'s weights for this loss")


def _is_frozen_somewhere(text: str, name: str) -> bool:
    """Return whether a part of the model is frozen by hand, and would not be any more."""
    return any("requires_grad" in row and re.search(rf"\b{re.escape(name)}\b", row) for row in text.splitlines())


def _goes_backward(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "backward"

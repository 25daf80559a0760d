"""Drop gradients instead of filling them with zeros: ``zero_grad()`` as it is by default, ``p.grad = None``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import literal, replace_node
from torchtriage.diagnose.lint.syntax import argument
from torchtriage.measure.fix.edits._torch import calls_at
from torchtriage.measure.fix.proposal import Proposal, Site, first_only
from torchtriage.measure.fix.statements import complete, source

CODES = frozenset({"HST020", "HST114", "LCH014", "LCH016", "OPT040"})
UNSET = "gradients are None instead of zero if a parameter takes no part in a backward pass: its update is skipped"


@first_only
def propose(site: Site) -> Iterator[Proposal]:
    """Yield what drops the gradients that the line fills, or that the optimizer of its loop does."""
    calls = calls_at(site)
    if site.finding.code == "OPT040" and site.step_loop is not None:
        inside = set(ast.walk(site.step_loop))
        calls += [call for call in site.module.sent("zero_grad", "zero_") if call.node in inside]
    for call in calls:
        edit = None
        if call.attr == "zero_grad":
            given = argument(call.node, "set_to_none", 0)
            edit = replace_node(given, "True") if given is not None and literal(given) is False else None
        elif call.attr == "zero_" and call.owner is not None:
            statement = site.module.parents.get(call.node)
            grad = _grad(call.owner)
            if grad is not None and isinstance(statement, ast.Expr):
                edit = replace_node(statement, f"{source(site.module, grad)} = None")
        yield Proposal(complete((edit,)), "drop gradients instead of filling them with zeros", UNSET)


def _grad(node: ast.expr) -> ast.Attribute | None:
    """Return ``p.grad`` of ``p.grad``, ``p.grad.data`` and ``p.grad.detach_()``."""
    while isinstance(node, ast.Attribute | ast.Call):
        if isinstance(node, ast.Attribute) and node.attr == "grad":
            return node
        node = node.func if isinstance(node, ast.Call) else node.value
    return None

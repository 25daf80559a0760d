"""Switch something off: by the flag that it is behind, or by taking its statement out."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import replace_node
from torchtriage.diagnose.lint.facts import Module
from torchtriage.measure.fix.edits._settings import constant_of
from torchtriage.measure.fix.proposal import Proposal
from torchtriage.measure.fix.statements import body_of, remove


def flag_off(module: Module, flag: ast.expr, what: str) -> Iterator[Proposal]:
    """Yield the edit of the one place that says the flag is on."""
    constant = constant_of(module, flag)
    if constant is not None and constant.value is True:
        yield Proposal((replace_node(constant, "False"),), f"switch {what} off")


def taken_out(module: Module, node: ast.AST, what: str) -> Iterator[Proposal]:
    """Yield the edit that takes a statement out, with the condition that it is alone behind."""
    statement = node if isinstance(node, ast.stmt) else module.parents.get(node)
    if not isinstance(statement, ast.Expr | ast.Assign):
        return
    around = module.parents.get(statement)
    if isinstance(around, ast.If) and around.body == [statement] and not around.orelse:
        flags = list(flag_off(module, around.test, what))
        if flags:
            yield from flags
            return
        if body_of(module, around) != [around]:
            statement = around
    edit = remove(module, statement)
    if edit is not None:
        yield Proposal((edit,), f"take {what} out")

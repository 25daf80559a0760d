"""Keep a compiled function in one graph: no prints, no reads, ``torch.where`` in the place of a branch on a tensor."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchtriage.diagnose.lint.base import compiled, logging_calls, reads, replace_node
from torchtriage.diagnose.lint.edits import SourceEdit
from torchtriage.diagnose.lint.facts import Module
from torchtriage.measure.fix.edits._switches import taken_out
from torchtriage.measure.fix.edits._torch import torch_in
from torchtriage.measure.fix.proposal import Proposal, Site
from torchtriage.measure.fix.statements import source

CODES = frozenset({"CMP030"})
RISK = "gradients may be NaN if the branch that is not taken divides by zero, or similar"
PARTIAL = re.compile(r"/|%|\*\*|log|sqrt|pow|norm|acos|asin|reciprocal")


def propose(site: Site) -> Iterator[Proposal]:
    """Yield the cures of all breaks of the file at once: one that stays would hide what the others save."""
    module = site.module
    edits: list[SourceEdit] = []
    done: list[str] = []
    risky = False
    for call in logging_calls(module):
        if compiled(call.context):
            for proposal in taken_out(module, call.node, f"{call.attr}()"):
                edits += proposal.edits
                done.append(f"no {call.attr}()")
    for node, context, how in reads(module):
        if not compiled(context) or _inside(node, edits):
            continue
        if how == "item" and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if _computes_only(module, node):
                edits.append(replace_node(node, source(module, node.func.value)))
                done.append("no item()")
        elif how == "if":
            chosen = _chosen(module, node)
            if chosen is not None:
                edits += [chosen, *torch_in(module)[1]]
                done.append("torch.where instead of a branch")
                risky = risky or PARTIAL.search(chosen.text) is not None
    if edits:
        silent = [item for item in done if item.endswith("()") and item != "no item()"]
        changes = "compiled code no longer reports anything" if silent else RISK if risky else ""
        yield Proposal(tuple(edits), f"one graph: {', '.join(dict.fromkeys(done))}", changes)


def _inside(node: ast.AST, edits: list[SourceEdit]) -> bool:
    line = getattr(node, "lineno", 0)
    return any(edit.line <= line < max(edit.end_line, edit.line + 1) for edit in edits)


def _computes_only(module: Module, node: ast.Call) -> bool:
    """Return whether a number is only computed with or handed on, which a tensor can be as well."""
    for use in module.uses(node):
        around = module.parents.get(use)
        if isinstance(around, ast.Call | ast.Subscript | ast.keyword | ast.Slice | ast.If | ast.While):
            return False
    return True


def _chosen(module: Module, test: ast.expr) -> SourceEdit | None:
    """Return ``x = torch.where(test, a, b)`` for ``if test: x = a`` and ``else: x = b``."""
    branch = module.around(test, ast.stmt)
    if not isinstance(branch, ast.If) or test not in ast.walk(branch.test):
        return None
    name, given = _assigned(module, branch.body)
    other, rest = _assigned(module, branch.orelse) if branch.orelse else (name, name)
    if not name or other != name or isinstance(branch.test, ast.BoolOp):
        return None
    text = f"{name} = {torch_in(module)[0]}.where({source(module, branch.test)}, {given}, {rest})"
    inside = source(module, branch)
    return None if "#" in inside or inside.startswith("elif") else replace_node(branch, text)


def _assigned(module: Module, body: list[ast.stmt]) -> tuple[str, str]:
    """Return the variable that a branch does nothing but assign, and the text of what; nothing where it does more."""
    statement = body[0]
    if len(body) != 1 or not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return "", ""
    target = statement.targets[0]
    return (target.id, source(module, statement.value)) if isinstance(target, ast.Name) else ("", "")
